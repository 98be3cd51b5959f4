"""The last stages of an assignment: chains of changes where no single one levels the load.

Both work on a ``Board`` whose rows are full. Replicas go from member to member along a chain of
moves that costs as few copies as possible. The primary role goes along chains that cost none.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from whimbrel.core.jobs import Job
from whimbrel.core.partition.board import Board

ROWS_SEEN_MAX = 512
"""Rows of a member that are looked at closely for one link of a chain."""

ROWS_PASSED_MAX = 8 * ROWS_SEEN_MAX
"""Rows of a member that are passed at all for one link of a chain."""

ROWS_FOR_ROLES_MAX = 1_000_000
"""Rows that are walked over to list the exchanges that level primaries; members without a list
then exchange nothing. Bounds the time of a plan with many members."""

COSTS = (-1, 0, 1)
"""Copies that it may cost when a member takes another's slot."""

PAIRED_MEMBERS_MAX = 6
"""Members of a cluster in which pairs are levelled after all."""

PAIR_EXCHANGES_MAX = 64
"""Exchanges that level pairs in one assignment."""

SORTS_SEEN_MAX = {2: 96, 3: 24}
"""Sorts of rows, by how many are exchanged at once, above which it is not tried."""

ROWS_LOOKED = 512
"""Rows that are looked at in one piece of the work, about 1 us each."""
CHAINS_TRIED = 8
"""Primaries that are handed on in one piece where that is easy. Each search for a pair of rows to
exchange lists places in pieces of its own."""
RINGS_TRIED = 512
"""Rings of exchanges that are compared in one piece, about 2 us each."""

_Places = dict[int, list[int]]
"""Partitions by what an exchange of places there costs."""

_Before = tuple[int, tuple[int, ...]]
"""A partition and its target row before a change."""

Link = tuple[int, int, int]
"""A partition, the member that gives there, the member that takes."""


def level_replicas(board: Board, quotas: Sequence[int], *, only_free: bool) -> Job[None]:
    """Move replicas along chains until every member has its quota, or no chain is left.

    Args:
        board: Its rows are full.
        quotas: Replicas each member should have; their sum is that of the rows.
        only_free: Use only chains that cost no copy besides those the board needs already.
    """
    members = range(len(board.members))
    for giver in members:
        while board.replicas[giver] > quotas[giver]:
            takers = [member for member in members if board.replicas[member] < quotas[member]]
            chain = _cheapest_chain(board, giver, takers, only_free=only_free)
            if not chain or not _pass_on(board, chain):
                break
            yield


def _cheapest_chain(
    board: Board, giver: int, takers: Sequence[int], *, only_free: bool
) -> list[Link]:
    """The chain from a member to one of the takers with the fewest copies; empty when none."""
    wanted = set(takers)
    reached: dict[int, Link | None] = {giver: None}
    distance = {giver: 0}
    settled: set[int] = set()
    queue = deque([giver])
    while queue:
        member = queue.popleft()
        if member in settled:
            continue
        settled.add(member)
        if member in wanted:
            return _backwards(reached, member)
        for free, pid, other in _links(board, member, settled, only_free=only_free):
            length = distance[member] + (not free)
            if length < distance.get(other, length + 1):
                distance[other] = length
                reached[other] = (pid, member, other)
                if free:
                    queue.appendleft(other)
                else:
                    queue.append(other)
    return []


def _links(
    board: Board, giver: int, settled: set[int], *, only_free: bool
) -> Iterator[tuple[bool, int, int]]:
    """For each other member a row in which it can stand instead of the giver, free if any is."""
    only_fresh = only_free and not board.has_spares
    for other in range(len(board.members)):
        if other not in settled:
            cost, pid = _cheapest_place(board, giver, other, fresh_only=only_fresh)
            if pid >= 0 and (cost <= 0 or not only_free):
                yield (cost <= 0, pid, other)


def _cheapest_place(board: Board, giver: int, taker: int, *, fresh_only: bool) -> tuple[int, int]:
    """A row in which it costs few copies when a member takes another's slot, backups first.

    Args:
        board: The rows.
        giver: The member that stands there.
        taker: The member that shall.
        fresh_only: Look only at rows that the giver would have to be sent.

    Returns:
        The cost, -1 to 1, and the partition; -1 for the partition when there is none.
    """
    best = (2, -1)
    lists = (board.fresh[giver],) if fresh_only else (board.fresh[giver], board.held[giver])
    for as_primary in (False, True):
        for pids in lists:
            found = _cheapest_of(board, pids, giver, taker, as_primary)
            best = min(best, found, key=lambda place: place[0])
            if best[0] <= 0:
                return best
    return best


