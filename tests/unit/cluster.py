"""The test cluster: members, what is under way between them, and time.

A ``Peer`` is one process: its context, what its shell would keep, and those rooms of it that are
real. Each kind of cluster (``membership_net``, ``replication_net``, ``migration_net``,
``registry_net``, ``engine_pump``) says which rooms those are and plays their neighbours; what a
member asks for (messages, timers, links, notes) is carried out here, for all of them alike.

Time is virtual, in microseconds. A message that takes no time arrives behind all that was sent
before it; one that takes time keeps its place on its link.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from whimbrel.core.context import Context
from whimbrel.core.effects import ArmTimer, LinkUnwanted, LinkWanted, Note, Send, SendTo, Stopped
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.model import MemberList

MS = 1_000
SECOND = 1_000_000
DELIVERIES_MAX = 100_000
"""Deliveries at one moment after which the traffic is taken to be endless."""

P = TypeVar("P", bound="Peer")


class Peer:
    """One process. A kind of cluster says in a subclass which rooms are real."""

    def __init__(self, cluster: Cluster[Any], ctx: Context) -> None:
        self.cluster = cluster
        self.ctx = ctx
        self.info = ctx.me
        self.id = ctx.id
        self.address = ctx.me.address
        self.alive = True
        self.paused = False
        self.waiting: list[Callable[[], None]] = []
        """What happens to a paused process once it runs again."""
        self.links: dict[MemberId, Address] = {}
        self.failed: dict[MemberId, bool] = {}
        """Links that do not stand; whether it was told that they cannot be made again."""
        self.notes: list[Note] = []
        self.stopped: Stopped | None = None
        cluster.enter(self)

    # -- what comes in: the rooms that are real -------------------------------------------

    def receive(self, source: Peer, message: Any) -> None:
        """A message arrived."""
        raise NotImplementedError

    def on_timer(self, key: str) -> None:
        """A timer fired that is current."""
        raise NotImplementedError

    def view_changed(self, old: MemberList, new: MemberList) -> None:
        """A member list was installed."""

    def became_master(self) -> None:
        """This member is the master of the list just installed, and was not before."""

    def link_lost(self, member: MemberId) -> None:
        """The connection broke."""

    def link_restored(self, member: MemberId) -> None:
        """The connection stands again."""

    def link_failed(self, member: MemberId) -> None:
        """The connection broke, or could not be made, and nobody is there any more."""

    def address_unreachable(self, address: Address) -> None:
        """Nobody could be reached there."""

    # -- steps ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Set the time of a step, as ``Member.begin`` does."""
        self.ctx.now_us = self.cluster.now_us
        self.ctx.wall_ms = self.cluster.wall_ms
        self.ctx.known_cause = None

    def step(self, action: Callable[[], object]) -> None:
        """Run one stimulus now, or when the process runs again, and carry out what follows."""
        if self.paused and self.alive:
            self.waiting.append(lambda: self.step(action))
        elif self.alive:
            with self.cluster.step(self):
                action()

    def fire(self, key: str, generation: int) -> None:
        """A timer is due."""
        if self.ctx.take_timer(key, generation):
            self.on_timer(key)
            self.ctx.timer_done()

    def carry_out(self) -> None:
        """Carry out what the rooms have asked for."""
        effects, self.ctx.effects = self.ctx.effects, []
        for effect in effects:
            self.carry_out_effect(effect)

    def carry_out_effect(self, effect: object) -> None:
        """Carry out one effect; those that are for clients alone are nobody's here."""
        cluster = self.cluster
        match effect:
            case Send():
                cluster.send(self, effect.to, effect.message)
            case SendTo():
                cluster.send_to(self, effect.address, effect.message)
            case ArmTimer():
                cluster.arm(self, effect)
            case Note():
                self.notes.append(effect)
            case LinkWanted():
                self.links[effect.member] = effect.address
                cluster.connect(self, effect.member)
            case LinkUnwanted():
                self.links.pop(effect.member, None)
                self.failed.pop(effect.member, None)
            case Stopped():
                self.stopped = effect
                cluster.kill(self)


