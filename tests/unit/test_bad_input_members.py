"""Bad input on the ports between members, by the numbers of the checklist.

A stranger that greets like a member may send anything; so may a member whose bytes are damaged.
What no member of ours would send is refused before a room sees it.
"""

from __future__ import annotations

import contextlib
import random
import struct
from typing import Any

import msgspec
import pytest
from tests.unit.engine_pump import Node, Pump, member_id

from whimbrel.core import messages as m
from whimbrel.core.ids import Address, MemberId, PartitionId
from whimbrel.core.messages import Message
from whimbrel.core.messages import backups as b
from whimbrel.core.model import (
    NO_BALLOT,
    NUMBERS_END,
    MemberInfo,
    MemberList,
    MigrationInfo,
    MigrationKind,
    NumberGrant,
    Numbering,
    NumberProposal,
    NumbersAsked,
    NumbersTold,
    Step,
    Voter,
)
from whimbrel.core.stimuli import Received
from whimbrel.errors import ProtocolError
from whimbrel.serialization.data import to_data
from whimbrel.serving.calls import ANSWER_BYTES_MAX, CALL_BYTES_PER_MEMBER_MAX
from whimbrel.serving.outputs import ToPeer
from whimbrel.serving.validation import CLOCK_MAX, validate
from whimbrel.wire.codec import encode_request
from whimbrel.wire.links import (
    BACKUPS,
    FORWARD,
    FORWARD_REPLY,
    GREETING,
    KIND_MAX,
    MESSAGE,
    SCATTER_REPLY,
    FrameSplitter,
    Greeting,
    decode_greeting,
    decode_message,
    encode_message,
)

STRANGER = member_id(77)
PLACE = Address("127.0.0.1", 9)


@pytest.fixture
def pump() -> Pump:
    pump = Pump()
    pump.form(2)
    return pump


def info(member: str = STRANGER, address: Address = PLACE, **fields: Any) -> MemberInfo:
    return MemberInfo(MemberId(member), address, **fields)


def join(joiner: MemberInfo, cluster: str = "dev", partitions: int = 7) -> m.JoinRequested:
    return m.JoinRequested(cluster, partitions, joiner)


def say(node: Node, message: Message, sender: str = STRANGER) -> None:
    """A message arrives as bytes, as at a real member."""
    _, received = decode_message(encode_message(message, "stranger-1"))
    node.handle(Received(MemberId(sender), PLACE, received))


def state(pump: Pump) -> list[object]:
    """What a refused message may not change."""
    members = [node.engine.member for node in pump.living()]
    return [
        (member.ctx.members, tuple(member.migrations.table.rows), member.registry.structures())
        for member in members
    ]


PART = b.PartToRead(STRANGER, "0" * 32, (b.PartFile(1, 1, 1, 99, "first"),))


@pytest.mark.parametrize(
    "order",
    [
        b.LookAt(""),
        b.LookAt("/"),
        b.LookAt("elsewhere"),
        b.LookAt("backups/../log"),
        b.LookAt("/a/../b"),
        b.Begin("backups", "../x", 1, 1, 1),
        b.Begin("backups", ".history", 1, 1, 1),
        b.Delete("backups", ("a/b",)),
        b.Gather(None, "a/b"),
        b.Gather(b.Part(STRANGER, "0" * 32, PART.files, 1, history=(b.PartFile(3, 1, 1, 9, "x"),))),
        b.Check("backups", "x", (msgspec.structs.replace(PART, source=MemberId("../x")),)),
        b.Check("backups", "x", (msgspec.structs.replace(PART, log_id="zz"),)),
        b.Check(
            "backups", "x", (msgspec.structs.replace(PART, files=(b.PartFile(1, 0, 1, 1, "x"),)),)
        ),
        b.Load(
            "backups",
            "x",
            (msgspec.structs.replace(PART, files=(b.PartFile(1, 1, 1, 1, "/"),)),),
            "",
            0,
        ),
    ],
)
def test_orders_about_backups_lead_nowhere_else(pump: Pump, order: b.Order) -> None:
    """Goal: no name in a message becomes one of a file that is not a backup's. Method: each kind of
    name wrong, from the master itself; the same orders with right names are taken.
    """
    asked = m.BackupAsked("job", 1, order)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError) as caught:
        validate(asked, 7, ["map"])
    assert caught.value.reason == "backup"
    for right in (
        b.LookAt("/mnt/a b"),
        b.Check("backups", "x", (PART,)),
        b.Delete("backups", ("x",)),
    ):
        validate(m.BackupAsked("job", 1, right), 7, ["map"])


def test_a_forged_age_makes_nobody_older(pump: Pump) -> None:
    """Goal: bad input 20: who comes last stands last, whatever start it claims."""
    master = pump.nodes[0]
    say(master, join(info(started_us=-(2**63), version="0")))
    pump.run(2)
    assert master.engine.member.ctx.members.ids()[:2] == (member_id(1), member_id(2))
    assert master.engine.member.ctx.is_master


