"""How simulated members hold connections to each other: the sending half of a shell.

Each member opens two connections to every member it wants to reach and only sends on them
(docs/design/0001, "Links between members"). A break of one breaks both; the shell then says
``LinkLost``, connects again, and says ``LinkRestored``, or ``LinkFailed`` when nobody listens.
"""

from __future__ import annotations

from typing import Any, Protocol

from whimbrel.core.ids import Address, MemberId
from whimbrel.core.messages import Message
from whimbrel.core.model import MemberInfo
from whimbrel.core.stimuli import AddressUnreachable, LinkFailed, LinkLost, LinkRestored, Stimulus
from whimbrel.serving.outputs import BULK, CONTROL
from whimbrel.sim.network import Network, Pipe

CHANNELS = (CONTROL, BULK)
CONNECT_TIMEOUT_US = 1_000_000
"""An attempt that gets no greeting back ends after this span; it says nothing about the member."""
RECONNECT_US = 60_000
"""Pause between two attempts."""
FAST_ATTEMPTS = 20
"""Refused attempts after which the pauses grow tenfold."""
LINGER_US = 1_000_000
"""A link that is no longer wanted stays this long, for last words to a member that was removed."""
WAITING_FRAMES_MAX = 10_000
"""Frames kept while the link is being made; more are dropped (they are repeated later)."""

Frame = tuple[str, int, Any]
"""(channel, kind, payload)"""
Caused = tuple[str, Message]
"""A message and what it follows from, as a MESSAGE frame that is not encoded carries it."""


class Endpoint(Protocol):
    """What a link needs of the place at either of its ends."""

    name: str
    info: MemberInfo
    incarnation: int
    is_up: bool
    is_silent: bool
    is_paused: bool

    @property
    def network(self) -> Network:
        """The network that all places share."""
        ...

    def endpoint_at(self, address: Address) -> Endpoint | None:
        """The place with that address."""
        ...

    def stimulate(self, stimulus: Stimulus) -> None:
        """Something that the shell says to its member."""
        ...

    def frame_arrived(self, incarnation: int, sender: MemberInfo, kind: int, payload: Any) -> None:
        """A frame comes out of a link."""
        ...

    def message_arrived(self, incarnation: int, sender: MemberInfo, payload: Any) -> None:
        """A message to an address comes out of the network."""
        ...


