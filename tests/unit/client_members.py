"""Members for tests of our client: threads that speak the protocol and misbehave on demand."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any, Self

from whimbrel.core.ids import Address
from whimbrel.core.partition.hashing import partition_hash, partition_of
from whimbrel.errors import ProtocolError
from whimbrel.wire.codec import decode_request, encode_event, encode_response
from whimbrel.wire.custom_types import ClientMember, MemberVersion, Schema
from whimbrel.wire.errors import encode_error
from whimbrel.wire.frames import AUTHENTICATED, MessageSplitter

PARTITIONS = 7
Disturb = Callable[["Member", str, int], int | None]
"""Told a message's name and partition; returns an error code, or None to go on."""


class Cluster:
    """Members that share one store: every member serves every partition."""

    def __init__(self, count: int = 1, name: str = "dev", disturb: Disturb | None = None) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.store: dict[str, dict[bytes, bytes]] = {}
        self.schemas: dict[int, Schema] = {}
        self.schema_holders = count
        self.version = 1
        self.disturb = disturb
        self.members = [Member(self, bytes([number + 1]) * 16) for number in range(count)]

    @property
    def addresses(self) -> list[str | Address]:
        return [member.address for member in self.members]

    def alive(self) -> list[Member]:
        return [member for member in self.members if not member.closed]

    def events(self, correlation: int) -> bytes:
        alive = self.alive()
        version = MemberVersion(5, 7, 0)
        infos = [ClientMember(m.address, m.uuid, {}, False, version, {}) for m in alive]
        rows = [
            (m.uuid, [pid for pid in range(PARTITIONS) if pid % len(alive) == number])
            for number, m in enumerate(alive)
        ]
        name = "Client.addClusterViewListener"
        return encode_event(
            name, "members_view", correlation, version=self.version, member_infos=infos
        ) + encode_event(
            name, "partitions_view", correlation, version=self.version, partitions=rows
        )

    def close(self) -> None:
        for member in self.members:
            member.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Member:
    """One listening socket and a thread per connection."""

    def __init__(self, cluster: Cluster, uuid: bytes) -> None:
        self.cluster = cluster
        self.uuid = uuid
        self.closed = False
        self.silent = False
        self.seen: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self.closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        splitter = MessageSplitter(AUTHENTICATED)
        with contextlib.suppress(OSError, ProtocolError):
            prelude = connection.recv(3)
            assert prelude == b"CP2"
            while data := connection.recv(65536):
                for message in splitter.feed(data):
                    name, fields = decode_request(message)
                    self.seen.append(name)
                    answer = self._answer(name, message[5], message[6], fields)
                    if answer is None:
                        return
                    if not self.silent:
                        connection.sendall(answer)
        connection.close()

    def _answer(self, name: str, correlation: int, pid: int, fields: Any) -> bytes | None:
        cluster = self.cluster
        if self.closed:
            return None
        if cluster.disturb is not None:
            code = cluster.disturb(self, name, pid)
            if code is not None:
                return encode_error(correlation, code, "disturbed")
        if self not in cluster.alive():
            return None
        with cluster.lock:
            if name == "Client.authentication":
                return self._welcome(correlation, fields)
            if name == "Client.addClusterViewListener":
                return encode_response(name, correlation) + cluster.events(correlation)
            return encode_response(name, correlation, 0, **self._result(name, pid, fields))

    def _welcome(self, correlation: int, fields: Any) -> bytes:
        good = fields["cluster_name"] == self.cluster.name
        return encode_response(
            "Client.authentication",
            correlation,
            status=0 if good else 1,
            member_uuid=self.uuid,
            cluster_id=bytes(16),
            serialization_version=1,
            server_version="5.7.0",
            partition_count=PARTITIONS,
            failover_supported=False,
        )

    def _result(self, name: str, pid: int, fields: Any) -> dict[str, Any]:
        store = self.cluster.store.setdefault(fields.get("name", ""), {})
        if name == "Map.putAll":
            store.update(fields["entries"])
        elif name == "Map.getAll":
            return {"response": [(key, store[key]) for key in fields["keys"] if key in store]}
        elif name == "Map.size":
            return {"response": len(store)}
        elif name == "Map.clear":
            store.clear()
        elif name == "Map.fetchEntries":
            return self._fetch(store, pid, fields)
        elif name == "Client.sendSchema":
            self.cluster.schemas[1] = fields["schema"]
            holders = self.cluster.members[: self.cluster.schema_holders]
            self.cluster.schema_holders += 1
            return {"replicated_members": [member.uuid for member in holders]}
        elif name == "Client.fetchSchema":
            return {"schema": self.cluster.schemas.get(fields["schema_id"])}
        return {}

    @staticmethod
    def _fetch(store: dict[bytes, bytes], pid: int, fields: Any) -> dict[str, Any]:
        here = sorted(
            item
            for item in store.items()
            if partition_of(partition_hash(item[0]), PARTITIONS) == pid
        )
        at = fields["iteration_pointers"][-1][0]
        at = 0 if at == 0x7FFF_FFFF else at
        end = at + fields["batch"]
        pointer = (end, 0) if end < len(here) else (-1, -1)
        return {"iteration_pointers": [pointer], "entries": here[at:end]}

    def close(self) -> None:
        """Die: no new connections, the old ones are reset."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(1)
