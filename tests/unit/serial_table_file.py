"""The partition table's file format below cluster version 4.1, on bytes (PIM-34, PIM-45).

All numbers are big-endian. In this order: version of the table (4 bytes); number of partitions
(4); number of replicas (4), and of each its host (2 bytes of length, UTF-8), port (4) and uuid
(16); then for each partition from 0 seven replica indexes (4 each), -1 for a hole. Whoever stores
the bytes adds what finds damage; a length that does not fit is found here.
"""

from __future__ import annotations

import struct

import msgspec

from whimbrel.core.ids import EMPTY_ROW, PORT_MAX, REPLICA_SLOTS, Address, MemberId, PartitionId
from whimbrel.core.model import RowState
from whimbrel.core.partition.hashing import VERSION_MAX
from whimbrel.errors import ProtocolError, SerializationError
from whimbrel.serialization.uuids import UUID_BYTES, uuid_bytes, uuid_text

HOLE = -1
PARTITIONS_MAX = 65_536
_HEAD = struct.Struct(">iii")
_LENGTH = struct.Struct(">H")
_PORT = struct.Struct(">i")
_ROW = struct.Struct(f">{REPLICA_SLOTS}i")


class LegacyTable(msgspec.Struct, frozen=True):
    """What the old format holds."""

    version: int
    replicas: tuple[tuple[Address, MemberId], ...]
    rows: tuple[tuple[MemberId | None, ...], ...]
    """Of partition 0, 1, ..."""

    def states(self) -> tuple[RowState, ...]:
        """The rows as a table of the new kind begins with them: all at the one version."""
        return tuple(
            RowState(PartitionId(pid), self.version if row != EMPTY_ROW else 0, row)
            for pid, row in enumerate(self.rows)
        )


class LegacyPartitionTableWriter:
    """Writes the old format."""

    def write(self, table: LegacyTable) -> bytes:
        """The bytes of a table.

        Raises:
            SerializationError: A row names a member that is not among the replicas, or a number
                does not fit the format.
        """
        numbers = {member: number for number, (_, member) in enumerate(table.replicas)}
        parts = [_HEAD.pack(table.version, len(table.rows), len(table.replicas))]
        try:
            for address, member in table.replicas:
                host = address.host.encode()
                parts += [_LENGTH.pack(len(host)), host, _PORT.pack(address.port)]
                parts.append(_uuid_bytes(member))
            for row in table.rows:
                slots = [HOLE if member is None else numbers[member] for member in row]
                parts.append(_ROW.pack(*slots))
        except KeyError as error:
            raise SerializationError(f"a row names {error}, who is no replica") from None
        except (struct.error, ProtocolError) as error:
            raise SerializationError(f"the table does not fit its old format: {error}") from None
        return b"".join(parts)


class LegacyPartitionTableReader:
    """Reads the old format."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read(self) -> LegacyTable:
        """The table that the bytes hold.

        Raises:
            SerializationError: They are cut, too long, or no table; names the byte.
        """
        version, partition_count, replica_count = self._take(_HEAD)
        if not (
            0 <= version <= VERSION_MAX
            and 0 < partition_count <= PARTITIONS_MAX
            and 0 <= replica_count <= partition_count * REPLICA_SLOTS
        ):
            raise self._error("the head is not that of a partition table")
        replicas = tuple(self._replica() for _ in range(replica_count))
        members = [member for _, member in replicas]
        if len(dict.fromkeys(members)) != len(members):
            raise self._error("a replica is listed twice")
        rows = tuple(self._row(members) for _ in range(partition_count))
        if self._at != len(self._data):
            raise self._error("there are bytes behind the last partition")
        return LegacyTable(version, replicas, rows)

    def _replica(self) -> tuple[Address, MemberId]:
        (length,) = self._take(_LENGTH)
        try:
            host = self._bytes(length).decode()
        except UnicodeDecodeError:
            raise self._error("a host is not UTF-8") from None
        (port,) = self._take(_PORT)
        if not 0 <= port <= PORT_MAX:
            raise self._error("a port is out of range")
        member = MemberId(uuid_text(self._bytes(UUID_BYTES)))
        return Address(host, port), member

    def _row(self, members: list[MemberId]) -> tuple[MemberId | None, ...]:
        slots = self._take(_ROW)
        if not all(HOLE <= slot < len(members) for slot in slots):
            raise self._error("a row names a replica that is not listed")
        held = [slot for slot in slots if slot != HOLE]
        if len(dict.fromkeys(held)) != len(held):
            raise self._error("a row names a replica twice")
        return tuple(None if slot == HOLE else members[slot] for slot in slots)

    def _take(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self._bytes(layout.size))

    def _bytes(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if len(part) < count:
            raise self._error("the table is cut")
        self._at += count
        return part

    def _error(self, sentence: str) -> SerializationError:
        return SerializationError(f"partition table of the old format, byte {self._at}: {sentence}")


def _uuid_bytes(member: MemberId) -> bytes:
    """The 16 bytes of a uuid that is read back as it was; raises ProtocolError for others."""
    data = uuid_bytes(member)
    if uuid_text(data) != member:
        raise ProtocolError(f"{member!r} is no uuid in lower case")
    return data
