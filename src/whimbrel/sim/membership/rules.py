"""Rules of the member list: M1 to M5, M7, L5, P12."""

from __future__ import annotations

from typing import ClassVar

from whimbrel.core.effects import Note
from whimbrel.core.ids import MemberId, PartitionId, Row
from whimbrel.core.membership.numbers import BLOCK_NUMBERS, STOCK_BLOCKS
from whimbrel.core.messages import StateAnswered
from whimbrel.core.model import MemberInfo, MemberList, Numbering
from whimbrel.core.persistence.format import DamageError
from whimbrel.core.persistence.metadata import ClusterFile
from whimbrel.sim.host import Host
from whimbrel.sim.persisted import cluster_file
from whimbrel.sim.rule import Rule, Sightings
from whimbrel.sim.world import World

ONE_WAY = "a member is heard in one direction only for longer than it may stay on a list"
TWO_MASTERS = "two masters at once"
SAME_ADDRESS = "a member starts on an address whose former member is still listed"
RETURNED = "a member finds its seat again while nobody new may join"
PROMOTED = "a lite member becomes a data member"
DEMOTED = "a data member becomes lite"
ROLE_REFUSED = "a change of role is refused"
FROM_RESERVE = "a member gets a number of its master's reserve"


class ViewOrder(Rule):
    """M1 (GCM-21; T): looked at whenever a list is installed."""

    rule = "M1"
    sentence = "views are installed in rising order, contain the installer, and agree"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._content: dict[tuple[int, MemberId, int], tuple[MemberId, ...]] = {}
        """By version and process of the master."""

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        if new.version <= old.version:
            self.fail(f"version {new.version} after {old.version}", host.name)
        if new.get(host.info.id) is None:
            self.fail(f"list {new.version} lacks its installer", host.name)
        master = new.members[0]
        process = (new.version, master.id, master.started_us)
        content = self._content.setdefault(process, new.ids())
        if content != new.ids():
            self.fail(f"two lists of version {new.version} from one master", host.name)


class OneMaster(Rule):
    """M2 (ADL-02; TQ): two masters never stand in each other's lists; in the end there is one."""

    rule = "M2"
    sentence = "one master per view; two masters only in disjoint views"

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        if new.master != host.info.id:
            return
        for other in self.world.up_hosts():
            if other is host:
                continue
            theirs = other.member.ctx.members
            if (
                theirs.master == other.info.id
                and theirs.get(host.info.id) is not None
                and new.get(other.info.id) is not None
            ):
                self.fail(f"{host.name} and {other.name} are masters of each other", host.name)

    def quiet(self) -> None:
        """Q."""
        masters = [host.name for host in self.world.up_hosts() if host.member.ctx.is_master]
        if len(masters) != 1:
            self.fail(f"masters at rest: {', '.join(masters) or 'none'}")
        lists = {host.member.ctx.members.version for host in self.world.up_hosts()}
        if len(lists) != 1:
            self.fail(f"{len(lists)} different list versions at rest")


class PatientMaster(Rule):
    """M3 (ADL-12 to ADL-14; ET): a new master hears everybody first, and tells everybody before it
    goes on (ADL-14).
    """

    rule = "M3"
    messages = (StateAnswered,)
    sentence = (
        "a new master changes nothing before it has heard or removed every other member, and has"
        " sent them the whole table"
    )

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._waits: dict[str, dict[MemberId, None]] = {}

    def started(self, host: Host) -> None:
        """A fresh process waits for nobody."""
        self._waits.pop(host.name, None)

    def became_master(self, host: Host) -> None:
        """T."""
        ctx = host.member.ctx
        self._waits[host.name] = dict.fromkeys(ctx.others())

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        waits = self._waits.get(host.name)
        if waits:
            for member in [one for one in waits if new.get(one) is None]:
                del waits[member]

    def received(self, host: Host, sender: MemberId, message: StateAnswered) -> None:
        """E."""
        waits = self._waits.get(host.name)
        if waits:
            waits.pop(sender, None)

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        waits = self._waits.get(host.name)
        if waits and host.member.ctx.is_master:
            names = ", ".join(self.world.name_of(one) for one in waits)
            self.fail(f"p{pid} changed before {names} had answered", host.name)
        elif host.member.migrations.loop.publisher.is_opening:
            self.fail(f"p{pid} changed before the whole table had gone out", host.name)


