"""Assignment: counts of the published scenarios, balance, minimality, determinism."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import pytest
from tests.unit.rows import end_row, row_from

from whimbrel.core.ids import EMPTY_ROW, MemberId, Row
from whimbrel.core.jobs import finish
from whimbrel.core.model import MigrationKind
from whimbrel.core.partition.assignment import assign
from whimbrel.core.partition.board import HOLE, Board
from whimbrel.core.partition.bounds import lower_bound_copies, summary
from whimbrel.core.partition.levelling import _cheapest_place, level_primaries
from whimbrel.core.partition.planner import plan_row

Groups = list[tuple[MemberId, ...]]


def members(count: int, prefix: str = "m") -> list[MemberId]:
    return [MemberId(f"{prefix}{number:03}") for number in range(count)]


def singles(ids: Sequence[MemberId]) -> Groups:
    return [(member,) for member in ids]


def spread(rows: Sequence[Row], ids: Sequence[MemberId]) -> tuple[int, int]:
    """Largest difference between members: in replicas, in primaries."""
    replicas = Counter(member for row in rows for member in row)
    primaries = Counter(row[0] for row in rows)
    counts = [replicas[member] for member in ids]
    firsts = [primaries[member] for member in ids]
    return max(counts) - min(counts), max(firsts) - min(firsts)


def crash(rows: Sequence[Row], *dead: MemberId) -> tuple[list[Row], int]:
    """What table repair makes of the rows, and how many promotions it took."""
    repaired, promotions = [], 0
    for row in rows:
        slots = [None if member in dead else member for member in row]
        if slots[0] is None and any(slots):
            hottest = next(index for index, member in enumerate(slots) if member)
            slots[0], slots[hottest] = slots[hottest], None
            promotions += 1
        repaired.append(tuple(slots))
    return repaired, promotions


def run_plans(current: Sequence[Row], target: Sequence[Row]) -> Counter[MigrationKind]:
    """Plan all rows; every target is reached with one copy for each new holder."""
    kinds: Counter[MigrationKind] = Counter()
    for row, wanted in zip(current, target, strict=True):
        steps = plan_row(row, wanted)
        assert end_row(row, steps) == wanted
        arrivals = [s.destination for s in steps if s.destination and s.destination_current < 0]
        assert sorted(arrivals) == sorted(m for m in wanted if m is not None and m not in row)
        kinds.update(step.kind for step in steps)
    return kinds


def check_change(
    rows: Sequence[Row], groups: Groups, depth: int, leaving: Sequence[MemberId] = ()
) -> tuple[list[Row], Counter[MigrationKind]]:
    """Assign; assert minimality and balance of single-member groups."""
    target = assign(rows, groups, depth, leaving)
    ids = [member for group in groups for member in group if member not in leaving]
    held = [[member for member in row if member is not None] for row in target]
    assert all(len(row) == min(depth, len(ids)) == len(set(row)) for row in held)
    assert all(member in ids for row in held for member in row)
    bound = lower_bound_copies(rows, groups, depth, leaving)
    assert summary(rows, target).copies == bound
    assert max(spread(target, ids)) <= 1
    kinds = run_plans(rows, target)
    assert assign(target, singles(ids), depth) == target
    return target, kinds


@pytest.fixture(scope="module")
def seed_table() -> list[Row]:
    """20,000 partitions with one backup on ten members."""
    return assign([EMPTY_ROW] * 20_000, singles(members(10)), 2)


def test_first_arrangement_is_even_and_spreads_backups() -> None:
    """Goal: the first table is even, and a member's backups are spread over all others, so that
    a crash spreads its promotions (ADL-01). Method: 271 and 2,000 partitions.
    """
    for count, size, depth in ((271, 3, 2), (271, 7, 3), (2000, 9, 2), (5, 9, 4)):
        ids = members(size)
        rows = assign([EMPTY_ROW] * count, singles(ids), depth)
        assert max(spread(rows, ids)) <= 1
        pairs = Counter((row[0], row[1]) for row in rows)
        even = count / (size * (size - 1))
        assert all(abs(pairs[a, b] - even) <= 2 for a in ids for b in ids if a != b)


def test_seed_join_makes_the_fewest_copies(seed_table: list[Row]) -> None:
    """Goal: 9 to 10 members copies the newcomer's 4,000 replicas, all of them MOVEs (PIM-30)."""
    nine, ten = members(9), members(10)
    rows = assign([EMPTY_ROW] * 20_000, singles(nine), 2)
    target, kinds = check_change(rows, singles(ten), 2)
    assert kinds == {MigrationKind.MOVE: 4000}
    assert summary(rows, target).role_changes == 0


