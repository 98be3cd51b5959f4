"""Calls between members: executed once, answered once, whatever a broken link loses."""

from __future__ import annotations

import random

import pytest

from whimbrel.core.ids import MemberId
from whimbrel.errors import OverloadedError, ProtocolError
from whimbrel.serving import calls as calls_module
from whimbrel.serving.calls import Calls

A, B = MemberId("a"), MemberId("b")
ASK, REPLY = 4, 5


class Pair:
    """Two members; frames wait in ``wire`` until delivered or lost."""

    def __init__(self) -> None:
        self.wire: dict[MemberId, list[tuple[int, bytes]]] = {A: [], B: []}
        self.a = Calls(1, lambda peer, kind, payload: self.wire[peer].append((kind, payload)))
        self.b = Calls(2, lambda peer, kind, payload: self.wire[peer].append((kind, payload)))
        self.executed: list[bytes] = []
        self.answered: list[tuple[object, bytes]] = []
        self.answering = True

    def to_b(self, count: int | None = None) -> None:
        """Deliver frames to b, which executes calls by answering with an echo."""
        for _ in range(len(self.wire[B]) if count is None else count):
            _, payload = self.wire[B].pop(0)
            taken = self.b.take_request(A, payload)
            if taken is not None:
                self.executed.append(taken[1])
                if self.answering:
                    self.b.answer(A, taken[0], REPLY, b"echo " + taken[1])

    def to_a(self) -> None:
        """Deliver frames to a."""
        while self.wire[A]:
            _, payload = self.wire[A].pop(0)
            answered = self.a.take_reply(B, payload)
            if answered is not None:
                self.answered.append((answered[0].token, answered[1]))


def test_a_call_and_its_answer() -> None:
    """Goal: the plain case."""
    pair = Pair()
    pair.a.start(B, ASK, b"x", "token")
    pair.to_b()
    pair.to_a()
    assert pair.answered == [("token", b"echo x")]
    assert pair.a.waiting_count() == 0


def test_numbers_go_on_when_a_member_comes_back_under_its_identity() -> None:
    """C1, D2: a process that starts again with its identity hears calls of the list before, and we
    drop them when the list is without it. What we call later is neither taken for them nor answered
    by their answers.
    """
    pair = Pair()
    for body in (b"one", b"two", b"three"):
        pair.a.start(B, ASK, body, f"old {body!r}")
    pair.to_b()
    late, pair.wire[A] = pair.wire[A], []
    assert len(pair.a.member_left(B)) == 3
    pair.a.start(B, ASK, b"new", "new")
    pair.wire[A] = late
    pair.to_a()
    assert pair.answered == []
    pair.to_b()
    pair.to_a()
    assert pair.answered == [("new", b"echo new")]


def test_a_lost_call_is_sent_again_and_runs_once() -> None:
    """Goal: a call lost with its link is repeated; one that had arrived is not executed twice."""
    pair = Pair()
    pair.a.start(B, ASK, b"one", 1)
    pair.to_b()
    pair.a.start(B, ASK, b"two", 2)
    pair.wire[B].clear()
    pair.a.link_restored(B)
    pair.to_b()
    pair.to_a()
    assert pair.executed == [b"one", b"two"]
    assert sorted(pair.answered, key=str) == [(1, b"echo one"), (2, b"echo two")]


def test_a_lost_answer_is_sent_again() -> None:
    """Goal: the executing member repeats answers that its broken link may have lost, until the
    caller's later calls show that it has them.
    """
    pair = Pair()
    pair.a.start(B, ASK, b"one", 1)
    pair.to_b()
    pair.wire[A].clear()
    pair.b.link_restored(A)
    pair.to_a()
    assert pair.answered == [(1, b"echo one")]
    pair.a.start(B, ASK, b"two", 2)
    pair.to_b()
    pair.to_a()
    pair.b.link_restored(A)
    assert len(pair.wire[A]) == 1, "the first answer is known to have arrived"


