"""Connections between members: the two each member opens to every other, and short-lived ones.

A link is two connections, control and data, on which this side only sends; each begins with our
greeting and stands once the other side has answered with its own. The answer is how a new process
on an old address is told from the member that was there before: the link then counts as failed.
What the rooms do about lost frames is said in docs/design/0001, "Links between members".
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from whimbrel.core.ids import Address, MemberId
from whimbrel.core.messages import Message
from whimbrel.core.stimuli import (
    AddressUnreachable,
    LinkFailed,
    LinkLost,
    LinkRestored,
    Stimulus,
)
from whimbrel.errors import ProtocolError
from whimbrel.wire import links as wire

if TYPE_CHECKING:
    from whimbrel.config import RuntimeSettings

CONNECT_TIMEOUT_S = 1.0
"""An attempt that gets no answer ends after this time. It says nothing about the member: it may
be stopped or cut off, which is for the heartbeats to judge."""
RECONNECT_S = 0.06
"""Pause between two attempts; the first one after a break is made at once."""
RECONNECT_SLOW_S = 0.6
"""Pause once ``FAST_ATTEMPTS`` attempts have failed."""
FAST_ATTEMPTS = 20
ATTEMPTS_MAX = 3
"""Attempts that broke off before the greeting after which a link counts as failed."""
WAITING_FRAMES_MAX = 10_000
"""Frames kept while a link is made for the first time; more are dropped and counted."""
STALL_S = 2.0
"""A connection with too much unsent is cut when its peer has taken nothing for this long. One that
takes its time but reads is not: everything would be sent again, and be too much again."""
STALLED_BYTES_FACTOR = 8
"""Multiple of ``network.link_backlog_bytes_max`` at which it is cut in any case."""
LINGER_S = 1.0
"""A link that is no longer wanted stays this long, for last words to a member that was removed."""
ADDRESS_IDLE_S = 10.0
"""A connection to an address ends when it was not used for this long."""
ADDRESS_WAITING_MAX = 100
"""Messages kept for one address while the connection is made."""
ADDRESSES_MAX = 512
"""Connections to addresses at once; messages beyond are dropped and counted."""


class ConnectResult(enum.Enum):
    """How an attempt to connect ended."""

    STANDS = 0
    REFUSED = 1
    """Nobody listens there, or somebody else does."""
    BROKEN = 2
    """It ended before the greeting."""
    SILENT = 3
    """No answer in time."""


class LinkHost:
    """What links need of their node."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: RuntimeSettings,
        greeting: Callable[[str], bytes],
        stimulate: Callable[[Stimulus], None],
        count: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """Bundle the node's services.

        Args:
            loop: Where everything runs.
            settings: Limits.
            greeting: The first bytes of a connection for a channel.
            stimulate: Hands a stimulus to the engine.
            count: Raises a counter of the shell by one.
            spawn: Runs a coroutine; its unexpected end stops the member.
        """
        self.loop = loop
        self.settings = settings
        self.greeting = greeting
        self.stimulate = stimulate
        self.count = count
        self.spawn = spawn