def test_seed_leave_makes_the_fewest_copies(seed_table: list[Row]) -> None:
    """Goal: 10 to 9 members copies the leaver's 4,000 replicas (PIM-30)."""
    ids = members(10)
    _, kinds = check_change(seed_table, singles(ids), 2, [ids[3]])
    assert kinds == {MigrationKind.MOVE: 4000}


def test_seed_crash_makes_the_fewest_copies(seed_table: list[Row]) -> None:
    """Goal: a crash of one of ten costs 4,000 copies and 2,000 promotions (PIM-30)."""
    ids = members(10)
    rows, promotions = crash(seed_table, ids[3])
    assert promotions == 2000
    survivors = [member for member in ids if member != ids[3]]
    assert spread(rows, survivors)[1] <= 10
    _, kinds = check_change(rows, singles(survivors), 2)
    assert (
        kinds[MigrationKind.COPY] + kinds[MigrationKind.SHIFT_DOWN] == 4000 == sum(kinds.values())
    )


def test_deep_rows_reproduce_the_published_counts() -> None:
    """Goal: with seven-deep rows a leave and a join cost 14,000 per 20,000 partitions (PIM-30).
    Method: a tenth of the partitions; a crash fills holes in place: 1,400 steps, where the
    published 2,600 come from shifting every colder replica up.
    """
    nine, ten = members(9), members(10)
    rows = assign([EMPTY_ROW] * 2000, singles(ten), 7)
    _, kinds = check_change(rows, singles(ten), 7, [ten[9]])
    assert sum(kinds.values()) == 1400
    rows = assign([EMPTY_ROW] * 2000, singles(nine), 7)
    _, kinds = check_change(rows, singles(ten), 7)
    assert sum(kinds.values()) == 1400
    rows, promotions = crash(assign([EMPTY_ROW] * 2000, singles(ten), 7), ten[9])
    assert promotions == 200
    _, kinds = check_change(rows, singles(nine), 7)
    assert sum(kinds.values()) == 1400


def test_hundred_members() -> None:
    """Goal: balance and minimality with many members. Method: 20,000 partitions, join and crash."""
    ids = members(100)
    rows = assign([EMPTY_ROW] * 20_000, singles(ids), 2)
    joined = [*ids, MemberId("new")]
    check_change(rows, singles(joined), 2)
    rows, promotions = crash(rows, ids[40])
    assert promotions == 200
    check_change(rows, singles([m for m in ids if m != ids[40]]), 2)


def test_growing_from_one_member_levels_primaries_without_extra_copies() -> None:
    """Goal: the second member takes half of the primaries while it fills the holes. Method: one
    member with all partitions; the holders step down where the newcomer becomes primary.
    """
    one, two = members(1), members(2)
    rows = assign([EMPTY_ROW] * 271, singles(one), 2)
    assert rows == [row_from(one)] * 271
    _, kinds = check_change(rows, singles(two), 2)
    assert kinds == {MigrationKind.COPY: 136, MigrationKind.SHIFT_DOWN: 135}


def test_last_but_one_member_leaves() -> None:
    """Goal: rows become shorter when members are fewer than replicas. Method: two members, one
    leaves; its primaries shift up, its backups are cleared; nothing is copied.
    """
    ids = members(2)
    rows = assign([EMPTY_ROW] * 31, singles(ids), 2)
    target, kinds = check_change(rows, singles(ids), 2, [ids[0]])
    assert target == [row_from([ids[1]])] * 31
    assert kinds[MigrationKind.SHIFT_UP] + kinds[MigrationKind.CLEAR] == 31


