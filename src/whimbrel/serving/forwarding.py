"""Requests that cannot run here now: parked until they can, or sent on raw to their primary.

Every member forwards by partition id, because clients with one connection send everything to one
member (FN-22). The identity of a forwarded request is the call that carries it (docs/design/0001,
decision 9): it runs once however often it arrives. A request whose executing member dies is run
again when that is harmless or when it never left here, else its outcome is indeterminate
(docs/design/0013).
"""

from __future__ import annotations

from whimbrel.core.ids import MemberId
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.errors import OverloadedError
from whimbrel.serving.calls import CALL_TIMEOUT_US, Call
from whimbrel.serving.hub import Hub
from whimbrel.serving.operations import Operations
from whimbrel.serving.parking import ParkingLot
from whimbrel.serving.session import Origin, Request
from whimbrel.serving.waits import Waits
from whimbrel.wire import errors as codes
from whimbrel.wire.frames import RawMessage
from whimbrel.wire.links import FORWARD

HOPS_MAX = 5
"""Times a request is sent on before the client is asked to try again later."""
HOPS_AT_ONCE = 2
"""Times a request is sent on without a pause; further ones wait for news of the table."""


class Forwarding:
    """Lets requests wait, or sends them to their primaries."""

    def __init__(self, hub: Hub, operations: Operations, parking: ParkingLot, waits: Waits) -> None:
        self._hub = hub
        self._waits = waits
        self._operations = operations
        self._parking = parking

    def wait(self, request: Request, partition: PartitionReplica) -> None:
        """A request cannot run here now: keep it if its partition is ours, else send it on."""
        if partition.is_primary:
            self.park(request)
        else:
            self.route(request)

    def park(self, request: Request) -> None:
        """Keep a request until its partition is free, or refuse it as retryable."""
        hub = self._hub
        if not self._parking.park(request, hub.ctx.now_us):
            hub.tally("parking_overflows")
            hub.answer_error(
                request,
                codes.PARTITION_MIGRATING,
                f"partition {request.partition} cannot serve now and too many requests wait",
            )

    def route(self, request: Request) -> None:
        """Send a request to its primary, or park it until somebody is known to be that."""
        hub = self._hub
        if request.hops >= HOPS_MAX:
            hub.answer_error(
                request,
                codes.RETRYABLE,
                f"partition {request.partition} moved while the request was under way",
            )
            return
        primary = hub.primary_to_ask(request.partition)
        if primary is None and not hub.ctx.data_members():
            hub.answer_error(request, codes.NO_DATA_MEMBER, "no member of the cluster holds data")
        elif primary is None or (request.hops >= HOPS_AT_ONCE and not request.deadline_us):
            self.park(request)
        else:
            self._send(request, primary)

    def send(self, origin: Origin, message: RawMessage, member: MemberId, hops: int) -> None:
        """Have another member answer a request that any member may answer.

        Args:
            origin: Who waits for the answer.
            message: The request.
            member: Who is to answer it.
            hops: Members that had it before.

        Raises:
            OverloadedError: Too many requests of the origin wait already.
        """
        origin.begin_waiting()
        self._send(Request.of(origin, message, hops), member)

    def _send(self, request: Request, member: MemberId) -> None:
        if not request.since_us:
            request.since_us = self._hub.ctx.now_us
        body = self._waits.head_of(request, member) + request.data
        try:
            call = self._hub.calls.start(member, FORWARD, body, request)
        except OverloadedError as error:
            self._hub.answer_error(request, codes.OVERLOAD, str(error))
            return
        if request.wait is not None:
            request.wait.call = call
        self._hub.tally("requests_forwarded")

    def on_lost(self, call: Call, request: Request, was_sent: bool) -> bool:
        """The executing member left before it answered; whether the request is to run again."""
        if not was_sent or self._is_harmless(request):
            return True
        self._hub.answer_error(
            request,
            codes.INDETERMINATE,
            f"member {call.target} left while it served the request; it may have taken effect",
        )
        return False

    def on_overdue(self, call: Call, request: Request) -> None:
        """The executing member is on the list and does not answer: the client waits no longer."""
        hub = self._hub
        was_sent = hub.calls.was_sent(call)
        hub.calls.give_up(call)
        code, outcome = codes.INDETERMINATE, "; the request may have taken effect"
        if not was_sent:
            code, outcome = codes.RETRYABLE, "; the request was not sent"
        elif self._is_harmless(request):
            code, outcome = codes.OPERATION_TIMEOUT, ""
        hub.answer_error(
            request,
            code,
            f"member {call.target} has not answered for {CALL_TIMEOUT_US // 1_000_000} s{outcome}",
        )

    def _is_harmless(self, request: Request) -> bool:
        """Whether a request may run twice."""
        operations = self._operations
        kind = request.type
        operation = operations.in_partition.get(kind) or operations.others.get(kind)
        return operation is not None and operation.is_retryable