@pytest.mark.parametrize(
    "request_",
    [
        join(info(), cluster="other"),
        join(info(), partitions=271),
        join(info(), partitions=-1),
        join(info(member_id(1))),
        join(info(member_id(2))),
        join(info(address=Address("127.0.0.1", 5701))),
    ],
)
def test_joins_that_are_refused(pump: Pump, request_: m.JoinRequested) -> None:
    """Goal: bad input 20: another cluster, another partition count, an id or an address that
    is taken: refused in words, noted, and nothing changes.
    """
    before = state(pump)
    say(pump.nodes[0], request_)
    refusals = [note for note in pump.nodes[0].notes if note.kind == "join_refused"]
    pump.run(3)
    assert state(pump) == before
    assert len(refusals) == (0 if request_.joiner.id == member_id(1) else 1) or refusals


@pytest.mark.parametrize(
    ("joiner", "reason"),
    [
        (info(""), "member_id"),
        (info("x"), "member_id"),
        (info("z" * 36), "member_id"),
        (info(address=Address("127.0.0.1", 0)), "member_address"),
        (info(address=Address("127.0.0.1", -1)), "message"),
        (info(address=Address("127.0.0.1", 65_536)), "message"),
        (info(address=Address("h" * 256, 1)), "message"),
        (info(zone="z" * 256), "message"),
        (info(version="5" * 256), "message"),
    ],
)
def test_joiners_that_cannot_be(pump: Pump, joiner: MemberInfo, reason: str) -> None:
    """Goal: bad input 20: an identity that is no uuid, an address that nobody can have and
    texts without measure are refused before the list sees them.
    """
    before = state(pump)
    with pytest.raises(ProtocolError) as refused:
        say(pump.nodes[0], join(joiner))
    assert refused.value.reason == reason
    pump.run(3)
    assert state(pump) == before


def test_a_strange_version_is_shown_as_zero(pump: Pump) -> None:
    """Goal: bad input 20: a version of no numbers harms no client's view of the members."""
    client = pump.client(pump.nodes[0])
    client.call("Client.addClusterViewListener")
    for number, version in enumerate(("\u00b2.\u0663.1", "999999.1", "", "...."), 20):
        joiner = info(member_id(number), Address("127.0.0.1", 6000 + number), version=version)
        say(pump.nodes[0], join(joiner))
    pump.run(1.5)
    views = [fields for _, kind, fields in client.taken_events() if kind == "members_view"]
    assert max(len(fields["member_infos"]) for fields in views) == 6


MIGRATION = MigrationInfo(
    "m1",
    PartitionId(7),
    Step(MigrationKind.MOVE, member_id(1), member_id(2)),
    member_id(1),
    3,
)
IMAGE = m.TableImage((), (), (), b"")
ENTRY = m.RegistryEntry("map", "x", 1, STRANGER, True, b"\x92\x01\x00")
TWICE = MemberList(9, (info(), info(address=Address("127.0.0.1", 10))))


VOTER = Voter(member_id(1), 0, Address("127.0.0.1", 9))
NUMBERING = Numbering(1, 8, (VOTER,))


def beat(numbering: Numbering, number: int = 0, after: Numbering | None = None) -> m.Heartbeat:
    proposal = None if after is None else NumberProposal(NO_BALLOT, VOTER, after)
    return m.Heartbeat(1, None, told=NumbersTold(number, numbering, NO_BALLOT, proposal))


def granted(number: int, end: int) -> m.MembersPublished:
    grant = NumberGrant(VOTER, number, end)
    asked = NumbersAsked(NUMBERING, NO_BALLOT, None, (grant,))
    return m.MembersPublished(MemberList(9, (info(),)), asked)


STRANGE_NUMBERS: tuple[Message, ...] = (
    beat(Numbering(-1, 8, ())),
    beat(Numbering(1, -8, ())),
    beat(Numbering(1, NUMBERS_END + 1, ())),
    beat(Numbering(1, 8, (VOTER, VOTER))),
    beat(NUMBERING, number=NUMBERS_END),
    beat(NUMBERING, number=-2),
    beat(NUMBERING, after=Numbering(3, 8, ())),
    beat(NUMBERING, after=Numbering(2, 0, ())),
    granted(-1, 8),
    granted(8, 8),
    granted(NUMBERS_END - 1, NUMBERS_END + 1),
    m.GoodbyeTold(member_id(1), False, NumbersTold(-2, None, NO_BALLOT)),
)


