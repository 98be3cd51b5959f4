"""Goal: which step may start next: caps, order, and no step forgotten."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from whimbrel.core.ids import MemberId, PartitionId, ReplicaIndex
from whimbrel.core.jobs import finish
from whimbrel.core.migration.plan_queue import PlanQueue
from whimbrel.core.model import MigrationKind, Step
from whimbrel.errors import InvariantViolation

A, B, C, D = (MemberId(name) for name in "abcd")


def copy(destination: MemberId, index: int = 1) -> Step:
    return Step(MigrationKind.COPY, None, destination, destination_new=ReplicaIndex(index))


def move(source: MemberId, destination: MemberId) -> Step:
    zero = ReplicaIndex(0)
    return Step(MigrationKind.MOVE, source, destination, zero, destination_new=zero)


def clear(member: MemberId) -> Step:
    return Step(MigrationKind.CLEAR, member, None, source_current=ReplicaIndex(2))


def queue(limit: int, primaries: dict[int, MemberId]) -> PlanQueue:
    return PlanQueue(limit, lambda pid: primaries.get(int(pid)))


def taken(plan: PlanQueue) -> list[int]:
    """Everything that may start now."""
    pids: list[int] = []
    while (entry := plan.take()) is not None:
        pids.append(int(entry[0]))
    return pids


def load(plan: PlanQueue, steps: dict[int, list[Step]], late: tuple[int | str, ...] = ()) -> None:
    queued = [(PartitionId(pid), some) for pid, some in steps.items()]
    finish(plan.loading(queued, late))  # type: ignore[arg-type]


def test_refilling_comes_first_then_the_partition_id() -> None:
    """PIM-27: COPY and SHIFT UP before moves that only balance; the rest in order of id."""
    plan = queue(100, dict.fromkeys(range(6), A))
    load(plan, {0: [move(A, B)], 1: [copy(B)], 2: [move(A, B)], 3: [copy(C)], 4: [clear(B)]})
    assert plan.take_clear() is not None and plan.take_clear() is None
    assert taken(plan) == [1, 3, 0, 2]
    assert copy(B).is_refill and not move(A, B).is_refill and not clear(B).is_refill


def test_source_and_destination_count_alike() -> None:
    """PIM-24, PIM-25: source of two and destination of one at limit 3: no fourth."""
    plan = queue(3, {0: A, 1: A, 2: B, 3: A, 4: B})
    load(plan, {0: [copy(B)], 1: [copy(C)], 2: [copy(A)], 3: [copy(D)], 4: [copy(C)]})
    assert taken(plan) == [0, 2, 1, 4]
    assert plan.waiting_count == 1, "A and B take part in three each"
    plan.release(A, C)
    assert taken(plan) == [3]
    with pytest.raises(InvariantViolation):
        plan.release(MemberId("nobody"), A)


def test_links_that_carry_least_come_first() -> None:
    """PIM-27: among equals the pair whose two links carry least starts first, so that no link
    idles while another has a queue; a refill still comes before any move.
    """
    plan = queue(4, {0: A, 1: A, 2: A, 3: C, 4: C})
    load(plan, {0: [copy(B)], 1: [copy(B)], 2: [copy(D)], 3: [copy(B)], 4: [move(C, D)]})
    assert taken(plan) == [0, 2, 3, 1, 4]
    plan.release(A, B)


def test_no_pair_starves() -> None:
    """PIM-25, PIM-27: with ends in any order every step starts once, something always runs while
    steps wait, and nobody is above the limit.
    """
    draw = random.Random(11)
    members = [MemberId(f"m{number}") for number in range(6)]
    primaries = {pid: draw.choice(members) for pid in range(300)}
    plan = queue(3, primaries)
    steps = {
        pid: [copy(draw.choice([name for name in members if name != primary]))]
        for pid, primary in primaries.items()
    }
    load(plan, steps)
    running: list[tuple[MemberId, MemberId]] = []
    seen: list[int] = []
    while plan.waiting_count or running:
        while (entry := plan.take()) is not None:
            pid, step = entry
            seen.append(int(pid))
            assert step.destination is not None
            running.append((primaries[int(pid)], step.destination))
        assert running, "nothing runs and something waits"
        for member in members:
            assert sum(member in pair for pair in running) <= 3
        plan.release(*running.pop(draw.randrange(len(running))))
    assert sorted(seen) == sorted(primaries)


def test_five_pairs_at_once() -> None:
    """PIM-26: ten members, limit 1: five migrations between five pairs."""
    members = [MemberId(f"m{number}") for number in range(10)]
    plan = queue(1, {pid: members[pid % 5] for pid in range(20)})
    load(plan, {pid: [copy(members[5 + pid % 5])] for pid in range(20)})
    assert taken(plan) == [0, 1, 2, 3, 4]


def test_one_partition_goes_step_by_step() -> None:
    """PIM-22, PIM-23: the next step waits for ``proceed`` and uses the new primary as source."""
    primaries = {0: A, 1: B}
    plan = queue(10, primaries)
    load(plan, {0: [move(A, C), copy(A)], 1: [copy(D)]})
    assert taken(plan) == [1, 0]
    primaries[0] = C
    plan.release(A, C)
    assert taken(plan) == []
    plan.proceed(PartitionId(0))
    assert taken(plan) == [0]
    plan.release(C, A)
    with pytest.raises(InvariantViolation):
        plan.release(C, A)


def test_recent_failures_come_last() -> None:
    """Bugs 16, #26466: a bad endpoint does not hold up the others."""
    plan = queue(10, dict.fromkeys(range(4), A))
    load(plan, {0: [copy(B)], 1: [copy(C)], 2: [copy(D)], 3: [copy(C)]}, late=(1, "b"))
    assert taken(plan) == [2, 3, 0, 1]


