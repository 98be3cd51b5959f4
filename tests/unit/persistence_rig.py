"""A member's data plane on a simulated disk: changes, deaths, and what a load finds afterwards.

There is no cluster: the rig gives the rows, carries works and timers out, and describes the cluster
file. Acknowledged is a change whose reply is decided without a failure.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable

from tests.unit.keys import CLUSTER_ID, encryption_now

from whimbrel.core.context import Context
from whimbrel.core.effects import ArmTimer, DiskWork, Effect, Note
from whimbrel.core.ids import EMPTY_ROW, Address, MemberId, Namespace, PartitionId, namespace_of
from whimbrel.core.model import MemberInfo, MemberList, RowState
from whimbrel.core.persistence.commands import DiskProblem
from whimbrel.core.persistence.encryption import Encryption
from whimbrel.core.persistence.metadata import ClusterFile, LogFiles
from whimbrel.core.persistence.service import Persistence
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.core.settings import CoreSettings, PersistenceSettings
from whimbrel.core.stimuli import DiskDone, DiskFailed
from whimbrel.sim.disk import SimDisk
from whimbrel.structures.map.service import MapService
from whimbrel.structures.map.settings import MapSettings

ME = MemberId("00000001-0000-4000-8000-000000000001")
LIST = MemberList(1, (MemberInfo(ME, Address("127.0.0.1", 5701)),), cluster_id=CLUSTER_ID)
MAP = namespace_of("map", "kept")
PARTITIONS = 3
ROW = (ME, *EMPTY_ROW[1:])

Content = dict[bytes, bytes]


class Rig:
    """One disk, and the processes that use it one after the other."""

    def __init__(self, seed: int = 0, **settings: object) -> None:
        """Begin with an empty disk; ``settings`` are those of persistence."""
        chosen = {"enabled": True, "fsync": "always", "segment_bytes": 4_096, **settings}
        persistence = PersistenceSettings(**chosen)  # type: ignore[arg-type]
        self.settings = CoreSettings(
            partition_count=PARTITIONS,
            persistence=persistence,
            structures=(
                MapSettings("default", backup_count=1),
                MapSettings("volatile", persistent=False),
            ),
        )
        self.disk = SimDisk(random.Random(seed))
        self.acknowledged: list[tuple[bytes, bytes | None]] = []
        """Writes in the order of their acknowledgements: key, and value or None for a removal."""
        self.keys: Callable[[], Encryption] = encryption_now
        """Gives the keys of a process that begins."""
        self.failed: list[tuple[bytes, bytes | None]] = []
        self.stopped: list[str] = []
        self.now_us = 1_000_000
        self._start()

    # -- life -----------------------------------------------------------------------------

    def _start(self) -> None:
        self.now_us += 1_000_000
        self.ctx = Context(LIST.members[0], self.settings, self.now_us)
        self.ctx.wall_ms = self.now_us // 1000
        self.ctx.members = LIST
        self.plane = DataPlane(self.ctx)
        self.maps = MapService(self.plane)
        self.files = Persistence(self.ctx, self.plane, self.keys())
        self.files.describe = self._describe
        self.files.stop = self.stopped.append
        self.problems: list[str] = []
        self.files.on_damaged = self.problems.append
        self.works: deque[DiskWork] = deque()
        self.timers: dict[str, tuple[int, int]] = {}
        self.notes: list[Note] = []

    def _describe(self, log: LogFiles, has_left: bool) -> ClusterFile:
        rows = tuple(RowState(PartitionId(pid), 1, ROW) for pid in range(PARTITIONS))
        return ClusterFile(ME, "dev", PARTITIONS, LIST, rows, (), (), None, has_left, log)

    def begin(self) -> None:
        """A process without files, or with those of before, until it comes to rest."""
        self.rise()
        self.carry_on()

    def rise(self) -> None:
        """The same, as far as that it is primary of everything."""
        self.files.begin(lambda: None)
        self.settle()
        if self.files.found is not None:
            self.files.load(dict.fromkeys(map(PartitionId, range(PARTITIONS)), 0))  # type: ignore[arg-type]
            self.settle()
        if not self.stopped and not self.problems:
            self.files.began()
            for partition in self.plane.partitions:
                self.plane.roles.row_changed(partition.pid, EMPTY_ROW, ROW, 2)

    def die(self, *, power: bool) -> None:
        """The process is gone, works that were not carried out with it; maybe the power too."""
        if power:
            self.disk.crash()
        else:
            self.disk.kill()
        self._start()

    # -- what happens -----------------------------------------------------------------------

    def put(self, key: bytes, value: bytes, namespace: Namespace = MAP) -> PendingReply:
        """Write, as a client's request would."""
        return self._write(key, value, namespace)

    def remove(self, key: bytes, namespace: Namespace = MAP) -> PendingReply:
        """Remove a key."""
        return self._write(key, None, namespace)

    def discard_all(self) -> None:
        """Hold nothing any more, as a member that has handed everything over."""
        for partition in self.plane.partitions:
            for namespace in list(partition.fragments):
                self.plane.holdings.discard(partition, namespace)

    def _write(self, key: bytes, value: bytes | None, namespace: Namespace) -> PendingReply:
        partition = self.plane.partitions[key[-1] % PARTITIONS]
        data = b"\x00\x00\x00\x00\x00\x00\x00\x01" + key
        reply = PendingReply(owner=(key, value))
        if value is None:
            self.maps.remove(partition, namespace, data, reply)
        else:
            self.maps.set(partition, namespace, data, value, reply)
        if reply.remaining <= 0 and self.settings.persistence.fsync != "always":
            self.acknowledged.append((key, value))
        return reply  # what changed nothing has nothing to be kept

    def turn(self) -> None:
        """The end of a turn: works leave, effects are taken."""
        log = self.files.log
        if log is not None:
            log.flush()
        self._take()

    def _take(self) -> None:
        effects: list[Effect] = self.ctx.effects
        self.ctx.effects = []
        for effect in effects:
            if isinstance(effect, DiskWork):
                self.works.append(effect)
            elif isinstance(effect, Note):
                self.notes.append(effect)
            elif isinstance(effect, ArmTimer):
                self.timers[effect.key] = (effect.at_us, effect.generation)
        for reply in self.plane.outgoing.completed:
            owner = reply.owner
            if isinstance(owner, tuple):
                (self.failed if reply.failed else self.acknowledged).append(owner)
        self.plane.outgoing.completed = []

    def work(self) -> bool:
        """Carry the next work out and answer it; whether there was one."""
        if not self.works:
            return False
        work = self.works.popleft()
        try:
            answers = self.disk.execute(work.commands)
        except DiskProblem as problem:
            failed = DiskFailed(work.number, problem.position, problem.failure, problem.detail)
            self.files.on_disk(failed)
        else:
            self.files.on_disk(DiskDone(work.number, answers))
        self.turn()
        return True

    def fire(self) -> bool:
        """The next timer of the disk; whether there was one."""
        due = sorted((at, key) for key, (at, _) in self.timers.items() if key.startswith("pers"))
        if not due:
            return False
        at_us, key = due[0]
        _, generation = self.timers.pop(key)
        self.now_us = self.ctx.now_us = max(self.now_us, at_us)
        self.ctx.wall_ms = self.now_us // 1000
        if self.ctx.take_timer(key, generation):
            self.files.on_timer(key)
            self.ctx.timer_done()
        self.turn()
        return True

    def settle(self) -> None:
        """Until nothing is left to do at once."""
        self.turn()
        while self.work():
            pass

    def carry_on(self, firings_max: int = 400) -> None:
        """Until the disk has nothing to do and no timer is armed."""
        self.settle()
        for _ in range(firings_max):
            if not self.fire():
                return
            self.settle()
        raise AssertionError(f"the room does not come to rest: {sorted(self.timers)}")

    # -- looking ----------------------------------------------------------------------------

    def content(self, namespace: Namespace = MAP) -> Content:
        """What the present process has of a structure."""
        found: Content = {}
        for partition in self.plane.partitions:
            fragment = partition.fragments.get(namespace)
            if fragment is not None:
                store = fragment.store
                found |= {key[8:]: value for key, value in store.entries(0)}  # type: ignore[attr-defined]
        return found

    def usage(self) -> int:
        """Bytes in the log's files."""
        return sum(one.size for one in self.disk.list_folder("log"))


def expected(writes: Iterable[tuple[bytes, bytes | None]]) -> Content:
    """What writes lead to."""
    found: Content = {}
    for key, value in writes:
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


Step = Callable[[Rig], object]