def test_everybody_leaves() -> None:
    """Goal: with nobody to assign to nothing is planned. Method: all leave; no group; depth 0."""
    ids = members(2)
    rows = assign([EMPTY_ROW] * 7, singles(ids), 2)
    assert assign(rows, singles(ids), 2, ids) == rows
    assert assign(rows, [], 2) == rows
    assert assign(rows, singles(ids), 0) == rows
    assert lower_bound_copies(rows, singles(ids), 2, ids) == 0


def test_depth_changes_copy_only_what_is_new() -> None:
    """Goal: a deeper backup count adds one copy per partition, a shallower one none (PIM-30)."""
    ids = members(5)
    rows = assign([EMPTY_ROW] * 271, singles(ids), 2)
    deeper, kinds = check_change(rows, singles(ids), 3)
    assert summary(rows, deeper).copies == 271
    shallow, kinds = check_change(deeper, singles(ids), 2)
    assert summary(deeper, shallow).copies == 0
    assert kinds[MigrationKind.CLEAR] + kinds[MigrationKind.SHIFT_UP] == 271


def test_a_chain_that_breaks_changes_nothing() -> None:
    """ADL-50: a table on which plans went to and fro for ever, two copies each: one member has
    three primaries, another one, and the chain between them broke half-way. One copy levels it.
    """
    a, b, c, d = members(4)
    holders = [(b, c, d), (a, c, d), (c, a, b), (d, a, b), (a, b, d), (c, a, b), (a, d, c)]
    rows: list[Row] = [row_from(list(row)) for row in holders]
    target = assign(rows, singles([a, b, c, d]), 3)
    pairs = zip(rows, target, strict=True)
    assert sum(len(set(new) - set(old)) for old, new in pairs) == 1
    assert spread(target, [a, b, c, d]) == (1, 1)
    assert assign(target, singles([a, b, c, d]), 3) == target


@pytest.mark.parametrize("count", range(2, 8))
def test_any_table_settles(count: int) -> None:
    """ADL-50: whatever the rows, plans come to an end soon, and each that only copies to level
    primaries levels some.
    """
    generator = random.Random(count)
    ids = members(count)
    for _ in range(250):
        depth = generator.randint(1, min(4, count))
        sizes = range(generator.choice((3, 7, 13, 31)))
        rows: list[Row] = [row_from(generator.sample(ids, depth)) for _ in sizes]
        for _ in range(6):
            before, rows = rows, assign(rows, singles(ids), depth)
            if rows == before:
                break
        assert rows == before, "plans without end"


@pytest.mark.parametrize("seed", range(5))
def test_any_table_settles_in_groups(seed: int) -> None:
    """ADL-50, APR-64: the same with several members to a place, holes, rows that are too deep and
    somebody who leaves.
    """
    generator = random.Random(seed)
    for _ in range(250):
        sizes = [generator.randint(1, 3) for _ in range(generator.randint(2, 5))]
        ids = members(sum(sizes))
        bounds = [0, *itertools.accumulate(sizes)]
        groups = [tuple(ids[begin:end]) for begin, end in itertools.pairwise(bounds)]
        leaving = ids[:1] if generator.random() < 0.3 else []
        depth = generator.randint(1, min(4, len(sizes)))
        rows: list[Row] = []
        for _ in range(generator.choice((3, 7, 13, 31))):
            holders: list[MemberId | None] = list(generator.sample(ids, min(len(ids), depth + 1)))
            if generator.random() < 0.5:
                holders[-1] = None
            rows.append(row_from(holders))
        for _ in range(6):
            before, rows = rows, assign(rows, groups, depth, leaving)
            if rows == before:
                break
        assert rows == before, "plans without end"


