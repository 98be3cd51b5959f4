"""``cluster.meta``: what the cluster is, as far as a member must know it to find it again.

    magic, format, sections, length, checksum      20 bytes
    section    name, length, bytes                 one after the other, in the order of SECTIONS

The table is in the format that the cluster version asks for (``table_format``), all other sections
are msgpack of what the core knows. All numbers are big-endian. The file is replaced as a whole, so
it is whole or damaged, and of a damaged one nothing is believed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final
from zlib import crc32

import msgspec

from whimbrel.core.check import check
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.messages import RegistryEntry
from whimbrel.core.model import (
    CLUSTER_VERSIONS,
    Loss,
    MemberList,
    Numbering,
    PackedRows,
    RowState,
)
from whimbrel.core.persistence.format import DamageError, Header, KeyUse, Stream
from whimbrel.core.persistence.table_format import (
    LegacyPartitionTableReader,
    LegacyPartitionTableWriter,
    PartitionTableReader,
    PartitionTableWriter,
    Replica,
    TableFile,
)
from whimbrel.errors import SerializationError

CLUSTER_FILE: Final = "cluster.meta"
CLUSTER_FORMAT: Final = 1
"""Files of a later format are refused and left as they are."""
CLUSTER_MAGIC: Final = b"WHIMMETA"
SECTIONS: Final = (b"CLUS", b"TABL", b"LOSS", b"REGI", b"NUMB", b"SEGM", b"STAB")
OPEN: Final = -1
"""The end of a segment that is written to: all its bytes count that are whole."""
LEGACY_VERSION: Final = CLUSTER_VERSIONS[0]
"""Cluster version whose table has one version for all rows."""

_HEAD = struct.Struct(">8sHHII")
_SECTION = struct.Struct(">4sI")
_NO_ADDRESS = Address("", 0)
_encode = msgspec.msgpack.Encoder().encode


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A segment of the log.

    Attributes:
        first_block: Number of its first block.
        end: Bytes that count, OPEN for the one of its stream that is written to. What is behind
            them was torn off by the death of a member; 0 when not even the header was whole.
        key_id, salt: As in its header; empty where it is not encrypted.
    """

    stream: Stream
    number: int
    first_block: int
    end: int
    key_id: bytes = b""
    salt: bytes = b""

    def header(self, log_id: bytes, cluster: bytes) -> Header:
        """How it begins: a segment of that log, in a cluster with this ``cluster_hash``."""
        use = KeyUse(self.key_id, cluster, self.salt) if self.key_id else None
        return Header(self.stream, self.number, self.first_block, log_id, use)


class LogFiles(msgspec.Struct, frozen=True, array_like=True):
    """The segments of a log, in any order, and the log's id of LOG_ID_BYTES.

    The newest segment of a stream is always among them, unless it has only a header.
    """

    log_id: bytes
    segments: tuple[Segment, ...]

    def of(self, stream: Stream) -> list[Segment]:
        """The segments of a stream, oldest first."""
        found = [segment for segment in self.segments if segment.stream is stream]
        return sorted(found, key=lambda segment: segment.number)


class ClusterFile(msgspec.Struct, frozen=True):
    """What ``cluster.meta`` holds.

    Attributes:
        member: Whose files these are.
        members: The list with state, cluster id and cluster version.
        rows: Of partition 0, 1, ... up to ``partition_count``.
        numbering: None when the member has heard of no decision; its ``free`` is at least that of
            what it has accepted, so no number that may have been given is free in it (0002).
        has_left: It left gracefully and nothing of it is missing where it was.
        stable: The rows of the table that ``members.stable`` names, if the member has them.
        replicas: Who stands in the rows and where it listened. Known when the file was read.
    """

    member: MemberId
    cluster_name: str
    partition_count: int
    members: MemberList
    rows: tuple[RowState, ...]
    losses: tuple[Loss, ...]
    registry: tuple[RegistryEntry, ...]
    numbering: Numbering | None
    has_left: bool
    log: LogFiles
    stable: PackedRows | None = None
    replicas: tuple[Replica, ...] = ()


class _Cluster(msgspec.Struct, frozen=True, array_like=True):
    """The first section."""

    member: MemberId
    cluster_name: str
    partition_count: int
    has_left: bool
    members: MemberList


_TYPES: dict[bytes, Any] = {
    b"CLUS": _Cluster,
    b"LOSS": tuple[Loss, ...],
    b"REGI": tuple[RegistryEntry, ...],
    b"NUMB": Numbering | None,
    b"SEGM": LogFiles,
    b"STAB": PackedRows | None,
}
_DECODERS = {name: msgspec.msgpack.Decoder(type_) for name, type_ in _TYPES.items()}


