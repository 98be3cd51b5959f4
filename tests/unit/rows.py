"""Rows as tests write and compare them: by their first slots, slot by slot, after a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from whimbrel.core.ids import REPLICA_SLOTS, MemberId, Row
from whimbrel.core.model import Step


def row_from(members: Iterable[MemberId | None]) -> Row:
    """A full-length row from its first slots; the missing tail is holes."""
    slots = tuple(members)
    assert len(slots) <= REPLICA_SLOTS
    return slots + (None,) * (REPLICA_SLOTS - len(slots))


def slots_changed(before: Row, after: Row) -> int:
    """In how many slots two rows differ: what a partition version rises by (PIM-13)."""
    return sum(old != new for old, new in zip(before, after, strict=True))


def end_row(current: Row, steps: Sequence[Step]) -> Row:
    """The row after all steps of a plan."""
    row = current
    for step in steps:
        row = step.apply(row)
    return row