def test_calls_that_began_while_the_link_was_down_have_never_left() -> None:
    """0013: when the member leaves, those are told from the others, which may have arrived. The
    link may be down before there is any call, and what a restored link took may have arrived.
    """
    pair = Pair()
    for token, event in (
        ("before", pair.a.link_lost),
        ("down", pair.a.link_lost),
        ("failed", pair.a.link_restored),
        ("restored", pair.a.link_lost),
        ("down again", None),
    ):
        call = pair.a.start(B, ASK, token.encode(), token)
        assert pair.a.was_sent(call) == (token in ("before", "restored"))
        if event is not None:
            event(B)
    left = [(call.token, was_sent) for call, was_sent in pair.a.member_left(B)]
    assert left == [
        ("before", True),
        ("down", True),
        ("failed", True),
        ("restored", True),
        ("down again", False),
    ]
    pair.a.link_lost(B)
    first = pair.a.start(B, ASK, b"x", "first of all")
    assert not pair.a.was_sent(first)
    assert [was_sent for _, was_sent in pair.a.member_left(B)] == [False]


def test_a_member_that_comes_again_has_a_link_of_its_own() -> None:
    """0013: that the link of the process before was down says nothing about this one's."""
    pair = Pair()
    pair.a.link_lost(B)
    pair.a.member_came(B)
    assert pair.a.was_sent(pair.a.start(B, ASK, b"x", "x"))


def test_a_call_that_runs_is_not_started_again() -> None:
    """Goal: a repeat of a call under execution waits for its answer."""
    pair = Pair()
    pair.answering = False
    pair.a.start(B, ASK, b"slow", 1)
    pair.to_b()
    pair.a.link_restored(B)
    pair.to_b()
    assert pair.executed == [b"slow"]
    pair.b.answer(A, 1, REPLY, b"done")
    pair.to_a()
    assert pair.answered == [(1, b"done")]


def test_an_idle_caller_lets_answers_be_forgotten() -> None:
    """Goal: a member keeps no answers for a caller that has them and asks nothing more."""
    pair = Pair()
    pair.a.start(B, ASK, b"x", 1)
    pair.to_b()
    pair.a.tick()
    assert pair.wire[B] == [], "a call still waits"
    pair.to_a()
    pair.a.tick()
    pair.a.tick()
    assert len(pair.wire[B]) == 1
    pair.to_b()
    pair.b.link_restored(A)
    assert pair.wire[A] == []
    assert pair.executed == [b"x"]


def test_a_departed_member_gives_its_calls_back() -> None:
    """Goal: every call without an answer is handed back once."""
    pair = Pair()
    pair.a.start(B, ASK, b"x", 1)
    pair.a.start(B, ASK, b"y", 2)
    assert [call.token for call, _ in pair.a.member_left(B)] == [1, 2]
    assert pair.a.member_left(B) == []


def test_a_new_incarnation_is_not_taken_for_the_old_one() -> None:
    """Goal: call numbers start again with a restarted member that kept its id."""
    pair = Pair()
    pair.a.start(B, ASK, b"old", 1)
    pair.to_b()
    pair.to_a()
    pair.a = Calls(9, lambda peer, kind, payload: pair.wire[peer].append((kind, payload)))
    pair.a.start(B, ASK, b"new", 2)
    pair.to_b()
    pair.to_a()
    assert pair.executed == [b"old", b"new"]
    assert pair.answered[-1] == (2, b"echo new")


