"""Records that several rooms and the member protocol share: members, member lists, migrations."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import cached_property

import msgspec

from whimbrel.core.ids import (
    NO_INDEX,
    Address,
    MemberId,
    Name,
    PartitionId,
    ReplicaIndex,
    Row,
)

CLUSTER_VERSION = "4.1"
"""The newest version of a cluster that this code knows (PIM-41 to PIM-44)."""
CLUSTER_VERSIONS = ("4.0", CLUSTER_VERSION)
"""All versions that this code knows, oldest first."""


class MemberInfo(msgspec.Struct, frozen=True):
    """One entry of the member list."""

    id: MemberId
    address: Address
    lite: bool = False
    version: Name = "5.7.0"
    host: Name = ""
    """Machine the member runs on, for host-aware groups."""
    zone: Name = ""
    admin_port: int = 0
    started_us: int = 0
    """Start of the process by its own clock: tells two processes with one identity apart (M4)."""


class ClusterState(enum.StrEnum):
    """What the cluster may do (GCM-01). Code asks the attributes, never the name (GCM-02)."""

    ACTIVE = "ACTIVE"
    NO_MIGRATION = "NO_MIGRATION"
    FROZEN = "FROZEN"
    PASSIVE = "PASSIVE"
    IN_TRANSITION = "IN_TRANSITION"
    """A change of state is under way; never in a member list."""
    STABLE_CLUSTER = "STABLE_CLUSTER"
    """Who leaves may return, nobody else comes, and rows go back to what they were (APR-31)."""

    @property
    def join_allowed(self) -> bool:
        """Whether new members are admitted (GCM-03 to GCM-06)."""
        return self in (ClusterState.ACTIVE, ClusterState.NO_MIGRATION)

    @property
    def migration_allowed(self) -> bool:
        """Whether replicas are moved or missing ones copied."""
        return self in (ClusterState.ACTIVE, ClusterState.STABLE_CLUSTER)

    @property
    def promotion_allowed(self) -> bool:
        """Whether backups are promoted and lost partitions get an owner (GCM-08, GCM-10)."""
        return self.join_allowed or self.is_stable

    @property
    def is_stable(self) -> bool:
        """Whether it has a stable table, and who may not come is refused for good (APR-31 to 33).

        The cluster is as it is meant to be; elsewhere the next state may let a newcomer in.
        """
        return self is ClusterState.STABLE_CLUSTER


class StableMark(msgspec.Struct, frozen=True, array_like=True):
    """Which table is the stable one (APR-34): the rows themselves do not travel with lists."""

    entered: int
    """Version of the member list with which the state was entered."""
    mark: int
    """What all members' tables had in common then: the stamp (PIM-31), or the version (PIM-32)."""


class Recovery(msgspec.Struct, frozen=True):
    """That a cluster comes back from its files: nobody serves, and at first nobody has rows."""

    list_version: int
    """Of the newest member list that any member's files have told of; what follows is of it."""
    expected: tuple[MemberInfo, ...]
    """Its data members, with the addresses that they had."""
    state: ClusterState
    """Its state, which will be the cluster's again."""
    order: str = ""
    """Empty until everybody has loaded; then the name of the order that gave the rows. They are in
    force with the list that says so, and no other order is given any more."""
    is_given_up: bool = False
    """An operator has given the files up: everybody sets them aside (force start)."""


class RecoveryPhase(enum.StrEnum):
    """How far a recovery is."""

    VALIDATING = "validating"
    """Not everybody that is waited for has told what its files are of."""
    LOADING = "loading"
    STARTING = "starting"
    """All have loaded, and learn that the rows are in force."""
    FAILED = "failed"


class RecoveryWord(msgspec.Struct, frozen=True, array_like=True):
    """How a recovery stands, from its master to one member."""

    phase: RecoveryPhase
    missing: tuple[MemberId, ...]
    """Who is expected and has not told of its files."""
    bytes_total: int = 0
    """What all other members load together."""
    bytes_loaded: int = 0
    reason: str = ""
    """What it waits for, in words."""


