"""Clusters of migration rooms, over a fake data side.

Membership is played by the test: ``Net.view`` tells every member the new list. Messages can be
dropped, repeated or counted by ``Net.on_send`` and members crashed between any two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest
from tests.unit.cluster import MS as MS
from tests.unit.cluster import SECOND as SECOND
from tests.unit.cluster import Cluster, Peer
from tests.unit.rows import row_from

from whimbrel.core.context import Context
from whimbrel.core.events import GridEvent, PartitionLost
from whimbrel.core.ids import Address, MemberId, Namespace, PartitionId, Row, index_in
from whimbrel.core.jobs import Job
from whimbrel.core.messages import (
    DATA_CHANNEL,
    NOTHING_COMPARED,
    CopyBase,
    FragmentPart,
    LegacyTableAnswered,
    LegacyTablePublished,
    LegacyTableRequested,
    LegacyVersionPublished,
    Message,
    Progress,
    PublicationAnswered,
    StampPublished,
    TablePublished,
    TransferAnswered,
    Vector,
)
from whimbrel.core.migration import Migrations
from whimbrel.core.migration import control_loop as control_loop_module
from whimbrel.core.migration.parallel import RowVersions
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import MemberInfo, MemberList, MigrationInfo
from whimbrel.core.partition.groups import member_groups
from whimbrel.core.partition.table import PartitionTable
from whimbrel.core.settings import CoreSettings

SETTINGS = CoreSettings(
    partition_count=7,
    migration_chunk_bytes_max=8,
    table_send_interval_us=15 * SECOND,
)
BOTH_SIZES = (7, 271)
"""Partitions that one step deals with at once, and so many that it does a part of them."""
TABLES_OF_A_WAY = (
    TablePublished,
    StampPublished,
    PublicationAnswered,
    LegacyTablePublished,
    LegacyVersionPublished,
    LegacyTableAnswered,
    LegacyTableRequested,
)
NO_VECTOR = Vector(0, (0,) * 6)


class FakeExport:
    """Chunks of one partition's entries."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks
        self.first = True

    def answered(self, answer: TransferAnswered) -> None:
        assert not answer.progress.differing, "nothing is compared"

    def next_parts(self, bytes_max: int) -> tuple[tuple[FragmentPart, ...], bool]:
        if not self.chunks:
            return (), True
        chunk = self.chunks.pop(0)
        part = FragmentPart(
            Namespace("map/m"), chunk, NO_VECTOR, (1, 0), self.first, not self.chunks
        )
        self.first = False
        return (part,), not self.chunks


class FakeHost:
    """The data of one member: a tuple of entries per partition, with every call checked."""

    def __init__(self, me: MemberId, backup_count: int) -> None:
        self.me = me
        self.backup_count = backup_count
        self.data: dict[int, tuple[bytes, ...]] = {}
        self.flags: set[int] = set()
        self.ingesting: dict[int, tuple[MigrationInfo, list[bytes]]] = {}
        self.calls: list[tuple[str, int]] = []
        self.versions: dict[int, int] = {}
        self.begun = self.committed = self.rolled_back = 0

    def keeps(self, index: int) -> bool:
        return 0 <= index <= self.backup_count

    def lacking(self, migration: MigrationInfo) -> list[bytes]:
        """What the destination does not hold and will have to."""
        step = migration.step
        if self.keeps(step.destination_current) or not self.keeps(step.destination_new):
            return []
        return list(self.data[migration.partition_id])

    def copy_bytes(self, migration: MigrationInfo) -> int:
        return sum(map(len, self.lacking(migration)))

    def begin_source(self, migration: MigrationInfo) -> None:
        assert migration.partition_id not in self.flags
        self.flags.add(migration.partition_id)
        self.calls.append(("begin_source", migration.partition_id))

    def end_source(self, partition_id: PartitionId) -> None:
        self.flags.discard(partition_id)
        self.calls.append(("end_source", partition_id))

    def open_export(self, migration: MigrationInfo) -> FakeExport:
        assert migration.partition_id in self.flags
        return FakeExport(self.lacking(migration))

    def when_durable(self, then: Callable[[], None]) -> None:
        then()

    def seats_without_data(self) -> tuple[PartitionId, ...]:
        return ()

    def begin_destination(self, migration: MigrationInfo) -> None:
        pid = migration.partition_id
        assert pid not in self.ingesting
        self.begun += 1
        self.ingesting[pid] = (migration, [])
        self.calls.append(("begin_destination", pid))

    def bases(self, migration: MigrationInfo) -> tuple[CopyBase, ...]:
        return ()

    def ingest(self, migration: MigrationInfo, parts: Sequence[FragmentPart]) -> Progress:
        known, entries = self.ingesting[migration.partition_id]
        assert known.id == migration.id
        entries.extend(part.data for part in parts)
        return NOTHING_COMPARED

    def rollback_destination(self, migration: MigrationInfo) -> None:
        known, _ = self.ingesting.pop(migration.partition_id)
        assert known.id == migration.id
        self.rolled_back += 1
        self.calls.append(("rollback_destination", migration.partition_id))

    def row_changed(self, partition_id: PartitionId, before: Row, after: Row, version: int) -> None:
        pid = int(partition_id)
        assert version > self.versions.get(pid, 0)
        self.versions[pid] = version
        self.calls.append(("row_changed", pid))
        old, new = index_in(before, self.me), index_in(after, self.me)
        ingested = self.ingesting.pop(pid, None)
        if ingested is not None:
            assert new == ingested[0].step.destination_new, "committed to another index"
            self.committed += 1
        if not self.keeps(new):
            self.data.pop(pid, None)
        elif ingested is not None and not self.keeps(old):
            self.data[pid] = tuple(ingested[1])
        else:
            self.data.setdefault(pid, ())