def test_limits_and_bad_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: too many waiting calls are an overload, short frames a protocol error."""
    pair = Pair()
    monkeypatch.setattr(calls_module, "CALLS_PER_MEMBER_MAX", 2)
    pair.a.start(B, ASK, b"x", 1)
    pair.a.start(B, ASK, b"x", 2)
    with pytest.raises(OverloadedError):
        pair.a.start(B, ASK, b"x", 3)
    with pytest.raises(ProtocolError):
        pair.b.take_request(A, b"short")
    with pytest.raises(ProtocolError):
        pair.a.take_reply(B, b"short")


@pytest.mark.parametrize("seed", range(20))
def test_random_losses_never_lose_or_repeat_a_call(seed: int) -> None:
    """Goal: with resets that lose random tails of both directions each call is executed and
    answered exactly once. Method: 200 seeded calls, a reset before every tenth on average.
    """
    rng = random.Random(seed)
    pair = Pair()
    for number in range(200):
        pair.a.start(B, ASK, str(number).encode(), number)
        if rng.random() < 0.5:
            pair.to_b(rng.randint(0, len(pair.wire[B])))
        if rng.random() < 0.5:
            pair.to_a()
        if rng.random() < 0.1:
            del pair.wire[B][rng.randint(0, len(pair.wire[B])) :]
            pair.to_b()
            pair.a.link_restored(B)
        if rng.random() < 0.1:
            del pair.wire[A][rng.randint(0, len(pair.wire[A])) :]
            pair.to_a()
            pair.b.link_restored(A)
    pair.a.link_restored(B)
    pair.to_b()
    pair.b.link_restored(A)
    pair.to_a()
    assert sorted(map(int, pair.executed)) == list(range(200))
    assert sorted(token for token, _ in pair.answered) == list(range(200))  # type: ignore[type-var]


def test_a_newcomer_gets_the_answers_that_went_nowhere() -> None:
    """C1: a call of a member that is not on our list yet is answered into the void; the answer is
    said again when the member comes onto the list, and the call still runs once.
    """
    pair = Pair()
    pair.a.start(B, ASK, b"x", "token")
    pair.to_b()
    pair.wire[A].clear()
    pair.b.member_came(A)
    pair.to_a()
    assert pair.answered == [("token", b"echo x")]
    assert pair.executed == [b"x"]


def test_an_overdue_call_is_named_and_may_be_given_up() -> None:
    """C1: nobody waits for a member for ever. Method: calls are started at several moments; each is
    named once its time is over and not before, again until it is given up, and its late answer and
    its repetition are gone.
    """
    pair = Pair()
    step_us, timeout_us = calls_module.AGE_STEP_US, calls_module.CALL_TIMEOUT_US
    assert pair.a.take_overdue(0) == []
    pair.a.start(B, ASK, b"one", 1)
    assert pair.a.take_overdue(0) == []
    pair.a.start(B, ASK, b"two", 2)
    for now_us in range(step_us, timeout_us, step_us):
        assert pair.a.take_overdue(now_us) == []
    (one,) = pair.a.take_overdue(timeout_us)
    assert one.token == 1
    pair.a.give_up(one)
    (two,) = pair.a.take_overdue(timeout_us + step_us)
    assert two.token == 2
    assert pair.a.take_overdue(timeout_us + 2 * step_us) == [two], "it waits still"
    two.token = None
    assert pair.a.take_overdue(timeout_us + 3 * step_us) == [], "it was dealt with"
    pair.wire[B].clear()
    pair.a.link_restored(B)
    pair.to_b()
    pair.to_a()
    assert pair.executed == [b"two"]
    assert pair.answered == [(None, b"echo two")]
    assert pair.a.waiting_count() == 0


def test_a_held_call_that_its_caller_gave_up_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: what nobody waits for any more is not executed late. Method: a call waits at the member
    that runs it, behind a large answer; its caller gives it up, then confirms the large one.
    """
    monkeypatch.setattr(calls_module, "ANSWER_BYTES_MAX", 10)
    pair = Pair()
    pair.a.start(B, ASK, b"large", 1)
    pair.to_b()
    given_up, wanted = pair.a.start(B, ASK, b"two", 2), pair.a.start(B, ASK, b"three", 3)
    pair.answering = False
    for call in (given_up, wanted):
        taken = pair.b.take_request(A, pair.wire[B].pop(0)[1])
        assert taken is not None and pair.b.hold(A, ASK, *taken)
        assert call.number == taken[0]
    pair.to_a()
    pair.a.give_up(given_up)
    pair.a.tick()
    pair.to_b()
    assert pair.b.take_held(A) == (ASK, wanted.number, b"three")
    assert pair.b.take_held(A) is None
    assert pair.b.held_count() == 0
