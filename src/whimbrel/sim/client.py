"""A simulated client: speaks the client protocol over simulated connections.

Follows the official Python client where it matters for safety: which errors it repeats a call
after, what it does when a connection breaks, how it counts backup acknowledgements. A *smart*
client connects to every member and sends to a key's primary; a *single* one (unisocket) sends
everything to one member. What is called, and what an answer says, is the operation's own affair.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from whimbrel.core.ids import Address, MemberId, Row
from whimbrel.serialization.uuids import uuid_text
from whimbrel.serving.scatter import GATHER_TIMEOUT_US
from whimbrel.sim.entropy import pick
from whimbrel.sim.history import Operation, Outcome, Reply
from whimbrel.sim.host import ClientConnection, Host
from whimbrel.sim.model import StructureModel
from whimbrel.sim.network import Pipe
from whimbrel.sim.world import World
from whimbrel.wire import codec
from whimbrel.wire.errors import INDETERMINATE, decode_errors
from whimbrel.wire.frames import (
    ANSWERS,
    AUTHENTICATED,
    BACKUP_AWARE,
    EVENT,
    PRELUDE,
    MessageSplitter,
    RawMessage,
)
from whimbrel.wire.protocol_table import SHAPES

RETRY_US = 250_000
"""Pause before a call is repeated (the official client waits a second)."""
CALL_TIMEOUT_US = 60_000_000
"""After this long a call is not repeated any more."""
ACKNOWLEDGEMENT_TIMEOUT_US = 5_000_000
"""A write whose backup acknowledgements do not come counts as unknown after this span."""
RECONNECT_US = 200_000
ATTEMPT_TIMEOUT_US = 1_000_000
"""A connection that is not made and authenticated in this span is given up."""
SILENCE_US = GATHER_TIMEOUT_US + 2_000_000
"""An unanswered request makes the client give its connection up after this span: longer than any
call lasts that some partition has no primary for."""

ALWAYS_REPEATED = (8, 19, 33, 39, 46, 47, 50, 53, 62, 82, 90)
"""Error codes after which a client makes the call again, whatever it is."""

_LONG = struct.Struct("<q")
_ERROR_TYPE = 0
_AUTHENTICATION = SHAPES["Client.authentication"].type
_VIEW = SHAPES["Client.addClusterViewListener"].type
_BACKUP_EVENT = SHAPES["Client.localBackupListener"].type + 2
_DESTROY = SHAPES["Client.destroyProxy"].type
_RETRYABLE = {name for name, shape in SHAPES.items() if shape.retryable}


class Invocation:
    """One call, over all its attempts."""

    def __init__(self, operation: Operation, began_us: int) -> None:
        self.operation = operation
        self.began_us = began_us
        self.sent_us = began_us
        self.attempt = 0
        self.connection: MemberConnection | None = None
        self.answered = False
        self.answer: Any = None
        self.acks_needed = 0
        self.acks_seen = 0


class MemberConnection:
    """The client's end of a connection to one member."""

    def __init__(self, client: SimClient, address: Address, number: int) -> None:
        self.client = client
        self.address = address
        self.number = number
        self.host: Host | None = None
        self.incarnation = 0
        self.up: Pipe | None = None
        self.end: ClientConnection | None = None
        self.member = ""
        self.is_ready = False
        self.is_listening = False
        """Whether the member has confirmed this client's entry listener."""
        self.splitter = MessageSplitter(AUTHENTICATED, ANSWERS)

    def write(self, data: bytes) -> None:
        """Send bytes to the member."""
        if self.up is not None:
            self.up.send(data)


