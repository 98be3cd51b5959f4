"""What is looked at in every state and at every transition of an exploration."""

from __future__ import annotations

from whimbrel.core.model import Verdict
from whimbrel.sim.explore.disks import LOST
from whimbrel.sim.explore.lab import GONE, Facts
from whimbrel.sim.explore.state import Move, State
from whimbrel.sim.explore.step_rules import Broken, copies_promised
from whimbrel.sim.explore.universe import QUEUE_MAX, Universe
from whimbrel.sim.explore.worlds import identity_of


class Judge:
    """The rules of one world. What depends on the members alone is worked out once."""

    def __init__(self, universe: Universe) -> None:
        self.universe = universe
        self._budget = copies_promised(universe.world) - 1
        self._alike: dict[tuple[int, ...], Broken] = {}
        self._unsafe: dict[tuple[int, ...], str] = {}
        self._at_rest: dict[tuple[int, ...], Broken] = {}

    def is_promised(self, state: State) -> bool:
        """Whether no more members died than the world has copies to spare."""
        return state.killed <= self._budget

    def of_move(self, move: Move) -> Broken:
        """Everything that a transition and the state after it break."""
        state, outcome = move.state, move.outcome
        broken: Broken = []
        if outcome is not None:
            broken += outcome.broken
            if outcome.rows:
                members = self.universe.living(state)
                lab = self.universe.lab
                stimulus = lab.items[move.item]
                broken += lab.rules.commit_order(members, move.who, outcome.rows, stimulus)
            if outcome.lost and self.is_promised(state):
                broken.append(("D7", f"{move.who}: a partition is told as lost within the promise"))
        broken += self.of_members(state.members)
        broken += self._kept(state)
        for key, queue in state.links:
            if len(queue) > QUEUE_MAX:
                broken.append(("X1", f"{len(queue)} items are on their way from {key[0]}"))
        return broken

    def of_members(self, members: tuple[int, ...]) -> Broken:
        """P2, P3, P7: what no two members may differ in."""
        known = self._alike.get(members)
        if known is None:
            facts = [self.universe.lab.facts[one] for one in members if one != GONE]
            known = self._alike[members] = [*_rows_alike(facts), *_verdicts_alike(facts)]
        return known

    def _kept(self, state: State) -> Broken:
        """D6, P5, S1: an acknowledged entry has as many copies as the plan never goes below.

        One less for each member that was killed. In memory, but for the time in which all come back
        from their files; and on disks, if all lost their power now with what no sync has covered.
        """
        if not self.is_promised(state):
            return []
        needed = self._budget + 1 - state.killed
        broken: Broken = []
        if not state.is_dark:
            facts = self.universe.lab.facts
            held = [facts[one].numbers for one in state.members if one != GONE]
            for number, count in self._lacking(state, held, needed):
                sentence = f"{count} members hold the acknowledged entry {number}"
                broken.append(("P5" if count else "D6", sentence))
        broken += self._safe_on_disk(state, needed)
        return broken

    def _safe_on_disk(self, state: State, needed: int) -> Broken:
        if self.universe.power is None:
            return []
        disks = self.universe.power.disks
        found: list[tuple[int, ...]] = []
        broken: Broken = []
        for name, disk in zip(self.universe.names, state.disks, strict=True):
            held = disks.held(disks.left(disk, (), LOST))
            if isinstance(held, str):
                broken.append(("S1", f"the disk of {name} cannot be loaded: {held}"))
            else:
                found.append(held)
        for number, count in self._lacking(state, found, needed):
            broken.append(("S1", f"{count} disks have the acknowledged entry {number}"))
        return broken

    @staticmethod
    def _lacking(state: State, held: list[tuple[int, ...]], needed: int) -> list[tuple[int, int]]:
        """Acknowledged entries of which there are too few copies, and how many there are."""
        counts = [(number, sum(number in one for one in held)) for number in state.acked]
        return [(number, count) for number, count in counts if count < needed]

    def unsettled_because(self, state: State) -> str:
        """Why a silent state is no end; empty when it is settled."""
        reason = self._unsafe.get(state.members)
        if reason is None:
            members = self.universe.living(state)
            rules = self.universe.lab.rules
            reason = self._unsafe[state.members] = rules.unsafe_because(members)
        return reason

    def of_rest(self, state: State) -> Broken:
        """P7, P11, D8, D9, and D1, O2, S7: what must hold in a settled state."""
        known = self._at_rest.get(state.members)
        if known is None:
            members = self.universe.living(state)
            known = self._at_rest[state.members] = self.universe.lab.rules.at_rest(members)
        return [*known, *self._read(state), *self._gone_back(state), *self._on_disk(state)]

    def _gone_back(self, state: State) -> Broken:
        """O2: in a stable cluster with everybody there the rows are the stable ones."""
        world, facts = self.universe.world, self.universe.lab.facts
        if not world.stable_without or GONE in state.members:
            return []
        rows = facts[state.members[0]].rows
        if rows == world.rows_before:
            return []
        return [("O2", f"the rows are {rows} and not those of the stable table")]

    def _on_disk(self, state: State) -> Broken:
        """S7: what lies on its disk is what a member holds."""
        broken: Broken = []
        if self.universe.power is None:
            return broken
        disks = self.universe.power.disks
        for name, one, disk in zip(self.universe.names, state.members, state.disks, strict=True):
            if one != GONE and disks.held(disk) != self.universe.lab.facts[one].numbers:
                held = self.universe.lab.facts[one].numbers
                broken.append(("S7", f"{name} holds {held}, its disk {disks.held(disk)}"))
        return broken

    def _read(self, state: State) -> Broken:
        """D1: what was acknowledged is at the primary."""
        if not self.is_promised(state):
            return []
        lab, world = self.universe.lab, self.universe.world
        broken: Broken = []
        for number in state.acked:
            pid = world.partition_of(number)
            for name, one in zip(self.universe.names, state.members, strict=True):
                if one != GONE and lab.facts[one].rows[pid][0] == identity_of(name):
                    if number not in lab.facts[one].numbers:
                        broken.append(("D1", f"the primary lacks the acknowledged entry {number}"))
                    break
            else:
                broken.append(("D1", f"p{pid} has no primary"))
        return broken


def _rows_alike(facts: list[Facts]) -> Broken:
    """P2 and P3: one version of one master is one row, hence one primary."""
    broken: Broken = []
    rows: dict[tuple[int, int, str | None], object] = {}
    for one in facts:
        for pid, (row, version) in enumerate(zip(one.rows, one.versions, strict=True)):
            if rows.setdefault((pid, version, one.master), row) != row:
                broken.append(("P2", f"p{pid} has two rows at version {version}"))
    return broken


def _verdicts_alike(facts: list[Facts]) -> Broken:
    """P7: nobody has another verdict of a migration than somebody else."""
    broken: Broken = []
    verdicts: dict[str, Verdict] = {}
    for one in facts:
        for migration, verdict in one.verdicts:
            if verdicts.setdefault(migration, verdict) is not verdict:
                broken.append(("P7", f"{migration} has two verdicts"))
    return broken