def manager_of(ctx: Context, host: FakeHost, table: PartitionTable) -> PartitionStateManager:
    """The manager of a table whose rows have versions of their own."""
    return PartitionStateManager(ctx, host, table, RowVersions(ctx, table))


class Node(Peer):
    """One member: its migration room is real; its data, and what the room said."""

    def __init__(self, net: Net, name: str, lite: bool) -> None:
        number = len(net.nodes)
        info = MemberInfo(
            MemberId(name),
            Address("h", 1 + number),
            lite=lite,
            host=f"box{number // 2}",
            started_us=net.now_us,
        )
        super().__init__(net, Context(info, net.settings, net.now_us))
        self.host = FakeHost(self.id, net.backup_count)
        self.room = Migrations(self.ctx, self.host)
        self.room.depth_changed(net.backup_count + 1)
        self.lost: list[tuple[int, int]] = []
        self.may_leave: list[MemberId] = []
        self.told: list[int] = []
        self.room.tell_events(self._hear)
        self.room.on_may_leave = self.may_leave.append
        self.room.on_rows_changed = self.told.extend
        self.tail_arrives = True

    def receive(self, source: Peer, message: Any) -> None:
        taken = self.room.on_message(source.id, message)
        # A table of the other way comes from before or after a switch of the version.
        assert taken or isinstance(message, TABLES_OF_A_WAY)

    def on_timer(self, key: str) -> None:
        self.room.on_timer(key)

    def view_changed(self, old: MemberList, new: MemberList) -> None:
        self.room.view_changed(old, new)

    def became_master(self) -> None:
        self.room.became_master()

    def link_restored(self, member: MemberId) -> None:
        self.room.link_restored(member)

    def _hear(self, event: GridEvent) -> None:
        if isinstance(event, PartitionLost):
            self.lost.append((event.partition_id, event.lost_backup_count))


Verdict = str
"""What ``on_send`` answers: ``deliver``, ``drop`` or ``twice``."""


