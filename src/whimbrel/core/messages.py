"""The member protocol's control messages, one frozen struct each.

Names are past tense for news and ``...Requested`` / ``...Answered`` for pairs. Every request is
repeated by its sender until it is answered or the peer has left the member list, so every
receiver must treat a second copy as the same request. ``DATA_CHANNEL`` messages travel on the
link's bulk connection so that they never delay a heartbeat; all others on the control
connection. Each connection keeps its order; a reset loses an unknown tail.
"""

from __future__ import annotations

import enum
from typing import Any, Union

import msgspec

from whimbrel.core.ids import Address, MemberId, Name, Namespace, PartitionId, ReplicaIndex
from whimbrel.core.model import (
    Loss,
    MemberInfo,
    MemberList,
    MigrationInfo,
    Numbering,
    NumbersAsked,
    NumbersTold,
    RecoveryWord,
    Standing,
)


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of everything that members say to each other in msgpack.

    The bases below it say which room takes a message.
    """


class MembershipMessage(Message, frozen=True):
    """Of the membership room; some of them are taken from who is on no list."""


class MigrationMessage(Message, frozen=True):
    """Of the migration room."""


class TransferMessage(Message, frozen=True):
    """Of the room whose copy it is, as its purpose says."""


class ReplicationMessage(Message, frozen=True):
    """Of the replication room."""


class MergingMessage(Message, frozen=True):
    """Of the merging room."""


class RecoveryMessage(Message, frozen=True):
    """Of the recovery room; none is told once the cluster runs."""


class RegistryMessage(Message, frozen=True):
    """Of the registry."""


class QuestionMessage(Message, frozen=True):
    """Of the layer that knows documents."""


# -- membership ---------------------------------------------------------------------------


class ProbeRequested(MembershipMessage, frozen=True):
    """Discovery: who are you, and whom do you take for master? Sent to an address."""

    cluster_name: str
    sender: MemberInfo
    asked: Address | None = None
    """The address that was dialled; it may be an alias of the receiver's own."""
    files: Name = ""
    """Id of the cluster that the sender has files of, while it seeks; empty for none."""


class ProbeAnswered(MembershipMessage, frozen=True):
    """Answer to a probe. ``master`` is None while the answerer has not joined a cluster."""

    cluster_name: str
    sender: MemberInfo
    master: MemberInfo | None
    asked: Address | None = None
    """Copied from the probe, so that the prober knows which dialled address this is."""
    files: Name = ""
    """As in ``ProbeRequested``, of the answerer."""


class JoinRequested(MembershipMessage, frozen=True):
    """A joiner asks the master to be put on the list. Sent to an address, repeated."""

    cluster_name: str
    partition_count: int
    joiner: MemberInfo
    claim: int = 0
    """Number of the claim that this answers: the joiner was asked and is not joined yet."""
    files: Name = ""
    """Id of the cluster that the joiner has files of; empty for none."""


class JoinersTold(MembershipMessage, frozen=True):
    """These may be on the master's next lists: a claimant without such a list asks them, too.

    Answered with ``JoinersNoted``; repeated until then, and nobody is admitted before.
    """

    joiners: tuple[MemberInfo, ...]


class JoinersNoted(MembershipMessage, frozen=True):
    """The sender knows of these joiners."""

    joiners: tuple[MemberInfo, ...]


class JoinRefused(MembershipMessage, frozen=True):
    """The master will not take the joiner; ``final`` tells the joiner not to ask again."""

    reason: str
    final: bool
    joiner: MemberId | None = None
    """Whom it is meant for; another process may listen at that address by now."""
    is_stale: bool = False
    """The cluster has gone on without the joiner: it may come without its files."""
    is_recovering: bool = False
    """The cluster recovers: the joiner may come later, however long that takes."""


class MembersPublished(MembershipMessage, frozen=True):
    """The master's member list; installed if newer and if it contains the receiver."""

    list: MemberList
    numbers: NumbersAsked | None = None


class Census(msgspec.Struct, frozen=True, array_like=True):
    """How many entries a primary holds of each structure, in some of its partitions."""

    namespaces: tuple[Namespace, ...]
    entries: dict[PartitionId, dict[int, int]]
    """By partition: position in ``namespaces`` to entries, for those that are not empty."""


class Heartbeat(MembershipMessage, frozen=True):
    """I live; this is the version of my member list, and whom I take for master."""

    list_version: int
    master: MemberId | None
    census: Census | None = None
    """To the master only: what would be lost with the sender (docs/design/0014)."""
    asked: NumbersAsked | None = None
    """From the master only."""
    told: NumbersTold | None = None
    """To the master only."""


