"""What an audit has found of one fragment."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from whimbrel.core.ids import MemberId, Namespace
from whimbrel.core.messages.audit import Finding, Mark
from whimbrel.core.replication.content import Content

KEYS_TOLD_MAX: Final = 5
"""Keys that are named in a finding."""
SEEN_MAX: Final = 100_000
"""Keys that differ and are remembered, so that none counts twice."""


class Tally:
    """What was found of one fragment so far: a key counts once, as it was seen last."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._marks: dict[bytes, int] = {}
        self._counts = dict.fromkeys(Mark, 0)
        """Of those that are too many to be remembered."""

    def take(self, keys: Sequence[bytes], marks: bytes) -> None:
        """Each key was seen on both sides at one version."""
        for key, mark in zip(keys, marks, strict=True):
            if mark == Mark.SAME:
                self._marks.pop(key, None)
            elif len(self._marks) < SEEN_MAX or key in self._marks:
                self._marks[key] = mark
            else:
                self._counts[Mark(mark)] += 1

    def finding(self, namespace: Namespace, member: MemberId, rows: int) -> Finding:
        """All of it."""
        marks = list(self._marks.values())
        missing, different, extra = (
            self._counts[kind] + marks.count(kind)
            for kind in (Mark.MISSING, Mark.DIFFERENT, Mark.EXTRA)
        )
        keys = tuple(map(self._content.name_of, islice(self._marks, KEYS_TOLD_MAX)))
        return Finding(namespace, member, rows, missing, different, extra, keys)