class BackupSchedule(msgspec.Struct, frozen=True):
    """When backups are made without being asked for (APR-28)."""

    cron: Name
    """Five fields, in UTC; see ``core.backups.moments``."""
    keep: int
    """So many of the scheduled ones stay."""


class MemberList(msgspec.Struct, frozen=True, dict=True):
    """The versioned member list, oldest first. The first member is the master (ADL, M2).

    What the whole cluster must agree on travels in it, so that a new master and a joiner know:
    the cluster state, the version of the cluster, and who is missing.
    """

    version: int
    members: tuple[MemberInfo, ...]
    cluster_id: str = ""
    """A uuid made anew at each founding and kept from then on, on both sides of a split too."""
    state: ClusterState = ClusterState.ACTIVE
    cluster_version: Name = CLUSTER_VERSION
    """``4.0``: one table version and serial migrations; from ``4.1`` on the mode of paper 07."""
    missing: tuple[MemberInfo, ...] = ()
    """Members that left while joining was forbidden; they alone may come (GCM-09, APR-32).

    Where promotions are forbidden as well their seats are kept (``seats_kept``). One that has come
    back to them stands among the members, too: what it holds there was with the process that died,
    so it is a replica without data until it has been given them.
    """
    recovery: Recovery | None = None
    """While the cluster comes back from its files (docs/design/0017)."""
    backup_schedule: BackupSchedule | None = None
    given_up: str = ""
    """Id of the cluster whose files an operator gave up for this one (force start)."""
    recovered: int = 0
    """Version of the list that ended the last recovery: who has an older list in its files took no
    part in it, and they are stale."""
    stable: StableMark | None = None
    """The table that rows go back to; kept in FROZEN and PASSIVE, for the way back (APR-34)."""

    def with_members(self, members: tuple[MemberInfo, ...]) -> MemberList:
        """The next list, with other members and everything else as it is.

        Who is no longer among the members while joining is forbidden is missing (GCM-09, APR-32).
        """
        missing = self.missing
        if not self.state.join_allowed and self.recovery is None:
            staying = {info.id for info in members}
            left = {info.id: info for info in self.members if info.id not in staying}
            away = left if self.keeps_seats else left.keys() | staying
            earlier = tuple(info for info in missing if info.id not in away)
            missing = (*earlier, *left.values())
        return msgspec.structs.replace(
            self, version=self.version + 1, members=members, missing=missing
        )

    @property
    def keeps_seats(self) -> bool:
        """Whether who is missing keeps its seats: rows stand still (GCM-08, GCM-09)."""
        return not self.state.join_allowed and not self.state.promotion_allowed

    @property
    def seats_kept(self) -> tuple[MemberInfo, ...]:
        """Who keeps a seat whose data went with its process; some of them may be back."""
        return self.missing if self.keeps_seats else ()

    def is_missing(self, member: MemberId) -> bool:
        """Whether a member keeps a seat whose data went with its process; it may be back."""
        return any(info.id == member for info in self.seats_kept)

    def may_return(self, member: MemberId) -> bool:
        """Whether a member left while joining was forbidden, so that it need not be allowed."""
        return any(info.id == member for info in self.missing)

    @property
    def master(self) -> MemberId | None:
        """The oldest member; None in an empty list."""
        return self.members[0].id if self.members else None

    def ids(self) -> tuple[MemberId, ...]:
        """Ids in list order."""
        return self._ids

    def get(self, member: MemberId) -> MemberInfo | None:
        """The entry of a member, None when it is not in the list."""
        return self._by_id.get(member)

    # Asked for with every message that arrives, so worked out once for each list.

    @cached_property
    def _ids(self) -> tuple[MemberId, ...]:
        return tuple(member.id for member in self.members)

    @cached_property
    def _by_id(self) -> dict[MemberId, MemberInfo]:
        return {member.id: member for member in reversed(self.members)}


