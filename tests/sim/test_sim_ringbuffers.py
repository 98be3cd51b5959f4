"""Ring buffers in the simulator: runs with them alone, and what their ledger allows."""

from __future__ import annotations

import msgspec
import pytest

from whimbrel.sim.entropy import Entropy
from whimbrel.sim.history import Outcome
from whimbrel.sim.items import PRODUCER, item_data
from whimbrel.sim.profile import draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.run import simulate
from whimbrel.sim.structures.ringbuffer.ledger import RingLedger
from whimbrel.sim.structures.ringbuffer.model import WAITED, RingbufferModel
from whimbrel.sim.structures.ringbuffer.operations import RingAdd
from whimbrel.structures.ringbuffer.record import FOR_EVER
from whimbrel.structures.ringbuffer.store import RingbufferStore

SEED = 7
CAPACITY = 3
CODES = [PRODUCER + number for number in range(9)]


@pytest.mark.parametrize(("profile", "seed"), [("kill", 3), ("split", 5), ("swarm", 33)])
def test_ring_buffers_alone(profile: str, seed: int) -> None:
    """Goal: clients of ring buffers see what is promised, and some of them wait. Method: a run of
    each sort with nothing but ring buffers.
    """
    plan = draw_plan(Entropy(seed), profile_named(profile))
    report = simulate(seed, profile, plan=msgspec.structs.replace(plan, kinds=("ringbuffer",)))
    assert report.violations == () and report.acked_writes > 100
    assert report.seen.get(WAITED, 0) > 0


def begun(ledger: RingLedger, *codes: int) -> RingAdd:
    """An addition is under way."""
    add = RingAdd("c1", ledger, 0)
    add.codes += codes
    ledger.begin(add)
    return add


def given(ledger: RingLedger, last: int, *codes: int) -> RingAdd:
    """An addition was acknowledged."""
    add = begun(ledger, *codes)
    add.outcome, add.last = Outcome.OK, last
    ledger.ended(add)
    return add


def ledger() -> RingLedger:
    """Of a ring buffer with three items."""
    return RingLedger("r", SEED, 7, CAPACITY, is_judged=True)


def store_with(*codes: int, capacity: int = CAPACITY, until_ms: int = FOR_EVER) -> RingbufferStore:
    """A replica to which these were added."""
    store = RingbufferStore()
    for code in codes:
        store.add([item_data(SEED, code, 3)], until_ms, store.head, capacity)
    return store


def test_a_ledger_knows_what_a_ring_buffer_may_show() -> None:
    """Goal: made up, twice, under another's sequence, too few, too many: each is said; a call under
    way may have taken a sequence, and overwritten an item.
    """
    known = ledger()
    assert known.is_right(None) and not ledger().owes
    given(known, 0, CODES[0])
    given(known, 2, CODES[1], CODES[2])
    assert known.is_right(store_with(*CODES[:3])) and known.owes
    assert known.lacks(None) and known.lacks(store_with(*CODES[:2]))
    assert known.lacks(store_with(CODES[1], CODES[0], CODES[2]))
    assert "never added" in known.problem(store_with(CODES[4]))
    assert "sequence 0 of" in known.problem(store_with(CODES[1]))
    begun(known, CODES[3], CODES[4])
    assert known.is_right(store_with(*CODES[:5])) and known.is_right(store_with(*CODES[:4]))
    assert "twice" in known.problem(store_with(*CODES[:3], CODES[3], CODES[3], capacity=5))
    assert "from 0 to 4" in known.problem(store_with(*CODES[:4], capacity=5))
    assert "from 1 to 3" in known.problem(store_with(*CODES[:3], capacity=2))


def test_a_sequence_that_was_given_twice_is_known() -> None:
    """Goal: the second one of whom a sequence is said is marked, and the first one keeps it."""
    known = ledger()
    first, second = given(known, 0, CODES[0]), given(known, 0, CODES[1])
    assert first.clash is None and second.clash == 0 and known.given == {0: CODES[0]}
    assert known.keeps(store_with(CODES[1]), second), "where that is allowed, it counts for itself"


def test_what_is_asked_of_one_addition() -> None:
    """C5, R4, D11: kept where its items are or were overwritten, shown where one of them is."""
    known = ledger()
    first, second = given(known, 0, CODES[0]), given(known, 2, CODES[1], CODES[2])
    assert known.keeps(store_with(*CODES[:3]), second) and not known.keeps(None, second)
    assert not known.keeps(store_with(*CODES[:2]), second)
    assert known.keeps(store_with(*CODES[:2]), first)
    assert known.keeps(store_with(*CODES[:4]), first), "it was overwritten"
    assert known.shows(store_with(CODES[2]), second) and not known.shows(store_with(), second)
    assert known.is_absent(store_with(CODES[0]))
    known.doomed = frozenset(CODES[:1])
    assert not known.is_absent(store_with(CODES[0])) and known.is_absent(store_with(CODES[1]))


def test_a_merge_that_leaves_something_out_is_noticed() -> None:
    """Goal: all that the smaller part added is at the tail, however much was overwritten."""
    small = store_with(CODES[5], CODES[6])
    chunk, _, _ = small.export(small.open_cursor(), 1_000)
    before = RingbufferModel.content(store_with(*CODES[:2]))

    def problem(is_merged: bool, *codes: int) -> str:
        return RingbufferModel.merge_problem("", is_merged, before, store_with(*codes), chunk)

    assert problem(True, *CODES[:2], CODES[5], CODES[6]) == problem(False, *CODES[:2]) == ""
    assert problem(True, *CODES[:2]) and problem(True, *CODES[:2], CODES[6], CODES[5])
    assert problem(True, CODES[6]) and problem(False, *CODES[:2], CODES[5])


def test_a_merge_may_leave_out_what_is_over() -> None:
    """Goal: items with an end may go on both sides, from the head on; nothing else may."""
    small = store_with(CODES[5], CODES[6], until_ms=9)
    chunk, _, _ = small.export(small.open_cursor(), 1_000)
    before = RingbufferModel.content(store_with(*CODES[:2], until_ms=9))

    def problem(*codes: int) -> str:
        after = store_with(*codes, until_ms=9)
        return RingbufferModel.merge_problem("", True, before, after, chunk)

    assert problem() == problem(CODES[6]) == problem(CODES[1], CODES[6]) == ""
    assert problem(CODES[1], CODES[5], CODES[6]) == problem(*CODES[:2]) == ""
    assert problem(CODES[0]) and problem(CODES[5]) and problem(CODES[0], CODES[6])
