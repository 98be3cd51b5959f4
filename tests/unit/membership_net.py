"""A tiny world for membership rooms: virtual time, links that delay, lose and break, one-way cuts.

It checks M1, M2 and M4 at every installed list, and leaves it to the tests to ask for agreement
when the faults are over. Messages from one member to another keep their order; messages to an
address travel on their own.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence

import msgspec

from whimbrel.core.context import Context
from whimbrel.core.effects import ArmTimer, LinkUnwanted, LinkWanted, Note, Send, SendTo, Stopped
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.membership.membership_state import MemberPhase
from whimbrel.core.membership.service import Membership
from whimbrel.core.messages import Message
from whimbrel.core.model import MemberInfo, MemberList
from whimbrel.core.settings import CoreSettings

SECOND = 1_000_000
SETTINGS = CoreSettings(
    heartbeat_interval_us=SECOND,
    heartbeat_timeout_us=5 * SECOND,
    claim_timeout_us=8 * SECOND,
    call_timeout_us=SECOND,
)
"""The product's defaults with shorter time-outs."""


def address_of(port: int) -> Address:
    return Address("127.0.0.1", port)


class Host:
    """One process: a membership room and what its shell would know."""

    def __init__(self, net: Net, info: MemberInfo, settings: CoreSettings) -> None:
        self.net = net
        self.ctx = Context(info, settings, net.now_us)
        self.room = Membership(self.ctx)
        self.address = info.address
        self.id = info.id
        self.join: tuple[Address, ...] = ()
        self.alive = True
        self.paused = False
        self.waiting: list[Callable[[], None]] = []
        self.links: dict[MemberId, Address] = {}
        self.views: list[MemberList] = []
        self.notes: list[Note] = []
        self.messages_sent = 0
        self.calls: list[str] = []
        """Callbacks that were called, in order."""
        self.stopped: Stopped | None = None
        self.expelled: str | None = None
        self.room.on_view_changed = lambda old, new: net.view_changed(self, old, new)
        self.joined_us = 0
        self.expelled_us = 0
        self.room.on_joined = self._joined
        self.room.on_became_master = lambda: self.calls.append("became_master")
        self.room.on_leave_requested = lambda: net.leave_requested(self)
        self.room.on_left = lambda: self.calls.append("left")
        self.room.on_expelled = lambda reason: net.was_expelled(self, reason)

    def _joined(self) -> None:
        self.calls.append("joined")
        self.joined_us = self.net.now_us

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

    def step(self, action: Callable[[], None]) -> None:
        """Run one stimulus now, or when the process runs again."""
        if not self.alive:
            return
        if self.paused:
            self.waiting.append(action)
            return
        self.ctx.now_us = self.net.now_us
        action()
        effects, self.ctx.effects = self.ctx.effects, []
        self.net.perform(self, effects)


