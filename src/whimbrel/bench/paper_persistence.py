"""The two tables of paper 05, with real members on this machine (APR-54 to APR-63).

Four members with files, three backups, values of 10 KB: one member is killed and comes back, with
nothing or a tenth of the keys changed meanwhile. Each mode of the paper is a cluster of its own;
what is compared is our whole copies with our copies by difference, in one run, and both with what
the paper found. ``NOTES`` says what is not as it was there.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from hazelcast.errors import HazelcastError

from whimbrel.bench.bars import bar
from whimbrel.bench.goals import Goal, at_least, at_most, documents
from whimbrel.bench.goals import table as goals_table
from whimbrel.bench.paper_persistence_live import (
    MEMBERS,
    NOTHING,
    ONE_EACH,
    POLL_S,
    TENTH,
    Mode,
    PersistentGrid,
    Size,
)
from whimbrel.core.model import ClusterState
from whimbrel.core.replication.comparison import BITS_MAX, LEVEL_BITS, Way, bits_for
from whimbrel.core.settings import ComparisonBounds
from whimbrel.errors import OperationError, UsageError

FULL, MERKLE, PLANNED, ONE_BACKUP = "full", "Merkle", "Merkle + plan", "Merkle + plan, 1 backup"
STABLE: Final = ClusterState.STABLE_CLUSTER
MODES: Final = (
    Mode(FULL, STABLE, compares=False, backups=3, changes=(NOTHING, TENTH)),
    Mode(MERKLE, ClusterState.FROZEN, compares=True, backups=3, changes=(NOTHING, TENTH)),
    Mode(PLANNED, STABLE, compares=True, backups=3, changes=(NOTHING, ONE_EACH, TENTH)),
    Mode(ONE_BACKUP, STABLE, compares=True, backups=1, changes=(NOTHING,)),
)
SMOKE: Final = Size(entries=2_710)
"""Ten entries a partition: seconds, and no figure to be believed."""


class Paper(NamedTuple):
    """What the paper found."""

    migrations: int
    records: int
    seconds: float


PAPER_ENTRIES: Final = 4_000_000
PAPER: Final = {
    (FULL, NOTHING, "kill"): Paper(340, 5_018_209, 1_202.0),
    (FULL, NOTHING, "restart"): Paper(475, 10_020_466, 1_688.0),
    (MERKLE, NOTHING, "kill"): Paper(341, 0, 0.6),
    (MERKLE, NOTHING, "restart"): Paper(477, 709_529, 724.0),
    (PLANNED, NOTHING, "kill"): Paper(340, 0, 0.5),
    (PLANNED, NOTHING, "restart"): Paper(410, 0, 6.7),
    (FULL, TENTH, "kill"): Paper(338, 4_987_066, 1_208.0),
    (FULL, TENTH, "restart"): Paper(475, 6_938_563, 1_597.0),
    (MERKLE, TENTH, "kill"): Paper(340, 0, 0.5),
    (MERKLE, TENTH, "restart"): Paper(475, 4_339_161, 1_543.0),
    (PLANNED, TENTH, "kill"): Paper(338, 0, 0.5),
    (PLANNED, TENTH, "restart"): Paper(409, 1_697_617, 1_089.0),
}
"""By mode, change and event: tables 1 and 2 (APR-55 to APR-60)."""

NOTES: Final = (
    "Members, client and disk share this machine and its loopback. The paper had a machine of 32 "
    "threads for each member, 10 Gbit/s between them, and 4,000,000 entries: 160 GB in four "
    "copies (it says 120). Compare ratios, not seconds.",
    "full: STABLE_CLUSTER with map.comparison off. Its plan is ours, in which nobody but the "
    "member that returns is sent data; in the paper's, records were sent two and a half times.",
    "Merkle: comparison on, without a plan: FROZEN, in which every seat is kept. So nothing "
    "migrates, and while the member is away the cluster is not safe: there is no time for the "
    "kill. Writes to partitions of which the member is the primary wait for it, so the tenth is "
    "of keys of the other partitions. The paper had STABLE_CLUSTER and its former planner.",
    "Merkle + plan: comparison on, STABLE_CLUSTER.",
    "The member that goes is the youngest, by SIGKILL. The changes of a mode follow one another "
    "in one cluster; the paper had a fresh one each time.",
    "To safe: of a kill from the signal on; of a restart from when the member is on the list, "
    f"looked at every {POLL_S * 1e3:.0f} ms. Starting its process and loading its files come "
    "before that (loading s); whether the paper's times have them it does not say.",
    f"'{ONE_EACH}' is not in the paper: something differs in every partition and next to "
    "nothing is copied, so it shows what finding out costs by itself (APR-62).",
    f"'{ONE_BACKUP}' is not in the paper's tables: its discussion says that the gain on a kill "
    "goes away with fewer backups (APR-61).",
)
"""What our figures are of, for whoever compares them with the paper's."""

