"""Harm: which fault happens when, within the failure budget.

A fault is an event with a verb, names and a number, so that a run's harm can be written down,
cut down and played again (``shrink``, ``tests/scenario``). The nemesis decides when a family has
its turn and knows what may be put at risk; families draw events, actions carry them out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import msgspec

from whimbrel.core.model import ClusterState
from whimbrel.errors import UsageError
from whimbrel.sim.entropy import coin, log_uniform, pick
from whimbrel.sim.faults.crash_points import CrashPoints
from whimbrel.sim.faults.event import FaultEvent
from whimbrel.sim.faults.message_triggers import MessageTriggers
from whimbrel.sim.faults.supervisor import Supervisor
from whimbrel.sim.host import Host
from whimbrel.sim.workload import Workload
from whimbrel.sim.world import SENIORITY, World

SILENCE_SHARE = 0.35
"""A short silence lasts at most this share of the heartbeat timeout."""
STOPPED, DEAF = 2, 3
"""Ways in which a member is left outside for ever; see ``actions``."""
FORSAKEN_SHARE = 0.3
"""How often the liveness phase begins with a member that never comes back."""
EVENTS_MAX = 10_000
"""Fault events remembered for replay."""
INSIST_US = 1_000_000
"""An operator who wants the cluster ACTIVE looks, and asks again, once in this time."""


class Nemesis:
    """Draws faults while it is active."""

    def __init__(
        self,
        world: World,
        workload: Workload,
        families: Mapping[str, Family],
        actions: Mapping[str, Action],
    ) -> None:
        self.world = world
        self.workload = workload
        self._families = families
        self._actions = actions
        self.crash_points = CrashPoints(world, self._may_kill)
        self.triggers = MessageTriggers(world, self.do)
        self.supervisor = Supervisor(world, lambda host: self.do("start", host.name))
        world.interceptors = (self.crash_points, self.triggers)
        self.active = False
        self.events: list[FaultEvent] = []
        self.script: list[FaultEvent] | None = None
        """When given, these events happen instead of drawn ones."""
        self.random: random.Random = world.entropy.of("nemesis")
        self._round = 0
        self._quiet_from_us: dict[str, int] = {}
        self.slow_pairs: list[tuple[Host, Host]] = []
        """Pairs with something in flight for long: a reset there loses most."""
        self.paused_us: dict[str, int] = {}
        """Place to since when it is paused."""

    # -- on and off -----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to harm."""
        if self.script is not None:
            return
        self.active = True
        self._round += 1
        if self.world.plan.profile.disks:
            self.supervisor.watch()
            self.supervisor.hurry(is_over=False)
        for family, gap_us in self.world.plan.fault_gap_us.items():
            self._schedule(family, gap_us)

    def play(self) -> None:
        """Schedule the events of the script."""
        for event in self.script or ():
            self.world.scheduler.at(event.at_us, self._do, event)

    def stop(self) -> None:
        """End all harm: everything that is silenced goes on."""
        self.active = False
        self._round += 1
        if self.script is not None:
            return
        self.crash_points.clear()
        self.supervisor.hurry(is_over=True)
        for host in self.world.hosts:
            if host.is_paused:
                self.do("resume", host.name)
            if host.wall_frozen_ms is not None:
                self.do("jump", host.name)
        self.do("calm")
        for host in self.world.hosts if self.world.plan.profile.disks else ():
            if host.disk.is_ill:
                self.do("mend", host.name)
        if {"states", "stable"} & self.world.plan.fault_gap_us.keys():
            self._insist_on_active(self._round)

    def _insist_on_active(self, round_number: int) -> None:
        """After the harm: ask for ACTIVE, again and again until every member is."""
        if self.active or round_number != self._round:
            return
        if not self.world.is_everywhere_active():
            self.do("state", ClusterState.ACTIVE.value)
        self.world.scheduler.after(INSIST_US, self._insist_on_active, round_number)

    def unfinished(self) -> str:
        """What drawn faults have begun and is not over; a script ends as its author says."""
        if self.script is not None:
            return ""
        for host in self.world.up_hosts():
            wish = host.member.membership.roles.wish
            if wish is not None:
                return f"{host.name} is to become a {'lite' if wish.lite else 'data'} member"
        return "" if self.world.is_everywhere_active() else "the cluster is not ACTIVE everywhere"

    def forsake(self) -> None:
        """Before the liveness phase: by a coin leave one member outside for ever (3.7)."""
        if self.script is not None or not coin(self.random, FORSAKEN_SHARE):
            return
        running = self.running()
        host = pick(self.random, running) if len(running) > 2 else None
        if host is not None and not host.lite and self.may_lose(host):
            how = self.random.randint(1, 4)
            if how == DEAF and host.is_master:
                # It would remove whom it does not hear and may take a follower with it: two
                # clusters then, and the rules of one do not hold for both.
                how = STOPPED
            self.do("forsake", host.name, value=how)

    def _schedule(self, family: str, gap_us: int) -> None:
        delay_us = 1 + int(self.random.expovariate(1.0) * gap_us)
        self.world.scheduler.after(delay_us, self._fire, family, gap_us, self._round)

    def _fire(self, family: str, gap_us: int, round_number: int) -> None:
        if not self.active or round_number != self._round:
            return
        self._families[family](self)
        self._schedule(family, gap_us)

    def later(self, delay_us: int, verb: str, *names: str) -> None:
        """An event after a span, unless the round is over by then or it may not be any more."""
        self.world.scheduler.after(delay_us, self._if_active, self._round, verb, names)

    def _if_active(self, round_number: int, verb: str, names: tuple[str, ...]) -> None:
        if not self.active or round_number != self._round:
            return
        if verb == "leave" and not self.may_leave(self.world.host_named(names[0])):
            return
        if verb == "start" and not self.supervisor.lets_start(self.world.host_named(names[0])):
            return
        if verb == "crash" and not self.may_lose(self.world.host_named(names[0])):
            return
        self.do(verb, *names)

    def do(self, verb: str, *names: str, value: int = 0) -> None:
        """Carry out an event now and remember it."""
        self._do(FaultEvent(self.world.now_us, verb, names, value))

    def _do(self, event: FaultEvent) -> None:
        if len(self.events) < EVENTS_MAX:
            self.events.append(event)
        self.perform(event)

    def perform(self, event: FaultEvent) -> None:
        """Carry out a fault or the end of one.

        Raises:
            UsageError: The verb or a name is unknown.
        """
        act, world = self._actions.get(event.verb), self.world
        if act is None:
            raise UsageError(f"no fault is called {event.verb!r}")
        if any(name in SENIORITY for name in event.names):
            names = tuple(
                world.host_named(name).name if name in SENIORITY else name for name in event.names
            )
            event = msgspec.structs.replace(event, names=names)
        detail = " ".join(event.names) + (f" {event.value}" if event.value else "")
        world.trace.mark(world.now_us, "--", event.verb, detail)
        world.fault_counts[event.verb] = world.fault_counts.get(event.verb, 0) + 1
        world.harmed()
        act(self, event)

    # -- choices --------------------------------------------------------------------------

    def condemn(self, host: Host) -> None:
        """This process is silenced for so long that the cluster will go on without it."""
        host.condemn()
        if not host.lite:
            self.world.book_loss(host)

    def running(self) -> list[Host]:
        """Members that run, have joined and are not about to leave."""
        return [
            host
            for host in self.world.hosts
            if host.is_up
            and host.joined
            and not host.is_leaving
            and not host.is_paused
            and not host.is_outside
        ]

    def may_leave(self, host: Host) -> bool:
        """Whether a data member stays when this one leaves gracefully, and the budget bears it."""
        if not host.is_up or not host.joined or host.is_paused:
            return False
        if not host.lite and not self.world.is_everywhere_active():
            return False  # it would go with its data, which is no graceful leave (GCM-08)
        if host.lite or host.is_leaving:
            return True
        staying = self.world.places(without=host)
        is_borne = self.world.plan.profile.over_budget or self.world.budget.may_shrink(staying)
        return is_borne and self.world.data_member_count() > 1

    def may_return(self, host: Host) -> None:
        """Let a member that is killed come back some time, where members may join."""
        if "join" in self.world.plan.fault_gap_us and coin(self.random, 0.7):
            self.later(log_uniform(self.random, 1_000, 8_000_000), "start", host.name)

    def may_lose(self, host: Host) -> bool:
        """Whether the budget bears the loss of a member."""
        running = self.running()
        if host.lite:
            return len(running) > 1
        if self.world.plan.profile.over_budget:
            return sum(not other.lite for other in running) > 1
        return self.world.budget.may_lose(len(self.world.places()))

    def _may_kill(self, host: Host) -> bool:
        """Whether a crash point may kill a member: a script kills whom its author wants."""
        return self.script is not None or self.may_lose(host)

    def is_quiet(self, *hosts: Host) -> bool:
        """Whether none of the hosts is silenced, or was a moment ago."""
        now_us = self.world.now_us
        return all(self._quiet_from_us.get(host.name, 0) <= now_us for host in hosts)

    def silence(self, span_us: int, *hosts: Host) -> None:
        """Book that these are not heard for a span, so that no other fault makes it longer."""
        rest_us = 2 * self.world.plan.settings.heartbeat_interval_us
        for host in hosts:
            self._quiet_from_us[host.name] = self.world.now_us + span_us + rest_us

    def short_us(self) -> int:
        """A span that no healthy member is removed for."""
        most_us = int(self.world.plan.settings.heartbeat_timeout_us * SILENCE_SHARE)
        return log_uniform(self.random, 10_000, most_us)

    def long_us(self) -> int:
        """A span longer than the heartbeat time-out."""
        timeout_us = self.world.plan.settings.heartbeat_timeout_us
        return int(timeout_us * self.random.uniform(1.3, 2.5))

    def pair(self) -> tuple[Host, Host] | None:
        """Two running members; None when there are not two."""
        running = self.running()
        if len(running) < 2:
            return None
        one, two = self.random.sample(running, 2)
        return one, two


Family = Callable[[Nemesis], None]
"""A kind of harm: draws what happens when it is its turn."""
Action = Callable[[Nemesis, FaultEvent], None]
"""Carries a verb out."""