class FreshIdentity(Rule):
    """M4 (GCM-09, PIM-36; T): whoever was removed never comes back under the same identity."""

    rule = "M4"
    sentence = "a member never re-enters under an old identity"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._gone: dict[tuple[MemberId, int], int] = {}
        self._was_in: dict[tuple[MemberId, int], None] = {}
        """Identities that have installed a list; one that never knew of its may try again."""

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        if self.world.plan.profile.split:
            return
        self._was_in[self._process(host.info)] = None
        present = {self._process(info): info for info in new.members}
        for process in map(self._process, old.members):
            if process not in present and process in self._was_in:
                self._gone.setdefault(process, new.version)
        for process, info in present.items():
            if self._gone.get(process, new.version) < new.version:
                self.fail(
                    f"{self.world.name_of(info.id)} was removed by list "
                    f"{self._gone[process]} and is in list {new.version}",
                    host.name,
                )

    def _process(self, info: MemberInfo) -> tuple[MemberId, int]:
        """What must not come back: an identity; where processes keep theirs, one's own life."""
        keeps = self.world.plan.profile.keeps_identity
        return info.id, info.started_us if keeps else 0


class NoFalseExpulsion(Rule):
    """M5 (promise table; E): nobody is expelled who was heard all the time."""

    rule = "M5"
    sentence = "a member that was never silent for the heartbeat timeout is not removed"

    def expelled(self, host: Host) -> None:
        """H."""
        if not self.world.plan.profile.over_budget:
            self.fail("it was told that the cluster goes on without it", host.name)


class OneWayEnds(Rule):
    """L5 (promise table; TS): who hears and is not heard, or the reverse, ends outside the others'
    view.
    """

    rule = "L5"
    sentence = "a member that is heard in one direction only ends outside the view"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._waiting: list[tuple[int, Host, int]] = []
        """Since when a process is heard in one direction only."""

    def one_way(self, host: Host, span_us: int) -> None:
        """T."""
        if span_us > self.world.plan.one_way_bound_us:
            self._waiting.append((self.world.now_us, host, host.incarnation))

    def sample(self) -> None:
        """Look at what has lasted for long enough; another fault since then excuses it."""
        world = self.world
        for case in list(self._waiting):
            since_us, host, incarnation = case
            if world.last_fault_us > since_us or host.incarnation != incarnation:
                self._waiting.remove(case)
            elif world.now_us >= since_us + world.plan.one_way_bound_us:
                self._waiting.remove(case)
                self._look(host)

    def _look(self, host: Host) -> None:
        world = self.world
        world.sometimes(ONE_WAY)
        for other in world.up_hosts():
            mutual = host.member.ctx.is_member(other.info.id)
            if other is not host and other.member.ctx.is_member(host.info.id) and mutual:
                self.fail(f"{host.name} is still in the list of {other.name}", host.name)
                return


class LeavesWithNothing(Rule):
    """P12 (PIM-57; E): whoever was allowed to leave is in no row of any master that is up to date.

    A master whose list is older than the leaver's was paused while others took over from it: it
    lets nobody go, and its table is not the cluster's. A leaving master is judged by its own table.
    """

    rule = "P12"
    sentence = "a graceful shutdown is answered only when the member is in no row"

    def ending(self, host: Host, reason: str) -> None:
        """E."""
        if reason != "left" or self.world.plan.profile.split:
            return
        known = host.member.ctx.members.version
        for other in self.world.up_hosts():
            ctx = other.member.ctx
            if ctx.is_master and ctx.members.version >= known:
                self._look(host, other)

    def _look(self, host: Host, master: Host) -> None:
        """Nobody is left to hand over to when all leave; no migration may run in some states."""
        ctx, migrations = master.member.ctx, master.member.migrations
        staying = [info.id for info in ctx.data_members() if info.id not in ctx.leaving]
        if migrations.loop.recovery.running or not staying or not self.world.is_everywhere_active():
            return
        for pid, row in enumerate(migrations.table.rows):
            if host.info.id in row:
                self.fail(f"{host.name} has left and is in the row of p{pid}", master.name)
                return