class Channel(asyncio.Protocol):
    """One outgoing connection."""

    def __init__(self, host: LinkHost, name: str, on_lost: Callable[[], None]) -> None:
        self._host = host
        self._name = name
        self._on_lost = on_lost
        self._splitter = wire.FrameSplitter(wire.GREETING_BYTES_MAX)
        self.greeted: asyncio.Future[wire.Greeting] = host.loop.create_future()
        self.transport: asyncio.Transport | None = None
        self.has_connected = False
        """Whether somebody has accepted the connection, open or not by now."""
        self.out: list[bytes] = []
        """Frames for the next flush."""
        self._backlog_bytes_max = host.settings.link_backlog_bytes_max
        self._written = 0
        self._taken = -1
        """Bytes the peer had taken when it last took any while too much was unsent."""
        self._taken_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        # a cast: transports of other loops are no subclasses of asyncio's
        self.transport = cast("asyncio.Transport", transport)
        self.has_connected = True
        self.transport.write(self._host.greeting(self._name))

    def data_received(self, data: bytes) -> None:
        """Take the other side's greeting; it has nothing else to say here."""
        try:
            for kind, payload in self._splitter.feed(data):
                if kind != wire.GREETING or self.greeted.done():
                    raise ProtocolError("only one greeting is expected on an outgoing connection")
                self.greeted.set_result(wire.decode_greeting(payload))
        except ProtocolError as problem:
            self._host.count("link_protocol_errors")
            self._host.count(f"link_refused_{problem.reason}")
            self.abort()

    def connection_lost(self, problem: Exception | None) -> None:
        """The connection is gone."""
        self.transport = None
        self.out.clear()
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionResetError("closed before the greeting"))
            self.greeted.exception()  # nobody may be waiting any more
        self._on_lost()

    def flush(self) -> None:
        """Write everything that was put, in one go; cut a connection whose peer does not read.

        The rooms bound what is under way to one member, so a peer that reads slowly can make
        the buffer longer than the limit, but not without end.
        """
        out, transport = self.out, self.transport
        if not out:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        self._written += len(data)
        unsent = transport.get_write_buffer_size()
        if unsent > self._backlog_bytes_max and self._has_stalled(unsent):
            self._host.count("links_cut_by_backlog")
            transport.abort()

    def _has_stalled(self, unsent: int) -> bool:
        """Whether a peer with too much unsent has not taken anything for a while."""
        taken, now_s = self._written - unsent, self._host.loop.time()
        if taken != self._taken:
            self._taken, self._taken_s = taken, now_s
        limit = STALLED_BYTES_FACTOR * self._backlog_bytes_max
        return now_s - self._taken_s > STALL_S or unsent > limit

    def close(self) -> None:
        """End it once everything written has been sent, but not much later."""
        self.flush()
        if self.transport is not None:
            self.transport.close()
            wait_s = self._host.settings.stop_timeout_us / 1_000_000
            self._host.loop.call_later(wait_s, self.abort)

    def abort(self) -> None:
        """End it at once."""
        if self.transport is not None:
            self.transport.abort()


async def open_channel(host: LinkHost, address: Address, channel: Channel) -> wire.Greeting:
    """Connect, greet and wait for the answer.

    Raises:
        ConnectionRefusedError: Nobody listens.
        OSError: It broke before the answer, or there can be no such address.
    """
    try:
        await host.loop.create_connection(lambda: channel, address.host, address.port)
        return await asyncio.shield(channel.greeted)
    except (ValueError, OverflowError) as problem:
        # a name that no name server can be asked for; it may have come from a stranger
        raise OSError(f"no address {address.host!r}: {problem}") from None
    except BaseException:
        channel.abort()
        raise


