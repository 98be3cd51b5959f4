"""Goal: the old file format of the partition table, byte by byte."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.rows import row_from

from whimbrel.core.ids import EMPTY_ROW, Address, MemberId, PartitionId
from whimbrel.core.model import RowState
from whimbrel.core.persistence.table_format import (
    LegacyPartitionTableReader,
    LegacyPartitionTableWriter,
    Replica,
    TableFile,
)
from whimbrel.errors import SerializationError

A = MemberId("00000000-0000-0000-0000-0000000000aa")
B = MemberId("00000000-0000-0000-0000-0000000000bb")
C = MemberId("12345678-9abc-def0-1234-56789abcdef0")
ROWS = (row_from([A, B]), row_from([B, C, A]), row_from([C]), row_from([None, A]))
TABLE = TableFile(
    (
        Replica(Address("h1", 5701), A),
        Replica(Address("h2", 5702), B),
        Replica(Address("box", 65_535), C),
    ),
    tuple(RowState(PartitionId(pid), 57, row) for pid, row in enumerate(ROWS)),
)
HOLE = "ffffffff"
GOLDEN = bytes.fromhex(
    "00000039" "00000004" "00000003"
    "0002" "6831" "00001645" "000000000000000000000000000000aa"
    "0002" "6832" "00001646" "000000000000000000000000000000bb"
    "0003" "626f78" "0000ffff" "123456789abcdef0123456789abcdef0"
    + "00000000" "00000001" + 5 * HOLE
    + "00000001" "00000002" "00000000" + 4 * HOLE
    + "00000002" + 6 * HOLE
    + HOLE + "00000000" + 5 * HOLE
)  # fmt: skip


def test_golden_bytes_both_ways() -> None:
    """PIM-34, PIM-45: the old golden file is read, and written back unchanged."""
    assert LegacyPartitionTableWriter().write(TABLE) == GOLDEN
    read = LegacyPartitionTableReader(GOLDEN).read()
    assert read == TABLE
    assert LegacyPartitionTableWriter().write(read) == GOLDEN


def test_every_partition_gets_the_version_of_the_table() -> None:
    """PIM-34, PIM-43: an old file gives each partition the one version."""
    versions = [state.version for state in LegacyPartitionTableReader(GOLDEN).read().rows]
    assert versions == [57] * 4
    empty = RowState(PartitionId(3), 0, EMPTY_ROW)
    holed = msgspec.structs.replace(TABLE, rows=(*TABLE.rows[:3], empty))
    data = LegacyPartitionTableWriter().write(holed)
    assert [state.version for state in LegacyPartitionTableReader(data).read().rows] == [
        57, 57, 57, 0,
    ]  # fmt: skip


def test_a_cut_file_is_never_a_table() -> None:
    """PIM-34: cut at every byte, and with one byte more: always an error that names the byte."""
    for length in range(len(GOLDEN)):
        with pytest.raises(SerializationError, match="byte"):
            LegacyPartitionTableReader(GOLDEN[:length]).read()
    with pytest.raises(SerializationError, match="bytes behind the last partition"):
        LegacyPartitionTableReader(GOLDEN + b"\0").read()


@pytest.mark.parametrize(
    ("at", "part", "words"),
    [
        (0, "ffffffff", "version of a table"),
        (4, "00000000", "number of partitions"),
        (8, "0000001d", "number of replicas"),
        (14, "ff", "UTF-8"),
        (16, "00010000", "port"),
        (20, "123456789abcdef0123456789abcdef0", "replica is listed twice"),
        (89, "00000003", "not listed"),
        (85, "00000001", "names a replica twice"),
    ],
)
def test_damage_is_told(at: int, part: str, words: str) -> None:
    """PIM-34: what cannot be a table is refused with a reason."""
    damaged = GOLDEN[:at] + bytes.fromhex(part) + GOLDEN[at + len(part) // 2 :]
    with pytest.raises(SerializationError, match=words):
        LegacyPartitionTableReader(damaged).read()


def test_what_does_not_fit_is_not_written() -> None:
    """PIM-45: a row may name listed replicas only, a uuid is one."""
    lost = msgspec.structs.replace(TABLE, replicas=TABLE.replicas[:2])
    with pytest.raises(SerializationError, match="who is no replica"):
        LegacyPartitionTableWriter().write(lost)
    odd = msgspec.structs.replace(
        TABLE, replicas=(Replica(Address("h", 1), MemberId("odd")),), rows=()
    )
    with pytest.raises(SerializationError, match="does not fit"):
        LegacyPartitionTableWriter().write(odd)
