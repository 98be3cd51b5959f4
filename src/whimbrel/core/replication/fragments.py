"""What a member holds of one partition: fragments with their versions.

Knows stores only through the narrow ``Store`` protocol. A fragment is the data of one structure in
one partition; its key is a namespace (AE-17). Every structure of this grid is split into
fragments, so the shared namespace of AE-18 has no member here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from whimbrel.core.ids import (
    EMPTY_ROW,
    NO_INDEX,
    MemberId,
    Namespace,
    PartitionId,
    ReplicaIndex,
    Row,
)
from whimbrel.core.messages import Vector
from whimbrel.core.replication.deferred_free import Freeable
from whimbrel.core.replication.outbox import Outbox, Reply
from whimbrel.core.replication.vectors import (
    NO_LINEAGE,
    ZERO,
    Counters,
    kept_by,
    promoted_from,
    slot_of,
)

if TYPE_CHECKING:
    from whimbrel.core.replication.key_log import KeyLog

Follow = Callable[["Fragment", bytes, bytes], None]
"""Takes a changed fragment, the store's operation, and the record that travels to backups."""
NOT_SHORT = -1
"""Stands for the version since which a fragment has had too few backups: it has enough."""


class Store(Protocol):
    """What replication needs of a structure's data in one partition."""

    bytes_used: int

    def __len__(self) -> int:
        """Entries held."""

    def apply(self, buffer: bytes, start: int, end: int) -> None:
        """Apply one backup operation; repeating it must be harmless."""

    def open_cursor(self) -> Any:
        """A place in a walk over everything; what it is, is the store's affair."""

    def export(self, cursor: Any, bytes_max: int) -> tuple[bytes, int, bool]:
        """The next chunk of a walk, its entries and whether it is the last.

        What is there from the first chunk to the last is in one of them, as it was when that was
        made; what comes or goes meanwhile may be in none, or in two.
        """

    def ingest(self, data: bytes) -> int:
        """Take in a chunk; raises SerializationError when it is damaged."""

    def stop_sweeping(self) -> None:
        """This store is a backup's from now on."""

    def release(self) -> Freeable | None:
        """Nobody looks at this store any more: give up what is too large to be freed at once."""

    def restart_idleness(self, now_ms: int) -> None:
        """Count idleness from now."""


class ChangeLog(Protocol):
    """The log of one fragment on our disk."""

    waits: bool
    """Whether replies and acknowledgements wait until a change is durable."""

    def append(self, counter: int, operation: bytes, reply: Reply) -> None:
        """Write down an operation that was carried out, before the fragment counts it.

        ``counter`` is that of its own slot behind it; ``remaining`` of a reply that has to wait
        for the disk rises by one.
        """

    def revise(self) -> None:
        """The fragment's versions have changed otherwise than by an operation."""


class Observer(Protocol):
    """Whoever wants to know every change of what a member holds, in apply order."""

    def held(self, partition: PartitionReplica, fragment: Fragment) -> None:
        """A fragment is held from now on, with what is in it."""

    def changed(self, fragment: Fragment, operation: bytes) -> None:
        """A backup operation of its store has been carried out on a fragment that is held."""

    def discarded(self, partition: PartitionReplica, fragment: Fragment) -> None:
        """The fragment is held no longer; what was in it is about to be freed."""


