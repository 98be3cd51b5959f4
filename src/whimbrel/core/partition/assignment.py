"""Who should hold what: the target row of every partition.

Sticky and deterministic: the same rows, groups and depth give the same targets on every member
(APR-64), a balanced table stays as it is, and the number of copies is the lowest that balance
allows. Four stages (FN-18): depth, quotas, holders, roles. Ties are broken by counts of who backs
whom, then by the order of members and partitions; nothing is shuffled.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterator, Sequence

from whimbrel.core.ids import MemberId, Row
from whimbrel.core.jobs import Job, finish
from whimbrel.core.partition.board import HOLE, Board
from whimbrel.core.partition.levelling import (
    level_order,
    level_pairs,
    level_primaries,
    level_replicas,
)
from whimbrel.core.partition.quotas import primary_quotas, replica_quotas

LOOK_AHEAD = 16
"""Needy members that are compared for how often they are paired with the row's holders."""

PARTNERS_SEEN_MAX = 64
"""Sorts of rows that are compared before one of them is moved."""

ROWS_TAKEN = 512
"""Rows that are taken in or given out in one piece of the work, about 1.5 us each."""
ROWS_CHANGED = 64
"""Rows that are filled in one piece, about 20 us each."""
ROWS_MOVED = 16
"""Replicas that are moved in one piece, up to 100 us each where there are many sorts of rows."""


def assign(
    rows: Sequence[Row],
    groups: Sequence[Sequence[MemberId]],
    depth: int,
    leaving: Collection[MemberId] = (),
) -> list[Row]:
    """The target rows: ``depth`` replicas each, evenly spread, reached with the fewest copies.

    Every target is one that ``plan_row`` reaches from the row given, with one copy for each new
    holder and no cycle. Primaries, and replicas in all, differ by at most one between members
    where the group rule, the holders that stay and the number of members allow it. Copies beyond
    the bound of ``bounds.lower_bound_copies`` are spent on primaries only when nothing else has to
    be sent: a plan that was dropped half-way can leave them uneven.

    Args:
        rows: The rows as table repair left them: only members of groups or leaving ones.
        groups: The members that may hold replicas, by place; no row gets two of one group.
        depth: Replicas per row: 1 + the deepest backup count. Capped by the number of groups.
        leaving: Members that get nothing and lose everything.

    Returns:
        One full-length row per given row. Without any member to assign to, the rows unchanged.
    """
    return finish(assigning(rows, groups, depth, leaving))


def assigning(
    rows: Sequence[Row],
    groups: Sequence[Sequence[MemberId]],
    depth: int,
    leaving: Collection[MemberId] = (),
) -> Job[list[Row]]:
    """``assign`` in pieces of a few milliseconds; the rows must not change before it has ended."""
    board = Board((), groups, depth, leaving)
    if board.depth == 0:
        return list(rows)
    for start in range(0, len(rows), ROWS_TAKEN):
        board.take_rows(rows[start : start + ROWS_TAKEN])
        yield
    assignment = _Assignment(board)
    yield from assignment.arrange_fresh_rounds()
    yield
    assignment.set_quotas()
    yield from assignment.fill_primaries()
    yield
    yield from assignment.fill_backups()
    yield
    yield from level_replicas(board, assignment.replica_quota, only_free=True)
    yield from assignment.move_surplus()
    yield from level_replicas(board, assignment.replica_quota, only_free=False)
    yield from level_primaries(board)
    yield from level_order(board)
    yield from level_pairs(board)
    if not any(board.fresh) and board.is_ungrouped:
        # Nothing has to be sent, so this is the time to make up for a plan that was dropped. Where
        # places hold several members, uneven primaries are no sign of that and copies never end.
        yield from level_primaries(board, may_copy=True)
    return (yield from _given_out(board))


