"""Rules S1, S4 and S7: what lies on a member's disk is what the member holds."""

from __future__ import annotations

import random
from typing import ClassVar

from whimbrel.core.effects import Note
from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.persistence.commands import DiskProblem
from whimbrel.core.persistence.format import LOG_FOLDER, DamageError
from whimbrel.core.persistence.loading import Loading
from whimbrel.core.persistence.log import DiskLog
from whimbrel.core.replication.fragments import Fragment
from whimbrel.sim.disk import SimDisk
from whimbrel.sim.disks.doubt import MayBeLost, unwritten_us
from whimbrel.sim.history import ABSENT, Operation, Outcome, Reply
from whimbrel.sim.host import Host
from whimbrel.sim.persisted import ALWAYS, INTERVAL, OFF, cluster_file, reader
from whimbrel.sim.rule import Rule, Sightings
from whimbrel.sim.structures.kinds import content_of
from whimbrel.sim.world import World

LOOKS_MAX = 40
"""Samples in which a member is looked at after a safe point, until its disk has caught up."""
ALL_DIED = "everybody dies at once"
DIED_LOADING = "everybody dies again before all are back"
DIED_MIGRATING = "everybody dies while copies are under way"
DIED_JOINING = "everybody dies while somebody joins"
DIED_LEAVING = "everybody dies while somebody leaves"
SET_ASIDE = "files are set aside"
LEFT_OUT = "a member comes back whose files do not count"
CAME_BACK = "a cluster comes back from its files"
REFUSED = "a disk is full, or takes nothing"
FAILED = "a sync fails"
DAMAGED = "a damaged file is told"
DAMAGE_NOTES = ("recovery.damaged", "files_damaged", "disk_failed")
IMAGES = "log/images"

ONE_WRITE_IN = 5
"""So many acknowledged writes are counted for each that is looked for on disks."""

Key = tuple[PartitionId, Namespace]
Fragments = dict[Key, Fragment]


