"""The partition table in a file, in both formats, on bytes (PIM-33 to PIM-35, PIM-45).

All numbers are big-endian. From cluster version 4.1 on, in this order: number of partitions (4
bytes); number of replicas (4), and of each its host (2 bytes of length, UTF-8), port (4) and uuid
(16); then for each partition from 0 its version (8) and seven replica indexes (4 each), -1 for a
hole. Below 4.1 the version of the whole table (4) stands before all that, and none before a row.

Whoever stores the bytes adds what finds damage; a length that does not fit is found here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from whimbrel.core.ids import (
    EMPTY_ROW,
    PORT_MAX,
    REPLICA_SLOTS,
    Address,
    MemberId,
    PartitionId,
    Row,
)
from whimbrel.core.model import RowState
from whimbrel.core.partition.hashing import VERSION_MAX
from whimbrel.errors import ProtocolError, SerializationError
from whimbrel.serialization.uuids import UUID_BYTES, uuid_bytes, uuid_text

HOLE = -1
PARTITIONS_MAX = 1_000_000
"""More than anybody has; a number above it is none of partitions."""
_COUNT = struct.Struct(">i")
_LENGTH = struct.Struct(">H")
_VERSION = struct.Struct(">q")
_SLOTS = struct.Struct(f">{REPLICA_SLOTS}i")


class Replica(msgspec.Struct, frozen=True, array_like=True):
    """A member that stands in some row, and where it listened."""

    address: Address
    id: MemberId


class TableFile(msgspec.Struct, frozen=True):
    """What a table's bytes hold, in either format."""

    replicas: tuple[Replica, ...]
    rows: tuple[RowState, ...]
    """Of partition 0, 1, ..."""


class PartitionTableWriter:
    """Writes the format of cluster version 4.1 and later."""

    def write(self, table: TableFile) -> bytes:
        """The bytes of a table.

        Raises:
            SerializationError: A row names a member that is not among the replicas, or a number
                does not fit the format.
        """
        numbers = {replica.id: number for number, replica in enumerate(table.replicas)}
        written: dict[Row, bytes] = {}  # a large table has few different rows
        try:
            parts = self._head(table)
            for replica in table.replicas:
                host = replica.address.host.encode()
                parts += [_LENGTH.pack(len(host)), host, _COUNT.pack(replica.address.port)]
                parts.append(_uuid_bytes(replica.id))
            for state in table.rows:
                slots = written.get(state.row)
                if slots is None:
                    indexes = [HOLE if one is None else numbers[one] for one in state.row]
                    slots = written[state.row] = _SLOTS.pack(*indexes)
                parts += (self._version(state), slots)
        except KeyError as error:
            raise SerializationError(f"a row names {error}, who is no replica") from None
        except (struct.error, ProtocolError) as error:
            raise SerializationError(f"the table does not fit its format: {error}") from None
        return b"".join(parts)

    def _head(self, table: TableFile) -> list[bytes]:
        return [_COUNT.pack(len(table.rows)), _COUNT.pack(len(table.replicas))]

    def _version(self, state: RowState) -> bytes:
        return _VERSION.pack(state.version)


class LegacyPartitionTableWriter(PartitionTableWriter):
    """Writes the format below cluster version 4.1: one version for the whole table (PIM-34)."""

    def _head(self, table: TableFile) -> list[bytes]:
        version = max((state.version for state in table.rows), default=0)
        return [_COUNT.pack(version), *super()._head(table)]

    def _version(self, state: RowState) -> bytes:
        return b""


class PartitionTableReader:
    """Reads the format of cluster version 4.1 and later."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read(self) -> TableFile:
        """The table that the bytes hold.

        Raises:
            SerializationError: They are cut, too long, or no table; names the byte.
        """
        table_version = self._table_version()
        (partition_count,) = self._take(_COUNT)
        if not 0 < partition_count <= PARTITIONS_MAX:
            raise self._error("this is no number of partitions")
        (replica_count,) = self._take(_COUNT)
        if not 0 <= replica_count <= partition_count * REPLICA_SLOTS:
            raise self._error("this is no number of replicas")
        replicas = tuple(self._replica() for _ in range(replica_count))
        members = [replica.id for replica in replicas]
        if len(dict.fromkeys(members)) != len(members):
            raise self._error("a replica is listed twice")
        rows = tuple(self._row(pid, members, table_version) for pid in range(partition_count))
        if self._at != len(self._data):
            raise self._error("there are bytes behind the last partition")
        return TableFile(replicas, rows)

    def _table_version(self) -> int | None:
        """The version of the whole table, None where every row has its own."""
        return None

    def _replica(self) -> Replica:
        (length,) = self._take(_LENGTH)
        try:
            host = self._bytes(length).decode()
        except UnicodeDecodeError:
            raise self._error("a host is not UTF-8") from None
        (port,) = self._take(_COUNT)
        if not 0 <= port <= PORT_MAX:
            raise self._error("a port is out of range")
        return Replica(Address(host, port), MemberId(uuid_text(self._bytes(UUID_BYTES))))

    def _row(self, pid: int, members: Sequence[MemberId], table_version: int | None) -> RowState:
        (version,) = self._take(_VERSION) if table_version is None else (table_version,)
        if not 0 <= version <= VERSION_MAX:
            raise self._error("a version is out of range")
        slots = self._take(_SLOTS)
        if not all(HOLE <= slot < len(members) for slot in slots):
            raise self._error("a row names a replica that is not listed")
        held = [slot for slot in slots if slot != HOLE]
        if len(dict.fromkeys(held)) != len(held):
            raise self._error("a row names a replica twice")
        row = tuple([None if slot == HOLE else members[slot] for slot in slots])
        if row == EMPTY_ROW and table_version is not None:
            version = 0
        if not version and row != EMPTY_ROW:
            raise self._error("a row without a version must be empty")
        return RowState(PartitionId(pid), version, row)

    def _take(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self._bytes(layout.size))

    def _bytes(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if len(part) < count:
            raise self._error("the table is cut")
        self._at += count
        return part

    def _error(self, sentence: str) -> SerializationError:
        return SerializationError(f"partition table, byte {self._at}: {sentence}")


class LegacyPartitionTableReader(PartitionTableReader):
    """Reads the format below cluster version 4.1: each row gets the table's version (PIM-43)."""

    def _table_version(self) -> int | None:
        (version,) = self._take(_COUNT)
        if not 0 <= version <= VERSION_MAX:
            raise self._error("this is no version of a table")
        return version


def _uuid_bytes(member: MemberId) -> bytes:
    """The 16 bytes of a uuid that is read back as it was; raises ProtocolError for others."""
    data = uuid_bytes(member)
    if uuid_text(data) != member:
        raise ProtocolError(f"{member!r} is no uuid in lower case")
    return data