CHANGED_SHARE: Final = 0.1
COPIES_HELD_PER_ENTRY: Final = MEMBERS * 1.3
"""With what a member that returns holds twice for a while, and what the allocator does not give
back."""
ENTRY_BYTES: Final = 300
"""Beside the value, in memory and on disk."""
LOG_RATIO: Final = 3
"""The log of a member may grow to so many times what lives before it is compacted."""
SPARE_BYTES: Final = 2 << 30
LOAD_STEPS: Final = 20
"""Of the progress, for storing the entries of one cluster."""
FLOW_STEPS: Final = 5
"""Of the progress, for each event."""

Figures = dict[str, Any]
Progress = Callable[[int, int], None]


class _Steps:
    """Progress over all clusters."""

    def __init__(self, progress: Progress) -> None:
        flows = sum(len(mode.changes) for mode in MODES)
        self._total = LOAD_STEPS * len(MODES) + 2 * FLOW_STEPS * flows
        self._done = 0
        self._progress = progress
        progress(0, self._total)

    def loaded(self, share: float) -> None:
        """So much of the present cluster's data is stored."""
        self._progress(self._done + int(LOAD_STEPS * share), self._total)

    def add(self, steps: int) -> None:
        """So many steps are done."""
        self._done = min(self._total, self._done + steps)
        self._progress(self._done, self._total)


def run(
    progress: Progress = lambda _done, _total: None,
    entries: int | None = None,
    smoke: bool = False,
    size: Size | None = None,
) -> Figures:
    """Measure all modes, one cluster after the other.

    Args:
        progress: Told how many of all steps are done.
        entries: Of the map, instead of the default's.
        smoke: As few entries as show that it works.
        size: What is measured instead.

    Raises:
        UsageError: There is not enough memory, or room on the disk, for so many.
    """
    size = size or (SMOKE if smoke else Size())
    if entries is not None:
        size = msgspec.structs.replace(size, entries=entries)
    check_room(size, _memory_bytes(), shutil.disk_usage(tempfile.gettempdir()).free)
    steps = _Steps(progress)
    rows: list[Figures] = []
    for mode in MODES:
        events = 0
        for row in _mode(mode, size, steps):
            rows.append(row)
            events += 1
            steps.add(FLOW_STEPS)
        steps.add((2 * len(mode.changes) - events) * FLOW_STEPS)
    return figures_of(size, rows)


def _mode(mode: Mode, size: Size, steps: _Steps) -> Iterator[Figures]:
    """The rows of one cluster; the last one tells what went wrong, if anything did."""
    change = ""
    try:
        with PersistentGrid(mode, size) as grid:
            load_s = grid.load(steps.loaded)
            steps.add(LOAD_STEPS)
            for change in mode.changes:
                for row in grid.flow(change):
                    paper = PAPER.get((mode.name, change, row["event"]))
                    yield {
                        "mode": mode.name,
                        "backups": mode.backups,
                        "change": change,
                        **row,
                        "stored_s": round(load_s, 1),
                        "paper": None if paper is None else paper._asdict(),
                    }
    except (TimeoutError, OperationError, HazelcastError) as problem:
        reason = f"{type(problem).__name__}: {problem}"
        yield {"mode": mode.name, "change": change, "event": "failed", "reason": reason}


