"""Frames and messages between members."""

from __future__ import annotations

import msgspec
import pytest

from whimbrel.core import messages
from whimbrel.core.ids import Address, MemberId, PartitionId, ReplicaIndex
from whimbrel.core.model import (
    ClusterState,
    MemberInfo,
    MemberList,
    MigrationInfo,
    MigrationKind,
    NumberGrant,
    Numbering,
    NumberProposal,
    NumbersAsked,
    NumbersTold,
    Recovery,
    RecoveryPhase,
    RecoveryWord,
    Step,
    Verdict,
    Voter,
)
from whimbrel.errors import ProtocolError
from whimbrel.serialization.uuids import uuid_bytes, uuid_text
from whimbrel.wire import links

CAUSE = "11111111-1000000001234"
A = MemberInfo(MemberId("11111111-1111-1111-1111-111111111111"), Address("a", 5701), zone="z")
B = MemberInfo(MemberId("22222222-2222-2222-2222-222222222222"), Address("b", 5702), lite=True)
STEP = Step(MigrationKind.MOVE, A.id, B.id, ReplicaIndex(0), destination_new=ReplicaIndex(0))
MIGRATION = MigrationInfo("m:1", PartitionId(7), STEP, A.id, 3, Verdict.SUCCESS)
VOTER = Voter(A.id, 7, A.address)
NUMBERING = Numbering(1, 8, (VOTER,))
PROPOSAL = NumberProposal((3, A.id, 7), VOTER, Numbering(2, 16, (VOTER,)))
ASKED = NumbersAsked(NUMBERING, (3, A.id, 7), PROPOSAL, (NumberGrant(VOTER, 8, 16),))
RECOVERY = Recovery(3, (A,), ClusterState.FROZEN, "o")
TOLD = NumbersTold(0, NUMBERING, (3, A.id, 7), PROPOSAL)


@pytest.mark.parametrize(
    "message",
    [
        messages.ProbeRequested("dev", A),
        messages.ProbeAnswered("dev", A, None),
        messages.MembersPublished(MemberList(4, (A, B), "c")),
        messages.Heartbeat(9, None),
        messages.MembersPublished(MemberList(4, (A, B), "c"), ASKED),
        messages.Heartbeat(9, None, asked=ASKED),
        messages.Heartbeat(9, None, told=TOLD),
        messages.GoodbyeTold(A.id, numbers=TOLD),
        messages.TablePublished(
            5, messages.TableImage((A.id,), (0, 1), (2, 3), b"\xff" * 28), (MIGRATION,), True
        ),
        messages.QuestionAnswered(1, b"{}", "no"),
        messages.RegistryTold(0, (messages.RegistryEntry("map", "m", 1, A.id, True, b"x"),)),
        messages.JoinRequested("dev", 7, A, files="c"),
        messages.MembersPublished(MemberList(4, (A, B), "c", recovery=RECOVERY)),
        messages.RecoveryTold(
            messages.FilesTold(MemberList(3, (A,)), messages.TableImage((), (), (), b""), ()),
            is_done=True,
        ),
        messages.RecoveryNoted(True, RecoveryWord(RecoveryPhase.LOADING, (B.id,), 7, 3, "why")),
        messages.RecoveryOrdered("o", (A.id,), messages.TableImage((), (), (), b"")),
        messages.RecoveryFailed("no"),
    ],
)
def test_messages_round_trip(message: messages.Message) -> None:
    """Goal: what is sent is what arrives, with nested structs and enums."""
    assert links.decode_message(links.encode_message(message, CAUSE)) == (CAUSE, message)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02",
        links.encode_message(messages.Heartbeat(1, A.id), CAUSE)[:-1],
        links.encode_message(messages.Heartbeat(1, A.id), CAUSE) + b"\x00",
        b"\x92\xa7Unknown\x01",
        b"\x93\xa9Heartbeat\xa3bad\xc0",
        b"\x93\xa9Heartbeat\x01\xa2\xff\xfe",
        b"\x92\xa9Heartbeat" + b"\x91" * 100_000,
        msgspec.msgpack.encode(messages.Heartbeat(1, A.id)),
        *(
            msgspec.msgpack.encode((cause, messages.Heartbeat(1, A.id)))
            for cause in (
                *("", "-", "a-", "-1", "a-b", "1", "a 1-2", "a-1\n", "a\x1b-1", "\xe4-1"),
                *("123456789-1", "a-" + 21 * "1", "a-1 ", 5, None, ("a-1",)),
            )
        ),
        msgspec.msgpack.encode((CAUSE, messages.Heartbeat(1, A.id), CAUSE)),
    ],
)
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    """Goal: bad input 5: any other bytes are a ProtocolError, nothing else."""
    with pytest.raises(ProtocolError):
        links.decode_message(payload)