def _given_out(board: Board) -> Job[list[Row]]:
    """The target rows; the board ends with them, since freeing a large one at once takes long."""
    chunks: list[list[Row]] = []
    for start in range((len(board.slots) - 1) // ROWS_TAKEN * ROWS_TAKEN, -1, -ROWS_TAKEN):
        chunks.append([board.row(pid) for pid in range(start, len(board.slots))])
        del board.slots[start:], board.base[start:]
        yield
    return [row for chunk in reversed(chunks) for row in chunk]


_Alike = dict[tuple[int, ...], deque[int]]
"""Rows of a member by its slot and a partner there."""


class _Assignment:
    """The stages that find holders, on one board."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.replica_quota: list[int] = []
        self.primary_quota: list[int] = []

    def arrange_fresh_rounds(self) -> Job[None]:
        """Lay empty rows out in rounds, as long as they fill whole rounds (first arrangement).

        In each round every member is primary once, and backup once per index; the distance from
        primary to backup goes round too, so that every member backs every other one equally often
        and a crash spreads its promotions. Only for groups of one member each.
        """
        board = self.board
        count = len(board.members)
        is_fresh = all(target.count(HOLE) == board.depth for target in board.slots)
        if not board.is_ungrouped or not is_fresh:
            return
        for pid in range(len(board.slots) // count * count):
            turn, member = divmod(pid, count)
            board.put(pid, 0, member)
            for slot in range(1, board.depth):
                distance = 1 + (turn + slot - 1) % (count - 1)
                board.put(pid, slot, (member + distance) % count)
            if not (pid + 1) % ROWS_CHANGED:
                yield

    def set_quotas(self) -> None:
        """Fix how many replicas and primaries each member shall have."""
        board = self.board
        loads = [max(pair) for pair in zip(board.kept_loads, board.replicas, strict=True)]
        self.replica_quota = replica_quotas(len(board.slots), board.depth, loads, board.group_of)
        self.primary_quota = primary_quotas(len(board.slots), board.primaries, self.replica_quota)

    # -- needs ----------------------------------------------------------------------------

    def replica_need(self, member: int) -> int:
        """Replicas a member lacks; negative when it has too many."""
        return self.replica_quota[member] - self.board.replicas[member]

    def primary_need(self, member: int) -> int:
        """Primaries a member lacks; negative when it has too many."""
        return self.primary_quota[member] - self.board.primaries[member]

    # -- vacancies ------------------------------------------------------------------------

    def fill_primaries(self) -> Job[None]:
        """Give each row without a primary a member that lacks primaries."""
        board = self.board
        vacant = [pid for pid, target in enumerate(board.slots) if target[0] == HOLE]
        queue = _NeedQueue([self.primary_need(member) for member in range(len(board.members))])
        for number, pid in enumerate(vacant, 1):
            member = self._pick(queue, pid, 0)
            board.put(pid, 0, member)
            queue.lower(member)
            if not number % ROWS_CHANGED:
                yield

    def fill_backups(self) -> Job[None]:
        """Fill the other vacancies; let new holders take over from primaries with too many."""
        board = self.board
        queue = _NeedQueue([self.replica_need(member) for member in range(len(board.members))])
        vacant = [pid for pid, target in enumerate(board.slots) if HOLE in target]
        for number, pid in enumerate(vacant, 1):
            target = board.slots[pid]
            for slot in range(1, board.depth):
                if target[slot] == HOLE:
                    member = self._pick(queue, pid, slot)
                    board.put(pid, slot, member)
                    queue.lower(member)
            self._relieve_primary(pid)
            if not number % ROWS_CHANGED:
                yield

    def _pick(self, queue: _NeedQueue, pid: int, slot: int) -> int:
        """Of the neediest members that fit in a slot, one whose pairs are rare there.

        A member's need is the sum of what it lacks with each partner, hence the weight.
        """
        board = self.board
        partners = len(board.members) - 1
        pairs = 1 if slot else max(1, board.depth - 1)
        best, best_score, looked = -1, 0, 0
        for need, member in queue.neediest_first():
            if best >= 0 and (need <= 0 or looked >= LOOK_AHEAD):
                break
            if board.can_hold(pid, slot, member):
                score = need * pairs - partners * board.company(pid, slot, member)
                if best < 0 or score > best_score:
                    best, best_score = member, score
                looked += 1
        return best

    def _relieve_primary(self, pid: int) -> None:
        """Let a primary with too many partitions step down for a new holder that lacks them."""
        board = self.board
        primary = board.slots[pid][0]
        if self.primary_need(primary) >= 0:
            return
        needy = [member for member in board.candidates(pid) if self.primary_need(member) > 0]
        if needy:
            board.make_primary(pid, max(needy, key=self.primary_need))

    # -- moves ----------------------------------------------------------------------------

    def move_surplus(self) -> Job[None]:
        """Move replicas straight from members with too many to members with too few.

        Primaries first while both sides gain by it, then backups, then whatever is left.
        """
        board = self.board
        for as_primary, strict in ((True, True), (False, True), (False, False), (True, False)):
            for giver in range(len(board.members)):
                if self.replica_need(giver) < 0:
                    yield from self._move_from(giver, as_primary, strict)

    def _move_from(self, giver: int, as_primary: bool, strict: bool) -> Job[None]:
        """Move replicas of one role away from a member, until it or all others are satisfied."""
        board = self.board
        takers = [member for member in range(len(board.members)) if self.replica_need(member) > 0]
        rows: dict[int, _Alike] = {}
        for number in itertools.count(1):
            if not takers or self._surplus(giver, as_primary, strict) <= 0:
                return
            if not number % ROWS_MOVED:
                yield
            taker = max(takers, key=lambda member: self._role_need(member, as_primary))
            if as_primary and strict and self.primary_need(taker) <= 0:
                return
            if taker not in rows:
                rows[taker] = yield from self._rows_by_partner(giver, taker, as_primary)
            found = self._pick_row(giver, taker, rows[taker])
            if found is not None:
                slot, pid = found
                board.replace(pid, slot, taker)
            if found is None or self.replica_need(taker) <= 0:
                takers.remove(taker)

    def _rows_by_partner(self, giver: int, taker: int, as_primary: bool) -> Job[_Alike]:
        """The rows in which one member may give a role to another, by slot and a partner there."""
        board = self.board
        alike: _Alike = {}
        for number, pid in enumerate(list(board.held[giver]), 1):
            if not number % ROWS_TAKEN:
                yield
            target = board.slots[pid]
            if (target[0] == giver) == as_primary:
                slot = target.index(giver)
                if board.can_hold(pid, slot, taker):
                    key = (slot, *[member for member in target[:3] if member != giver])
                    alike.setdefault(key, deque()).append(pid)
        return alike

    def _surplus(self, giver: int, as_primary: bool, strict: bool) -> int:
        """How many replicas of a role a member may give; strictly, so that both roles level."""
        surplus = -self.replica_need(giver)
        if not strict:
            return surplus
        primaries = -self.primary_need(giver)
        return min(surplus, primaries) if as_primary else surplus - max(0, primaries)

    def _role_need(self, member: int, as_primary: bool) -> tuple[int, int]:
        """How much a member lacks of a role, then how much in all."""
        lacking = self.replica_need(member)
        primaries = self.primary_need(member)
        return (primaries if as_primary else lacking - primaries, lacking)

    def _pick_row(self, giver: int, taker: int, alike: _Alike) -> tuple[int, int] | None:
        """The slot and row whose move levels the pairs of primary and backup most, if any fits."""
        board = self.board
        best: tuple[int, int] | None = None
        best_gain = 0
        for looked, ((slot, *_), pids) in enumerate(alike.items()):
            if best is not None and looked >= PARTNERS_SEEN_MAX:
                break
            # Rows that have changed since they were listed are of no use to this taker.
            while pids and not self._still_fits(pids[0], slot, giver, taker):
                pids.popleft()
            if pids:
                gain = board.company(pids[0], slot, giver) - board.company(pids[0], slot, taker)
                if best is None or gain > best_gain:
                    best, best_gain = (slot, pids[0]), gain
        return best

    def _still_fits(self, pid: int, slot: int, giver: int, taker: int) -> bool:
        """Whether a member still stands in a slot and another may take it."""
        board = self.board
        return board.slots[pid][slot] == giver and board.can_hold(pid, slot, taker)


class _NeedQueue:
    """Members by how much they need, in turn among equals."""

    def __init__(self, needs: Sequence[int]) -> None:
        self.needs = list(needs)
        self.levels: dict[int, dict[int, None]] = {}
        for member, need in enumerate(needs):
            self.levels.setdefault(need, {})[member] = None

    def neediest_first(self) -> Iterator[tuple[int, int]]:
        """All members with their needs, neediest first."""
        for need in sorted(self.levels, reverse=True):
            for member in self.levels[need]:
                yield (need, member)

    def lower(self, member: int) -> None:
        """The member got one."""
        need = self.needs[member]
        del self.levels[need][member]
        if not self.levels[need]:
            # Needs may lie far apart; a level that nobody is on must not be walked over.
            del self.levels[need]
        self.needs[member] = need - 1
        self.levels.setdefault(need - 1, {})[member] = None
