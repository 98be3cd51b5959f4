"""Harm: which fault happens when, within the failure budget.

A fault is an event with a verb, names and a number, so that a run's harm can be written down,
cut down and played again (``shrink``, ``tests/scenario``). The nemesis draws events; the world
carries them out.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from whimbrel.sim.entropy import coin, log_uniform, pick
from whimbrel.sim.families import MORE_FAMILIES
from whimbrel.sim.families_operator import insist_on_active, is_everywhere_active, unfinished
from whimbrel.sim.host import Host

if TYPE_CHECKING:
    from whimbrel.sim.world import World

SILENCE_SHARE = 0.35
"""A short silence lasts at most this share of the heartbeat timeout."""
STOPPED, DEAF = 2, 3
"""Ways in which a member is left outside for ever; see ``deeds``."""
FORSAKEN_SHARE = 0.3
"""How often the liveness phase begins with a member that never comes back."""
EVENTS_MAX = 10_000
"""Fault events remembered for replay."""


class FaultEvent(msgspec.Struct, frozen=True):
    """One act of harm or of its end."""

    at_us: int
    verb: str
    """crash, silent, start, pause, resume, leave, cut, heal, clog, reset, slow, state, upgrade,
    calm; and those of ``deeds``."""
    names: tuple[str, ...] = ()
    value: int = 0
    """Span in microseconds (clog), factor (slow) or whatever the verb's function says."""

    def text(self) -> str:
        """As a scenario file says it."""
        value = f" {self.value}" if self.value else ""
        return f"at {self.at_us / 1_000_000:.6f} {self.verb} {' '.join(self.names)}{value}"


