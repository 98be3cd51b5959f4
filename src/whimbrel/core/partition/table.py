"""The partition table of one member: a row and a version for every partition, and the stamp.

Knows how rows change and how they travel. It does not know who may change them: that is the
migration room's affair (ADL-02, ADL-08).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from whimbrel.core.check import check
from whimbrel.core.ids import (
    EMPTY_ROW,
    REPLICA_SLOTS,
    MemberId,
    PartitionId,
    Row,
)
from whimbrel.core.messages import TableImage
from whimbrel.core.model import Loss, PackedRows, RowState
from whimbrel.core.partition.hashing import VERSION_MAX, calculate_stamp
from whimbrel.errors import ProtocolError

_SLOTS = struct.Struct(f">{REPLICA_SLOTS}H")
HOLE_ON_WIRE = 0xFFFF
"""Slot number of a hole in a TableImage; so an image names at most HOLE_ON_WIRE members."""

UNINITIALISED_STAMP = 0
"""The stamp of a member that has no table yet (PIM-18)."""


class PartitionTable:
    """Rows, versions and cached stamp of all partitions.

    Every change of a row goes through ``set_row``, so the stamp and the counts by member are
    always those of the rows (PIM-17). Versions rise strictly, partition by partition; there is
    no version of the whole table (PIM-01).
    """

    def __init__(self, partition_count: int) -> None:
        check(partition_count > 0, "a table has at least one partition")
        self.partition_count = partition_count
        self.rows: list[Row] = [EMPTY_ROW] * partition_count
        """The row of partition 0, 1, ...; to be read only."""
        self.versions: list[int] = [0] * partition_count
        """The version of partition 0, 1, ...; to be read only."""
        self.losses: dict[PartitionId, Loss] = {}
        """What partitions have lost, seen marks included; to be read only."""
        self.version_max = 0
        """The greatest partition version; below cluster version 4.1 the version of the table."""
        self.change_count = 0
        """Changes of rows and versions so far; what was read before the last one may be stale."""
        self._versioned_count = 0
        self._depth_counts = [partition_count, *([0] * REPLICA_SLOTS)]
        self._primary_total = 0
        self._stamp: int | None = UNINITIALISED_STAMP
        self._replicas: dict[MemberId, int] = {}
        self._primaries: dict[MemberId, int] = {}

    # -- reading --------------------------------------------------------------------------

    @property
    def initialised(self) -> bool:
        """Whether any partition has ever got a version."""
        return self._versioned_count > 0

    @property
    def stamp(self) -> int:
        """The table's stamp; calculated when it is first asked for after a change (PIM-16)."""
        if self._stamp is None:
            self._stamp = self.recompute_stamp()
        return self._stamp

    def recompute_stamp(self) -> int:
        """The stamp from scratch, for checks of the cached one (PIM-17)."""
        if not self.initialised:
            return UNINITIALISED_STAMP
        # 0 means "no table yet" to everybody, so a table that happens to hash to it says 1.
        return calculate_stamp(self.versions) or 1

    def row(self, partition_id: PartitionId) -> Row:
        """The replicas of a partition, hottest first."""
        return self.rows[partition_id]

    def version(self, partition_id: PartitionId) -> int:
        """The version of a partition; 0 before its first arrangement."""
        return self.versions[partition_id]

    def state(self, partition_id: PartitionId) -> RowState:
        """Row and version of a partition as one value."""
        return RowState(partition_id, self.versions[partition_id], self.rows[partition_id])

    def replica_count(self, member: MemberId) -> int:
        """In how many rows a member stands, at any index."""
        return self._replicas.get(member, 0)

    def primary_count(self, member: MemberId) -> int:
        """Of how many partitions a member is the primary."""
        return self._primaries.get(member, 0)

    def hole_count(self, depth: int) -> int:
        """How many replicas are missing where each row shall have ``depth``. Never linear."""
        return sum((depth - held) * self._depth_counts[held] for held in range(depth))

    def holders(self) -> list[MemberId]:
        """Every member that stands in some row, sorted."""
        return sorted(self._replicas)

    def partitions_of(self, member: MemberId) -> list[PartitionId]:
        """The partitions in whose rows a member stands, ascending. Linear in the table."""
        if member not in self._replicas:
            return []
        return [PartitionId(pid) for pid, row in enumerate(self.rows) if member in row]

    def part(self, number: int, size: int) -> tuple[list[PartitionId], bool]:
        """The partitions of a part of the table, from part 0 on, and whether more parts follow."""
        end = (number + 1) * size
        pids = range(number * size, min(end, self.partition_count))
        return list(map(PartitionId, pids)), end < self.partition_count

    def empty_partitions(self) -> list[PartitionId]:
        """The partitions without any replica, ascending. Quick when there are none."""
        if not self._depth_counts[0]:
            return []
        return [PartitionId(pid) for pid, row in enumerate(self.rows) if row == EMPTY_ROW]

    def without_primary(self) -> list[PartitionId]:
        """The partitions without a primary, ascending. Quick when there are none."""
        if self._primary_total == self.partition_count:
            return []
        return [PartitionId(pid) for pid, row in enumerate(self.rows) if row[0] is None]

    # -- changing -------------------------------------------------------------------------

    def set_row(self, partition_id: PartitionId, row: Row, version: int) -> None:
        """Install a row under a higher version.

        Raises:
            InvariantViolation: The row has not REPLICA_SLOTS slots, names a member twice
                (ADL-01), or the version does not rise (ADL-07).
        """
        check(0 <= partition_id < self.partition_count, "the partition exists")
        check(len(row) == REPLICA_SLOTS, "a row has one slot per replica index")
        check(_is_distinct(row), "no member stands twice in a row")
        before = self.versions[partition_id]
        check(before < version <= VERSION_MAX, "a partition version only rises")
        self._count(self.rows[partition_id], -1)
        self._count(row, 1)
        self.rows[partition_id] = row
        self.versions[partition_id] = version
        self.version_max = max(self.version_max, version)
        self.change_count += 1
        self._versioned_count += before == 0
        self._stamp = None

    def take_losses(self, losses: Iterable[Loss]) -> list[Loss]:
        """Keep the marks that count and not ours; returns those."""
        news = [loss for loss in losses if loss.beats(self.losses.get(loss.partition_id))]
        self.losses.update((loss.partition_id, loss) for loss in news)
        return news

    def _count(self, row: Row, change: int) -> None:
        """Book a row that comes (+1) or goes (-1) in the counts by member."""
        self._depth_counts[REPLICA_SLOTS - row.count(None)] += change
        for member in row:
            if member is not None:
                _add(self._replicas, member, change)
        if row[0] is not None:
            _add(self._primaries, row[0], change)
            self._primary_total += change

    # -- travelling -----------------------------------------------------------------------

    def image(self, partition_ids: Iterable[PartitionId] | None = None) -> TableImage:
        """The rows of the given partitions, of all when None, ready to be sent."""
        pids: Sequence[int] = (
            range(self.partition_count) if partition_ids is None else list(partition_ids)
        )
        packed = pack_rows([self.rows[pid] for pid in pids])
        versions = tuple([self.versions[pid] for pid in pids])
        known = self.losses
        losses = tuple([known[PartitionId(pid)] for pid in pids if pid in known]) if known else ()
        return TableImage(packed.members, tuple(pids), versions, packed.slots, losses)

    def take_image(self, image: TableImage) -> list[RowState]:
        """Take the losses of a received image, and give its rows, in its order, to be applied.

        All of it is checked first.

        Raises:
            ProtocolError: Sizes, partition ids, versions or slots do not fit one another or
                this table; nothing of it may be applied.
        """
        count = len(image.partitions)
        _demand(len(image.versions) == count, "a table image needs one version per partition")
        _demand(
            len(image.slots) == 2 * REPLICA_SLOTS * count,
            "a table image needs seven 16-bit slots per partition",
        )
        _demand(
            len(dict.fromkeys(image.partitions)) == count, "a table image lists a partition twice"
        )
        listed = dict.fromkeys(image.partitions) if image.losses else {}
        for loss in image.losses:
            _demand(loss.partition_id in listed, "a loss is told of a partition that is not listed")
        if count:
            in_range = min(image.partitions) >= 0 and max(image.partitions) < self.partition_count
            _demand(in_range, "a table image lists an unknown partition")
            in_range = min(image.versions) >= 0 and max(image.versions) <= VERSION_MAX
            _demand(in_range, "a partition version is out of range")
        rows: list[RowState] = []
        unpacked = unpack_rows(PackedRows(image.members, image.slots))
        for pid, version, row in zip(image.partitions, image.versions, unpacked, strict=True):
            if not version:
                _demand(row == EMPTY_ROW, "a row without a version must be empty")
            rows.append(RowState(PartitionId(pid), version, row))
        self.take_losses(image.losses)
        return rows