def check_room(size: Size, memory_bytes: int, disk_bytes: int) -> None:
    """Refuse what would not fit, before anything is started.

    Raises:
        UsageError: It says how many entries would fit.
    """
    entry_bytes = size.value_bytes + ENTRY_BYTES
    in_memory = int((memory_bytes - SPARE_BYTES) / (entry_bytes * COPIES_HELD_PER_ENTRY))
    on_disk = int((disk_bytes - SPARE_BYTES) / (entry_bytes * MEMBERS * LOG_RATIO))
    for what, fits in (("in memory", in_memory), ("on the disk (TMPDIR)", on_disk)):
        if size.entries > fits:
            raise UsageError(
                f"{size.entries} entries of {size.value_bytes} bytes on {MEMBERS} members do not "
                f"fit {what}: --entries {max(0, fits)} would"
            )


def _memory_bytes() -> int:
    """What this machine has for processes that are started now.

    Raises:
        UsageError: It does not tell.
    """
    path = Path("/proc/meminfo")
    if path.exists():
        for line in path.read_text(encoding="ascii").splitlines():
            name, _, figure = line.partition(":")
            if name == "MemAvailable":
                return int(figure.split()[0]) * 1024
    raise UsageError("this benchmark needs Linux: there is no /proc/meminfo that tells")


# -- what came of it ----------------------------------------------------------------------


def figures_of(size: Size, rows: list[Figures]) -> Figures:
    """The document of a run."""
    here, there = (
        records_expected(entries, size.partitions) for entries in (size.entries, PAPER_ENTRIES)
    )
    exchanges = bits_of(size.entries, size.partitions) // LEVEL_BITS
    leaves = (
        "Where trees find out what differs (fragments by difference), what shares a leaf with a "
        "changed entry is sent along. A tree has up to "
        f"{1 << BITS_MAX:,} leaves: with a tenth changed {here:.2f} x what changed is to be "
        f"expected of this many entries, and {there:.2f} x of the paper's {PAPER_ENTRIES:,}. "
        f"Which leaves differ is known after {exchanges} exchanges at most, all partitions of a "
        "copy side by side; the paper's took half its depth, level by level."
    )
    return {
        "members": MEMBERS,
        "size": msgspec.to_builtins(size),
        "rows": rows,
        "goals": documents(goals_of(rows)),
        "notes": [*NOTES, leaves],
    }


def bits_of(entries: int, partitions: int) -> int:
    """Of the tree over a partition's share of so many entries."""
    return bits_for(round(entries / partitions), ComparisonBounds().leaf_entries)


def records_expected(entries: int, partitions: int) -> float:
    """Records that are sent for each one of a tenth that changed, by the size of the trees.

    Entries fall into leaves as they like (Poisson), so a leaf sends the mean of what is in it, less
    the mean of what is in those where nothing has changed.
    """
    leaf = entries / partitions / (1 << bits_of(entries, partitions))
    unchanged = leaf * (1 - CHANGED_SHARE) * math.exp(-CHANGED_SHARE * leaf)
    return (leaf - unchanged) / (leaf * CHANGED_SHARE)


def goals_of(rows: list[Figures]) -> list[Goal]:
    """The goals, judged by these rows."""
    found = {(row["mode"], row["change"], row["event"]): row for row in rows}

    def figure(mode: str, change: str, name: str) -> float | None:
        value = found.get((mode, change, "restart"), {}).get(name)
        return None if value is None else float(value)

    changed = figure(PLANNED, TENTH, "changed")
    records = figure(PLANNED, TENTH, "records")
    ran = [row for row in rows if row["event"] != "failed"]
    restarts = [row for row in ran if row["event"] == "restart"]
    is_whole = len(ran) == 2 * sum(len(mode.changes) for mode in MODES)
    bad = sum(row["lost"] + row["wrong"] for row in restarts)
    again = sum(max(0, row["plans"] - 1) for row in ran)
    return [
        at_most(
            "nothing changed: no record is sent", figure(PLANNED, NOTHING, "records"), 0, "records"
        ),
        at_most(
            "a tenth changed: records at most 1.1 x what changed (paper: 4.2 x)",
            None if not changed or records is None else records / changed,
            1.1,
            "x",
        ),
        at_least(
            "nothing changed: to safe in at most 1/250 of our full mode",
            _ratio(figure(FULL, NOTHING, "seconds"), figure(PLANNED, NOTHING, "seconds")),
            250,
            "times faster",
        ),
        at_least(
            "a tenth changed: to safe in at most 1/10 of our full mode",
            _ratio(figure(FULL, TENTH, "seconds"), figure(PLANNED, TENTH, "seconds")),
            10,
            "times faster",
        ),
        at_most(
            "no migration fails, none is planned twice (APR-63)",
            float(sum(row["failed"] for row in ran) + again) if is_whole else None,
            0,
            "failed or again",
        ),
        at_most(
            "no entry is lost, no value is old", float(bad) if is_whole else None, 0, "entries"
        ),
    ]


