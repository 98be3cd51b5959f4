"""What a client knows: channels and the cluster view, without sockets."""

from __future__ import annotations

import pytest

from whimbrel.client.core import Answer, Channel, ClusterView, Event
from whimbrel.core.ids import Address
from whimbrel.errors import (
    AuthenticationError,
    ProtocolError,
    RetryableError,
    SerializationError,
)
from whimbrel.serialization.data import to_data
from whimbrel.wire.codec import decode_request, encode_event, encode_response
from whimbrel.wire.custom_types import ClientMember, MemberVersion
from whimbrel.wire.errors import RETRYABLE, encode_error
from whimbrel.wire.frames import parse_message

A, B = b"a" * 16, b"b" * 16


def member(uuid: bytes, port: int) -> ClientMember:
    return ClientMember(Address("h", port), uuid, {}, False, MemberVersion(5, 7, 0), {})


def members(version: int, *infos: ClientMember) -> Event:
    return Event(1, "members_view", {"version": version, "member_infos": list(infos)})


def partitions(version: int, *rows: tuple[bytes, list[int]]) -> Event:
    return Event(1, "partitions_view", {"version": version, "partitions": list(rows)})


def test_a_channel_opens_and_answers() -> None:
    """Goal: prelude and authentication first; answers, errors and events are told apart."""
    channel = Channel("dev", A, "test")
    correlation, hello = channel.hello()
    assert hello[:3] == b"CP2"
    name, fields = decode_request(parse_message(hello[3:]))
    assert name == "Client.authentication"
    assert (fields["cluster_name"], fields["uuid"], fields["username"]) == ("dev", A, None)
    second, data = channel.request("Map.size", -1, name="m")
    assert second == correlation + 1 and decode_request(parse_message(data))[1] == {"name": "m"}
    stream = encode_response("Map.size", second, response=3)
    stream += encode_error(9, RETRYABLE, "later")
    stream += encode_event("Client.localBackupListener", "backup", 5, source_correlation_id=1)
    size, error, event = channel.receive(stream)
    assert size == Answer(second, {"response": 3})
    assert isinstance(error, Answer) and isinstance(error.error, RetryableError)
    assert event == Event(5, "backup", {"source_correlation_id": 1})


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Answer(1, {"status": 1}), "cluster named 'dev'"),
        (Answer(1, {"status": 3}), "status 3"),
        (Answer(1, {}, RetryableError("busy")), "h:1 refused to talk: busy"),
    ],
)
def test_refusals_are_told(answer: Answer, text: str) -> None:
    """Goal: each way of being refused has its sentence."""
    with pytest.raises(AuthenticationError, match=text):
        Channel("dev", A, "test").check_welcome(answer, Address("h", 1))


def test_views_replace_older_ones() -> None:
    """Goal: only newer versions count; a new registration starts over; owners must be members."""
    view = ClusterView()
    view.started(3)
    assert view.apply(members(2, member(A, 1), member(B, 2)))
    assert not view.apply(members(2, member(A, 9)))
    assert view.apply(partitions(1, (A, [0, 2, 99, -1]), (B, [1])))
    assert not view.apply(partitions(1, (B, [0])))
    assert [view.owner_of(pid) for pid in (-1, 0, 1, 2, 3)] == [None, A, B, A, None]
    assert view.address_of(B) == Address("h", 2)
    view.registered_again()
    assert view.apply(members(1, member(A, 1)))
    assert view.owner_of(1) is None and view.address_of(B) is None
    assert not view.apply(Event(1, "cluster_version", {}))


def test_the_partition_count_never_changes() -> None:
    """Goal: a count that changes or cannot be is refused."""
    view = ClusterView()
    with pytest.raises(ProtocolError):
        view.started(0)
    view.started(271)
    view.started(271)
    with pytest.raises(ProtocolError, match="271 partitions and now claims 13"):
        view.started(13)
    keys = [to_data(n) for n in range(50)] + [b"\x00\x00\x00\x07" + to_data("x")[4:]]
    assert view.partitions_of(keys) == [view.partition_of(key) for key in keys]
    assert view.partitions_of(keys)[-1] == 7
    with pytest.raises(SerializationError):
        view.partitions_of([bytes(7)])
