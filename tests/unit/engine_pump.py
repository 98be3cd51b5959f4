"""Clusters of whole engines, and a hand-made client.

Nothing is lost and nothing is delayed here; the simulator is for that. A killed engine refuses
connections at once, so its peers hear ``LinkLost`` and ``LinkFailed``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from tests.unit.cluster import SECOND, Cluster, Peer
from tests.unit.keys import encryption_now

from whimbrel.core import effects as e
from whimbrel.core.events import GridEvent
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.model import MemberInfo
from whimbrel.core.settings import CoreSettings
from whimbrel.core.stimuli import (
    AddressUnreachable,
    LeaveWanted,
    LinkFailed,
    LinkLost,
    LinkRestored,
    Received,
    Started,
    Stimulus,
    TimerFired,
)
from whimbrel.serving.engine import Engine
from whimbrel.serving.kinds import ServedKind
from whimbrel.serving.outputs import Answered, CloseClient, EventsTold, ToAddress, ToClient, ToPeer
from whimbrel.structures.kinds import KINDS
from whimbrel.structures.map.settings import MapSettings
from whimbrel.wire.codec import decode_event, decode_response, encode_request
from whimbrel.wire.errors import decode_errors
from whimbrel.wire.frames import ANSWERS, AUTHENTICATED, EVENT, PRELUDE, MessageSplitter, RawMessage
from whimbrel.wire.links import MESSAGE, decode_message, encode_message
from whimbrel.wire.protocol_table import SHAPES

TICK_US = 50_000
WALL_START_MS = 1_700_000_000_000


def member_id(number: int) -> MemberId:
    """A uuid that shows its number."""
    return MemberId(f"{number:08x}-0000-4000-8000-{number:012x}")


def quick_settings(**changes: Any) -> CoreSettings:
    """Small and fast: 7 partitions, one backup unless a map says otherwise."""
    values: dict[str, Any] = {
        "partition_count": 7,
        "structures": (
            MapSettings("default"),
            MapSettings("b0*", 0),
            MapSettings("b2*", 2),
        ),
    }
    values.update(changes)
    return CoreSettings(**values)


def framed(output: ToPeer, encoded: bool) -> Any:
    """What a shell sends: bytes, or a message and its cause when nobody looks at the bytes."""
    if isinstance(output.payload, bytes):
        return output.payload
    if encoded:
        return encode_message(output.payload, output.cause)
    return output.cause, output.payload


class Frame(msgspec.Struct):
    """What goes from one shell to another."""

    to: MemberId | Address
    kind: int
    payload: Any


class Node(Peer):
    """One engine with what its shell would keep."""

    def __init__(self, pump: Pump, number: int, lite: bool) -> None:
        info = MemberInfo(member_id(number), pump.address_of(number), lite=lite)
        self.engine = Engine(info, pump.settings, pump.kinds, pump.now_us, encryption_now())
        super().__init__(pump, self.engine.member.ctx)
        self.pump = pump
        self.number = number
        self.clients: dict[int, Client] = {}
        self.answers: dict[int, Answered] = {}
        self.told: list[GridEvent] = []
        """What the program around the member was told."""
        self.joined = False
        self.expelled = ""

    def handle(self, stimulus: Stimulus) -> None:
        """Give the engine a stimulus and carry out what follows."""
        if self.alive:
            self.engine.handle(stimulus, self.pump.now_us, self.pump.wall_ms)
            self.carry_out()

    def step(self, action: Callable[[], object]) -> None:
        """Whatever enters an engine carries out itself what follows."""
        if self.alive:
            action()

    def fire(self, key: str, generation: int) -> None:
        self.handle(TimerFired(key, generation))

    def link_lost(self, member: MemberId) -> None:
        self.handle(LinkLost(member))

    def link_restored(self, member: MemberId) -> None:
        self.handle(LinkRestored(member))

    def link_failed(self, member: MemberId) -> None:
        self.handle(LinkFailed(member))

    def address_unreachable(self, address: Address) -> None:
        self.handle(AddressUnreachable(address))

    def carry_out(self) -> None:
        """Take the engine's outputs and queue what they ask for."""
        pump = self.pump
        for output in self.engine.take_outputs():
            match output:
                case ToPeer() if output.peer not in self.links:
                    pump.dropped += 1  # as a real shell does: nobody has asked for that link
                case ToPeer():
                    frame = Frame(output.peer, output.kind, framed(output, pump.encoded))
                    pump.send(self, output.peer, frame)
                case ToAddress():
                    frame = Frame(output.address, MESSAGE, (output.cause, output.message))
                    pump.send_to(self, output.address, frame)
                case ToClient():
                    if output.conn in self.clients:
                        self.clients[output.conn].receive(output.data)
                case CloseClient():
                    client = self.clients.pop(output.conn, None)
                    if client is not None:
                        client.closed = output.reason
                case EventsTold():
                    self.told.extend(output.events)
                case Answered():
                    self.answers[output.call] = output
                case _:
                    self.carry_out_effect(output)

    def carry_out_effect(self, effect: object) -> None:
        """Carry out one of the core's effects."""
        match effect:
            case e.Joined():
                self.joined = True
            case e.Expelled():
                self.expelled = effect.reason
                self.pump.kill(self)
            case _:
                super().carry_out_effect(effect)