def _cheapest_of(
    board: Board, pids: Iterable[int], giver: int, taker: int, as_primary: bool
) -> tuple[int, int]:
    """The cheapest of the first ROWS_SEEN_MAX in a role."""
    best, best_pid = 2, -1
    seen = 0
    for pid in itertools.islice(pids, ROWS_PASSED_MAX):
        target = board.slots[pid]
        if (target[0] == giver) != as_primary or taker in target:
            continue
        seen += 1
        if seen > ROWS_SEEN_MAX or best <= 0:
            break
        cost = board.is_new(pid, taker) - board.is_new(pid, giver)
        if cost < best and board.can_hold(pid, target.index(giver), taker):
            best, best_pid = cost, pid
    return (best, best_pid)


def _backwards(reached: dict[int, Link | None], last: int) -> list[Link]:
    """The links that led to a member, first one first."""
    chain: list[Link] = []
    link = reached[last]
    while link is not None:
        chain.append(link)
        link = reached[link[1]]
    return chain[::-1]


def _pass_on(board: Board, chain: Sequence[Link]) -> bool:
    """Carry out a chain from its end, so that whoever takes has given before."""
    for pid, giver, taker in reversed(chain):
        slot = board.slots[pid].index(giver)
        if not board.can_hold(pid, slot, taker):
            return False
        board.replace(pid, slot, taker)
    return True


# -- primaries ----------------------------------------------------------------------------


def level_primaries(board: Board, *, may_copy: bool = False) -> Job[None]:
    """Hand the primary role on, without copies, until members differ by one if they can.

    Each round takes a chain from a member to one that has at least two primaries less, so the
    loads come closer; it ends when nobody has such a chain.

    Args:
        board: Its rows are full.
        may_copy: Let two members also exchange two replicas that both have to be sent, and let one
            with a replica more than another give it a primary.
    """
    if max(board.primaries) - min(board.primaries) > 1:
        roles = _Roles(board, copies_max=2 if may_copy else 0)
        yield from roles.note_changed()
        # Each round that succeeds lowers the sum of the squares of the loads, so there is an end.
        for number in itertools.count(1):
            if not (yield from roles.relieve_somebody()):
                break
            if not number % CHAINS_TRIED:
                yield


