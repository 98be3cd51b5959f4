"""Calls that wait: woken in order, answered once, over whatever happens to members and links."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.unit.engine_pump import Client, Error
from tests.unit.waiting_tokens import BOTH, FOR_EVER, Scene, client_at, is_open

from whimbrel.core.ids import MemberId
from whimbrel.errors import ProtocolError
from whimbrel.serving import wait_queues as queues_module
from whimbrel.serving import waits as waits_module
from whimbrel.serving.hub import NOTIFY_WAIT_OVER, NOTIFY_WAKE
from whimbrel.serving.wait_frames import WAITED, WOULD_WAIT
from whimbrel.serving.waits import AGAIN_SOON_US, AGAIN_US
from whimbrel.wire import errors as codes
from whimbrel.wire.links import FORWARD, NOTIFY

AGAIN_S = AGAIN_US / 1_000_000
TICK_S = 0.05
LONG_S = 1_800

Patch = pytest.MonkeyPatch


@pytest.fixture
def scene() -> Scene:
    return Scene()


# -- waiting and waking -------------------------------------------------------------------


@BOTH
def test_a_call_waits_and_is_woken(scene: Scene, where: str) -> None:
    """Goal: nothing there, so the call waits; it is answered as soon as something is, and meanwhile
    it counts neither as a request under way nor as a call between members.
    """
    client = client_at(scene, where)
    call = scene.take(client)
    scene.pump.run(1)
    assert is_open(client, call)
    node = client.node
    assert scene.figures(node)[0] == 1
    assert scene.figures(scene.home)[1] == (where == "other")
    assert node.engine.server.intake.connections[client.conn].in_flight == 0
    assert node.engine.metrics()["calls_waiting"] == 0
    scene.give()
    assert client.answer(call) is True
    assert scene.left() == 0
    assert node.engine.metrics()["waits_woken_total"] == 1
    scene.assert_nothing_is_kept()


@BOTH
def test_a_call_that_waits_for_no_time_is_answered_at_once(scene: Scene, where: str) -> None:
    """Goal: a handler answers by itself when the client does not want to wait."""
    client = client_at(scene, where)
    assert client.answer(scene.take(client, 0)) is False
    scene.assert_nothing_is_kept()


@BOTH
@pytest.mark.parametrize("timeout_ms", [1, 200, 12_000, 75_000])
def test_a_deadline_is_kept_to_a_tick(scene: Scene, where: str, timeout_ms: int) -> None:
    """Goal: at the end of its time, and no tick later, a call is answered by what its operation
    says; that it is tried again meanwhile does not move the end.
    """
    client = client_at(scene, where)
    call = scene.take(client, timeout_ms)
    scene.pump.run(timeout_ms / 1_000 - 0.001)
    assert is_open(client, call)
    scene.pump.run(TICK_S + 0.001)
    assert client.messages and client.answer(call) is False
    assert client.node.engine.metrics()["waits_expired_total"] == 1
    scene.give()
    assert scene.left() == 1
    scene.pump.run(TICK_S)
    scene.assert_nothing_is_kept()


@BOTH
def test_a_call_waits_for_as_long_as_it_takes(scene: Scene, where: str, monkeypatch: Patch) -> None:
    """Goal: waiting has no limit of its own, and each repeat leaves nothing behind."""
    monkeypatch.setattr(waits_module, "AGAIN_US", 120_000_000)
    monkeypatch.setattr(queues_module, "HINT_US", 240_000_000)
    client = client_at(scene, where)
    call = scene.take(client)
    scene.pump.run(LONG_S)
    assert is_open(client, call)
    assert scene.figures(scene.home)[1] == (where == "other")
    assert len(client.node.engine.server.waits._due) == 1
    scene.give()
    assert client.answer(call) is True
    scene.assert_nothing_is_kept()


# -- order --------------------------------------------------------------------------------


@pytest.mark.parametrize("pause_s", [0.0, 3.7, 64.0])
@pytest.mark.parametrize("at_once", [True, False])
def test_who_came_first_is_served_first(scene: Scene, pause_s: float, at_once: bool) -> None:
    """Goal: first come, first served among clients of all members and within one client, also after
    each has been tried again several times; what is given at once goes round in the same order.
    """
    clients = [
        client_at(scene, where, number)
        for number, where in enumerate(["other", "home", "backup", "other", "home"], 1)
    ]
    waiting = []
    for client in (*clients, clients[0], clients[1]):
        waiting.append((client, scene.take(client)))
        scene.pump.run(pause_s / 10)
    scene.pump.run(pause_s)
    if at_once:
        scene.give(len(waiting) - 1)
        assert [is_open(*one) for one in waiting] == [False] * (len(waiting) - 1) + [True]
    for count in range(1, len(waiting) + 1):
        if not at_once or count == len(waiting):
            scene.give()
            assert [is_open(*one) for one in waiting] == [
                number >= count for number in range(len(waiting))
            ]
    scene.pump.run(TICK_S)
    scene.assert_nothing_is_kept()


def test_order_survives_a_promotion(scene: Scene) -> None:
    """Goal: a new primary serves by age, although it hears of the calls in another order."""
    clients = [client_at(scene, where, n) for n, where in enumerate(["other", "backup"] * 3)]
    waiting = []
    for client in clients:
        waiting.append((client, scene.take(client)))
        scene.pump.run(1)
    scene.pump.kill(scene.home)
    scene.pump.run(5)
    scene.giver = client_at(scene, "backup", 98)
    for count in range(1, len(waiting) + 1):
        scene.give()
        assert [is_open(*one) for one in waiting] == [n >= count for n in range(len(waiting))]


# -- clients that go ----------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("told_first", [True, False])
def test_a_call_ends_with_its_client(scene: Scene, where: str, told_first: bool) -> None:
    """Goal: nothing goes to a client that is gone, also when the primary has not heard of it when
    it wakes the call; who waits behind it is served.
    """
    gone, stays = client_at(scene, where), client_at(scene, "backup", 2)
    for _ in range(3):
        scene.take(gone)
    call = scene.take(stays)
    scene.close(gone)
    if told_first:
        scene.pump.run(TICK_S)
        assert scene.figures(scene.home)[1] == 1
    scene.give()
    assert not is_open(stays, call)
    scene.give(2)
    assert scene.left() == 2
    assert gone.node.engine.metrics()["waits_ended_with_client_total"] == 3
    scene.pump.run(TICK_S)
    scene.assert_nothing_is_kept()


def test_a_client_that_goes_while_its_attempt_is_under_way(scene: Scene) -> None:
    """Goal: an attempt that has left is a call like any other, so the token may go with the client;
    nothing else does, and nothing is kept.
    """
    gone, stays = client_at(scene, "other"), client_at(scene, "home", 2)
    scene.take(gone)
    call = scene.take(stays)
    scene.give(settle=False)
    while not scene.is_flying(FORWARD):
        scene.pump.deliver_next()
    scene.close(gone)
    scene.pump.settle()
    assert scene.left() == 0 and is_open(stays, call)
    scene.give()
    assert not is_open(stays, call)
    scene.pump.run(1)
    scene.assert_nothing_is_kept()


def test_an_attempt_that_is_parked_ends_with_its_client(scene: Scene) -> None:
    """Goal: an attempt that waits at the primary for the end of a migration takes nothing when its
    client is gone by then, and what it was woken for goes to the next.
    """
    gone, stays = client_at(scene, "other"), client_at(scene, "home", 2)
    scene.take(gone)
    call = scene.take(stays)
    scene.give(settle=False)
    scene.set_migrating(True)
    scene.pump.settle()
    assert scene.home.engine.metrics()["parked_requests"] == 1
    scene.close(gone)
    scene.pump.run(TICK_S)
    assert scene.home.engine.metrics()["parked_requests"] == 0
    scene.set_migrating(False)
    assert not is_open(stays, call) and scene.left() == 0
    scene.assert_nothing_is_kept()


def test_a_call_whose_link_is_down_ends_with_its_client(scene: Scene) -> None:
    """Goal: a call that cannot reach its primary makes no attempt that could come later."""
    gone = client_at(scene, "other")
    scene.take(gone)
    scene.cut(scene.other, scene.home)
    scene.give()
    assert scene.left() == 1
    scene.close(gone)
    scene.mend(scene.other, scene.home)
    scene.pump.run(1)
    assert scene.left() == 1
    scene.assert_nothing_is_kept()


def test_an_attempt_that_was_lost_is_not_repeated_for_a_client_that_is_gone(scene: Scene) -> None:
    """Goal: what a broken link has lost is not sent again when nobody waits for it by then."""
    gone = client_at(scene, "other")
    scene.take(gone)
    scene.give(settle=False)
    while not scene.is_flying(FORWARD):
        scene.pump.deliver_next()
    assert scene.pump.lose(lambda frame: frame is not None and frame.kind == FORWARD)
    scene.cut(scene.other, scene.home)
    scene.close(gone)
    scene.mend(scene.other, scene.home)
    scene.pump.run(1)
    assert scene.left() == 1
    scene.assert_nothing_is_kept()


def test_a_first_attempt_whose_client_is_gone_does_not_wait(scene: Scene) -> None:
    """Goal: a client that goes before its first attempt is answered leaves no call behind."""
    gone = client_at(scene, "other")
    scene.ask(gone)
    scene.close(gone)
    scene.pump.run(TICK_S)
    scene.give()
    assert scene.left() == 1
    scene.assert_nothing_is_kept()


# -- limits -------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "limit", ["WAITING_PER_CONNECTION_MAX", "WAITING_MAX", "WAITING_BYTES_MAX"]
)
def test_calls_that_wait_are_bounded(
    scene: Scene, where: str, limit: str, monkeypatch: Patch
) -> None:
    """Goal: one more than may wait is refused as overload, without effect; the others go on."""
    client = client_at(scene, where)
    first = scene.take(client)
    monkeypatch.setattr(waits_module, limit, 1)
    with pytest.raises(Error) as caught:
        client.answer(scene.take(client))
    assert caught.value.code == codes.OVERLOAD
    scene.pump.run(TICK_S)
    assert scene.figures(scene.home)[1] == (where == "other")
    scene.give()
    assert client.answer(first) is True
    scene.assert_nothing_is_kept()


@pytest.mark.parametrize("limit", ["HINTS_PER_KEY_MAX", "HINTS_PER_MEMBER_MAX"])
def test_hints_are_bounded(scene: Scene, limit: str, monkeypatch: Patch) -> None:
    """Goal: a primary remembers a bounded number of calls; those that wait already go on."""
    client = client_at(scene, "other")
    first = scene.take(client)
    monkeypatch.setattr(queues_module, limit, 1)
    with pytest.raises(Error) as caught:
        client.answer(scene.take(client))
    assert caught.value.code == codes.OVERLOAD
    monkeypatch.setattr(queues_module, limit, 0)
    scene.pump.run(2 * AGAIN_S)
    assert is_open(client, first), "tried again, and not remembered any more"
    scene.give()
    scene.pump.run(AGAIN_SOON_US / 1_000_000 + TICK_S)
    assert client.answer(first) is True


def test_many_calls_are_tried_again_in_pieces(scene: Scene, monkeypatch: Patch) -> None:
    """0012: news of a partition does not try all that wait for it in one step."""
    monkeypatch.setattr(waits_module, "TRIES_PER_TICK", 10)
    client = client_at(scene, "home")
    for _ in range(35):
        scene.take(client)
    attempts = scene.tokens[scene.home].attempts
    scene.home.engine.server.waits.hurry(lambda request, wait: True)
    scene.pump.run(TICK_S)
    assert scene.tokens[scene.home].attempts == attempts + 10
    scene.pump.run(3 * TICK_S)
    assert scene.tokens[scene.home].attempts == attempts + 35


def test_a_long_row_of_wakes_is_cut_into_turns(scene: Scene, monkeypatch: Patch) -> None:
    """0012: those served wake the next ones for a bounded number of times in one turn."""
    monkeypatch.setattr(waits_module, "ROUNDS_PER_TURN", 10)
    client = client_at(scene, "home")
    calls = [scene.take(client) for _ in range(35)]
    scene.give(35, settle=False)
    assert scene.left() == 25
    scene.pump.run(5 * TICK_S)
    assert all(client.answer(call) for call in calls)


# -- bad input ----------------------------------------------------------------------------


def test_bad_frames_end_the_link(scene: Scene) -> None:
    """Goal: what no member of ours would send is refused, and changes nothing."""
    engine, pump = scene.home.engine, scene.pump
    peer = scene.other.id
    for kind, payload in (
        (NOTIFY, NOTIFY_WAKE + b"nonsense"),
        (NOTIFY, NOTIFY_WAIT_OVER + b"\xa1x"),
        (FORWARD, bytes(20) + bytes((WAITED | 1, 0, 0))),
    ):
        if kind == FORWARD:
            payload = (7).to_bytes(4, "little") + (1).to_bytes(8, "little") * 2 + payload[20:]
        with pytest.raises(ProtocolError):
            engine.peer_frame(peer, kind, payload, pump.now_us, pump.wall_ms)
    client = client_at(scene, "other")
    call = scene.ask(client)
    waits, server = scene.other.engine.server.waits, scene.other.engine.server
    (waiting,) = server.calls._outgoing[scene.home.id].waiting.values()
    request: Any = waiting.token
    with pytest.raises(ProtocolError):
        waits.told(waiting, request, WOULD_WAIT + b"nonsense")
    assert is_open(client, call)


def test_strangers_wake_nobody(scene: Scene) -> None:
    """Goal: numbers that mean nothing here are answered, and that is all."""
    engine, pump = scene.home.engine, scene.pump
    for what in (NOTIFY_WAKE, NOTIFY_WAIT_OVER):
        payload = what + b"\x92\x01\x02"
        engine.peer_frame(MemberId("stranger"), NOTIFY, payload, pump.now_us, pump.wall_ms)
    scene.home.carry_out()
    scene.assert_nothing_is_kept()


# -- everything together ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_no_token_is_lost_or_doubled(seed: int) -> None:
    """Goal: whatever happens, each token that was given is at the primary or was answered to a
    client that lived, and nobody waits while one is there. Method: seeded gives, takes, clients
    that go between attempts, links that break, partitions that are closed for a while.
    """
    rng = random.Random(seed)
    scene = Scene()
    clients = [client_at(scene, w, n) for n, w in enumerate(["home", "other", "backup"] * 2)]
    calls: list[tuple[Client, int]] = []
    gives: list[tuple[int, int]] = []
    links = [(scene.home, scene.other), (scene.other, scene.home), (scene.backup, scene.home)]
    for _ in range(120):
        what = rng.random()
        if what < 0.45:
            client = rng.choice(clients)
            calls.append((client, scene.ask(client, rng.choice([FOR_EVER, 400, 15_000]))))
        elif what < 0.7:
            gives.append((count := rng.randint(1, 3), scene.give(count, settle=False)))
        elif what < 0.75:
            link = rng.choice(links)
            if link in scene.links:
                scene.mend(*link)
            else:
                scene.cut(*link)
        elif what < 0.8:
            scene.set_migrating(not scene.partition(scene.home).migrating)
        elif what < 0.85:
            scene.pump.run(rng.choice([TICK_S, 0.5]))
        else:
            for _ in range(rng.randint(0, len(scene.pump.queue))):
                scene.pump.deliver_next()
    for link in list(scene.links):
        scene.mend(*link)
    scene.set_migrating(False)
    scene.pump.run(3 * AGAIN_S)
    answers = [client.messages.get(call) for client, call in calls]
    taken = sum(1 for answer in answers if answer is not None and answer[0][-1] == 1)
    given = sum(number for number, call in gives if scene.giver.answer(call) is True)
    waiting = sum(scene.figures(node)[0] for node in scene.pump.living())
    assert given == taken + scene.left()
    assert not (scene.left() and waiting)
    assert waiting == sum(1 for answer in answers if answer is None)
