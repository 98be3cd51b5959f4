"""The disks of a tiny world: what lies on them as numbers, each different work carried out once.

Works are carried out whole and answered at once: who dies between a work and its answer has a disk
with the work done, which is one of the ways in which a loss of power leaves it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

from whimbrel.core.effects import DiskWork
from whimbrel.core.member import Member
from whimbrel.core.model import MemberInfo
from whimbrel.core.persistence.commands import Command, DiskProblem
from whimbrel.core.persistence.format import DamageError
from whimbrel.sim.disk import SimDisk, size_of
from whimbrel.sim.disks.rules import load_all
from whimbrel.sim.explore.image import digest
from whimbrel.sim.explore.lab import NAMESPACE, Lab, address_of, numbers_in
from whimbrel.sim.explore.step_rules import StepRules
from whimbrel.sim.explore.worlds import MEMBERS, identity_of
from whimbrel.sim.structures.map.model import store_of
from whimbrel.structures.kinds import KINDS

if TYPE_CHECKING:
    from whimbrel.sim.host import Host

LOST, DONE, TORN = "L", "D", "T"
"""What a loss of power leaves: nothing that no sync has covered; all, with what was asked and not
done; the same up to the first command that writes, of which half is there."""


class Disks:
    """Snapshots of disks, and what becomes of them."""

    def __init__(self, lab: Lab) -> None:
        """Begin with an empty one."""
        self._lab = lab
        self._disks: list[SimDisk] = []
        self._numbers: dict[bytes, int] = {}
        self._done: dict[tuple[int, int], tuple[int, int]] = {}
        self._left: dict[tuple[int, tuple[int, ...], str], int] = {}
        self._held: dict[int, tuple[int, ...]] = {}
        self._reader: Host | None = None
        self.empty = self._add(SimDisk(random.Random(0)))

    def _add(self, disk: SimDisk) -> int:
        key = digest(disk)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._disks)
            self._disks.append(disk)
        return number

    def _copy(self, number: int) -> SimDisk:
        return self._disks[number].fork(random.Random(0))

    def do(self, number: int, work: int) -> tuple[int, int]:
        """Carry a work out: the disk after it, and the answer."""
        key = (number, work)
        found = self._done.get(key)
        if found is None:
            disk = self._copy(number)
            answer = disk.answer_to(self._work(work))
            found = self._done[key] = self._add(disk), self._lab.item(answer)
        return found

    def _work(self, item: int) -> DiskWork:
        work = self._lab.items[item]
        if not isinstance(work, DiskWork):
            raise TypeError(f"{work!r} is no work")
        return work

    def left(self, number: int, works: tuple[int, ...], how: str) -> int:
        """What a loss of power leaves of a disk that was asked for these works."""
        key = (number, works, how)
        found = self._left.get(key)
        if found is None:
            disk = self._copy(number)
            if how == DONE:
                for work in works:
                    disk.answer_to(self._work(work))
            elif how == TORN and works:
                _carry_out_half(disk, self._work(works[0]).commands)
            disk.lose_power(keeps=how != LOST)
            found = self._left[key] = self._add(disk)
        return found

    def held(self, number: int) -> tuple[int, ...] | str:
        """Entries that a load of a disk gives, or why it cannot be loaded."""
        found: tuple[int, ...] | str | None = self._held.get(number)
        if found is None:
            try:
                found = self._held[number] = self._load(number)
            except (DamageError, DiskProblem) as problem:
                return str(problem)
        return found

    def _load(self, number: int) -> tuple[int, ...]:
        if self._reader is None:
            info = MemberInfo(identity_of(MEMBERS[0]), address_of(MEMBERS[0]))
            member = Member(info, self._lab.world.settings, KINDS)
            self._reader = cast("Host", StepRules.host(member, None))
        entries: list[int] = []
        for (_, namespace), fragment in load_all(self._disks[number], self._reader).items():
            if namespace == NAMESPACE:
                entries += numbers_in(store_of(fragment.store).records)
        return tuple(sorted(entries))


def _carry_out_half(disk: SimDisk, commands: tuple[Command, ...]) -> None:
    """Carry them out up to the first one that writes bytes, of which half get there."""
    for command in commands:
        size = size_of(command)
        if size:
            disk.begin(command, size // 2)
            return
        disk.execute((command,))
