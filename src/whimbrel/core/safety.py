"""When the cluster is safe: the one definition, by which status, probes and tests all judge.

*Safe* is a promise: any *b* members may die at once and nothing acknowledged is lost, where *b* is
the number of synchronous backups of a map, as far as data members and their groups allow it
(docs/guarantees.md). It is judged by what the master knows (``MasterWord``) and what every member
answers for itself (``MemberWord``); how the words travel is not known here. A seat that waits for
a missing member is no replica, whatever the cluster state. Where the groups, or the members, are
fewer than the replicas asked for, the cluster may be safe and is *degraded*: ``survives`` says how
many failures there may be all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from whimbrel.core.context import Context
from whimbrel.core.ids import REPLICA_SLOTS, MemberId, Row
from whimbrel.core.membership.service import Membership
from whimbrel.core.migration.service import Migrations
from whimbrel.core.model import ClusterState, MemberInfo
from whimbrel.core.partition.groups import member_groups
from whimbrel.core.partition.quotas import replica_quotas
from whimbrel.core.registry import Registry, backups_of
from whimbrel.core.replication.dataplane import DataPlane

K_SAFETY_KEY = "persistence.k_safety"


class StableWord(msgspec.Struct, frozen=True):
    """How a member's table stands to the stable one (APR-73)."""

    in_use: Literal["stable", "interim"]
    slots_differing: int


class MasterWord(msgspec.Struct, frozen=True):
    """What the master says of the whole cluster; part of its ``master`` document."""

    settled: bool
    """Whether nothing is active, queued or due, and everybody has the table."""
    reason: str
    """Why it is not."""
    members: tuple[MemberId, ...]
    list_version: int
    stamp: str
    """Of its table, as text; only when it is settled."""
    holes: int
    """Replicas asked for that no present member holds."""
    survives: int = 0
    """Failures that every structure survives by its table; what is in step is not known to it."""
    state: str = "ACTIVE"
    missing: tuple[str, ...] = ()
    """Addresses of members that are away and may return."""
    stable: StableWord | None = None
    """How the table stands to the stable one, if there is one."""
    k_safety: int = 0
    """Copies that a partition may lack now before new ones are made."""


class MemberWord(msgspec.Struct, frozen=True):
    """What a member says of itself; part of its ``safety`` document."""

    list_version: int
    announcing: int = 0
    """Changes of the registry that somebody has not answered."""
    stamp: str = ""
    """Of its table; asked for only when the master is settled."""
    unsettled: int = 0
    """What keeps its replicas from being known to be in step; asked for as the stamp is."""


Answer = tuple[MemberInfo, MemberWord | str]
"""A member of the asked one's list, and its word or why it did not give one."""


def master_word(document: Mapping[str, Any]) -> MasterWord:
    """The word in a document of a master."""
    return msgspec.convert(document, MasterWord)


def member_answer(info: MemberInfo, document: Mapping[str, Any] | Exception) -> Answer:
    """The word in a document of a member, or why there is none."""
    if isinstance(document, Exception):
        return info, str(document)
    return info, msgspec.convert(document, MemberWord)


def unsafe_because(master: MasterWord, answers: Sequence[Answer]) -> str:
    """Why the cluster is not safe, in one sentence; empty when it is.

    Args:
        master: The master's word.
        answers: Those of all members on the asked member's list, in its order.
    """
    doubt = doubted_because(master, answers)
    if doubt or not master.holes:
        return doubt
    away, is_stable = ", ".join(master.missing), master.state == ClusterState.STABLE_CLUSTER
    why = ""
    if away:
        why = f": {away} may return" if is_stable else f": the seats of {away} are kept"
    if master.state != ClusterState.ACTIVE:
        why += f" (the cluster state is {master.state})"
    if master.k_safety:
        why += f"; {K_SAFETY_KEY} = {master.k_safety}, so that partitions may lack so many"
    return f"{master.holes} replicas are missing{why}"


def survived_failures(master: MasterWord, answers: Sequence[Answer]) -> int:
    """How many members (or groups of members) may die now, all at once, without a loss.

    The least over all structures; 0 while anything is under way or not known.
    """
    return 0 if doubted_because(master, answers) else master.survives


