"""Goal: every request to queues means to clients what the protocol says, from any member."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.engine_pump import Error
from tests.unit.home_scene import HomeScene

from whimbrel.serialization.data import to_data
from whimbrel.structures.queue.service import ADDED, REMOVED
from whimbrel.structures.queue.settings import SIZE_MAX, QueueSettings
from whimbrel.wire import errors as codes

A, B, C, D = (to_data(text) for text in "abcd")


class Scene(HomeScene):
    """The queue q, and a small one."""

    def __init__(self) -> None:
        super().__init__("Queue", "q", QueueSettings("small", max_size=2))


@pytest.fixture(scope="module")
def formed() -> Scene:
    return Scene()


@pytest.fixture
def scene(formed: Scene) -> Scene:
    formed.call("clear")
    formed.call("clear", name="small")
    return formed


BOTH = pytest.mark.parametrize("where", ["home", "other"])
"""The client is at the queue's home, or its calls are sent on."""


@BOTH
def test_all_requests(scene: Scene, where: str) -> None:
    """Goal: each request has its effect and its answer."""
    client = scene.at(where)

    def call(method: str, **fields: Any) -> Any:
        return scene.call(method, client, **fields)

    assert call("isEmpty") is True and call("size") == 0
    assert call("peek") is None and call("poll", timeout_millis=0) is None
    assert call("remainingCapacity") == SIZE_MAX
    assert call("offer", value=A, timeout_millis=0) is True
    call("put", value=B)
    assert call("addAll", data_list=[A, C, D]) is True
    assert call("size") == 5 and call("isEmpty") is False
    assert call("iterator") == [A, B, A, C, D] and call("peek") == A
    assert call("remainingCapacity") == SIZE_MAX - 5
    assert call("contains", value=C) is True and call("contains", value=to_data("x")) is False
    assert call("containsAll", data_list=[A, D]) is True
    assert call("remove", value=A) is True and call("remove", value=to_data("x")) is False
    assert call("compareAndRemoveAll", data_list=[D]) is True
    assert call("compareAndRetainAll", data_list=[A, B, C]) is False
    assert call("take") == B and call("poll", timeout_millis=0) == A
    call("addAll", data_list=[D, A])
    assert call("drainToMaxSize", max_size=1) == [C] and call("drainToMaxSize", max_size=0) == []
    assert call("drainTo") == [D, A] and call("drainTo") == []
    call("put", value=A)
    call("clear")
    assert call("size") == 0


@BOTH
@pytest.mark.parametrize("method", ["take", "poll"])
def test_who_takes_waits_for_an_item(scene: Scene, where: str, method: str) -> None:
    """Goal: nothing there, so the call waits until something is offered anywhere."""
    taker = scene.at(where)
    fields = {"timeout_millis": 60_000} if method == "poll" else {}
    asked = scene.ask(method, taker, **fields)
    scene.pump.run(30)
    assert asked not in taker.messages
    scene.call("offer", scene.at("backup", 3), value=A, timeout_millis=0)
    assert taker.answer(asked) == A
    assert scene.call("size") == 0


@BOTH
@pytest.mark.parametrize("method", ["put", "offer"])
def test_who_puts_waits_for_room(scene: Scene, where: str, method: str) -> None:
    """Goal: a full queue makes the call wait until something is taken."""
    putter = scene.at(where)
    scene.call("addAll", name="small", data_list=[A, B])
    assert scene.call("addAll", name="small", data_list=[C]) is False
    assert scene.call("offer", name="small", value=C, timeout_millis=0) is False
    fields = {"timeout_millis": 60_000} if method == "offer" else {}
    asked = scene.ask(method, putter, name="small", value=C, **fields)
    scene.pump.run(30)
    assert asked not in putter.messages and scene.call("remainingCapacity", name="small") == 0
    assert scene.call("take", name="small") == A
    assert putter.answer(asked) in (True, {})
    assert scene.call("iterator", name="small") == [B, C]


@BOTH
def test_a_time_out_is_an_answer(scene: Scene, where: str) -> None:
    """Goal: poll gives null and offer false when their time is over, and nothing has happened."""
    client = scene.at(where)
    asked = scene.ask("poll", client, timeout_millis=500)
    scene.call("addAll", name="small", data_list=[A, B])
    offered = scene.ask("offer", client, name="small", value=C, timeout_millis=500)
    scene.pump.run(0.4)
    assert not client.messages
    scene.pump.run(0.2)
    assert client.answer(asked) is None and client.answer(offered) is False
    scene.call("offer", value=D, timeout_millis=0)
    assert scene.call("iterator") == [D] and scene.call("iterator", name="small") == [A, B]


