"""Goal: every request to ring buffers means to clients what the protocol says, from any member."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.engine_pump import Client, Error
from tests.unit.home_scene import HomeScene

from whimbrel.serialization.data import to_data
from whimbrel.structures.ringbuffer.service import FAIL, OVERWRITE
from whimbrel.structures.ringbuffer.settings import RingbufferSettings
from whimbrel.wire import errors as codes

A, B, C, D = (to_data(text) for text in "abcd")
CAPACITY = 3


class Scene(HomeScene):
    """The ring buffer r."""

    def __init__(self) -> None:
        super().__init__("Ringbuffer", "r", RingbufferSettings("r", capacity=CAPACITY))

    def add(self, *values: bytes, client: Client | None = None) -> Any:
        """Add these, whatever must give way."""
        call = self.call
        return call("addAll", client, value_list=list(values), overflow_policy=OVERWRITE)

    def many(self, client: Client, start: int, least: int, most: int) -> dict[str, Any]:
        """The numbers of a batch."""
        return {"start_sequence": start, "min_count": least, "max_count": most, "filter": None}

    def clear(self) -> None:
        """Destroy it: sequences begin anew."""
        service = {"name": "r", "service_name": "hz:impl:ringbufferService"}
        self.client.call("Client.destroyProxy", -1, **service)
        self.pump.settle()


@pytest.fixture(scope="module")
def formed() -> Scene:
    return Scene()


@pytest.fixture
def scene(formed: Scene) -> Scene:
    formed.clear()
    return formed


BOTH = pytest.mark.parametrize("where", ["home", "other"])
"""The client is at the ring buffer's home, or its calls are sent on."""


def batch(start: int, *items: bytes) -> dict[str, Any]:
    """The answer of readMany."""
    sequences = list(range(start, start + len(items)))
    return {
        "read_count": len(items),
        "items": list(items),
        "item_seqs": sequences,
        "next_seq": start + len(items),
    }


@BOTH
def test_all_requests(scene: Scene, where: str) -> None:
    """Goal: each request has its effect and its answer."""
    client = scene.at(where)

    def call(method: str, **fields: Any) -> Any:
        return scene.call(method, client, **fields)

    def numbers() -> list[int]:
        return [call(name) for name in ("size", "headSequence", "tailSequence")]

    assert numbers() == [0, 0, -1]
    assert call("capacity") == call("remainingCapacity") == CAPACITY
    assert call("readMany", **scene.many(client, 0, 0, 3)) == batch(0)
    assert call("add", value=A, overflow_policy=OVERWRITE) == 0
    assert call("addAll", value_list=[B, C], overflow_policy=FAIL) == 2
    assert call("readOne", sequence=1) == B and numbers() == [3, 0, 2]
    assert call("readMany", **scene.many(client, 0, 1, 2)) == batch(0, A, B)
    assert call("add", value=D, overflow_policy=FAIL) == 3, "without a time to live there is room"
    assert numbers() == [3, 1, 3] and call("remainingCapacity") == CAPACITY
    assert call("readMany", **scene.many(client, 0, 3, 3)) == batch(1, B, C, D)
    assert call("addAll", value_list=[A] * 4, overflow_policy=FAIL) == -1


@BOTH
def test_what_is_wrong_is_refused(scene: Scene, where: str) -> None:
    """Goal: what was overwritten is a stale sequence; what was never given, numbers that make no
    sense and bytes that are no value are the caller's mistake; a filter is not offered.
    """
    client = scene.at(where)
    scene.add(A, B, C, D)
    many = scene.many(client, 0, 1, 1)
    wrong: list[tuple[int, str, dict[str, Any]]] = [
        (codes.STALE_SEQUENCE, "readOne", {"sequence": 0}),
        (codes.ILLEGAL_ARGUMENT, "readOne", {"sequence": 5}),
        (codes.ILLEGAL_ARGUMENT, "readMany", {**many, "min_count": 2}),
        (codes.ILLEGAL_ARGUMENT, "readMany", {**many, "min_count": 4, "max_count": 4}),
        (codes.ILLEGAL_ARGUMENT, "add", {"value": b"123", "overflow_policy": OVERWRITE}),
        (codes.ILLEGAL_ARGUMENT, "add", {"value": A, "overflow_policy": 2}),
        (codes.ILLEGAL_ARGUMENT, "addAll", {"value_list": [], "overflow_policy": OVERWRITE}),
        (codes.UNSUPPORTED_OPERATION, "readMany", {**many, "filter": A}),
    ]
    for code, method, fields in wrong:
        with pytest.raises(Error) as caught:
            scene.call(method, client, **fields)
        assert caught.value.code == code
    assert "filter functions" in caught.value.text