@dataclass(slots=True, eq=False)
class Fragment:
    """The data of one structure in one partition and its replica version vector.

    All counters below ``backup_count`` rise together, one for each operation, so only the value
    of our own slot is kept up on the hot path; ``vector`` works the others out.

    Attributes:
        namespace: The structure.
        sync_count, async_count: Backups that are asked for.
        backup_count: Both together: how many counters an operation raises (AE-02).
        generation: The number of the structure's destruction that this was begun after, 0 for none.
        lineage: Who counts (AE-11).
        base_lineage: Where the counting primary started from, with ``base``.
        slot, value: Our own slot and the counter in it.
        is_dirty: We know that we may have missed something (AE-07).
        sound: While it is dirty, where it lacked nothing, if all that it may lack came later and
            all that it has got since is of one lineage; else None.
        head: The constant part of our backup operations as primary; empty when it must be made.
        sync_targets: Outboxes of the synchronous backups there are, when we are the primary.
        others: Who else is given each of our changes and is not waited for: the asynchronous
            backups, observers.
        apply: Applies a backup operation; the store's own method unless somebody observes.
        log: Where its changes are written down; None unless it is persistent.
        key_log: Which keys have changed since somebody left; it is ``log`` then, before the disk's.
        short_from: Our version up to which changes made with too few backups are counted, see
            ``shortage``; NOT_SHORT while there are enough.
    """

    partition_id: PartitionId
    namespace: Namespace
    store: Store
    sync_count: int
    async_count: int
    backup_count: int = field(init=False)
    generation: int = 0
    lineage: int = NO_LINEAGE
    base_lineage: int = NO_LINEAGE
    base: Counters = ZERO
    _start: Counters = ZERO
    slot: int = 0
    value: int = 0
    is_dirty: bool = False
    sound: Vector | None = None
    head: bytes = b""
    sync_targets: tuple[Outbox, ...] = ()
    others: tuple[Follow, ...] = ()
    apply: Callable[[bytes, int, int], None] = field(init=False)
    log: ChangeLog | None = None
    key_log: KeyLog | None = None
    short_from: int = NOT_SHORT

    def __post_init__(self) -> None:
        """Nothing has happened to it yet."""
        self.backup_count = self.sync_count + self.async_count
        self.apply = self.store.apply

    def counters(self) -> Counters:
        """The vector's counters: ours and colder ones, zero below (AE-03)."""
        start, slot = self._start, self.slot
        if slot >= len(start):
            return start
        delta = self.value - start[slot]
        if not delta:
            return start
        last = self.backup_count
        return tuple(
            value + delta if slot <= position < last else value
            for position, value in enumerate(start)
        )

    def vector(self) -> Vector:
        """The vector as it travels."""
        return Vector(self.lineage, self.counters(), self.base_lineage, self.base)

    def last_sound(self) -> Vector | None:
        """Its vector, or while it is dirty the one that it had before; None if nobody can tell."""
        return self.sound if self.is_dirty else self.vector()

    def is_behind(self, other: Fragment) -> bool:
        """Whether it has counted less than another one of the same lineage (AE-11)."""
        slot = max(self.slot, other.slot)
        return self.lineage == other.lineage and self.counters()[slot] < other.counters()[slot]

    def set_counters(self, counters: Counters, slot: int) -> None:
        """Continue from these counters in this slot."""
        self._start = counters
        self.slot = slot
        self.value = counters[slot] if slot < len(counters) else 0
        if self.log is not None:
            self.log.revise()

    def install(self, vector: Vector, index: int) -> None:
        """Take over a vector with the data it belongs to, as replica ``index``."""
        self.lineage = vector.lineage
        self.base_lineage = vector.base_lineage
        self.base = tuple(vector.base)
        self.set_counters(kept_by(tuple(vector.counters), index), slot_of(index))
        self.head = b""

    def become_primary(self, lineage: int) -> None:
        """Count under a new lineage from what we hold (FN-7, AE-11).

        A fragment that may have missed something gives a base that nobody can have, so that
        every backup asks for a sync rather than believe that equal numbers mean equal data.
        """
        counters = promoted_from(self.counters(), self.slot + 1)
        self.base_lineage = lineage if self.is_dirty else self.lineage
        self.base = counters
        self.lineage = lineage
        self.is_dirty = False
        self.set_counters(counters, 0)
        self.head = b""

    def become_backup(self, index: int) -> None:
        """Keep the slots of a replica at ``index``; the lineage stays.

        Becoming hotter fills the new slots with our own: all counters that an operation raises
        rise together. The primary's next message of versions checks it.
        """
        counters = promoted_from(self.counters(), self.slot + 1)
        self.set_counters(kept_by(counters, index), slot_of(index))

    def stop_sending(self) -> None:
        """We are not the primary: nothing goes out."""
        self.head = b""
        self.sync_targets = self.others = ()
        self.store.stop_sweeping()

    def meet_lineage(self, lineage: int, base_lineage: int, base: Counters, slot: int) -> bool:
        """Compare with where a new primary started, whose ``lineage`` we have not met (AE-11).

        Equal: nothing is missing. Different: the fragment is dirty, and the answer is False. Either
        way we count on from that starting point in the slots from ``slot`` on, so that all of this
        primary's operations are applied from now on. Zero counters on both sides mean two empty
        fragments, whoever counted.
        """
        own = self.counters()[slot:]
        agrees = own == base[slot:] and (self.lineage == base_lineage or not any(own))
        # Doubted before, it may have got what this primary has not.
        self.sound = None if agrees or self.is_dirty else self.vector()
        self.is_dirty = self.is_dirty or not agrees
        self.lineage = lineage
        self.base_lineage = base_lineage
        self.base = base
        self.set_counters(ZERO[:slot] + base[slot:], slot)
        return not self.is_dirty