def test_lost_partitions_get_new_holders() -> None:
    """Goal: rows without any holder are filled again (ADL-05). Method: two of four die at once."""
    ids = members(4)
    rows, _ = crash(assign([EMPTY_ROW] * 60, singles(ids), 2), ids[0], ids[1])
    assert EMPTY_ROW in rows
    check_change(rows, singles(ids[2:]), 2)


def test_join_and_leave_back_is_quiet() -> None:
    """Goal: a visit costs its share twice, and nothing else moves. Method: join, leave."""
    ids = members(4)
    rows = assign([EMPTY_ROW] * 271, singles(ids), 2)
    guest = MemberId("guest")
    joined, _ = check_change(rows, singles([*ids, guest]), 2)
    share = sum(guest in row for row in joined)
    assert summary(rows, joined).copies == share
    left, _ = check_change(joined, singles([*ids, guest]), 2, [guest])
    assert summary(joined, left).copies == share


@pytest.mark.parametrize(
    ("sizes", "depth"), [((2, 2), 2), ((3, 3, 3), 2), ((2, 3, 4), 3), ((1, 4), 2), ((5, 1, 1), 2)]
)
def test_groups_never_hold_two_replicas(sizes: tuple[int, ...], depth: int) -> None:
    """Goal: no two replicas of a partition in one group, members as level as groups allow (ADL-01;
    bugs 19c, 44). Method: groups of several sizes; a member joins the first one and leaves.
    """
    groups: Groups = [
        tuple(members(size, prefix=f"g{number}-")) for number, size in enumerate(sizes)
    ]
    group_of = {member: number for number, group in enumerate(groups) for member in group}
    rows = assign([EMPTY_ROW] * 271, groups, depth)
    newcomer = MemberId("g0-new")
    group_of[newcomer] = 0
    wider = [(*groups[0], newcomer), *groups[1:]]
    joined = assign(rows, wider, depth)
    run_plans(rows, joined)
    left = assign(joined, wider, depth, [newcomer])
    run_plans(joined, left)
    for table, live in ((rows, groups), (joined, wider), (left, groups)):
        for row in table:
            places = [group_of[member] for member in row if member is not None]
            assert len(set(places)) == len(places) == depth
        counts = Counter(member for row in table for member in row if member is not None)
        for group in live:
            held = [counts[member] for member in group]
            assert max(held) - min(held) <= 1
    assert summary(rows, joined).copies == lower_bound_copies(rows, wider, depth)


def test_more_backups_than_groups_is_capped() -> None:
    """Goal: rows are as deep as there are groups (ADL-01). Method: seven replicas, two hosts."""
    groups: Groups = [tuple(members(3, "a")), tuple(members(2, "b"))]
    rows = assign([EMPTY_ROW] * 30, groups, 7)
    assert all(row[2:] == (None,) * 5 and None not in row[:2] for row in rows)


def test_two_members_of_one_group_in_a_row_are_parted() -> None:
    """Goal: a row that breaks a new group rule is mended (ADL-01). Method: hosts become known."""
    ids = members(4)
    rows = assign([EMPTY_ROW] * 60, singles(ids), 2)
    hosts: Groups = [(ids[0], ids[1]), (ids[2], ids[3])]
    target = assign(rows, hosts, 2)
    run_plans(rows, target)
    assert all((row[0] in hosts[0]) != (row[1] in hosts[0]) for row in target)