class SuspicionTold(MembershipMessage, frozen=True):
    """You are not on my list of this version: treat yourself as expelled (M5).

    Also the answer to a list from somebody the sender does not take for master; then the
    receiver may be among ``members``, the ids of the sender's list, oldest first.
    """

    list_version: int
    master: MemberId | None
    members: tuple[MemberId, ...] = ()
    to: MemberId | None = None
    """Whom it is meant for; another process may listen at that address by now."""
    data_members: int = 0
    """Data members on the sender's list: the weight of its part of the cluster (M6)."""
    addresses: tuple[Address, ...] = ()
    """Where its members listen, the master first, not all of a large list: who gives way looks for
    the cluster there. The first decides between parts of equal weight."""
    partition_count: int = 0
    """Of the sender's cluster; 0 is unknown. A part with another one would refuse us for good."""
    cluster_id: str = ""
    is_recovering: bool = False
    """Whether the sender's part comes back from its files: it has served nobody."""


class ClaimRequested(MembershipMessage, frozen=True):
    """The claimant suspects every member older than itself and asks for agreement."""

    list_version: int
    call: int = 0
    """Number of the claim; an answer to an abandoned claim counts for nothing."""


class ClaimAnswered(MembershipMessage, frozen=True):
    """``accepted`` is False while the answerer still trusts a member older than the claimant."""

    accepted: bool
    list: MemberList
    call: int = 0


class LeaveRequested(MembershipMessage, frozen=True):
    """A member asks the master to move its data away; repeated every second."""

    member: MemberId
    call: int = 0
    """Not 0 when it goes as soon as this very request is answered; nobody is admitted before."""


class LeaveAllowed(MembershipMessage, frozen=True):
    """The member is in no row any more (P12); names the incarnation it is meant for."""

    member: MemberId
    call: int = 0
    """Of the last request."""
    is_end: bool = False
    """All data members leave: nobody keeps what they hold."""


class LeaveOrdered(MembershipMessage, frozen=True):
    """An operator asked, through another member, that the receiver leaves gracefully."""

    member: MemberId


class GoodbyeTold(MembershipMessage, frozen=True):
    """The sender ends now; it holds no replica, or nobody is left to take it over."""

    member: MemberId
    is_end: bool = False
    """All data members leave, and the sender has said what ends with it."""
    numbers: NumbersTold | None = None
    """The sender's last word on the numbers of members."""


# -- cluster state ------------------------------------------------------------------------


class StateLockRequested(MembershipMessage, frozen=True):
    """The master is about to change what the whole cluster agreed on: stand still (PIM-31).

    The lock holds for ``lease_us`` at most, and for the member list of this version only.
    """

    transaction: str
    list_version: int
    mark: int
    """What both tables are compared by: the stamp (PIM-31), or the global version (PIM-32)."""
    lease_us: int


class StateLockAnswered(MembershipMessage, frozen=True):
    """``reason`` is empty when the lock is held, else why it is refused."""

    transaction: str
    reason: str
    without_data: tuple[PartitionId, ...] = ()
    """Partitions in whose rows the sender stands without having got its data back."""
    is_passing: bool = False
    """Whether the reason is about to pass by itself: news are on their way."""


class StateUnlockRequested(MembershipMessage, frozen=True):
    """The change is off: give this transaction's lock back, no other one's."""

    transaction: str


class StateUnlockAnswered(MembershipMessage, frozen=True):
    """This transaction holds no lock here."""

    transaction: str


class StateConfirmRequested(MembershipMessage, frozen=True):
    """The change is in the list of this version, which was sent before: do you have it?"""

    transaction: str
    list_version: int


class StateConfirmAnswered(MembershipMessage, frozen=True):
    """The sender has installed that list, or a later one."""

    transaction: str


class RoleChangeRequested(MembershipMessage, frozen=True):
    """A member asks the master to make it a data member (``lite`` False) or lite; repeated."""

    call: int
    member: MemberId
    lite: bool


class RoleChangeAnswered(MembershipMessage, frozen=True):
    """The list that says so (GCM-23), or a ``problem`` with its ``reason`` in words."""

    call: int
    problem: str
    reason: str
    list: MemberList | None = None


# -- partition table ----------------------------------------------------------------------