def encode_cluster_file(
    file: ClusterFile, addresses: Mapping[MemberId, Address] | None = None
) -> bytes:
    """The bytes of a file.

    Args:
        file: Its ``replicas`` are made anew, from its rows.
        addresses: Of members that stand in the rows and on the list neither as present nor as
            missing; where theirs is not known either it is written as empty.

    Raises:
        SerializationError: A member's id is no uuid, or a number does not fit.
    """
    check(len(file.rows) == file.partition_count, "there is a row for every partition")
    cluster = _Cluster(
        file.member, file.cluster_name, file.partition_count, file.has_left, file.members
    )
    table = TableFile(_replicas(file, addresses or {}), file.rows)
    is_legacy = file.members.cluster_version == LEGACY_VERSION
    writer = LegacyPartitionTableWriter() if is_legacy else PartitionTableWriter()
    contents = (
        _encode(cluster),
        writer.write(table),
        _encode(file.losses),
        _encode(file.registry),
        _encode(file.numbering),
        _encode(file.log),
        _encode(file.stable),
    )
    parts: list[bytes] = []
    for name, content in zip(SECTIONS, contents, strict=True):
        parts += (_SECTION.pack(name, len(content)), content)
    body = b"".join(parts)
    unsigned = _HEAD.pack(CLUSTER_MAGIC, CLUSTER_FORMAT, len(SECTIONS), len(body), 0)
    checksum = crc32(body, crc32(unsigned))
    return _HEAD.pack(CLUSTER_MAGIC, CLUSTER_FORMAT, len(SECTIONS), len(body), checksum) + body


def decode_cluster_file(data: bytes) -> ClusterFile:
    """What the bytes of a file say.

    Raises:
        DamageError: They are not what was written, or of a later format.
    """
    sections = dict(_sections(data))
    found: dict[bytes, Any] = {}
    for name, decoder in _DECODERS.items():
        start, content = sections[name]
        try:
            found[name] = decoder.decode(content)
        except msgspec.MsgspecError as problem:
            raise _damage(start, f"section {name.decode()}: {problem}") from None
    cluster: _Cluster = found[b"CLUS"]
    start, content = sections[b"TABL"]
    is_legacy = cluster.members.cluster_version == LEGACY_VERSION
    reader = LegacyPartitionTableReader(content) if is_legacy else PartitionTableReader(content)
    try:
        table = reader.read()
    except SerializationError as problem:
        raise _damage(start, str(problem)) from None
    if len(table.rows) != cluster.partition_count:
        why = f"{len(table.rows)} rows for {cluster.partition_count} partitions"
        raise _damage(start, why)
    return ClusterFile(
        member=cluster.member,
        cluster_name=cluster.cluster_name,
        partition_count=cluster.partition_count,
        members=cluster.members,
        rows=table.rows,
        losses=found[b"LOSS"],
        registry=found[b"REGI"],
        numbering=found[b"NUMB"],
        has_left=cluster.has_left,
        log=found[b"SEGM"],
        stable=found[b"STAB"],
        replicas=table.replicas,
    )


def _replicas(file: ClusterFile, addresses: Mapping[MemberId, Address]) -> tuple[Replica, ...]:
    """Everybody in the rows, as first met there, and where each one listens."""
    known = dict(addresses)
    for info in (*file.members.missing, *file.members.members):
        known[info.id] = info.address
    rows = dict.fromkeys(state.row for state in file.rows)
    holders = dict.fromkeys(one for row in rows for one in row if one is not None)
    return tuple(Replica(known.get(one, _NO_ADDRESS), one) for one in holders)


def _sections(data: bytes) -> Iterator[tuple[bytes, tuple[int, bytes]]]:
    """Name, offset and content of each section; raises DamageError."""
    if len(data) < _HEAD.size:
        raise _damage(0, "it ends within its head")
    magic, version, count, length, checksum = _HEAD.unpack_from(data)
    if magic != CLUSTER_MAGIC:
        raise _damage(0, "it is no file of a cluster")
    if version != CLUSTER_FORMAT:
        raise _damage(0, f"it has format {version}; this version reads {CLUSTER_FORMAT}")
    if len(data) != _HEAD.size + length:
        raise _damage(0, f"it has {len(data)} bytes instead of {_HEAD.size + length}")
    unsigned = _HEAD.pack(magic, version, count, length, 0)
    if crc32(memoryview(data)[_HEAD.size :], crc32(unsigned)) != checksum:
        raise _damage(0, "its checksum is another one")
    at = _HEAD.size
    for expected in SECTIONS:
        name, size = _SECTION.unpack_from(data, at) if at + _SECTION.size <= len(data) else (b"", 0)
        start = at + _SECTION.size
        at = start + size
        if name != expected or at > len(data):
            raise _damage(start, f"section {expected.decode()} is not here")
        yield name, (start, data[start:at])


def _damage(offset: int, why: str) -> DamageError:
    return DamageError(CLUSTER_FILE, offset, why)