@dataclass(slots=True, eq=False)
class PartitionReplica:
    """What this member holds and is for one partition.

    Attributes:
        index: Our own replica index in our table, NO_INDEX for none.
        row, version: The row in our table, and its version.
        migrating: Writes wait (GCM-31).
        has_data: False while we are back in our seat without the data that belong there.
        is_primary: ``index`` is 0, and we have the data.
        writable: Primary and not migrating.
        readable: Primary, and not migrating where stale reads are disabled (GCM-32).
        is_confirmed: We are not a backup, or the present primary has told us its versions.
        ahead_version: Version of a row that we have not got yet but whose primary has sent us
            operations already; what we hold then follows that row.
        primary_since: Version of the row with which the present primary came.
        lineage: Ours, while we are the primary.
        fragments: By structure; the one look-up of every operation.
        backups: (index, member) of the backups in the row that are on the member list; kept
            while we are the primary.
    """

    pid: PartitionId
    stale_read_disabled: bool = False
    index: ReplicaIndex = NO_INDEX
    version: int = 0
    row: Row = EMPTY_ROW
    migrating: bool = False
    has_data: bool = True
    is_primary: bool = False
    writable: bool = False
    readable: bool = False
    is_confirmed: bool = True
    primary_since: int = 0
    ahead_version: int = 0
    lineage: int = NO_LINEAGE
    fragments: dict[Namespace, Fragment] = field(default_factory=dict)
    backups: tuple[tuple[ReplicaIndex, MemberId], ...] = ()

    @property
    def primary(self) -> MemberId | None:
        """Who is the primary in our table."""
        return self.row[0]

    @property
    def is_behind(self) -> bool:
        """Whether a row newer than ours exists: our index does not bound what we hold (AE-10)."""
        return self.ahead_version > self.version

    def take_row(self, row: Row, version: int, index: ReplicaIndex) -> None:
        """Our table's row is now this one."""
        if row[0] != self.row[0] or not self.primary_since:
            self.primary_since = version
        self.row = row
        self.version = version
        self.index = index
        self.is_primary = index == 0 and self.has_data
        self.set_migrating(self.migrating)

    def gain_data(self) -> None:
        """We have what belongs into our seat: serve, if it is the primary's."""
        self.has_data = True
        self.is_primary = self.index == 0
        self.set_migrating(self.migrating)

    def set_migrating(self, migrating: bool) -> None:
        """Switch the flag that makes writes wait, and reads where they must be fresh.

        Between the destination's commit and ours its clients write what we do not have.
        """
        self.migrating = migrating
        self.writable = self.is_primary and not migrating
        self.readable = self.is_primary and not (migrating and self.stale_read_disabled)


def in_step(fragment: Fragment | None, vector: Vector, index: int) -> bool:
    """Whether a replica at ``index`` holds what a primary with this vector holds."""
    if fragment is None:
        return not any(vector.counters[slot_of(index) :])
    slot = max(slot_of(index), fragment.slot)
    return not fragment.is_dirty and counts_alike(
        fragment.lineage, fragment.counters(), vector, slot
    )


def counts_alike(lineage: int, counters: Counters, vector: Vector, slot: int) -> bool:
    """Whether a replica has counted what a primary with this vector has, from a slot on (AE-11).

    It has done so under that primary, or under the one before it and nothing has changed since.
    """
    told = tuple(vector.counters[slot:])
    is_continued = lineage == vector.base_lineage and tuple(vector.base[slot:]) == told
    return counters[slot:] == told and (lineage == vector.lineage or is_continued)