class Pump(Cluster[Node]):
    """The world of a test: engines, and words that take no time."""

    connect_timeout_us = 0

    def __init__(self, settings: CoreSettings | None = None, encoded: bool = False) -> None:
        super().__init__()
        self.settings = settings or quick_settings()
        self.kinds: Sequence[ServedKind] = KINDS
        self.encoded = encoded
        """Whether messages between members travel as bytes."""
        self.nodes = self.peers
        self._cause = ""
        """Of the message that is delivered, or was last."""
        self.dropped = 0
        """Frames to members that nobody had asked a link to."""
        self.at(TICK_US, self._tick)

    @property
    def wall_ms(self) -> int:
        """Wall clock of the test."""
        return WALL_START_MS + self.now_us // 1000

    def _tick(self) -> None:
        self.at(TICK_US, self._tick)
        for node in self.living():
            node.engine.tick(self.now_us, self.wall_ms)
            node.carry_out()

    # -- members --------------------------------------------------------------------------

    def address_of(self, number: int) -> Address:
        """Where a member listens."""
        return Address("127.0.0.1", 5700 + number)

    def start(self, lite: bool = False) -> Node:
        """Start a further member that knows the addresses of all before it."""
        node = Node(self, len(self.nodes) + 1, lite)
        node.handle(Started(tuple(other.address for other in self.nodes)))
        return node

    def form(self, count: int, settle_s: float = 10) -> list[Node]:
        """Start members one after the other and wait until the last has joined."""
        for _ in range(count):
            node = self.start()
            self.run_until(lambda node=node: node.joined, 30)
        self.run(settle_s)
        return self.nodes

    def kill(self, node: Node) -> None:
        """A node ends: its peers cannot connect any more, its clients are cut off."""
        for client in node.clients.values():
            client.closed = "member gone"
        node.clients.clear()
        super().kill(node)

    def leave(self, node: Node, timeout_s: float = 60) -> None:
        """The node leaves gracefully."""
        node.handle(LeaveWanted())
        self.run_until(lambda: not node.alive, timeout_s)

    # -- time and frames ------------------------------------------------------------------

    def settle(self) -> None:
        """Deliver until nothing is under way."""
        self.drain()

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.play(self.now_us + int(seconds * SECOND))

    def arrive(self, source: Node, target: Node, frame: Frame) -> None:
        """A frame is there; a message comes under the cause that it was sent with."""
        payload = frame.payload
        if isinstance(payload, tuple):
            self._cause, payload = payload
        self._deliver(source, frame.to, frame.kind, payload)

    def _deliver(self, sender: Node, to: MemberId | Address, kind: int, payload: Any) -> None:
        node = self.listening(to) if isinstance(to, Address) else self.by_id[to]
        if node is None or not node.alive:
            return
        if kind == MESSAGE:
            cause, message = self._cause, payload
            if isinstance(payload, bytes):
                cause, message = decode_message(payload)
            node.handle(Received(sender.id, sender.address, message, cause=cause))
        else:
            node.engine.peer_frame(sender.id, kind, payload, self.now_us, self.wall_ms)
            node.carry_out()

    def run_until(self, condition: Any, timeout_s: float) -> None:
        """Let time pass until the condition holds; fails when it does not in time."""
        end_us = self.now_us + int(timeout_s * SECOND)
        self.settle()
        while not condition():
            assert self.now_us < end_us, "the condition did not come true in time"
            self.run(0.05)

    # -- looking --------------------------------------------------------------------------

    def client(self, node: Node, smart: bool = False, number: int = 1) -> Client:
        """An authenticated client of one node."""
        client = Client(node, smart, number)
        client.open()
        return client


