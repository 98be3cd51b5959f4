"""Rules of bounds and invariants: X1, X2."""

from __future__ import annotations

from whimbrel.core.effects import Note
from whimbrel.core.invariants import check_member
from whimbrel.errors import InvariantViolation
from whimbrel.sim.host import Host
from whimbrel.sim.profile import Plan
from whimbrel.sim.rule import Rule
from whimbrel.sim.world import World

BACKLOG_LOOKED_AT = 100_000
"""Events that may wait for a member that is paused."""
EVENTS_PER_S_MAX = 60_000
"""Events of clients and of data on the move in a simulated second, whatever the cluster's size; a
rebalance of many partitions makes some thousands, a message storm makes ever more."""
TURN_MAX = 1_000
"""Operations that one turn may add before the limit of those under way is looked at again."""
INVARIANTS_US = 2_000_000
"""How often the invariants of every member are looked at."""


DISK_NOTES = ("disk_refuses", "disk_failed", "stopped")
DAMAGE_NOTES = ("recovery.damaged", "files_damaged", "disk_failed", "stopped")
"""What is explained by a disk that is full, or whose sync fails."""


class Bounded(Rule):
    """X1 (GCM-43; S): queues and buffers, looked at now and then."""

    rule = "X1"
    sentence = "queues, calls and buffers stay below their named limits"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last_us = 0
        self._last_events = 0

    def sample(self) -> None:
        """Looked at every quarter of a second."""
        limit = self.world.plan.settings.unacknowledged_backups_max
        for host in self.world.up_hosts():
            for outbox in host.member.dataplane.outgoing.outboxes.values():
                if outbox.in_flight > limit + TURN_MAX:
                    self.fail(f"{outbox.in_flight} backup operations wait", host.name)
            if host.backlog > BACKLOG_LOOKED_AT:
                self.fail(f"{host.backlog} events wait for a paused member", host.name)
        self._look_at_rate()

    def _look_at_rate(self) -> None:
        """Members that keep one another busy for nothing are a queue without a bound, too."""
        world = self.world
        span_us = world.now_us - self._last_us
        if span_us < 1_000_000:
            return
        rate = (world.scheduler.events - self._last_events) * 1_000_000 // span_us
        self._last_us, self._last_events = world.now_us, world.scheduler.events
        limit = events_per_s_max(world.plan)
        if rate > limit:
            self.fail(f"{rate} events in a simulated second, {limit} are allowed")


def events_per_s_max(plan: Plan) -> int:
    """How many events a simulated second may have at most, in the busiest case there is.

    That is a cluster that comes to be in that second. Per ordered pair of its places: a question
    and its answer in each round of discovery, and the heartbeats, with their timers. Per slot of
    the table: it is filled once, which the master tells everybody, and everybody acknowledges.
    """
    settings = plan.settings
    pairs = plan.hosts * plan.hosts
    rounds_per_s = -(-1_000_000 // settings.discovery_interval_us)
    heartbeats_per_s = -(-1_000_000 // settings.heartbeat_interval_us)
    depth = 1 + plan.backup_count + plan.async_backup_count
    told = 2 * plan.hosts * settings.partition_count * depth
    return EVENTS_PER_S_MAX + 2 * pairs * (rounds_per_s + heartbeats_per_s) + told


class InvariantsHold(Rule):
    """X1 (core.invariants; SQ): ``core.invariants`` of every member, now and then and at rest."""

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
                check_member(host.member)
            except InvariantViolation as error:
                self.fail(str(error), host.name)


class QuietNotes(Rule):
    """X2 (promise table; E): an error is explained by a fault, or it is an error of ours."""

    rule = "X2"
    sentence = "no error is noted unless an injected fault explains it"

    def note(self, host: Host, note: Note) -> None:
        """E."""
        condemned = host.is_condemned or self.world.plan.profile.split
        if note.kind == "expelled" and condemned:
            return
        if note.kind == "stopped" and len(self.world.up_hosts()) == 1:
            return  # every other machine is silent: it must not found a cluster of its own
        if note.kind == "stopped" and self._may_not_return(host):
            return
        if note.kind in DISK_NOTES and (host.disk.is_ill or host.is_condemned):
            return
        if note.kind in DAMAGE_NOTES and host.disk.is_rotten:
            return
        if note.level == "error" and not note.kind.startswith("partition"):
            fields = ", ".join(f"{name}={value}" for name, value in note.fields.items())
            self.fail(f"{note.kind}: {fields}", host.name)

    def _may_not_return(self, host: Host) -> bool:
        """Whether it died before the state was entered: it is told that nobody new may come."""
        lists = [one.member.ctx.members for one in self.world.up_hosts() if one is not host]
        is_stable = any(members.state.is_stable for members in lists)
        return is_stable and not any(members.may_return(host.info.id) for members in lists)


RULES: tuple[type[Rule], ...] = (Bounded, InvariantsHold, QuietNotes)
