"""Clusters of data planes: rows set by hand, traffic delivered or dropped.

There is no migration room here: a test plays it and calls the FragmentHost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from tests.unit.cluster import SECOND as SECOND
from tests.unit.cluster import Cluster, Peer

from whimbrel.core.context import Context
from whimbrel.core.ids import (
    Address,
    MemberId,
    Namespace,
    PartitionId,
    ReplicaIndex,
    Row,
    namespace_of,
)
from whimbrel.core.messages import NOTHING_COMPARED, Message, Purpose, TransferAnswered
from whimbrel.core.model import (
    MemberInfo,
    MemberList,
    MigrationInfo,
    MigrationKind,
    Step,
)
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.core.settings import CoreSettings
from whimbrel.structures.map.service import MapService
from whimbrel.structures.map.settings import MapSettings

SETTINGS = CoreSettings(
    partition_count=4,
    structures=(
        MapSettings("default"),
        MapSettings("b0*", 0),
        MapSettings("b2*", 2),
        MapSettings("b3*", 3),
        MapSettings("a1*", 0, 1),
    ),
)
COPIED_WHOLE = msgspec.structs.replace(
    SETTINGS,
    structures=tuple(msgspec.structs.replace(one, comparison=False) for one in SETTINGS.structures),
)
"""The same maps, none of which is compared when it is copied."""
Drop = Callable[[MemberId, MemberId, object], bool]


def key(number: int) -> bytes:
    """A Data that looks like a long's."""
    return b"\0\0\0\0" + (-8).to_bytes(4, "big", signed=True) + number.to_bytes(8, "big")


def value(text: str) -> bytes:
    """A Data that looks like a byte array's."""
    return b"\0\0\0\0" + (-12).to_bytes(4, "big", signed=True) + text.encode()


def map_of(name: str) -> Namespace:
    """The namespace of a map."""
    return namespace_of("map", name)


M = map_of("m")


def make_row(members: str) -> Row:
    """``"a-c"`` is primary a, hole, c."""
    slots: list[MemberId | None] = [None if name == "-" else MemberId(name) for name in members]
    return tuple(slots + [None] * (7 - len(slots)))


class Host(Peer):
    """One member: its data plane and a map service are real."""

    def __init__(self, net: Net, name: str, port: int) -> None:
        info = MemberInfo(MemberId(name), Address("127.0.0.1", port))
        super().__init__(net, Context(info, net.settings, 1_000 + port))
        self.plane = DataPlane(self.ctx)
        self.maps = MapService(self.plane)

    def receive(self, source: Peer, message: Any) -> None:
        match message:
            case (take, payload):
                take(self.plane, source.id, payload)
            case _:
                self.plane.on_message(source.id, message)

    def on_timer(self, key: str) -> None:
        self.plane.on_timer(key)

    def view_changed(self, old: MemberList, new: MemberList) -> None:
        self.plane.view_changed(old, new)

    def carry_out(self) -> None:
        super().carry_out()
        plane = self.plane  # asked only when it says so, as the serving layer does
        for target, payload in plane.outgoing.take_backups() if plane.outgoing.has_backups else ():
            self.cluster.send(self, target, (take_backups, payload))
        for target, payload in plane.incoming.take_acks() if plane.incoming.owes_acks else ():
            self.cluster.send(self, target, (take_acks, payload))

    def fragment(self, pid: int, name: str) -> Fragment:
        """The fragment of a map; fails when there is none."""
        return self.plane.partitions[pid].fragments[map_of(name)]

    def destroy(self, name: str, generation: int) -> None:
        """The registry says that a map was destroyed."""
        self.plane.holdings.destroy(map_of(name), generation)
        self.maps.destroyed(map_of(name))

    def content(self, pid: int, name: str) -> dict[bytes, bytes]:
        """Key to value of a map's fragment, empty when there is none."""
        found = self.plane.partitions[pid].fragments.get(map_of(name))
        if found is None:
            return {}
        return dict(found.store.entries(self.ctx.wall_ms))  # type: ignore[attr-defined]


def take_backups(plane: DataPlane, sender: MemberId, payload: bytes) -> None:
    plane.incoming.apply_backups(sender, payload)


def take_acks(plane: DataPlane, sender: MemberId, payload: bytes) -> None:
    plane.outgoing.apply_acks(sender, payload)