def test_many_takers_share_what_comes(scene: Scene) -> None:
    """Goal: as many waiting takes as there are items are served, the oldest first."""
    takers = [scene.at(where, n) for n, where in enumerate(["other", "home", "backup", "home"], 2)]
    asked = [scene.ask("take", taker) for taker in takers]
    scene.call("addAll", data_list=[A, B, C])
    assert [taker.answer(one) for taker, one in zip(takers[:3], asked, strict=False)] == [A, B, C]
    assert asked[3] not in takers[3].messages
    scene.call("put", value=D)
    assert takers[3].answer(asked[3]) == D


@BOTH
def test_a_client_that_is_gone_takes_nothing(scene: Scene, where: str) -> None:
    """Goal: a waiting call ends with its connection; what is offered then is for others."""
    taker = scene.at(where)
    for _ in range(3):
        scene.ask("take", taker)
    taker.node.clients.pop(taker.conn)
    taker.node.engine.client_closed(taker.conn)
    taker.node.carry_out()
    scene.pump.run(0.1)
    scene.call("addAll", data_list=[A, B])
    scene.pump.run(0.1)
    assert scene.call("iterator") == [A, B]


@pytest.mark.parametrize("include_value", [True, False])
def test_listeners_hear_of_items(scene: Scene, include_value: bool) -> None:
    """Goal: an item that comes or goes is told once; what is local only from the queue's home."""
    everywhere, local = scene.at("other"), scene.at("backup", 3)
    for client, local_only in ((everywhere, False), (local, True)):
        registration = client.call(
            "Queue.addListener",
            -1,
            name="q",
            include_value=include_value,
            local_only=local_only,
        )
    scene.call("addAll", data_list=[A, B])
    scene.call("take")
    scene.pump.settle()
    shown = [(event["event_type"], event["item"]) for _, _, event in everywhere.taken_events()]
    told = [(ADDED, A), (ADDED, B), (REMOVED, A)]
    assert shown == [(flag, item if include_value else None) for flag, item in told]
    assert local.taken_events() == []
    for known in (True, False):
        removed = local.call("Queue.removeListener", -1, name="q", registration_id=registration)
        assert removed is known
    for client in (everywhere, local):
        client.node.clients.pop(client.conn)
        client.node.engine.client_closed(client.conn)


def test_what_is_wrong_is_refused(scene: Scene) -> None:
    """Goal: an empty name, and bytes that are no value, are the caller's mistake."""
    for fields in ({"name": "", "value": A}, {"name": "q", "value": b"123"}):
        with pytest.raises(Error) as caught:
            scene.call("put", **fields)
        assert caught.value.code == codes.ILLEGAL_ARGUMENT


def test_a_queue_is_listed_and_destroyed(scene: Scene) -> None:
    """Goal: all members know the queue; destroyed, it is empty when it is used again."""
    scene.call("put", value=A)
    service = {"name": "q", "service_name": "hz:impl:queueService"}
    scene.pump.run(1)
    found = scene.at("other").call("Client.getDistributedObjects")
    assert ("hz:impl:queueService", "q") in [(one.service_name, one.name) for one in found]
    shown = json.loads(scene.other.engine.questions.documents["structures"](b""))
    wanted = {"name": "q", "kind": "queue", "backups": 1, "async_backups": 0, "persistent": False}
    wanted["survives"] = 1
    assert wanted in shown
    taker = scene.at("other", 3)
    scene.client.call("Client.destroyProxy", -1, **service)
    asked = scene.ask("take", taker)
    assert scene.call("size") == 0
    scene.call("put", value=B)
    assert taker.answer(asked) == B


def test_a_dead_home_loses_nothing_and_gives_nothing_twice() -> None:
    """Goal: what was acknowledged is there at the new home, what was taken is not, and those who
    wait go on waiting there.
    """
    scene = Scene()
    client, taker = scene.at("other"), scene.at("other", 3)
    scene.call("addAll", client, data_list=[A, B, C])
    assert scene.call("take", client) == A
    scene.pump.kill(scene.home)
    scene.pump.run(30)
    assert scene.call("iterator", client) == [B, C]
    assert scene.call("drainTo", client) == [B, C]
    asked = scene.ask("take", taker)
    scene.call("put", client, value=D)
    assert taker.answer(asked) == D