class Nemesis:
    """Draws faults while it is active."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.active = False
        self.events: list[FaultEvent] = []
        self.script: list[FaultEvent] | None = None
        """When given, these events happen instead of drawn ones."""
        self.random: random.Random = world.entropy.of("nemesis")
        self._round = 0
        self._quiet_from_us: dict[str, int] = {}
        self._slow_pairs: list[tuple[Host, Host]] = []
        """Pairs with something in flight for long: a reset there loses most."""
        self._condemned: dict[str, int] = {}
        """Host to the incarnation that was silenced for longer than the timeout."""

    # -- on and off -----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to harm."""
        if self.script is not None:
            return
        self.active = True
        self._round += 1
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
        self.world.traps.clear()
        for host in self.world.hosts:
            if host.is_paused:
                self.do("resume", host.name)
            if host.wall_frozen_ms is not None:
                self.do("jump", host.name)
        self.do("calm")
        if "states" in self.world.plan.fault_gap_us:
            insist_on_active(self, self._round)

    def is_resting(self, round_number: int) -> bool:
        """Whether the pause that came with this round still lasts."""
        return not self.active and round_number == self._round

    def unfinished(self) -> str:
        """What drawn faults have begun and is not over; a script ends as its author says."""
        return unfinished(self.world) if self.script is None else ""

    def forsake(self) -> None:
        """Before the liveness phase: by a coin leave one member outside for ever (3.7)."""
        if self.script is not None or not coin(self.random, FORSAKEN_SHARE):
            return
        running = self.running()
        host = pick(self.random, running) if len(running) > 2 else None
        if host is not None and not host.lite and self.may_lose(host):
            how = self.random.randint(1, 4)
            if how == DEAF and self._rules(host):
                # It would remove whom it does not hear and may take a follower with it: two
                # clusters then, and the rules of one do not hold for both.
                how = STOPPED
            self.do("forsake", host.name, value=how)

    @staticmethod
    def _rules(host: Host) -> bool:
        """Whether a member takes itself for the master."""
        return host.engine is not None and host.engine.member.ctx.is_master

    def _schedule(self, family: str, gap_us: int) -> None:
        delay_us = 1 + int(self.random.expovariate(1.0) * gap_us)
        self.world.scheduler.after(delay_us, self._fire, family, gap_us, self._round)

    def _fire(self, family: str, gap_us: int, round_number: int) -> None:
        if not self.active or round_number != self._round:
            return
        (_DRAW.get(family) or MORE_FAMILIES[family])(self)
        self._schedule(family, gap_us)

    def later(self, delay_us: int, verb: str, *names: str) -> None:
        """An event after a span, unless the round is over by then or it may not be any more."""
        self.world.scheduler.after(delay_us, self._if_active, self._round, verb, names)

    def _if_active(self, round_number: int, verb: str, names: tuple[str, ...]) -> None:
        if not self.active or round_number != self._round:
            return
        if verb == "leave" and not self.may_leave(self.world.host_named(names[0])):
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
        self.world.perform(event)

    # -- choices --------------------------------------------------------------------------

    def is_condemned(self, host: Host) -> bool:
        """Whether this process was silenced for longer than the heartbeat timeout."""
        return self._condemned.get(host.name) == host.incarnation

    def condemn(self, host: Host) -> None:
        """This process is silenced for so long that the cluster will go on without it."""
        self._condemned[host.name] = host.incarnation
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

    def is_master(self, host: Host) -> bool:
        """Whether a member takes itself for the master."""
        return host.engine is not None and host.engine.member.ctx.is_master

    def split_off(self, host: Host) -> None:
        """What this process does from now on is judged as one half of a split."""
        self._condemned[host.name] = host.incarnation

    def may_leave(self, host: Host) -> bool:
        """Whether a data member stays when this one leaves gracefully, and the budget bears it."""
        if not host.is_up or not host.joined or host.is_paused:
            return False
        if not host.lite and not is_everywhere_active(self.world):
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

    # -- families -------------------------------------------------------------------------

    def _crash(self) -> None:
        self._kill("crash")

    def _silent(self) -> None:
        self._kill("silent")

    def _kill(self, verb: str) -> None:
        running = self.running()
        if not running:
            return
        host = pick(self.random, running)
        if coin(self.random, 0.25):
            host = running[0]
        if not self.may_lose(host) or not self.is_quiet(host):
            return
        self.do(verb, host.name)
        self.may_return(host)

    def _pause(self) -> None:
        running = self.running()
        if len(running) < 2:
            return
        host = pick(self.random, running)
        if not self.is_quiet(host):
            return
        long = coin(self.random, 0.4) and self.may_lose(host)
        span_us = self.long_us() if long else self.short_us()
        if long:
            self.condemn(host)
        self.silence(span_us, host)
        self.do("pause", host.name)
        self.later(span_us, "resume", host.name)

    def _cut(self) -> None:
        if self.world.plan.profile.split and coin(self.random, 0.6):
            self._split()
            return
        pair = self.pair()
        if pair is None or not self.is_quiet(*pair):
            return
        span_us = self.short_us()
        self.silence(span_us, *pair)
        self.do("cut", pair[0].name, pair[1].name)
        self.later(span_us, "heal", pair[0].name, pair[1].name)

    def _split(self) -> None:
        """Cut a random part off for longer than the timeout, by a coin in one direction only."""
        running = self.running()
        if len(running) < 2 or not self.is_quiet(*running):
            return
        part = self.random.sample(running, self.random.randint(1, len(running) // 2))
        rest = [host for host in running if host not in part]
        span_us = self.long_us()
        self.silence(span_us, *running)
        one_way = coin(self.random, 0.4)
        for inside in part:
            self._condemned[inside.name] = inside.incarnation
            for outside in rest:
                self.do("cut", inside.name, outside.name)
                self.later(span_us, "heal", inside.name, outside.name)
                if not one_way:
                    self.do("cut", outside.name, inside.name)
                    self.later(span_us, "heal", outside.name, inside.name)

    def _clog(self) -> None:
        pair = self.pair()
        if pair is None or not self.is_quiet(*pair):
            return
        span_us = self.short_us()
        self.silence(span_us, *pair)
        self._slow_pairs = [pair, *self._slow_pairs[:3]]
        self.do("clog", pair[0].name, pair[1].name, value=span_us)

    def _reset(self) -> None:
        pair = self.pair()
        clients = self.world.clients
        if clients and coin(self.random, 0.3):
            running = self.running()
            if running:
                client, host = pick(self.random, clients), pick(self.random, running)
                self.do("reset", client.name, host.name)
            return
        if self._slow_pairs and coin(self.random, 0.5):
            pair = pick(self.random, self._slow_pairs)
        if pair is not None:
            self.do("reset", pair[0].name, pair[1].name)

    def _slow(self) -> None:
        pair = self.pair()
        if pair is None or not self.is_quiet(*pair):
            return
        span_us = 10 * self.short_us()
        self.do("slow", pair[0].name, pair[1].name, value=pick(self.random, (2, 5, 10)))
        self.later(span_us, "slow", pair[0].name, pair[1].name)

    def _leave(self) -> None:
        running = [host for host in self.running() if self.is_quiet(host)]
        if not running:
            return
        host = pick(self.random, running)
        if self.may_leave(host):
            self.do("leave", host.name)

    def _upgrade(self) -> None:
        running = self.running()
        if running:
            self.do("upgrade", pick(self.random, running).name)

    def _join(self) -> None:
        down = [host for host in self.world.hosts if not host.is_up and not host.is_outside]
        if down:
            self.do("start", pick(self.random, down).name)


_DRAW = {
    "crash": Nemesis._crash,
    "silent": Nemesis._silent,
    "pause": Nemesis._pause,
    "cut": Nemesis._cut,
    "clog": Nemesis._clog,
    "reset": Nemesis._reset,
    "slow": Nemesis._slow,
    "leave": Nemesis._leave,
    "join": Nemesis._join,
    "upgrade": Nemesis._upgrade,
}
