"""Requests to maps that belong to one partition: single keys, bulk calls, iteration, listeners.

Knows how each map request's fields become a call of the map service and how its result becomes a
response. The few requests that make up nearly all traffic have short cuts (``wire.fast_codec``),
the others go through the table codec.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whimbrel.core.ids import Namespace
from whimbrel.core.kinds import StructureKind
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.errors import UsageError
from whimbrel.serving.entry_events import wants_entries
from whimbrel.serving.handlers_client import answer
from whimbrel.serving.handlers_events import register, remover
from whimbrel.serving.listeners import GRID, Listener
from whimbrel.serving.operations import (
    Effect,
    Operation,
    RunInPartition,
    RunOnConnection,
    Scope,
    rows_of,
)
from whimbrel.serving.server import Server
from whimbrel.serving.session import Connection, Origin
from whimbrel.serving.structure_handlers import Read, StructureHandlers
from whimbrel.serving.waits import FOR_EVER_MS
from whimbrel.serving.whole_structures import INT_MAX
from whimbrel.structures.map.listening import ENCODERS, encode_lost, wants_losses
from whimbrel.structures.map.locking import KeyLockedError
from whimbrel.structures.map.locks import CLIENT_BYTES, Owner, owner_of
from whimbrel.structures.map.record import EntryView
from whimbrel.structures.map.service import DEFAULT_SPAN, EVICTED, MapService
from whimbrel.structures.map.settings import NAME
from whimbrel.structures.map.whole import WholeMaps
from whimbrel.wire.codec import decode_request
from whimbrel.wire.custom_types import SimpleEntryView
from whimbrel.wire.fast_codec import (
    bool_response,
    data_response,
    decode_key_request,
    decode_put_request,
    empty_response,
)
from whimbrel.wire.field_codec import Fields
from whimbrel.wire.frames import RawMessage

FETCH_BATCH_MAX = 10_000
"""Most entries of one fetchKeys or fetchEntries, whatever the client asks for."""
LARGE_VALUE_BYTES = 4096
"""Values from this size on count towards the limit of reply bytes per turn."""

Try = Callable[[PartitionReplica, Namespace, Fields, PendingReply, Owner | None], object]
"""Makes the one field of the response, if it has one; a KeyLockedError makes the call wait."""


class MapHandlers(StructureHandlers):
    """The map service's requests, as clients see them."""

    def __init__(self, server: Server, kind: StructureKind) -> None:
        """Begin with no map in use."""
        super().__init__(server, kind)
        self._maps = server.member.service(MapService)
        locks = self._locks = self._maps.locks
        server.presence.watch(lambda: locks.clients, locks.client_gone)
        server.figures[f"{NAME}_locks_held"] = lambda: locks.held
        server.figures[f"{NAME}_locks_ended_total"] = lambda: locks.ended
        server.figures[f"{NAME}_locks_of_gone_clients_total"] = lambda: locks.freed
        server.figures[f"{NAME}_locks_dropped_after_split_total"] = lambda: locks.dropped
        self._attempts = self._writes()

    def operations(self) -> list[Operation[Any]]:
        """See ``StructureHandlers.operations``."""
        reads: dict[str, RunInPartition] = {
            "get": self._get,
            "containsKey": self._contains_key,
            **{name: self._reading(run) for name, run in self._reads().items()},
        }
        writes: dict[str, RunInPartition] = {
            **self._attempts,
            **self._lock_writes(),
            "put": self._put,
            "set": self._set,
            "remove": self._remove,
            "delete": self._delete,
        }
        remove = remover(self._server)
        listening: dict[str, RunOnConnection] = {
            "addEntryListener": self._listen,
            "addEntryListenerToKey": self._listen,
            "removeEntryListener": remove,
            "addPartitionLostListener": self._listen_to_losses,
            "removePartitionLostListener": remove,
        }
        whole = WholeMaps(self._server, self._maps)
        return [
            *rows_of("Map.", NAME, Scope.PARTITION, Effect.READ, reads),
            *rows_of("Map.", NAME, Scope.PARTITION, Effect.WRITE, writes),
            *rows_of("Map.", NAME, Scope.CONNECTION, Effect.NEUTRAL, listening),
            Operation("Map.flush", NAME, Scope.CONNECTION, Effect.WRITE, self._flush),
            *self._whole_rows("Map.", whole.shares, whole.calls),
        ]

    def _flush(self, connection: Connection, message: RawMessage) -> None:
        """There is no store behind a map to flush to."""
        self._server.deliver(connection, empty_response(message[4], message[5], 0))

    # -- listeners ------------------------------------------------------------------------

    def _listen(self, connection: Connection, message: RawMessage) -> None:
        name, fields = decode_request(message)
        listener = Listener(
            connection,
            message[5],
            self._named(fields["name"]),
            ENCODERS[name, fields["include_value"]],
            fields["local_only"],
            wants_entries(fields["listener_flags"], fields.get("key")),
        )
        register(self._server, listener, message)

    def _listen_to_losses(self, connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        wants = wants_losses(self._registry, self._named(fields["name"]))
        listener = Listener(connection, message[5], GRID, encode_lost, fields["local_only"], wants)
        register(self._server, listener, message)

    # -- single keys, short cuts: where the key's lock stops one, it goes the long way ----------

    def _get(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        raw, key = decode_key_request(message[0], message[3])
        value = self._maps.get(partition, self._namespaces.get(raw) or self._namespace(raw), key)
        origin.out.append(data_response(message[4], message[5], 0, value))
        if value is not None and len(value) > LARGE_VALUE_BYTES:
            origin.out_bytes += len(value)
        if not origin.dirty:
            self._server.mark(origin)

    def _contains_key(
        self, origin: Origin, partition: PartitionReplica, message: RawMessage
    ) -> None:
        raw, key = decode_key_request(message[0], message[3])
        found = self._maps.contains_key(partition, self._namespace(raw), key)
        self._server.deliver(origin, bool_response(message[4], message[5], 0, found))

    def _put(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        raw, key, value, ttl_ms = decode_put_request(message[0], message[3])
        namespace = self._namespaces.get(raw) or self._namespace(raw)
        if namespace not in self._used:
            self._use(namespace)
        reply = self._begin(origin, message)
        try:
            old = self._maps.put(partition, namespace, key, value, reply, ttl_ms)
        except KeyLockedError:
            self._attempts["put"](origin, partition, message)
            return
        self._finish(origin, message, reply, data_response(message[4], message[5], 0, old))

    def _set(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        raw, key, value, ttl_ms = decode_put_request(message[0], message[3])
        namespace = self._namespaces.get(raw) or self._namespace(raw)
        if namespace not in self._used:
            self._use(namespace)
        reply = self._begin(origin, message)
        try:
            self._maps.set(partition, namespace, key, value, reply, ttl_ms)
        except KeyLockedError:
            self._attempts["set"](origin, partition, message)
            return
        self._finish(origin, message, reply, empty_response(message[4], message[5], 0))

    def _remove(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        raw, key = decode_key_request(message[0], message[3])
        reply = self._begin(origin, message)
        try:
            old = self._maps.remove(partition, self._namespace(raw), key, reply)
        except KeyLockedError:
            self._attempts["remove"](origin, partition, message)
            return
        self._finish(origin, message, reply, data_response(message[4], message[5], 0, old))

    def _delete(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        raw, key = decode_key_request(message[0], message[3])
        reply = self._begin(origin, message)
        try:
            gone = self._maps.remove(partition, self._namespace(raw), key, reply) is not None
        except KeyLockedError:
            self._attempts["delete"](origin, partition, message)
            return
        self._finish(origin, message, reply, bool_response(message[4], message[5], 0, gone))

    # -- by the table ---------------------------------------------------------------------

    def _reads(self) -> dict[str, Read]:
        maps = self._maps

        def entry_view(p: PartitionReplica, n: Namespace, f: Fields) -> dict[str, Any]:
            view = maps.entry_view(p, n, f["key"])
            return {
                "response": None if view is None else _client_view(view),
                "max_idle": -1 if view is None else view.max_idle_ms,
            }

        def fetch_keys(p: PartitionReplica, n: Namespace, f: Fields) -> dict[str, Any]:
            cursor, found = self._fetch(p, n, f)
            return {"iteration_pointers": _pointers(cursor), "keys": [key for key, _ in found]}

        def fetch_entries(p: PartitionReplica, n: Namespace, f: Fields) -> dict[str, Any]:
            cursor, found = self._fetch(p, n, f)
            return {"iteration_pointers": _pointers(cursor), "entries": found}

        return {
            "getAll": lambda p, n, f: {"response": maps.get_all(p, n, f["keys"])},
            "getEntryView": entry_view,
            "fetchKeys": fetch_keys,
            "fetchEntries": fetch_entries,
            "isLocked": lambda p, n, f: {"response": self._locks.is_locked(p, n, f["key"])},
        }

    def _fetch(
        self, partition: PartitionReplica, namespace: Namespace, fields: Fields
    ) -> tuple[int, list[tuple[bytes, bytes]]]:
        """The next entries of an iteration; its pointers are opaque to clients."""
        batch = fields["batch"]
        if batch < 1:
            raise UsageError(f"a batch has at least one entry, not {batch}")
        cursor = _cursor(fields["iteration_pointers"])
        return self._maps.fetch_entries(partition, namespace, cursor, min(batch, FETCH_BATCH_MAX))

    def _writes(self) -> dict[str, RunInPartition]:
        """Writes of entries, those that have a short cut among them."""
        maps = self._maps

        def put(
            p: PartitionReplica, n: Namespace, f: Fields, r: PendingReply, o: Owner | None
        ) -> bytes | None:
            return maps.put(p, n, f["key"], f["value"], r, *_spans(f), o)

        def put_if_absent(
            p: PartitionReplica, n: Namespace, f: Fields, r: PendingReply, o: Owner | None
        ) -> bytes | None:
            return maps.put_if_absent(p, n, f["key"], f["value"], r, *_spans(f), o)

        def store(
            p: PartitionReplica, n: Namespace, f: Fields, r: PendingReply, o: Owner | None
        ) -> bool:
            """Transient or not is the same here: there is no store behind a map."""
            maps.set(p, n, f["key"], f["value"], r, *_spans(f), o)
            return True

        def remove(
            p: PartitionReplica, n: Namespace, f: Fields, r: PendingReply, o: Owner | None
        ) -> bool:
            return maps.remove(p, n, f["key"], r, owner=o) is not None

        answering: tuple[tuple[str, Try], ...] = (
            ("put", put),
            ("remove", lambda p, n, f, r, o: maps.remove(p, n, f["key"], r, owner=o)),
            ("delete", remove),
            ("putIfAbsent", put_if_absent),
            ("putWithMaxIdle", put),
            ("putIfAbsentWithMaxIdle", put_if_absent),
            ("tryPut", store),
            ("tryRemove", remove),
            ("replace", lambda p, n, f, r, o: maps.replace(p, n, f["key"], f["value"], r, o)),
            ("replaceIfSame", lambda p, n, f, r, o: maps.replace_if_same(
                p, n, f["key"], f["test_value"], f["value"], r, o)),
            ("removeIfSame", lambda p, n, f, r, o: maps.remove_if_same(
                p, n, f["key"], f["value"], r, o)),
            ("setTtl", lambda p, n, f, r, o: maps.set_ttl(p, n, f["key"], f["ttl"], r, o)),
        )  # fmt: skip
        silent = ("set", "putTransient", "setWithMaxIdle", "putTransientWithMaxIdle")
        return {
            **{name: self._attempt(run) for name, run in answering},
            **{name: self._attempt(store, is_silent=True) for name in silent},
            "evict": self._attempt(
                lambda p, n, f, r, o: maps.remove(p, n, f["key"], r, EVICTED, o) is not None,
                is_patient=False,
            ),
            "putAll": self._writing(
                lambda p, n, f, r: maps.put_all(p, n, f["entries"], r), is_silent=True
            ),
        }

    # -- locks ----------------------------------------------------------------------------

    def _lock_writes(self) -> dict[str, RunInPartition]:
        locks = self._locks

        def lock(
            p: PartitionReplica, n: Namespace, f: Fields, r: PendingReply, o: Owner | None
        ) -> bool:
            owner = _known(o)
            self._server.presence.seen(owner[:CLIENT_BYTES])
            lease_ms = f["lease"] if "lease" in f else f["ttl"]
            locks.lock(p, n, f["key"], owner, lease_ms, f["reference_id"], r)
            return True

        def unlock(
            p: PartitionReplica, n: Namespace, f: Fields, r: PendingReply, o: Owner | None
        ) -> None:
            locks.unlock(p, n, f["key"], _known(o), f["reference_id"], r)

        return {
            "lock": self._attempt(lock, is_silent=True),
            "tryLock": self._attempt(lock),
            "unlock": self._attempt(unlock, is_silent=True),
            "forceUnlock": self._writing(
                lambda p, n, f, r: locks.force_unlock(p, n, f["key"], r), is_silent=True
            ),
        }

    def _attempt(
        self, run: Try, *, is_silent: bool = False, is_patient: bool = True
    ) -> RunInPartition:
        """A call that waits while another holds the lock of its key: as long as its ``timeout``
        says, or for ever where it has none. False is the answer of one that does not wait longer.
        """

        def attempt(origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
            _, fields = decode_request(message)
            namespace = self._named(fields["name"])
            self._use(namespace)
            reply = self._begin(origin, message)
            try:
                result = run(partition, namespace, fields, reply, _owner(origin, fields))
            except KeyLockedError as locked:
                timeout_ms = fields.get("timeout")
                has_end = timeout_ms is not None or not is_patient
                given_up = answer(message, response=False) if has_end else b""
                if has_end and (timeout_ms is None or timeout_ms <= 0):
                    self._server.deliver(origin, given_up)
                    return
                wait_ms = FOR_EVER_MS if timeout_ms is None else timeout_ms
                self._server.waits.later(
                    origin, message, partition, namespace, locked.key, wait_ms, given_up
                )
                return
            values = {} if is_silent else {"response": result}
            self._finish(origin, message, reply, answer(message, **values))

        return attempt


def _owner(origin: Origin, fields: Fields) -> Owner | None:
    """Whose request it is, as locks know owners; one without a thread is the whole client's."""
    client = origin.client_id
    if client is None or "thread_id" not in fields:
        return client
    return owner_of(client, fields["thread_id"])


def _known(owner: Owner | None) -> Owner:
    """Who may hold a lock.

    Raises:
        UsageError: The client has not said who it is, so nobody would notice its end.
    """
    if owner is None:
        raise UsageError("a client without a uuid can hold no lock")
    return owner


def _spans(fields: Fields) -> tuple[int, int]:
    """(time to live, longest idle span) in ms; many requests name the former alone, some none."""
    return fields.get("ttl", DEFAULT_SPAN), fields.get("max_idle", DEFAULT_SPAN)


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
