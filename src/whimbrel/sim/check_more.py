"""Rules that look across rooms: P10, P12, L4, L5, C2 to C4, X1, D3 for expiry, whole-map reads."""

from __future__ import annotations

from whimbrel.core.ids import PartitionId, Row
from whimbrel.core.invariants import check_member
from whimbrel.core.model import MemberList
from whimbrel.core.partition.planner import has_cycle, plan_row
from whimbrel.errors import InvariantViolation
from whimbrel.sim.families_operator import is_everywhere_active
from whimbrel.sim.host import Host
from whimbrel.sim.sim_client import Reply, SimClient
from whimbrel.sim.watch import Checker, member_of
from whimbrel.sim.workload import (
    ABSENT,
    MORTAL_MAP,
    READS,
    REGISTER_MAP,
    RETURNS_OLD,
    Operation,
    Outcome,
)
from whimbrel.sim.world import World

EVENT_US = 5_000_000
"""A listener hears of a change within this span, in a window without faults."""
INVARIANTS_US = 2_000_000
"""How often the invariants of every member are looked at."""
ONE_WAY = "a member is heard in one direction only for longer than it may stay on a list"
CHANGES_PER_REPLICA = 2
"""Row changes per configured replica after the last change of the list (L4)."""


class BalancedPlans(Checker):
    """P10: no cycle is carried out; at rest nothing is left to plan and members are level.

    Primaries are not judged: with few partitions the holders that stay do not always allow them
    to be level without further copies, and none are spent on that (``partition.assignment``).
    """

    rule = "P10"
    sentence = "no cycle is planned, at rest nothing is due, and replicas differ by at most one"

    def quiet(self) -> None:
        """Q."""
        for host in self.world.up_hosts():
            member = member_of(host)
            if member.ctx.is_master:
                self._look(host)

    def _look(self, host: Host) -> None:
        member = member_of(host)
        rows = member.migrations.table.rows
        for pid, target in enumerate(member.migrations._loop._targets()):
            row = rows[pid]
            if row == target:
                continue
            if has_cycle(row, target):
                self.fail(f"p{pid}: the target is reached by a cycle only", host.name)
            elif plan_row(row, target):
                self.fail(f"p{pid}: there is still something to plan at rest", host.name)
        data = [info.id for info in member.ctx.data_members()]
        plan = self.world.plan
        if member.migrations.replica_depth >= len(data) or plan.settings.member_group != "member":
            return  # every place is forced then (docs/design/0003, "Known limits")
        counts = [member.migrations.table.replica_count(one) for one in data]
        is_deep = plan.settings.plan_depth == "deep"
        if counts and max(counts) - min(counts) > 1 and not is_deep:
            self.fail(f"replicas per member at rest: {counts}", host.name)


class LeavesWithNothing(Checker):
    """P12: whoever was allowed to leave is in no row of any master that is up to date.

    A master whose list is older than the leaver's was paused while others took over from it: it
    lets nobody go, and its table is not the cluster's. A leaving master is judged by its own table.
    """

    rule = "P12"
    sentence = "a graceful shutdown is answered only when the member is in no row"

    def ending(self, host: Host, reason: str) -> None:
        """E."""
        if reason != "left" or self.world.plan.profile.split:
            return
        known = member_of(host).ctx.members.version
        for other in self.world.up_hosts():
            ctx = member_of(other).ctx
            if ctx.is_master and ctx.members.version >= known:
                self._look(host, other)

    def _look(self, host: Host, master: Host) -> None:
        """Nobody is left to hand over to when all leave; no migration may run in some states."""
        ctx, migrations = member_of(master).ctx, member_of(master).migrations
        staying = [info.id for info in ctx.data_members() if info.id not in ctx.leaving]
        if migrations.is_fetching or not staying or not is_everywhere_active(self.world):
            return
        for pid, row in enumerate(migrations.table.rows):
            if host.info.id in row:
                self.fail(f"{host.name} has left and is in the row of p{pid}", master.name)
                return


class NoPingPong(Checker):
    """L4: after the last fault and the last change of the list the table comes to rest.

    Counted during harm as well: between two faults of a long run a table may go to and fro for
    minutes. A failed migration changes the version of a row and not the row, and is not counted.
    """

    rule = "L4"
    sentence = "row changes after the last change of the member list are bounded"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._changes: dict[str, int] = {}
        self._faults = 0
        """Faults when the counting began."""
        plan = world.plan
        depth = 1 + plan.backup_count + plan.async_backup_count
        if plan.settings.plan_depth == "deep":
            depth = 7
        # A migration that fails late is undone, and some plans follow faults by a time-out.
        self._limit = 3 * plan.settings.partition_count * depth * CHANGES_PER_REPLICA + 20

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        self._changes.clear()

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        faults = sum(self.world.fault_counts.values())
        if faults != self._faults:
            self._faults = faults
            self._changes.clear()
        if before != after and member_of(host).ctx.is_master:
            count = self._changes[host.name] = self._changes.get(host.name, 0) + 1
            if count == self._limit:
                self.fail(f"{count} row changes and no end", host.name)


class OneWayEnds(Checker):
    """L5: who hears and is not heard, or the reverse, ends outside the others' view."""

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
            mutual = member_of(host).ctx.is_member(other.info.id)
            if other is not host and member_of(other).ctx.is_member(host.info.id) and mutual:
                self.fail(f"{host.name} is still in the list of {other.name}", host.name)
                return


class ClientsAgree(Checker):
    """C2: at rest every smart client has the cluster's table and members."""

    rule = "C2"
    sentence = "every smart client's table is the cluster's; none keeps to a departed member"

    def quiet(self) -> None:
        """Q: the run has waited for it (L1), so what is wrong now stays wrong."""
        reason = clients_differ(self.world)
        if reason:
            self.fail(reason)