def told(**fields: Any) -> m.RegistryTold:
    return m.RegistryTold(1, (msgspec.structs.replace(ENTRY, **fields),))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (m.MigrationRequested(MIGRATION, ()), "partition_id"),
        (m.MigrationCommitRequested(MIGRATION, ()), "partition_id"),
        (m.PromotionRequested(1, (MIGRATION,), IMAGE), "partition_id"),
        (m.MigrationOpened(MIGRATION, ()), "partition_id"),
        (m.TablePublished(1, IMAGE, (MIGRATION,), False), "partition_id"),
        (m.StateAnswered(1, IMAGE, (MIGRATION,), ()), "partition_id"),
        (m.MembersPublished(TWICE), "member_list"),
        (m.MembersPublished(MemberList(9, (info("x"),))), "member_id"),
        (m.MembersPublished(MemberList(9, (info(),), "no uuid")), "malformed"),
        (m.JoinersTold((info("x"),)), "member_id"),
        (m.JoinersNoted((info(), info("x"))), "member_id"),
        (told(kind="nonsense"), "registry_entry"),
        (told(value=b""), "registry_entry"),
        (told(value=b"\x92\x05\x05"), "registry_entry"),
        (told(value=b"\x92\xff\x00"), "registry_entry"),
        (told(key=""), "registry_entry"),
        (told(clock=CLOCK_MAX + 1), "registry_entry"),
        (told(clock=-1), "registry_entry"),
        (told(kind="schema"), "registry_entry"),
        *((message, "member_numbers") for message in STRANGE_NUMBERS),
    ],
)
def test_messages_that_no_member_sends(pump: Pump, message: Message, reason: str) -> None:
    """Goal: bad input 20-22: partitions that do not exist, lists that name somebody twice
    and registry entries of no form are refused, whoever sends them, and change nothing.
    """
    before = state(pump)
    for sender in (STRANGER, member_id(2)):
        with pytest.raises(ProtocolError) as refused:
            say(pump.nodes[0], message, sender)
        assert refused.value.reason == reason
    pump.run(1)
    assert state(pump) == before


def test_good_messages_pass() -> None:
    """Goal: validation refuses nothing that members do say."""
    good = (
        join(info()),
        m.RegistryTold(1, (ENTRY,)),
        m.MigrationRequested(MIGRATION, ()),
        beat(NUMBERING, number=-1, after=Numbering(2, NUMBERS_END, (VOTER,))),
        granted(NUMBERS_END - 1, NUMBERS_END),
        m.GoodbyeTold(member_id(1)),
    )
    refused = []
    for message in good:
        try:
            validate(message, 8, ("map",))
        except ProtocolError as error:
            refused.append(error)
    assert refused == []


def test_replies_that_nobody_asked_for(pump: Pump) -> None:
    """Goal: bad input 7: an answer to no call is ignored and counted."""
    node = pump.nodes[0]
    for kind in (FORWARD_REPLY, SCATTER_REPLY):
        for payload in (bytes(12), b"\xff" * 40):
            node.engine.peer_frame(member_id(2), kind, payload, pump.now_us, pump.wall_ms)
    assert node.engine.metrics()["replies_unasked_total"] == 4
    assert node.engine.take_outputs() == []


def test_a_member_that_asks_more_than_it_takes(pump: Pump) -> None:
    """Goal: bad input 23 between members: answers that the caller has not confirmed are
    bounded; its further calls wait, in order, and run as it confirms. Method: 100 forwarded
    requests for a value of 1 MiB at once, confirmed in two steps.
    """
    node = pump.nodes[1]
    pid = next(part.pid for part in node.engine.member.dataplane.partitions if part.is_primary)
    fields: dict[str, Any] = {"name": "m", "key": to_data(1), "thread_id": 1}
    value = to_data(bytes(1024 * 1024))
    pump.client(node).call("Map.set", pid, **fields, value=value, ttl=-1)
    request = encode_request("Map.get", 9, pid, **fields)

    def call(number: int, floor: int, body: bytes = b"\x01" + request) -> None:
        payload = struct.pack("<IQQ", 99, number, floor) + body
        node.engine.peer_frame(MemberId(STRANGER), FORWARD, payload, pump.now_us, pump.wall_ms)

    def answered() -> list[int]:
        outputs = node.engine.take_outputs()
        replies = [o for o in outputs if isinstance(o, ToPeer) and o.kind == FORWARD_REPLY]
        payloads = [reply.payload for reply in replies if isinstance(reply.payload, bytes)]
        return [struct.unpack_from("<IQ", payload)[1] for payload in payloads]

    for number in range(1, 101):
        call(number, 1)
    first = answered()
    assert first == list(range(1, len(first) + 1))
    assert 30 <= len(first) <= 34
    assert node.engine.metrics()["calls_held"] == 100 - len(first)
    call(0, 21, b"")
    second = answered()
    assert second == list(range(len(first) + 1, len(first) + 21))
    while second[-1] < 100:
        call(0, second[-1] + 1, b"")
        second = answered()
    assert node.engine.metrics()["calls_held"] == 0


