"""Blocking-socket connections to members, many at once in one thread.

``Links`` keeps one connection per member, the cluster view, and the calls that wait for an
answer. It connects again by itself, and hands every call that was in flight on a broken
connection back as lost; who asked decides whether to repeat it.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from whimbrel.client.core import Answer, Channel, ClusterView, Event
from whimbrel.core.ids import Address
from whimbrel.errors import AuthenticationError, GridError, OperationError, ProtocolError

CONNECT_TIMEOUT_S = 3.0
"""Longest wait for one address to accept and authenticate."""
CONNECT_RETRY_S = 0.2
"""Pause before an address that failed is tried again."""
OWNER_RETRY_S = 2.0
"""The same while somebody else is connected who can forward."""
SILENCE_S = 8.0
"""A member that owes answers and says nothing for so long, not even to a ping, is given up."""
RECEIVE_BYTES = 256 * 1024
"""Bytes read from a socket at once."""

_now = time.monotonic


class ConnectionLost(OperationError):
    """The connection broke while a call waited; the call may or may not have taken effect."""


class Call:
    """One request and, later, its outcome."""

    __slots__ = (
        "attempts",
        "deadline_s",
        "done",
        "error",
        "fields",
        "message",
        "partition",
        "result",
        "tag",
    )

    def __init__(
        self,
        message: str,
        partition: int,
        fields: dict[str, Any],
        done: deque[Call],
        tag: Any = None,
    ) -> None:
        self.message = message
        self.partition = partition
        self.fields = fields
        self.done = done
        """Where the call is put once it has an outcome."""
        self.tag = tag
        """Whatever the caller wants to find again."""
        self.attempts = 0
        self.deadline_s = 0.0
        self.result: dict[str, Any] = {}
        self.error: GridError | None = None

    def finish(self, result: dict[str, Any], error: GridError | None) -> None:
        """Set the outcome and hand the call back."""
        self.result, self.error = result, error
        self.done.append(self)


class Link:
    """An open connection to one member."""

    def __init__(self, sock: socket.socket, address: Address, channel: Channel) -> None:
        self.sock = sock
        self.address = address
        self.channel = channel
        self.member = b""
        self.pending: dict[int, Call] = {}
        self.out: deque[memoryview] = deque()
        self.silent_since_s = _now()
        """When the member last said something, or began to owe an answer."""
        self.is_pinged = False

    def queue(self, data: bytes) -> None:
        """Add bytes to send."""
        self.out.append(memoryview(data))

    def flush(self) -> bool:
        """Send what the socket takes; whether everything is sent. Raises OSError."""
        while self.out:
            head = self.out[0]
            try:
                sent = self.sock.send(head)
            except BlockingIOError:
                return False
            if sent < len(head):
                self.out[0] = head[sent:]
            else:
                self.out.popleft()
        return True


class Links:
    """All connections of one client."""

    def __init__(
        self, addresses: Sequence[Address], cluster_name: str, client_name: str, timeout_s: float
    ) -> None:
        self.addresses = list(addresses)
        self.view = ClusterView()
        self.timeout_s = timeout_s
        self._cluster_name = cluster_name
        self._client_name = client_name
        self._client_id = os.urandom(16)
        self._selector = selectors.DefaultSelector()
        self._links: dict[bytes, Link] = {}
        self._watcher: Link | None = None
        """The link on which the view listener is registered."""
        self._failed: dict[Address, tuple[float, str]] = {}
        """When an address failed last, and why."""
        self._cluster_id: bytes | None = None

    # -- connecting -----------------------------------------------------------------------

    def connect(self) -> None:
        """Be connected to somebody and know the members.

        Raises:
            AuthenticationError: Members answer, but refuse.
            OperationError: Nobody could be reached within ``timeout_s``.
        """
        deadline = _now() + self.timeout_s
        while not self._links or not self.view.members:
            if not self._links and not self._connect_to_anybody():
                self._give_up_if(deadline)
                time.sleep(CONNECT_RETRY_S)
                continue
            self.poll(CONNECT_RETRY_S)
            if not self.view.members:
                self._give_up_if(deadline)

    def _give_up_if(self, deadline_s: float) -> None:
        """Raise once the time is over, or at once when every address refuses us."""
        refusals = [why for _, why in self._failed.values() if why.startswith(_REFUSED)]
        if refusals and len(refusals) == len(self._failed) == len(self._candidates()):
            raise AuthenticationError(self.failures())
        if _now() >= deadline_s:
            raise OperationError(
                f"no member of the cluster {self._cluster_name!r} could be reached within "
                f"{self.timeout_s:g} s: {self.failures()}"
            )

    def failures(self) -> str:
        """Every address that may be tried, and why it failed last."""
        return "; ".join(
            f"{address}: {self._failed[address][1] if address in self._failed else 'no answer'}"
            for address in self._candidates()
        )

    def _candidates(self) -> list[Address]:
        known = [member.address for member in self.view.members.values()]
        return list(dict.fromkeys([*known, *self.addresses]))

    def _connect_to_anybody(self) -> bool:
        return any(self._open(address) is not None for address in self._candidates())

    def link_for(self, partition: int) -> Link | None:
        """The link to the partition's owner, or another one when the owner cannot be reached."""
        owner = self.view.owner_of(partition)
        if owner is not None:
            link = self._links.get(owner)
            if link is not None:
                return link
            address = self.view.address_of(owner)
            if address is not None:
                link = self._open(address)
                if link is not None:
                    return link
        for link in self._links.values():
            return link
        self._connect_to_anybody()
        return next(iter(self._links.values()), None)

    def _open(self, address: Address) -> Link | None:
        """A new link, or None; an address that failed just now is not tried again at once."""
        failed = self._failed.get(address)
        pause = OWNER_RETRY_S if self._links else CONNECT_RETRY_S
        if failed is not None and _now() - failed[0] < pause:
            return None
        channel = Channel(self._cluster_name, self._client_id, self._client_name)
        try:
            sock = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
        except OSError as error:
            self._failed[address] = (_now(), error.strerror or str(error) or "timed out")
            return None
        link = Link(sock, address, channel)
        try:
            self._welcome(link)
        except AuthenticationError as error:
            self._failed[address] = (_now(), f"{_REFUSED}{error}")
        except (OSError, GridError) as error:
            self._failed[address] = (_now(), str(error) or "the connection ended")
        else:
            self._failed.pop(address, None)
            return self._keep(link)
        sock.close()
        return None

    def _welcome(self, link: Link) -> None:
        """Authenticate on a fresh, still blocking socket."""
        link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        correlation, hello = link.channel.hello()
        link.sock.sendall(hello)
        deadline = _now() + CONNECT_TIMEOUT_S
        while True:
            link.sock.settimeout(max(0.001, deadline - _now()))
            data = link.sock.recv(RECEIVE_BYTES)
            if not data:
                raise ProtocolError("the member ended the connection before it had answered")
            for answer in link.channel.receive(data):
                if isinstance(answer, Answer) and answer.correlation == correlation:
                    fields = link.channel.check_welcome(answer, link.address)
                    self._learn(link, fields)
                    return

    def _learn(self, link: Link, fields: dict[str, Any]) -> None:
        cluster = fields["cluster_id"]
        if self._cluster_id not in (None, cluster) and self._links:
            raise ProtocolError("the member belongs to another cluster of the same name")
        self._cluster_id = cluster
        self.view.started(fields["partition_count"])
        link.member = fields["member_uuid"] or b""

    def _keep(self, link: Link) -> Link:
        old = self._links.get(link.member)
        if old is not None:
            link.sock.close()
            return old
        link.sock.setblocking(False)
        self._links[link.member] = link
        self._selector.register(link.sock, selectors.EVENT_READ, link)
        if self._watcher is None:
            self._watch(link)
        return link

    def _watch(self, link: Link) -> None:
        """Register for the views on this link."""
        self._watcher = link
        self.view.registered_again()
        call = Call("Client.addClusterViewListener", -1, {}, deque())
        self._send(link, call)

    # -- calling --------------------------------------------------------------------------

    def send(self, call: Call) -> bool:
        """Send a call on its way; False when there is nobody to send it to now.

        Raises:
            ProtocolError: A field does not fit.
        """
        link = self.link_for(call.partition)
        return link is not None and self._send(link, call)

    def send_to(self, member: bytes, call: Call) -> bool:
        """Send a call to a certain member, if it is connected or can be."""
        link = self._links.get(member)
        if link is None:
            address = self.view.address_of(member)
            link = None if address is None else self._open(address)
        return link is not None and self._send(link, call)

    def _send(self, link: Link, call: Call) -> bool:
        correlation, data = link.channel.request(call.message, call.partition, **call.fields)
        if not link.pending:
            link.silent_since_s, link.is_pinged = _now(), False
        link.pending[correlation] = call
        link.queue(data)
        return self._flush(link)

    def load(self, partition: int) -> int:
        """Calls in flight on the link that a call for the partition would take."""
        owner = self.view.owner_of(partition)
        link = self._links.get(owner) if owner is not None else None
        return 0 if link is None else len(link.pending)

    def poll(self, timeout_s: float) -> None:
        """Send and receive what is possible, waiting up to ``timeout_s`` for something."""
        for key, events in self._selector.select(timeout_s):
            link: Link = key.data
            if self._links.get(link.member) is not link:
                continue
            alive = True
            if events & selectors.EVENT_WRITE:
                alive = self._flush(link)
            if alive and events & selectors.EVENT_READ:
                self._read(link)
        self._watch_silence()

    def _watch_silence(self) -> None:
        """Ping members that owe answers for long; give up those that stay silent."""
        now = _now()
        for link in list(self._links.values()):
            silence = now - link.silent_since_s
            if not link.pending or silence < SILENCE_S / 2:
                continue
            if silence >= SILENCE_S:
                self._drop(link, f"{link.address} was silent for {SILENCE_S:g} s")
            elif not link.is_pinged:
                link.is_pinged = True
                self._send(link, Call("Client.ping", -1, {}, deque()))

    def _flush(self, link: Link) -> bool:
        try:
            done = link.flush()
        except OSError as error:
            self._drop(link, f"{link.address}: {error.strerror or error}")
            return False
        wanted = selectors.EVENT_READ | (0 if done else selectors.EVENT_WRITE)
        if self._selector.get_key(link.sock).events != wanted:
            self._selector.modify(link.sock, wanted, link)
        return True

    def _read(self, link: Link) -> None:
        try:
            data = link.sock.recv(RECEIVE_BYTES)
            if not data:
                raise ProtocolError("the member ended the connection")
            received = link.channel.receive(data)
        except BlockingIOError:
            return
        except (OSError, ProtocolError) as error:
            self._drop(link, f"{link.address}: {error}")
            return
        link.silent_since_s, link.is_pinged = _now(), False
        for item in received:
            if isinstance(item, Event):
                if link is self._watcher and self.view.apply(item):
                    self._close_departed()
                continue
            call = link.pending.pop(item.correlation, None)
            if call is not None:
                call.finish(item.fields, item.error)

    def _close_departed(self) -> None:
        """End the connections to members that have left the list."""
        for link in list(self._links.values()):
            if self.view.members and link.member not in self.view.members:
                self._drop(link, f"{link.address} has left the cluster")

    def _drop(self, link: Link, why: str) -> None:
        """The link is over: its calls are lost, somebody else tells the view."""
        if self._links.get(link.member) is not link:
            return
        del self._links[link.member]
        self._selector.unregister(link.sock)
        link.sock.close()
        self._failed[link.address] = (_now(), why)
        pending, link.pending = link.pending, {}
        for call in pending.values():
            call.finish({}, ConnectionLost(f"the connection was lost: {why}"))
        if self._watcher is link:
            self._watcher = None
            if self._links:
                self._watch(next(iter(self._links.values())))

    def close(self) -> None:
        """End all connections; calls in flight are lost."""
        for link in list(self._links.values()):
            self._drop(link, "the client was closed")
        self._selector.close()


_REFUSED = "refused: "