def test_same_plan_whatever_the_hash_seed() -> None:
    """Goal: every member computes the same targets (APR-64, APR-65). Method: two interpreters with
    different hash seeds.
    """
    script = (
        "from whimbrel.core.partition.assignment import assign\n"
        "from whimbrel.core.ids import EMPTY_ROW\n"
        "g = [(f'm{i}',) for i in range(7)]\n"
        "r = assign([EMPTY_ROW] * 271, g, 3)\n"
        "r = assign(r, g + [('n',)], 3)\n"
        "print(assign(r, g + [('n',)], 3, ['m2', 'm5']))\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] != b""


def test_summary_counts() -> None:
    """Goal: copies, promotions and role changes of a change. Method: one row of each sort."""
    a, b, c = members(3)
    current = [row_from([a, b]), row_from([a, b]), row_from([a]), row_from([a, b, c])]
    target = [row_from([a, c]), row_from([b]), row_from([c, a]), row_from([a, c])]
    numbers = summary(current, target)
    assert (numbers.copies, numbers.promotions, numbers.role_changes) == (2, 1, 3)
    assert numbers.lower_bound_copies == 2
    assert summary(current, current) == summary([], [])


def test_of_two_spare_copies_the_hotter_fills_the_hotter_hole() -> None:
    """Goal: what is there already moves up in its order, so no role changes for nothing. Method:
    one row with two holes and two holders beyond the depth.
    """
    a, b, c, d, e = members(5)
    row = (a, None, None, b, c, None, None)
    (target,) = assign([row], singles([a, b, c, d, e]), 3)
    assert target[:3] == (a, b, c)


def test_the_board_keeps_its_books() -> None:
    """Goal: what is counted as rows change is what counting anew finds, and holes are nobody's
    company. Method: random rows, some short, some of members that are gone, and random changes.
    """
    generator = random.Random(7)
    ids = members(5)
    rows = [row_from(generator.sample(ids, generator.randint(1, 4))) for _ in range(60)]
    board = Board(rows, singles(ids[:4]), 3, [])
    for _ in range(400):
        pid, slot = generator.randrange(len(rows)), generator.randrange(board.depth)
        filler = generator.randrange(len(board.members))
        if board.slots[pid][slot] != HOLE:
            board.take(pid, slot)
        elif filler not in board.slots[pid]:
            board.put(pid, slot, filler)
    together: Counter[tuple[int, int]] = Counter()
    for target in board.slots:
        holders = sorted(number for number in target if number != HOLE)
        together.update(itertools.combinations(holders, 2))
    assert {pair: count for pair, count in board.together.items() if count} == together
    for number in range(len(board.members)):
        held = [pid for pid, target in enumerate(board.slots) if number in target]
        assert sorted(board.held[number]) == held and board.replicas[number] == len(held)
        firsts = sum(target[0] == number for target in board.slots)
        assert board.primaries[number] == firsts


def test_rows_that_need_nothing_are_counted_and_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a large table has few different rows; taking them in costs no look at each holder.

    Method: a settled table, with the way of the other rows closed.
    """
    ids = members(4)
    rows = assign([EMPTY_ROW] * 300, singles(ids), 2)
    slow = Board((), singles(ids), 2, [])
    for row in rows:
        slow._add_row(row)
    monkeypatch.delattr(Board, "_add_row")
    board = Board(rows, singles(ids), 2, [])
    for name in ("slots", "replicas", "primaries", "held", "kept_loads", "backed", "together"):
        assert getattr(board, name) == getattr(slow, name), name


def test_a_place_that_costs_nothing_is_found_behind_one_that_costs() -> None:
    """Goal: a copy is made only where no role can be handed on without. Method: the taker would
    have to be sent the row in which the giver is a backup, and has the one in which it is primary.
    """
    giver, other, taker = members(3)
    rows = [row_from([other, giver]), row_from([giver, other, taker])]
    board = Board(rows, singles([giver, other, taker]), 2, [])
    assert _cheapest_place(board, 0, 2, fresh_only=False) == (0, 1)
    alone = Board(rows[:1], singles([giver, other, taker]), 2, [])
    assert _cheapest_place(alone, 0, 2, fresh_only=False) == (1, 0)


def test_primaries_are_levelled_in_the_rows_that_change_anyway() -> None:
    """Goal: the role is handed on where that costs no copy. Method: rows that both members have to
    be sent, all with the same primary.
    """
    board = Board([EMPTY_ROW] * 6, singles(members(2)), 2, [])
    for pid in range(6):
        board.put(pid, 0, 0)
        board.put(pid, 1, 1)
    finish(level_primaries(board))
    assert board.primaries == [3, 3]
    assert all(sorted(target) == [0, 1] for target in board.slots)
