"""Who starts processes again that should run: a service manager, or the operator on call.

Only where members keep files: a cluster comes back when all that were in it do, so somebody must
see to it that they do, whatever ended them, and when the harm is over nobody waits. It is the
operator, too, who gives a machine another disk when a member has said that its own is damaged.
"""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.sim.disk import SimDisk
from whimbrel.sim.entropy import log_uniform
from whimbrel.sim.host import Host
from whimbrel.sim.persisted import has_files
from whimbrel.sim.world import World

LOOK_US = 50_000
DELAY_US = (10_000, 8_000_000)
"""Shortest and longest time until a process is started again."""
DAMAGED = " is damaged at offset "
"""In the words of ``DamageError``."""


class Supervisor:
    """Places whose process is to be started again."""

    def __init__(self, world: World, start: Callable[[Host], None]) -> None:
        self._world = world
        self._start = start
        self._random = world.entropy.of("supervisor")
        self._due_us: dict[Host, int] = {}
        """When each is to be started."""
        self._leaving: dict[Host, int] = {}
        """Those that leave with all others, each with the incarnation that was asked; they are to
        come back when all have gone: who comes sooner is let in by those that are left, and they go
        on."""
        self._absent: dict[Host, None] = {}
        """Those that nobody starts: with a partial policy the others go on without them."""
        self._rotten: dict[Host, None] = {}
        """Those with a damaged disk, until they are back in the cluster."""
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
        at_once = self._is_in_haste or DAMAGED in host.exit_reason
        delay_us = 0 if at_once else log_uniform(self._random, *DELAY_US)
        self._due_us[host] = self._world.now_us + delay_us

    def owe_all(self, absent: Host | None = None) -> None:
        """All that have files but one, and all that leave with some: whose are old will be told so.

        Who has none, and comes first, would found a cluster of its own.
        """
        self._absent = {} if absent is None else {absent: None}
        for host in self._world.hosts:
            if host is absent:
                self._due_us.pop(host, None)
            elif host.is_up:
                self._leaving[host] = host.incarnation
            elif has_files(host.disk):
                self.owe(host)

    @property
    def is_stopping(self) -> bool:
        """Whether all have been asked to leave, and some are still there."""
        return any(host.is_up and host.incarnation == one for host, one in self._leaving.items())

    def rotten(self, host: Host) -> None:
        """What lies at a place is damaged."""
        self._rotten[host] = None

    def _look(self) -> None:
        world = self._world
        world.scheduler.after(LOOK_US, self._look)
        for host in world.hosts:
            if host.is_up or host.is_outside:
                self._due_us.pop(host, None)
                self._absent.pop(host, None)
                if host.joined:
                    self._rotten.pop(host, None)
            elif host not in self._due_us and self._is_missed(host):
                self.owe(host)
        for host, due_us in list(self._due_us.items()):
            if due_us <= world.now_us and not host.is_up and self._may_start(host):
                del self._due_us[host]
                self._start(host)

    def _is_missed(self, host: Host) -> bool:
        if host in self._absent or self.is_stopping:
            return False
        has_left = host in self._leaving
        self._leaving.pop(host, None)
        returns = has_left and has_files(host.disk)
        return bool(host.exit_status) or returns or self._is_waited_for(host)

    def _is_waited_for(self, host: Host) -> bool:
        """Whether a recovery waits for who was here: it left, and nobody has written it down."""
        for other in self._world.up_hosts():
            recovery = other.member.ctx.members.recovery
            if recovery is not None and any(one.id == host.info.id for one in recovery.expected):
                return True
        return False

    def lets_start(self, host: Host) -> bool:
        """Not while all leave; nor first where all have died, without files: who finds nobody then
        founds a cluster of its own, in which the files of the others are refused.
        """
        if self.is_stopping:
            return False
        return not self._world.is_dark or has_files(host.disk) or self._is_anybody_there()

    def _is_anybody_there(self) -> bool:
        """Whether somebody is there that has files, or is in the cluster."""
        others = self._world.up_hosts()
        return any(one.joined or one.member.persistence.found for one in others)

    def _may_start(self, host: Host) -> bool:
        """Not yet with a damaged disk while nobody else is there that has files: it may have to
        begin without any. If it has said what is damaged, it gets another disk.
        """
        if not self.lets_start(host):
            return False
        if host not in self._rotten:
            return True
        if not self._is_anybody_there():
            return False
        world = self._world
        if DAMAGED in host.exit_reason:
            del self._rotten[host]
            host.works.disk = SimDisk(world.entropy.of(f"disk-{host.name}-{world.now_us}"))
        return True