class TableImage(msgspec.Struct, frozen=True, array_like=True):
    """Some or all rows, compactly.

    ``slots`` holds REPLICA_SLOTS big-endian unsigned 16-bit numbers per listed partition:
    positions in ``members``, 0xFFFF for a hole.
    """

    members: tuple[MemberId, ...]
    partitions: tuple[int, ...]
    versions: tuple[int, ...]
    slots: bytes
    losses: tuple[Loss, ...] = ()
    """What these partitions have lost, and which of it has been seen."""


class TablePublished(MigrationMessage, frozen=True):
    """Rows and finished migrations from the master (ADL-10, ADL-23).

    ``whole`` tells that ``image`` lists every partition. ``publication`` rises with each message
    of this master; the receiver answers with it. ``after`` is the publication that the receiver
    was sent before this one, so that it notices a lost one; finished migrations of
    publications up to ``floor`` need not be kept: everybody has them, or gets whole rows (ADL-25).

    A large table comes in parts, one publication each: the first is ``whole``, each further one is
    ``after`` the one before, and all but the last have ``more`` and are not answered.
    """

    publication: int
    image: TableImage
    completed: tuple[MigrationInfo, ...]
    whole: bool
    after: int = 0
    floor: int = 0
    more: bool = False


class PublicationAnswered(MigrationMessage, frozen=True):
    """``in_step`` is False when the receiver could not apply it and needs the whole table."""

    publication: int
    in_step: bool
    stamp: int


class StampPublished(MigrationMessage, frozen=True):
    """The master's table stamp; a receiver with another one asks for the table (FN-6)."""

    stamp: int


class TableRequested(MigrationMessage, frozen=True):
    """Send me the whole table."""

    stamp: int


class StateRequested(MigrationMessage, frozen=True):
    """A new master asks for table and migrations (ADL-11); repeated until answered (ADL-13)."""

    round: int


class StateAnswered(MigrationMessage, frozen=True):
    """Everything the new master needs from one member.

    A large table comes in parts, numbered from 0; all but the last have ``more``, and the last one
    brings the migrations.
    """

    round: int
    image: TableImage
    completed: tuple[MigrationInfo, ...]
    active: tuple[MigrationInfo, ...]
    part: int = 0
    more: bool = False


class LossesTold(MigrationMessage, frozen=True):
    """A member that came back to its seats tells the master what it found lost there (GCM-09).

    Repeated until it is answered.
    """

    losses: tuple[Loss, ...]


class LossesNoted(MigrationMessage, frozen=True):
    """The master has these marks, or later ones of the same partitions."""

    losses: tuple[Loss, ...]


# -- partition table, before cluster version 4.1 --------------------------------------------


class LegacyTablePublished(MigrationMessage, frozen=True):
    """The whole table under its one version, from the master, with the finished migrations that
    not every member has acknowledged (PIM-07).
    """

    version: int
    image: TableImage
    completed: tuple[MigrationInfo, ...]


class LegacyTableAnswered(MigrationMessage, frozen=True):
    """The version at which the receiver's table stands now."""

    version: int


class LegacyVersionPublished(MigrationMessage, frozen=True):
    """The version of the master's table; a receiver below it asks for the table."""

    version: int


class LegacyTableRequested(MigrationMessage, frozen=True):
    """My table stands at this version: send me yours."""

    version: int


# -- migration ----------------------------------------------------------------------------


class MigrationRequested(MigrationMessage, frozen=True):
    """Master to the partition's primary: copy the data to the destination (ADL-28, PIM-08)."""

    migration: MigrationInfo
    completed: tuple[MigrationInfo, ...]


class MigrationDataAnswered(MigrationMessage, frozen=True):
    """Primary to master: the destination has everything, or why not."""

    migration_id: str
    success: bool
    reason: str
    bytes_moved: int


class MigrationCommitRequested(MigrationMessage, frozen=True):
    """Master to destination: commit (ADL-18). Carries the migration with verdict SUCCESS."""

    migration: MigrationInfo
    completed: tuple[MigrationInfo, ...]


class MigrationCommitAnswered(MigrationMessage, frozen=True):
    """Destination to master (PIM-10)."""

    migration_id: str
    committed: bool
    reason: str


class PromotionRequested(MigrationMessage, frozen=True):
    """Master to the promoted member: all its promotions of one repair round (FN-7)."""

    batch: int
    migrations: tuple[MigrationInfo, ...]
    image: TableImage


class PromotionAnswered(MigrationMessage, frozen=True):
    """``accepted`` means that the batch is applied, now or earlier (PIM-11)."""

    batch: int
    accepted: bool
    reason: str


