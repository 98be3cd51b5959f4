"""Goal: a queue's call whose primary dies with it is answered once, as if nothing had happened.

What was taken is not lost, what was offered is there once, however far the attempt had come.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.engine_pump import Client, Error, Node
from tests.unit.test_queue_requests import A, B, C, D, Scene

from whimbrel.core.ids import namespace_of
from whimbrel.errors import ProtocolError, RetryableError, StateForbidsError
from whimbrel.serving.calls import AGE_STEP_US, CALL_TIMEOUT_US
from whimbrel.serving.wait_frames import NAMED
from whimbrel.structures.queue import answered
from whimbrel.structures.queue.store import QueueStore
from whimbrel.wire import errors as codes
from whimbrel.wire.links import BACKUPS, FORWARD
from whimbrel.wire.protocol_table import message_type

Patch = pytest.MonkeyPatch

CALLS: dict[str, dict[str, Any]] = {
    "put": {"value": D},
    "offer": {"value": D, "timeout_millis": 60_000},
    "take": {},
    "poll": {"timeout_millis": 60_000},
}
METHODS = pytest.mark.parametrize("method", CALLS)
STAGES = pytest.mark.parametrize("stage", ["before it ran", "replicated", "not replicated"])
ENTRIES = pytest.mark.parametrize("where", ["other", "backup"])
"""The client's member: another one, or the one that becomes the primary."""


@pytest.fixture
def scene() -> Scene:
    return Scene()


def store_at(node: Node, scene: Scene, name: str = "q") -> QueueStore:
    """A member's store of a queue."""
    partition = node.engine.member.dataplane.partitions[scene.pid]
    store = partition.fragments[namespace_of("queue", name)].store
    assert isinstance(store, QueueStore)
    return store


def is_flying(scene: Scene, kind: int) -> bool:
    """Whether a frame of a kind is on its way."""
    return any(frame is not None and frame.kind == kind for frame in scene.pump.flying.values())


def fly(scene: Scene, kind: int) -> None:
    """Let happen what happens until a frame of a kind is on its way."""
    while not is_flying(scene, kind):
        scene.pump.deliver_next()


def dies(scene: Scene, stage: str) -> None:
    """The home dies with an attempt that is on its way to it."""
    fly(scene, FORWARD)
    if stage == "not replicated":
        while is_flying(scene, FORWARD):
            scene.pump.deliver_next()
        assert scene.pump.lose(lambda frame: frame is not None and frame.kind == BACKUPS)
    elif stage == "replicated":
        server: Any = scene.home.engine.server
        server.calls.answer = lambda *_: None
        scene.pump.settle()
    scene.pump.kill(scene.home)


def switch_off(scene: Scene) -> None:
    """Nobody recognises attempts."""
    for node in scene.pump.nodes:
        for method in CALLS:
            row = node.engine.server.operations.in_partition[message_type(f"Queue.{method}")]
            row.recognise = None


def ask(scene: Scene, client: Client, method: str, name: str = "q") -> int:
    """Begin a call; it is on its way."""
    return client.ask(f"Queue.{method}", scene.pid, name=name, **CALLS[method])


def check(scene: Scene, client: Client, asked: int, method: str, before: list[bytes]) -> None:
    """The call is answered, and the queue shows it once."""
    found = client.answer(asked)
    left = scene.call("iterator", scene.at("backup", 8))
    if method in ("take", "poll"):
        assert found == before[0] and left == before[1:]
    else:
        assert found in (True, {}) and left == [*before, D]
    connection = client.node.engine.server.intake.connections[client.conn]
    assert connection.in_flight == 0 and not connection.waiting
    scene.pump.run(1)
    assert scene.call("iterator", scene.at("backup", 9)) == left


# -- primaries that die with an attempt ---------------------------------------------------


@METHODS
@STAGES
@ENTRIES
def test_a_call_is_answered_once(scene: Scene, method: str, stage: str, where: str) -> None:
    """0013: the first attempt is lost with its primary; nobody needs to know."""
    scene.call("addAll", data_list=[A, B])
    client = scene.at(where)
    asked = ask(scene, client, method)
    dies(scene, stage)
    check(scene, client, asked, method, [A, B])
    assert client.node.engine.metrics()["attempts_repeated_total"] == 1


