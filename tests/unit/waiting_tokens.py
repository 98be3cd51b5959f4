"""A kind of structure for tests of calls that wait: tokens to be given and taken.

``give`` and ``take`` travel as Map.tryPut and Map.tryRemove, because the protocol knows no tokens:
what is their ``timeout`` to a map is the count to ``give`` and the time to wait to ``take``.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.engine_pump import Client, Node, Pump, quick_settings

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.core.stimuli import LinkLost, LinkRestored
from whimbrel.serialization.data import to_data
from whimbrel.serving.operations import Effect, Operation, Scope
from whimbrel.serving.session import Origin
from whimbrel.wire.codec import decode_request
from whimbrel.wire.fast_codec import bool_response
from whimbrel.wire.frames import RawMessage
from whimbrel.wire.protocol_table import message_type

PID = PartitionId(3)
TOKENS = Namespace("tokens/t")
AWAITED = Namespace("map/b1")
"""What waiting takes wait on: a structure that clients can destroy."""
KEY = b"tokens"
FOR_EVER = -1


class TokenStore:
    """How many there are; a backup operation and a copy carry the number whole."""

    bytes_used = 8

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return 1

    def apply(self, buffer: bytes, start: int, end: int) -> None:
        self.count = int.from_bytes(buffer[start:end], "big")

    def open_cursor(self) -> None:
        return None

    def export(self, cursor: None, bytes_max: int) -> tuple[bytes, int, bool]:
        return self.count.to_bytes(8, "big"), 1, True

    def ingest(self, data: bytes) -> int:
        self.count = int.from_bytes(data, "big")
        return 1

    def stop_sweeping(self) -> None:
        return None

    def release(self) -> None:
        return None

    def restart_idleness(self, now_ms: int) -> None:
        return None


class Tokens:
    """The handlers of one member."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.server = node.engine.server
        self.plane = node.engine.member.dataplane
        self.attempts = 0
        self.plane.holdings.register("tokens", lambda _: TokenStore())
        for name, run in (("Map.tryRemove", self.take), ("Map.tryPut", self.give)):
            row = Operation(name, "map", Scope.PARTITION, Effect.WRITE, run)
            self.server.operations.in_partition[message_type(name)] = row
        self.server.admission.guard()

    def count(self, partition: PartitionReplica) -> int:
        fragment = partition.fragments.get(TOKENS)
        store: Any = None if fragment is None else fragment.store
        return 0 if store is None else int(store.count)

    def change(
        self, origin: Origin, partition: PartitionReplica, message: RawMessage, by: int
    ) -> None:
        """Change the number and answer when the backup has it; what is there is for the next."""
        count = self.count(partition) + by
        operation = count.to_bytes(8, "big")
        fragment = self.plane.holdings.begin(partition, TOKENS)
        fragment.store.apply(operation, 0, 8)
        reply = PendingReply(origin)
        self.plane.holdings.change(partition, fragment, operation, reply)
        if count:
            self.plane.wakes.wake(partition, AWAITED, KEY)
        response = bool_response(message[4], message[5], 0, True)
        if reply.remaining > 0:
            reply.payload = response
            origin.in_flight += 1
        else:
            self.server.deliver(origin, response)

    def give(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        self.change(origin, partition, message, decode_request(message)[1]["timeout"])

    def take(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        self.attempts += 1
        timeout_ms = decode_request(message)[1]["timeout"]
        nothing = bool_response(message[4], message[5], 0, False)
        if self.count(partition):
            self.change(origin, partition, message, -1)
        elif timeout_ms == 0:
            self.server.deliver(origin, nothing)
        else:
            self.server.waits.later(origin, message, partition, AWAITED, KEY, timeout_ms, nothing)


class Scene:
    """Three members: the primary of the tokens, its backup, and another."""

    def __init__(self, **settings: Any) -> None:
        self.pump = Pump(quick_settings(**settings))
        self.tokens: dict[Node, Tokens] = {}
        for node in self.pump.form(3):
            self.install(node)
        self.home = next(node for node in self.pump.nodes if self.partition(node).is_primary)
        row = self.partition(self.home).row
        self.backup = next(node for node in self.pump.nodes if node.id == row[1])
        self.other = next(node for node in self.pump.nodes if node.id not in row)
        self.giver = self.pump.client(self.home, number=99)
        fields = {"key": to_data("k"), "thread_id": 1, "value": to_data("v"), "ttl": -1}
        self.giver.call("Map.set", PID, name="b1", **fields)
        self.links: dict[tuple[Node, Node], Any] = {}

    def install(self, node: Node) -> None:
        self.tokens[node] = Tokens(node)

    @staticmethod
    def partition(node: Node) -> PartitionReplica:
        return node.engine.member.dataplane.partitions[PID]

    def take(self, client: Client, timeout_ms: int = FOR_EVER) -> int:
        """Begin to take a token; everything comes to rest."""
        call = self.ask(client, timeout_ms)
        self.pump.settle()
        return call

    @staticmethod
    def ask(client: Client, timeout_ms: int = FOR_EVER) -> int:
        fields = {"key": to_data("k"), "thread_id": 1, "timeout": timeout_ms}
        return client.ask("Map.tryRemove", PID, name="t", **fields)

    def give(self, count: int = 1, client: Client | None = None, settle: bool = True) -> int:
        """Give tokens; everything comes to rest unless told otherwise."""
        fields = {"key": to_data("k"), "value": to_data("v"), "thread_id": 1, "timeout": count}
        call = (client or self.giver).ask("Map.tryPut", PID, name="t", **fields)
        if settle:
            self.pump.settle()
        return call

    def is_flying(self, kind: int) -> bool:
        """Whether a frame of a kind is on its way."""
        return any(one is not None and one.kind == kind for one in self.pump.flying.values())

    def left(self) -> int:
        """Tokens at the primary."""
        home = next(node for node in self.pump.living() if self.partition(node).is_primary)
        return self.tokens[home].count(self.partition(home))

    def close(self, client: Client) -> None:
        """A client's connection breaks."""
        client.node.clients.pop(client.conn)
        client.node.engine.client_closed(client.conn)
        client.node.carry_out()

    def cut(self, sender: Node, receiver: Node) -> None:
        """What a member sends to another is lost from now on."""
        self.links[sender, receiver] = sender.links.pop(receiver.id)
        sender.handle(LinkLost(receiver.id))

    def mend(self, sender: Node, receiver: Node) -> None:
        """The link stands again."""
        sender.links[receiver.id] = self.links.pop((sender, receiver))
        sender.handle(LinkRestored(receiver.id))
        self.pump.settle()

    def set_migrating(self, migrating: bool) -> None:
        """Writes at the primary wait, or go on as after a migration that was given up."""
        if migrating:
            self.partition(self.home).set_migrating(True)
        else:
            self.home.engine.member.dataplane.roles.end_source(PID)
            self.home.carry_out()
            self.pump.settle()

    def figures(self, node: Node) -> tuple[float, float]:
        """Calls that wait at a member, and those of others that it remembers."""
        metrics = node.engine.metrics()
        return metrics["waiting_calls"], metrics["waiting_call_hints"]

    def assert_nothing_is_kept(self) -> None:
        """No member keeps anything of calls that are over."""
        for node in self.pump.living():
            waits = node.engine.server.waits
            assert self.figures(node) == (0, 0)
            assert not waits._by_partition and not waits._remembered and not waits._bytes
            assert not waits.queues._queues and not any(waits.queues._hints.values())
            for connection in node.engine.server.intake.connections.values():
                assert not connection.waiting and connection.in_flight == 0


BOTH = pytest.mark.parametrize("where", ["home", "other"])
"""The client is at the primary, or its calls are sent on."""


def client_at(scene: Scene, where: str, number: int = 1) -> Client:
    """A client of one of the scene's members."""
    node: Node = getattr(scene, where)
    return scene.pump.client(node, number=number)


def is_open(client: Client, call: int) -> bool:
    """Whether a call has no answer yet."""
    return call not in client.messages
