"""How long a member's loop is occupied by one step: the longest ones of each kind, in CPU time.

Production engines at 20,011 partitions go through a first arrangement, a join, a join in the middle
of another, a crash, a leave and a change of master; then fragments of 100,000 and of a million
entries are filled, copied and dropped. A step is what the loop of a real member does in one
callback: one message taken in, with its decoding, one timer or tick, or all that is said
afterwards, with its encoding.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from whimbrel.bench.engines import TICK_US, WALL_START_MS, BenchMember
from whimbrel.core import effects as e
from whimbrel.core.context import Context
from whimbrel.core.ids import Address, MemberId, Namespace, PartitionId
from whimbrel.core.model import MemberInfo
from whimbrel.core.replication.deferred_free import DeferredFree
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.replication.transfer import FragmentExport
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
from whimbrel.errors import OperationError
from whimbrel.serving.outputs import Output, ToAddress, ToPeer
from whimbrel.structures.map.store import MapStore
from whimbrel.wire.links import MESSAGE, decode_message, encode_message

WAIT_US = 600_000_000
"""Virtual time in which a change of the cluster must be over."""
PARTITIONS = 20_011
MEMBERS = (5, 10)
ENTRIES = (100_000, 1_000_000)
VALUE_BYTES = 100
SHOWN_MAX = 12
"""Kinds of steps that are reported for each part, the longest first."""


class Spent(NamedTuple):
    """The steps of one kind: how many, and the longest one's CPU milliseconds."""

    steps: int
    longest_ms: float


class Stopwatch:
    """CPU time of steps by kind."""

    def __init__(self) -> None:
        self._kinds: dict[str, Spent] = {}

    @contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """Time one step."""
        begin_ns = time.thread_time_ns()
        yield
        self.add(kind, (time.thread_time_ns() - begin_ns) / 1e6)

    def add(self, kind: str, spent_ms: float) -> None:
        """Book one step."""
        count, longest_ms = self._kinds.get(kind, (0, 0.0))
        self._kinds[kind] = Spent(count + 1, max(longest_ms, spent_ms))

    def take(self) -> dict[str, dict[str, float]]:
        """The kinds with the longest steps since the last call."""
        kinds, self._kinds = self._kinds, {}
        longest = sorted(kinds.items(), key=lambda item: -item[1].longest_ms)[:SHOWN_MAX]
        return {
            kind: {"longest_ms": round(spent.longest_ms, 2), "steps": spent.steps}
            for kind, spent in longest
        }