@METHODS
@STAGES
def test_without_recognition_it_is_unknown(scene: Scene, method: str, stage: str) -> None:
    """Goal: what the other tests show is due to what they test."""
    switch_off(scene)
    scene.call("addAll", data_list=[A, B])
    client = scene.at("other")
    asked = ask(scene, client, method)
    dies(scene, stage)
    with pytest.raises(Error) as caught:
        client.answer(asked)
    assert caught.value.code == codes.INDETERMINATE


@STAGES
@ENTRIES
@pytest.mark.parametrize("method", ["take", "poll"])
def test_a_call_that_waited_is_answered_once(
    scene: Scene, method: str, stage: str, where: str
) -> None:
    """Goal: the same for an attempt of a call that was woken."""
    client = scene.at(where)
    asked = scene.ask(method, client, **CALLS[method])
    scene.client.ask("Queue.offer", scene.pid, name="q", value=A, timeout_millis=0)
    dies(scene, stage)
    check(scene, client, asked, method, [A])


@ENTRIES
@pytest.mark.parametrize("method", ["put", "offer"])
def test_a_put_on_a_full_queue_goes_on_waiting(scene: Scene, method: str, where: str) -> None:
    """Goal: the primary dies at once, before the client's member can know that the call waits."""
    client, other = scene.at(where), scene.at("other", 3)
    scene.call("addAll", name="small", data_list=[A, B])
    asked = ask(scene, client, method, "small")
    dies(scene, "before it ran")
    scene.pump.run(30)
    assert asked not in client.messages
    assert scene.call("iterator", other, name="small") == [A, B]
    assert scene.call("poll", other, name="small", timeout_millis=0) == A
    assert client.answer(asked) in (True, {})
    assert scene.call("iterator", other, name="small") == [B, D]


@ENTRIES
def test_a_deadline_counts_from_the_first_attempt(scene: Scene, where: str) -> None:
    """0015: that an attempt was lost does not move the end."""
    client = scene.at(where)
    asked = client.ask("Queue.poll", scene.pid, name="q", timeout_millis=20_000)
    dies(scene, "before it ran")
    scene.pump.run(20 - 0.001)
    assert asked not in client.messages
    scene.pump.run(0.05)
    assert asked in client.messages and client.answer(asked) is None


def test_a_home_that_leaves_with_an_attempt(scene: Scene) -> None:
    """Goal: a member that goes in order and does not answer any more costs nothing, either."""
    scene.call("addAll", data_list=[A, B])
    client = scene.at("other")
    server: Any = scene.home.engine.server
    server.calls.answer = lambda *_: None
    asked = ask(scene, client, "take")
    scene.pump.leave(scene.home)
    check(scene, client, asked, "take", [A, B])


def test_two_homes_die_in_turn(scene: Scene) -> None:
    """Goal: the answer of a repetition is lost, too; a copy brought the call to its last home."""
    scene.pump.start()
    scene.pump.run(20)
    scene.call("addAll", data_list=[A, B])
    client = scene.at("other")
    asked = ask(scene, client, "take")
    server: Any = scene.backup.engine.server
    server.calls.answer = lambda *_: None
    dies(scene, "replicated")
    scene.pump.run(6)
    assert store_at(scene.backup, scene).answered.records and asked not in client.messages
    scene.pump.kill(scene.backup)
    assert client.answer(asked) == A
    assert client.node.engine.metrics()["attempts_repeated_total"] == 2
    assert scene.call("iterator", client) == [B]


# -- what a repetition may not be told ----------------------------------------------------


@METHODS
@ENTRIES
def test_what_may_be_forgotten_stays_unknown(
    scene: Scene, method: str, where: str, monkeypatch: Patch
) -> None:
    """Goal: a repetition that finds nothing where its call may have been is not carried out."""
    monkeypatch.setattr(answered, "RECORDS_MAX", 1)
    scene.call("addAll", data_list=[A, B, C])
    client = scene.at(where)
    asked = ask(scene, client, method)
    server: Any = scene.home.engine.server
    with monkeypatch.context() as patch:
        patch.setattr(server.calls, "answer", lambda *_: None)
        scene.pump.settle()
    assert scene.call("take", scene.at(where, 3)) == (A if method in ("put", "offer") else B)
    left = scene.call("iterator")
    scene.pump.kill(scene.home)
    with pytest.raises(Error) as caught:
        client.answer(asked)
    assert caught.value.code == codes.INDETERMINATE
    assert scene.call("iterator", scene.at("backup", 4)) == left


@ENTRIES
def test_a_refused_repetition_is_unknown(scene: Scene, where: str) -> None:
    """0013: an error that says that nothing has happened is true of an attempt only; the client is
    told of the call.
    """
    scene.call("addAll", data_list=[A, B])
    client = scene.at(where)
    asked = ask(scene, client, "take")
    dies(scene, "replicated")
    for node in (scene.backup, scene.other):
        server: Any = node.engine.server
        server.operations.in_partition[message_type("Queue.take")].is_guarded = True
        server.admission.admit, server.admission.members_changed = refuse, lambda: None
    with pytest.raises(Error) as caught:
        client.answer(asked)
    assert caught.value.code == codes.INDETERMINATE and "no" in caught.value.text


def refuse(*_: Any) -> None:
    """What PASSIVE or split-brain protection do."""
    raise StateForbidsError("no")


def take_in_doubt(scene: Scene, where: str) -> tuple[Client, int, Any]:
    """A take of one of two items, whose primary died with its answer: who asked, the number of the
    call, and what admits writes at the next primary.
    """
    scene.call("addAll", data_list=[A, B])
    client = scene.at(where)
    asked = ask(scene, client, "take")
    dies(scene, "replicated")
    return client, asked, scene.backup.engine.member.dataplane.outgoing


@ENTRIES
def test_a_repetition_is_tried_until_its_time_is_over(scene: Scene, where: str) -> None:
    """Goal: an attempt that cannot be made is made again, as long as a request may be parked."""
    client, asked, outgoing = take_in_doubt(scene, where)
    outgoing.admit, admit = busy, outgoing.admit
    scene.pump.run(8)
    assert asked not in client.messages
    outgoing.admit = admit
    scene.pump.run(0.2)
    assert client.answer(asked) == A


def busy(*_: Any) -> None:
    """What a primary says that cannot do it now."""
    raise RetryableError("busy")


@ENTRIES
def test_a_repetition_that_cannot_be_made_ends_unknown(scene: Scene, where: str) -> None:
    """Goal: and not longer."""
    client, asked, outgoing = take_in_doubt(scene, where)
    outgoing.admit = busy
    scene.pump.run(9)
    assert asked not in client.messages
    scene.pump.run(2)
    assert client.messages
    with pytest.raises(Error) as caught:
        client.answer(asked)
    assert caught.value.code == codes.INDETERMINATE
    connection = client.node.engine.server.intake.connections[client.conn]
    assert connection.in_flight == 0 and not connection.waiting


def test_a_client_that_is_gone_is_not_repeated_for(scene: Scene) -> None:
    """Goal: nothing is taken for nobody."""
    scene.call("addAll", data_list=[A, B])
    client = scene.at("other")
    ask(scene, client, "take")
    fly(scene, FORWARD)
    client.node.clients.pop(client.conn)
    client.node.engine.client_closed(client.conn)
    scene.pump.kill(scene.home)
    scene.pump.run(20)
    assert scene.call("iterator", scene.at("backup", 4)) == [A, B]


def test_a_client_that_goes_while_it_is_repeated_for(scene: Scene) -> None:
    """Goal: a repetition that waits for its partition ends with its client."""
    scene.call("addAll", data_list=[A, B])
    client = scene.at("other")
    ask(scene, client, "take")
    dies(scene, "before it ran")
    server = scene.other.engine.server
    while not server.parking.count:
        scene.pump.deliver_next()
    client.node.clients.pop(client.conn)
    client.node.engine.client_closed(client.conn)
    scene.pump.run(20)
    assert scene.call("iterator", scene.at("backup", 4)) == [A, B]
    assert not server.parking.count


# -- members between ----------------------------------------------------------------------


def through(scene: Scene, patch: Patch) -> None:
    """The other member takes the backup for the primary, which sends requests on."""
    server: Any = scene.other.engine.server
    patch.setattr(server, "primary_to_ask", lambda _: scene.backup.id)


