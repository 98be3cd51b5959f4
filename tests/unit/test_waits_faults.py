"""Calls that wait over what happens to primaries, links and partitions: answered once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.engine_pump import Error
from tests.unit.test_cluster_states import set_state
from tests.unit.waiting_tokens import AWAITED, BOTH, KEY, PID, Scene, client_at, is_open

from whimbrel.core.model import ClusterState
from whimbrel.serving import waits as waits_module
from whimbrel.serving.wait_queues import HINT_US
from whimbrel.serving.waits import AGAIN_SOON_US, AGAIN_US
from whimbrel.wire import errors as codes
from whimbrel.wire.links import FORWARD
from whimbrel.wire.protocol_table import message_type

AGAIN_S = AGAIN_US / 1_000_000
HINT_S = HINT_US / 1_000_000
TICK_S = 0.05

Patch = pytest.MonkeyPatch


@pytest.fixture
def scene() -> Scene:
    return Scene()


# -- primaries that go --------------------------------------------------------------------


@pytest.mark.parametrize("where", ["other", "backup"])
@pytest.mark.parametrize("how", ["dies", "leaves"])
def test_a_call_outlives_its_primary(scene: Scene, where: str, how: str) -> None:
    """Goal: between attempts nothing is unknown: the call goes on at the next primary, which may be
    the member that its client is connected to.
    """
    client = client_at(scene, where)
    call = scene.take(client)
    deadline = scene.take(client, 60_000)
    if how == "dies":
        scene.pump.kill(scene.home)
    else:
        scene.pump.leave(scene.home)
    scene.pump.run(5)
    assert is_open(client, call)
    scene.give(client=client_at(scene, "other", 2))
    assert client.answer(call) is True
    scene.pump.run(60)
    assert client.answer(deadline) is False
    scene.assert_nothing_is_kept()


@BOTH
def test_a_call_outlives_moves(scene: Scene, where: str) -> None:
    """Goal: a partition moves in a planned way; its calls stay with their clients, of which one is
    connected to the member that gives it away.
    """
    client = client_at(scene, where)
    call = scene.take(client)
    scene.home.engine.want_role(True, lambda _: None, scene.pump.now_us, scene.pump.wall_ms)
    scene.home.carry_out()
    scene.pump.run_until(lambda: not scene.partition(scene.home).is_primary, 60)
    scene.pump.run(1)
    assert is_open(client, call)
    assert scene.figures(scene.home)[1] == 0
    scene.give()
    assert client.answer(call) is True
    scene.pump.run(TICK_S)
    scene.assert_nothing_is_kept()


def test_an_attempt_that_may_have_happened_is_indeterminate(
    scene: Scene, monkeypatch: Patch
) -> None:
    """0013: the primary dies with an attempt; that was sent, so its outcome is unknown."""
    client = client_at(scene, "other")
    call = scene.take(client)
    monkeypatch.setattr(scene.home.engine.server.calls, "answer", lambda *_: None)
    scene.give()
    assert is_open(client, call)
    scene.pump.kill(scene.home)
    with pytest.raises(Error) as caught:
        client.answer(call)
    assert caught.value.code == codes.INDETERMINATE
    scene.assert_nothing_is_kept()


def test_an_attempt_that_was_not_sent_goes_to_the_next_primary(scene: Scene) -> None:
    """0013: the primary dies before the attempt could leave."""
    client = client_at(scene, "other")
    call = scene.take(client)
    scene.cut(scene.other, scene.home)
    scene.give()
    scene.pump.kill(scene.home)
    assert client.answer(call) is True
    assert scene.left() == 0
    scene.assert_nothing_is_kept()


def test_an_attempt_whose_answer_was_lost_is_not_repeated(scene: Scene) -> None:
    """C1: the link breaks behind the attempt: it is made once, and its answer said again."""
    client = client_at(scene, "other")
    call = scene.take(client)
    scene.give(settle=False)
    while not scene.is_flying(FORWARD):
        scene.pump.deliver_next()
    scene.cut(scene.home, scene.other)
    scene.pump.settle()
    assert is_open(client, call) and scene.left() == 0
    scene.give()
    scene.mend(scene.home, scene.other)
    assert client.answer(call) is True
    assert scene.left() == 1


# -- wakes that are lost ------------------------------------------------------------------


def test_a_lost_wake_costs_time(scene: Scene, monkeypatch: Patch) -> None:
    """Goal: without any wake a call is tried again after a while."""
    client = client_at(scene, "other")
    call = scene.take(client)
    monkeypatch.setattr(scene.other.engine.server.waits, "on_wake", lambda *_: None)
    scene.give()
    scene.pump.run(1)
    assert is_open(client, call)
    scene.pump.run(AGAIN_S)
    assert not is_open(client, call)
    scene.assert_nothing_is_kept()


def test_a_wake_is_said_again_when_the_link_is_back(scene: Scene) -> None:
    """Goal: what a broken link has lost is repeated at once."""
    client = client_at(scene, "other")
    call = scene.take(client)
    scene.cut(scene.home, scene.other)
    scene.give()
    assert is_open(client, call)
    scene.mend(scene.home, scene.other)
    assert not is_open(client, call)


def test_a_call_asks_when_its_own_link_is_back(scene: Scene, monkeypatch: Patch) -> None:
    """Goal: the primary may have forgotten the call while the link was down."""
    client = client_at(scene, "other")
    call = scene.take(client)
    scene.cut(scene.other, scene.home)
    scene.home.engine.server.waits.queues.member_left(scene.other.id)
    scene.give()
    scene.pump.run(1)
    assert is_open(client, call)
    scene.mend(scene.other, scene.home)
    scene.pump.run(TICK_S)
    assert not is_open(client, call)


@pytest.mark.parametrize("how", ["dies", "is silent"])
def test_a_woken_call_that_does_not_come_passes_its_wake_on(
    scene: Scene, how: str, monkeypatch: Patch
) -> None:
    """Goal: what one was woken for does not lie about while another waits."""
    lost, stays = client_at(scene, "other"), client_at(scene, "home", 2)
    scene.take(lost)
    call = scene.take(stays)
    monkeypatch.setattr(waits_module, "AGAIN_US", 10 * HINT_US)
    scene.pump.run(AGAIN_S)  # both are to be tried much later from now on
    if how == "dies":
        scene.other.alive = False
        scene.give()
        assert is_open(stays, call)
        scene.pump.kill(scene.other)
        scene.pump.run(5)
    else:
        server: Any = scene.other.engine.server
        monkeypatch.setattr(server.waits, "on_wake", lambda *_: None)
        scene.give()
        scene.pump.run(HINT_S - 1)
        assert is_open(stays, call)
        scene.pump.run(2)
    assert not is_open(stays, call) and scene.left() == 0


def test_a_primary_forgets_who_does_not_tell_again(scene: Scene, monkeypatch: Patch) -> None:
    """Goal: hints are bounded in time."""
    client = client_at(scene, "other")
    scene.take(client)
    monkeypatch.setattr(scene.other.engine.server.waits, "tick", lambda: None)
    scene.pump.run(HINT_S - 1)
    assert scene.figures(scene.home)[1] == 1
    scene.pump.run(2)
    assert scene.figures(scene.home)[1] == 0
    assert not scene.home.engine.server.waits.queues._queues


def test_a_wake_that_crosses_an_attempt_is_not_for_somebody_else(scene: Scene) -> None:
    """Goal: a call that is tried again when its wake is on the way is neither woken twice nor
    taken for gone.
    """
    client = client_at(scene, "other")
    call = scene.take(client)
    scene.give(settle=False)
    waits = scene.other.engine.server.waits
    scene.other.engine.member.begin(scene.pump.now_us, scene.pump.wall_ms)
    waits.hurry(lambda request, wait: True)
    waits.tick()
    scene.other.carry_out()
    scene.pump.settle()
    assert client.answer(call) is True
    assert scene.left() == 0
    assert "waits_woken_total" not in scene.other.engine.metrics()
    scene.assert_nothing_is_kept()


def test_a_wake_comes_after_the_answer_that_it_follows(scene: Scene) -> None:
    """Goal: an attempt finds nothing, and what it waits for comes in the same turn: its member
    hears of both in their order.
    """
    client = client_at(scene, "other")
    scene.set_migrating(True)
    call = scene.take(client)
    scene.give()
    assert is_open(client, call)
    scene.set_migrating(False)
    assert not is_open(client, call)


def test_a_woken_call_that_is_tried_elsewhere_passes_its_wake_on(
    scene: Scene, monkeypatch: Patch
) -> None:
    """Goal: a former primary that does not know it yet does not wait for an attempt that goes to
    another member.
    """
    client, stays = client_at(scene, "other"), client_at(scene, "home", 2)
    scene.take(client)
    call = scene.take(stays)
    server: Any = scene.other.engine.server
    monkeypatch.setattr(server, "primary_to_ask", lambda pid: scene.backup.id)
    monkeypatch.setattr(scene.backup.engine.server.calls, "take_request", lambda *_: None)
    server.waits.hurry(lambda request, wait: True)
    server.waits.tick()
    scene.other.carry_out()
    scene.give()
    assert not is_open(stays, call)


def test_a_woken_call_that_cannot_be_tried_passes_its_wake_on(
    scene: Scene, monkeypatch: Patch
) -> None:
    """Goal: the primary does not wait for an attempt of a member that has no row to go by."""
    client, stays = client_at(scene, "other"), client_at(scene, "home", 2)
    first = scene.take(client)
    call = scene.take(stays)
    with monkeypatch.context() as patch:
        patch.setattr(scene.other.engine.server, "primary_to_ask", lambda pid: None)
        scene.give()
    assert not is_open(stays, call) and is_open(client, first)
    scene.pump.run(AGAIN_S + TICK_S)
    scene.give()
    assert not is_open(client, first)


def test_an_expelled_member_serves_nobody(scene: Scene) -> None:
    """Goal: what a member holds when it is told to go is kept for the merge; nobody gets it."""
    client = client_at(scene, "home")
    call = scene.take(client)
    partition = scene.partition(scene.home)
    scene.tokens[scene.home].plane.wakes.wake(partition, AWAITED, KEY)
    attempts = scene.tokens[scene.home].attempts
    scene.home.engine.member.is_expelled = True
    scene.home.carry_out()
    assert scene.tokens[scene.home].attempts == attempts and is_open(client, call)


def test_an_answer_of_a_former_primary_is_not_waited_on(scene: Scene, monkeypatch: Patch) -> None:
    """Goal: the row changes while an attempt waits for its answer, and the member that gives it
    remembers nobody any more; so the new primary is asked at once.
    """
    client = client_at(scene, "other")
    scene.cut(scene.home, scene.other)
    call = scene.take(client)
    scene.home.engine.server.waits.queues.leave(PID)
    scene.give()
    server: Any = scene.other.engine.server
    monkeypatch.setattr(server, "primary_to_ask", lambda pid: scene.backup.id)
    scene.mend(scene.home, scene.other)
    assert is_open(client, call)
    scene.pump.run(TICK_S)
    assert not is_open(client, call)


# -- errors on the way --------------------------------------------------------------------


def test_a_call_waits_on_over_errors_without_effect(scene: Scene) -> None:
    """Goal: that an attempt could not be made does not end a call that waits. Method: the attempts
    are parked at the primary, each until it is refused there.
    """
    client = client_at(scene, "other")
    call = scene.take(client)
    scene.give(settle=False)
    scene.set_migrating(True)
    scene.pump.run(30)
    assert scene.home.engine.metrics()["parking_timeouts_total"] >= 2
    assert is_open(client, call)
    scene.set_migrating(False)
    scene.pump.run(AGAIN_SOON_US / 1_000_000)
    assert client.answer(call) is True
    scene.pump.run(1)
    scene.assert_nothing_is_kept()


def test_a_call_of_a_closed_partition_stays_idle(scene: Scene) -> None:
    """Goal: where no attempt can be made a call takes no place among the parked requests, and asks
    as soon as the partition is open again.
    """
    client = client_at(scene, "home")
    call = scene.take(client)
    scene.set_migrating(True)
    scene.pump.run(2 * AGAIN_S)
    assert scene.home.engine.metrics()["parked_requests_total"] == 0
    attempts = scene.tokens[scene.home].attempts
    scene.set_migrating(False)
    assert scene.tokens[scene.home].attempts == attempts + 1
    scene.give()
    assert client.answer(call) is True


def test_a_deadline_passes_while_an_attempt_is_parked(scene: Scene, monkeypatch: Patch) -> None:
    """Goal: an attempt that cannot be made anywhere does not hold its call beyond its time. Method:
    a call that may run twice, whose primary died with an attempt, and no other is known.
    """
    client = client_at(scene, "other")
    call = scene.take(client, 5_000)
    server: Any = scene.other.engine.server
    server.operations.in_partition[message_type("Map.tryRemove")].is_retryable = True
    scene.pump.run(1)
    monkeypatch.setattr(scene.home.engine.server.calls, "answer", lambda *_: None)
    scene.give()
    monkeypatch.setattr(server, "primary_to_ask", lambda pid: None)
    scene.pump.kill(scene.home)
    scene.pump.run(4 - 0.001)
    assert scene.other.engine.metrics()["parked_requests"] == 1 and is_open(client, call)
    scene.pump.run(TICK_S + 0.001)
    assert client.messages and client.answer(call) is False
    assert scene.other.engine.metrics()["parked_requests"] == 0


def test_a_deadline_without_a_link_is_kept(scene: Scene) -> None:
    """Goal: a call that cannot be tried is idle, so its time ends as it should."""
    client = client_at(scene, "other")
    call = scene.take(client, 15_000)
    scene.cut(scene.other, scene.home)
    scene.pump.run(15 - 0.001)
    assert is_open(client, call)
    scene.pump.run(TICK_S + 0.001)
    assert client.messages and client.answer(call) is False


def test_a_primary_that_does_not_remember_is_asked_soon(scene: Scene, monkeypatch: Patch) -> None:
    """Goal: whoever sent an attempt on cannot wake its call, so it is tried again soon."""
    client = client_at(scene, "other")
    server: Any = scene.other.engine.server
    with monkeypatch.context() as patch:
        patch.setattr(server, "primary_to_ask", lambda pid: scene.backup.id)
        call = scene.take(client)
    assert scene.figures(scene.other)[0] == 1 and scene.figures(scene.home)[1] == 0
    scene.give()
    assert is_open(client, call)
    scene.pump.run(AGAIN_SOON_US / 1_000_000 + TICK_S)
    assert not is_open(client, call)


@BOTH
def test_a_passive_cluster_refuses_who_waits(scene: Scene, where: str) -> None:
    """GCM-07: what would be refused when it is asked is refused when it waits."""
    client = client_at(scene, where)
    call = scene.take(client)
    set_state(scene.pump, ClusterState.PASSIVE)
    with pytest.raises(Error) as caught:
        client.answer(call)
    assert caught.value.code == codes.ILLEGAL_STATE
    scene.pump.run(1)
    scene.assert_nothing_is_kept()


def test_a_part_that_is_too_small_refuses_who_waits() -> None:
    """Goal: split-brain protection holds for calls that wait."""
    scene = Scene(split_brain_minimum_size=3)
    client = client_at(scene, "home")
    call = scene.take(client)
    scene.pump.kill(scene.other)
    with pytest.raises(Error) as caught:
        client.answer(call)
    assert caught.value.code == codes.SPLIT_BRAIN_PROTECTION
    scene.assert_nothing_is_kept()


@BOTH
def test_calls_look_again_when_their_structure_is_destroyed(scene: Scene, where: str) -> None:
    """Goal: the handler decides what becomes of a call whose structure is gone."""
    client = client_at(scene, where)
    call = scene.take(client)
    attempts = scene.tokens[scene.home].attempts
    scene.giver.call("Client.destroyProxy", name="b1", service_name="hz:impl:mapService")
    scene.pump.run(TICK_S)
    assert scene.tokens[scene.home].attempts > attempts
    scene.give()
    assert client.answer(call) is True


def test_a_destruction_is_heard_by_others_before_the_primary(scene: Scene) -> None:
    """Goal: a call that looked again too early looks once more when the primary has heard, too."""
    client = client_at(scene, "other")
    scene.take(client)
    attempts = scene.tokens[scene.home].attempts
    scene.home.engine.server.waits.destroyed(AWAITED)
    scene.home.carry_out()
    scene.pump.settle()
    assert scene.tokens[scene.home].attempts == attempts + 1


def test_the_number_of_a_call_that_waits_is_taken(scene: Scene) -> None:
    """Goal: a client that uses it again is told so, and the first call goes on."""
    for where in ("home", "other"):
        client = client_at(scene, where)
        call = scene.take(client)
        client.correlation -= 1
        with pytest.raises(Error) as caught:
            client.answer(scene.take(client))
        assert caught.value.code == codes.ILLEGAL_ARGUMENT
        scene.pump.run(TICK_S)
        scene.give()
        assert client.answer(call) is True
    scene.assert_nothing_is_kept()