class Vector(msgspec.Struct, frozen=True, array_like=True):
    """Replica versions of one namespace (AE-01), with their lineage (AE-11).

    ``counters`` has BACKUP_COUNT_MAX numbers, slot r-1 for replica r. ``lineage`` names the
    primary that counts. ``base_lineage`` and ``base`` say where that primary started from.
    """

    lineage: int
    counters: tuple[int, ...]
    base_lineage: int = 0
    base: tuple[int, ...] = (0, 0, 0, 0, 0, 0)


class FragmentPart(msgspec.Struct, frozen=True, array_like=True):
    """A piece of one namespace in one partition.

    ``first`` makes the receiver start from an empty fragment (replication replaces, bug 37);
    ``last`` makes it whole, with ``vector``. ``settings`` is (sync, async) backup counts.
    ``generation`` is the registry's number of the destruction that the fragment was begun after.
    """

    namespace: Namespace
    data: bytes
    vector: Vector
    settings: tuple[int, int]
    first: bool
    last: bool
    generation: int = 0


class MigrationOpened(MigrationMessage, frozen=True):
    """Primary to destination: a migration begins (GCM-39); answered as message 0 of its copy.

    Carries the finished migrations of the partition (PIM-08).
    """

    migration: MigrationInfo
    completed: tuple[MigrationInfo, ...]


class Purpose(enum.StrEnum):
    """What a copy of fragments is for."""

    MIGRATION = "MIGRATION"
    """From a partition's primary to the destination; the transfer is the migration's id."""
    SYNC = "SYNC"
    """From a primary to a backup that has asked (``SyncRequested``); the number of the request."""
    RECOVERY = "RECOVERY"
    """From a backup to a primary that has come back (``RefillRequested``); its number."""


class TransferSent(TransferMessage, frozen=True):
    """Parts of a copy; DATA channel; one in flight for each copy (GCM-36), numbered from 1."""

    purpose: Purpose
    transfer: str
    partition_id: PartitionId
    sequence: int
    parts: tuple[FragmentPart, ...]
    last: bool


class TransferAnswered(TransferMessage, frozen=True):
    """Receiver to sender: go on, or (``success`` False) stop, and why."""

    purpose: Purpose
    transfer: str
    sequence: int
    success: bool
    reason: str


# -- replication --------------------------------------------------------------------------


class ReplicaVersions(msgspec.Struct, frozen=True, array_like=True):
    """What the replica at ``index`` of a partition should hold, namespace by namespace."""

    partition_id: PartitionId
    partition_version: int
    index: ReplicaIndex
    vectors: dict[Namespace, Vector]


class VersionsTold(ReplicationMessage, frozen=True):
    """Primary to backup (AE-12): compare, prune what is not listed, ask for a sync if different."""

    replicas: tuple[ReplicaVersions, ...]


class DiskTold(ReplicationMessage, frozen=True):
    """The sender's disk takes nothing any more (``is_full``), or does again."""

    is_full: bool


class SyncRequested(ReplicationMessage, frozen=True):
    """Backup to primary: send these namespaces of a partition again."""

    sync_id: int
    partition_id: PartitionId
    partition_version: int
    index: ReplicaIndex
    namespaces: tuple[Namespace, ...]


class SyncRefused(ReplicationMessage, frozen=True):
    """Primary to backup: not now (no permit, migrating) or not at all (not the primary) (AE-15)."""

    sync_id: int
    partition_id: PartitionId
    reason: str


class RefillRequested(ReplicationMessage, frozen=True):
    """A primary that has come back without data asks a backup for all it has of a partition.

    A part whose vector has no lineage is of a namespace that may lack something.
    """

    refill_id: int
    partition_id: PartitionId
    partition_version: int


class RefillRefused(ReplicationMessage, frozen=True):
    """Backup to returned primary: ``has_none`` when it has no data either, else not now."""

    refill_id: int
    partition_id: PartitionId
    has_none: bool


class StandingRequested(ReplicationMessage, frozen=True):
    """Former primary to a backup that has refused its write: are you in step with the new one?

    ``primary_since`` is the version of the row that made that one the primary.
    """

    partition_id: PartitionId
    primary_since: int


class StandingAnswered(ReplicationMessage, frozen=True):
    """The answer to one ``StandingRequested``."""

    partition_id: PartitionId
    primary_since: int
    standing: Standing


# -- merging after a split ----------------------------------------------------------------


class MergeCounts(msgspec.Struct, frozen=True, array_like=True):
    """What became of merging entries."""

    added: int = 0
    """There was none of that key."""
    replaced: int = 0
    """The policy took another value than the one that was there, which is gone."""
    same: int = 0
    """The value was there already."""
    discarded: int = 0
    """The policy kept what was there, or nothing; the merging value is gone."""
    expired: int = 0
    """The entry's time was over."""