class Net(Cluster[Host]):
    """The members and what is under way between them; it moves when a test says so."""

    is_lazy = True

    def __init__(self, names: str = "ab", settings: CoreSettings = SETTINGS) -> None:
        super().__init__(10 * SECOND)
        self.settings = settings
        self.drop: Drop | None = None
        self.log: list[tuple[MemberId, MemberId, Message]] = []
        self._version = 0
        for port, name in enumerate(names):
            Host(self, name, port)
        self.set_members(names)

    def __getitem__(self, name: str) -> Host:
        return self.by_id[name]

    @property
    def hosts(self) -> dict[MemberId, Host]:
        """Those that live."""
        return {host.id: host for host in self.living()}

    def restart(self, name: str, port: int) -> Host:
        """A fresh process of an identity, in place of the one there was."""
        self[name].alive = False
        return Host(self, name, port)

    def set_members(self, names: str) -> None:
        """Install a member list everywhere it names."""
        self._version += 1
        new = MemberList(self._version, tuple(self[name].info for name in names))
        for name in names:
            self[name].begin()
            self.install(self[name], new)

    def set_row(self, pid: int, members: str, version: int, only: str = "") -> None:
        """The master's row reaches every member, or those in ``only``."""
        row = make_row(members)
        for host in self.living():
            if only and host.id not in only:
                continue
            host.begin()
            before = host.plane.partitions[pid].row
            host.plane.roles.row_changed(PartitionId(pid), before, row, version)

    def put(self, name: str, number: int, text: str, pid: int = 0, at: str = "a") -> PendingReply:
        """Write at a primary, with a reply that waits."""
        host = self[at]
        host.begin()
        reply = PendingReply(number)
        host.maps.put(host.plane.partitions[pid], map_of(name), key(number), value(text), reply)
        return reply

    # -- traffic --------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver until nothing moves."""
        self.drain()

    def advance(self, span_us: int) -> None:
        """Let time pass; fire timers and deliver."""
        self.drain()
        self.play(self.now_us + span_us)

    def send(self, source: Host, to: MemberId, message: Any) -> None:
        if isinstance(message, Message):
            self.log.append((source.id, to, message))
        super().send(source, to, message)

    def copies_of(self, source: Host, target: Host, message: Any) -> int:
        what = message[1] if isinstance(message, tuple) else message
        return 0 if self.drop is not None and self.drop(source.id, target.id, what) else 1

    def drop_first(self, kind: type[Any]) -> list[Any]:
        """Lose the next message of a kind; it stands in the list then."""
        dropped: list[Any] = []

        def drop(_sender: MemberId, _target: MemberId, what: object) -> bool:
            if isinstance(what, kind) and not dropped:
                dropped.append(what)
                return True
            return False

        self.drop = drop
        return dropped

    def cut(self, sender: str, target: str) -> None:
        """The connection from one to the other breaks."""
        self.cut_off([self[sender]], [self[target]])
        self[sender].begin()
        self[sender].plane.link_lost(MemberId(target))

    def mend(self, sender: str, target: str) -> None:
        """The connection stands again."""
        del self.cuts[self[sender].address, self[target].address]
        self[sender].begin()
        self[sender].plane.link_restored(MemberId(target))

    def crash(self, name: str) -> None:
        """A member is gone."""
        self.kill(self[name])

    # -- migrations -----------------------------------------------------------------------

    def migrate(self, migration: MigrationInfo, source: str, chunk: int = 400) -> int:
        """Copy for a migration, message by message; the bytes of parts, sums among them."""
        plane = self[source].plane
        destination = migration.step.destination
        assert destination is not None
        plane.roles.begin_source(migration)
        target = self[destination].plane
        target.roles.begin_destination(migration)
        self.pump()
        export = plane.roles.open_export(migration)
        bases, progress = target.roles.bases(migration), NOTHING_COMPARED
        last, moved, number = False, 0, 0
        while not last:
            name = (Purpose.MIGRATION, migration.id, number)
            export.answered(TransferAnswered(*name, True, "", progress, bases))
            parts, last = export.next_parts(chunk)
            progress, bases, number = target.roles.ingest(migration, parts), (), number + 1
            moved += sum(len(part.data) + len(part.sums) for part in parts)
            self.pump()
        return moved

    def check_equal(self, pid: int, members: str, name: str) -> None:
        """The replicas of a map are equal in content and in versions (D9, AE-03)."""
        primary = self[members[0]].fragment(pid, name)
        content = self[members[0]].content(pid, name)
        for index, member in enumerate(members[1:], 1):
            if index > primary.backup_count or member == "-":
                continue
            assert self[member].content(pid, name) == content, (member, name)
            own = self[member].fragment(pid, name)
            slot = index - 1
            assert own.counters()[slot:] == primary.counters()[slot:], (member, name)
            assert not any(own.counters()[:slot])
            assert own.lineage == primary.lineage or not any(own.counters()[slot:])
            assert not own.is_dirty


def migration(
    kind: MigrationKind,
    destination: str,
    version: int,
    new: int,
    current: int = -1,
    source: str = "",
    source_slots: tuple[int, int] = (-1, -1),
    pid: int = 0,
) -> MigrationInfo:
    """A stamped migration of partition ``pid``."""
    step = Step(
        kind,
        MemberId(source) if source else None,
        MemberId(destination),
        ReplicaIndex(source_slots[0]),
        ReplicaIndex(source_slots[1]),
        ReplicaIndex(current),
        ReplicaIndex(new),
    )
    return MigrationInfo(f"{kind}:{version}", PartitionId(pid), step, MemberId("a"), version)