class Net(Cluster[Node]):
    """The cluster."""

    usual_settings = SETTINGS
    """Of a cluster of which nothing else is said; see the fixture ``both_sizes``."""

    def __init__(self, settings: CoreSettings | None = None, backup_count: int = 1) -> None:
        super().__init__(1_000 * SECOND)
        self.settings = settings = settings or self.usual_settings
        self.backup_count = backup_count
        self.nodes = self.by_id
        self.order: list[str] = []
        """The member list, oldest first."""
        self.version = 0
        self.cluster_version = settings.cluster_version
        self.trace: list[tuple[str, str, Message]] = []
        self.on_send: Callable[[str, str, Message], Verdict] = lambda *_: "deliver"
        self.delay_us: Callable[[bool], int] = lambda _is_data: MS
        """How long a message takes, on the data channel or not; each channel keeps its order."""
        self.after_step: Callable[[Node], None] = lambda _: None
        self.active_max = 0
        self.seen: dict[str, str] = {}
        self.load_max: Counter[str] = Counter()
        self.leaving: tuple[MemberId, ...] = ()

    # -- members --------------------------------------------------------------------------

    def add(self, *names: str, lite: Sequence[str] = ()) -> None:
        """New members join together, in this order; a dead one's name is a restart of it."""
        for name in names:
            self.order.append(Node(self, name, name in lite).id)
        self.view()

    def add_alone(self, name: str) -> Node:
        """A member that is on nobody's list, for tests of its parts."""
        return Node(self, name, lite=False)

    def crash(self, name: str, tail: bool = True, delays_us: dict[str, int] | None = None) -> None:
        """A member dies, and the others get a new list.

        Args:
            name: Who.
            tail: Whether what it has sent already still arrives.
            delays_us: Who learns of it later than the others.
        """
        node = self.nodes[name]
        node.alive = False
        node.tail_arrives = tail
        self.order.remove(name)
        self.leaving = tuple(member for member in self.leaving if member != name)
        self.view(delays_us)

    def view(self, delays_us: dict[str, int] | None = None) -> None:
        """Tell every live member the list, at once or later."""
        self.version += 1
        members = tuple(self.nodes[name].info for name in self.order)
        new = MemberList(self.version, members, cluster_version=self.cluster_version)
        for name in list(self.order):
            delay = (delays_us or {}).get(name, 0)
            if delay:
                self.at(delay, lambda name=name, new=new: self._install(name, new))  # type: ignore[misc]
            else:
                self._install(name, new)

    def _install(self, name: str, new: MemberList) -> None:
        node = self.nodes[name]
        if node.alive and node.ctx.members.version < new.version:
            node.ctx.leaving = self.leaving
            node.step(lambda: self.install(node, new))

    def upgrade(self, delays_us: dict[str, int] | None = None) -> None:
        """The cluster gets version 4.1."""
        self.cluster_version = "4.1"
        self.view(delays_us)

    def leave(self, *names: str) -> None:
        """Members ask the master to leave."""
        self.leaving = (*self.leaving, *(MemberId(name) for name in names))
        node = self.master
        node.ctx.leaving = self.leaving
        with self.step(node):
            node.room.leave_requested()

    @property
    def master(self) -> Node:
        return self.nodes[self.order[0]]

    @property
    def live(self) -> list[Node]:
        return [self.nodes[name] for name in self.order]

    # -- time and messages ----------------------------------------------------------------

    def send(self, source: Node, to: MemberId, message: Any) -> None:
        self.trace.append((source.id, to, message))
        super().send(source, to, message)

    def copies_of(self, source: Node, target: Node, message: Any) -> int:
        return {"deliver": 1, "drop": 0, "twice": 2}[self.on_send(source.id, target.id, message)]

    def channel_of(self, message: Any) -> Hashable:
        return isinstance(message, DATA_CHANNEL)

    def delay_of(self, message: Any) -> int:
        return self.delay_us(isinstance(message, DATA_CHANNEL))

    def arrive(self, source: Node, target: Node, message: Any) -> None:
        arrives = source.alive or source.tail_arrives
        if arrives and target.ctx.is_member(source.id):  # as the member drops others itself
            super().arrive(source, target, message)

    def stepped(self, peer: Node) -> None:
        self._watch(peer)
        self.after_step(peer)

    def restore_link(self, a: str, b: str) -> None:
        """Both ends notice that the broken link stands again."""
        for one, other in ((self.nodes[a], b), (self.nodes[b], a)):
            one.step(lambda one=one, other=other: one.link_restored(MemberId(other)))  # type: ignore[misc]

    def run(self, until_us: int | None = None, stop: Callable[[], bool] | None = None) -> None:
        """Run events until a moment, or until ``stop`` holds."""
        self.play(until_us, stop)

    def run_sending(self, count: int) -> None:
        """Run until more than so many further messages were sent."""
        limit = len(self.trace) + count
        self.run(stop=lambda: len(self.trace) > limit)

    def run_for(self, seconds: float) -> None:
        self.run(self.now_us + int(seconds * SECOND))

    def settle(self, seconds: float = 120) -> None:
        """Run until the master says that all is settled and nothing is on its way."""

        def is_settled() -> bool:
            return not self.flying and self.master.room.is_settled()[0]

        if not self.play(self.now_us + int(seconds * SECOND), is_settled):
            room = self.master.room
            pytest.fail(f"not settled: {room.is_settled()} {room.progress()}")

    # -- data and checks ------------------------------------------------------------------

    def fill(self, entries: int = 3) -> None:
        """Give every holder of every partition the same entries."""
        for node in self.live:
            for pid, row in enumerate(node.room.table.rows):
                if node.host.keeps(index_in(row, node.id)):
                    node.host.data[pid] = self.content(pid, entries)

    @staticmethod
    def content(pid: int, entries: int = 3) -> tuple[bytes, ...]:
        return tuple(f"p{pid}e{number}".encode() for number in range(entries))

    def lost_everything(self) -> set[int]:
        """Partitions that some master reported as wholly lost."""
        return {pid for node in self.peers for pid, count in node.lost if count == 6}

    def check(self, entries: int = 3) -> None:
        """What must hold when all is settled (FN-8)."""
        master = self.master
        data_nodes = [node for node in self.live if not node.info.lite]
        stay = [node.info for node in data_nodes if node.id not in self.leaving]
        groups = member_groups(stay, self.settings.member_group)
        for node in self.live:
            table = node.room.table
            assert table.versions == master.room.table.versions, f"{node.id} lags"
            assert table.rows == master.room.table.rows, f"{node.id} has other rows"
            assert table.stamp == table.recompute_stamp() == master.room.table.stamp
            assert not node.host.flags, f"{node.id} still refuses writes"
            assert not node.host.ingesting and not node.room.active_migrations()
            assert node.host.begun == node.host.committed + node.host.rolled_back
            for pid, version in node.host.versions.items():
                assert version == table.versions[pid], "the data side knows every version"
        depth = min(len(groups), self.backup_count + 1)
        gone = self.lost_everything()
        if any(note.kind == "migration.first_arrangement" for note in master.notes[1:]):
            gone = set(range(self.settings.partition_count))  # it never had heard of the old table
        for pid, row in enumerate(master.room.table.rows):
            assert None not in row[:depth], f"partition {pid} lacks replicas: {row}"
            for node in self.live:
                if node.host.keeps(index_in(row, node.id)):
                    content = node.host.data.get(pid)
                    want = self.content(pid, entries)
                    assert content == want or (pid in gone and content == ()), (pid, node.id)
                else:
                    assert pid not in node.host.data, f"{node.id} leaks partition {pid}"
        assert not master.room.completed_migrations()

    def _watch(self, node: Node) -> None:
        """Caps and exclusiveness, looked at after every step (PIM-24, inv P8)."""
        running = node.room.running_migrations()
        self.active_max = max(self.active_max, len(running))
        load: Counter[str] = Counter()
        for migration in running:
            self.seen.setdefault(migration.id, migration.step.kind.value)
        for migration in node.room.counted_migrations():
            load[node.room.table.rows[migration.partition_id][0] or "?"] += 1
            load[migration.step.destination or "?"] += 1
        assert len({migration.partition_id for migration in running}) == len(running)
        for member, count in load.items():
            assert count <= self.settings.migration_max_parallel
            self.load_max[member] = max(self.load_max[member], count)

    def kinds(self) -> list[str]:
        """Kinds of the migrations started so far, in order."""
        return list(self.seen.values())

    def tables(self) -> list[tuple[str, TablePublished]]:
        """The tables and news sent so far, each with its receiver."""
        return [(to, m) for _, to, m in self.trace if isinstance(m, TablePublished)]

    def said(self, *types: type[Message]) -> list[tuple[str, str, Message]]:
        return [entry for entry in self.trace if isinstance(entry[2], types)]


