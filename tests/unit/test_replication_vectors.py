"""Goal: the arithmetic of replica version vectors is the paper's."""

from __future__ import annotations

import pytest

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.messages import Vector
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.replication.vectors import (
    EMPTY_VECTOR,
    NO_LINEAGE,
    ZERO,
    Counters,
    kept_by,
    lineage_version,
    make_lineage,
    promoted_from,
    slot_of,
)
from whimbrel.structures.map.store import MapStore

START = (10, 20, 30, 40, 50, 60)


def counted(backup_count: int) -> Counters:
    """The counters of a primary that began with START, after one operation."""
    fragment = Fragment(PartitionId(0), Namespace("map/m"), MapStore(), backup_count, 0)
    fragment.set_counters(START, 0)
    fragment.value += 1
    return fragment.counters()


def test_a_fresh_vector_is_six_zeros() -> None:
    """AE-01: six counters; slot 0 belongs to replica 1, slot 5 to replica 6."""
    assert ZERO == (0, 0, 0, 0, 0, 0)
    assert Vector(NO_LINEAGE, ZERO) == EMPTY_VECTOR, "whose base is not told began with nothing"
    assert [slot_of(index) for index in (1, 2, 6)] == [0, 1, 5]
    assert slot_of(0) == 0


@pytest.mark.parametrize("count", range(7))
def test_an_operation_raises_what_it_asks_for(count: int) -> None:
    """AE-02: the first k counters rise by one, whatever the cluster can hold."""
    assert counted(count) == tuple(v + (slot < count) for slot, v in enumerate(START))


def test_colder_replicas_keep_fewer_counters() -> None:
    """AE-03 and AE-04: replica 1 keeps all, replica 2 all but the first, replica 3 all but two."""
    after = counted(3)
    assert kept_by(after, 1) == (11, 21, 31, 40, 50, 60)
    assert kept_by(after, 2) == (0, 21, 31, 40, 50, 60)
    assert kept_by(after, 3) == (0, 0, 31, 40, 50, 60)


def test_a_promoted_replica_fills_the_slots_of_the_lost() -> None:
    """FN-7: slots below the promoted replica's own take its value (bug 32)."""
    assert promoted_from((0, 0, 31, 40, 50, 60), 3) == (31, 31, 31, 40, 50, 60)
    assert promoted_from(START, 1) == START


def test_a_lineage_names_version_and_counter() -> None:
    """AE-11: the version at take-over is in the upper half, and the name makes it differ."""
    one = make_lineage(7, "one")
    assert lineage_version(one) == 7
    assert one != make_lineage(7, "two")


def test_a_vector_that_says_nothing_of_its_start_began_at_zero() -> None:
    """AE-11: a primary that took over from nobody started with no operation in any slot."""
    assert Vector(7, START) == Vector(7, START, 0, ZERO)