def test_greeting_starts_a_link() -> None:
    """Goal: prelude, greeting frame, contents; unknown channels and garbage are refused."""
    greeting = links.Greeting("dev", A, links.DATA_CHANNEL)
    data = links.encode_greeting(greeting)
    assert data.startswith(links.PRELUDE)
    (frame,) = links.FrameSplitter(links.GREETING_BYTES_MAX).feed(data[4:])
    assert frame[0] == links.GREETING and links.decode_greeting(frame[1]) == greeting
    with pytest.raises(ProtocolError, match="channel"):
        links.decode_greeting(links.encode_greeting(links.Greeting("dev", A, "side"))[9:])
    with pytest.raises(ProtocolError):
        links.decode_greeting(b"\x80")


def feed_in(splitter: links.FrameSplitter, data: bytes, cut: int) -> list[tuple[int, bytes]]:
    return [f for at in range(0, len(data), cut) for f in splitter.feed(data[at : at + cut])]


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 6, 7, 50, 1000])
def test_frames_survive_any_cut(cut: int) -> None:
    """Goal: bad input 3: frames arrive whole however the stream is cut. Method: six frames of
    different sizes fed in pieces of ``cut`` bytes.
    """
    wanted = [(kind, bytes([kind]) * size) for kind, size in enumerate((0, 1, 2, 300, 5, 0))]
    stream = b"".join(links.encode_frame(*frame) for frame in wanted)
    splitter = links.FrameSplitter()
    assert feed_in(splitter, stream, cut) == wanted and splitter.pending_bytes == 0


@pytest.mark.parametrize("length", [0, 101, 2**31 - 1, 2**32 - 1])
@pytest.mark.parametrize("cut", [3, 4, 5, 1000])
def test_bad_lengths_end_the_link(length: int, cut: int) -> None:
    """Goal: bad input 1, 2: zero and too long are refused at the header, before memory is
    taken; the splitter stays refusing.
    """
    splitter = links.FrameSplitter(100)
    stream = links.encode_frame(1, b"ok") + length.to_bytes(4, "little") + b"\x01abc"
    with pytest.raises(ProtocolError, match="link frame"):
        feed_in(splitter, stream, cut)
    assert splitter.pending_bytes == 0
    with pytest.raises(ProtocolError):
        splitter.feed(b"")


def test_unknown_kinds_and_long_payloads() -> None:
    """Goal: an unknown kind ends the link; a payload above the limit is never sent."""
    with pytest.raises(ProtocolError, match="kind 9"):
        links.FrameSplitter().feed(b"\x01\x00\x00\x00\x09")
    with pytest.raises(ProtocolError, match="at most"):
        links.encode_frame(1, bytes(1) * links.LINK_FRAME_BYTES_MAX)


def test_uuids_both_ways() -> None:
    """Goal: text and bytes of a uuid are the same thing; anything else is refused."""
    assert uuid_text(uuid_bytes(A.id)) == A.id
    assert uuid_bytes("0123456789ABCDEF0123456789abcdef").hex() == "0123456789abcdef" * 2
    for text in ("", "xyz", "g" * 32):
        with pytest.raises(ProtocolError):
            uuid_bytes(text)
    with pytest.raises(ProtocolError):
        uuid_text(b"short")