def doubted_because(master: MasterWord, answers: Sequence[Answer]) -> str:
    """What is under way or not known, so that replicas may not be what the table says.

    Part of ``unsafe_because``, and all of it where the rows themselves are given.
    """
    if not master.settled:
        return master.reason
    if tuple(info.id for info, _ in answers) != master.members:
        return "the member list is changing"
    for info, word in answers:
        if isinstance(word, str):
            return word
        if word.list_version != master.list_version:
            return f"member {info.address} has another member list than the master"
        if word.stamp != master.stamp:
            return f"member {info.address} has another table than the master"
        if word.announcing:
            return f"member {info.address} is announcing a structure"
        if word.unsettled:
            return f"member {info.address}: {word.unsettled} replicas may not be in step"
    return ""


class Copies(msgspec.Struct, frozen=True):
    """What the rows of a table hold, as far as its holders are present."""

    missing: int
    """Seats within the depth asked for that no present member holds."""
    fewest: tuple[int, ...]
    """For each index: places with a replica up to that index, in the worst row."""


def copies_of(rows: Iterable[Row], depth: int, place_of: Mapping[MemberId, int]) -> Copies:
    """Count replicas. Linear in the rows; a large table has few different ones.

    Args:
        rows: Rows of a table.
        depth: Replicas that each row should have.
        place_of: The present data members, and the place (group) of each.
    """
    missing = 0
    fewest = [REPLICA_SLOTS] * REPLICA_SLOTS
    for row, count in Counter(rows).items():
        places: dict[int, None] = {}
        for index, member in enumerate(row):
            place = None if member is None else place_of.get(member)
            if place is not None:
                places[place] = None
            elif index < depth:
                missing += count
            fewest[index] = min(fewest[index], len(places))
    return Copies(missing, tuple(fewest))