class Net:
    """The world: a heap of events in virtual microseconds, seeded choices."""

    def __init__(
        self,
        seed: int = 0,
        loss: float = 0.0,
        delay_us: tuple[int, int] = (200, 5_000),
        settings: CoreSettings = SETTINGS,
    ) -> None:
        self.random = random.Random(seed)
        self.loss = loss
        self.delay_us = delay_us
        self.settings = settings
        self.now_us = SECOND
        self.hosts: list[Host] = []
        self.cuts: dict[tuple[Address, Address], None] = {}
        self.lost: Callable[[Host, Host, Message], bool] = lambda source, target, message: False
        """Which messages over links never arrive, beside those lost by chance."""
        self.respawn = False
        """Whether an expelled process is followed by a fresh one on its address."""
        self.hands_on = True
        """Whether that one hears where the members listen that the one before gave way to."""
        self.hold_leavers = False
        """Whether leaving members are kept, as if their data never moved."""
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._last_us: dict[tuple[Host, Address], int] = {}
        self._views: dict[tuple[int, MemberId | None], MemberList] = {}
        self._ids: dict[MemberId, Host] = {}

    # -- running --------------------------------------------------------------------------

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now_us + delay_us, self._sequence, action))

    def run(self, span_us: int) -> None:
        end_us = self.now_us + span_us
        while self._events and self._events[0][0] <= end_us:
            self.now_us, _, action = heapq.heappop(self._events)
            action()
        self.now_us = end_us

    def run_until(self, condition: Callable[[], bool], limit_us: int = 60 * SECOND) -> int:
        """Run until the condition holds; returns the time that took."""
        begin_us = self.now_us
        while not condition():
            assert self.now_us - begin_us < limit_us, f"waited in vain:\n{self.describe()}"
            assert self._events, "nothing more will happen"
            self.now_us, _, action = heapq.heappop(self._events)
            action()
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
        self.hosts.append(host)
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

    def kill(self, host: Host) -> None:
        """The process is gone; whoever has a link to it finds out when it connects again."""
        host.alive = False
        for other in self.hosts:
            if other.alive and host.id in other.links:
                sent_us = self._last_us.get((host, other.address), 0)
                due_us = max(sent_us, self.now_us + self._delay())
                self.at(due_us - self.now_us, lambda other=other: self._reconnect(other, host))  # type: ignore[misc]

    def pause(self, host: Host) -> None:
        host.paused = True

    def resume(self, host: Host) -> None:
        host.paused = False
        waiting, host.waiting = host.waiting, []
        for action in waiting:
            host.step(action)

    def cut(self, sources: Sequence[Host], targets: Sequence[Host], *, both: bool = False) -> None:
        """From now on nothing gets from any source to any target."""
        for source in sources:
            for target in targets:
                self.cuts[source.address, target.address] = None
        if both:
            self.cut(targets, sources)

    def heal(self) -> None:
        self.cuts.clear()

    def leave(self, host: Host) -> None:
        host.step(host.room.want_leave)

    # -- looking --------------------------------------------------------------------------

    def listening(self, address: Address) -> Host | None:
        for host in self.hosts:
            if host.alive and host.address == address:
                return host
        return None

    def live(self) -> list[Host]:
        return [host for host in self.hosts if host.alive]

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

    # -- the shells -----------------------------------------------------------------------

    def _delay(self) -> int:
        return self.random.randint(*self.delay_us)

    def perform(self, host: Host, effects: Iterable[object]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(host, effect.to, effect.message)
                case SendTo():
                    self._send_to(host, effect.address, effect.message)
                case ArmTimer():
                    self._arm(host, effect)
                case LinkWanted():
                    host.links[effect.member] = effect.address
                    if self.listening(effect.address) is None:
                        self.at(self._delay(), lambda to=effect.member: self._no_link(host, to))  # type: ignore[misc]
                case LinkUnwanted():
                    host.links.pop(effect.member)
                case Note():
                    host.notes.append(effect)
                case Stopped():
                    host.stopped = effect
                    self.kill(host)

    def _arm(self, host: Host, timer: ArmTimer) -> None:
        def fire() -> None:
            if host.ctx.take_timer(timer.key, timer.generation):
                host.room.on_timer(timer.key)

        self.at(timer.at_us - self.now_us, lambda: host.step(fire))

    def _send(self, host: Host, to: MemberId, message: Message) -> None:
        assert to in host.links, f"{host.id} has no link to {to} for a {type(message).__name__}"
        host.messages_sent += 1
        address = host.links[to]
        target = self.listening(address)
        if (host.address, address) in self.cuts or target is None:
            return
        if self.random.random() < self.loss or self.lost(host, target, message):
            return
        due_us = max(self._last_us.get((host, address), 0), self.now_us + self._delay())
        self._last_us[host, address] = due_us
        self.at(due_us - self.now_us, lambda: self._deliver(host, target, message))

    def _send_to(self, host: Host, address: Address, message: Message) -> None:
        host.messages_sent += 1
        target = self.listening(address)
        if (host.address, address) in self.cuts or (address, host.address) in self.cuts:
            self.at(SECOND, lambda: self._unreachable(host, address))
        elif target is None:
            self.at(self._delay(), lambda: self._unreachable(host, address))
        elif self.random.random() >= self.loss:
            self.at(self._delay(), lambda: self._deliver(host, target, message))

    def _deliver(self, source: Host, target: Host, message: Message) -> None:
        target.step(lambda: target.room.on_message(source.id, source.address, message))

    def _unreachable(self, host: Host, address: Address) -> None:
        host.step(lambda: host.room.on_address_unreachable(address))

    def _reconnect(self, host: Host, old: Host) -> None:
        """A shell connects again; it cannot tell one process on an address from another."""
        if old.id not in host.links:
            return
        if self.listening(old.address) is None:
            host.step(lambda: host.room.on_link_failed(old.id))
        else:
            host.step(lambda: host.room.on_link_restored(old.id))

    def _no_link(self, host: Host, to: MemberId) -> None:
        if to in host.links and self.listening(host.links[to]) is None:
            host.step(lambda: host.room.on_link_failed(to))

    # -- what the rooms say ---------------------------------------------------------------

    def view_changed(self, host: Host, old: MemberList, new: MemberList) -> None:
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