def test_frames_of_members_have_measure() -> None:
    """Goal: bad input 1, 2: length 0, 2 GiB and unknown kinds break the link, by reason."""
    for data, reason in (
        (bytes(5), "frame_length"),
        (b"\xff\xff\xff\xff\x01", "frame_length"),
        (b"\x02\0\0\0" + bytes((KIND_MAX + 1,)), "frame_kind"),
    ):
        splitter = FrameSplitter()
        with pytest.raises(ProtocolError) as refused:
            splitter.feed(data)
        assert refused.value.reason == reason
        assert splitter.pending_bytes == 0
    with pytest.raises(ProtocolError) as refused:
        decode_greeting(b"\x93")
    assert refused.value.reason == "greeting"
    good = msgspec.msgpack.encode(Greeting("dev", info(), "gossip"))
    with pytest.raises(ProtocolError) as refused:
        decode_greeting(good)
    assert refused.value.reason == "greeting"
    assert GREETING == 0


def recorded(pump: Pump, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Node, Node, int, bytes]]:
    """Every frame that some work makes members send to each other: from, to, kind, payload."""
    frames: list[tuple[Node, Node, int, bytes]] = []
    deliver = pump._deliver

    def listen(sender: Node, to: Any, kind: int, payload: Any) -> None:
        if kind != MESSAGE:
            frames.append((sender, next(n for n in pump.nodes if n.id == to), kind, payload))
        deliver(sender, to, kind, payload)

    monkeypatch.setattr(pump, "_deliver", listen)
    client = pump.client(pump.nodes[0])
    client.call(
        "Map.addEntryListener", name="m", include_value=True, listener_flags=255, local_only=False
    )
    for number in range(14):
        fields = {"name": "m", "key": to_data(number), "value": to_data(number)}
        client.call("Map.put", number % 7, **fields, thread_id=1, ttl=-1)
    client.call("Map.entrySet", name="m")
    client.call("Map.clear", name="m")
    monkeypatch.undo()
    return frames


@pytest.mark.parametrize("is_stranger", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_damaged_frames_break_the_link_only(
    pump: Pump, monkeypatch: pytest.MonkeyPatch, seed: int, is_stranger: bool
) -> None:
    """Goal: bad input 9, 22: damaged backups, acknowledgements, forwards, whole-map calls
    and notices raise a ProtocolError or nothing; those of a stranger hinder nobody. Method:
    seeded changes of recorded frames.
    """
    rng = random.Random(seed)
    frames = recorded(pump, monkeypatch)
    assert {kind for _, _, kind, _ in frames} >= {BACKUPS, 3, 4, 5, 6, 7, 8}
    for _ in range(300):
        sender, to, kind, payload = rng.choice(frames)
        data = bytearray(payload)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            change = rng.random()
            if change < 0.5:
                data[at : at + 1] = bytes((rng.choice((0, 1, 127, 128, 255)),))
            elif change < 0.8:
                del data[at : at + rng.randint(1, 60)]
            else:
                data[at : at + 4] = b"\xff\xff\xff\x7f"
        peer = MemberId(STRANGER) if is_stranger else sender.id
        with contextlib.suppress(ProtocolError):
            to.engine.peer_frame(peer, kind, bytes(data), pump.now_us, pump.wall_ms)
        to.carry_out()
        pump.settle()
    pump.run(1)
    if is_stranger:
        assert pump.client(pump.nodes[0], number=9).call("Map.size", name="fresh") == 0


def test_calls_that_wait_have_measure(pump: Pump) -> None:
    """Goal: bad input 23 between members: calls that wait here are bounded in bytes too; no
    caller of ours has so much under way.
    """
    calls = pump.nodes[0].engine.server.calls
    peer = MemberId(STRANGER)
    head = struct.Struct("<IQQ")
    assert calls.take_request(peer, head.pack(1, 1, 1)) == (1, b"")
    calls.answer(peer, 1, FORWARD_REPLY, bytes(ANSWER_BYTES_MAX + 1))
    body = bytes(CALL_BYTES_PER_MEMBER_MAX // 2 + 1)
    assert calls.hold(peer, FORWARD, 2, body)
    assert calls.hold(peer, FORWARD, 3, body)
    with pytest.raises(ProtocolError) as refused:
        calls.hold(peer, FORWARD, 4, b"")
    assert refused.value.reason == "overload"
    with pytest.raises(ProtocolError):
        calls.take_request(peer, head.pack(1, 5, 6))
    assert calls.take_held(peer) is None
    assert calls.take_request(peer, head.pack(1, 0, 2)) is None
    assert calls.take_held(peer) == (FORWARD, 2, body)
