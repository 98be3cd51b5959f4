"""A death at every write: everybody dies while a disk writes, command by command.

A small history is played once, and the commands are counted that change what lies on any disk.
Then it is played again for each of them, and in the middle of that command all processes are
killed, or all machines lose their power: before its first byte, half-way, before its last byte.
Everybody comes back with what is left, and every rule of the simulator judges the run to its end.
Commands of a recovery are among them: one history is a cluster that is on its way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from whimbrel.core.persistence.commands import Command, DiskProblem, List, Read
from whimbrel.errors import UsageError
from whimbrel.sim.bug import Bug
from whimbrel.sim.disk import size_of
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.faults.event import FaultEvent
from whimbrel.sim.host import Host
from whimbrel.sim.persisted import ALWAYS, FULL
from whimbrel.sim.profile import SECOND_US, Plan, draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.run import Run
from whimbrel.sim.structures.configured import MAPS_ONLY, configured
from whimbrel.sim.world import Violation

MEMBERS = ("m1", "m2", "m3", "m4")
RETURN_US = 20_000
"""From one start to the next, when all come back."""
TEARS = (0, 1, 2)
"""Where a command that writes bytes is cut: before the first, half-way, before the last one."""


class History(msgspec.Struct, frozen=True):
    """What is played while writes are counted; there is always a light load."""

    events: tuple[FaultEvent, ...]
    seed: int
    span_us: int
    operations_per_s: int = 15
    segment_bytes: int = 20_000


_ALL_BACK = tuple(
    FaultEvent((1 + number) * RETURN_US, "start", (name,)) for number, name in enumerate(MEMBERS)
)
HISTORIES: dict[str, History] = {
    "load": History((), 1, SECOND_US, operations_per_s=30),
    "join": History((FaultEvent(0, "start", ("m4",)),), 2, SECOND_US),
    "compaction": History((), 3, 4 * SECOND_US, operations_per_s=60, segment_bytes=500),
    "return": History((FaultEvent(0, "outage"), *_ALL_BACK), 4, 2 * SECOND_US),
    "backup": History((FaultEvent(0, "backup", ("cut",)),), 5, SECOND_US),
}
"""Writes and removals alone; copies to a newcomer; segments that are full at once and are made
fewer; a cluster that comes back from its files; a backup."""


class Cut(msgspec.Struct, frozen=True):
    """One run."""

    history: str
    index: int
    """Commands that were carried out before."""
    tear: int
    """One of ``TEARS``."""
    power: bool
    """Whether machines lose their power, and not processes their lives alone."""
    victim: str
    """Whose disk it was; empty when the run has not come so far."""
    violations: tuple[Violation, ...]

    @property
    def text(self) -> str:
        """For people."""
        verdict = "; ".join(f"{one.rule}: {one.sentence}" for one in self.violations) or "holds"
        how = "power" if self.power else "kill"
        return f"{self.history}, {how} at {self.index}.{self.tear} ({self.victim}): {verdict}"


class _Fuse:
    """Counts commands of all disks while it is lit, and ends everybody at one of them."""

    def __init__(self, run: Run, index: int, tear: int, *, power: bool) -> None:
        self.sizes: list[int] = []
        """Bytes of each command that was counted."""
        self.victim = ""
        self.is_lit = False
        self._run, self._index, self._tear, self._power = run, index, tear, power
        for host in run.world.hosts:
            host.works.fuse = self._watching(host)

    def _watching(self, host: Host) -> Callable[[tuple[Command, ...]], bool]:
        def fuse(commands: tuple[Command, ...]) -> bool:
            return self.is_lit and self._pass(host, commands)

        return fuse

    def _pass(self, host: Host, commands: tuple[Command, ...]) -> bool:
        for position, command in enumerate(commands):
            if isinstance(command, Read | List):
                continue
            if len(self.sizes) == self._index:
                self._burn(host, commands, position)
                return True
            self.sizes.append(size_of(command))
        return False

    def _burn(self, host: Host, commands: tuple[Command, ...], position: int) -> None:
        self.is_lit, self.victim = False, host.name
        size = size_of(commands[position])
        try:
            host.disk.execute(commands[:position])
            host.disk.begin(commands[position], (0, size // 2, max(0, size - 1))[self._tear])
        except DiskProblem:
            pass  # it is dead all the same
        self._run.nemesis.perform(FaultEvent(0, "outage", value=int(self._power)))


def cut_plan(history: History) -> Plan:
    """Three members and a place for a fourth, three partitions with a backup, syncs always."""
    profile = msgspec.structs.replace(profile_named("disks"), is_extreme=False)
    plan = draw_plan(Entropy(history.seed), profile)
    persistence = msgspec.structs.replace(
        plan.settings.persistence,
        fsync=ALWAYS,
        recovery_policy=FULL,
        segment_bytes=history.segment_bytes,
    )
    settings = msgspec.structs.replace(
        plan.settings, partition_count=3, persistence=persistence, structures=configured(1, 0)
    )
    return msgspec.structs.replace(
        plan, settings=settings, members=3, hosts=4, lite_hosts=0, machine_size=1,
        backup_count=1, async_backup_count=0, smart_clients=1, single_clients=1,
        operations_per_s=history.operations_per_s, kinds=MAPS_ONLY,
    )  # fmt: skip


class _CutRun:
    """One run: start, load, what the history is about, a death, the return, rest, final reads."""

    def __init__(
        self, name: str, index: int, tear: int, *, power: bool, bug: Bug | None = None
    ) -> None:
        if bug is not None:
            bug.begin_run()
        self.history = HISTORIES[name]
        self.run = Run(
            cut_plan(self.history),
            Entropy(self.history.seed),
            None if bug is None else bug.make_engine,
        )
        self.run.nemesis.script = []
        self.fuse = _Fuse(self.run, index, tear, power=power)

    def play(self) -> None:
        """To its end, or to the first rule that is broken."""
        run, world = self.run, self.run.world
        if not run._start() or not run._rest("start"):
            return
        run.workload.start()
        if not run._advance(SECOND_US):
            return
        self.fuse.is_lit = True
        for event in self.history.events:
            world.scheduler.after(1 + event.at_us, self._perform, event)
        if not self._until_dead():
            return
        self.fuse.is_lit = False
        for event in _ALL_BACK if self.fuse.victim else ():
            world.scheduler.after(event.at_us, run.nemesis.perform, event)
        if run._advance(SECOND_US):
            run._finish()

    def _perform(self, event: FaultEvent) -> None:
        """What the history has yet to do is left undone after a death."""
        if not self.fuse.victim:
            self.run.nemesis.perform(event)

    def _until_dead(self) -> bool:
        world = self.run.world
        until_us = world.now_us + self.history.span_us
        while world.now_us < until_us and not self.fuse.victim:
            world.scheduler.run_one()
            if world.violations:
                return False
        return True


def count_writes(history: str) -> list[int]:
    """Bytes of each command that changes a disk in a history without a death, in order.

    Raises:
        UsageError: There is no such history, or it breaks a rule.
    """
    _check_name(history)
    run = _CutRun(history, -1, 0, power=False)
    run.play()
    if run.run.world.violations:
        raise UsageError(f"{history} breaks a rule as it is: {run.run.world.violations[0]}")
    return run.fuse.sizes


def cut(history: str, index: int, tear: int, *, power: bool, bug: Bug | None = None) -> Cut:
    """One run with a death in the middle of a command.

    Raises:
        UsageError: There is no such history.
    """
    _check_name(history)
    played = _CutRun(history, index, tear, power=power, bug=bug)
    played.play()
    violations = tuple(played.run.world.violations)
    return Cut(history, index, tear, power, played.fuse.victim, violations)


def cuts(
    history: str = "all", runs_max: int | None = None, bug: Bug | None = None
) -> Iterator[Cut]:
    """All of them: each command is cut by a kill and by a loss of power, at each of its tears.

    Args:
        history: A name of ``HISTORIES`` or ``all``.
        runs_max: Of each history play so many, evenly spread; None for all.
        bug: A planted bug, to see that it is caught.

    Yields:
        Each when it has been played.

    Raises:
        UsageError: There is no such history, or it breaks a rule without any death.
    """
    for name in HISTORIES if history == "all" else (history,):
        deaths = [
            (index, tear, power)
            for index, size in enumerate(count_writes(name))
            for tear in (TEARS if size > 1 else TEARS[:1])
            for power in (False, True)
        ]
        count = min(len(deaths), runs_max or len(deaths))
        for number in range(count):
            index, tear, power = deaths[number * len(deaths) // count]
            yield cut(name, index, tear, power=power, bug=bug)


def _check_name(history: str) -> None:
    if history not in HISTORIES:
        raise UsageError(
            f"no history is called {history!r}; there are: {', '.join(HISTORIES)}, all"
        )
