"""Whole engines whose data outlive them: the engine pump with a disk at each seat.

A disk keeps what its member was when it was last saved; ``crash`` saves and kills. The files are
played (``Files``): what is saved is whole, loading takes time, and nothing is written by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.unit.engine_pump import Node, quick_settings
from tests.unit.split_pump import SplitPump

from whimbrel.core.ids import Address, MemberId, Namespace, PartitionId, ReplicaIndex, Row
from whimbrel.core.messages import FragmentPart, Vector
from whimbrel.core.model import ClusterState, MemberList
from whimbrel.core.persistence.metadata import ClusterFile, LogFiles
from whimbrel.core.settings import PersistenceSettings
from whimbrel.core.stimuli import Received, Started

SECOND = 1_000_000
LOAD_US = 400_000
"""How long a load takes."""
PERSISTENCE = PersistenceSettings(
    enabled=True,
    validation_timeout_us=60 * SECOND,
    data_load_timeout_us=40 * SECOND,
)
FULL, RECENT, COMPLETE = (
    "FULL_RECOVERY_ONLY",
    "PARTIAL_RECOVERY_MOST_RECENT",
    "PARTIAL_RECOVERY_MOST_COMPLETE",
)


@dataclass
class Saved:
    """A fragment on a disk."""

    pid: PartitionId
    namespace: Namespace
    settings: tuple[int, int]
    generation: int
    vector: Vector
    slot: int
    is_dirty: bool
    chunks: list[bytes]


@dataclass
class Disk:
    """What is left of a member when it has ended."""

    file: ClusterFile | None = None
    fragments: list[Saved] = field(default_factory=list)
    aside: list[ClusterFile] = field(default_factory=list)
    left: MemberList | None = None
    """With which its member had left gracefully."""
    damage: str = ""
    """What a load finds."""
    load_us: int = LOAD_US
    began: int = 0
    """How often somebody began to write."""


class Files:
    """The persistence room of one process, as the recovery room sees it."""

    is_enabled = True

    def __init__(self, node: Node, disk: Disk) -> None:
        self.node, self.disk = node, disk
        self.found, self.left = disk.file, disk.left
        self.bytes_total = self.bytes_loaded = 0
        self.on_loaded: Callable[[], None] = lambda: None
        self.on_damaged: Callable[[str], None] = lambda _sentence: None
        self.loads: list[dict[PartitionId, ReplicaIndex]] = []
        self._waiting: list[Callable[[], None]] = []
        self._undurable: list[Callable[[], None]] = []
        self._is_gathering = False
        node.engine.member.persistence.is_enabled = False  # this is played
        node.engine.member.registry.when_durable = self.when_durable
        node.engine.member.recovery.use_files(self)

    def _later(self, delay_us: int, action: Callable[[], None]) -> None:
        node = self.node

        def act() -> None:
            if node.alive:
                node.engine.member.begin(node.pump.now_us, node.pump.wall_ms)
                action()
                node.carry_out()

        node.pump.at(delay_us, act)

    def load(self, wanted: Mapping[PartitionId, ReplicaIndex]) -> None:
        self.loads.append(dict(wanted))
        number = len(self.loads)
        self.bytes_total, self.bytes_loaded = 1_000, 0

        def half() -> None:
            if number == len(self.loads) and self.disk.damage:
                self.on_damaged(self.disk.damage)
            elif number == len(self.loads):
                self.bytes_loaded = 500
                self._later(self.disk.load_us // 2, rest)

        def rest() -> None:
            if number == len(self.loads) and self.found is not None:
                self._bring_back(wanted)
                self.bytes_loaded = 1_000
                self.on_loaded()

        self._later(self.disk.load_us // 2, half)

    def _bring_back(self, wanted: Mapping[PartitionId, ReplicaIndex]) -> None:
        plane = self.node.engine.member.dataplane
        for saved in self.disk.fragments:
            index = wanted.get(saved.pid)
            if index is None or sum(saved.settings) < index:
                continue
            vector = saved.vector
            part = FragmentPart(
                saved.namespace, b"", vector, saved.settings, True, True, saved.generation
            )
            fragment = plane.holdings.make(saved.pid, saved.namespace, part)
            for chunk in saved.chunks:
                fragment.store.ingest(chunk)
            fragment.lineage, fragment.base_lineage = vector.lineage, vector.base_lineage
            fragment.base, fragment.is_dirty = vector.base, saved.is_dirty
            fragment.set_counters(vector.counters, saved.slot)
            plane.holdings.hold(plane.partitions[saved.pid], fragment)

    def set_aside(self, then: Callable[[], None]) -> None:
        plane = self.node.engine.member.dataplane
        for partition in plane.partitions:
            for namespace in list(partition.fragments):
                plane.holdings.discard(partition, namespace)
        self.loads.append({})
        self.bytes_total = self.bytes_loaded = 0
        self._waiting.append(then)
        if len(self._waiting) > 1:
            return

        def done() -> None:
            disk = self.disk
            if disk.file is not None:
                disk.aside.append(disk.file)
            disk.file = self.found = None
            disk.fragments = []
            waiting, self._waiting = self._waiting, []
            for told in waiting:
                told()

        self._later(LOAD_US, done)

    def follow(self) -> None:
        """Nothing is written here; as in a log, nothing leaves before it begins."""
        self._is_gathering = True

    def began(self) -> None:
        self.disk.began += 1
        self._is_gathering = False
        undurable, self._undurable = self._undurable, []
        for told in undurable:
            told()

    def when_durable(self, then: Callable[[], None]) -> None:
        if self._is_gathering:
            self._undurable.append(then)
        else:
            then()


class RecoveryPump(SplitPump):
    """Seats with disks. Seat n has the address and, with its disk, the identity of number n."""

    def __init__(self, policy: str = FULL, **changes: Any) -> None:
        kept = msgspec.structs.replace(
            PERSISTENCE, recovery_policy=policy, **changes.pop("persistence", {})
        )
        super().__init__(quick_settings(persistence=kept, **changes))
        self.disks: dict[int, Disk] = {}
        self.files: dict[Node, Files] = {}
        self.seats: dict[int, Node] = {}
        self.moved: dict[int, int] = {}
        """Seats whose members listen elsewhere now: to which number's address they moved."""
        self.watch: Callable[[Node, Node, Any], bool] = lambda _source, _target, _message: False
        """Told of each message between members before it arrives, and says whether it is lost."""

    def address_of(self, number: int) -> Address:
        return super().address_of(self.moved.get(number, number))

    # -- seats ----------------------------------------------------------------------------

    def seat(self, number: int, lite: bool = False) -> Node:
        """Start a process at a seat, with what lies on its disk; it knows all seats' addresses."""
        assert number not in self.seats or not self.seats[number].alive
        node = Node(self, number, lite)
        self.seats[number] = node
        self.files[node] = Files(node, self.disks.setdefault(number, Disk()))
        addresses = tuple(self.address_of(one) for one in range(1, 6))
        node.handle(Started(addresses))
        return node

    def seat_all(self, *numbers: int) -> None:
        """Start a process at each of these seats, at one moment."""
        for number in numbers:
            self.seat(number)

    def found_cluster(self, count: int = 3) -> list[Node]:
        """A running cluster at the first seats."""
        for number in range(1, count + 1):
            node = self.seat(number)
            self.run_until(lambda node=node: node.joined, 30)
        self.run(10)
        return [self.seats[number] for number in range(1, count + 1)]

    def save(self, node: Node) -> None:
        """Its disk has what it is now, as if everything had been written this very moment."""
        member, disk = node.engine.member, self.disks[node.number]
        members = member.ctx.members
        assert members.recovery is None
        table = member.migrations.table
        disk.file = ClusterFile(
            node.id,
            "dev",
            self.settings.partition_count,
            members,
            tuple(table.state(PartitionId(pid)) for pid in range(table.partition_count)),
            tuple(table.losses.values()),
            tuple(member.registry._sorted()),
            member.membership.numbers._numbering,
            False,
            LogFiles(b"log", ()),
            member.migrations.stable.packed,
        )
        disk.fragments = [
            Saved(
                partition.pid,
                fragment.namespace,
                (fragment.sync_count, fragment.async_count),
                fragment.generation,
                fragment.vector(),
                fragment.slot,
                fragment.is_dirty,
                _chunks(fragment.store),
            )
            for partition in member.dataplane.partitions
            for fragment in partition.fragments.values()
        ]

    def crash(self, *nodes: Node, saves: bool = True) -> None:
        """The processes end at once; what they were lies on their disks."""
        for node in nodes:
            if saves and node.engine.member.is_joined:
                self.save(node)
        for node in nodes:
            self.kill(node)

    def kill(self, node: Node) -> None:
        """As in the pump; an expelled member begins anew at its seat, with its files."""
        super(SplitPump, self).kill(node)
        if node.expelled and self.respawns:
            part = self.part_of.get(node.address, 0)
            self.at(SECOND // 10, lambda: self._again(node.number, part))

    def _again(self, number: int, part: int) -> None:
        if not self.seats[number].alive:
            self.part_of[self.seat(number).address] = part

    def _deliver(self, sender: Node, to: MemberId | Address, kind: int, payload: Any) -> None:
        target = self.listening(to) if isinstance(to, Address) else self.by_id[to]
        is_lost = target is not None and self.watch(sender, target, payload)
        if not is_lost:
            super()._deliver(sender, to, kind, payload)

    # -- looking --------------------------------------------------------------------------

    def recovery(self, number: int) -> dict[str, Any] | None:
        """The document of a seat's member."""
        return self.seats[number].engine.member.recovery.document()

    def rows(self, number: int) -> list[tuple[int, Row]]:
        """Versions and rows at a seat's member."""
        table = self.seats[number].engine.member.migrations.table
        return list(zip(table.versions, table.rows, strict=True))

    def all_joined(self, *numbers: int) -> bool:
        """Whether the members of these seats, and no others, serve on one list."""
        nodes = [self.seats[number] for number in numbers]
        lists = [node.engine.member.ctx.members for node in nodes]
        ids = sorted(node.id for node in nodes)
        return all(node.alive and node.joined for node in nodes) and all(
            one == lists[0] and sorted(one.ids()) == ids and one.recovery is None for one in lists
        )

    def await_joined(self, *numbers: int, timeout_s: float = 60) -> None:
        """Wait until they are one cluster that serves."""
        self.run_until(lambda: self.all_joined(*numbers), timeout_s)

    def await_phase(self, number: int, phase: str, timeout_s: float = 30) -> None:
        """Wait until a seat's member says that the recovery is in this phase."""

        def is_there() -> bool:
            told = self.recovery(number)
            return told is not None and told["phase"] == phase

        self.run_until(is_there, timeout_s)

    # -- data -----------------------------------------------------------------------------

    def fill(self, node: Node, text: str = "old", name: str = "m", count: int = 40) -> None:
        """Entries in every partition."""
        client = self.client(node)
        for number in range(count):
            self.put(client, name, f"k{number}", f"{text}{number}")

    def missing_entries(
        self, node: Node, text: str = "old", name: str = "m", count: int = 40
    ) -> list[int]:
        """Which of them are not there, as a client sees it."""
        client = self.client(node)
        return [
            number
            for number in range(count)
            if self.get(client, name, f"k{number}") != f"{text}{number}"
        ]


def _chunks(store: Any) -> list[bytes]:
    cursor, found = store.open_cursor(), []
    while True:
        chunk, _, is_last = store.export(cursor, 1 << 20)
        found.append(chunk)
        if is_last:
            return found


def stopped(node: Node) -> tuple[int, str]:
    """How a process ended by itself."""
    assert node.stopped is not None
    return node.stopped.exit_status, node.stopped.reason


def set_state(pump: RecoveryPump, node: Node, state: ClusterState) -> None:
    """Change the cluster state at the master."""
    wish = f"to {state}"

    def is_done() -> bool:
        node.engine.member.begin(pump.now_us, pump.wall_ms)
        result = node.engine.member.membership.change_cluster(wish, state)
        node.carry_out()
        assert not result.refusal, result.refusal
        return result.is_done

    pump.run_until(is_done, 10)


def ask(node: Node, what: str) -> Any:
    """The answer of the master to a question at some member."""
    pump = node.pump
    call = node.engine.ask(None, what, b"{}", pump.now_us, pump.wall_ms)
    node.carry_out()
    pump.run_until(lambda: call in node.answers, 10)
    return node.answers[call]


def received(source: Node, message: Any) -> Any:
    return Received(source.id, source.address, message)