class Cluster(Generic[P]):
    """The processes and their world."""

    connect_timeout_us = SECOND
    """After this time it is told that an address cannot be reached to which the way is cut."""
    is_lazy = False
    """Whether tests call rooms without a step: what those ask for is then carried out when the
    traffic is let go."""

    def __init__(self, now_us: int = SECOND) -> None:
        self.now_us = now_us
        self.peers: list[P] = []
        """Every process there ever was, in the order of their starts."""
        self.by_id: dict[str, P] = {}
        """The latest process of each identity."""
        self.cuts: dict[tuple[Address, Address], None] = {}
        """From where to where nothing gets."""
        self.late_us: Callable[[str], int] = lambda _key: 0
        """How much later than it is due a timer fires."""
        self.flying: dict[int, Any] = {}
        """Messages (None: words of the network) that are on their links, in order."""
        self.queue: deque[Callable[[], None]] = deque()
        """What happens before time goes on."""
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._last_us: dict[Hashable, int] = {}
        """When the latest message of a link arrives."""

    @property
    def wall_ms(self) -> int:
        """Wall clock of the test."""
        return self.now_us // MS

    # -- members --------------------------------------------------------------------------

    def enter(self, peer: P) -> None:
        """A process begins; links to its identity that had failed are made now."""
        self.peers.append(peer)
        self.by_id[peer.id] = peer
        for other in self.living():
            if other.failed.get(peer.id):
                self.at(self.delay_of(None), lambda other=other: self._reconnect(other, peer.id))  # type: ignore[misc]

    def living(self) -> list[P]:
        """The processes that run, paused or not."""
        return [peer for peer in self.peers if peer.alive]

    def listening(self, address: Address) -> P | None:
        """Who can be reached at an address."""
        return next((p for p in self.peers if p.alive and p.address == address), None)

    def install(self, peer: P, new: MemberList) -> None:
        """Do what the membership room does with a list: it stands before anybody is told."""
        old, peer.ctx.members = peer.ctx.members, new
        peer.view_changed(old, new)
        if new.master == peer.id and old.master != peer.id:
            peer.became_master()

    def kill(self, peer: P) -> None:
        """The process ends without a word; who has a link to it hears it break."""
        peer.alive = False
        for other in self.living():
            if peer.id in other.links:
                self._post(
                    (peer.id, other.id, None),
                    self.delay_of(None),
                    lambda other=other: self.break_link(other, peer.id),  # type: ignore[misc]
                )

    def pause(self, peer: P) -> None:
        """Let nothing happen to a process until ``resume``."""
        peer.paused = True

    def resume(self, peer: P) -> None:
        """Let happen what was to happen meanwhile, in its order."""
        peer.paused = False
        waiting, peer.waiting = peer.waiting, []
        for action in waiting:
            action()

    # -- links ----------------------------------------------------------------------------

    def cut_off(self, sources: Sequence[P], targets: Sequence[P]) -> None:
        """From now on nothing gets from any source to any target."""
        for source, target in itertools.product(sources, targets):
            self.cuts[source.address, target.address] = None

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        self.cuts.clear()

    def is_cut(self, source: P, target: P) -> bool:
        """Whether nothing gets from one to the other."""
        return (source.address, target.address) in self.cuts

    def connect(self, peer: P, to: MemberId) -> None:
        """A link is wanted; it fails when the member is not at its address."""
        if not self._stands(peer, to):
            self.at(self.delay_of(None), lambda: self._reconnect(peer, to))

    def break_link(self, peer: P, to: MemberId) -> None:
        """A connection breaks and is made again, if there is still somebody to connect to."""
        if to in peer.links:
            peer.failed[to] = False
            peer.step(lambda: peer.link_lost(to))
            self._reconnect(peer, to)

    def _reconnect(self, peer: P, to: MemberId) -> None:
        if to not in peer.links:
            peer.failed.pop(to, None)
        elif not self._stands(peer, to):
            peer.failed[to] = True
            peer.step(lambda: peer.link_failed(to))
        elif to in peer.failed:
            del peer.failed[to]
            peer.step(lambda: peer.link_restored(to))

    def _stands(self, peer: P, to: MemberId) -> bool:
        """Whether the process at a link's other end is the member: its greeting says who it is."""
        there = self.listening(peer.links[to])
        return there is not None and there.id == to

    # -- messages -------------------------------------------------------------------------

    def copies_of(self, source: P, target: P, message: Any) -> int:
        """How often a message over a link arrives; 0 is lost."""
        return 0 if self.is_unlucky() else 1

    def is_unlucky(self) -> bool:
        """Whether chance takes a message."""
        return False

    def delay_of(self, message: Any) -> int:
        """How long a message takes, or a word of the network (None)."""
        return 0

    def channel_of(self, message: Any) -> Hashable:
        """Messages of one link and channel keep their order."""
        return None

    def send(self, source: P, to: MemberId, message: Any) -> None:
        """Send over a link, to the process that is there now."""
        target = self.by_id.get(to)
        if target is None or self.is_cut(source, target):
            return
        link = (source.id, target.id, self.channel_of(message))
        for _ in range(self.copies_of(source, target, message)):
            self._post(
                link,
                self.delay_of(message),
                lambda: self.arrive(source, target, message),
                message,
            )

    def send_to(self, source: P, address: Address, message: Any) -> None:
        """Send to whoever listens at an address; no order is kept."""
        target = self.listening(address)
        if target is None:
            self.at(self.delay_of(message), lambda: self._unreachable(source, address))
        elif self.is_cut(source, target) or self.is_cut(target, source):
            self.at(self.connect_timeout_us, lambda: self._unreachable(source, address))
        elif not self.is_unlucky():
            self.at(self.delay_of(message), lambda: self.arrive(source, target, message))

    def _unreachable(self, source: P, address: Address) -> None:
        source.step(lambda: source.address_unreachable(address))

    def arrive(self, source: P, target: P, message: Any) -> None:
        """A message is there."""
        target.step(lambda: target.receive(source, message))

    def _post(
        self, link: Hashable, delay_us: int, action: Callable[[], None], message: Any = None
    ) -> None:
        number = next(self._numbers)
        self.flying[number] = message

        def land() -> None:
            if number in self.flying:
                del self.flying[number]
                action()

        due_us = max(self.now_us + delay_us, self._last_us.get(link, 0))
        self._last_us[link] = due_us
        self.at(due_us - self.now_us, land)

    # -- time -----------------------------------------------------------------------------

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        """Let something happen after a while; before time goes on when that is none."""
        if delay_us:
            heapq.heappush(self._later, (self.now_us + delay_us, next(self._numbers), action))
        else:
            self.queue.append(action)

    def arm(self, peer: P, timer: ArmTimer) -> None:
        """Let a timer fire when it is due; whether it still counts is seen then."""
        due_us = timer.at_us + self.late_us(timer.key)

        def fire() -> None:
            peer.step(lambda: peer.fire(timer.key, timer.generation))

        heapq.heappush(self._later, (due_us, next(self._numbers), fire))

    @contextmanager
    def step(self, peer: P) -> Iterator[None]:
        """Let a member do something, and carry out what follows."""
        peer.begin()
        yield
        peer.carry_out()
        self.stepped(peer)

    def stepped(self, peer: P) -> None:
        """Look at what must hold after each step."""

    def drain(self) -> None:
        """Deliver what takes no time, and what follows from it, until nothing moves."""
        for _ in range(DELIVERIES_MAX):
            if self.is_lazy and not self.queue:
                for peer in self.living():
                    peer.carry_out()
            if not self.queue:
                return
            self.deliver_next()
        raise AssertionError("the traffic does not end")

    def lose(self, is_lost: Callable[[Any], bool]) -> int:
        """Take messages that are on their way from their links; how many."""
        lost = [number for number, message in self.flying.items() if is_lost(message)]
        for number in lost:
            del self.flying[number]
        return len(lost)

    def deliver_next(self) -> None:
        """Deliver what was sent first."""
        self.queue.popleft()()

    def play(self, until_us: int | None = None, stop: Callable[[], bool] | None = None) -> bool:
        """Let happen what is due until a moment, or until ``stop`` holds; whether it did.

        Without either, until nothing more will happen.
        """
        while stop is None or not stop():
            if self.queue:
                self.deliver_next()
            elif self._later and (until_us is None or self._later[0][0] <= until_us):
                due_us, _, action = heapq.heappop(self._later)
                self.now_us = max(self.now_us, due_us)
                action()
            else:
                self.now_us = self.now_us if until_us is None else until_us
                return False
        return True