def members_left(old: MemberList, new: MemberList) -> list[MemberId]:
    """Members of the old list that are not in the new one, in the old order.

    A member that was restarted under its former id is another one (M4), without its data: it is
    among those that left, and among those that came, even when no list without it was ever seen
    here.
    """
    present = {info.id: info.started_us for info in new.members}
    return [info.id for info in old.members if present.get(info.id) != info.started_us]


def members_came(old: MemberList, new: MemberList) -> list[MemberId]:
    """Members of the new list that were not in the old one, in the new order."""
    return members_left(new, old)


NO_NUMBER = -1
"""Of a member that has no number."""
NUMBERS_END = 1 << 16
"""Numbers of members are below: they are part of flake ids, which have 16 bits for them."""

Ballot = tuple[int, MemberId, int]
"""Round, and the process that has this ballot to itself: its identity and start."""
NO_BALLOT: Ballot = (0, MemberId(""), 0)


class Voter(msgspec.Struct, frozen=True, array_like=True):
    """A process that takes part in a decision on member numbers."""

    id: MemberId
    started_us: int
    address: Address


class Numbering(msgspec.Struct, frozen=True, array_like=True):
    """What is decided on the numbers of members, up to one decision (docs/design/0002)."""

    decision: int
    """How many decisions there were."""
    free: int
    """The first number that is nobody's."""
    voters: tuple[Voter, ...]
    """Who makes the next decision, the members of a list, oldest first."""


class NumberProposal(msgspec.Struct, frozen=True, array_like=True):
    """A decision that a master wishes for; it follows the ``Numbering`` that it is told with."""

    ballot: Ballot
    owner: Voter
    """Whose the numbers from the former to the new ``free`` are."""
    numbering: Numbering
    """After the decision."""


class NumberGrant(msgspec.Struct, frozen=True, array_like=True):
    """A number for a member, and the numbers up to ``end`` for those that it takes in."""

    to: Voter
    number: int
    end: int


class NumbersAsked(msgspec.Struct, frozen=True, array_like=True):
    """The master on the numbers of members: what is decided, what it asks, whom it gives what."""

    numbering: Numbering
    ballot: Ballot
    """Nothing of a lower ballot may be accepted any more."""
    proposal: NumberProposal | None = None
    """What is to be accepted; None while the master asks what was accepted before."""
    grants: tuple[NumberGrant, ...] = ()


class NumbersTold(msgspec.Struct, frozen=True, array_like=True):
    """A member on the numbers: its own, and how it stands to the next decision."""

    number: int
    """``NO_NUMBER`` while it waits for one."""
    numbering: Numbering | None
    promised: Ballot
    accepted: NumberProposal | None = None
    """Of the decision that follows ``numbering``."""


class MigrationKind(enum.StrEnum):
    """The kinds of paper 01 section 3.1; the promotion of section 1.1."""

    MOVE = "MOVE"
    COPY = "COPY"
    SHIFT_UP = "SHIFT_UP"
    SHIFT_DOWN = "SHIFT_DOWN"
    SHIFT_UP_SHIFT_DOWN = "SHIFT_UP_SHIFT_DOWN"
    CLEAR = "CLEAR"
    STEP_DOWN = "STEP_DOWN"
    """A holder goes to a colder slot and no data move; see ``plan_row`` for the two occasions."""
    PROMOTION = "PROMOTION"


class Verdict(enum.StrEnum):
    """What became of a migration."""

    ACTIVE = "ACTIVE"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"