def _ratio(full_s: float | None, ours_s: float | None) -> float | None:
    """How many times faster; what is shorter than a look takes counts as one."""
    return None if full_s is None or ours_s is None else full_s / max(ours_s, POLL_S)


def tables(figures: Figures) -> list[tuple[str, list[str], list[list[str]]]]:
    """For people: title, columns, rows."""
    size, rows = figures["size"], figures["rows"]
    title = (
        f"{MEMBERS} members, {size['partitions']} partitions, {size['entries']} entries of "
        f"{size['value_bytes']} bytes, every write synced"
    )
    return [
        (title, *_figures_table(rows)),
        ("The return in bars", *_chart(rows, size["entries"])),
        goals_table(figures["goals"]),
        ("What is not as in the paper", [""], [[note] for note in figures["notes"]]),
    ]


def _figures_table(rows: list[Figures]) -> tuple[list[str], list[list[str]]]:
    columns = ["mode", "changed", "event", ">migrations", ">paper", ">records", ">paper",
               ">sums kB", "fragments", ">loading s", ">to safe s",
               ">paper s"]  # fmt: skip
    shown: list[list[str]] = []
    for row in rows:
        head = [row["mode"], row["change"], row["event"]]
        if row["event"] == "failed":
            shown.append([*head, row["reason"], *[""] * (len(columns) - len(head) - 1)])
            continue
        paper = row["paper"] or {}
        ways = [
            f"{row[way.value]} {way.value.removeprefix('copies_').replace('_', ' ')}"
            for way in Way
            if row[way.value]
        ]
        shown.append(
            [
                *head,
                str(row["migrations"]),
                _text(paper.get("migrations")),
                str(row["records"]),
                _text(paper.get("records")),
                f"{row['sum_bytes'] / 1e3:.1f}",
                ", ".join(ways),
                _text(row.get("load_s")),
                _text(row["seconds"]),
                _text(paper.get("seconds")),
            ]
        )
    return columns, shown


def _chart(rows: list[Figures], entries: int) -> tuple[list[str], list[list[str]]]:
    """Records as shares of the entries, and time to safe as a share of the same run's full mode."""
    columns = ["changed", "mode", "", ">records/entries", "", ">time of full", ""]
    found = {(row["mode"], row["change"]): row for row in rows if row["event"] == "restart"}
    shown = []
    for change in (NOTHING, TENTH):
        full = found.get((FULL, change))
        for mode in (FULL, MERKLE, PLANNED):
            ours, paper = found.get((mode, change)), PAPER[mode, change, "restart"]
            full_s = PAPER[FULL, change, "restart"].seconds
            if ours is not None and full is not None:
                share = ours["seconds"] / max(full["seconds"], POLL_S)
                shown.append([change, mode, "ours", *_bars(ours["records"] / entries, share)])
            of_paper = _bars(paper.records / PAPER_ENTRIES, paper.seconds / full_s)
            shown.append([change, mode, "paper", *of_paper])
    return columns, shown


def _bars(records: float, share: float) -> list[str]:
    most = PAPER[FULL, NOTHING, "restart"].records / PAPER_ENTRIES
    return [f"{records:.2f}", bar(records, most), f"{share:.3f}", bar(share, 1.0)]


def _text(value: object) -> str:
    return "" if value is None else str(value)