@METHODS
@STAGES
def test_who_sent_it_on_says_that_it_is_lost(scene: Scene, method: str, stage: str) -> None:
    """Goal: an attempt that was sent on is repeated by its client's member, nobody else."""
    scene.call("addAll", data_list=[A, B])
    client = scene.at("other")
    with pytest.MonkeyPatch.context() as patch:
        through(scene, patch)
        asked = ask(scene, client, method)
        fly(scene, FORWARD)
        scene.pump.deliver_next()
    dies(scene, stage)
    check(scene, client, asked, method, [A, B])
    assert scene.other.engine.metrics()["attempts_repeated_total"] == 1
    assert "attempts_repeated_total" not in scene.backup.engine.metrics()


def test_an_attempt_that_comes_after_its_repetition(scene: Scene) -> None:
    """Goal: it was sent on by a member that died, and was parked: it is not carried out again, and
    the call is answered once.
    """
    scene.call("addAll", data_list=[A, B, C])
    client = scene.at("other")
    partition = scene.home.engine.member.dataplane.partitions[scene.pid]
    partition.set_migrating(True)
    with pytest.MonkeyPatch.context() as patch:
        through(scene, patch)
        asked = ask(scene, client, "take")
        scene.pump.settle()
    late = scene.home.engine.server.parking.take([scene.pid])
    assert len(late) == 1
    partition.set_migrating(False)
    scene.pump.kill(scene.backup)
    assert client.answer(asked) == A
    late[0].deadline_us = 0
    scene.home.engine.server.dispatch_request(late[0])
    scene.home.carry_out()
    scene.pump.run(1)
    assert scene.call("iterator") == [B, C]


def test_a_member_that_left_sends_nothing_on(scene: Scene) -> None:
    """Goal: what it kept for too long was repeated by its client's member; a client that is waited
    for may hear of it, so it is refused and not forgotten.
    """
    scene.call("addAll", data_list=[A, B])
    client = scene.at("other")
    with pytest.MonkeyPatch.context() as patch:
        through(scene, patch)
        asked = ask(scene, client, "take")
        fly(scene, FORWARD)
        scene.pump.deliver_next()
        fly(scene, FORWARD)
        patch.setattr(scene.home.engine.server.ctx, "is_member", lambda one: one != scene.backup.id)
        with pytest.raises(Error) as caught:
            client.answer(asked)
    assert caught.value.code == codes.RETRYABLE
    assert scene.call("iterator") == [A, B]


def test_bad_heads_end_the_link(scene: Scene) -> None:
    """Goal: what no member of ours would send is refused."""
    engine, pump = scene.home.engine, scene.pump
    head = (7).to_bytes(4, "little") + (1).to_bytes(8, "little") * 2
    bad = head + bytes((NAMED | 1,)) + bytes(10)
    with pytest.raises(ProtocolError):
        engine.peer_frame(scene.other.id, FORWARD, bad, pump.now_us, pump.wall_ms)


def test_a_silent_home_is_asked_again(scene: Scene) -> None:
    """Goal: a member on the list that does not answer for a minute, without a word of its link."""
    scene.call("addAll", data_list=[A, B])
    client = scene.at("other")
    server: Any = scene.home.engine.server
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.calls, "answer", lambda *_: None)
        asked = ask(scene, client, "take")
        scene.pump.settle()
    scene.pump.run(CALL_TIMEOUT_US / 1_000_000 - 1)
    assert asked not in client.messages
    scene.pump.run(2 * AGE_STEP_US / 1_000_000)
    assert client.messages and client.answer(asked) == A
    assert scene.call("iterator") == [B]


def test_nothing_is_remembered_of_calls_at_home(scene: Scene) -> None:
    """Goal: who asks the primary itself costs nothing; who is sent on is remembered by both."""
    scene.call("put", value=A)
    scene.call("take")
    assert store_at(scene.home, scene).answered.next_place == 1
    other = scene.at("other")
    scene.call("put", other, value=A)
    scene.call("take", other)
    scene.call("poll", other, timeout_millis=0)
    records = store_at(scene.home, scene).answered.records
    assert [(place, record.answer) for place, record in records] == [(1, b""), (2, A)]
    assert store_at(scene.backup, scene).answered.records == records