def test_dropping_keeps_the_load() -> None:
    """PIM-28: what waits is forgotten, what runs is still counted."""
    plan = queue(1, {0: A, 1: A})
    load(plan, {0: [copy(B), copy(C)], 1: [copy(B)]})
    assert taken(plan) == [0]
    assert plan.waiting_count == 2
    plan.drop()
    assert plan.waiting_count == 0 and taken(plan) == []
    load(plan, {1: [copy(B)]})
    assert taken(plan) == []
    plan.release(A, B)
    assert taken(plan) == [1]


@pytest.mark.parametrize("seed", range(30))
def test_random_plans_run_to_the_end(seed: int) -> None:
    """PIM-22, PIM-24: random plans, random ends: cap kept and reached, order kept, all done."""
    rng = random.Random(seed)
    limit = rng.choice([1, 2, 5])
    members = [MemberId(f"m{number}") for number in range(rng.randrange(2, 7))]
    primaries: dict[int, MemberId] = {pid: rng.choice(members) for pid in range(60)}
    steps: dict[int, list[Step]] = {}
    for pid, primary in primaries.items():
        others = [member for member in members if member != primary]
        steps[pid] = [copy(rng.choice(others), index) for index in range(1, rng.randrange(2, 4))]
    plan = queue(limit, primaries)
    load(plan, steps)
    running: list[tuple[PartitionId, Step]] = []
    done: dict[int, list[Step]] = {pid: [] for pid in steps}
    while plan.waiting_count or running:
        while (entry := plan.take()) is not None:
            assert entry[0] not in [pid for pid, _ in running]
            running.append(entry)
        load_now: Counter[MemberId | None] = Counter()
        for pid, step in running:
            load_now[primaries[pid]] += 1
            load_now[step.destination] += 1
        assert all(count <= limit for count in load_now.values())
        assert running, "something waits, so something runs"
        waiting = [pid for pid in steps if len(done[pid]) < len(steps[pid])]
        for pid in waiting:  # maximal: nothing that could run is left waiting
            if pid in [number for number, _ in running]:
                continue
            step = steps[pid][len(done[pid])]
            assert load_now[primaries[pid]] == limit or load_now[step.destination] == limit
        pid, step = running.pop(rng.randrange(len(running)))
        done[pid].append(step)
        plan.release(primaries[pid], step.destination or A)
        plan.proceed(pid)
    assert done == steps


def test_a_turn_is_that_of_the_first_step() -> None:
    """PIM-27: what is spread over the plan is what begins it: partitions whose first steps have one
    pair and role are apart, whatever follows in them. Method: one at a time, so that no load
    decides.
    """
    plan = queue(1, dict.fromkeys(range(3), A))
    load(plan, {0: [copy(B), copy(C, 2)], 1: [copy(B)], 2: [copy(C)]})
    order = []
    for destination in (B, C, B):
        (pid,) = taken(plan)
        order.append(pid)
        plan.release(A, destination)
    assert order == [0, 2, 1]