class Error(Exception):
    """An error response; ``code`` is the protocol's."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class Client:
    """A connection of a client to one node, speaking bytes."""

    numbers = iter(range(1, 1 << 60))

    def __init__(self, node: Node, smart: bool = False, number: int = 1) -> None:
        self.node = node
        self.pump = node.pump
        self.smart = smart
        self.uuid = number.to_bytes(16, "big")
        self.conn = next(Client.numbers)
        self.splitter = MessageSplitter(AUTHENTICATED, ANSWERS)
        self.messages: dict[int, RawMessage] = {}
        self.events: list[RawMessage] = []
        self.closed = ""
        self.correlation = 0

    def open(self, cluster: str = "dev", **fields: Any) -> Any:
        """Connect and authenticate; returns the answer's fields."""
        self.connect()
        return self.call("Client.authentication", **self.credentials(cluster, **fields))

    def connect(self) -> None:
        """Connect and send the prelude."""
        self.node.clients[self.conn] = self
        self.node.engine.client_opened(self.conn, "test")
        self.send(PRELUDE)

    def credentials(self, cluster: str = "dev", **fields: Any) -> dict[str, Any]:
        """The fields of an authentication."""
        values: dict[str, Any] = {
            "cluster_name": cluster,
            "username": None,
            "password": None,
            "uuid": self.uuid,
            "client_type": "PYH",
            "serialization_version": 1,
            "client_version": "5.7.0",
            "client_name": "test",
            "labels": [],
        }
        values.update(fields)
        return values

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        pump = self.pump
        if not self.closed:
            self.node.engine.client_bytes(self.conn, data, pump.now_us, pump.wall_ms)
            self.node.carry_out()

    def receive(self, data: bytes) -> None:
        """Take bytes of the engine."""
        for message in self.splitter.feed(data):
            if message[7] & EVENT:
                self.events.append(message)
            else:
                self.messages[message[5]] = message

    def ask(self, name: str, partition: int = -1, /, **fields: Any) -> int:
        """Send a request; returns its correlation id."""
        self.correlation += 1
        flags = 0x0100 if self.smart else 0
        self.send(encode_request(name, self.correlation, partition, flags, **fields))
        return self.correlation

    def call(self, name: str, partition: int = -1, /, **fields: Any) -> Any:
        """Send a request, wait, and return the response's fields; a single one by itself."""
        correlation = self.ask(name, partition, **fields)
        return self.answer(correlation)

    def answer(self, correlation: int, timeout_s: float = 60) -> Any:
        """The response to a call."""
        self.pump.run_until(lambda: correlation in self.messages or self.closed, timeout_s)
        if correlation not in self.messages:
            raise EOFError(self.closed)
        message = self.messages.pop(correlation)
        if message[4] == 0:
            holder = decode_errors(message)[0]
            raise Error(holder.error_code, str(holder.message))
        name, fields = decode_response(message)
        if len(SHAPES[name].response) == 1:
            return next(iter(fields.values()))
        return fields

    def taken_events(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Events since the last call, decoded."""
        events, self.events = self.events, []
        return [decode_event(event) for event in events]
