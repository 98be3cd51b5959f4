"""``cluster.meta``: its bytes, the table in both formats, and what damage makes of them."""

from __future__ import annotations

from zlib import crc32

import msgspec
import pytest
from tests.unit.rows import row_from

from whimbrel.core.ids import EMPTY_ROW, Address, MemberId, PartitionId
from whimbrel.core.messages import RegistryEntry
from whimbrel.core.model import (
    ClusterState,
    Loss,
    LostStructure,
    MemberInfo,
    MemberList,
    Numbering,
    RowState,
    Voter,
)
from whimbrel.core.persistence.format import DamageError, Stream
from whimbrel.core.persistence.metadata import (
    CLUSTER_FILE,
    OPEN,
    ClusterFile,
    LogFiles,
    Segment,
    decode_cluster_file,
    encode_cluster_file,
)
from whimbrel.core.persistence.table_format import (
    PartitionTableReader,
    PartitionTableWriter,
    Replica,
    TableFile,
)
from whimbrel.errors import SerializationError

A = MemberId("00000000-0000-0000-0000-0000000000aa")
B = MemberId("00000000-0000-0000-0000-0000000000bb")
C = MemberId("12345678-9abc-def0-1234-56789abcdef0")
HOLE = "ffffffff"
ADDRESSES = {A: Address("h1", 5701), B: Address("h2", 5702), C: Address("box", 65_535)}
REPLICAS = tuple(Replica(address, member) for member, address in ADDRESSES.items())


def rows(*found: tuple[int, list[MemberId | None]]) -> tuple[RowState, ...]:
    """Rows of partition 0, 1, ... from versions and first slots."""
    return tuple(
        RowState(PartitionId(pid), version, row_from(slots))
        for pid, (version, slots) in enumerate(found)
    )


ROWS = rows((1, [A, B]), (258, [B, C, A]), (3, [C]), (2**31 - 1, [None, A]))
GOLDEN = bytes.fromhex(
    "00000004" "00000003"
    "0002" "6831" "00001645" "000000000000000000000000000000aa"
    "0002" "6832" "00001646" "000000000000000000000000000000bb"
    "0003" "626f78" "0000ffff" "123456789abcdef0123456789abcdef0"
    "0000000000000001" "00000000" "00000001" + 5 * HOLE
    + "0000000000000102" "00000001" "00000002" "00000000" + 4 * HOLE
    + "0000000000000003" "00000002" + 6 * HOLE
    + "000000007fffffff" + HOLE + "00000000" + 5 * HOLE
)  # fmt: skip
LOG = LogFiles(
    b"0123456789abcdef",
    (
        Segment(Stream.CHANGES, 3, 17, 4_096),
        Segment(Stream.CHANGES, 4, 99, OPEN),
        Segment(Stream.IMAGES, 1, 1, OPEN),
    ),
)
MEMBERS = MemberList(
    12,
    tuple(MemberInfo(member, ADDRESSES[member], started_us=5) for member in (A, B)),
    "cluster id",
    ClusterState.NO_MIGRATION,
    missing=(MemberInfo(C, ADDRESSES[C]),),
)
FILE = ClusterFile(
    member=B,
    cluster_name="näme",
    partition_count=4,
    members=MEMBERS,
    rows=ROWS,
    losses=(Loss(PartitionId(2), 3, 1, 77, (LostStructure("map", "m", 3, 9),)),),
    registry=(RegistryEntry("map", "m", 4, A, True, b"\1"), RegistryEntry("map", "x", 9, B, False)),
    numbering=Numbering(3, 40, (Voter(A, 5, ADDRESSES[A]),)),
    has_left=False,
    log=LOG,
    replicas=REPLICAS,
)


def damage(data: bytes) -> DamageError:
    """The damage that is told of these bytes."""
    with pytest.raises(DamageError) as found:
        decode_cluster_file(data)
    assert found.value.file == CLUSTER_FILE
    return found.value


# -- the table ----------------------------------------------------------------------------


def test_golden_bytes_of_the_table_both_ways() -> None:
    """PIM-33: four partitions, three members, an empty slot before a filled one."""
    table = TableFile(REPLICAS, ROWS)
    assert PartitionTableWriter().write(table) == GOLDEN
    assert PartitionTableReader(GOLDEN).read() == table


def test_a_cut_table_is_never_a_table() -> None:
    """PIM-33: cut at every byte, and with one byte more: always an error that names the byte."""
    for length in range(len(GOLDEN)):
        with pytest.raises(SerializationError, match="byte"):
            PartitionTableReader(GOLDEN[:length]).read()
    with pytest.raises(SerializationError, match="bytes behind the last partition"):
        PartitionTableReader(GOLDEN + b"\0").read()


