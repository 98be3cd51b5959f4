"""The bulk client: moves many entries in and out of a cluster from one blocking thread.

Made for Spark tasks and tools. Writes are whole ``putAll`` messages straight to the owners of
their partitions; reads walk partitions with iteration pointers. Several calls are in flight at
once, bounded in number and bytes. Every call it makes may be repeated without harm (an entry is
put as it is, a walk goes on from its pointer), so it repeats through crashes and migrations.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from whimbrel import config
from whimbrel.client.core import FIRST_POINTER
from whimbrel.client.links import Call, ConnectionLost, Links
from whimbrel.core.ids import Address
from whimbrel.errors import (
    GridError,
    IndeterminateError,
    OperationError,
    OverloadedError,
    RetryableError,
    UsageError,
)
from whimbrel.serialization.compact import CompactSchema
from whimbrel.serialization.uuids import uuid_text
from whimbrel.wire.custom_types import ClientMember, Schema

MAP_SERVICE = "hz:impl:mapService"
CALLS_PER_LINK_MAX = 8
"""Calls in flight to one member."""
CALLS_MAX = 64
"""Calls in flight in all."""
BATCH_BYTES_MAX = 256 * 1024
"""About the longest putAll that is made; a larger single entry travels alone."""
BATCH_ENTRIES_MAX = 5_000
"""Most entries of one putAll or getAll."""
SCAN_BATCH = 2_000
"""Most entries asked for at once in a walk."""
SCAN_BATCH_FIRST = 100
"""The same, until the size of an entry is known."""
SCAN_BYTES = 512 * 1024
"""About the bytes asked for at once in a walk."""
REPEAT_FIRST_S = 0.02
REPEAT_LAST_S = 0.5
"""Pauses before a call is repeated: they double from the first to the last."""

_REPEATED = (RetryableError, OverloadedError, IndeterminateError, ConnectionLost)

Entries = Sequence[tuple[bytes, bytes]]


def parse_address(text: str | Address) -> Address:
    """An address from ``host:port``, an IPv6 host in brackets.

    Raises:
        UsageError: It is none.
    """
    if isinstance(text, Address):
        return text
    try:
        return config.parse_address(text)
    except ValueError as problem:
        raise UsageError(str(problem)) from None


class BulkClient:
    """A connection to a cluster for moving data in bulk.

    Keys and values are Data (serialised with header). Not for use by several threads at once.
    """

    def __init__(
        self,
        addresses: Sequence[str | Address],
        cluster_name: str = "dev",
        timeout_s: float = 30.0,
        client_name: str = "whimbrel-bulk",
    ) -> None:
        """Connect, authenticate and learn the members.

        Args:
            addresses: Where members may be reached, as ``host:port``; one is enough.
            cluster_name: Name of the cluster.
            timeout_s: Longest time a call may take over all its repetitions.
            client_name: What the cluster shows this client as.

        Raises:
            UsageError: No address was given, or one is malformed.
            AuthenticationError: The members belong to a cluster of another name.
            OperationError: Nobody could be reached; the text names the addresses.
        """
        if not addresses:
            raise UsageError("a client needs the address of at least one member")
        parsed = [parse_address(address) for address in addresses]
        self._links = Links(parsed, cluster_name, client_name, timeout_s)
        self._timeout_s = timeout_s
        try:
            self._links.connect()
        except BaseException:
            self._links.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections."""
        self._links.close()

    # -- the cluster ----------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        """Partitions of the cluster; never changes."""
        return len(self._links.view.owners)

    def members(self) -> list[ClientMember]:
        """The members, oldest first, as last told."""
        self._links.poll(0)
        return list(self._links.view.members.values())

    def owners(self) -> list[bytes | None]:
        """The owner's uuid per partition, as last told; None where nobody is known."""
        self._links.poll(0)
        return [self._links.view.owner_of(pid) for pid in range(self.partition_count)]

    def partition_of(self, key: bytes) -> int:
        """The partition of a key given as Data."""
        return int(self._links.view.partition_of(key))

    def partitions_of(self, keys: Sequence[bytes]) -> list[int]:
        """The partition of each of many keys given as Data."""
        return self._links.view.partitions_of(keys)

    def by_partition(self, entries: Iterable[tuple[bytes, bytes]]) -> dict[int, list[Any]]:
        """Entries grouped for ``put_all``."""
        listed = list(entries)
        groups: dict[int, list[Any]] = {}
        for pid, entry in zip(self.partitions_of([key for key, _ in listed]), listed, strict=True):
            groups.setdefault(pid, []).append(entry)
        return groups

    # -- structures and schemas -----------------------------------------------------------

    def create_map(self, name: str) -> None:
        """Make a map known to the cluster; harmless when it exists."""
        self._one("Client.createProxy", name=name, service_name=MAP_SERVICE)

    def destroy_map(self, name: str) -> None:
        """Drop a map with everything in it."""
        self._one("Client.destroyProxy", name=name, service_name=MAP_SERVICE)

    def size(self, name: str) -> int:
        """Number of entries of a map."""
        return int(self._one("Map.size", name=name)["response"])

    def clear(self, name: str) -> None:
        """Remove all entries of a map."""
        self._one("Map.clear", name=name)

    def send_schema(self, schema: CompactSchema) -> None:
        """Make a Compact schema known to every member, before records of it are written.

        Raises:
            OperationError: Some member still lacks it after ``timeout_s``; the text names it.
        """
        deadline = time.monotonic() + self._timeout_s
        pause = REPEAT_FIRST_S
        while True:
            told = self._one("Client.sendSchema", schema=Schema.of(schema))["replicated_members"]
            self._links.poll(0)
            missing = [uuid for uuid in self._links.view.members if uuid not in told]
            if not missing:
                return
            if time.monotonic() >= deadline:
                names = ", ".join(uuid_text(uuid) for uuid in missing)
                raise OperationError(f"the schema {schema.type_name!r} did not reach {names}")
            self._links.poll(pause)
            pause = min(REPEAT_LAST_S, 2 * pause)

    def fetch_schema(self, schema_id: int) -> CompactSchema | None:
        """A Compact schema that the cluster knows; None when it does not."""
        schema = self._one("Client.fetchSchema", schema_id=schema_id)["schema"]
        return None if schema is None else schema.compact()

    # -- entries --------------------------------------------------------------------------

    def put_all(self, name: str, by_partition: Mapping[int, Entries]) -> int:
        """Put entries, grouped by partition; returns how many were put.

        All are acknowledged, with their backups, when it returns.

        Raises:
            OperationError: A partition could not be written within ``timeout_s``.
        """
        return self.put_stream(name, iter((by_partition,)))

    def put_stream(self, name: str, groups: Iterator[Mapping[int, Entries]]) -> int:
        """Put groups of entries, each grouped by partition; returns how many were put.

        The next group is taken when the calls of the one before no longer fill the bounds, so
        memory holds about two groups. All entries are acknowledged, with their backups, when it
        returns.

        Raises:
            OperationError: A partition could not be written within ``timeout_s``.
        """
        plans = (plan for group in groups for plan in self._puts(name, group))
        count = 0
        for call in self._run(plans):
            count += len(call.fields["entries"])
        return count

    def _puts(self, name: str, by_partition: Mapping[int, Entries]) -> Iterator[_Plan]:
        """The putAll calls; owners take turns so that none idles while another is fed."""
        waiting = deque(
            (pid, _batches(entries, _entry_bytes)) for pid, entries in by_partition.items()
        )
        while waiting:
            pid, batches = waiting.popleft()
            batch = next(batches, None)
            if batch is not None:
                yield "Map.putAll", pid, {"name": name, "entries": batch}
                waiting.append((pid, batches))

    def get_all(self, name: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Key to value of those keys that are in the map."""
        groups: dict[int, list[bytes]] = {}
        for pid, key in zip(self.partitions_of(keys), keys, strict=True):
            groups.setdefault(pid, []).append(key)
        plans = (
            ("Map.getAll", pid, {"name": name, "keys": batch})
            for pid, group in groups.items()
            for batch in _batches(group, len)
        )
        found: dict[bytes, bytes] = {}
        for call in self._run(plans):
            found.update(call.result["response"])
        return found

    def scan(
        self, name: str, partitions: Iterable[int] | None = None, batch: int = SCAN_BATCH
    ) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
        """Walk over a map: pairs of partition and some of its entries.

        An entry that is in the map during the whole walk is given at least once. A walk goes on
        at another member when an owner fails or a partition moves.

        Args:
            name: The map.
            partitions: Partitions to walk over; all of them when None.
            batch: Entries asked for at once.

        Raises:
            OperationError: A partition could not be read within ``timeout_s``.
        """
        if batch < 1:
            raise UsageError(f"a batch has at least one entry, not {batch}")
        wanted = range(self.partition_count) if partitions is None else partitions
        further: deque[_Plan] = deque()
        size = min(batch, SCAN_BATCH_FIRST)

        def plans() -> Iterator[_Plan]:
            for pid in wanted:
                yield _fetch(name, pid, FIRST_POINTER, size)

        for call in self._run(plans(), further):
            pointers, entries = call.result["iteration_pointers"], call.result["entries"]
            if entries:
                average = sum(map(_entry_bytes, entries)) // len(entries) + 1
                size = max(1, min(batch, SCAN_BYTES // average))
            if pointers and pointers[-1][0] >= 0:
                further.append(_fetch(name, call.partition, pointers, size))
            if entries:
                yield call.partition, entries

    # -- calls ----------------------------------------------------------------------------

    def _one(self, message: str, **fields: Any) -> dict[str, Any]:
        """The result of a single call for no partition."""
        for call in self._run(iter([(message, -1, fields)])):
            return call.result
        raise OperationError(f"{message} was not answered")

    def _run(self, plans: Iterator[_Plan], further: deque[_Plan] | None = None) -> Iterator[Call]:
        """Make the planned calls, several at once; gives each back once it has succeeded.

        ``further`` holds calls that the caller adds while it takes results.
        """
        run = _Run(self._links, plans, deque() if further is None else further, self._timeout_s)
        yield from run.results()


_Plan = tuple[str, int, dict[str, Any]]
"""Message, partition, fields."""


class _Run:
    """A set of calls on its way; see ``BulkClient._run``."""

    def __init__(
        self, links: Links, plans: Iterator[_Plan], further: deque[_Plan], timeout_s: float
    ) -> None:
        self._links = links
        self._plans = plans
        self._further = further
        self._timeout_s = timeout_s
        self._done: deque[Call] = deque()
        self._in_flight: dict[int, Call] = {}
        """Calls whose outcome is open, by their identity."""
        self._held: _Plan | None = None
        """Taken from the plans, but its member has enough to do."""
        self._waiting: deque[tuple[float, Call]] = deque()
        """Calls to repeat, with the time to do it."""
        self._exhausted = False

    def results(self) -> Iterator[Call]:
        """Each call, once it has succeeded."""
        while True:
            self._start_some()
            while self._done:
                call = self._done.popleft()
                self._in_flight.pop(id(call), None)
                if call.error is None:
                    yield call
                    self._start_some()
                else:
                    self._repeat(call)
            if self._is_over():
                return
            self._links.poll(self._patience())
            self._check_deadlines()

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for call in self._in_flight.values():
            if now >= call.deadline_s and not self._done:
                raise _out_of_time(call, OperationError("no answer"), self._timeout_s)

    def _is_over(self) -> bool:
        return (
            self._exhausted
            and not self._in_flight
            and not self._waiting
            and not self._further
            and self._held is None
            and not self._done
        )

    def _patience(self) -> float:
        """How long to wait for sockets: until the next repetition at most."""
        now = time.monotonic()
        pause = min((due for due, _ in self._waiting), default=now + REPEAT_LAST_S) - now
        return max(0.0, min(REPEAT_LAST_S, pause))

    def _start_some(self) -> None:
        """Send what is due and what fits into the bounds."""
        now = time.monotonic()
        for _ in range(len(self._waiting)):
            due, call = self._waiting.popleft()
            if due <= now:
                self._send(call)
            else:
                self._waiting.append((due, call))
        while len(self._in_flight) + len(self._waiting) < CALLS_MAX:
            plan = self._next_plan()
            if plan is None:
                return
            if self._links.load(plan[1]) >= CALLS_PER_LINK_MAX:
                self._held = plan
                return
            message, partition, fields = plan
            call = Call(message, partition, fields, self._done)
            call.deadline_s = now + self._timeout_s
            self._send(call)

    def _next_plan(self) -> _Plan | None:
        held, self._held = self._held, None
        if held is not None:
            return held
        if self._further:
            return self._further.popleft()
        plan = None if self._exhausted else next(self._plans, None)
        self._exhausted = plan is None
        return plan

    def _send(self, call: Call) -> None:
        self._in_flight[id(call)] = call
        if not self._links.send(call) and call not in self._done:
            why = f"no member can be reached: {self._links.failures()}"
            call.finish({}, ConnectionLost(why))

    def _repeat(self, call: Call) -> None:
        """Plan the call again, or raise its error when that is pointless or too late."""
        error = call.error or OperationError("unknown")
        now = time.monotonic()
        if not isinstance(error, _REPEATED):
            raise error
        if now >= call.deadline_s:
            raise _out_of_time(call, error, self._timeout_s)
        pause = min(REPEAT_LAST_S, REPEAT_FIRST_S * 2 ** min(call.attempts, 10))
        call.attempts += 1
        self._waiting.append((now + pause, call))


def _out_of_time(call: Call, error: GridError, timeout_s: float) -> OperationError:
    where = "" if call.partition < 0 else f" for partition {call.partition}"
    return OperationError(f"{call.message}{where} did not succeed within {timeout_s:g} s: {error}")


def _fetch(name: str, pid: int, pointers: list[tuple[int, int]], batch: int) -> _Plan:
    fields = {"name": name, "iteration_pointers": pointers, "batch": batch}
    return "Map.fetchEntries", pid, fields


def _entry_bytes(entry: tuple[bytes, bytes]) -> int:
    return len(entry[0]) + len(entry[1])


def _batches(items: Sequence[Any], size_of: Callable[[Any], int]) -> Iterator[list[Any]]:
    """The items in lists that stay near the bounds of one message."""
    batch: list[Any] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and (total + size > BATCH_BYTES_MAX or len(batch) >= BATCH_ENTRIES_MAX):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch
