"""The partition table: versions rise, stamps follow, images are checked before use."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.migration_net import SETTINGS, FakeHost, Net, manager_of
from tests.unit.rows import row_from, slots_changed

from whimbrel.core.ids import EMPTY_ROW, MemberId, PartitionId, ReplicaIndex, Row
from whimbrel.core.messages import TableImage
from whimbrel.core.model import MigrationInfo, MigrationKind, RowState, Step, Verdict
from whimbrel.core.partition.hashing import calculate_stamp
from whimbrel.core.partition.table import PartitionTable, filled_count
from whimbrel.errors import InvariantViolation, ProtocolError

A, B, C, D = (MemberId(name) for name in "ABCD")


def pid(number: int) -> PartitionId:
    return PartitionId(number)


def small_table() -> PartitionTable:
    table = PartitionTable(3)
    table.set_row(pid(0), row_from([A, B]), 2)
    table.set_row(pid(1), row_from([B, None, C]), 5)
    table.set_row(pid(2), row_from([C]), 1)
    return table


def test_fresh_table_has_stamp_zero_and_nobody() -> None:
    """Goal: "no table yet" is the stamp 0, not the hash of zeros (PIM-18). Method: a new table."""
    table = PartitionTable(4)
    assert not table.initialised
    assert table.stamp == 0 != calculate_stamp([0] * 4)
    assert table.rows == [EMPTY_ROW] * 4
    assert table.holders() == []


def test_stamp_follows_every_change() -> None:
    """Goal: the cached stamp is the recomputed one after each change (PIM-17; bug 12). Method: set
    rows one by one, and from a received image.
    """
    table = PartitionTable(3)
    seen = {table.stamp}
    for version in (1, 3, 4):
        for number in range(3):
            table.set_row(pid(number), row_from([A, B]), version)
            assert table.stamp == table.recompute_stamp() == calculate_stamp(table.versions)
            seen.add(table.stamp)
    assert len(seen) == 10
    other = PartitionTable(3)
    for state in other.take_image(table.image()):
        other.set_row(state.partition_id, state.row, state.version)
    assert other.stamp == table.stamp
    assert other.rows == table.rows


def test_versions_only_rise() -> None:
    """Goal: a change needs a higher version (ADL-07, PIM-01). Method: equal, lower, too large."""
    table = small_table()
    for version in (5, 4, 0, 2**31):
        with pytest.raises(InvariantViolation, match="only rises"):
            table.set_row(pid(1), row_from([A]), version)
    assert table.state(pid(1)) == RowState(pid(1), 5, row_from([B, None, C]))


@pytest.mark.parametrize(
    ("row", "fact"),
    [((A, B), "one slot per"), ((A, B, A, None, None, None, None), "twice"), (EMPTY_ROW, "exists")],
)
def test_impossible_rows_are_bugs(row: Row, fact: str) -> None:
    """Goal: 7 slots, no member twice, a partition that exists (ADL-01). Method: break each."""
    table = small_table()
    with pytest.raises(InvariantViolation, match=fact):
        table.set_row(pid(3 if fact == "exists" else 0), row, 9)


def test_counts_by_member() -> None:
    """Goal: who holds what is known without counting. Method: counts before and after changes."""
    table = small_table()
    assert [table.replica_count(m) for m in (A, B, C, D)] == [1, 2, 2, 0]
    assert [table.primary_count(m) for m in (A, B, C, D)] == [1, 1, 1, 0]
    assert table.partitions_of(B) == [0, 1]
    table.set_row(pid(1), row_from([D, None, C]), 6)
    assert table.holders() == [A, B, C, D]
    assert table.partitions_of(B) == [0]
    table.set_row(pid(0), EMPTY_ROW, 4)
    assert table.holders() == [C, D]
    assert table.partitions_of(A) == []
    assert table.row(pid(0))[0] is None


def test_holes_are_counted_as_rows_change() -> None:
    """Goal: missing replicas are known without a walk over all rows. Method: any row after any
    other, beside a count by hand.
    """
    table, version = small_table(), 10
    rows = [EMPTY_ROW, row_from([A]), row_from([None, B]), row_from([A, B, C, D]), row_from([D])]
    for row in rows:
        for number in range(3):
            version += 1
            table.set_row(pid(number), row, version)
            for depth in range(8):
                missing = [max(0, depth - filled_count(row)) for row in table.rows]
                assert table.hole_count(depth) == sum(missing)


def test_received_rows_are_compared_by_version() -> None:
    """Goal: newer is applied, equal and older are not, divergence is a bug (ADL-08). Method: one
    row of each sort.
    """
    table = small_table()
    row = row_from([B, None, C])
    manager = manager_of(Net(SETTINGS).add_alone("k").ctx, FakeHost(A, 3), table)
    assert not manager.apply_row(RowState(pid(1), 4, row_from([D])))
    assert not manager.apply_row(RowState(pid(1), 5, row))
    assert table.state(pid(1)) == RowState(pid(1), 5, row)
    with pytest.raises(InvariantViolation, match="equal partition versions"):
        manager.apply_row(RowState(pid(1), 5, row_from([D])))
    assert manager.apply_row(RowState(pid(1), 9, row_from([D])))
    assert table.row(pid(1)) == row_from([D])


def test_image_of_some_rows_through_msgpack() -> None:
    """Goal: an image carries exactly the rows asked for, in order. Method: encode, decode."""
    table = small_table()
    image = table.image([pid(2), pid(0)])
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(image), type=TableImage)
    assert (PartitionTable(3).take_image(copy)) == [table.state(pid(2)), table.state(pid(0))]
    assert (PartitionTable(3).take_image(table.image([]))) == []


def test_an_image_tells_of_rows_that_nobody_has_arranged() -> None:
    """PIM-05: a whole table is whole before all of it is arranged. Method: one row of three is."""
    table = PartitionTable(3)
    table.set_row(pid(1), row_from([A, B]), 2)
    rows = PartitionTable(3).take_image(table.image())
    assert rows == [table.state(pid(number)) for number in range(3)]


def test_damaged_images_are_refused_whole() -> None:
    """Goal: nothing of an image that breaks a rule is believed. Method: break each field."""
    table = small_table()
    good = table.image()
    replace = msgspec.structs.replace
    twice = b"\x00\x00\x00\x00" + b"\xff" * 10
    broken = [
        replace(good, versions=good.versions[:-1]),
        replace(good, versions=(2, -1, 1)),
        replace(good, versions=(2, 2**31, 1)),
        replace(good, versions=(2, 0, 1)),
        replace(good, slots=good.slots[:-1]),
        replace(good, slots=good.slots + b"\0"),
        replace(good, slots=b"\x00\x09" + good.slots[2:]),
        replace(good, slots=twice + good.slots[14:]),
        replace(good, partitions=(0, 1, 3)),
        replace(good, partitions=(0, 1, -1)),
        replace(good, partitions=(0, 1, 1)),
        replace(good, members=(A, B, A)),
        replace(good, members=good.members[:-1]),
    ]
    for image in broken:
        with pytest.raises(ProtocolError):
            table.take_image(image)


def test_row_helpers() -> None:
    """Goal: filled slots are counted. Method: small rows."""
    row = row_from([A, B, C])
    assert filled_count(row) == 3
    assert filled_count(EMPTY_ROW) == 0


def step(kind: str, source: MemberId | None, destination: MemberId | None, *indexes: int) -> Step:
    return Step(MigrationKind(kind), source, destination, *map(ReplicaIndex, indexes))


INCREMENTS = {
    "MOVE": (step("MOVE", A, D, 0, -1, -1, 0), 1),
    "COPY": (step("COPY", None, D, -1, -1, -1, 3), 1),
    "SHIFT_UP": (step("SHIFT_UP", B, C, 1, -1, 2, 1), 2),
    "SHIFT_UP_FREE": (step("SHIFT_UP", None, C, -1, -1, 2, 1), 2),
    "SHIFT_DOWN": (step("SHIFT_DOWN", A, D, 0, 4, -1, 0), 2),
    "BOTH": (step("SHIFT_UP_SHIFT_DOWN", A, C, 0, 4, 2, 0), 3),
    "CLEAR": (step("CLEAR", C, None, 2, -1, -1, -1), 1),
    "STEP_DOWN": (step("STEP_DOWN", None, C, -1, -1, 2, 3), 2),
}


@pytest.mark.parametrize("name", INCREMENTS)
def test_increment_of_each_kind(name: str) -> None:
    """Goal: a version rises by the changed slots, one more after a failure (PIM-13, PIM-14)."""
    change, increment = INCREMENTS[name]
    row = row_from([A, None, C]) if name == "SHIFT_UP_FREE" else row_from([A, B, C])
    assert change.increment == increment == slots_changed(row, change.apply(row))
    migration = MigrationInfo("m", pid(0), change, A, 10)
    assert migration.with_verdict(Verdict.SUCCESS).final_version == 10 + increment
    assert migration.with_verdict(Verdict.FAILED).final_version == 11 + increment


def test_a_table_never_has_the_stamp_of_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIM-18: stamp 0 means "no table yet" to everybody. Method: versions that hash to 0."""
    table = PartitionTable(1)
    table.set_row(pid(0), row_from([A]), 1)
    monkeypatch.setattr("whimbrel.core.partition.table.calculate_stamp", lambda versions: 0)
    assert table.recompute_stamp() == 1