class Step(msgspec.Struct, frozen=True):
    """One planned change of one row, before it is stamped with versions.

    ``source`` is the holder that is displaced at ``destination_new`` (MOVE, SHIFT DOWN, ...);
    it is None for a COPY, a plain SHIFT UP and a promotion. CLEAR has no destination.
    """

    kind: MigrationKind
    source: MemberId | None
    destination: MemberId | None
    source_current: ReplicaIndex = NO_INDEX
    source_new: ReplicaIndex = NO_INDEX
    destination_current: ReplicaIndex = NO_INDEX
    destination_new: ReplicaIndex = NO_INDEX

    @property
    def increment(self) -> int:
        """Slots changed = what the partition version rises by (PIM-13)."""
        if self.destination is None:
            return 1
        return 1 + (self.source_new > NO_INDEX) + (self.destination_current > NO_INDEX)

    @property
    def is_refill(self) -> bool:
        """Whether it fills a hole at nobody's cost: a COPY or a plain SHIFT UP (ADL-67)."""
        return self.source is None and self.kind in (MigrationKind.COPY, MigrationKind.SHIFT_UP)

    def apply(self, row: Row) -> Row:
        """The row after this step: blank both old slots, then set both new ones."""
        slots = list(row)
        if self.source_current > NO_INDEX:
            slots[self.source_current] = None
        if self.destination_current > NO_INDEX:
            slots[self.destination_current] = None
        if self.destination is not None:
            slots[self.destination_new] = self.destination
        if self.source is not None and self.source_new > NO_INDEX:
            slots[self.source_new] = self.source
        return tuple(slots)


class Standing(enum.StrEnum):
    """How a backup stands to the primary that came with a certain row."""

    IN_STEP = "IN_STEP"
    BEHIND = "BEHIND"
    """Not known to have everything yet; to be asked again."""
    OVERTAKEN = "OVERTAKEN"
    """There has been another primary since; what that one lacked is gone."""


class MigrationInfo(msgspec.Struct, frozen=True):
    """A migration: a step of one partition with its versions and its verdict (PIM-06)."""

    id: str
    partition_id: PartitionId
    step: Step
    master: MemberId
    initial_version: int
    verdict: Verdict = Verdict.ACTIVE

    @property
    def final_version(self) -> int:
        """Version after the verdict: + increment, and one more when it failed (PIM-13, PIM-14)."""
        failed = 1 if self.verdict is Verdict.FAILED else 0
        return self.initial_version + self.step.increment + failed

    def with_verdict(self, verdict: Verdict) -> MigrationInfo:
        """The same migration, decided."""
        return msgspec.structs.replace(self, verdict=verdict)


class RowState(msgspec.Struct, frozen=True):
    """One partition's row and version as it travels."""

    partition_id: PartitionId
    version: int
    row: Row


class PackedRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows without versions, one after the other (``partition.table.pack_rows``).

    ``slots`` holds REPLICA_SLOTS big-endian unsigned 16-bit numbers for each of them: positions in
    ``members``, 0xFFFF for a hole.
    """

    members: tuple[MemberId, ...]
    slots: bytes


class LostStructure(msgspec.Struct, frozen=True, array_like=True):
    """What a partition has lost of one structure."""

    kind: str
    name: str
    entries: int | None = None
    """About how many, as its primary told last; None when nobody knows."""
    as_of_ms: int | None = None
    """When that was, by the master's wall clock."""


def structures_in_words(structures: Sequence[LostStructure]) -> str:
    """For log lines and sentences: ``map flights (12 entries), map b (? entries)``."""
    return ", ".join(
        f"{one.kind} {one.name} ({'?' if one.entries is None else f'{one.entries:,}'} entries)"
        for one in structures
    )


class Loss(msgspec.Struct, frozen=True, array_like=True):
    """That a partition has lost data, until an operator has seen it (docs/design/0014).

    A partition has one mark at most. It travels with its row, and the one with the greater
    (``version``, ``is_seen``) counts, in whatever order they come.
    """

    partition_id: PartitionId
    version: int
    """The version of the row that showed the loss, or a later number when that one is taken."""
    lost_backup_count: int
    """As in ``PartitionLost``: structures with so many backups or fewer are concerned."""
    at_ms: int
    """Wall clock of whoever decided it, the last time."""
    structures: tuple[LostStructure, ...] = ()
    """By kind and name; empty when nobody knew of any."""
    unnamed: int = 0
    """How many more structures are concerned than are named."""
    is_seen: bool = False
    """An operator has seen it: nothing is told any more, and nothing older comes back."""

    def beats(self, other: Loss | None) -> bool:
        """Whether this one counts and not the other."""
        return other is None or (self.version, self.is_seen) > (other.version, other.is_seen)
