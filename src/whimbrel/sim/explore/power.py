"""What may happen where members keep files: their disks work, power is lost, who lost it returns.

A loss of power takes everybody, or one member; each disk is left in one of the ways of ``disks``.
Who has lost its power comes back with what lies on its disk, as a new process of its identity.
Nobody waits for time to pass while somebody is away.
"""

from __future__ import annotations

from itertools import product

from whimbrel.core.stimuli import LinkFailed, LinkLost, LinkRestored
from whimbrel.sim.explore.disks import DONE, LOST, TORN, Disks
from whimbrel.sim.explore.lab import GONE, NEWS, Lab
from whimbrel.sim.explore.state import Draft, State, Transition
from whimbrel.sim.explore.worlds import identity_of

ALL = "*"
"""In the place of whose power is lost."""


class Power:
    """Disks and power of one universe."""

    def __init__(self, lab: Lab, names: str) -> None:
        """``names`` are those of all members, one letter each."""
        self.lab, self.names = lab, names
        self.disks = Disks(lab)

    def transitions(self, state: State) -> list[Transition]:
        """What may happen, a loss of power excluded."""
        found: list[Transition] = [("return", name) for name in state.away]
        return found + [
            ("disk", name) for name, works in zip(self.names, state.works, strict=True) if works
        ]

    def losses(self, state: State, victims: str) -> list[Transition]:
        """The ways in which power may be lost, if it may be.

        Args:
            state: Of the world.
            victims: Whose power it is, each by itself; empty for that of all at once.
        """
        if not state.powers or state.away:
            return []
        living = "".join(
            name for name, one in zip(self.names, state.members, strict=True) if one != GONE
        )
        if not victims:
            return [("power", ALL, "".join(how)) for how in self._ways(state, living)]
        return [
            ("power", name, "".join(how))
            for name in victims
            if name in living
            for how in self._ways(state, name)
        ]

    def _ways(self, state: State, names: str) -> list[tuple[str, ...]]:
        """For each of these a letter; all torn at once, else each lost or done by itself."""
        per_name: list[list[str]] = []
        torn: list[str] = []
        for name in names:
            lost, done, half = (self._left(state, name, how) for how in (LOST, DONE, TORN))
            per_name.append([LOST] if lost == done else [LOST, DONE])
            torn.append(LOST if half == lost else DONE if half == done else TORN)
        ways = list(product(*per_name))
        return [*ways, tuple(torn)] if TORN in torn else ways

    def _left(self, state: State, name: str, how: str) -> int:
        at = self.names.index(name)
        return self.disks.left(state.disks[at], state.works[at], how)

    def darken(self, state: State, draft: Draft, name: str, how: str) -> None:
        """The machine of a member is without power; its member is gone."""
        at = self.names.index(name)
        draft.disks[at] = self._left(state, name, how)
        draft.works[at] = ()

    def living(self, state: State, who: str) -> str:
        """Whose power a loss takes."""
        if who != ALL:
            return who
        return "".join(
            name for name, one in zip(self.names, state.members, strict=True) if one != GONE
        )

    def welcome(self, draft: Draft, name: str) -> None:
        """A member listens again where one has died: connections that broke are made again."""
        failed = self.lab.item(LinkFailed(identity_of(name)))
        lost = self.lab.item(LinkLost(identity_of(name)))
        restored = self.lab.item(LinkRestored(identity_of(name)))
        for (sender, receiver, channel), queue in list(draft.links.items()):
            if channel == NEWS and failed in queue:
                told = [one for item in queue for one in _again(item, failed, lost, restored)]
                draft.links[(sender, receiver, channel)] = tuple(told)


def _again(item: int, failed: int, lost: int, restored: int) -> tuple[int, ...]:
    return (lost, restored) if item == failed else (item,)
