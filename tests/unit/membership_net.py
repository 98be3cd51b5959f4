"""Clusters of membership rooms: links that delay, lose and break, one-way cuts, pauses.

It checks M1, M2 and M4 at every installed list and M7 at every number, and leaves it to the tests
to ask for agreement when the faults are over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from tests.unit.cluster import SECOND as SECOND
from tests.unit.cluster import Cluster, Peer

from whimbrel.core.context import Context
from whimbrel.core.effects import Note
from whimbrel.core.ids import Address, MemberId, PartitionId
from whimbrel.core.membership.membership_state import MemberPhase
from whimbrel.core.membership.service import Membership
from whimbrel.core.messages import Message
from whimbrel.core.model import MemberInfo, MemberList
from whimbrel.core.settings import CoreSettings

SETTINGS = CoreSettings(
    heartbeat_interval_us=SECOND,
    heartbeat_timeout_us=5 * SECOND,
    claim_timeout_us=8 * SECOND,
    call_timeout_us=SECOND,
)
"""The product's defaults with shorter time-outs."""


def address_of(port: int) -> Address:
    return Address("127.0.0.1", port)


class NoTable:
    """A member without partitions: nothing is ever under way, every table is alike."""

    def local_work(self) -> str:
        return ""

    def pending_work(self) -> str:
        return ""

    def is_published(self) -> bool:
        return True

    def table_mark(self) -> int:
        return 0

    def knows_stable_table(self) -> bool:
        return True

    def seats_without_data(self) -> tuple[PartitionId, ...]:
        return ()

    def note_without_data(self, found: Sequence[tuple[PartitionId, MemberId]]) -> None:
        return

    def stand_still_over(self) -> None:
        return


class Host(Peer):
    """One process: its membership room is real."""

    def __init__(self, net: Net, info: MemberInfo, settings: CoreSettings) -> None:
        super().__init__(net, Context(info, settings, net.now_us))
        self.net = net
        self.room = room = Membership(self.ctx, NoTable())
        self.join: tuple[Address, ...] = ()
        self.views: list[MemberList] = []
        self.messages_sent = 0
        self.calls: list[str] = []
        """Callbacks that were called, in order."""
        self.expelled: str | None = None
        self.joined_us = 0
        self.expelled_us = 0
        room.on_view_changed = self.view_changed
        room.on_joined = self._joined
        room.on_became_master = lambda: self.calls.append("became_master")
        room.on_leave_requested = lambda: net.leave_requested(self)
        room.on_left = lambda: self.calls.append("left")
        room.on_expelled = lambda reason: net.was_expelled(self, reason)

    def _joined(self) -> None:
        self.calls.append("joined")
        self.joined_us = self.net.now_us

    def view_changed(self, old: MemberList, new: MemberList) -> None:
        self.net.look_at_view(self, old, new)

    def receive(self, source: Peer, message: Any) -> None:
        self.room.on_message(source.id, source.address, message)

    def on_timer(self, key: str) -> None:
        self.room.on_timer(key)

    def link_restored(self, member: MemberId) -> None:
        self.room.on_link_restored(member)

    def link_failed(self, member: MemberId) -> None:
        self.room.on_link_failed(member)

    def address_unreachable(self, address: Address) -> None:
        self.room.on_address_unreachable(address)

    def carry_out_effect(self, effect: object) -> None:
        super().carry_out_effect(effect)
        if isinstance(effect, Note) and effect.kind == "member_numbered":
            self.net.look_at_number(self)

    @property
    def ids(self) -> tuple[MemberId, ...]:
        return self.ctx.members.ids()

    @property
    def joined(self) -> bool:
        return self.alive and self.room.phase is MemberPhase.MEMBER

    def exit_status(self) -> int | None:
        """How the process ended by itself; None when it did not."""
        return None if self.stopped is None else self.stopped.exit_status

    def reason(self) -> str:
        return "" if self.stopped is None else self.stopped.reason