def pack_rows(rows: Iterable[Row]) -> PackedRows:
    """Rows as they travel and lie on a disk, in their order."""
    positions: dict[MemberId | None, int] = {None: HOLE_ON_WIRE}
    written: dict[Row, bytes] = {}  # a large table has few different rows
    slots: list[bytes] = []
    for row in rows:
        numbers = written.get(row)
        if numbers is None:
            for member in row:
                positions.setdefault(member, len(positions) - 1)
            numbers = written[row] = _SLOTS.pack(*[positions[member] for member in row])
        slots.append(numbers)
    check(len(positions) <= HOLE_ON_WIRE, "an image names fewer members than its numbers can")
    members = tuple(member for member in positions if member is not None)
    return PackedRows(members, b"".join(slots))


def unpack_rows(packed: PackedRows) -> list[Row]:
    """The rows, in the order in which they were packed.

    Raises:
        ProtocolError: They are cut, or name a member twice, or one that is not defined.
    """
    members, slots, size = packed.members, packed.slots, _SLOTS.size
    _demand(not len(slots) % size, "rows need seven 16-bit slots each")
    _demand(len(members) < HOLE_ON_WIRE, "a table image names too many members")
    _demand(len(dict.fromkeys(members)) == len(members), "a table image names a member twice")
    holders: dict[int, MemberId | None] = dict(enumerate(members))
    holders[HOLE_ON_WIRE] = None
    rows: list[Row] = []
    read: dict[bytes, Row] = {}
    for start in range(0, len(slots), size):
        one = slots[start : start + size]
        row = read.get(one)
        if row is None:
            row = read[one] = _read_row(one, holders)
        rows.append(row)
    return rows


def _read_row(packed: bytes, holders: Mapping[int, MemberId | None]) -> Row:
    """The row of an image's slots.

    Raises:
        ProtocolError: It uses an unknown number, or names a member twice.
    """
    try:
        row = tuple([holders[number] for number in _SLOTS.unpack(packed)])
    except KeyError:
        message = "a table image uses a member number that it does not define"
        raise ProtocolError(message) from None
    _demand(_is_distinct(row), "a table image has a row with one member twice")
    return row


def filled_count(row: Row) -> int:
    """How many replicas a row has."""
    return REPLICA_SLOTS - row.count(None)


def _is_distinct(row: Row) -> bool:
    """Whether no member stands twice in a row."""
    return len(dict.fromkeys(row)) - (None in row) == filled_count(row)


def _add(counts: dict[MemberId, int], member: MemberId, change: int) -> None:
    """Change a count; a member at 0 is forgotten."""
    left = counts.get(member, 0) + change
    check(left >= 0, "counts by member do not fall below zero")
    if left:
        counts[member] = left
    else:
        counts.pop(member, None)


def _demand(condition: bool, sentence: str) -> None:
    """Refuse a peer's image that breaks a rule."""
    if not condition:
        raise ProtocolError(sentence)
