"""What lies between a process and its disk: works that wait, the time they take, how they end."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from whimbrel.core.effects import DiskWork
from whimbrel.core.persistence.commands import Command
from whimbrel.core.stimuli import DiskDone, DiskFailed
from whimbrel.serving.outputs import Output
from whimbrel.sim.disk import SimDisk
from whimbrel.sim.scheduler import Scheduler


class User(Protocol):
    """Whose process asks things of the disk."""

    incarnation: int

    def disk_turn(self, incarnation: int) -> None:
        """The oldest work is due; ``do_next`` carries it out."""
        ...

    def disk_answered(self, incarnation: int, answer: DiskDone | DiskFailed) -> None:
        """A work has its answer."""
        ...


class DiskWorks:
    """What the process at a place has asked of the disk there, and the disk."""

    def __init__(
        self, user: User, scheduler: Scheduler, entropy: Callable[[], random.Random]
    ) -> None:
        """A disk that is made when somebody needs it; only then ``entropy`` is called."""
        self._user = user
        self._scheduler = scheduler
        self._entropy = entropy
        self._disk: SimDisk | None = None
        self._works: deque[DiskWork] = deque()
        """What the disk has not carried out."""
        self._due_us = 0
        """When it is through with all of them."""
        self._told_us = 0
        """When the process hears of the last one that it has carried out."""
        self.fuse: Callable[[tuple[Command, ...]], bool] | None = None
        """Asked before each work; True when its process has died in the middle of it."""

    @property
    def disk(self) -> SimDisk:
        """The disk; it stays when processes come and go."""
        if self._disk is None:
            self._disk = SimDisk(self._entropy())
        return self._disk

    @disk.setter
    def disk(self, disk: SimDisk) -> None:
        """From now on another one lies here: an old copy, or that of somebody else."""
        self._disk = disk

    def take(self, work: DiskWork) -> None:
        """Carry a work out after those before, each in its time."""
        self._works.append(work)
        self._due_us = max(self._scheduler.now_us, self._due_us) + self.disk.latency_us()
        user = self._user
        self._scheduler.at(self._due_us, user.disk_turn, user.incarnation)

    def do_next(self) -> None:
        """Carry out the oldest work; the engine hears of it a moment later, if it still lives."""
        work = self._works.popleft()
        if self.fuse is not None and self.fuse(work.commands):
            return
        answer = self.disk.answer_to(work)
        told_us = self._scheduler.now_us + self.disk.answer_us()
        self._told_us = max(told_us, self._told_us + 1)  # in order
        user = self._user
        self._scheduler.at(self._told_us, user.disk_answered, user.incarnation, answer)

    def carry_out(self, outputs: Iterable[Output]) -> None:
        """Carry out the works among these outputs at once; nobody is there to hear of it."""
        for output in outputs:
            if isinstance(output, DiskWork):
                self.disk.answer_to(output)

    def process_ends(self, *, is_killed: bool, is_last: bool) -> None:
        """The incarnation is over, and with its process if it is the last one of that.

        Who is killed in the middle of a work leaves a part of it; who ends by itself writes all.
        """
        works, self._works = self._works, deque()
        self._due_us = 0
        if not is_killed:
            self.carry_out(works)
        elif works:
            self.disk.carry_out_part(works[0].commands)
        if self._disk is not None and is_last:
            self._disk.kill()
            self._disk.disarm()  # that was meant for this process

    def lose_power(self) -> None:
        """The machine is gone without a word."""
        if self._disk is not None:
            self._disk.crash()
