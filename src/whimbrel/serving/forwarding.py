"""Requests for partitions of other members: sent on raw, answered with the raw reply.

Every member forwards by partition id, because clients with one connection send everything to one
member (FN-22). The identity of a forwarded request is the call that carries it (docs/design/0001,
decision 9): it runs once however often it arrives. A request whose executing member dies is run
again when that is harmless or when it never left here, else its outcome is indeterminate
(docs/design/0013).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whimbrel.core.ids import MemberId
from whimbrel.errors import OverloadedError, ProtocolError
from whimbrel.serving.calls import CALL_TIMEOUT_US, Call
from whimbrel.serving.session import ForwardOrigin, Request
from whimbrel.wire import errors as codes
from whimbrel.wire.frames import parse_message
from whimbrel.wire.links import FORWARD, FORWARD_REPLY

if TYPE_CHECKING:
    from whimbrel.serving.server import Server

HOPS_MAX = 5
"""Times a request is sent on before the client is asked to try again later."""
HOPS_AT_ONCE = 2
"""Times a request is sent on without a pause; further ones wait for news of the table."""


class Forwarding:
    """Sends requests to their primaries and runs those of other members."""

    def __init__(self, server: Server) -> None:
        self._server = server

    # -- sending --------------------------------------------------------------------------

    def primary_to_ask(self, partition_id: int) -> MemberId | None:
        """The other member that serves a partition by our table; None when there is none."""
        primary = self._server.table.rows[partition_id][0]
        ctx = self._server.ctx
        if primary is None or primary == ctx.id or not ctx.is_member(primary):
            return None
        return primary

    def route(self, request: Request) -> None:
        """Send a request to its primary, or park it until somebody is known to be that."""
        server = self._server
        if request.hops >= HOPS_MAX:
            server.answer_error(
                request,
                codes.RETRYABLE,
                f"partition {request.partition} moved while the request was under way",
            )
            return
        primary = self.primary_to_ask(request.partition)
        if primary is None and not server.ctx.data_members():
            server.answer_error(
                request, codes.NO_DATA_MEMBER, "no member of the cluster holds data"
            )
        elif primary is None or (request.hops >= HOPS_AT_ONCE and not request.deadline_us):
            server.park(request)
        else:
            self._send(request, primary)

    def _send(self, request: Request, primary: MemberId) -> None:
        body = bytes((request.hops + 1,)) + request.data
        try:
            self._server.calls.start(primary, FORWARD, body, request)
        except OverloadedError as error:
            self._server.answer_error(request, codes.OVERLOAD, str(error))
            return
        self._server.tally("requests_forwarded")

    def on_reply(self, request: Request, body: bytes) -> None:
        """The executing member has answered."""
        self._server.answer(request, body)

    def on_lost(self, call: Call, request: Request, was_sent: bool) -> None:
        """The executing member left before it answered."""
        server = self._server
        if not was_sent or self._is_harmless(request):
            server.dispatch_request(request)
            return
        server.answer_error(
            request,
            codes.INDETERMINATE,
            f"member {call.target} left while it served the request; it may have taken effect",
        )

    def on_overdue(self, call: Call, request: Request) -> None:
        """The executing member is on the list and does not answer: the client waits no longer."""
        server = self._server
        was_sent = server.calls.was_sent(call)
        server.calls.give_up(call)
        code, outcome = codes.INDETERMINATE, "; the request may have taken effect"
        if not was_sent:
            code, outcome = codes.RETRYABLE, "; the request was not sent"
        elif self._is_harmless(request):
            code, outcome = codes.OPERATION_TIMEOUT, ""
        server.answer_error(
            request,
            code,
            f"member {call.target} has not answered for {CALL_TIMEOUT_US // 1_000_000} s{outcome}",
        )

    def _is_harmless(self, request: Request) -> bool:
        """Whether a request may run twice."""
        operation = self._server.partition_operations.get(request.type)
        return operation is not None and operation.retryable

    # -- receiving ------------------------------------------------------------------------

    def on_call(self, sender: MemberId, number: int, body: bytes) -> None:
        """Another member sends a request of one of its clients.

        Raises:
            ProtocolError: The body is not a hop count and exactly one request.
        """
        if not body:
            raise ProtocolError("a forwarded request is empty")
        data = body[1:]
        origin = ForwardOrigin(sender, number)
        server = self._server
        server.dispatch(origin, parse_message(data), body[0])
        if origin.out:  # at once, so that the bytes of answers are known before the next call
            server.flush_origin(origin)

    def finish(self, origin: ForwardOrigin) -> None:
        """Send the reply that a forwarded request has produced."""
        self._server.calls.answer(origin.member, origin.call, FORWARD_REPLY, b"".join(origin.out))
        origin.alive = False