class AnsweredAfterSync(Rule):
    """S1 (0017; H): as R4, on the disks, once it is promised to be there.

    In a calm window, and of one write in some: whoever holds it is killed, or deprived of its power
    where the mode outlives that, and what is left on its disk is loaded.
    """

    rule = "S1"
    sentence = "what is acknowledged outlives what its mode of syncing promises to outlive"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._writes = 0

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H: at the moment the client hears, or when the disk is to have it at last."""
        persistence = self.world.plan.settings.persistence
        if (
            not persistence.enabled
            or operation.outcome is not Outcome.OK
            or operation.is_read
            or operation.effect == ABSENT
            or not operation.ledger.is_judged
            or not self.world.is_calm_since(operation.invoked_us)
        ):
            return
        self._writes += 1
        if self._writes % ONE_WRITE_IN:
            return
        if persistence.fsync == ALWAYS:
            self._look(operation)
        else:
            late_us = unwritten_us(self.world.plan, power=persistence.fsync == INTERVAL)
            self.world.scheduler.after(late_us, self._look, operation)

    def _look(self, operation: Operation) -> None:
        world, ledger = self.world, operation.ledger
        is_alone = ledger.acked is operation and not ledger.is_open
        is_meant = is_alone or world.plan.settings.persistence.fsync == ALWAYS
        if ledger.unknown or not is_meant or not world.is_calm_since(operation.invoked_us):
            return
        needed = 1 + min(world.plan.backup_count, len(world.places()) - 1)
        key = ledger.partition_id, ledger.namespace
        keepers: list[str] = []
        for host in world.up_hosts():
            if not ledger.keeps(host.store_at(*key), operation):
                continue
            disk = host.disk.fork(random.Random(world.now_us))
            if world.plan.settings.persistence.fsync == OFF:
                disk.kill()
            else:
                disk.crash()
            try:
                fragment = load_all(disk, host, key).get(key)
            except (DamageError, DiskProblem) as problem:
                self.fail(str(problem), host.name)
                return
            if fragment is not None and ledger.keeps(fragment.store, operation):
                keepers.append(host.name)
        if len(keepers) < needed:
            names = ", ".join(keepers) or "nobody"
            where = f"p{ledger.partition_id} is on the disks of {names}"
            self.fail(f"{operation!r} of {where}, {needed} are needed")


class DamageIsTold(Rule):
    """S4 (0017; E): whoever comes back to a damaged file says so and names it, or has no use for
    any of its files.

    A segment of images may have none that counts.
    """

    rule = "S4"
    sentence = "a damaged file is told by its name, and never begun with"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._rotten: dict[Host, str] = {}
        """File by the place where it lies."""

    def rotten(self, host: Host, file: str) -> None:
        """E."""
        self._rotten[host] = file

    def note(self, host: Host, note: Note) -> None:
        """E: told, or set aside unread; or back in the cluster without a word."""
        file = self._rotten.get(host)
        if file is None:
            return
        if note.kind in DAMAGE_NOTES and file in str(note.fields.get("reason")):
            self.world.sometimes(DAMAGED)
            del self._rotten[host]
        elif note.kind == "files_set_aside":
            del self._rotten[host]
        elif note.kind == "recovery.over":
            del self._rotten[host]
            if not file.startswith(IMAGES):
                self.fail(f"{file} is, and nobody has said so", host.name)


class DiskIsMemory(Rule):
    """S7 (0017, APR-01; SQ): a load of what lies on the disk gives what the member holds.

    Looked at from each safe point on, at each member once, as soon as nothing is on its way to its
    disk. Where all that was written is synced too, the copy that is loaded has lost its power.
    """

    rule = "S7"
    sentence = "what a load of its disk gives is what a member holds: content, versions, doubt"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._looks: dict[Host, int] = {}
        """Members that are to be looked at, and how often that was tried."""

    def quiet(self) -> None:
        """Q."""
        if self.world.plan.settings.persistence.enabled:
            self._looks = dict.fromkeys(self.world.up_hosts(), 0)
            self.sample()

    def sample(self) -> None:
        """S."""
        for host, looks in list(self._looks.items()):
            log = host.member.persistence.log if host.is_up else None
            if log is None or looks >= LOOKS_MAX:
                del self._looks[host]
            elif is_idle(log):
                del self._looks[host]
                self._look(host, log)
            else:
                self._looks[host] = looks + 1

    def ended(self, host: Host, reason: str) -> None:
        """Another process has another log."""
        self._looks.pop(host, None)

    def _look(self, host: Host, log: DiskLog) -> None:
        disk = host.disk.fork(random.Random(self.world.now_us))
        if not log._unsynced:
            disk.crash()
        try:
            loaded = load_all(disk, host)
        except (DamageError, DiskProblem) as problem:
            self.fail(str(problem), host.name)
            return
        held: Fragments = {
            (partition.pid, namespace): fragment
            for partition in host.member.dataplane.partitions
            for namespace, fragment in partition.fragments.items()
            if fragment.log is not None
        }
        for key in sorted({**held, **loaded}):
            difference = _difference(held.get(key), loaded.get(key))
            if difference:
                self.fail(f"p{key[0]} {key[1]} {difference}", host.name)
                return


def is_idle(log: DiskLog) -> bool:
    """Whether nothing is on its way to the disk, or waits for it or for the note of a row."""
    return log.has_begun and not (log._has_news or log._dropping or log.waiting.under_way)


def is_told(log: DiskLog) -> bool:
    """Whether the cluster file says all that there is to say, and nothing waits to be synced."""
    return not (log._must_note or log._unsynced)


def load_all(disk: SimDisk, host: Host, only: Key | None = None) -> Fragments:
    """What the files on a disk hold, or one fragment, made with the stores of a member that runs.

    Raises:
        DamageError: The files are not what was written.
        DiskProblem: A file cannot be read.
    """
    found = cluster_file(disk)
    if found is None:
        return {}
    make = host.member.dataplane.holdings.make_as
    loading = Loading(
        found.log,
        disk.list_folder(LOG_FOLDER),
        lambda pid, namespace: only is None or only == (pid, namespace),
        lambda pid, namespace, state: make(
            pid, namespace, (state.sync_count, state.async_count), state.generation
        ),
        encryption=reader(),
        cluster_id=found.members.cluster_id,
    )
    while not loading.is_done:
        loading.take(disk.execute(loading.next_commands()))
    return {(one.partition_id, one.namespace): one for one in loading.fragments}


def _difference(held: Fragment | None, loaded: Fragment | None) -> str:
    """In what a fragment differs from what was loaded; empty when it does not."""
    if held is None or loaded is None:
        return "is held and not on the disk" if loaded is None else "is on the disk and not held"
    if content_of(held) != content_of(loaded):
        return f"holds {len(held.store)}, its disk {len(loaded.store)}, or others"
    for name in ("lineage", "base_lineage", "base", "is_dirty", "generation", "backup_count"):
        here, there = getattr(held, name), getattr(loaded, name)
        if here != there:
            return f"has {name} {here}, on its disk {there}"
    if held.counters() != loaded.counters():
        return f"has counters {held.counters()}, on its disk {loaded.counters()}"
    return ""


class DiskSightings(Sightings):
    """When everybody died, and what became of files."""

    situations = (
        *(ALL_DIED, DIED_LOADING, DIED_MIGRATING, DIED_JOINING, DIED_LEAVING),
        *(SET_ASIDE, LEFT_OUT, CAME_BACK, REFUSED, FAILED, DAMAGED),
    )
    notes: ClassVar = {
        "files_set_aside": SET_ASIDE,
        "recovery.left_out": LEFT_OUT,
        "recovery.loaded": CAME_BACK,
        "disk_refuses": REFUSED,
        "disk_failed": FAILED,
    }

    def outage(self, power: bool) -> None:
        """E: before anybody is dead."""
        self.saw(ALL_DIED)
        hosts = self.world.up_hosts()
        if self.world.is_dark and hosts:
            self.saw(DIED_LOADING)
        if any(host.member.migrations.active_migrations() for host in hosts):
            self.saw(DIED_MIGRATING)
        if any(not host.joined for host in hosts) and not self.world.is_dark:
            self.saw(DIED_JOINING)
        if any(host.is_leaving for host in hosts):
            self.saw(DIED_LEAVING)


RULES: tuple[type[Rule], ...] = (
    AnsweredAfterSync,
    DiskIsMemory,
    DamageIsTold,
    MayBeLost,
    DiskSightings,
)
