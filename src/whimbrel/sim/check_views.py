"""Rules of the member list: M1 to M5."""

from __future__ import annotations

from whimbrel.core.ids import MemberId, PartitionId, Row
from whimbrel.core.messages import StateAnswered
from whimbrel.core.model import MemberInfo, MemberList
from whimbrel.sim.host import Host
from whimbrel.sim.watch import Checker, member_of
from whimbrel.sim.world import World


class ViewOrder(Checker):
    """M1: looked at whenever a list is installed."""

    rule = "M1"
    sentence = "views are installed in rising order, contain the installer, and agree"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._content: dict[tuple[int, MemberId | None], tuple[MemberId, ...]] = {}

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        if new.version <= old.version:
            self.fail(f"version {new.version} after {old.version}", host.name)
        if new.get(host.info.id) is None:
            self.fail(f"list {new.version} lacks its installer", host.name)
        content = self._content.setdefault((new.version, new.master), new.ids())
        if content != new.ids():
            self.fail(f"two lists of version {new.version} from one master", host.name)


class OneMaster(Checker):
    """M2: two masters never stand in each other's lists, and in the end there is one."""

    rule = "M2"
    sentence = "one master per view; two masters only in disjoint views"

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        if new.master != host.info.id:
            return
        for other in self.world.up_hosts():
            if other is host:
                continue
            theirs = member_of(other).ctx.members
            if (
                theirs.master == other.info.id
                and theirs.get(host.info.id) is not None
                and new.get(other.info.id) is not None
            ):
                self.fail(f"{host.name} and {other.name} are masters of each other", host.name)

    def quiet(self) -> None:
        """Q."""
        masters = [host.name for host in self.world.up_hosts() if member_of(host).ctx.is_master]
        if len(masters) != 1:
            self.fail(f"masters at rest: {', '.join(masters) or 'none'}")
        lists = {member_of(host).ctx.members.version for host in self.world.up_hosts()}
        if len(lists) != 1:
            self.fail(f"{len(lists)} different list versions at rest")


class PatientMaster(Checker):
    """M3: a new master hears everybody first, and tells everybody before it goes on (ADL-14)."""

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
        ctx = member_of(host).ctx
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
        if waits and member_of(host).ctx.is_master:
            names = ", ".join(self.world.watch.name_of(one) for one in waits)
            self.fail(f"p{pid} changed before {names} had answered", host.name)
        elif member_of(host).migrations.is_opening:
            self.fail(f"p{pid} changed before the whole table had gone out", host.name)


class FreshIdentity(Checker):
    """M4: whoever was removed never comes back under the same identity."""

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
                    f"{self.world.watch.name_of(info.id)} was removed by list "
                    f"{self._gone[process]} and is in list {new.version}",
                    host.name,
                )

    def _process(self, info: MemberInfo) -> tuple[MemberId, int]:
        """What must not come back: an identity; where processes keep theirs, one's own life."""
        keeps = self.world.plan.profile.keeps_identity
        return info.id, info.started_us if keeps else 0


class NoFalseExpulsion(Checker):
    """M5: nobody is expelled who was heard all the time."""

    rule = "M5"
    sentence = "a member that was never silent for the heartbeat timeout is not removed"

    def expelled(self, host: Host) -> None:
        """H."""
        if not self.world.plan.profile.over_budget:
            self.fail("it was told that the cluster goes on without it", host.name)


VIEW_CHECKERS: tuple[type[Checker], ...] = (
    ViewOrder,
    OneMaster,
    PatientMaster,
    FreshIdentity,
    NoFalseExpulsion,
)
