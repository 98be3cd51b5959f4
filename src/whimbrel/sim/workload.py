"""What clients do, and the history they leave behind.

Values carry the seed, the key, the number of the operation and its client, so that any wrong read
names the operation it came from (FN-25). These workloads share the clients:

* *set*: every key is written once; at the end all acknowledged keys must be there.
* *register*: a few keys, each with one writer and many readers; the order of a key's writes is
  therefore known, and reads can be judged in linear time.
* *mortal*: entries with a time to live, written once, read now and then.
* *keys*: the keys of the whole set map, gathered from all members.
* *extra*: floods of writes at once, and a scratch map that is destroyed while it is written.
"""

from __future__ import annotations

import enum
import random
import struct
from typing import TYPE_CHECKING

from whimbrel.core.ids import namespace_of
from whimbrel.core.partition.hashing import partition_hash, partition_of
from whimbrel.core.structures.record import split_key
from whimbrel.sim.entropy import pick
from whimbrel.sim.profile import Plan

if TYPE_CHECKING:
    from whimbrel.sim.sim_client import Reply, SimClient
    from whimbrel.sim.world import World

SET_MAP = "sim.set"
REGISTER_MAP = "sim.register"
MORTAL_MAP = "sim.mortal"
SCRATCH_MAP = "sim.scratch"
WRITTEN_AGAIN = "a client writes again after an indeterminate outcome"
SCAN_MAP = "sim.scan"
"""Stands for "no single key" in the history."""
LIFE_MS = (400, 2_000, 9_000)
"""Times to live that mortal entries get."""
SCRATCH_WRITES = 6
"""Writes to the scratch map before it is destroyed."""
EXTRA_MAX = 1_000
"""Writes beyond those of sequential clients that may be under way at once."""

_KEY = struct.Struct(">iiq")
_LONG_TYPE = -8
_VALUE = struct.Struct(">iiiqqi")
_BYTES_TYPE = -12

ABSENT = 0
"""Operation number that stands for "the key holds nothing"."""


class Outcome(enum.StrEnum):
    """How an operation ended, as its client knows it."""

    PENDING = "pending"
    OK = "ok"
    FAILED = "failed"
    """Certainly without effect."""
    UNKNOWN = "unknown"


class Operation:
    """One operation in the history."""

    __slots__ = (
        "client",
        "completed_us",
        "effect",
        "floor",
        "invoked_us",
        "is_extra",
        "key",
        "kind",
        "life_ms",
        "map",
        "number",
        "outcome",
        "seen",
    )

    def __init__(
        self, client: str, kind: str, map_name: str, key: int, number: int, invoked_us: int
    ) -> None:
        self.client = client
        self.kind = kind
        self.map = map_name
        self.key = key
        self.number = number
        """Of the write, per key, from 1; for a read the writes invoked when it began."""
        self.effect = number
        """What the key holds afterwards if the write takes effect: its number, or ABSENT."""
        self.invoked_us = invoked_us
        self.completed_us = -1
        self.is_extra = False
        """Not one of its client's sequence: nothing follows from its end."""
        self.life_ms = -1
        """Time to live that the entry gets; -1 for none."""
        self.outcome = Outcome.PENDING
        self.floor: Operation | None = None
        """The newest write of the key that was acknowledged before this operation began."""
        self.seen: int | None = None
        """Operation number of the value that was returned; None when nothing was."""

    def __repr__(self) -> str:
        return (
            f"{self.client} {self.kind} {self.map}[{self.key}] #{self.number} "
            f"{self.invoked_us / 1e6:.3f}..{self.completed_us / 1e6:.3f} "
            f"{self.outcome.value} saw {self.seen}"
        )


class KeyHistory:
    """Everything that happened to one key, in the order of invocation."""

    __slots__ = (
        "acked",
        "data",
        "is_judged",
        "map",
        "namespace",
        "newest_seen",
        "partition_id",
        "reads",
        "stored",
        "unknown",
        "writes",
    )

    def __init__(self, map_name: str, data: bytes, partition_id: int) -> None:
        self.map = map_name
        self.is_judged = map_name in (SET_MAP, REGISTER_MAP)
        """Whether the key must hold what was acknowledged, as long as nothing else is written."""
        self.namespace = namespace_of("map", map_name)
        self.data = data
        self.stored = split_key(data)[1]
        """The key as stores know it."""
        self.partition_id = partition_id
        self.writes: list[Operation] = []
        self.unknown: list[Operation] = []
        """Those of ``writes`` whose outcome nobody knows; they may take effect at any time."""
        self.reads = 0
        """Reads begun so far."""
        self.newest_seen: Operation | None = None
        """The read that has returned the newest value so far."""
        self.acked: Operation | None = None
        """The newest acknowledged write."""

    def is_allowed(self, effect: int) -> bool:
        """Whether the key may show this effect when nothing runs."""
        acked = self.acked
        if effect == (ABSENT if acked is None else acked.effect):
            return True
        return any(write.effect == effect for write in self.unknown)


def key_data(number: int) -> bytes:
    """A key as the official client would serialise a long."""
    return _KEY.pack(0, _LONG_TYPE, number)


