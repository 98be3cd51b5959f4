"""Members for tests of our client: engines behind sockets, which misbehave on demand.

Their time goes on while they are asked something, so that nothing changes between two requests.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

from tests.unit.engine_pump import Client, Node, Pump, quick_settings

from whimbrel.core.ids import Address
from whimbrel.errors import ProtocolError
from whimbrel.serialization.uuids import uuid_bytes
from whimbrel.wire.codec import decode_request, encode_response
from whimbrel.wire.errors import encode_error
from whimbrel.wire.frames import AUTHENTICATED, PRELUDE, MessageSplitter, RawMessage

PARTITIONS = 7
ANSWER_S = 0.05
"""What requests that come together are given of the members' time."""
DEATH_S = 5
"""What the others are given of it to notice a death."""
Disturb = Callable[["Member", str, int], int | None]
"""Told a message's name and partition; returns an error code, or None to go on."""


class Cluster(Pump):
    """The members; one thread at a time runs any of them."""

    def __init__(self, count: int = 1, name: str = "dev", disturb: Disturb | None = None) -> None:
        super().__init__(quick_settings(cluster_name=name, partition_count=PARTITIONS))
        self.name = name
        self.lock = threading.RLock()
        self.disturb = disturb
        self.schema_holders = count
        """How many members are said to have a schema, one more each time; all is the truth."""
        self.listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        self.members = [
            Member(self, node, listener)
            for node, listener in zip(self.form(count), self.listeners, strict=True)
        ]

    def address_of(self, number: int) -> Address:
        return Address("127.0.0.1", self.listeners[number - 1].getsockname()[1])

    @property
    def addresses(self) -> list[str | Address]:
        return [member.address for member in self.members]

    def alive(self) -> list[Member]:
        return [member for member in self.members if not member.closed]

    def close(self) -> None:
        for member in self.members:
            member.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Remote(Client):
    """The member's end of a connection."""

    def __init__(self, member: Member, connection: socket.socket) -> None:
        super().__init__(member.node)
        self.member = member
        self.connection = connection

    def receive(self, data: bytes) -> None:
        """Send what the engine says."""
        if not self.member.silent:
            with contextlib.suppress(OSError):  # the client may be gone
                self.connection.sendall(data)

    def end(self) -> None:
        """The connection is gone, as a shell tells its engine."""
        if self.node.clients.pop(self.conn, None) is not None:
            self.node.engine.client_closed(self.conn)


class Member:
    """One engine with a listening socket, and a thread per connection."""

    def __init__(self, cluster: Cluster, node: Node, listener: socket.socket) -> None:
        self.cluster = cluster
        self.node = node
        self.address = node.address
        self.closed = False
        self.silent = False
        self.seen: list[str] = []
        self._listener = listener
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self.closed:
                connection, _ = self._listener.accept()
                self._sockets.append(connection)
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        splitter, client = MessageSplitter(AUTHENTICATED), Remote(self, connection)
        with contextlib.suppress(OSError, ProtocolError):
            assert connection.recv(len(PRELUDE)) == PRELUDE
            with self.cluster.lock:
                client.connect()
            while not client.closed and (data := connection.recv(65536)):
                self._take(client, [(m, self._hear(m)) for m in splitter.feed(data)])
        connection.close()
        with self.cluster.lock:
            client.end()

    def _hear(self, message: RawMessage) -> bytes | None:
        """A request arrived; what is answered in place of the engine."""
        cluster, name = self.cluster, decode_request(message)[0]
        self.seen.append(name)
        code = None if cluster.disturb is None else cluster.disturb(self, name, message[6])
        if code is not None:
            return encode_error(message[5], code, "disturbed")
        if name == "Client.sendSchema" and cluster.schema_holders < len(cluster.members):
            return self._schema_answer(message[5])
        return None

    def _take(self, client: Remote, heard: list[tuple[RawMessage, bytes | None]]) -> None:
        cluster = self.cluster
        with cluster.lock:
            for (buffer, start, end, *_), answer in heard:
                if answer is None:
                    client.send(buffer[start:end])
                else:
                    client.receive(answer)
            cluster.run(ANSWER_S)

    def _schema_answer(self, correlation: int) -> bytes:
        cluster = self.cluster
        holders = cluster.members[: cluster.schema_holders]
        cluster.schema_holders += 1
        uuids = [uuid_bytes(member.node.id) for member in holders]
        return encode_response("Client.sendSchema", correlation, 0, replicated_members=uuids)

    def close(self) -> None:
        """Die: no new connections, the old ones are reset, and the others notice."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self.cluster.lock:
            self.cluster.kill(self.node)
            self.cluster.run(DEATH_S if self.cluster.alive() else 0)
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(1)
