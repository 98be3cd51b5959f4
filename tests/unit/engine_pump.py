"""Several engines in one process: instant ordered delivery, virtual time, and a hand-made client.

Nothing is lost and nothing is delayed here; the simulator is for that. A killed engine refuses
connections at once, so its peers hear ``LinkFailed``.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import Any

from whimbrel.core import effects as e
from whimbrel.core.events import GridEvent
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.model import MemberInfo
from whimbrel.core.settings import CoreSettings
from whimbrel.core.stimuli import (
    AddressUnreachable,
    LeaveWanted,
    LinkFailed,
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


class Node:
    """One engine with what its shell would keep."""

    def __init__(self, pump: Pump, number: int, lite: bool) -> None:
        self.pump = pump
        self.number = number
        self.id = member_id(number)
        self.address = Address("127.0.0.1", 5700 + number)
        info = MemberInfo(self.id, self.address, lite=lite)
        self.engine = Engine(info, pump.settings, pump.kinds, pump.now_us)
        self.links: dict[MemberId, Address] = {}
        self.clients: dict[int, Client] = {}
        self.notes: list[e.Note] = []
        self.answers: dict[int, Answered] = {}
        self.told: list[GridEvent] = []
        """What the program around the member was told."""
        self.alive = True
        self.joined = False
        self.expelled = ""
        self.stopped: e.Stopped | None = None

    def handle(self, stimulus: Stimulus) -> None:
        """Give the engine a stimulus and carry out what follows."""
        if self.alive:
            self.engine.handle(stimulus, self.pump.now_us, self.pump.wall_ms)
            self.carry_out()

    def carry_out(self) -> None:
        """Take the engine's outputs and queue what they ask for."""
        pump = self.pump
        for output in self.engine.take_outputs():
            match output:
                case ToPeer() if output.peer not in self.links:
                    pump.dropped += 1  # as a real shell does: nobody has asked for that link
                case ToPeer():
                    payload = framed(output, pump.encoded)
                    pump.queue.append((self, output.peer, output.kind, payload))
                case ToAddress():
                    pump.queue.append(
                        (self, output.address, MESSAGE, (output.cause, output.message))
                    )
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

    def carry_out_effect(self, output: e.Effect) -> None:
        """Carry out one of the core's effects."""
        pump = self.pump
        match output:
            case e.ArmTimer():
                entry = (output.at_us, next(pump.counter), self, output.key, output.generation)
                heapq.heappush(pump.timers, entry)
            case e.Note():
                self.notes.append(output)
            case e.LinkWanted():
                self.links[output.member] = output.address
                pump.check_links = True
            case e.LinkUnwanted():
                self.links.pop(output.member, None)
            case e.Joined():
                self.joined = True
            case e.Expelled():
                self.expelled = output.reason
                pump.stop(self)
            case e.Stopped():
                self.stopped = output
                pump.stop(self)


class Pump:
    """The world of a test: nodes, a queue of deliveries, a heap of timers."""

    def __init__(self, settings: CoreSettings | None = None, encoded: bool = False) -> None:
        self.settings = settings or quick_settings()
        self.kinds: Sequence[ServedKind] = KINDS
        self.encoded = encoded
        """Whether messages between members travel as bytes."""
        self.now_us = 1_000_000
        self.nodes: list[Node] = []
        self.queue: deque[tuple[Node, MemberId | Address, int, Any]] = deque()
        self.timers: list[tuple[int, int, Node, str, int]] = []
        self.counter = iter(range(1 << 60))
        self.check_links = False
        self.next_tick_us = self.now_us + TICK_US
        self.delivered = 0
        self._cause = ""
        """Of the message that is delivered, or was last."""
        self.dropped = 0
        """Frames to members that nobody had asked a link to."""

    @property
    def wall_ms(self) -> int:
        """Wall clock of the test."""
        return WALL_START_MS + self.now_us // 1000

    # -- members --------------------------------------------------------------------------

    def start(self, lite: bool = False) -> Node:
        """Start a further member that knows the addresses of all before it."""
        node = Node(self, len(self.nodes) + 1, lite)
        self.nodes.append(node)
        node.handle(Started(tuple(other.address for other in self.nodes)))
        return node

    def form(self, count: int, settle_s: float = 10) -> list[Node]:
        """Start members one after the other and wait until the last has joined."""
        for _ in range(count):
            node = self.start()
            self.run_until(lambda node=node: node.joined, 30)
        self.run(settle_s)
        return self.nodes

    def living(self) -> list[Node]:
        """Nodes that run."""
        return [node for node in self.nodes if node.alive]

    def stop(self, node: Node) -> None:
        """A node ends: its peers cannot connect any more, its clients are cut off."""
        node.alive = False
        for client in node.clients.values():
            client.closed = "member gone"
        node.clients.clear()
        self.check_links = True

    def kill(self, node: Node) -> None:
        """The node dies without a word."""
        self.stop(node)

    def leave(self, node: Node, timeout_s: float = 60) -> None:
        """The node leaves gracefully."""
        node.handle(LeaveWanted())
        self.run_until(lambda: not node.alive, timeout_s)

    # -- time -----------------------------------------------------------------------------

    def settle(self) -> None:
        """Deliver until nothing is under way."""
        while True:
            if self.check_links and not self.queue:  # a link ends behind what was sent on it
                self.check_links = False
                self._fail_links()
            if not self.queue:
                break
            self.deliver_next()

    def deliver_next(self) -> None:
        """Deliver what was sent first; a message under the cause that it was sent with."""
        sender, to, kind, payload = self.queue.popleft()
        self.delivered += 1
        if isinstance(payload, tuple):
            self._cause, payload = payload
        self._deliver(sender, to, kind, payload)

    def _deliver(self, sender: Node, to: MemberId | Address, kind: int, payload: Any) -> None:
        for node in self.living():
            if to in (node.id, node.address):
                if kind == MESSAGE:
                    cause, message = self._cause, payload
                    if isinstance(payload, bytes):
                        cause, message = decode_message(payload)
                    node.handle(Received(sender.id, sender.address, message, cause=cause))
                else:
                    node.engine.peer_frame(sender.id, kind, payload, self.now_us, self.wall_ms)
                    node.carry_out()
                return
        if isinstance(to, Address) and sender.alive:
            sender.handle(AddressUnreachable(to))

    def _fail_links(self) -> None:
        dead = {node.id for node in self.nodes if not node.alive}
        for node in self.living():
            for member in list(node.links):
                if member in dead and node.alive:
                    node.handle(LinkFailed(member))

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        end_us = self.now_us + int(seconds * 1_000_000)
        self.settle()
        while True:
            due_us = self.next_tick_us
            if self.timers:
                due_us = min(due_us, self.timers[0][0])
            if due_us > end_us:
                break
            self.now_us = max(self.now_us, due_us)
            self._fire()
            self.settle()
        self.now_us = end_us

    def _fire(self) -> None:
        while self.timers and self.timers[0][0] <= self.now_us:
            _, _, node, key, generation = heapq.heappop(self.timers)
            node.handle(TimerFired(key, generation))
            self.settle()
        if self.next_tick_us <= self.now_us:
            self.next_tick_us += TICK_US
            for node in self.living():
                node.engine.tick(self.now_us, self.wall_ms)
                node.carry_out()

    def run_until(self, condition: Any, timeout_s: float) -> None:
        """Let time pass until the condition holds; fails when it does not in time."""
        end_us = self.now_us + int(timeout_s * 1_000_000)
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