def key_number(data: bytes) -> int:
    """The number of which ``key_data`` made a key."""
    number: int = _KEY.unpack(data)[2]
    return number


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


class History:
    """All operations of a run, by key."""

    def __init__(self, seed: int, partition_count: int) -> None:
        self.seed = seed
        self.keys: dict[tuple[str, int], KeyHistory] = {}
        self.by_partition: list[list[KeyHistory]] = [[] for _ in range(partition_count)]
        self.operations = 0
        self.acked_writes = 0
        self.unknown_writes = 0
        self.failed = 0
        self._partition_count = partition_count

    def key(self, map_name: str, key: int) -> KeyHistory:
        """The history of a key, made when it is first asked for."""
        history = self.keys.get((map_name, key))
        if history is None:
            data = key_data(key)
            pid = partition_of(partition_hash(data), self._partition_count)
            history = self.keys[map_name, key] = KeyHistory(map_name, data, pid)
            if history.is_judged:
                self.by_partition[pid].append(history)
        return history


READS = ("get", "keys")
REMOVALS = ("remove", "delete")
RETURNS_OLD = ("put", "remove", "put_if_absent", "replace")


class Workload:
    """Feeds every client with one operation after the other and books the answers."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.history = History(plan.seed, plan.settings.partition_count)
        self.is_running = False
        self._random: random.Random = world.entropy.of("workload")
        self._names = list(plan.weights)
        self._weights = [plan.weights[name] for name in self._names]
        self._set_keys = 0
        self._to_read: dict[str, list[tuple[str, int]]] = {}
        """Client to the keys it still reads at the end."""
        self._mortal_keys = 0
        self._scratch_keys = 0
        self._scratch_held: dict[int, None] = {}
        """Keys of the scratch map that were written for certain and not destroyed."""
        self.destroyed_keys: dict[int, None] = {}
        """Keys of the scratch map that must never be seen again."""
        self._scans: dict[Operation, tuple[bytes, ...]] = {}
        """Whole-map reads under way to the keys that were acknowledged when they began."""
        self.extra_count = 0
        """Extra writes that have not ended."""
        self.set_share = pick(self._random, (0.2, 0.5, 0.8))

    def start(self) -> None:
        """Let every client begin; each is a sequential process."""
        self.is_running = True
        for client in self.world.clients:
            if not client.is_busy:
                self._next(client)

    def stop(self) -> None:
        """No further operation begins; those in flight end as they may."""
        self.is_running = False

    def _next(self, client: SimClient) -> None:
        mean_us = 1_000_000 * len(self.world.clients) // self.plan.operations_per_s
        pause_us = int(self._random.expovariate(1.0) * mean_us)
        client.is_busy = True
        self.world.scheduler.after(pause_us, self._begin, client)

    def _begin(self, client: SimClient) -> None:
        if not self.is_running:
            client.is_busy = False
            return
        if self._random.random() < self.set_share:
            self._set_keys += 1
            operation = self._write(client, "set", SET_MAP, self._set_keys)
        else:
            operation = self._other(client)
        self.world.history_began(operation)

    def _other(self, client: SimClient) -> Operation:
        kind = self._random.choices(self._names, self._weights)[0]
        if kind == "keys":
            return self._scan(client)
        if kind != "mortal":
            return self._register(client, kind)
        if self._mortal_keys and self._random.random() < 0.6:
            key = 1 + self._random.randrange(self._mortal_keys)
            return self.read(client, MORTAL_MAP, key)
        self._mortal_keys += 1
        life_ms = pick(self._random, LIFE_MS)
        return self._write(client, "set", MORTAL_MAP, self._mortal_keys, life_ms)

    def _scan(self, client: SimClient) -> Operation:
        """Ask for the keys of the whole set map."""
        history = self.history.key(SCAN_MAP, 0)
        operation = Operation(client.name, "keys", SET_MAP, 0, 0, self.world.now_us)
        self._scans[operation] = tuple(
            known.data
            for (name, _), known in self.history.keys.items()
            if name == SET_MAP and known.acked is not None
        )
        client.call("Map.keySet", operation, history)
        self.history.operations += 1
        return operation

    def expected_keys(self, operation: Operation) -> tuple[bytes, ...]:
        """The keys that a whole-map read must return: those acknowledged when it began."""
        return self._scans[operation]

    def flood(self, count: int) -> None:
        """Begin many writes at once, on top of what the clients do."""
        for _ in range(count if self.is_running else 0):
            client = pick(self._random, self.world.clients)
            if self._random.random() < 0.3:
                self._scratch_keys += 1
                self._extra(client, SCRATCH_MAP, self._scratch_keys)
            else:
                self._set_keys += 1
                self._extra(client, SET_MAP, self._set_keys)

    def destroy_scratch(self) -> None:
        """Write the scratch map and destroy it a moment later."""
        if not self.is_running:
            return
        client = pick(self._random, self.world.clients)
        for _ in range(SCRATCH_WRITES):
            self._scratch_keys += 1
            self._extra(client, SCRATCH_MAP, self._scratch_keys)
        delay_us = self._random.randrange(300_000)
        self.world.scheduler.after(delay_us, self._destroy, client)

    def _destroy(self, client: SimClient) -> None:
        client.destroy(SCRATCH_MAP, tuple(self._scratch_held))

    def destroyed(self, keys: tuple[int, ...]) -> None:
        """The scratch map was destroyed after these keys had been written."""
        for key in keys:
            self._scratch_held.pop(key, None)
            self.destroyed_keys[key] = None

    def _extra(self, client: SimClient, map_name: str, key: int) -> None:
        if self.extra_count < EXTRA_MAX:
            self.extra_count += 1
            self.world.history_began(self._write(client, "set", map_name, key, is_extra=True))

    def _register(self, client: SimClient, kind: str) -> Operation:
        key = self._random.randrange(self.plan.register_keys)
        if kind in READS:
            return self.read(client, REGISTER_MAP, key)
        # One writer a key: the client takes the nearest key that is its own.
        clients = len(self.world.clients)
        key = key - key % clients + client.index
        return self._write(client, kind, REGISTER_MAP, key)

    def read_finally(self, keys: list[tuple[str, int]]) -> None:
        """Let the clients read these keys, one after the other, each its share."""
        clients = self.world.clients
        for client in clients:
            self._to_read[client.name] = keys[client.index :: len(clients)][::-1]
            self._read_next(client)

    def _read_next(self, client: SimClient) -> None:
        left = self._to_read.get(client.name)
        client.is_busy = bool(left)
        if left:
            self.world.history_began(self.read(client, *left.pop()))

    def read(self, client: SimClient, map_name: str, key: int) -> Operation:
        """Begin a read; also used for the final reads."""
        history = self.history.key(map_name, key)
        operation = Operation(
            client.name, "get", map_name, key, len(history.writes), self.world.now_us
        )
        operation.floor = history.acked
        history.reads += 1
        client.call("Map.get", operation, history)
        self.history.operations += 1
        return operation

    def _write(
        self,
        client: SimClient,
        kind: str,
        map_name: str,
        key: int,
        life_ms: int = -1,
        is_extra: bool = False,
    ) -> Operation:
        history = self.history.key(map_name, key)
        number = len(history.writes) + 1
        operation = Operation(client.name, kind, map_name, key, number, self.world.now_us)
        operation.life_ms, operation.is_extra = life_ms, is_extra
        if kind in REMOVALS:
            operation.effect = ABSENT
        operation.floor = history.acked
        if history.writes and history.writes[-1].outcome is Outcome.UNKNOWN:
            self.world.sometimes(WRITTEN_AGAIN)
        history.writes.append(operation)
        padding = self._random.randrange(self.plan.value_bytes_max)
        value = value_data(self.plan.seed, key, number, padding)
        client.call(CALLS[kind], operation, history, value)
        self.history.operations += 1
        return operation

    def ended(self, client: SimClient, operation: Operation, reply: Reply) -> None:
        """A client knows the outcome of its operation."""
        operation.completed_us = self.world.now_us
        operation.outcome = reply.outcome
        if operation.kind == "keys":
            if reply.outcome is Outcome.OK:
                self.world.watch.scanned(operation, reply.keys)
            del self._scans[operation]
        elif reply.value is not None:
            self._see(operation, reply.value)
        elif reply.outcome is Outcome.OK and (
            operation.kind in READS or operation.kind in RETURNS_OLD
        ):
            operation.seen = ABSENT
        if operation.kind not in READS:
            self._book_write(operation)
        self.world.history_ended(operation, reply)
        is_certain = reply.outcome is Outcome.OK and reply.attempts == 1
        if operation.map == SCRATCH_MAP and is_certain:
            self._scratch_held[operation.key] = None
        if operation.is_extra:
            self.extra_count -= 1
            return
        if self.is_running:
            self._next(client)
        else:
            self._read_next(client)

    def _see(self, operation: Operation, value: bytes) -> None:
        origin = value_origin(value)
        if origin is None or origin[:2] != (self.plan.seed, operation.key):
            self.world.violation(
                "D2", f"{operation!r} returned a value that nobody wrote there: {origin}"
            )
            return
        operation.seen = origin[2]

    def _book_write(self, operation: Operation) -> None:
        history = self.history.key(operation.map, operation.key)
        if operation.outcome is not Outcome.OK:
            if operation.outcome is Outcome.UNKNOWN:
                self.history.unknown_writes += 1
                history.unknown.append(operation)
            else:
                self.history.failed += 1
            return
        if not had_effect(operation):
            operation.outcome = Outcome.FAILED
            return
        self.history.acked_writes += 1
        if history.acked is None or operation.number > history.acked.number:
            history.acked = operation


def had_effect(operation: Operation) -> bool:
    """Whether an answered write changed the key (conditional ones may not have)."""
    if operation.kind == "put_if_absent":
        return operation.seen == ABSENT
    if operation.kind == "replace":
        return operation.seen != ABSENT
    return True


CALLS = {
    "put": "Map.put",
    "set": "Map.set",
    "remove": "Map.remove",
    "delete": "Map.delete",
    "put_if_absent": "Map.putIfAbsent",
    "replace": "Map.replace",
}