class _Roles:
    """Chains of members that hand the primary role on."""

    def __init__(self, board: Board, copies_max: int) -> None:
        self.board = board
        self.copies_max = copies_max
        """Further copies that an exchange may cost."""
        self.members = range(len(board.members))
        self.rows_left = ROWS_FOR_ROLES_MAX
        """Rows that may still be walked over to list places."""
        self.places: dict[tuple[int, int, bool], _Places] = {}
        """For a giver, a taker and whether the giver is primary: rows, some of them outdated."""
        self.swaps: dict[tuple[int, int], list[int]] = {}
        """For a primary and another member: rows in which that one could be primary instead."""

    def note_changed(self) -> Job[None]:
        """Look at the rows that differ from the base; the others have no choice of primary."""
        for pid in range(len(self.board.slots)):
            if self.board.is_changed(pid):
                self._note(pid)
            if not (pid + 1) % ROWS_LOOKED:
                yield

    def relieve_somebody(self) -> Job[bool]:
        """Take one primary off a member with too many; False when nobody can be relieved."""
        primaries = self.board.primaries
        for giver in sorted(self.members, key=lambda member: -primaries[member]):
            if primaries[giver] - min(primaries) < 2:
                return False
            if (yield from self._relieve(giver)):
                return True
        return False

    def _relieve(self, giver: int) -> Job[bool]:
        """Take one primary off a member along a short chain."""
        primaries = self.board.primaries
        enough = primaries[giver] - 2
        takers = [member for member in self.members if primaries[member] <= enough]
        takers.sort(key=lambda member: primaries[member])
        for taker in takers:
            if (yield from self._hand_on(giver, taker)):
                return True
        came_from = {giver: giver}
        queue = deque([giver])
        while queue:
            member = queue.popleft()
            if primaries[member] <= enough:
                return (yield from self._follow(came_from, member))
            for other in self.members:
                if other not in came_from and (yield from self._is_link(member, other)):
                    came_from[other] = member
                    queue.append(other)
        return False

    def _follow(self, came_from: dict[int, int], taker: int) -> Job[bool]:
        """Carry a chain out from its end, wholly or not at all: a part of it levels nothing.

        A link that the later ones have used up breaks it. What was changed before is undone: left
        as it is, it could cost copies, and the next plan would make them again the other way.
        """
        done: list[_Before] = []
        while came_from[taker] != taker:
            giver = came_from[taker]
            before = yield from self._hand_on(giver, taker)
            if not before:
                self._undo(done)
                return False
            done += before
            taker = giver
        return True

    def _undo(self, done: Sequence[_Before]) -> None:
        """Let rows be what they were before a chain, newest change first."""
        for pid, target in reversed(done):
            self.board.restore(pid, target)
            self._note(pid)
            self._note_places(pid)

    def _note(self, pid: int) -> None:
        """Remember who could be primary of a row instead of its primary."""
        primary = self.board.slots[pid][0]
        for other in self.board.candidates(pid):
            if other != primary:
                self.swaps.setdefault((primary, other), []).append(pid)

    def _swap(self, giver: int, taker: int) -> int:
        """A row in which a member could be primary instead of another; -1 when there is none."""
        pids = self.swaps.get((giver, taker), [])
        while pids:
            pid = pids[-1]
            if self.board.slots[pid][0] == giver and taker in self.board.candidates(pid):
                return pid
            pids.pop()
        return -1

    def _is_link(self, giver: int, taker: int) -> Job[bool]:
        """Whether a member can hand the role to another."""
        if self._swap(giver, taker) >= 0 or (yield from self._spare(giver, taker)) >= 0:
            return True
        return (yield from self._exchange(giver, taker)) is not None

    def _hand_on(self, giver: int, taker: int) -> Job[list[_Before]]:
        """Hand the role to another member in some row; the rows before, none without a way."""
        board = self.board
        pid = self._swap(giver, taker)
        spare = -1 if pid >= 0 else (yield from self._spare(giver, taker))
        if pid >= 0:
            before = [(pid, tuple(board.slots[pid]))]
            board.make_primary(pid, taker)
        elif spare >= 0:
            before = [(spare, tuple(board.slots[spare]))]
            board.replace(spare, 0, taker)
        else:
            exchange = yield from self._exchange(giver, taker)
            if exchange is None:
                return []
            before = [(pid, tuple(board.slots[pid])) for pid in exchange]
            first, second = exchange
            slot = board.slots[second].index(taker)
            board.replace(first, 0, taker)
            board.replace(second, slot, giver)
        for pid, _ in before:
            self._note(pid)
            self._note_places(pid)
        return before

    def _spare(self, giver: int, taker: int) -> Job[int]:
        """A partition that a member with more replicas may give to another, as its new primary.

        Their numbers of replicas come no further apart by it; -1 when there is none, or no copy may
        be made.
        """
        replicas = self.board.replicas
        if not self.copies_max or replicas[giver] <= replicas[taker]:
            return -1
        for cost in COSTS:
            pid = yield from self._place(giver, taker, True, cost)
            if pid >= 0:
                return pid
        return -1

    def _exchange(self, giver: int, taker: int) -> Job[tuple[int, int] | None]:
        """Two partitions in which two members can take each other's place, cheaply enough.

        In the first the giver is primary, in the second the taker is a backup.
        """
        for cost in COSTS:
            first = yield from self._place(giver, taker, True, cost)
            if first >= 0:
                for cost_back in COSTS:
                    if cost + cost_back > self.copies_max:
                        break
                    second = yield from self._place(taker, giver, False, cost_back)
                    if second >= 0:
                        return (first, second)
        return None

    def _place(self, giver: int, taker: int, as_primary: bool, cost: int) -> Job[int]:
        """A row in which a member can stand instead of another at this cost; -1 when none."""
        key = (giver, taker, as_primary)
        places = self.places.get(key)
        if places is None:
            places = yield from self._find_places(giver, taker, as_primary)
            if places is None:
                return -1
            self.places[key] = places
        pids = places[cost]
        while pids:
            if self._fits(pids[-1], giver, taker, as_primary):
                return pids[-1]
            pids.pop()
        return -1

    def _find_places(self, giver: int, taker: int, as_primary: bool) -> Job[_Places | None]:
        """All such rows by cost; None when enough rows have been walked over."""
        board = self.board
        if self.rows_left <= 0:
            return None
        self.rows_left -= len(board.held[giver])
        places: _Places = {cost: [] for cost in COSTS}
        for number, pid in enumerate(board.held[giver], 1):
            if self._fits(pid, giver, taker, as_primary):
                places[board.is_new(pid, taker) - board.is_new(pid, giver)].append(pid)
            if not number % ROWS_LOOKED:
                yield
        return places

    def _fits(self, pid: int, giver: int, taker: int, as_primary: bool) -> bool:
        """Whether a member stands in a row in that role and another could instead."""
        target = self.board.slots[pid]
        if (target[0] == giver) != as_primary or giver not in target or taker in target:
            return False
        return self.board.can_hold(pid, target.index(giver), taker)

    def _note_places(self, pid: int) -> None:
        """A row has changed: what it offers now goes to the lists that were made before."""
        board = self.board
        for slot, giver in enumerate(board.slots[pid]):
            for taker in self.members:
                places = self.places.get((giver, taker, slot == 0))
                if places is not None and self._fits(pid, giver, taker, slot == 0):
                    cost = board.is_new(pid, taker) - board.is_new(pid, giver)
                    places[cost].append(pid)


