"""Causal threads of a run: what happened to a subject, one cause after the other.

A *thread* is all lines of one cause (docs/design/0016), in order. Which threads are told is decided
by the lines about a subject: a partition, a member, or the id of a cause itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from whimbrel.errors import UsageError
from whimbrel.sim.trace import Line, Trace, render

KEPT_LINES_MAX = 400_000
"""Lines of a run that are kept to tell threads; the oldest go first."""
THREADS_MAX = 40
"""Threads that are told, the newest."""
THREAD_LINES_MAX = 200
"""Lines of one thread: half of them about the subject, the rest its beginning and its end."""

_PARTITION = re.compile(r"partition=([0-9]+)")
_MEMBER = re.compile(r"member=(\S+)")
_CAUSE = re.compile(r"[!-~]{1,8}-[0-9]+")


class Subject:
    """What a story is about.

    Args:
        text: ``partition=17``, ``member=m2`` or the id of a cause.

    Raises:
        UsageError: It is none of them.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        partition, member = _PARTITION.fullmatch(text), _MEMBER.fullmatch(text)
        self._words: tuple[str, ...] = ()
        self._member = ""
        self._is_cause = False
        if partition is not None:
            number = int(partition[1])
            self._words = (f" p{number} ", f" partition={number} ", f" partition_id={number} ")
        elif member is not None:
            self._member = member[1]
        elif _CAUSE.fullmatch(text):
            self._is_cause = True
        else:
            raise UsageError(
                f"{text!r} is no subject of a story; give partition=N, member=NAME, or the id of a "
                "cause such as 0a1b2c3d-1234567"
            )

    def causes(self, lines: Iterable[Line]) -> list[str]:
        """Causes of the lines about it, each once, the one with the newest such line last."""
        found: dict[str, None] = {}
        names: dict[str, None] = {}
        for line in lines:
            cause = line[4]
            if cause and self.is_in(line, names):
                found.pop(cause, None)
                found[cause] = None
        return list(found)

    def is_in(self, line: Line, names: dict[str, None]) -> bool:
        """Whether a line is about it; ``names`` are the ids a member had so far."""
        _, who, what, detail, cause = line
        if self._is_cause:
            return cause == self.text
        if self._member:
            return self._is_of_member(who, what, detail, names)
        text = f" {detail} "
        return any(word in text for word in self._words)

    def _is_of_member(self, who: str, what: str, detail: str, names: dict[str, None]) -> bool:
        """Whether its life is concerned: start, end, or a note that names it.

        Everything that it does or hears would be nearly all causes of the cluster.
        """
        if who == self._member:
            if what == "start":
                names[detail] = None
            return what in ("start", "joined", "expelled", "stopped") or what.startswith("VIOL")
        return what.startswith("note ") and any(name in detail for name in names)


def threads(trace: Trace, subject: Subject) -> list[str]:
    """The threads of a subject for people, newest last; empty when there are none.

    A thread has a head and its lines; what was left out is said where it was.
    """
    chosen = subject.causes(trace.lines)
    left_out = len(chosen) - THREADS_MAX
    by_cause: dict[str, list[Line]] = {cause: [] for cause in chosen[-THREADS_MAX:]}
    for line in trace.lines:
        thread = by_cause.get(line[4])
        if thread is not None:
            thread.append(line)
    told: list[str] = []
    lost = trace.lines_count - len(trace.lines)
    if lost and chosen:
        told += [f"... the first {lost} lines of the run are not kept ...", ""]
    if left_out > 0:
        told += [f"... {left_out} older threads ...", ""]
    for cause, lines in by_cause.items():
        told += [head_of(cause, lines), *_shown(lines, subject), ""]
    return told[:-1]


def head_of(cause: str, lines: Sequence[Line]) -> str:
    """What stands above a thread: its cause, how long it is, who has part in it."""
    members = ", ".join(dict.fromkeys(line[1] for line in lines))
    span_s = (lines[-1][0] - lines[0][0]) / 1_000_000
    return f"cause {cause}: {len(lines)} lines in {span_s:.3f} s on {members}"


def _shown(lines: Sequence[Line], subject: Subject) -> list[str]:
    """A plan has thousands of lines: those about the subject, and how it began and ended."""
    count, names = len(lines), dict[str, None]()
    about = [number for number, line in enumerate(lines) if subject.is_in(line, names)]
    chosen = dict.fromkeys(range(count))
    if count > THREAD_LINES_MAX:
        half, quarter = THREAD_LINES_MAX // 2, THREAD_LINES_MAX // 4
        ends = (*range(quarter), *range(count - quarter, count))
        chosen = dict.fromkeys(sorted({*ends, *about[-half:]}))
    shown: list[str] = []
    after = 0
    for number in chosen:
        if number > after:
            shown.append(f"... {number - after} lines ...")
        shown.append(render(lines[number]))
        after = number + 1
    return shown
