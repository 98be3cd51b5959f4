"""A few data planes side by side: rows set by hand, traffic delivered, dropped or kept.

Virtual time only. There is no migration room here: a test plays it and calls the FragmentHost.
"""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.core.context import Context
from whimbrel.core.effects import ArmTimer, Send
from whimbrel.core.ids import (
    Address,
    MemberId,
    Namespace,
    PartitionId,
    ReplicaIndex,
    Row,
    namespace_of,
)
from whimbrel.core.messages import Message
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

SECOND = 1_000_000
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


class Host:
    """One member's data plane with its map service and armed timers."""

    def __init__(self, name: str, settings: CoreSettings, port: int) -> None:
        info = MemberInfo(MemberId(name), Address("127.0.0.1", port))
        self.id = info.id
        self.info = info
        self.ctx = Context(info, settings, 1_000 + port)
        self.plane = DataPlane(self.ctx)
        self.maps = MapService(self.plane)
        self.timers: dict[str, tuple[int, int]] = {}

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


class Net:
    """The members and what is under way between them."""

    def __init__(self, names: str = "ab", settings: CoreSettings = SETTINGS) -> None:
        self.now_us = 10 * SECOND
        self.settings = settings
        self.hosts = {MemberId(n): Host(n, settings, i) for i, n in enumerate(names)}
        self.drop: Drop | None = None
        self.log: list[tuple[MemberId, MemberId, Message]] = []
        self.held: dict[tuple[MemberId, MemberId], None] = {}
        self._version = 0
        self.set_members(names)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[MemberId(name)]

    def set_members(self, names: str) -> None:
        """Install a member list everywhere it names."""
        self._version += 1
        infos = tuple(self[name].info for name in names)
        for name in names:
            ctx = self[name].ctx
            old, ctx.members = ctx.members, MemberList(self._version, infos)
            self._clock(self[name])
            self[name].plane.view_changed(old, ctx.members)

    def set_row(self, pid: int, members: str, version: int, only: str = "") -> None:
        """The master's row reaches every member, or those in ``only``."""
        row = make_row(members)
        for host in self.hosts.values():
            if only and host.id not in only:
                continue
            self._clock(host)
            before = host.plane.partitions[pid].row
            host.plane.roles.row_changed(PartitionId(pid), before, row, version)

    def put(self, name: str, number: int, text: str, pid: int = 0, at: str = "a") -> PendingReply:
        """Write at a primary, with a reply that waits."""
        host = self[at]
        self._clock(host)
        reply = PendingReply(number)
        host.maps.put(host.plane.partitions[pid], map_of(name), key(number), value(text), reply)
        return reply

    # -- traffic --------------------------------------------------------------------------

    def pump(self, rounds: int = 200) -> None:
        """Deliver until nothing moves."""
        for _ in range(rounds):
            moved = [self._turn(host) for host in self.hosts.values()]
            if not any(moved):
                return
        raise AssertionError("the traffic does not end")

    def advance(self, span_us: int, step_us: int = SECOND // 4) -> None:
        """Let time pass; fire timers and deliver."""
        end_us = self.now_us + span_us
        self.pump()
        while self.now_us < end_us:
            self.now_us = min(end_us, self.now_us + step_us)
            for host in self.hosts.values():
                self._clock(host)
                for name, (generation, at_us) in list(host.timers.items()):
                    if at_us <= self.now_us:
                        del host.timers[name]
                        if host.ctx.take_timer(name, generation):
                            host.plane.on_timer(name)
            self.pump()

    def _turn(self, host: Host) -> bool:
        self._clock(host)
        moved = False
        effects, host.ctx.effects = host.ctx.effects, []
        for effect in effects:
            if isinstance(effect, ArmTimer):
                host.timers[effect.key] = (effect.generation, effect.at_us)
            elif isinstance(effect, Send):
                moved = True
                self.log.append((host.id, effect.to, effect.message))
                if self._passes(host.id, effect.to, effect.message):
                    self[effect.to].plane.on_message(host.id, effect.message)
        plane = host.plane  # asked only when it says so, as the serving layer does
        for target, payload in plane.outgoing.take_backups() if plane.outgoing.has_backups else ():
            moved = True
            if self._passes(host.id, target, payload):
                self[target].plane.incoming.apply_backups(host.id, payload)
        for target, payload in plane.incoming.take_acks() if plane.incoming.owes_acks else ():
            moved = True
            if self._passes(host.id, target, payload):
                self[target].plane.apply_acks(host.id, payload)
        return moved

    def _passes(self, sender: MemberId, target: MemberId, what: object) -> bool:
        if target not in self.hosts or (sender, target) in self.held:
            return False
        self._clock(self.hosts[target])
        return self.drop is None or not self.drop(sender, target, what)

    def _clock(self, host: Host) -> None:
        host.ctx.now_us = self.now_us
        host.ctx.wall_ms = self.now_us // 1_000

    def cut(self, sender: str, target: str) -> None:
        """The connection from one to the other breaks."""
        self.held[(MemberId(sender), MemberId(target))] = None
        self._clock(self[sender])
        self[sender].plane.link_lost(MemberId(target))

    def mend(self, sender: str, target: str) -> None:
        """The connection stands again."""
        del self.held[(MemberId(sender), MemberId(target))]
        self._clock(self[sender])
        self[sender].plane.link_restored(MemberId(target))

    def crash(self, name: str) -> None:
        """A member is gone."""
        del self.hosts[MemberId(name)]

    # -- migrations -----------------------------------------------------------------------

    def migrate(self, migration: MigrationInfo, source: str, chunk: int = 400) -> int:
        """Copy for a migration, message by message; the parts' bytes."""
        plane = self[source].plane
        destination = migration.step.destination
        assert destination is not None
        plane.roles.begin_source(migration)
        target = self.hosts[destination].plane
        target.roles.begin_destination(migration)
        self.pump()
        export = plane.roles.open_export(migration)
        last, moved = False, 0
        while not last:
            parts, last = export.next_parts(chunk)
            target.roles.ingest(migration, parts)
            moved += sum(len(part.data) for part in parts)
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