class SimClient:
    """One client process: connections, cluster view, one call at a time."""

    def __init__(
        self, world: World, index: int, smart: bool, models: Sequence[StructureModel]
    ) -> None:
        self.world = world
        self.name = name = f"c{index + 1}"
        self.index = index
        """Position among the clients; decides what it may write."""
        self.models = models
        self.on_ended: Callable[[SimClient, Operation, Reply], None] = _unheard
        """Is told what became of a call."""
        self.smart = smart
        self.is_busy = False
        self.uuid = world.entropy.uuid()
        self._random = world.entropy.of(f"client-{name}")
        self._correlation = 0
        self._connections: dict[Address, MemberConnection] = {}
        self._by_member: dict[str, MemberConnection] = {}
        self._view_connection: MemberConnection | None = None
        self._flags = BACKUP_AWARE if smart else 0
        self._calls: dict[int, Invocation] = {}
        self._early_acks: dict[int, int] = {}
        self._destroys: dict[int, Callable[[], None]] = {}
        """Orders to destroy a structure, with what to do once they are answered."""
        self.owners: dict[int, str] = {}
        """Partition to member, as the last partitions view said."""
        self.members: list[str] = []
        self.member_list_version = 0
        self._addresses: list[Address] = []
        self.partitions_version = -1
        self.listens = index == 0
        """Whether this client listens to changes."""
        listened = [model for model in models if model.listener and self.listens]
        self._listeners = {SHAPES[model.listener].type: model for model in listened}
        self._listening_since_us = 0
        """When its connections or registrations changed last."""

    # -- connections ----------------------------------------------------------------------

    def start(self) -> None:
        """Connect to somebody, then for ever keep connections."""
        self._watch()

    def _watch(self) -> None:
        """Every now and then: have a view, have the connections this client should have."""
        self.world.scheduler.after(RECONNECT_US, self._watch)
        ready = [c for c in self._connections.values() if c.is_ready]
        if self._view_connection is None and ready:
            self._register_view(pick(self._random, ready))
        if not self._connections:
            known = self._addresses if self._random.random() < 0.7 else []
            self._connect(pick(self._random, known or self.world.addresses()))
        elif self.smart:
            for address in self._addresses:
                if address not in self._connections:
                    self._connect(address)
            if not ready:  # those of its last view may all be gone, some without a word
                address = pick(self._random, self.world.addresses())
                if address not in self._connections:
                    self._connect(address)
        self._give_up_silent_connections()

    def _give_up_silent_connections(self) -> None:
        limit_us = self.world.now_us - SILENCE_US
        for call in list(self._calls.values()):
            connection = call.connection
            if connection is not None and call.sent_us < limit_us:
                self.world.tell("hangs", call.operation, connection.host)
                self._drop(connection, tell=True)

    def _connect(self, address: Address) -> None:
        world = self.world
        connection = MemberConnection(self, address, world.next_connection())
        self._connections[address] = connection
        host = world.host_at(address)
        name = host.name if host is not None else "nowhere"
        there = world.network.path(self.name, name)
        back = world.network.path(name, self.name)
        delay_us = world.network.draw_delay_us(there) + world.network.draw_delay_us(back)
        world.scheduler.after(delay_us, self._made, connection, host)
        world.scheduler.after(ATTEMPT_TIMEOUT_US + delay_us, self._not_made, connection)

    def _not_made(self, connection: MemberConnection) -> None:
        if not connection.is_ready:
            self._drop(connection, tell=True)

    def _made(self, connection: MemberConnection, host: Host | None) -> None:
        if self._connections.get(connection.address) is not connection:
            return
        network = self.world.network
        if host is None or not host.is_up:
            if host is None or not host.is_silent:
                self._drop(connection, tell=False)
            return
        if network.is_cut(self.name, host.name) or network.is_cut(host.name, self.name):
            return
        incarnation, number = host.incarnation, connection.number

        def arrive(data: bytes) -> None:
            host.client_bytes(incarnation, number, data)

        def receive(data: bytes) -> None:
            self._received(connection, data)

        def closed() -> None:
            self._drop(connection, tell=False)

        connection.host, connection.incarnation = host, incarnation
        connection.up = network.open_pipe(self.name, host.name, arrive)
        connection.end = ClientConnection(network.open_pipe(host.name, self.name, receive), closed)
        host.client_opened(number, connection.end, self.name)
        connection.write(
            PRELUDE
            + codec.encode_request(
                "Client.authentication",
                self._next_correlation(),
                cluster_name=self.world.plan.settings.cluster_name,
                uuid=self.uuid,
                client_type="SIM",
                serialization_version=1,
                client_version="5.7.0",
                client_name=self.name,
                labels=[],
                routing_mode=1 if self.smart else 0,
            )
        )

    def _drop(self, connection: MemberConnection, tell: bool) -> None:
        """A connection is over; ``tell`` when we end it ourselves."""
        if self._connections.get(connection.address) is not connection:
            return
        del self._connections[connection.address]
        self._listening_since_us = self.world.now_us
        if self._by_member.get(connection.member) is connection:
            del self._by_member[connection.member]
        if self._view_connection is connection:
            self._view_connection = None
        if connection.up is not None:
            self.world.network.reset(connection.up)
        if connection.end is not None:
            connection.end.to_client.close()
        host = connection.host
        if tell and host is not None:
            self.world.scheduler.after(
                self.world.network.draw_delay_us(self.world.network.path(self.name, host.name)),
                host.client_closed,
                connection.incarnation,
                connection.number,
            )
        connection.is_ready = False
        for correlation, call in list(self._calls.items()):
            if call.connection is connection:
                self._lost(correlation, call)

    def break_connection(self, host: Host) -> None:
        """The network resets the connection to a host, if there is one."""
        for connection in list(self._connections.values()):
            if connection.host is host:
                self._drop(connection, tell=True)

    def machine_vanished(self, host: Host, notice_us: int) -> None:
        """A machine went without a word: the connection to it ends late."""
        for connection in list(self._connections.values()):
            if connection.host is host:
                self.world.scheduler.after(notice_us, self._drop, connection, False)

    def _lost(self, correlation: int, call: Invocation) -> None:
        """The connection broke while a call was pending."""
        del self._calls[correlation]
        self._early_acks.pop(correlation, None)
        if call.answered:
            self._end(call, Outcome.UNKNOWN, "acknowledgements lost")
        elif call.operation.message in _RETRYABLE:
            self._again(call)
        else:
            self._end(call, Outcome.UNKNOWN, "connection lost")

    # -- what members say -----------------------------------------------------------------

    def _received(self, connection: MemberConnection, data: bytes) -> None:
        for message in connection.splitter.feed(data):
            kind = message[4]
            if message[7] & EVENT:
                self._event(connection, message)
            elif kind == _AUTHENTICATION + 1:
                self._authenticated(connection, message)
            elif kind - 1 in self._listeners:
                connection.is_listening = True
                self._listening_since_us = self.world.now_us
            elif kind == _DESTROY + 1:
                self._destroys.pop(message[5])()
            elif message[5] in self._calls:
                self._answered(message[5], self._calls[message[5]], message)

    def _authenticated(self, connection: MemberConnection, message: RawMessage) -> None:
        _, fields = codec.decode_response(message)
        if fields["status"] != 0:
            self._drop(connection, tell=True)
            return
        connection.member = uuid_text(fields["member_uuid"])
        connection.is_ready = True
        self._by_member[connection.member] = connection
        if self.smart:
            connection.write(
                codec.encode_request("Client.localBackupListener", self._next_correlation())
            )
        self._listening_since_us = self.world.now_us
        for model in self._listeners.values():
            connection.write(model.listen(self._next_correlation(), local_only=self.smart))
        if self._view_connection is None:
            self._register_view(connection)

    def is_listening_since(self, moment_us: int) -> bool:
        """Whether every running member has told this client of all changes since a moment."""
        if not self.listens or self._listening_since_us > moment_us:
            return False
        there = [host.info.id for host in self.world.up_hosts()]
        return all(
            member in self._by_member and self._by_member[member].is_listening for member in there
        )

    def table_difference(self, rows: list[Row], members: tuple[MemberId, ...]) -> str:
        """How this client's picture of the cluster differs from a table; empty when it does not.

        A client without a view has no picture yet, and one that is not smart needs none.
        """
        if self._view_connection is None or not self.smart:
            return ""
        if sorted(self.members) != sorted(members):
            return f"{self.name} has an old member list"
        for pid, row in enumerate(rows):
            if row[0] is not None and self.owners.get(pid) != row[0]:
                return f"{self.name} takes somebody else for the primary of p{pid}"
        strangers = [member for member in self._by_member if member not in members]
        return f"{self.name} keeps a connection to {strangers[0]}" if strangers else ""

    def destroy(self, model: StructureModel) -> None:
        """Destroy the doomed structure of a kind through whichever member is connected."""
        ready = [connection for connection in self._connections.values() if connection.is_ready]
        if ready:
            correlation = self._next_correlation()
            self._destroys[correlation] = model.doom()
            pick(self._random, ready).write(
                codec.encode_request(
                    "Client.destroyProxy",
                    correlation,
                    name=model.doomed_name,
                    service_name=model.service_name,
                )
            )

    def _register_view(self, connection: MemberConnection) -> None:
        self._view_connection = connection
        self.member_list_version = 0
        self.partitions_version = -1
        connection.write(
            codec.encode_request("Client.addClusterViewListener", self._next_correlation())
        )
        for model in self.models:
            for name in model.names:
                connection.write(
                    codec.encode_request(
                        "Client.createProxy",
                        self._next_correlation(),
                        name=name,
                        service_name=model.service_name,
                    )
                )

    def _event(self, connection: MemberConnection, message: RawMessage) -> None:
        buffer, frames, kind = message[0], message[3], message[4]
        if kind == _BACKUP_EVENT:
            correlation = _LONG.unpack_from(buffer, frames[0] + 16)[0]
            self._acknowledged(correlation)
        elif kind & ~0xFF in self._listeners:
            self._listeners[kind & ~0xFF].heard(self, message)
        elif connection is self._view_connection and kind & ~0xFF == _VIEW:
            _, event, fields = codec.decode_event(message)
            if event == "members_view":
                self._members_view(fields)
            elif event == "partitions_view":
                self._partitions_view(fields)

    def _members_view(self, fields: dict[str, Any]) -> None:
        if fields["version"] <= self.member_list_version:
            return
        self.member_list_version = fields["version"]
        infos = fields["member_infos"]
        self.members = [uuid_text(info.uuid) for info in infos]
        self._addresses = [info.address for info in infos]
        for connection in list(self._connections.values()):
            if connection.is_ready and connection.member not in self.members:
                self._drop(connection, tell=True)

    def _partitions_view(self, fields: dict[str, Any]) -> None:
        if not fields["partitions"] or fields["version"] <= self.partitions_version:
            return
        self.partitions_version = fields["version"]
        owners: dict[int, str] = {}
        for member, partitions in fields["partitions"]:
            name = uuid_text(member)
            for partition in partitions:
                owners[partition] = name
        self.owners = owners

    # -- calls ----------------------------------------------------------------------------

    def call(self, operation: Operation) -> None:
        """Begin a call; its outcome goes to ``on_ended``."""
        self._attempt(Invocation(operation, self.world.now_us))

    def _next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def _target(self, call: Invocation) -> MemberConnection | None:
        if self.smart:
            owner = self.owners.get(call.operation.ledger.partition_id)
            connection = self._by_member.get(owner) if owner is not None else None
            if connection is not None and connection.is_ready:
                return connection
        ready = [connection for connection in self._connections.values() if connection.is_ready]
        return pick(self._random, ready) if ready else None

    def _attempt(self, call: Invocation) -> None:
        world = self.world
        if world.now_us - call.began_us > CALL_TIMEOUT_US:
            self._end(call, Outcome.FAILED, "not executed in time")
            return
        connection = self._target(call)
        if connection is None:
            world.scheduler.after(RETRY_US, self._attempt, call)
            return
        correlation = self._next_correlation()
        call.connection, call.sent_us, call.attempt = connection, world.now_us, call.attempt + 1
        call.answered, call.acks_needed, call.acks_seen = False, 0, 0
        self._calls[correlation] = call
        connection.write(call.operation.request(correlation, self._flags))

    def _again(self, call: Invocation) -> None:
        call.connection = None
        self.world.scheduler.after(RETRY_US, self._attempt, call)

    def _answered(self, correlation: int, call: Invocation, message: RawMessage) -> None:
        if message[4] == _ERROR_TYPE:
            del self._calls[correlation]
            self._early_acks.pop(correlation, None)
            self._failed(call, message)
            return
        call.answer = call.operation.decode(message)
        call.answered = True
        call.acks_needed = message[6]
        call.acks_seen += self._early_acks.pop(correlation, 0)
        if call.acks_seen >= call.acks_needed:
            del self._calls[correlation]
            self._end(call, Outcome.OK, "")
        else:
            self.world.scheduler.after(
                ACKNOWLEDGEMENT_TIMEOUT_US, self._acknowledgements_late, correlation, call
            )

    def _failed(self, call: Invocation, message: RawMessage) -> None:
        holder = decode_errors(message)[0]
        code, text = holder.error_code, f"{holder.class_name}: {holder.message}"
        self.world.count_error(code)
        if code == INDETERMINATE:
            self._end(call, Outcome.UNKNOWN, text)
            return
        self.world.tell("denied", call.operation, text)  # docs/design/0013: nothing happened
        if code in ALWAYS_REPEATED:
            self._again(call)
        else:
            self._end(call, Outcome.FAILED, text)

    def _acknowledged(self, correlation: int) -> None:
        call = self._calls.get(correlation)
        if call is None:
            return
        if not call.answered:
            self._early_acks[correlation] = self._early_acks.get(correlation, 0) + 1
            return
        call.acks_seen += 1
        if call.acks_seen >= call.acks_needed:
            del self._calls[correlation]
            self._end(call, Outcome.OK, "")

    def _acknowledgements_late(self, correlation: int, call: Invocation) -> None:
        if self._calls.get(correlation) is call:
            del self._calls[correlation]
            self._end(call, Outcome.UNKNOWN, "acknowledgements late")

    def _end(self, call: Invocation, outcome: Outcome, error: str) -> None:
        call.connection = None
        answer = call.answer if outcome is Outcome.OK else None
        self.on_ended(self, call.operation, Reply(outcome, answer, error, call.attempt))


def _unheard(client: SimClient, operation: Operation, reply: Reply) -> None:
    """Nobody wants to know."""