class Safety:
    """What one member can say about safety from its own list, table and replicas."""

    def __init__(
        self,
        ctx: Context,
        membership: Membership,
        migrations: Migrations,
        registry: Registry,
        plane: DataPlane,
    ) -> None:
        self._ctx = ctx
        self._membership = membership
        self._migrations = migrations
        self._registry = registry
        self._plane = plane
        self._counted: tuple[object, Copies] | None = None
        self._told = ""
        """The degradation that was told last, empty for none."""

    # -- words ----------------------------------------------------------------------------

    def master_word(self) -> MasterWord:
        """As master, what only we know."""
        migrations, members = self._migrations, self._ctx.members
        settled, reason = migrations.is_settled()
        return MasterWord(
            settled,
            reason,
            members.ids(),
            members.version,
            str(migrations.table.stamp) if settled else "",
            self.missing_replicas(),
            self.survives(),
            members.state.value,
            tuple(str(info.address) for info in members.missing if members.get(info.id) is None),
            self.stable_word(),
            self._ctx.settings.persistence.k_safety if members.state.is_stable else 0,
        )

    def member_word(self, is_settled: bool) -> MemberWord:
        """What everybody says of itself; less while the master is not settled (see ``stamp``)."""
        word = MemberWord(self._ctx.members.version, self._registry.announcing_count())
        if not is_settled:
            return word
        stamp, unsettled = str(self._migrations.table.stamp), self._plane.unsettled()
        return msgspec.structs.replace(word, stamp=stamp, unsettled=unsettled)

    def not_serving_because(self) -> str:
        """Why clients are not served here, or not for long; empty when they are."""
        if self._ctx.members.recovery is not None:
            return "the cluster is coming back from its files"
        if not self._membership.is_joined:
            return "the member is on no list"
        return "the member is leaving" if self._membership.leave.is_wanted else ""

    def unready_because(self) -> str:
        """Why not every replica that we should hold is there and in step; empty when all are.

        Asks nobody: a probe must answer although the master is silent.
        """
        table, mine = self._migrations.table, self._ctx.id
        away = self.not_serving_because()
        if away or self._ctx.me.lite:
            return away
        if not table.initialised:
            return "the partitions are not assigned yet"
        held, share = table.replica_count(mine), self._share()
        if held < share:
            return f"{share - held} of {share} replicas have not arrived"
        active = self._migrations.active_migrations()
        if any(migration.step.destination == mine for migration in active):
            return "a replica is on its way"
        if self.missing_replicas():
            own = [row for row in table.rows if mine in row]
            missing = copies_of(own, self.depth(), self._place_of()).missing
            if missing:
                return f"{missing} replicas of the partitions held here are missing"
        unsettled = self._plane.unsettled()
        return f"{unsettled} replicas are not known to be in step" if unsettled else ""

    def arriving_because(self) -> str:
        """What a member that has just joined is waiting for; empty when it may call itself ready.

        Beyond its own replicas every row must be full, so that whoever connects on the word of
        any member finds all backups. Nothing is waited for where nothing will come: at a lite
        member, and in a state without migrations. Where an interval slows migrations down on
        purpose, waiting would always end at its bound.
        """
        ctx = self._ctx
        if ctx.me.lite or not ctx.members.state.migration_allowed:
            return ""
        if ctx.settings.migration_interval_us:
            return ""
        missing = self.missing_replicas()
        return self.unready_because() or f"{missing} replicas are missing" * bool(missing)

    # -- figures --------------------------------------------------------------------------

    def incomplete_because(self) -> str:
        """Why the rows are not as they should stay, by our list and table; empty when they are."""
        missing = self.missing_replicas()
        return f"{missing} replicas are missing" if missing else ""

    def stable_word(self) -> StableWord | None:
        """How our table stands to the stable one; None when there is none."""
        differing = self._migrations.stable.slots_differing(self.depth())
        if differing is None:
            return None
        return StableWord("interim" if differing else "stable", differing)

    def depth(self) -> int:
        """Replicas per row that are wanted and possible; a kept seat counts as possible."""
        groups = self._groups([*self._ctx.staying(), *self._away()])
        return min(self._migrations.loop.replica_depth, len(groups), REPLICA_SLOTS)

    def missing_replicas(self) -> int:
        """Replicas asked for that no present member holds."""
        return self._copies().missing

    def survives(self) -> int:
        """Members, or groups, that may die at once by our list and table, for every structure."""
        return min(map(self.survives_of, self._backups_asked()))

    def survives_of(self, backups: int) -> int:
        """The same for structures with so many synchronous backups."""
        if not self._migrations.table.initialised:
            return 0
        return max(0, self._copies().fewest[backups] - 1)

    def degraded_because(self) -> str:
        """Why acknowledged writes have fewer copies than asked for; empty when they need not."""
        staying, asked = self._ctx.staying(), max(self._backups_asked())
        places = len(self._groups(staying))
        if not places or places > asked:
            return ""
        kind = self._ctx.settings.member_group
        what = "data members" if len(staying) <= asked else f"groups by {kind}"
        return (
            f"{what} for {asked + 1} replicas: {places}; an acknowledged write has "
            f"{places - 1} of {asked} synchronous backups until there are more"
        )

    def look_at_places(self) -> None:
        """The members, or what maps ask for, have changed: as master tell what began or ended."""
        ctx = self._ctx
        reason = self.degraded_because() if ctx.is_master else ""
        if reason == self._told:
            return
        before, self._told = self._told, reason
        if reason:
            by_groups = not reason.startswith("data members")
            ctx.note("safety.degraded", "warning" if by_groups else "info", reason=reason)
        elif ctx.is_master:
            ctx.note("safety.degraded_over", reason=before)

    # -- inside ---------------------------------------------------------------------------

    def _backups_asked(self) -> list[int]:
        """Synchronous backups of the structures there are, else of the next one."""
        found = [backups_of(entry)[0] for entry in self._registry.structures()]
        return list(dict.fromkeys(found)) or [self._ctx.settings.default_backup_count]

    def _away(self) -> list[MemberInfo]:
        """Members that are not here and whose seats are kept."""
        members, table = self._ctx.members, self._migrations.table
        return [
            info
            for info in members.seats_kept
            if members.get(info.id) is None and table.replica_count(info.id)
        ]

    def _groups(self, members: Sequence[MemberInfo]) -> list[tuple[MemberId, ...]]:
        settings = self._ctx.settings
        return member_groups(members, settings.member_group, settings.member_group_patterns)

    def _place_of(self) -> dict[MemberId, int]:
        groups = self._groups(self._ctx.data_members())
        return {member: number for number, group in enumerate(groups) for member in group}

    def _copies(self) -> Copies:
        """The count of our whole table, once for each of its states: people ask often."""
        table, members = self._migrations.table, self._ctx.members
        depth = self.depth()
        key = (table.change_count, members.version, members.ids(), depth)
        if self._counted is None or self._counted[0] != key:
            self._counted = (key, copies_of(table.rows, depth, self._place_of()))
        return self._counted[1]

    def _share(self) -> int:
        """Replicas that an even spread gives us at least."""
        groups = self._groups([*self._ctx.staying(), *self._away()])
        table = self._migrations.table
        members = [member for group in groups for member in group]
        group_of = [number for number, group in enumerate(groups) for _ in group]
        loads = [table.replica_count(member) for member in members]
        quotas = replica_quotas(table.partition_count, self.depth(), loads, group_of)
        return dict(zip(members, quotas, strict=True)).get(self._ctx.id, 0)