class Net(Cluster[Host]):
    """The world, with seeded choices."""

    def __init__(
        self,
        seed: int = 0,
        loss: float = 0.0,
        delay_us: tuple[int, int] = (200, 5_000),
        settings: CoreSettings = SETTINGS,
    ) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.loss = loss
        self.delay_us = delay_us
        self.settings = settings
        self.hosts = self.peers
        self.lost: Callable[[Host, Host, Message], bool] = lambda source, target, message: False
        """Which messages over links never arrive, beside those lost by chance."""
        self.respawn = False
        """Whether an expelled process is followed by a fresh one on its address."""
        self.hands_on = True
        """Whether that one hears where the members listen that the one before gave way to."""
        self.hold_leavers = False
        """Whether leaving members are kept, as if their data never moved."""
        self._views: dict[tuple[int, MemberId | None], MemberList] = {}
        self._numbered: dict[tuple[str, int], Host] = {}

    # -- running --------------------------------------------------------------------------

    def run(self, span_us: int) -> None:
        self.play(self.now_us + span_us)

    def run_until(self, condition: Callable[[], bool], limit_us: int = 60 * SECOND) -> int:
        """Run until the condition holds; returns the time that took."""
        begin_us = self.now_us
        held = self.play(begin_us + limit_us, condition)
        assert held, f"waited in vain:\n{self.describe()}"
        return self.now_us - begin_us

    # -- acting ---------------------------------------------------------------------------

    def start(
        self,
        port: int,
        join: Iterable[int] = (),
        *,
        lite: bool = False,
        id: str = "",  # noqa: A002 - as the field is called
        settings: CoreSettings | None = None,
        heard: tuple[Address, ...] = (),
    ) -> Host:
        assert self.listening(address_of(port)) is None, "port in use"
        member = MemberId(id or f"m{len(self.hosts)}-{port}")
        info = MemberInfo(member, address_of(port), lite=lite)
        host = Host(self, info, settings or self.settings)
        host.join = tuple(address_of(number) for number in join)
        host.step(lambda: host.room.on_started(host.join, heard))
        return host

    def cluster(self, count: int, first_port: int = 1) -> list[Host]:
        """A cluster of that many members, started one after another; the first is the master."""
        ports = range(first_port, first_port + count)
        hosts = []
        for port in ports:
            hosts.append(self.start(port, ports))
            self.run_until(lambda: hosts[-1].joined)
        self.run_until(lambda: self.agreed(hosts))
        return hosts

    def cut(self, sources: Sequence[Host], targets: Sequence[Host], *, both: bool = False) -> None:
        """From now on nothing gets from any source to any target."""
        self.cut_off(sources, targets)
        if both:
            self.cut_off(targets, sources)

    def leave(self, host: Host) -> None:
        host.step(host.room.want_leave)

    # -- looking --------------------------------------------------------------------------

    def live(self) -> list[Host]:
        return self.living()

    def agreed(self, hosts: Sequence[Host] | None = None) -> bool:
        """Whether these (default: all live) are joined, with one list that names exactly them."""
        hosts = self.live() if hosts is None else hosts
        return (
            bool(hosts)
            and all(host.joined for host in hosts)
            and all(host.ctx.members == hosts[0].ctx.members for host in hosts)
            and sorted(hosts[0].ids) == sorted(host.id for host in hosts)
        )

    def describe(self) -> str:
        lines = [
            f"{host.id} {host.room.phase.value} paused={host.paused}"
            f" v{host.ctx.members.version} {host.ids} suspects {host.room.detector.suspected()}"
            f" takes {host.room.taken_master}"
            for host in self.live()
        ]
        return "\n".join(lines)

    # -- the world ------------------------------------------------------------------------

    def delay_of(self, message: Any) -> int:
        return self.random.randint(*self.delay_us)

    def is_unlucky(self) -> bool:
        return self.random.random() < self.loss

    def copies_of(self, source: Host, target: Host, message: Any) -> int:
        return 0 if self.is_unlucky() or self.lost(source, target, message) else 1

    def send(self, source: Host, to: MemberId, message: Any) -> None:
        assert to in source.links, f"{source.id} has no link to {to} for a {type(message).__name__}"
        source.messages_sent += 1
        super().send(source, to, message)

    def send_to(self, source: Host, address: Address, message: Any) -> None:
        source.messages_sent += 1
        super().send_to(source, address, message)

    # -- what the rooms say ---------------------------------------------------------------

    def look_at_view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """M1 and M2: see the assertions."""
        assert new is host.ctx.members, "the callback comes after the list is in place"
        assert all(view.version < new.version for view in host.views), "M1: rising versions"
        assert new.get(host.id) is not None, "M1: the list contains its installer"
        known = self._views.get((new.version, new.master))
        assert known is None or known == new, "M1: one list per master and version"
        if known is None:
            assert new.master == host.id, "M2: a list begins at its master, the oldest in it"
        self._views[new.version, new.master] = new
        for info in new.members:
            if host.id == new.master and old.get(info.id) is None:
                self._entered(info)
        host.views.append(new)

    def _entered(self, info: MemberInfo) -> None:
        """M4: an identity belongs to one process only."""
        hosts = [host for host in self.hosts if host.id == info.id]
        assert any(host.ctx.started_us == info.started_us for host in hosts), "M4: unknown process"

    def look_at_number(self, host: Host) -> None:
        """M7: a number is one process's for the life of a cluster."""
        key = host.ctx.members.cluster_id, host.room.numbers.number
        owner = self._numbered.setdefault(key, host)
        assert owner is host, f"M7: {host.id} has the number {key[1]} of {owner.id}"

    def leave_requested(self, host: Host) -> None:
        if not self.hold_leavers:
            for member in host.ctx.leaving:
                self._allow_later(host, member)

    def _allow_later(self, host: Host, member: MemberId) -> None:
        self.at(SECOND // 5, lambda: host.step(lambda: host.room.allow_leave(member)))

    def was_expelled(self, host: Host, reason: str) -> None:
        host.expelled = reason
        host.expelled_us = self.now_us
        self.kill(host)
        if self.respawn:
            self.at(SECOND // 10, lambda: self._respawn(host))

    def _respawn(self, old: Host) -> None:
        if self.listening(old.address) is None:
            ports = tuple(address.port for address in old.join)
            heard = old.room.gone_on_at if self.hands_on else ()
            self.start(old.address.port, ports, heard=heard)


def with_settings(**changes: object) -> CoreSettings:
    return msgspec.structs.replace(SETTINGS, **changes)