class NumbersOnce(Rule):
    """M7 (promise table; E): also in both parts of a split, and after they have met again.

    A cluster that comes back from its files goes on beyond all that those who are here know of,
    and beyond what one more decision may have given. Who is not here, because a policy goes on
    without it or because the disks of the others were full when it came, may know of further
    ones: what was given by those may be given again, and nothing else.
    """

    rule = "M7"
    sentence = "no two processes have one number in the life of a cluster"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._owners: dict[tuple[str, int], tuple[MemberId, int]] = {}
        """By cluster and number."""
        self._files: dict[Host, ClusterFile] = {}
        """What lay there when the process began."""
        self._newest: dict[str, MemberList] = {}
        """By cluster, of the lists that somebody had in force."""

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        newest = self._newest.get(new.cluster_id)
        if new.recovery is None and (newest is None or newest.version < new.version):
            self._newest[new.cluster_id] = new

    def started(self, host: Host) -> None:
        """Look what its files are of."""
        self._files.pop(host, None)
        if self.world.plan.settings.persistence.enabled:
            try:
                found = cluster_file(host.disk)
            except DamageError:
                return
            if found is not None:
                self._files[host] = found

    def note(self, host: Host, note: Note) -> None:
        """E."""
        if note.kind == "recovery.loaded":
            self._go_on_with(host)
        if note.kind != "member_numbered":
            return
        ctx = host.member.ctx
        number = host.member.membership.numbers.number
        owner = self._owners.setdefault((ctx.members.cluster_id, number), (ctx.id, ctx.started_us))
        if owner != (ctx.id, ctx.started_us):
            self.fail(f"{number} is that of {self.world.name_of(owner[0])}", host.name)

    def _go_on_with(self, master: Host) -> None:
        """What is beyond the knowledge of those who are here, if somebody is not, is free again."""
        members = master.member.ctx.members
        cluster, recovery = members.cluster_id, members.recovery
        told: dict[MemberId, Numbering] = {}
        for host, found in self._files.items():
            is_here = host.is_up and members.get(host.info.id) is not None
            if is_here and found.numbering is not None and found.members.cluster_id == cluster:
                told[host.info.id] = found.numbering
        newest = self._newest.pop(cluster, members)
        if recovery is None or all(one.lite or one.id in told for one in newest.members):
            return
        known = max(told.values(), key=lambda one: (one.decision, one.free), default=None)
        beyond = 0 if known is None else STOCK_BLOCKS + len(known.voters)
        free = 0 if known is None else known.free + BLOCK_NUMBERS * beyond
        self._owners = {
            key: owner for key, owner in self._owners.items() if key[0] != cluster or key[1] < free
        }


class MembershipSightings(Sightings):
    """Who came where, who thought to rule, who changed its role."""

    situations = (
        *(TWO_MASTERS, SAME_ADDRESS, ONE_WAY, RETURNED),
        *(PROMOTED, DEMOTED, ROLE_REFUSED),
        *(FROM_RESERVE,),
    )
    notes: ClassVar = {"member_promoted": PROMOTED, "member_demoted": DEMOTED}

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        if new.get(host.info.id) is not None and new.is_missing(host.info.id):
            self.saw(RETURNED)
        if new.master == host.info.id:
            for other in self.world.up_hosts():
                if other is not host and other.is_master:
                    self.saw(TWO_MASTERS)

    def started(self, host: Host) -> None:
        """A process begins: is the one before it on this address still believed to be there?"""
        for other in self.world.up_hosts():
            if other is host:
                continue
            members = other.member.ctx.members.members
            if any(info.address == host.address for info in members):
                self.saw(SAME_ADDRESS)
                return

    def note(self, host: Host, note: Note) -> None:
        """E."""
        super().note(host, note)
        if note.kind == "role_change_ended" and note.fields["problem"]:
            self.saw(ROLE_REFUSED)
        if note.kind == "member_numbered" and note.fields["reserve"] == 0:
            self.saw(FROM_RESERVE)


RULES: tuple[type[Rule], ...] = (
    ViewOrder,
    OneMaster,
    PatientMaster,
    FreshIdentity,
    NoFalseExpulsion,
    OneWayEnds,
    LeavesWithNothing,
    NumbersOnce,
    MembershipSightings,
)