class SteppedCluster:
    """Members that deliver to one another at once, every step of each timed.

    Members come and go while the cluster runs. Nothing is lost or delayed.
    """

    def __init__(self, settings: CoreSettings, watch: Stopwatch) -> None:
        self.settings = settings
        self.watch = watch
        self.now_us = 1_000_000
        self.members: list[BenchMember] = []
        self._by_id: dict[MemberId, BenchMember] = {}
        self._inbox: deque[tuple[BenchMember, MemberId | None, int, Stimulus | bytes]] = deque()
        self._timers: list[tuple[int, int, BenchMember, str, int]] = []
        self._armed = self._started = 0

    @property
    def master(self) -> BenchMember:
        """The oldest member."""
        return self.members[0]

    def add(self) -> BenchMember:
        """Start one more member."""
        self._started += 1
        member = BenchMember(self._started, self.settings)
        member.has_started = True
        self.members.append(member)
        self._by_id[member.id] = member
        addresses = tuple(other.address for other in self.members)
        self._inbox.append((member, None, MESSAGE, Started(addresses)))
        return member

    def kill(self, member: BenchMember) -> None:
        """End a member; all others notice at once."""
        self.members.remove(member)
        del self._by_id[member.id]
        for other in self.members:
            self._inbox.append((other, None, MESSAGE, LinkFailed(member.id)))

    def leave(self, member: BenchMember) -> None:
        """Ask a member to hand over and leave."""
        self._inbox.append((member, None, MESSAGE, LeaveWanted()))

    def is_settled(self) -> bool:
        """Whether the master has nothing left to do and every member is on its list."""
        core = self.master.engine.member
        here = len(core.ctx.members.members) == len(self.members)
        return here and core.migrations.is_settled()[0]

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Let virtual time pass until a condition holds.

        Raises:
            OperationError: It does not within ``WAIT_US``.
        """
        end_us = self.now_us + WAIT_US
        while not condition():
            if self._inbox:
                self._take(*self._inbox.popleft())
                continue
            if self.now_us > end_us:
                raise OperationError("the cluster of the benchmark does not come to rest")
            self._let_time_pass()

    def _let_time_pass(self) -> None:
        self.now_us += TICK_US
        wall_ms = WALL_START_MS + self.now_us // 1000
        while self._timers and self._timers[0][0] <= self.now_us:
            _, _, member, key, generation = heapq.heappop(self._timers)
            if member.id in self._by_id:
                self._take(member, None, MESSAGE, TimerFired(key, generation))
        for member in list(self.members):
            with self.watch.of("tick"):
                member.engine.tick(self.now_us, wall_ms)
            self._flush(member, "tick")

    def _take(
        self, member: BenchMember, sender: MemberId | None, kind: int, what: Stimulus | bytes
    ) -> None:
        """One step of a member, and what it says afterwards."""
        if member.id not in self._by_id:
            return
        engine, now_us, wall_ms = member.engine, self.now_us, WALL_START_MS + self.now_us // 1000
        begin_ns = time.thread_time_ns()
        name = f"frame {kind}"
        if not isinstance(what, bytes):
            engine.handle(what, now_us, wall_ms)
            name = what.key if isinstance(what, TimerFired) else type(what).__name__
        elif sender is not None and kind == MESSAGE:
            cause, message = decode_message(what)
            name = type(message).__name__
            address = self._by_id[sender].address if sender in self._by_id else member.address
            engine.handle(Received(sender, address, message, cause=cause), now_us, wall_ms)
        elif sender is not None:
            engine.peer_frame(sender, kind, what, now_us, wall_ms)
        self.watch.add(name, (time.thread_time_ns() - begin_ns) / 1e6)
        self._flush(member, name)

    def _flush(self, member: BenchMember, after: str) -> None:
        begin_ns = time.thread_time_ns()
        for output in member.engine.take_outputs():
            self._carry_out(member, output)
        self.watch.add(f"outputs after {after}", (time.thread_time_ns() - begin_ns) / 1e6)

    def _carry_out(self, member: BenchMember, output: Output) -> None:
        match output:
            case ToPeer():
                peer, payload = self._by_id.get(output.peer), output.payload
                if not isinstance(payload, bytes):
                    payload = encode_message(payload, output.cause)
                if peer is not None:
                    self._inbox.append((peer, member.id, output.kind, payload))
            case ToAddress():
                for other in self.members:
                    if other.address == output.address and other.has_started:
                        received = Received(
                            member.id, member.address, output.message, cause=output.cause
                        )
                        self._inbox.append((other, None, MESSAGE, received))
                        return
                self._inbox.append((member, None, MESSAGE, AddressUnreachable(output.address)))
            case e.ArmTimer():
                self._armed += 1
                timer = (output.at_us, self._armed, member, output.key, output.generation)
                heapq.heappush(self._timers, timer)
            case e.Stopped() if member in self.members:
                self.members.remove(member)
                del self._by_id[member.id]
            case _:
                pass  # notes and links: there is no log here, and no link can break


Parts = dict[str, dict[str, dict[str, float]]]
"""Steps by part of the story and kind."""


def control_plane(partitions: int, count: int) -> Parts:
    """The steps of a cluster's changes without data."""
    watch = Stopwatch()
    cluster = SteppedCluster(CoreSettings(partition_count=partitions), watch)
    parts: Parts = {}

    def part(name: str) -> None:
        cluster.run_until(cluster.is_settled)
        parts[name] = watch.take()

    for _ in range(count):
        member = cluster.add()
        cluster.run_until(member.has_joined)
    part("first arrangement and joins")
    cluster.add()
    part(f"join of member {count + 1}")
    cluster.add()
    migrations = cluster.master.engine.member.migrations
    cluster.run_until(lambda: len(migrations.running_migrations()) > 0)
    begun = migrations.table.change_count
    cluster.run_until(lambda: migrations.table.change_count > begun + partitions // 40)
    cluster.add()
    part("join in the middle of a join")
    cluster.kill(cluster.members[2])
    part("crash")
    cluster.leave(cluster.members[2])
    part("leave")
    cluster.kill(cluster.master)
    cluster.run_until(lambda: cluster.master.engine.member.migrations.loop.in_charge)
    part("crash of the master")
    return parts


def fragment(entries: int) -> Parts:
    """The steps of one large fragment: filled, copied in chunks, dropped, freed."""
    watch = Stopwatch()
    me = MemberInfo(MemberId("bench"), Address("127.0.0.1", 5701))
    deferred = DeferredFree(Context(me, CoreSettings()))
    store, copy = MapStore(deferred.take), MapStore()
    for number in range(entries):
        key, value = b"%020d" % number, bytes(VALUE_BYTES)
        begin_ns = time.thread_time_ns()
        store.put(key, value, WALL_START_MS)
        watch.add("put", (time.thread_time_ns() - begin_ns) / 1e6)
    export = FragmentExport([Fragment(PartitionId(0), Namespace("map/bench"), store, 1, 0)])
    last = False
    while not last:
        with watch.of("export of a chunk"):
            parts, last = export.next_parts(CoreSettings().migration_chunk_bytes_max)
        for part in parts:
            with watch.of("ingest of a chunk"):
                copy.ingest(part.data)
    with watch.of("drop"):
        deferred.take(store.release())
    while deferred.entries:
        with watch.of("freeing"):
            deferred.on_timer()
    return {"fill, copy, drop": watch.take()}


def run() -> dict[str, Parts]:
    """Figures by world, part of its story and kind of step."""
    gc.disable()
    try:
        figures = {f"a fragment of {count} entries": fragment(count) for count in ENTRIES}
        for count in MEMBERS:
            name = f"{PARTITIONS} partitions, {count} members"
            figures[name] = control_plane(PARTITIONS, count)
        return figures
    finally:
        gc.enable()
