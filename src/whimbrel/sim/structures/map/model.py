"""The map in a run: what is called, what the answers mean, what a key must show.

Values carry the seed, the key and the number of the operation, so that any wrong read names the
operation it came from. These workloads share the clients:

* *set*: every key is written once; at the end all acknowledged keys must be there.
* *register*: a few keys, each with one writer and many readers; the order of a key's writes is
  therefore known, and reads can be judged in linear time.
* *mortal*: entries with a time to live, written once, read now and then.
* *keys*: the keys of the whole set map, gathered from all members.
* *scratch*: written in floods, and destroyed while it is written.
* *bounded*, where the profile says so: keys that are written once, into a map that evicts. What is
  gone from it is not lost, so nothing must be there at the end but what D14 says.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from whimbrel.core.ids import PartitionId, namespace_of
from whimbrel.core.partition.hashing import partition_hash, partition_of
from whimbrel.core.replication.fragments import Store
from whimbrel.core.settings import CoreSettings
from whimbrel.sim.entropy import pick
from whimbrel.sim.history import ABSENT, Ledger, Operation, Outcome, Reply
from whimbrel.sim.model import StructureModel, store_as
from whimbrel.sim.structures.configured import BOUNDED_MAP
from whimbrel.sim.world import ClientProcess, World
from whimbrel.structures.map.merging import read_hits
from whimbrel.structures.map.policies import DISCARD, PASS_THROUGH, PUT_IF_ABSENT
from whimbrel.structures.map.record import RECORD_BYTES, split_key
from whimbrel.structures.map.settings import MapSettings
from whimbrel.structures.map.store import MapStore
from whimbrel.wire import codec
from whimbrel.wire.frames import NULL, RawMessage

SET_MAP = "sim.set"
REGISTER_MAP = "sim.register"
MORTAL_MAP = "sim.mortal"
SCRATCH_MAP = "sim.scratch"
WRITTEN_AGAIN = "a client writes again after an indeterminate outcome"
LIFE_MS = (400, 2_000, 9_000)
"""Times to live that mortal entries get."""
SCRATCH_WRITES = 6
"""Writes to the scratch map before it is destroyed."""
FINAL_READS_MAX = 150
BOUNDED_READS = 0.4
"""Of the calls on the bounded map; the others write."""
EVICTS = "evicts"
"""In place of a merge policy: whatever that says, what comes and what was there may be evicted."""

_KEY = struct.Struct(">iiq")
_LONG_TYPE = -8
_VALUE = struct.Struct(">iiiqqi")
_BYTES_TYPE = -12
_LISTENED_EVENTS = 1 | 2 | 4 | 16 | 128
"""Added, removed, updated, evicted, expired."""
_REMOVED_EVENTS = 2 | 16 | 128
"""Entry events that mean that the key is gone: removed, evicted, expired."""
CALLS = {
    "get": "Map.get",
    "put": "Map.put",
    "set": "Map.set",
    "remove": "Map.remove",
    "delete": "Map.delete",
    "put_if_absent": "Map.putIfAbsent",
    "replace": "Map.replace",
}
REMOVALS = ("remove", "delete")
RETURNS_OLD = ("put", "remove", "put_if_absent", "replace")


def key_data(number: int) -> bytes:
    """A key as the official client would serialise a long."""
    return _KEY.pack(0, _LONG_TYPE, number)


def value_data(seed: int, key: int, number: int, padding: int) -> bytes:
    """A value that says where it comes from; ``padding`` is a number of bytes."""
    size = 20 + padding
    return _VALUE.pack(0, _BYTES_TYPE, size, seed, key, number) + bytes(padding)


def value_origin(data: bytes) -> tuple[int, int, int] | None:
    """(seed, key, operation number) of a value; None when it is not one of ours."""
    if len(data) < _VALUE.size:
        return None
    _, kind, size, seed, key, number = _VALUE.unpack_from(data)
    if kind != _BYTES_TYPE or len(data) != 12 + size:
        return None
    return seed, key, number


def store_of(store: Store) -> MapStore:
    """A map's store; see ``store_as``."""
    return store_as(MapStore, store)