class PeerLink:
    """The link to one member of the list; holds itself up until it is closed."""

    def __init__(self, host: LinkHost, peer: MemberId, address: Address) -> None:
        self.peer = peer
        self.address = address
        self.is_unwanted = False
        """Set while it lingers; a member that is wanted again takes it over."""
        self._host = host
        self.channels: dict[str, Channel] = {}
        """Both connections by name while the link stands, else empty."""
        self._waiting: list[tuple[str, bytes]] = []
        self._broken = asyncio.Event()
        self._is_lost = False
        self._is_failed = False
        self.is_closed = False
        self._failures = 0
        self._task = host.spawn(self._run())

    @property
    def stands(self) -> bool:
        """Whether frames go out now."""
        return bool(self.channels)

    def keep(self, channel: str, frame: bytes) -> None:
        """Take a frame while the link does not stand. While it is being made the first time the
        frame waits; while it is broken it is dropped: everything that matters is sent again.
        """
        if not self._is_lost and len(self._waiting) < WAITING_FRAMES_MAX:
            self._waiting.append((channel, frame))
        else:
            self._host.count("link_frames_dropped")

    def close(self, at_once: bool = False) -> None:
        """End the link; by default after everything written has been sent."""
        self.is_closed = True
        self._task.cancel()
        channels, self.channels = list(self.channels.values()), {}
        for channel in channels:
            if at_once:
                channel.abort()
            else:
                channel.close()

    def transports(self) -> list[asyncio.Transport]:
        """Open connections, to wait for their end."""
        found = [channel.transport for channel in self.channels.values()]
        return [transport for transport in found if transport is not None]

    async def _run(self) -> None:
        while not self.is_closed:
            result = await self._attempt()
            if result is ConnectResult.STANDS:
                self._restored()
                await self._broken.wait()
                self._lost()
            else:
                self._failed(result)
                slow = self._failures >= FAST_ATTEMPTS
                await asyncio.sleep(RECONNECT_SLOW_S if slow else RECONNECT_S)

    async def _attempt(self) -> ConnectResult:
        """Open both connections; both stand or none."""
        self._broken.clear()
        opened: list[Channel] = []
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                for name in wire.CHANNELS:
                    channel = Channel(self._host, name, self._channel_lost)
                    greeting = await open_channel(self._host, self.address, channel)
                    opened.append(channel)
                    if greeting.sender.id != self.peer:
                        raise ConnectionRefusedError("another member listens there now")
            if self._broken.is_set():
                raise ConnectionResetError("one connection broke while the other was made")
        except TimeoutError:
            result = ConnectResult.SILENT
        except ConnectionRefusedError:
            result = ConnectResult.REFUSED
        except OSError:
            result = ConnectResult.BROKEN
        else:
            self.channels = dict(zip(wire.CHANNELS, opened, strict=True))
            return ConnectResult.STANDS
        for channel in opened:
            channel.abort()
        return result

    def _channel_lost(self) -> None:
        self._broken.set()

    def _restored(self) -> None:
        waiting, self._waiting = self._waiting, []
        for channel, frame in waiting:
            self.channels[channel].out.append(frame)
        for opened in self.channels.values():
            opened.flush()
        self._failures = 0
        if self._is_lost:
            self._is_lost = self._is_failed = False
            self._host.stimulate(LinkRestored(self.peer))

    def _lost(self) -> None:
        channels, self.channels = list(self.channels.values()), {}
        for channel in channels:
            channel.abort()
        if self.is_unwanted:
            self.close()
            return
        self._is_lost = True
        self._host.count("links_lost")
        self._host.stimulate(LinkLost(self.peer))

    def _failed(self, result: ConnectResult) -> None:
        if result is not ConnectResult.SILENT:
            self._failures += 1
        if self.is_unwanted:
            self.close()
            return
        gone = result is ConnectResult.REFUSED or self._failures >= ATTEMPTS_MAX
        if gone and not self._is_failed and result is not ConnectResult.SILENT:
            self._is_failed = self._is_lost = True
            if self._waiting:
                self._waiting.clear()
            self._host.count("links_failed")
            self._host.stimulate(LinkFailed(self.peer))


class AddressLink:
    """A connection to whoever listens at an address, for discovery and joining."""

    def __init__(
        self, host: LinkHost, address: Address, on_end: Callable[[AddressLink], None]
    ) -> None:
        self.address = address
        self._host = host
        self._on_end = on_end
        self._waiting: list[bytes] = []
        self._channel: Channel | None = None
        self._used_s = host.loop.time()
        self._idle: asyncio.TimerHandle | None = None
        self._has_ended = False
        self._task = host.spawn(self._run())

    def send(self, frame: bytes) -> None:
        """Send a frame, or keep it until the connection stands."""
        self._used_s = self._host.loop.time()
        if self._channel is not None:
            self._channel.out.append(frame)
            self._channel.flush()
        elif len(self._waiting) < ADDRESS_WAITING_MAX:
            self._waiting.append(frame)
        else:
            self._host.count("link_frames_dropped")

    def close(self, at_once: bool = False) -> None:
        """End it without a word to the engine."""
        self._has_ended = True
        self._task.cancel()
        if self._idle is not None:
            self._idle.cancel()
        if self._channel is not None:
            if at_once:
                self._channel.abort()
            else:
                self._channel.close()

    def transports(self) -> list[asyncio.Transport]:
        """The open connection, to wait for its end."""
        found = self._channel.transport if self._channel is not None else None
        return [found] if found is not None else []

    async def _run(self) -> None:
        channel = Channel(self._host, wire.CONTROL_CHANNEL, self._end)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await open_channel(self._host, self.address, channel)
        except (OSError, TimeoutError) as problem:
            self._end()
            # A stopped process still accepts; it may be the member that everybody waits for.
            if not (channel.has_connected and isinstance(problem, TimeoutError)):
                self._host.stimulate(AddressUnreachable(self.address))
            return
        self._channel = channel
        for frame in self._waiting:
            channel.out.append(frame)
        self._waiting.clear()
        channel.flush()
        self._watch_idle()

    def _watch_idle(self) -> None:
        left_s = self._used_s + ADDRESS_IDLE_S - self._host.loop.time()
        if left_s <= 0:
            self.close()
            self._on_end(self)
        else:
            self._idle = self._host.loop.call_later(left_s, self._watch_idle)

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            if self._idle is not None:
                self._idle.cancel()
            self._on_end(self)