@BOTH
def test_who_reads_waits_for_the_item(scene: Scene, where: str) -> None:
    """Goal: the next sequence is waited for until somebody adds anywhere; all who wait have it,
    and those who need more wait on.
    """
    readers = [scene.at(place, n) for n, place in enumerate([where, where, "home", "other"], 2)]
    one = [scene.ask("readOne", reader, sequence=0) for reader in readers]
    two = scene.ask("readMany", readers[0], **scene.many(readers[0], 0, 2, 9))
    scene.pump.run(30)
    assert not any(reader.messages for reader in readers)
    scene.add(A, client=scene.at("backup", 9))
    assert [reader.answer(asked) for reader, asked in zip(readers, one, strict=True)] == [A] * 4
    assert two not in readers[0].messages
    scene.add(B)
    assert readers[0].answer(two) == batch(0, A, B)


@BOTH
def test_who_is_too_slow_is_told(scene: Scene, where: str) -> None:
    """Goal: what was overwritten before the waiting calls could read it is a stale sequence to all
    of them.
    """
    readers = [scene.at(place, n) for n, place in enumerate([where, "home", "other"], 2)]
    asked = [scene.ask("readOne", reader, sequence=0) for reader in readers]
    scene.add(A, B, C, D)
    for reader, one in zip(readers, asked, strict=True):
        with pytest.raises(Error) as caught:
            reader.answer(one)
        assert caught.value.code == codes.STALE_SEQUENCE


@BOTH
def test_a_reader_that_is_ahead_is_given_the_newest(scene: Scene, where: str) -> None:
    """Goal: whoever knows sequences that were lost waits, and goes on with what comes."""
    reader = scene.at(where)
    scene.add(A)
    asked = scene.ask("readMany", reader, **scene.many(reader, 900, 1, 9))
    scene.pump.run(0.5)
    assert asked not in reader.messages
    scene.add(B)
    assert reader.answer(asked) == batch(1, B)


def test_a_client_that_is_gone_leaves_the_others_waiting(scene: Scene) -> None:
    """Goal: a waiting read ends with its connection; the next one in line has the item."""
    gone, reader = scene.at("other"), scene.at("other", 3)
    scene.ask("readOne", gone, sequence=0)
    asked = scene.ask("readOne", reader, sequence=0)
    gone.node.clients.pop(gone.conn)
    gone.node.engine.client_closed(gone.conn)
    gone.node.carry_out()
    scene.pump.run(0.1)
    scene.add(A)
    assert reader.answer(asked) == A


def test_a_ring_buffer_is_listed_and_destroyed(scene: Scene) -> None:
    """Goal: all members know it; destroyed, its sequences begin with 0, and who waits for a later
    one is told.
    """
    scene.add(A, B, C, D)
    scene.pump.run(1)
    found = scene.at("other").call("Client.getDistributedObjects")
    assert ("hz:impl:ringbufferService", "r") in [(one.service_name, one.name) for one in found]
    shown = json.loads(scene.home.engine.questions.documents["structures"](b""))
    wanted = {
        "name": "r",
        "kind": "ringbuffer",
        "backups": 1,
        "async_backups": 0,
        "persistent": False,
        "survives": 1,
    }
    assert wanted in shown
    reader = scene.at("other", 3)
    asked = scene.ask("readOne", reader, sequence=4)
    scene.clear()
    scene.pump.run(1)
    with pytest.raises(Error) as caught:
        reader.answer(asked)
    assert caught.value.code == codes.ILLEGAL_ARGUMENT
    assert scene.call("tailSequence") == -1 and scene.add(B) == 0


def test_a_dead_home_loses_nothing_and_readers_wait_on() -> None:
    """Goal: head, tail and items are the same at the new home, what waits is served there, and
    sequences go on.
    """
    scene = Scene()
    client, reader = scene.at("other"), scene.at("other", 3)
    scene.add(A, B, C, D, A, client=client)
    asked = scene.ask("readOne", reader, sequence=5)
    many = scene.ask("readMany", reader, **scene.many(reader, 5, 2, 9))
    scene.pump.kill(scene.home)
    scene.pump.run(30)
    assert [scene.call(f"{end}Sequence", client) for end in ("head", "tail")] == [2, 4]
    assert scene.call("readMany", client, **scene.many(client, 0, 0, 9)) == batch(2, C, D, A)
    assert asked not in reader.messages
    assert scene.add(B, client=client) == 5
    assert reader.answer(asked) == B and many not in reader.messages
    assert scene.add(C, client=client) == 6
    assert reader.answer(many) == batch(5, B, C)


def test_readers_wait_on_while_a_member_joins() -> None:
    """Goal: a move of the partition leaves waiting reads waiting; the new home serves them."""
    scene = Scene()
    readers = [scene.at(where, n) for n, where in enumerate(["home", "backup", "other"], 2)]
    scene.add(A)
    asked = [scene.ask("readOne", reader, sequence=1) for reader in readers]
    for _ in range(3):
        scene.pump.form(1)
    homes = scene.home.engine.member.dataplane.partitions[scene.pid].row
    assert homes[0] != scene.home.id
    scene.add(B, client=readers[2])
    assert [reader.answer(one) for reader, one in zip(readers, asked, strict=True)] == [B] * 3