@pytest.mark.parametrize(
    ("version", "words"),
    [("8000000000000000", "version is out of range"), ("0000000000000000", "must be empty")],
)
def test_a_version_that_cannot_be_is_refused(version: str, words: str) -> None:
    """PIM-33: what cannot be a table is no table."""
    at = 8 + 2 * 24 + 25
    assert GOLDEN[at : at + 8] == bytes.fromhex("0000000000000001")
    with pytest.raises(SerializationError, match=words):
        PartitionTableReader(GOLDEN[:at] + bytes.fromhex(version) + GOLDEN[at + 8 :]).read()


def test_a_table_without_rows_and_one_with_empty_rows() -> None:
    """PIM-33: a member that has no table yet writes empty rows; no partition at all is damage."""
    empty = TableFile((), tuple(RowState(PartitionId(pid), 0, EMPTY_ROW) for pid in range(3)))
    assert PartitionTableReader(PartitionTableWriter().write(empty)).read() == empty
    with pytest.raises(SerializationError, match="number of partitions"):
        PartitionTableReader(PartitionTableWriter().write(TableFile((), ()))).read()


# -- the file -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.0", "4.1"])
def test_written_and_read_back(version: str) -> None:
    """APR-08, PIM-35: everything comes back; the cluster version decides the table's format."""
    members = msgspec.structs.replace(MEMBERS, cluster_version=version)
    found = ROWS if version == "4.1" else rows(*((9, list(state.row)) for state in ROWS))
    file = msgspec.structs.replace(FILE, members=members, rows=found)
    data = encode_cluster_file(file)
    assert decode_cluster_file(data) == file
    assert (GOLDEN in data) is (version == "4.1")
    bare = msgspec.structs.replace(
        file, losses=(), registry=(), numbering=None, has_left=True, log=LogFiles(b"", ())
    )
    assert decode_cluster_file(encode_cluster_file(bare)) == bare


def test_replicas_and_their_addresses_come_from_where_they_are_known() -> None:
    """PIM-33: from the list, from those missing, from whoever writes; else none."""
    stranger = MemberId("00000000-0000-0000-0000-0000000000dd")
    forgotten = MemberId("00000000-0000-0000-0000-0000000000ee")
    found = rows((1, [A, C]), (1, [stranger, forgotten]))
    file = msgspec.structs.replace(FILE, partition_count=2, rows=found, replicas=())
    data = encode_cluster_file(file, {stranger: Address("old", 1), A: Address("older", 2)})
    assert decode_cluster_file(data).replicas == (
        Replica(ADDRESSES[A], A),
        Replica(ADDRESSES[C], C),
        Replica(Address("old", 1), stranger),
        Replica(Address("", 0), forgotten),
    )


def test_a_file_cut_or_flipped_anywhere_is_damaged() -> None:
    """PIM-33, S4: at every byte: an error, never a wrong table."""
    data = encode_cluster_file(FILE)
    for at in range(len(data)):
        damage(data[:at])
        damage(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
    damage(data + b"\0")
    assert decode_cluster_file(data) == FILE


def test_a_later_format_is_named() -> None:
    """PIM-35: what a later version wrote is not believed to be damaged."""
    data = bytearray(encode_cluster_file(FILE))
    data[9] = 2
    assert damage(bytes(data)).why == "it has format 2; this version reads 1"


def with_checksum(data: bytes) -> bytes:
    """The same under a checksum that holds."""
    bare = data[:16] + bytes(4) + data[20:]
    return bare[:16] + crc32(bare).to_bytes(4, "big") + bare[20:]


@pytest.mark.parametrize("name", ["CLUS", "TABL", "LOSS", "REGI", "NUMB", "SEGM"])
def test_a_section_that_makes_no_sense_is_named(name: str) -> None:
    """S4: a checksum that holds does not make sense of nonsense; the section is told."""
    data = encode_cluster_file(FILE)
    at = data.index(name.encode())
    missing = damage(with_checksum(data[:at] + b"ELSE" + data[at + 4 :]))
    assert (missing.offset, missing.why) == (at + 8, f"section {name} is not here")
    nonsense = damage(with_checksum(data[: at + 8] + b"\xc1" + data[at + 9 :]))
    assert nonsense.offset == at + 8
    long = damage(with_checksum(data[: at + 4] + b"\x7f" + data[at + 5 :]))
    assert (long.offset, long.why) == (at + 8, f"section {name} is not here")


def test_rows_for_another_partition_count_are_damage() -> None:
    """APR-07: the count that is told is that of the table."""
    data = encode_cluster_file(FILE)
    at = data.index("näme".encode()) + 5
    assert data[at] == 4
    assert (
        "4 rows for 5 partitions" in damage(with_checksum(data[:at] + b"\5" + data[at + 1 :])).why
    )


# -- members at other addresses -------------------------------------------------------------


def members_at(**addresses: Address) -> MemberList:
    """A list of members at addresses, by the last letters of their ids."""
    known = {"aa": A, "bb": B, "f0": C}
    return MemberList(1, tuple(MemberInfo(known[one], at) for one, at in addresses.items()))
