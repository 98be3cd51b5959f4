"""All machines lose their power while a backup is made, restored or deleted, at any command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.backup_net import BackupPump, DiskNode, forked

ENTRIES = 12
EVERY = 3
"""So many-th command; the first one differs from job to job."""
OLD = [f"old{number}" for number in range(ENTRIES)]
NEW = [f"new{number}" for number in range(ENTRIES)]


class Blackout:
    """Before the command of this number, of whichever disk."""

    def __init__(self, position: int) -> None:
        self.left = position

    def __call__(self, _node: DiskNode) -> bool:
        self.left -= 1
        return self.left == -1


@pytest.fixture(scope="module")
def first() -> BackupPump:
    """A cluster with a backup of old values, and new ones in memory."""
    pump = BackupPump()
    pump.begin()
    pump.fill("old")
    pump.done("create", "whole")
    pump.fill("new")
    pump.run(2)
    pump.crash()
    return pump


def cut(first: BackupPump, what: str, name: str, begin: int) -> Iterator[BackupPump]:
    """After a loss of power in the middle of the job and a return, at one command after another."""
    position = begin
    while True:
        pump = forked(first, position)
        pump.loses_power = True
        pump.dies = blackout = Blackout(position)
        pump.order(what, name, may_replace=what == "restore")
        pump.run(3)
        if blackout.left >= 0:
            assert position > 2 * EVERY, "too few commands to say anything"
            return
        pump.dies = lambda _node: False
        pump.begin()
        yield pump
        position += EVERY


def states(pump: BackupPump) -> dict[str, bool]:
    return {row["id"]: row["complete"] for row in pump.done("list")}


def test_a_backup_that_is_cut_harms_no_former_one(first: BackupPump) -> None:
    """APR-26, APR-30: the former one is whole, the new one is complete and whole, or is none."""
    seen = set()
    for pump in cut(first, "create", "next", 0):
        found = states(pump)
        assert found["whole"] and pump.done("verify", "whole")["entries"] == ENTRIES
        seen.add(found.get("next"))
        if found.get("next"):
            assert pump.done("verify", "next")["entries"] == ENTRIES
        elif "next" in found:
            assert "not complete" in pump.done("restore", "next", may_replace=True)
        assert pump.shown() == NEW
    assert seen >= {False} or seen >= {None}, seen


def test_a_restore_that_is_cut_can_be_ordered_again(first: BackupPump) -> None:
    """APR-26, APR-30: what is there is old, new or not there yet, and nothing else; the backup is
    whole; ordered again it is all there, and outlives the next loss of power.
    """
    changed = set()
    for pump in cut(first, "restore", "whole", 1):
        shown = pump.shown()
        pairs = list(zip(shown, OLD, NEW, strict=True))
        assert all(value in (old, new, None) for value, old, new in pairs), shown
        changed.add(shown == NEW)
        assert pump.done("verify", "whole")["entries"] == ENTRIES
        assert pump.done("restore", "whole", may_replace=True)["entries"] == ENTRIES
        assert pump.shown() == OLD
        pump.run(2)
        pump.black_out()
        pump.begin()
        assert pump.shown() == OLD
    assert changed == {False, True}


def test_a_deletion_that_is_cut_leaves_nothing_that_looks_whole(first: BackupPump) -> None:
    """APR-29: the backup is there and can be verified, or it is not complete, or gone."""
    for pump in cut(first, "delete", "whole", 2):
        found = states(pump).get("whole")
        verified = pump.done("verify", "whole")
        assert isinstance(verified, dict) is (found is True), (found, verified)
        assert pump.shown() == NEW
