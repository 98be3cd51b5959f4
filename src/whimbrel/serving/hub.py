"""Where everything that a member's serving layer says collects: replies, events, frames, counts.

The base of ``Server`` and all of it that the layer's parts know: they take in what concerns them
and answer here. Knows no request and none of the parts.
"""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.core.ids import MemberId
from whimbrel.core.member import Member
from whimbrel.errors import GridError
from whimbrel.serving.calls import Calls
from whimbrel.serving.outputs import BULK, Output, ToClient, ToPeer
from whimbrel.serving.session import Connection, ForwardOrigin, Origin, Request
from whimbrel.wire import errors as codes
from whimbrel.wire.errors import encode_error, encode_exception
from whimbrel.wire.links import FORWARD_REPLY, NOTIFY

SMALL_REPLY_BYTES = 4096
"""Longer replies count towards the limit of reply bytes per turn."""

NOTIFY_BACKUPS = b"\x00"
NOTIFY_EVENT = b"\x01"
NOTIFY_GRID = b"\x02"
NOTIFY_WAKE = b"\x03"
NOTIFY_WAIT_OVER = b"\x04"


class Hub:
    """What a member's serving layer has to say, and to whom."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.ctx = member.ctx
        self.dataplane = member.dataplane
        self.table = member.migrations.table
        self.clients: dict[bytes, Connection] = {}
        """Authenticated clients by uuid; the newest connection of each."""
        self.counters: dict[str, int] = {}
        self.figures: dict[str, Callable[[], float]] = {}
        """Figures that kinds of structures have of their own, by name, for ``/metrics``."""
        self.outputs: list[Output] = []
        self.dirty: list[Origin] = []
        """Origins to flush at the end of this turn."""
        self.only_read = False
        """Whether what a client sent last were nothing but reads that are answered by now."""
        self.calls = Calls(self.ctx.started_us, self.send_frame)

    def tally(self, name: str, count: int = 1) -> None:
        """Count something by name, for ``/metrics``."""
        self.counters[name] = self.counters.get(name, 0) + count

    def primary_to_ask(self, partition_id: int) -> MemberId | None:
        """The other member that serves a partition by our table; None when there is none."""
        primary = self.table.rows[partition_id][0]
        if primary is None or primary == self.ctx.id or not self.ctx.is_member(primary):
            return None
        return primary

    # -- to members -----------------------------------------------------------------------

    def send_frame(self, peer: MemberId, kind: int, payload: bytes) -> None:
        """Send a frame to a member, over its bulk connection."""
        self.outputs.append(ToPeer(peer, BULK, kind, payload))

    def notify(self, member: MemberId, what: bytes, body: bytes) -> None:
        """Tell a member something that it does not confirm."""
        self.send_frame(member, NOTIFY, what + body)

    # -- to whoever asked -----------------------------------------------------------------

    def deliver(self, origin: Origin, data: bytes) -> None:
        """Give reply or event bytes to an origin; dropped when it is gone."""
        if not origin.alive:
            return
        origin.out.append(data)
        if len(data) > SMALL_REPLY_BYTES:
            origin.out_bytes += len(data)
        if not origin.dirty:
            origin.dirty = True
            self.dirty.append(origin)

    def mark(self, origin: Origin) -> None:
        """Have an origin flushed whose ``out`` was filled directly."""
        if not origin.dirty:
            origin.dirty = True
            self.dirty.append(origin)

    def fail(self, origin: Origin, correlation: int, code: int, text: str) -> None:
        """Answer a request with an error."""
        self.tally(f"errors_{code}")
        self.deliver(origin, encode_error(correlation, code, text))

    def refuse(self, origin: Origin, correlation: int, error: GridError) -> None:
        """Answer a request with an exception of ours."""
        self.tally(f"errors_{codes.code_of(error)}")
        self.tally(f"refused_{error.reason}")
        self.deliver(origin, encode_exception(correlation, error))

    def answer(self, request: Request, data: bytes) -> None:
        """Give a waiting request its reply."""
        request.origin.in_flight -= 1
        self.deliver(request.origin, data)

    def answer_error(self, request: Request, code: int, text: str) -> None:
        """Give a waiting request an error."""
        request.origin.in_flight -= 1
        self.fail(request.origin, request.correlation, code, text)

    def flush_origin(self, origin: Origin) -> None:
        """Turn what an origin has collected, if anything, into an output."""
        origin.dirty = False
        out = origin.out
        if not out:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        if isinstance(origin, Connection):
            self.outputs.append(ToClient(origin.conn, data))
        elif isinstance(origin, ForwardOrigin):
            self.calls.answer(origin.member, origin.call, FORWARD_REPLY, data)
            origin.alive = False
        origin.out = []
        origin.out_bytes = 0