# -- pairs --------------------------------------------------------------------------------


def level_order(board: Board) -> Job[None]:
    """Let backups of one row change slots, where they may, so that indexes are spread evenly.

    A member then stands at each index equally often for each primary, which matters when rows
    become shorter: the coldest holders move up. A holder that could stay gives its slot up only
    when every row holds every member, for then a newcomer gets a share of the hotter indexes in
    no other way; elsewhere it would send data to the newcomer that the hole did not call for.
    """
    everybody = board.depth == len(board.members)
    for pid in range(len(board.slots)):
        if not (pid + 1) % ROWS_LOOKED:
            yield
        if board.is_changed(pid):
            for hotter, colder in itertools.combinations(range(1, board.depth), 2):
                if not board.may_change_places(pid, hotter, colder, unsettle=everybody):
                    continue
                one, other = board.slots[pid][hotter], board.slots[pid][colder]
                now = board.backing(pid, hotter, one) + board.backing(pid, colder, other)
                then = board.backing(pid, hotter, other) + board.backing(pid, colder, one)
                if now - then > 2:
                    board.change_places(pid, hotter, colder)


def level_pairs(board: Board) -> Job[None]:
    """Exchange new holders between rows so that each member backs every other equally often.

    Then the promotions after a crash, and the new holders when a member leaves, are spread evenly.
    With many members one pair more or less matters little and there is much to compare, so only
    clusters of up to PAIRED_MEMBERS_MAX are treated.

    An exchange is a ring of two or three rows that pass the new holder of one slot on. It never
    costs a copy: nobody goes who was there before, and nobody comes who was. Each member keeps its
    numbers of replicas at each index, groups stay apart, and the numbers of pairs become more even
    with every exchange; so it ends, after at most PAIR_EXCHANGES_MAX. Whether they become equal
    is not promised: no single ring may better them any more.
    """
    if len(board.members) > PAIRED_MEMBERS_MAX:
        return
    for _ in range(PAIR_EXCHANGES_MAX):
        ring = yield from _best_ring(board)
        if not ring:
            return
        holders = [board.slots[pid][slot] for pid, slot in ring]
        for (pid, slot), holder in zip(ring, holders[1:] + holders[:1], strict=True):
            board.replace(pid, slot, holder)


def _best_ring(board: Board) -> Job[tuple[tuple[int, int], ...]]:
    """Two or three rows whose new holders should go on to the next row; empty when none."""
    best: tuple[tuple[int, int], ...] = ()
    best_gain = 0
    sorts = yield from _sorts_of_new(board)
    for length in (2, 3):
        if best or len(sorts) > SORTS_SEEN_MAX[length]:
            break
        for number, ring in enumerate(itertools.permutations(sorts, length), 1):
            if not number % RINGS_TRIED:
                yield
            gain = _ring_gain(board, ring)
            if gain > best_gain:
                best, best_gain = ring, gain
    return best


def _sorts_of_new(board: Board) -> Job[list[tuple[int, int]]]:
    """One row for each sort of new holder (who, which slot, beside whom), with its slot."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for member, pids in enumerate(board.fresh):
        for number, pid in enumerate(pids, 1):
            target = board.slots[pid]
            slot = target.index(member)
            found.setdefault((slot, *target), (pid, slot))
            if not number % ROWS_LOOKED:
                yield
    return list(found.values())


def _ring_gain(board: Board, ring: Sequence[tuple[int, int]]) -> int:
    """By how much a ring of exchanges levels the numbers of pairs; 0 when it is not possible."""
    slot = ring[0][1]
    gain = -len(ring) * (1 if slot else board.depth - 1)
    for (pid, place), (other, _) in zip(ring, [*ring[1:], ring[0]], strict=True):
        holder = board.slots[other][slot]
        if place != slot or holder in board.base[pid] or not board.can_hold(pid, slot, holder):
            return 0
        gain += board.backing(pid, slot, board.slots[pid][slot])
        gain -= board.backing(pid, slot, holder)
    return gain
