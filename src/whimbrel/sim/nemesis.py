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
from whimbrel.sim.host import Host

if TYPE_CHECKING:
    from whimbrel.sim.world import World

SILENCE_SHARE = 0.35
"""A short silence lasts at most this share of the heartbeat timeout."""
EVENTS_MAX = 10_000
"""Fault events remembered for replay."""


class FaultEvent(msgspec.Struct, frozen=True):
    """One act of harm or of its end."""

    at_us: int
    verb: str
    """crash, silent, start, pause, resume, leave, cut, heal, clog, reset, slow, upgrade, calm; and
    state, which only scenario files say: an operator wishes a cluster state (names: the state)."""
    names: tuple[str, ...] = ()
    value: int = 0
    """Span in microseconds (clog) or factor (slow)."""

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
        self._random: random.Random = world.entropy.of("nemesis")
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
        for host in self.world.hosts:
            if host.is_paused:
                self._do_now("resume", host.name)
        self._do_now("calm")

    def _schedule(self, family: str, gap_us: int) -> None:
        delay_us = 1 + int(self._random.expovariate(1.0) * gap_us)
        self.world.scheduler.after(delay_us, self._fire, family, gap_us, self._round)

    def _fire(self, family: str, gap_us: int, round_number: int) -> None:
        if not self.active or round_number != self._round:
            return
        _DRAW[family](self)
        self._schedule(family, gap_us)

    def _later(self, delay_us: int, verb: str, *names: str) -> None:
        """An event after a span, unless the round is over by then."""
        self.world.scheduler.after(delay_us, self._if_active, self._round, verb, names)

    def _if_active(self, round_number: int, verb: str, names: tuple[str, ...]) -> None:
        if self.active and round_number == self._round:
            self._do_now(verb, *names)

    def _do_now(self, verb: str, *names: str, value: int = 0) -> None:
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
            self.world.budget.lose(self.world.now_us, host.name)

    def _running(self) -> list[Host]:
        """Members that run, have joined and are not about to leave."""
        return [
            host
            for host in self.world.hosts
            if host.is_up and host.joined and not host.is_leaving and not host.is_paused
        ]

    def _may_lose(self, host: Host) -> bool:
        running = self._running()
        if host.lite:
            return len(running) > 1
        if self.world.plan.profile.over_budget:
            return sum(not other.lite for other in running) > 1
        return self.world.budget.may_lose(self.world.data_member_count())

    def _quiet(self, *hosts: Host) -> bool:
        """Whether none of the hosts is silenced, or was a moment ago."""
        now_us = self.world.now_us
        return all(self._quiet_from_us.get(host.name, 0) <= now_us for host in hosts)

    def _silence(self, span_us: int, *hosts: Host) -> None:
        rest_us = 2 * self.world.plan.settings.heartbeat_interval_us
        for host in hosts:
            self._quiet_from_us[host.name] = self.world.now_us + span_us + rest_us

    def _short_us(self) -> int:
        most_us = int(self.world.plan.settings.heartbeat_timeout_us * SILENCE_SHARE)
        return log_uniform(self._random, 10_000, most_us)

    def _long_us(self) -> int:
        timeout_us = self.world.plan.settings.heartbeat_timeout_us
        return int(timeout_us * self._random.uniform(1.3, 2.5))

    def _pair(self) -> tuple[Host, Host] | None:
        running = self._running()
        if len(running) < 2:
            return None
        one, two = self._random.sample(running, 2)
        return one, two

    # -- families -------------------------------------------------------------------------

    def _crash(self) -> None:
        self._kill("crash")

    def _silent(self) -> None:
        self._kill("silent")

    def _kill(self, verb: str) -> None:
        running = self._running()
        if not running:
            return
        host = pick(self._random, running)
        if coin(self._random, 0.25):
            host = running[0]
        if not self._may_lose(host) or not self._quiet(host):
            return
        self._do_now(verb, host.name)
        if "join" in self.world.plan.fault_gap_us and coin(self._random, 0.7):
            self._later(log_uniform(self._random, 100_000, 8_000_000), "start", host.name)

    def _pause(self) -> None:
        running = self._running()
        if len(running) < 2:
            return
        host = pick(self._random, running)
        if not self._quiet(host):
            return
        long = coin(self._random, 0.4) and self._may_lose(host)
        span_us = self._long_us() if long else self._short_us()
        if long:
            self.condemn(host)
        self._silence(span_us, host)
        self._do_now("pause", host.name)
        self._later(span_us, "resume", host.name)

    def _cut(self) -> None:
        if self.world.plan.profile.split and coin(self._random, 0.6):
            self._split()
            return
        pair = self._pair()
        if pair is None or not self._quiet(*pair):
            return
        span_us = self._short_us()
        self._silence(span_us, *pair)
        self._do_now("cut", pair[0].name, pair[1].name)
        self._later(span_us, "heal", pair[0].name, pair[1].name)

    def _split(self) -> None:
        """Cut a random part off for longer than the timeout, by a coin in one direction only."""
        running = self._running()
        if len(running) < 2 or not self._quiet(*running):
            return
        part = self._random.sample(running, self._random.randint(1, len(running) // 2))
        rest = [host for host in running if host not in part]
        span_us = self._long_us()
        self._silence(span_us, *running)
        one_way = coin(self._random, 0.4)
        for inside in part:
            self._condemned[inside.name] = inside.incarnation
            for outside in rest:
                self._do_now("cut", inside.name, outside.name)
                self._later(span_us, "heal", inside.name, outside.name)
                if not one_way:
                    self._do_now("cut", outside.name, inside.name)
                    self._later(span_us, "heal", outside.name, inside.name)

    def _clog(self) -> None:
        pair = self._pair()
        if pair is None or not self._quiet(*pair):
            return
        span_us = self._short_us()
        self._silence(span_us, *pair)
        self._slow_pairs = [pair, *self._slow_pairs[:3]]
        self._do_now("clog", pair[0].name, pair[1].name, value=span_us)

    def _reset(self) -> None:
        pair = self._pair()
        clients = self.world.clients
        if clients and coin(self._random, 0.3):
            running = self._running()
            if running:
                client, host = pick(self._random, clients), pick(self._random, running)
                self._do_now("reset", client.name, host.name)
            return
        if self._slow_pairs and coin(self._random, 0.5):
            pair = pick(self._random, self._slow_pairs)
        if pair is not None:
            self._do_now("reset", pair[0].name, pair[1].name)

    def _slow(self) -> None:
        pair = self._pair()
        if pair is None or not self._quiet(*pair):
            return
        span_us = 10 * self._short_us()
        self._do_now("slow", pair[0].name, pair[1].name, value=pick(self._random, (2, 5, 10)))
        self._later(span_us, "slow", pair[0].name, pair[1].name)

    def _leave(self) -> None:
        running = [host for host in self._running() if self._quiet(host)]
        if not running:
            return
        host = pick(self._random, running)
        if host.lite or self.world.data_member_count() > 1:
            self._do_now("leave", host.name)

    def _upgrade(self) -> None:
        running = self._running()
        if running:
            self._do_now("upgrade", pick(self._random, running).name)

    def _join(self) -> None:
        down = [host for host in self.world.hosts if not host.is_up]
        if down:
            self._do_now("start", pick(self._random, down).name)


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