def clients_differ(world: World) -> str:
    """Which client has another picture of the cluster than the master; empty when none has."""
    for host in world.up_hosts():
        member = member_of(host)
        if not member.ctx.is_master:
            continue
        members = member.ctx.members.ids()
        for client in world.clients:
            difference = client.table_difference(member.migrations.table.rows, members)
            if difference:
                return difference
    return ""


class EventsArrive(Checker):
    """C3: a listener hears of every acknowledged change, of one key in order, in calm windows."""

    rule = "C3"
    sentence = "each acknowledged change is heard by listeners, and per key in order"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._heard: dict[tuple[str, int], tuple[int, int]] = {}
        self._due: dict[tuple[str, int, int], tuple[int, Operation]] = {}

    def listened(self, client: SimClient, key: int, number: int) -> None:
        """H."""
        self._due.pop((client.name, key, number), None)
        if not number:
            return
        last = self._heard.get((client.name, key))
        self._heard[client.name, key] = (number, self.world.now_us)
        if last is not None and number < last[0] and self.world.is_calm_since(last[1] - EVENT_US):
            self.fail(f"{client.name} heard #{last[0]} and then #{number} of key {key}")

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H: from now on the event is due, unless it has come already."""
        world = self.world
        if (
            operation.map != REGISTER_MAP
            or operation.outcome is not Outcome.OK
            or operation.kind in READS
            or operation.effect == ABSENT
            or not world.is_calm_since(operation.invoked_us)
        ):
            return
        for client in world.clients:
            if not client.is_listening_since(operation.invoked_us):
                continue
            heard = self._heard.get((client.name, operation.key))
            if heard is None or heard[0] < operation.number:
                self._due[client.name, operation.key, operation.number] = (
                    world.now_us + EVENT_US,
                    operation,
                )

    def sample(self) -> None:
        """Look at what is overdue; a window that was disturbed is not judged."""
        if not self._due:
            return
        world = self.world
        for due, (deadline_us, operation) in list(self._due.items()):
            client = next(one for one in world.clients if one.name == due[0])
            calm = world.is_calm_since(operation.invoked_us)
            if not calm or not client.is_listening_since(operation.invoked_us):
                del self._due[due]
            elif world.now_us > deadline_us:
                del self._due[due]
                self.fail(f"{client.name} never heard of {operation!r}")


class RunsOnce(Checker):
    """C4: a write that returned what it wrote itself was carried out twice."""

    rule = "C4"
    sentence = "an operation that is not idempotent is carried out once"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        if operation.kind in RETURNS_OLD and operation.seen == operation.number:
            self.fail(f"{operation!r} found its own value")


class InvariantsHold(Checker):
    """X1: ``core.invariants`` of every member, now and then and at rest."""

    rule = "X1"
    sentence = "every member's invariants hold"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._next_us = 0

    def sample(self) -> None:
        """Looked at every two simulated seconds."""
        if self.world.now_us >= self._next_us:
            self._next_us = self.world.now_us + INVARIANTS_US
            self.quiet()

    def quiet(self) -> None:
        """Q."""
        for host in self.world.up_hosts():
            if host.is_paused:
                continue
            try:
                check_member(member_of(host))
            except InvariantViolation as error:
                self.fail(str(error), host.name)


class ExpiryHolds(Checker):
    """D3: an entry with a time to live is there until then and gone afterwards, but for the skew
    of the clocks.
    """

    rule = "D3"
    sentence = "an expired key stays gone, and none goes before its time"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        world = self.world
        if operation.map != MORTAL_MAP or operation.kind != "get" or operation.seen is None:
            return
        write = world.workload.history.key(operation.map, operation.key).writes[0]
        if write.outcome is not Outcome.OK:
            return
        world.clocks_jumped()
        skew_ms = max(world.plan.clock_skew_ms, world.clock_jumps_ms)
        drift = 1 + world.plan.clock_drift_ppm / 500_000
        slack_us = int((2 * skew_ms + 100) * 1_000 * drift)
        life_us = write.life_ms * 1_000
        if operation.seen != ABSENT:
            if operation.invoked_us > write.completed_us + life_us + slack_us:
                self.fail(f"{operation!r} saw what {write!r} wrote for {write.life_ms} ms")
        elif (
            operation.invoked_us > write.completed_us  # else it may have come before the write
            and operation.completed_us < write.invoked_us + life_us - slack_us
            and world.data_is_promised()
            and (world.is_calm_since(write.invoked_us) or world.reads_are_fresh())
        ):
            self.fail(f"{operation!r} misses what {write!r} wrote for {write.life_ms} ms")


class WholeMapOnce(Checker):
    """D1: a whole-map read in a calm window has every acknowledged key, and each once."""

    rule = "D1"
    sentence = "a whole-map read returns every acknowledged key once"

    def scanned(self, operation: Operation, keys: list[bytes]) -> None:
        """H."""
        world = self.world
        if not world.is_calm_since(operation.invoked_us) or not world.data_is_promised():
            return
        found = {bytes(key) for key in keys}
        if len(found) != len(keys):
            self.fail(f"{operation!r}: {len(keys)} keys, {len(found)} of them different")
        missing = [key for key in world.workload.expected_keys(operation) if key not in found]
        if missing:
            self.fail(f"{operation!r} misses {len(missing)} keys")


MORE_CHECKERS: tuple[type[Checker], ...] = (
    BalancedPlans,
    LeavesWithNothing,
    NoPingPong,
    OneWayEnds,
    ClientsAgree,
    EventsArrive,
    RunsOnce,
    InvariantsHold,
    ExpiryHolds,
    WholeMapOnce,
)