def watch_verdicts(room: Migrations, told: Callable[[MigrationInfo, int], None]) -> None:
    """Hear of every migration and promotion that is decided, and how long after its start."""
    decided, ctx = room.reporter.decided, room._ctx

    def probed(process: Any, reported: Any, migration: MigrationInfo, started_us: int) -> None:
        told(migration, ctx.now_us - started_us)
        decided(process, reported, migration, started_us)

    vars(room.reporter)["decided"] = probed


def wish(monkeypatch: pytest.MonkeyPatch, wanted: dict[int, Sequence[str]]) -> None:
    """Make repartitioning aim at given rows: per partition names in order, the live ones count."""

    def assign(
        rows: Sequence[Row],
        groups: Sequence[Sequence[MemberId]],
        depth: int,
        leaving: Sequence[MemberId] = (),
    ) -> list[Row]:
        eligible = [member for group in groups for member in group]
        targets: list[Row] = []
        for pid in range(len(rows)):
            named = [MemberId(name) for name in wanted.get(pid, wanted.get(-1, ()))]
            rest = [member for member in eligible if member not in named]
            row = [member for member in named if member in eligible] + rest
            targets.append(row_from(row[:depth]))
        return targets

    def assigning(*arguments: Any) -> Job[list[Row]]:
        yield
        return assign(*arguments)

    monkeypatch.setattr(control_loop_module, "assigning", assigning)
