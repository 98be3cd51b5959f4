"""The working state of an assignment: all rows as numbers, who is where, who may go where.

A *board* starts from the current rows, keeps every holder it can where it stands, and offers the
changes that ``plan_row`` carries out with one copy for each new holder and none besides:

* a new holder takes the slot of one that goes (MOVE) or a hole (COPY, SHIFT UP);
* a holder steps down into a hole and a new holder takes its slot (SHIFT DOWN).

Holders that stay never change places otherwise: that would be a cycle, or cost a copy twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from whimbrel.core.check import check
from whimbrel.core.ids import REPLICA_SLOTS, MemberId, Row

HOLE = -1
"""In a base or target row: nobody."""
GONE = -2
"""In a base row: a member that may hold nothing any more."""


class Board:
    """Rows and counts of an assignment in the making.

    Members are numbers from 0, in the order of the groups. ``base`` is where the rows come from;
    ``slots`` is the target so far, ``depth`` long.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        groups: Sequence[Sequence[MemberId]],
        depth: int,
        leaving: Collection[MemberId],
    ) -> None:
        staying = [[member for member in group if member not in leaving] for group in groups]
        staying = [group for group in staying if group]
        self.members: list[MemberId] = [member for group in staying for member in group]
        self.group_of: list[int] = [number for number, group in enumerate(staying) for _ in group]
        self.depth = max(0, min(depth, len(staying), REPLICA_SLOTS))
        self.number_of = {member: number for number, member in enumerate(self.members)}
        self.is_ungrouped = len(staying) == len(self.members)
        """Whether each member is a place of its own."""
        check(len(self.number_of) == len(self.members), "a member is in one group only")
        self.base: list[list[int]] = []
        self.slots: list[list[int]] = []
        self.crowded: dict[int, list[int]] = {}
        """Members that lose a partition as their group has it twice; they get no other slot."""
        self.replicas = [0] * len(self.members)
        """Replicas of each member in the target so far."""
        self.primaries = [0] * len(self.members)
        """Primaries of each member in the target so far."""
        self.held: list[dict[int, None]] = [{} for _ in self.members]
        """The partitions each member holds in the target so far."""
        self.fresh: list[dict[int, None]] = [{} for _ in self.members]
        """Of these, the partitions that the member would have to be sent."""
        self.kept_loads = [0] * len(self.members)
        """Replicas of each member in the base, at any index."""
        self.backed: dict[tuple[int, int, int], int] = {}
        """How often a member (last) backs a primary (middle) at an index (first)."""
        self.together: dict[tuple[int, int], int] = {}
        """How many partitions two members hold together, the smaller number first."""
        self.has_spares = False
        """Whether any base row has holders beyond the depth."""
        self.hole_count = 0
        """Copies that are needed whatever happens: holders that the base rows lack."""
        self._whole: dict[Row, list[int]] = {}
        """Rows that need nothing, in numbers; empty for the others."""
        self.take_rows(rows)

    # -- building -------------------------------------------------------------------------

    def take_rows(self, rows: Sequence[Row]) -> None:
        """Take further rows in: those of the next partitions."""
        seen: dict[Row, int] = {}
        for row in rows:
            numbers = self._whole.get(row)
            if numbers is None:
                numbers = self._whole[row] = self._whole_row(row)
            if numbers:
                seen[row] = seen.get(row, 0) + 1
                self._add_whole(numbers)
            else:
                self._add_row(row)
        for row, count in seen.items():
            self._book_whole(self._whole[row][: self.depth], count)

    def _whole_row(self, row: Row) -> list[int]:
        """The numbers of a row as deep as wanted, all of whose holders may stay; else empty."""
        numbers = [self.number_of.get(member, GONE) for member in row if member is not None]
        groups = {self.group_of[number] for number in numbers if number >= 0}
        if len(numbers) != self.depth or len(groups) != self.depth or None in row[: self.depth]:
            return []
        return numbers + [HOLE] * (len(row) - self.depth)

    def _add_whole(self, numbers: list[int]) -> None:
        """Take such a row; in a large table there are few different ones, so they are counted."""
        pid = len(self.base)
        self.base.append(numbers)
        target = numbers[: self.depth]
        self.slots.append(target)
        for member in target:
            self.held[member][pid] = None

    def _book_whole(self, target: Sequence[int], count: int) -> None:
        """Count the holders of equal rows."""
        self.primaries[target[0]] += count
        for slot, member in enumerate(target):
            self.replicas[member] += count
            self.kept_loads[member] += count
            if slot:
                key = (slot, target[0], member)
                self.backed[key] = self.backed.get(key, 0) + count
            for other in target[:slot]:
                pair = (member, other) if member < other else (other, member)
                self.together[pair] = self.together.get(pair, 0) + count

    def _add_row(self, row: Row) -> None:
        base = self._base_row(row)
        pid = len(self.base)
        self.base.append(base)
        target = [HOLE] * self.depth
        self.slots.append(target)
        spare: list[int] = []
        for slot, member in enumerate(base):
            if member >= 0:
                self.kept_loads[member] += 1
                if slot < self.depth:
                    self.put(pid, slot, member)
                else:
                    spare.append(member)
                    self.has_spares = True
        # A holder beyond the depth has the data already, so it fills a vacancy for nothing.
        for slot, holder in enumerate(target):
            if holder == HOLE and spare:
                self.put(pid, slot, spare.pop(0))
        self.hole_count += target.count(HOLE)

    def _base_row(self, row: Row) -> list[int]:
        """The row in numbers: members that may not hold it are GONE, survivors start at 0."""
        base: list[int] = []
        for member in row:
            number = HOLE if member is None else self.number_of.get(member, GONE)
            # Of two members of one group the hotter one stays.
            if number >= 0 and not self._is_free(base, self.group_of[number]):
                self.crowded.setdefault(len(self.base), []).append(number)
                number = GONE
            base.append(number)
        if base[0] == HOLE:
            # Table repair promotes the hottest survivor; count it where it will stand.
            for slot, number in enumerate(base):
                if number >= 0:
                    base[0], base[slot] = number, HOLE
                    break
        return base

    def _is_free(self, numbers: Sequence[int], group: int) -> bool:
        """Whether no member of a group is among some members."""
        return not any(number >= 0 and self.group_of[number] == group for number in numbers)

    # -- changing -------------------------------------------------------------------------

    def put(self, pid: int, slot: int, member: int) -> None:
        """Fill a hole of the target."""
        self.slots[pid][slot] = member
        self.replicas[member] += 1
        self.held[member][pid] = None
        if member not in self.base[pid]:
            self.fresh[member][pid] = None
        self._count_together(pid, member, 1)
        if slot == 0:
            self.primaries[member] += 1
            self._count_backing(pid, 1)
        else:
            self._count_one(self.slots[pid][0], slot, member, 1)

    def take(self, pid: int, slot: int) -> None:
        """Empty a slot of the target."""
        member = self.slots[pid][slot]
        if slot == 0:
            self.primaries[member] -= 1
            self._count_backing(pid, -1)
        else:
            self._count_one(self.slots[pid][0], slot, member, -1)
        self.slots[pid][slot] = HOLE
        self._count_together(pid, member, -1)
        self.replicas[member] -= 1
        del self.held[member][pid]
        self.fresh[member].pop(pid, None)

    def _count_together(self, pid: int, member: int, change: int) -> None:
        """Book a member's company in a row."""
        for other in self.slots[pid]:
            if other >= 0 and other != member:
                key = (member, other) if member < other else (other, member)
                self.together[key] = self.together.get(key, 0) + change

    def _count_backing(self, pid: int, change: int) -> None:
        """Book who backs the primary of a row."""
        target = self.slots[pid]
        for slot in range(1, self.depth):
            self._count_one(target[0], slot, target[slot], change)

    def _count_one(self, primary: int, slot: int, backup: int, change: int) -> None:
        """Book one backup of a primary, if there are both."""
        if primary >= 0 and backup >= 0:
            key = (slot, primary, backup)
            self.backed[key] = self.backed.get(key, 0) + change

    def replace(self, pid: int, slot: int, member: int) -> None:
        """Give a filled slot of the target to another member."""
        self.take(pid, slot)
        self.put(pid, slot, member)

    def restore(self, pid: int, target: Sequence[int]) -> None:
        """Let a full target row be what it was before."""
        changed = [slot for slot, member in enumerate(target) if self.slots[pid][slot] != member]
        for slot in changed:
            self.take(pid, slot)
        for slot in changed:
            self.put(pid, slot, target[slot])

    def make_primary(self, pid: int, member: int) -> None:
        """Give slot 0 to another holder of the target; see ``candidates``."""
        target, base = self.slots[pid], self.base[pid]
        self._count_backing(pid, -1)
        before = target[0]
        if before == base[0] and base[target.index(member)] != HOLE:
            self._bring_to_hole(pid, member)
        place = target.index(member)
        target[0], target[place] = member, before
        self.primaries[before] -= 1
        self.primaries[member] += 1
        self._count_backing(pid, 1)

    def _bring_to_hole(self, pid: int, member: int) -> None:
        """Let a new holder and the holder of a hole change places, as far as each may.

        One that has stepped down into the hole can only go back; then whoever stands in its slot
        goes on to the new holder's.
        """
        target, base = self.slots[pid], self.base[pid]
        place = target.index(member)
        empty = self._first_hole(pid)
        other = target[empty]
        target[empty] = member
        back = place if self._is_arrival(base, other) else base.index(other)
        if back != place:
            target[place] = target[back]
        target[back] = other

    def change_places(self, pid: int, slot: int, other: int) -> None:
        """Let two backups of a row change places; see ``may_change_places``."""
        target = self.slots[pid]
        self._count_backing(pid, -1)
        target[slot], target[other] = target[other], target[slot]
        self._count_backing(pid, 1)

    def _first_hole(self, pid: int) -> int:
        """The hottest backup slot that was a hole in the base; HOLE when there is none."""
        base = self.base[pid]
        for slot in range(1, self.depth):
            if base[slot] == HOLE:
                return slot
        return HOLE

    # -- asking ---------------------------------------------------------------------------

    def backing(self, pid: int, slot: int, member: int) -> int:
        """How many pairs of primary and backup there are already of those a row would add.

        Args:
            pid: The partition.
            slot: The slot that the member would have.
            member: The member that would stand there.
        """
        target = self.slots[pid]
        if slot:
            return self.backed.get((slot, target[0], member), 0)
        return sum(
            self.backed.get((place, member, target[place]), 0) for place in range(1, self.depth)
        )

    def company(self, pid: int, slot: int, member: int) -> int:
        """How often a member stands together with those who would be beside it in a row."""
        count = self.backing(pid, slot, member)
        for place, other in enumerate(self.slots[pid]):
            if place != slot and other >= 0:
                key = (member, other) if member < other else (other, member)
                count += self.together.get(key, 0)
        return count

    def can_hold(self, pid: int, slot: int, member: int) -> bool:
        """Whether a member may stand in a slot of the target, whoever stands there now.

        Its group must have no other slot of the row; and a member of the base row comes back
        only to the slot it has there, or from beyond the depth.
        """
        group = self.group_of[member]
        for place, holder in enumerate(self.slots[pid]):
            if holder >= 0 and self.group_of[holder] == group and place != slot:
                return False
        base = self.base[pid]
        if member in base:
            place = base.index(member)
            return place == slot or place >= self.depth
        return pid not in self.crowded or member not in self.crowded[pid]

    def is_new(self, pid: int, member: int) -> bool:
        """Whether a member would have to be sent the partition."""
        return member not in self.base[pid]

    def is_changed(self, pid: int) -> bool:
        """Whether a target row differs from where it comes from."""
        return self.slots[pid] != self.base[pid][: self.depth]

    def candidates(self, pid: int) -> list[int]:
        """The holders of a target row that could be its primary at no further copy.

        Holders that come from elsewhere may be primary when the base's primary goes, or when
        there is a hole for it to step down to.
        """
        target, base = self.slots[pid], self.base[pid]
        first = base[0]
        stays = first >= 0 and first in target
        if stays and self._first_hole(pid) == HOLE:
            return [target[0]]
        others = [
            holder
            for holder in target
            if holder >= 0 and holder != first and self._is_arrival(base, holder)
        ]
        return [first, *others] if stays else others

    def _is_arrival(self, base: Sequence[int], holder: int) -> bool:
        """Whether a holder is new in the row or comes up from beyond the depth."""
        return holder not in base or base.index(holder) >= self.depth

    def may_change_places(self, pid: int, slot: int, other: int, *, unsettle: bool) -> bool:
        """Whether two backups of a row may have each other's slot at no further copy.

        A new holder may have any slot, one that stays only its own or a hole; unless
        ``unsettle``, one that stands in its own slot keeps it.
        """
        target, base = self.slots[pid], self.base[pid]
        if not unsettle and (target[slot] == base[slot] or target[other] == base[other]):
            return False
        return self._may_stand(pid, slot, target[other]) and self._may_stand(
            pid, other, target[slot]
        )

    def _may_stand(self, pid: int, slot: int, holder: int) -> bool:
        """Whether a holder of the target row may have another slot of it."""
        base = self.base[pid]
        return (
            self._is_arrival(base, holder)
            or base[slot] == holder
            or (base[slot] == HOLE and base.index(holder) < slot)
        )

    def row(self, pid: int) -> Row:
        """The target row in full length."""
        members = [self.members[number] if number >= 0 else None for number in self.slots[pid]]
        return tuple(members) + (None,) * (REPLICA_SLOTS - self.depth)