class PeerLink:
    """The two sending connections of one member to another."""

    def __init__(self, owner: Endpoint, peer: MemberId, address: Address) -> None:
        self._owner = owner
        self.peer = peer
        self.address = address
        self.pipes: dict[str, Pipe] | None = None
        """Channel to sending connection; None while the link does not stand."""
        self.target: Endpoint | None = None
        self.target_incarnation = 0
        self.closing = False
        self.is_unwanted = False
        """Set while it lingers; a member that is wanted again takes it over."""
        self._attempt = 0
        self._failures = 0
        self._lost = False
        self._told_failed = False
        self._waiting: list[Frame] = []

    def send(self, channel: str, kind: int, payload: Caused | bytes) -> None:
        """Send one frame, or keep it until the link stands."""
        if self.pipes is not None:
            self.pipes[channel].send((kind, payload))
        elif not self._lost and len(self._waiting) < WAITING_FRAMES_MAX:
            self._waiting.append((channel, kind, payload))

    def connect(self) -> None:
        """Start an attempt; its end is an event of its own."""
        owner = self._owner
        network = owner.network
        self._attempt += 1
        target = owner.endpoint_at(self.address)
        there = network.path(owner.name, target.name if target else "nowhere")
        delay_us = network.draw_delay_us(there)
        if target is not None:
            delay_us += network.draw_delay_us(network.path(target.name, owner.name))
        owner.network.scheduler.after(
            delay_us, self._arrived, owner.incarnation, self._attempt, target
        )

    def _arrived(self, incarnation: int, attempt: int, target: Endpoint | None) -> None:
        """The first packet of an attempt is there, or would be."""
        owner = self._owner
        if owner.incarnation != incarnation or attempt != self._attempt or self.closing:
            return
        network = owner.network
        if target is not None and (
            target.is_silent
            or target.is_paused
            or network.is_cut(owner.name, target.name)
            or network.is_cut(target.name, owner.name)
        ):
            owner.network.scheduler.after(
                CONNECT_TIMEOUT_US, self._ended, incarnation, attempt, None, False
            )
        else:
            # The other side's greeting tells a new process on an old address from the member.
            refused = target is None or not target.is_up or target.info.id != self.peer
            self._ended(incarnation, attempt, None if refused else target, refused)

    def _ended(
        self, incarnation: int, attempt: int, target: Endpoint | None, refused: bool
    ) -> None:
        owner = self._owner
        if owner.incarnation != incarnation or attempt != self._attempt or self.closing:
            return
        if target is not None:
            self._stands(target)
            return
        if self.is_unwanted:
            self.close()
            return
        self._failures += refused
        if refused and not self._told_failed:
            self._told_failed = True
            self._lost = True
            self._waiting.clear()
            owner.stimulate(LinkFailed(self.peer))
        pause_us = RECONNECT_US if self._failures < FAST_ATTEMPTS else 10 * RECONNECT_US
        owner.network.scheduler.after(pause_us, self._again, incarnation, attempt)

    def _again(self, incarnation: int, attempt: int) -> None:
        current = self._owner.incarnation == incarnation and attempt == self._attempt
        if current and not self.closing and self.pipes is None:
            self.connect()

    def _stands(self, target: Endpoint) -> None:
        owner = self._owner
        self.target, self.target_incarnation = target, target.incarnation
        incarnation, info = target.incarnation, owner.info

        def arrive(frame: tuple[int, Any]) -> None:
            target.frame_arrived(incarnation, info, frame[0], frame[1])

        network = owner.network
        self.pipes = {
            channel: network.open_pipe(owner.name, target.name, arrive) for channel in CHANNELS
        }
        self._failures = 0
        waiting, self._waiting = self._waiting, []
        for channel, kind, payload in waiting:
            self.pipes[channel].send((kind, payload))
        if self._lost or self._told_failed:
            self._lost = self._told_failed = False
            owner.stimulate(LinkRestored(self.peer))

    def break_now(self, notice_us: int | None) -> None:
        """Break both connections; the owner notices after a span (None: it never does)."""
        if self.pipes is None:
            return
        for pipe in self.pipes.values():
            self._owner.network.reset(pipe)
        if notice_us is not None:
            owner = self._owner
            owner.network.scheduler.after(
                notice_us, self._noticed, owner.incarnation, self.pipes[CONTROL]
            )

    def target_gone(self, notice_us: int) -> None:
        """The process at the other end is gone: nothing arrives there any more."""
        if self.pipes is None:
            return
        for pipe in self.pipes.values():
            pipe.close()
        owner = self._owner
        owner.network.scheduler.after(
            notice_us, self._noticed, owner.incarnation, self.pipes[CONTROL]
        )

    def _noticed(self, incarnation: int, pipe: Pipe) -> None:
        owner = self._owner
        if (
            owner.incarnation != incarnation
            or self.pipes is None
            or self.pipes[CONTROL] is not pipe
        ):
            return
        self.pipes = None
        if self.is_unwanted:
            self.close()
        if self.closing:
            return
        self._lost = True
        owner.stimulate(LinkLost(self.peer))
        self.connect()

    def close(self) -> None:
        """What is inside still arrives, then the link ends."""
        self.closing = True
        if self.pipes is not None:
            for pipe in self.pipes.values():
                pipe.end(len(pipe.queue))


class AddressLinks:
    """Short-lived connections to addresses whose owner is not known yet."""

    def __init__(self, owner: Endpoint) -> None:
        self._owner = owner
        self._pipes: dict[Address, tuple[Pipe, Endpoint, int]] = {}

    def send(self, address: Address, message: Caused) -> None:
        """Send a message there; says ``AddressUnreachable`` when nobody can be reached."""
        owner = self._owner
        network = owner.network
        held = self._pipes.get(address)
        if held is not None and not held[0].closed and held[1].incarnation == held[2]:
            held[0].send(message)
            return
        target = owner.endpoint_at(address)
        name = target.name if target is not None else "nowhere"
        delay_us = network.draw_delay_us(network.path(owner.name, name))
        if target is not None and (
            target.is_silent or network.is_cut(owner.name, name) or network.is_cut(name, owner.name)
        ):
            delay_us += CONNECT_TIMEOUT_US
        elif target is not None and target.is_up:
            incarnation, info = target.incarnation, owner.info
            target_host = target

            def arrive(sent: Caused) -> None:
                target_host.message_arrived(incarnation, info, sent)

            pipe = network.open_pipe(owner.name, name, arrive)
            self._pipes[address] = (pipe, target, incarnation)
            pipe.send(message)
            return
        network.scheduler.after(delay_us, self._unreachable, owner.incarnation, address)

    def _unreachable(self, incarnation: int, address: Address) -> None:
        if self._owner.incarnation == incarnation:
            self._owner.stimulate(AddressUnreachable(address))

    def drop(self) -> None:
        """The owner is gone: what is in flight still arrives."""
        for pipe, _, _ in self._pipes.values():
            pipe.end(len(pipe.queue))
        self._pipes.clear()
