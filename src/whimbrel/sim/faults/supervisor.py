"""Who starts processes again that should run: a service manager, or the operator on call.

Only where members keep files: a cluster comes back when all that were in it do, so somebody must
see to it that they do, whatever ended them, and when the harm is over nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.sim.entropy import log_uniform
from whimbrel.sim.host import Host
from whimbrel.sim.persisted import cluster_file
from whimbrel.sim.world import World

LOOK_US = 50_000
DELAY_US = (10_000, 8_000_000)
"""Shortest and longest time until a process is started again."""


class Supervisor:
    """Places whose process is to be started again."""

    def __init__(self, world: World, start: Callable[[Host], None]) -> None:
        self._world = world
        self._start = start
        self._random = world.entropy.of("supervisor")
        self._due_us: dict[Host, int] = {}
        """When each is to be started."""
        self._is_watching = self._is_in_haste = False

    def watch(self) -> None:
        """From now on to the end of the run."""
        if not self._is_watching:
            self._is_watching = True
            self._look()

    def hurry(self, *, is_over: bool) -> None:
        """When the harm is over everybody is started at once."""
        self._is_in_haste = is_over
        if is_over:
            self._due_us = dict.fromkeys(self._due_us, 0)

    def owe(self, host: Host) -> None:
        """A place whose process has ended gets another one after a while."""
        delay_us = 0 if self._is_in_haste else log_uniform(self._random, *DELAY_US)
        self._due_us[host] = self._world.now_us + delay_us

    def owe_all(self) -> None:
        """All that have files: whose are old will be told so.

        Who has none, and comes first, would found a cluster of its own.
        """
        for host in self._world.hosts:
            if not host.is_up and cluster_file(host.disk) is not None:
                self.owe(host)

    def _look(self) -> None:
        world = self._world
        world.scheduler.after(LOOK_US, self._look)
        for host in world.hosts:
            if host.is_up or host.is_outside:
                self._due_us.pop(host, None)
            elif host not in self._due_us and (host.exit_status or self._is_waited_for(host)):
                self.owe(host)
        for host, due_us in list(self._due_us.items()):
            if due_us <= world.now_us and not host.is_up:
                self._start(host)

    def _is_waited_for(self, host: Host) -> bool:
        """Whether a recovery waits for who was here: it left, and nobody has written it down."""
        for other in self._world.up_hosts():
            recovery = other.member.ctx.members.recovery
            if recovery is not None and any(one.id == host.info.id for one in recovery.expected):
                return True
        return False