class KeyLedger(Ledger):
    """Everything that happened to one key."""

    def __init__(self, map_name: str, key: int, partition_count: int) -> None:
        self.key = key
        self.data = key_data(key)
        self.stored = split_key(self.data)[1]
        """The key as stores know it."""
        self.life_ms = -1
        """Time to live that a write gives the entry; -1 for none."""
        self.newest_seen: Operation | None = None
        """The read that has returned the newest value so far."""
        pid = PartitionId(partition_of(partition_hash(self.data), partition_count))
        is_judged = map_name in (SET_MAP, REGISTER_MAP)
        super().__init__(f"{map_name}[{key}]", namespace_of("map", map_name), pid, is_judged)
        self.is_written_once = map_name == SET_MAP

    def is_allowed(self, effect: int) -> bool:
        """Whether the key may show this effect when nothing runs."""
        if effect == (ABSENT if self.acked is None else self.acked.effect):
            return True
        return any(write.effect == effect for write in self.unknown)

    def number_in(self, store: Store | None) -> int:
        """Operation number of the key's value, ABSENT for none, -1 for a foreign one."""
        record = None if store is None else store_of(store).records.get(self.stored)
        if record is None:
            return ABSENT
        origin = value_origin(record[RECORD_BYTES:])
        return -1 if origin is None else origin[2]

    def lacks(self, store: Store | None) -> bool:
        """Whether the value is older than the newest acknowledged one, and not allowed."""
        number = self.number_in(store)
        newest = 0 if self.acked is None else self.acked.number
        return number < newest and not self.is_allowed(number)

    def is_right(self, store: Store | None) -> bool:
        """Whether the value is the last acknowledged one, or an indeterminate one."""
        return self.is_allowed(self.number_in(store))

    def shows(self, store: Store | None, operation: Operation) -> bool:
        """Whether the value is the one that this operation wrote."""
        return self.number_in(store) == operation.number

    def is_absent(self, store: Store | None) -> bool:
        """Whether there is no value."""
        return self.number_in(store) == ABSENT

    def shown(self, store: Store | None) -> str:
        """The number of the write whose value is there."""
        return str(self.number_in(store) or "nothing")


class MapOperation(Operation):
    """A call on one key."""

    ledger: KeyLedger

    def __init__(
        self, client: str, kind: str, ledger: KeyLedger, number: int, invoked_us: int
    ) -> None:
        super().__init__(client, kind, ledger, number, invoked_us)
        self.message = CALLS[kind]
        self.value = b""
        self.floor = ledger.acked
        """The newest write of the key that was acknowledged before this operation began."""
        if kind in REMOVALS:
            self.effect = ABSENT

    def request(self, correlation: int, flags: int) -> bytes:
        """The request of the client protocol."""
        ledger = self.ledger
        fields: dict[str, Any] = {"name": ledger.name, "key": ledger.data, "thread_id": 1}
        if not self.is_read and self.kind not in REMOVALS:
            fields["value"] = self.value
            if self.kind != "replace":
                fields["ttl"] = ledger.life_ms
        return codec.encode_request(self.message, correlation, ledger.partition_id, flags, **fields)

    def decode(self, message: RawMessage) -> bytes | None:
        """The value that is returned; None when there is none."""
        if not (self.is_read or self.kind in RETURNS_OLD):
            return None
        buffer, frames = message[0], message[3]
        start = frames[2]
        is_null = buffer[start - 1] & (NULL >> 8)
        return None if is_null else buffer[start : frames[3]]

    @property
    def had_effect(self) -> bool:
        """Whether the condition of a conditional write held."""
        if self.kind == "put_if_absent":
            return self.seen == ABSENT
        return self.kind != "replace" or self.seen != ABSENT


class MapRead(MapOperation):
    """A read of one key."""

    is_read = True


class MapScan(Operation):
    """A call for the keys of a whole map."""

    is_read = True
    message = "Map.keySet"

    def __init__(
        self, client: str, ledger: KeyLedger, invoked_us: int, expected: tuple[bytes, ...]
    ) -> None:
        super().__init__(client, "keys", ledger, 0, invoked_us)
        self.expected = expected
        """The keys that must be returned: those acknowledged when it began."""
        self.keys: list[bytes] = []
        """Those that are returned."""

    def request(self, correlation: int, flags: int) -> bytes:
        """The request, to any member; what backups say is of no use for it."""
        return codec.encode_request(self.message, correlation, -1, 0, name=self.ledger.name)

    def decode(self, message: RawMessage) -> list[bytes]:
        """The keys."""
        keys: list[bytes] = codec.decode_response(message)[1]["response"]
        return keys


class MapModel(StructureModel):
    """Draws calls on maps and books their answers."""

    kind = "map"
    service_name = "hz:impl:mapService"
    names = (SET_MAP, REGISTER_MAP)
    doomed_name = SCRATCH_MAP
    listener = "Map.addEntryListener"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.keys: dict[tuple[str, int], KeyLedger] = {}
        self._random: random.Random = world.entropy.of("workload")
        self._names = list(world.plan.weights)
        self._weights = list(world.plan.weights.values())
        self._drawn = dict.fromkeys((SET_MAP, MORTAL_MAP, SCRATCH_MAP, BOUNDED_MAP), 0)
        """Keys of each map so far, those that were never written included."""
        self._scratch_held: dict[KeyLedger, None] = {}
        """Keys of the scratch map that were written for certain and not destroyed."""
        self._set_share = pick(self._random, (0.2, 0.5, 0.8))
        self._bounded_share = world.plan.profile.bounded_share

    def key(self, map_name: str, key: int) -> KeyLedger:
        """The ledger of a key, made when it is first asked for."""
        ledger = self.keys.get((map_name, key))
        if ledger is None:
            count = self.world.plan.settings.partition_count
            ledger = self.keys[map_name, key] = KeyLedger(map_name, key, count)
            self.world.history.add(ledger)
        return ledger

    def _new_key(self, map_name: str) -> KeyLedger:
        self._drawn[map_name] += 1
        return self.key(map_name, self._drawn[map_name])

    # -- calls ----------------------------------------------------------------------------

    def draw(self, client: ClientProcess) -> Operation:
        """A key of the set map, or what the weights of the run say; of the bounded map before."""
        if self._bounded_share and self._random.random() < self._bounded_share:
            return self._bounded(client)
        if self._random.random() < self._set_share:
            return self.write(client, self._new_key(SET_MAP))
        kind = self._random.choices(self._names, self._weights)[0]
        if kind == "keys":
            return self.scan(client)
        if kind != "mortal":
            return self._register(client, kind)
        if self._drawn[MORTAL_MAP] and self._random.random() < 0.6:
            key = 1 + self._random.randrange(self._drawn[MORTAL_MAP])
            return self.read(client, self.key(MORTAL_MAP, key))
        ledger = self._new_key(MORTAL_MAP)
        return self.write(client, ledger, life_ms=pick(self._random, LIFE_MS))

    def _bounded(self, client: ClientProcess) -> Operation:
        """A new key, or a read of one that may be there still."""
        count = self._drawn[BOUNDED_MAP]
        if count and self._random.random() < BOUNDED_READS:
            return self.read(client, self.key(BOUNDED_MAP, 1 + self._random.randrange(count)))
        return self.write(client, self._new_key(BOUNDED_MAP))

    def scan(self, client: ClientProcess) -> MapScan:
        """Ask for the keys of the whole set map."""
        expected = tuple(
            known.data
            for (name, _), known in self.keys.items()
            if name == SET_MAP and known.acked is not None
        )
        whole = KeyLedger(SET_MAP, 0, self.world.plan.settings.partition_count)
        return MapScan(client.name, whole, self.world.now_us, expected)

    def _register(self, client: ClientProcess, kind: str) -> Operation:
        key = self._random.randrange(self.world.plan.register_keys)
        if kind == "get":
            return self.read(client, self.key(REGISTER_MAP, key))
        # One writer a key: the client takes the nearest key that is its own.
        clients = len(self.world.clients)
        key = key - key % clients + client.index
        return self.write(client, self.key(REGISTER_MAP, key), kind)

    def read(self, client: ClientProcess, ledger: Ledger) -> MapOperation:
        """A get."""
        key = _key(ledger)
        return MapRead(client.name, "get", key, len(key.changes), self.world.now_us)

    def write(
        self, client: ClientProcess, ledger: Ledger, kind: str = "set", life_ms: int = -1
    ) -> MapOperation:
        """A set, or another write of this kind."""
        key, plan = _key(ledger), self.world.plan
        number = len(key.changes) + 1
        operation = MapOperation(client.name, kind, key, number, self.world.now_us)
        key.life_ms = life_ms
        if key.changes and key.changes[-1].outcome is Outcome.UNKNOWN:
            self.world.sometimes(WRITTEN_AGAIN)
        key.changes.append(operation)
        padding = self._random.randrange(plan.value_bytes_max)
        operation.value = value_data(plan.seed, key.key, number, padding)
        return operation

    def draw_target(self) -> Ledger:
        """A new key, mostly of the set map."""
        return self._new_key(SCRATCH_MAP if self._random.random() < 0.3 else SET_MAP)

    def draw_doomed(self) -> list[Ledger]:
        """New keys of the scratch map."""
        return [self._new_key(SCRATCH_MAP) for _ in range(SCRATCH_WRITES)]

    def doom(self) -> Callable[[], None]:
        """What the scratch map holds now must be gone then."""
        return self.gone_once_destroyed(self._scratch_held)

    def final_reads(self) -> list[Ledger]:
        """The registers, and a share of the set map."""
        registers = [key for key in self.keys.values() if key.name == REGISTER_MAP]
        sets = [key for key in self.keys.values() if key.name == SET_MAP and key.changes]
        step = max(1, len(sets) // FINAL_READS_MAX)
        return [*registers[:FINAL_READS_MAX], *sets[::step]]

    # -- answers --------------------------------------------------------------------------

    def ended(self, operation: Operation, reply: Reply) -> None:
        """Book the value or the keys that were seen, and a write."""
        if isinstance(operation, MapScan):
            operation.keys = reply.answer or []
            return
        ledger = _key(operation.ledger)
        is_ok = reply.outcome is Outcome.OK
        if reply.answer is not None:
            self._see(operation, ledger, reply.answer)
        elif is_ok and (operation.is_read or operation.kind in RETURNS_OLD):
            operation.seen = ABSENT
        if not operation.is_read:
            self.world.history.book(operation)
        if ledger.name == SCRATCH_MAP and is_ok and reply.attempts == 1:
            self._scratch_held[ledger] = None

    def _see(self, operation: Operation, ledger: KeyLedger, value: bytes) -> None:
        origin = value_origin(value)
        if origin is None or origin[:2] != (self.world.plan.seed, ledger.key):
            self.world.violation(
                "D2", f"{operation!r} returned a value that nobody wrote there: {origin}"
            )
            return
        operation.seen = origin[2]

    def listen(self, correlation: int, local_only: bool) -> bytes:
        """To all changes of the register map."""
        return codec.encode_request(
            self.listener,
            correlation,
            name=REGISTER_MAP,
            include_value=True,
            listener_flags=_LISTENED_EVENTS,
            local_only=local_only,
        )

    def heard(self, client: ClientProcess, message: RawMessage) -> None:
        """The entry listener was told of a change: the number of the write, 0 for a removal."""
        _, _, fields = codec.decode_event(message)
        if fields["key"] is None:
            return
        key: int = _KEY.unpack(fields["key"])[2]
        origin = value_origin(fields["value"]) if fields["value"] is not None else None
        gone = fields["event_type"] & _REMOVED_EVENTS
        number = 0 if gone or origin is None else origin[2]
        self.world.tell("listened", client, key, number)

    # -- what members hold ----------------------------------------------------------------

    @staticmethod
    def content(store: Store) -> dict[bytes, bytes]:
        """The records."""
        return store_of(store).records

    @staticmethod
    def merge_policy(settings: CoreSettings, name: str) -> str:
        """See ``StructureModel.merge_policy``; EVICTS for a map that does."""
        found = settings.structure(MapSettings, name)
        return EVICTS if found.max_size else found.merge_policy

    @staticmethod
    def merge_problem(
        policy: str, is_merged: bool, before: Any, store: Store | None, chunk: bytes
    ) -> str:
        """Of two values of a key either may be the later one, or the one that was read more often.

        Entries with a time to live or to idle are left out.
        """
        incoming = MapStore()
        incoming.ingest(chunk[read_hits(chunk)[1] :])
        now = {} if store is None else store_of(store).records
        for key in incoming.records:
            if key not in incoming.timings:
                problem = _entry_problem(
                    policy,
                    is_merged,
                    _value((before or {}).get(key)),
                    _value(now.get(key)),
                    _value(incoming.records[key]),
                )
                if problem:
                    return problem
        return ""


def _key(ledger: Ledger) -> KeyLedger:
    if not isinstance(ledger, KeyLedger):
        raise TypeError(f"{ledger.label} is no key of a map")
    return ledger


def _value(record: bytes | None) -> bytes | None:
    return None if record is None else record[RECORD_BYTES:]


def _entry_problem(
    policy: str, is_merged: bool, before: bytes | None, now: bytes | None, came: bytes | None
) -> str:
    """What a merge did to an entry and the policy does not allow; empty when it does."""
    if policy == EVICTS:
        is_known = now in (None, before, came)
        return "" if is_known else "there is a value that was on neither side"
    if policy in (PUT_IF_ABSENT, DISCARD) and before is not None and now != before:
        return "a merge replaced what was there"
    if policy == DISCARD and before is None and now is not None:
        return "an entry came along"
    if now not in (before, came):
        return "there is a value that was on neither side"
    must_come = policy == PASS_THROUGH or (policy != DISCARD and before is None)
    return "an entry did not come along" if is_merged and must_come and now != came else ""