class MergeRequested(MergingMessage, frozen=True):
    """Entries that a part of a split cluster held; to the primary, which merges them.

    ``chunk`` is in the form of the structure's kind and has so many ``entries``; ``generation`` is
    that of ``FragmentPart``. A chunk that an incarnation before the sender offered is known by
    ``origin``, who offered it first, and the ``number`` it had there; else by the sender and the
    call.
    """

    call: int
    partition_id: PartitionId
    namespace: Namespace
    chunk: bytes
    entries: int
    generation: int = 0
    origin: MemberId | None = None
    number: int = 0


class MergeAnswered(MergingMessage, frozen=True):
    """``accepted`` False: nothing is decided, offer the same chunk again."""

    call: int
    accepted: bool
    counts: MergeCounts
    reason: str = ""


# -- registry, questions, orders ----------------------------------------------------------


class RegistryEntry(msgspec.Struct, frozen=True, array_like=True):
    """One replicated fact: a structure exists, or a Compact schema is known.

    ``clock`` is a Lamport number; for one (kind, key) the entry with the greater
    (clock, origin) wins. ``alive`` False marks a destroyed structure. ``destroyed`` is the clock
    of its latest destruction, 0 for none, by ``destroyer``; the greater one counts, whichever
    entry wins.
    """

    kind: str
    key: str
    clock: int
    origin: MemberId
    alive: bool
    value: bytes = b""
    destroyed: int = 0
    destroyer: MemberId | None = None


class RegistryTold(RegistryMessage, frozen=True):
    """Entries to merge; answered with ``RegistryAnswered`` when ``call`` is not 0."""

    call: int
    entries: tuple[RegistryEntry, ...]


class RegistryAnswered(RegistryMessage, frozen=True):
    """The entries of that call are merged here.

    ``overtaken`` is not 0 when a later destruction than one among them was known here: the
    sender's clock, which a destruction must exceed to reach what was begun after that one.
    """

    call: int
    overtaken: int = 0


class QuestionAsked(QuestionMessage, frozen=True):
    """Ask a member for a JSON document (status, safety, structures, ...)."""

    call: int
    what: str
    arguments: bytes = b"{}"


class QuestionAnswered(QuestionMessage, frozen=True):
    """The document, or an error sentence in ``error``."""

    call: int
    document: bytes
    error: str = ""


# -- recovery from files --------------------------------------------------------------------


class FilesTold(msgspec.Struct, frozen=True, array_like=True):
    """What cluster a member's files are of, as they were when it began."""

    list: MemberList
    image: TableImage
    registry: tuple[RegistryEntry, ...]
    numbering: Numbering | None = None


class RecoveryTold(RecoveryMessage, frozen=True):
    """A member of the recovery to its master, again and again until the recovery is over."""

    files: FilesTold | None = None
    """Until they are noted."""
    list_version: int = 0
    """Of the sender's member list."""
    has_none: bool = False
    """The sender has no files, or no longer."""
    order: str = ""
    """Name of the order that it has got."""
    is_done: bool = False
    """Whether that is carried out: all is loaded, or the files are set aside."""
    damage: str = ""
    """What is wrong with its files, with file and offset: it cannot load them."""
    bytes_total: int = 0
    bytes_loaded: int = 0


class RecoveryNoted(RecoveryMessage, frozen=True):
    """The answer to each ``RecoveryTold``: whether the files are noted, and how things stand."""

    has_files: bool
    word: RecoveryWord


class RecoveryOrdered(RecoveryMessage, frozen=True):
    """Load what these rows give you; who is not chosen sets its files aside."""

    order: str
    chosen: tuple[MemberId, ...]
    """Whose files count."""
    image: TableImage


class RecoveryFailed(RecoveryMessage, frozen=True):
    """The recovery is given up: everybody ends, with its files as they were."""

    reason: str


ANY_MESSAGE: Any = Union[  # noqa: UP007
    tuple(kind for room in Message.__subclasses__() for kind in room.__subclasses__())
]
"""The union the decoder is built from."""

DATA_CHANNEL: tuple[type[Message], ...] = (MigrationOpened, TransferSent, MergeRequested)
"""Messages that travel on the bulk connection."""

ADDRESSED: tuple[type[Message], ...] = (
    ProbeRequested, ProbeAnswered, JoinRequested, JoinRefused, SuspicionTold, RoleChangeAnswered,
)  # fmt: skip
"""Messages a member may send to or take from somebody who is not on its member list."""
