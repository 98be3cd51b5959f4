"""What the cluster state forbids does not happen (O1), and what it promises does (O2)."""

from __future__ import annotations

from typing import ClassVar

from whimbrel.core.effects import Note
from whimbrel.core.ids import PartitionId, Row
from whimbrel.core.member import Member
from whimbrel.core.model import ClusterState, MemberList, StableMark
from whimbrel.sim.history import Operation, Outcome, Reply
from whimbrel.sim.host import Host
from whimbrel.sim.rule import Rule, Sightings
from whimbrel.sim.safety.words import acting_master, unsafe_because
from whimbrel.sim.world import World

DIED_FROZEN = "a member dies while backups may not be promoted"
POSTPONED = "a plan is put off because of the cluster state"
STATE_REFUSED = "a change of the cluster state is refused"
MASTER_CHANGING = "the master dies while the cluster state changes"
UPGRADED = "a cluster goes from 4.0 to 4.1 while it is in use"
STATES = tuple(
    f"the cluster is {state.value}"
    for state in ClusterState
    if state not in (ClusterState.ACTIVE, ClusterState.IN_TRANSITION)
)
RETURNED = "rows go back to the stable table"


class StateObeyed(Rule):
    """O1 (GCM-02 to GCM-10; TSH): looked at where the master decides, and on what clients were told
    in PASSIVE.
    """

    rule = "O1"
    sentence = "nobody joins, moves, is promoted or writes where the cluster state forbids it"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._passive_since_us: int | None = None
        """Since when every running member has been PASSIVE; None when one is not."""

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T: the rows of a master that is no joiner stand still in FROZEN and PASSIVE.

        Their versions do not where the cluster is upgraded in such a state (PIM-43).
        """
        member = host.member
        if before == after or not member.ctx.is_master or member.migrations.loop.recovery.running:
            return
        state = member.ctx.members.state
        if not state.promotion_allowed:
            self.fail(f"p{pid} changed in {state}", host.name)

    def planned(self, host: Host) -> None:
        """T."""
        state = host.member.ctx.members.state
        if not state.migration_allowed:
            self.fail(f"migrations are planned in {state}", host.name)

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T: whoever comes while joining is forbidden was missing; but to a recovery all come."""
        if new.state is not ClusterState.PASSIVE:
            self._passive_since_us = None
        is_open = old.state.join_allowed or old.recovery is not None
        if new.master != host.info.id or not old.members or is_open:
            return
        for info in new.members:
            if old.get(info.id) is None and not old.may_return(info.id):
                name = self.world.name_of(info.id)
                self.fail(f"{name} was admitted in {old.state}", host.name)

    def sample(self) -> None:
        """A quarter of a second is a fine enough beginning of the time in PASSIVE."""
        world = self.world
        is_passive = all(
            host.member.ctx.members.state is ClusterState.PASSIVE for host in world.up_hosts()
        )
        if not is_passive:
            self._passive_since_us = None
        elif self._passive_since_us is None:
            self._passive_since_us = world.now_us

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H: a write that began and ended while everybody was PASSIVE was refused."""
        since_us = self._passive_since_us
        if (
            since_us is not None
            and operation.invoked_us > since_us
            and not operation.is_read
            and operation.outcome is Outcome.OK
        ):
            self.fail(f"{operation!r} was carried out in PASSIVE")


class StableRestored(Rule):
    """O2 (APR-34, APR-36, APR-38; TS): the rule has the rows of the master that entered the state,
    and looks at the present master's whenever the cluster is safe and nobody is away.
    """

    rule = "O2"
    sentence = "when all are back and at rest, each row is what it was when the state was entered"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._rows: dict[StableMark, list[Row]] = {}

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T: the master installs the list first, with the table of the moment."""
        stable = new.stable
        if stable is not None and stable.entered == new.version and new.master == host.info.id:
            self._rows[stable] = list(host.member.migrations.table.rows)

    def note(self, host: Host, note: Note) -> None:
        """T: nobody is left that has the table; that is told as an error."""
        stable = host.member.ctx.members.stable
        if note.kind == "stable_table.lost" and stable is not None:
            self._rows.pop(stable, None)

    def sample(self) -> None:
        """S."""
        master = acting_master(self.world)
        if master is None:
            return
        members = master.ctx.members
        expected = None if members.stable is None else self._rows.get(members.stable)
        is_judged = members.state.is_stable and expected is not None
        is_judged = is_judged and not (members.missing or master.ctx.leaving)
        if is_judged and not unsafe_because(self.world):
            self._compare(master, expected or [])

    def _compare(self, master: Member, expected: list[Row]) -> None:
        """A structure that asks for more replicas than there were may have made rows deeper."""
        for pid, aim in enumerate(expected):
            row = master.migrations.table.row(PartitionId(pid))
            if any(member not in (None, row[index]) for index, member in enumerate(aim)):
                name = self.world.name_of(master.ctx.id)
                self.fail(f"p{pid} is {row} and was {aim}", name)
                return


class StateSightings(Sightings):
    """Every state, and deaths in it."""

    situations = (
        DIED_FROZEN,
        POSTPONED,
        STATE_REFUSED,
        MASTER_CHANGING,
        UPGRADED,
        RETURNED,
        *STATES,
    )
    notes: ClassVar = {"migration.postponed": POSTPONED, "state_change_refused": STATE_REFUSED}

    def ending(self, host: Host, reason: str) -> None:
        """E."""
        if reason != "crash":
            return
        if not host.member.ctx.members.state.promotion_allowed:
            self.saw(DIED_FROZEN)
        if host.member.membership.states._transaction is not None:
            self.saw(MASTER_CHANGING)

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        if new.state is not old.state and f"the cluster is {new.state.value}" in STATES:
            self.saw(f"the cluster is {new.state.value}")
        if len(new.missing) < len(old.missing) and new.state.is_stable and old.state.is_stable:
            self.saw(RETURNED)
        if old.members and old.cluster_version != new.cluster_version:
            self.saw(UPGRADED)


RULES: tuple[type[Rule], ...] = (StateObeyed, StableRestored, StateSightings)
