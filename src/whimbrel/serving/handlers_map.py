"""Requests to maps that belong to one partition: single keys, bulk calls, iteration.

Knows how each map request's fields become a call of the map service and how its result becomes a
response. The few requests that make up nearly all traffic have short cuts (``wire.fast_codec``),
the others go through the table codec.

A write is answered when its synchronous backups have it. Where the settings say so, a backup-aware
client that has its backup listener on this connection is answered at once with the number of
acknowledgements it will get (docs/design/0001, decision 7); for everybody else we wait ourselves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from whimbrel.core.registry import MAP_KIND
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.core.structures.map_service import EVICTED
from whimbrel.core.structures.record import EntryView
from whimbrel.errors import ProtocolError, UsageError
from whimbrel.serving.handlers_client import ClientHandlers, answer, check_name
from whimbrel.serving.operations import Effect, Operation, RunInPartition, Scope
from whimbrel.serving.server import Server
from whimbrel.serving.session import Connection, Origin
from whimbrel.wire.codec import decode_request
from whimbrel.wire.custom_types import SimpleEntryView
from whimbrel.wire.fast_codec import (
    bool_response,
    data_response,
    decode_key_request,
    decode_put_request,
    empty_response,
    with_backup_acks,
)
from whimbrel.wire.field_codec import Fields
from whimbrel.wire.frames import BACKUP_AWARE, RawMessage

INT_MAX = 2**31 - 1
NAMES_CACHED_MAX = 10_000
"""Map names kept decoded; the cache starts again beyond that."""
FETCH_BATCH_MAX = 10_000
"""Most entries of one fetchKeys or fetchEntries, whatever the client asks for."""
LARGE_VALUE_BYTES = 4096
"""Values from this size on count towards the limit of reply bytes per turn."""

_ACK_TO = struct.Struct("<16sq")
"""Where backups send their acknowledgement: client uuid and correlation id of the call."""

Run = Callable[[PartitionReplica, str, Fields], dict[str, Any]]
Write = Callable[[PartitionReplica, str, Fields, PendingReply], object]


class MapHandlers:
    """The map service's requests to one partition, as clients see them."""

    def __init__(self, server: Server, clients: ClientHandlers) -> None:
        """Begin with no map in use."""
        self._server = server
        self._clients = clients
        self._maps = server.maps
        self._aware_flag = BACKUP_AWARE if server.ctx.settings.backup_acks_to_client else 0
        """The flag of requests whose client counts acknowledgements itself; 0 where nobody does."""
        self._names: dict[bytes, str] = {}
        self._used: dict[str, None] = {}

    def operations(self) -> list[Operation[RunInPartition]]:
        """Every request to one partition that is offered."""
        reads: dict[str, RunInPartition] = {
            "get": self._get,
            "containsKey": self._contains_key,
            **{name: self._reading(run) for name, run in self._reads().items()},
        }
        writes: dict[str, RunInPartition] = {
            "put": self._put,
            "set": self._set,
            "remove": self._remove,
            "delete": self._delete,
            **self._writes(),
        }
        return [
            Operation(f"Map.{name}", MAP_KIND, Scope.PARTITION, effect, run)
            for effect, runs in ((Effect.READ, reads), (Effect.WRITE, writes))
            for name, run in runs.items()
        ]

    # -- names ----------------------------------------------------------------------------

    def _name(self, raw: bytes) -> str:
        """The map's name; decoded once."""
        name = self._names.get(raw)
        if name is None:
            try:
                name = raw.decode()
            except UnicodeDecodeError as error:
                raise ProtocolError("a map's name is not UTF-8", reason="name") from error
            check_name(name)
            if len(self._names) >= NAMES_CACHED_MAX:
                self._names.clear()
            self._names[raw] = name
        return name

    def _use(self, name: str) -> None:
        """A map is written: see to it that every member knows that it exists."""
        if name not in self._used:
            self._clients.ensure_map(name)
            self._used[name] = None

    def forget(self, name: str) -> None:
        """The map was destroyed: its next use creates it again."""
        self._used.pop(name, None)

    # -- replies to writes ----------------------------------------------------------------

    def _begin(self, origin: Origin, message: RawMessage) -> PendingReply:
        """Who waits for the changes of a request, and whom backups shall tell."""
        reply = PendingReply(origin)
        if message[7] & self._aware_flag:
            self._aim(reply, origin, message)
        return reply

    def _aim(self, reply: PendingReply, origin: Origin, message: RawMessage) -> None:
        """Have backups tell a backup-aware client themselves, if it listens on this connection."""
        if (
            isinstance(origin, Connection)
            and origin.backup_correlation is not None
            and origin.client_id is not None
        ):
            reply.ack_to = _ACK_TO.pack(origin.client_id, message[5])

    def _finish(
        self, origin: Origin, message: RawMessage, reply: PendingReply, response: bytes
    ) -> None:
        """Answer a write now, or when its backups are done."""
        acks = reply.remaining
        if acks <= 0:
            self._server.deliver(origin, response)
        elif reply.ack_to:
            reply.payload = message[5]
            self._server.deliver(origin, with_backup_acks(response, acks))
        else:
            reply.payload = response
            origin.in_flight += 1

    # -- single keys, short cuts ----------------------------------------------------------

    def _get(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        raw, key = decode_key_request(message[0], message[3])
        value = self._maps.get(partition, self._names.get(raw) or self._name(raw), key)
        origin.out.append(data_response(message[4], message[5], 0, value))
        if value is not None and len(value) > LARGE_VALUE_BYTES:
            origin.out_bytes += len(value)
        if not origin.dirty:
            self._server.mark(origin)

    def _contains_key(
        self, origin: Origin, partition: PartitionReplica, message: RawMessage
    ) -> None:
        raw, key = decode_key_request(message[0], message[3])
        found = self._maps.contains_key(partition, self._name(raw), key)
        self._server.deliver(origin, bool_response(message[4], message[5], 0, found))

    def _put(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        raw, key, value, ttl_ms = decode_put_request(message[0], message[3])
        name = self._names.get(raw) or self._name(raw)
        if name not in self._used:
            self._use(name)
        reply = self._begin(origin, message)
        old = self._maps.put(partition, name, key, value, reply, ttl_ms)
        self._finish(origin, message, reply, data_response(message[4], message[5], 0, old))

    def _set(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        raw, key, value, ttl_ms = decode_put_request(message[0], message[3])
        name = self._names.get(raw) or self._name(raw)
        if name not in self._used:
            self._use(name)
        reply = self._begin(origin, message)
        self._maps.set(partition, name, key, value, reply, ttl_ms)
        self._finish(origin, message, reply, empty_response(message[4], message[5], 0))

    def _remove(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        raw, key = decode_key_request(message[0], message[3])
        reply = self._begin(origin, message)
        old = self._maps.remove(partition, self._name(raw), key, reply)
        self._finish(origin, message, reply, data_response(message[4], message[5], 0, old))

    def _delete(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        raw, key = decode_key_request(message[0], message[3])
        reply = self._begin(origin, message)
        gone = self._maps.remove(partition, self._name(raw), key, reply) is not None
        self._finish(origin, message, reply, bool_response(message[4], message[5], 0, gone))

    # -- single keys by the table ---------------------------------------------------------

    def _reading(self, run: Run) -> RunInPartition:
        def read(origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
            _, fields = decode_request(message)
            check_name(fields["name"])
            data = answer(message, **run(partition, fields["name"], fields))
            self._server.deliver(origin, data)

        return read

    def _writing(self, run: Write, *, is_silent: bool = False) -> RunInPartition:
        """A write, whose response has one field or none."""

        def write(origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
            _, fields = decode_request(message)
            name = fields["name"]
            check_name(name)
            self._use(name)
            reply = self._begin(origin, message)
            result = run(partition, name, fields, reply)
            values = {} if is_silent else {"response": result}
            self._finish(origin, message, reply, answer(message, **values))

        return write

    def _reads(self) -> dict[str, Run]:
        maps = self._maps

        def get_all(partition: PartitionReplica, name: str, f: Fields) -> dict[str, Any]:
            return {"response": maps.get_all(partition, name, f["keys"])}

        def entry_view(partition: PartitionReplica, name: str, f: Fields) -> dict[str, Any]:
            view = maps.entry_view(partition, name, f["key"])
            return {
                "response": None if view is None else _client_view(view),
                "max_idle": -1 if view is None else view.max_idle_ms,
            }

        def fetch_keys(partition: PartitionReplica, name: str, f: Fields) -> dict[str, Any]:
            cursor, found = self._fetch(partition, name, f)
            return {"iteration_pointers": _pointers(cursor), "keys": [key for key, _ in found]}

        def fetch_entries(partition: PartitionReplica, name: str, f: Fields) -> dict[str, Any]:
            cursor, found = self._fetch(partition, name, f)
            return {"iteration_pointers": _pointers(cursor), "entries": found}

        return {
            "getAll": get_all,
            "getEntryView": entry_view,
            "fetchKeys": fetch_keys,
            "fetchEntries": fetch_entries,
        }

    def _fetch(
        self, partition: PartitionReplica, name: str, fields: Fields
    ) -> tuple[int, list[tuple[bytes, bytes]]]:
        """The next entries of an iteration; its pointers are opaque to clients."""
        batch = fields["batch"]
        if batch < 1:
            raise UsageError(f"a batch has at least one entry, not {batch}")
        cursor = _cursor(fields["iteration_pointers"])
        return self._maps.fetch_entries(partition, name, cursor, min(batch, FETCH_BATCH_MAX))

    def _writes(self) -> dict[str, RunInPartition]:
        maps = self._maps

        def try_put(p: PartitionReplica, n: str, f: Fields, r: PendingReply) -> bool:
            """Always True, because nothing here makes a write wait for another."""
            maps.set(p, n, f["key"], f["value"], r)
            return True

        answering: tuple[tuple[str, Write], ...] = (
            ("putIfAbsent", lambda p, n, f, r: maps.put_if_absent(
                p, n, f["key"], f["value"], r, f["ttl"])),
            ("putWithMaxIdle", lambda p, n, f, r: maps.put(
                p, n, f["key"], f["value"], r, f["ttl"], f["max_idle"])),
            ("putIfAbsentWithMaxIdle", lambda p, n, f, r: maps.put_if_absent(
                p, n, f["key"], f["value"], r, f["ttl"], f["max_idle"])),
            ("tryPut", try_put),
            ("tryRemove", lambda p, n, f, r: maps.remove(p, n, f["key"], r) is not None),
            ("replace", lambda p, n, f, r: maps.replace(p, n, f["key"], f["value"], r)),
            ("replaceIfSame", lambda p, n, f, r: maps.replace_if_same(
                p, n, f["key"], f["test_value"], f["value"], r)),
            ("removeIfSame", lambda p, n, f, r: maps.remove_if_same(
                p, n, f["key"], f["value"], r)),
            ("setTtl", lambda p, n, f, r: maps.set_ttl(p, n, f["key"], f["ttl"], r)),
            ("evict", lambda p, n, f, r: maps.remove(p, n, f["key"], r, EVICTED) is not None),
        )  # fmt: skip
        silent: tuple[tuple[str, Write], ...] = (
            ("putTransient", lambda p, n, f, r: maps.set(
                p, n, f["key"], f["value"], r, f["ttl"])),
            ("setWithMaxIdle", lambda p, n, f, r: maps.set(
                p, n, f["key"], f["value"], r, f["ttl"], f["max_idle"])),
            ("putTransientWithMaxIdle", lambda p, n, f, r: maps.set(
                p, n, f["key"], f["value"], r, f["ttl"], f["max_idle"])),
            ("putAll", lambda p, n, f, r: maps.put_all(p, n, f["entries"], r)),
        )  # fmt: skip
        return {
            **{name: self._writing(run) for name, run in answering},
            **{name: self._writing(run, is_silent=True) for name, run in silent},
        }


def _client_view(view: EntryView) -> SimpleEntryView:
    """An entry's book-keeping as clients know it."""
    return SimpleEntryView(
        key=view.key,
        value=view.value,
        cost=view.cost,
        creation_time=view.created_ms,
        expiration_time=view.expires_ms,
        hits=view.hits,
        last_access_time=view.last_access_ms,
        last_stored_time=-1,
        last_update_time=view.updated_ms,
        version=view.version,
        ttl=view.ttl_ms,
        max_idle=view.max_idle_ms,
    )


def _cursor(pointers: list[tuple[int, int]]) -> int:
    """Where an iteration goes on. Clients begin with (largest int, -1) or with nothing."""
    if not pointers:
        return 0
    position, size = pointers[-1]
    return 0 if size < 0 and position == INT_MAX else position


def _pointers(cursor: int) -> list[tuple[int, int]]:
    """A place in an iteration as clients carry it; a negative position ends it."""
    return [(cursor, -1 if cursor < 0 else 0)]