class Links:
    """All outgoing connections of a node to members and addresses."""

    def __init__(self, host: LinkHost) -> None:
        self._host = host
        self._peers: dict[MemberId, PeerLink] = {}
        self._addresses: dict[Address, AddressLink] = {}
        self.dirty: list[Channel] = []
        """Connections with frames for the next flush."""
        self.known: dict[Address, None] = {}
        """Addresses of members ever seen, newest last, bounded; a member that was expelled
        looks for its cluster there."""

    def want(self, member: MemberId, address: Address) -> None:
        """Hold a link to a member from now on."""
        self.known.pop(address, None)
        self.known[address] = None
        while len(self.known) > ADDRESSES_MAX:
            self.known.pop(next(iter(self.known)))
        present = self._peers.get(member)
        if present is not None and present.address == address and not present.is_closed:
            present.is_unwanted = False
            return
        if present is not None:
            present.close()
        self._peers[member] = PeerLink(self._host, member, address)

    def unwant(self, member: MemberId) -> None:
        """Close a link after a while, unless it is wanted again."""
        link = self._peers.get(member)
        if link is not None:
            link.is_unwanted = True
            self._host.loop.call_later(LINGER_S, self._drop, member, link)

    def send(
        self, member: MemberId, channel: str, kind: int, payload: Message | bytes, cause: str = ""
    ) -> None:
        """Send a frame to a member with the next flush; a message travels with its cause."""
        link = self._peers.get(member)
        if link is None:
            self._host.count("link_frames_dropped")
            return
        frame: bytes | None
        if type(payload) is bytes and len(payload) < wire.LINK_FRAME_BYTES_MAX:
            frame = wire.pack_head(len(payload) + 1, kind) + payload  # as ``wire.encode_frame``
        else:
            frame = self._encoded(kind, payload, cause)
            if frame is None:
                return
        connection = link.channels.get(channel)
        if connection is None:
            link.keep(channel, frame)
            return
        if not connection.out:
            self.dirty.append(connection)
        connection.out.append(frame)

    def send_to(self, address: Address, message: Message, cause: str) -> None:
        """Send a message to whoever listens at an address."""
        frame = self._encoded(wire.MESSAGE, message, cause)
        if frame is None:
            return
        link = self._addresses.get(address)
        if link is None:
            if len(self._addresses) >= ADDRESSES_MAX:
                self._host.count("link_frames_dropped")
                return
            link = self._addresses[address] = AddressLink(self._host, address, self._address_ended)
        link.send(frame)

    def flush(self) -> None:
        """Write everything sent since the last flush, once per connection."""
        dirty, self.dirty = self.dirty, []
        for channel in dirty:
            channel.flush()

    def close_all(self, at_once: bool = False) -> list[asyncio.Transport]:
        """End every connection; the transports that still have to send come back."""
        self.flush()
        everything: list[PeerLink | AddressLink] = [
            *self._peers.values(),
            *self._addresses.values(),
        ]
        self._peers.clear()
        self._addresses.clear()
        transports: list[asyncio.Transport] = []
        for link in everything:
            transports += link.transports()
            link.close(at_once)
        return transports

    def gauges(self) -> dict[str, float]:
        """How many links there are, and how many of them stand."""
        return {
            "links": len(self._peers),
            "links_standing": sum(link.stands for link in self._peers.values()),
        }

    def _drop(self, member: MemberId, link: PeerLink) -> None:
        if link.is_unwanted and self._peers.get(member) is link:
            del self._peers[member]
            link.close()

    def _address_ended(self, link: AddressLink) -> None:
        if self._addresses.get(link.address) is link:
            del self._addresses[link.address]

    def _encoded(self, kind: int, payload: Message | bytes, cause: str) -> bytes | None:
        try:
            if not isinstance(payload, bytes):
                payload = wire.encode_message(payload, cause)
            return wire.encode_frame(kind, payload)
        except ProtocolError:  # longer than a frame may be: the caller's time-out tells
            self._host.count("link_frames_too_long")
            return None
