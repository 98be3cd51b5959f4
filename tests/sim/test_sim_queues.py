"""Queues in the simulator: runs with queues alone, and what their ledger allows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.history import Outcome
from whimbrel.sim.items import PRODUCER, item_data
from whimbrel.sim.profile import draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.run import simulate
from whimbrel.sim.scenario import parse_scenario
from whimbrel.sim.structures.queue.ledger import QueueLedger, QueueOperation
from whimbrel.sim.structures.queue.model import WAITED, QueueModel
from whimbrel.structures.queue.store import QueueStore
from whimbrel.wire.errors import INDETERMINATE

SEED = 7
FIRST, SECOND, THIRD = (PRODUCER + number for number in (1, 2, 3))


@pytest.mark.parametrize(("profile", "seed"), [("kill", 3), ("split", 5), ("swarm", 33)])
def test_queues_alone(profile: str, seed: int) -> None:
    """Goal: clients of queues see what is promised, and some of them wait. Method: a run of each
    sort with nothing but queues.
    """
    plan = draw_plan(Entropy(seed), profile_named(profile))
    report = simulate(seed, profile, plan=msgspec.structs.replace(plan, kinds=("queue",)))
    assert report.violations == () and report.acked_writes > 100
    assert report.seen.get(WAITED, 0) > 0


def nothing_recognised(engine: Engine) -> None:
    """Attempts have no names."""
    for row in engine.server.operations.in_partition.values():
        row.recognise = None


@pytest.mark.parametrize("seed", [1, 2])
def test_an_answer_that_dies_with_its_home_leaves_nothing_unknown(seed: int) -> None:
    """Goal: recognition is why nobody hears of it. Method: the scenario of that, and the same with
    attempts that have no names.
    """
    folder = Path(__file__).parents[1] / "scenario"
    text = (folder / "queue-call-dies-with-its-primary.txt").read_text()
    scenario = parse_scenario(text).with_seed(seed)
    bug = Bug(nothing_recognised, scenario.profile, (), kinds=scenario.kinds)
    plan, triggers = scenario.plan(), scenario.triggers
    errors = [
        simulate(seed, scenario.profile, bug=one, script=[], plan=plan, triggers=triggers).errors
        for one in (None, bug)
    ]
    recognised, not_recognised = (one.get(str(INDETERMINATE), 0) for one in errors)
    assert recognised == 0 < not_recognised


def offered(ledger: QueueLedger, code: int, outcome: Outcome = Outcome.OK) -> None:
    """An offer has ended."""
    offer = QueueOperation("c1", "offer", ledger, 0)
    offer.code = code
    ledger.begin(offer)
    offer.outcome, offer.is_accepted = outcome, outcome is Outcome.OK
    ledger.ended(offer)
    if outcome is Outcome.UNKNOWN:
        ledger.unknown.append(offer)


def store_with(*codes: int) -> QueueStore:
    """A replica with these items."""
    store = QueueStore()
    store.offer([item_data(SEED, code, 3) for code in codes])
    return store


def test_a_ledger_knows_what_a_queue_may_show() -> None:
    """Goal: made up, twice, in another order, taken already: each is said; a call under way, or of
    unknown end, may have taken an item.
    """
    ledger = QueueLedger("q", SEED, 7, is_judged=True)
    for code in (FIRST, SECOND, THIRD):
        offered(ledger, code)
    assert ledger.is_right(store_with(FIRST, SECOND, THIRD))
    assert "comes after" in ledger.problem([SECOND, FIRST])
    assert "never offered" in ledger.problem([PRODUCER + 9])
    assert "twice" in ledger.problem([FIRST, FIRST])
    assert ledger.lacks(store_with(SECOND, THIRD)) and ledger.lacks(None)
    poll = QueueOperation("c2", "poll", ledger, 0)
    ledger.begin(poll)
    assert not ledger.lacks(store_with(SECOND, THIRD)) and ledger.lacks(store_with(THIRD))
    poll.codes = [FIRST]
    ledger.ended(poll)
    assert ledger.is_right(store_with(SECOND, THIRD)) and ledger.lacks(store_with(THIRD))
    assert "was taken" in ledger.problem([FIRST, SECOND])
    drain = QueueOperation("c2", "drain", ledger, 0)
    drain.count_max = 2
    ledger.unknown.append(drain)
    assert ledger.is_right(None) and ledger.owes


def test_what_a_poll_saw_is_the_number_of_an_offer() -> None:
    """The first call waits, and is given the first item of a flood: it has not met itself."""
    ledger = QueueLedger("sim.queue", SEED, 7, is_judged=True)
    poll = QueueOperation("c1", "poll", ledger, 0)
    ledger.begin(poll)
    offered(ledger, 1)
    assert (poll.number, ledger.number_of(1)) == (1, 2)
    assert ledger.number_of(2) is None


def test_what_was_lost_before_is_not_asked_of_an_offer() -> None:
    """R4: an offer is kept where its own item is, or where somebody has taken that."""
    ledger = QueueLedger("q", SEED, 7, is_judged=True)
    offered(ledger, FIRST)
    offered(ledger, SECOND)
    offer = ledger.changes[-1]
    assert ledger.lacks(store_with(SECOND)) and ledger.keeps(store_with(SECOND), offer)
    assert not ledger.keeps(store_with(FIRST), offer) and not ledger.keeps(None, offer)
    poll = QueueOperation("c2", "poll", ledger, 0)
    ledger.begin(poll)
    poll.codes = [SECOND]
    assert ledger.keeps(None, offer), "the poll under way may have it"
    ledger.ended(poll)
    assert ledger.keeps(None, offer) and ledger.lacks(None)


def test_an_offer_that_failed_shows_and_one_of_unknown_end_has_no_place() -> None:
    """Goal: what was refused must not be there; what nobody knows may be anywhere."""
    ledger = QueueLedger("q", SEED, 7, is_judged=True)
    offered(ledger, FIRST, Outcome.UNKNOWN)
    offered(ledger, SECOND)
    offered(ledger, THIRD, Outcome.FAILED)
    assert ledger.is_right(store_with(SECOND, FIRST)) and ledger.is_right(store_with(SECOND))
    assert "never offered" in ledger.problem([SECOND, THIRD])
    assert ledger.shows(store_with(THIRD), ledger.changes[-1])
    assert not ledger.shows(store_with(SECOND), ledger.changes[-1])


def test_a_merge_that_leaves_something_out_is_noticed() -> None:
    """Goal: all that the smaller part offered is at the tail, however much was taken meanwhile."""
    small = store_with(THIRD)
    chunk, _, _ = small.export(small.open_cursor(), 1_000)
    before = QueueModel.content(store_with(FIRST, SECOND))

    def problem(is_merged: bool, *codes: int) -> str:
        return QueueModel.merge_problem("", is_merged, before, store_with(*codes), chunk)

    assert problem(True, FIRST, SECOND, THIRD) == problem(True, SECOND, THIRD) == ""
    assert problem(False, FIRST, SECOND) == ""
    assert problem(True, FIRST, SECOND) and problem(True, THIRD, SECOND)
    assert problem(False, FIRST, SECOND, THIRD)
