"""Requests that cannot run here now: parked until they can, or sent on raw to their primary.

Every member forwards by partition id, because clients with one connection send everything to one
member (FN-22). The identity of a forwarded request is the call that carries it (docs/design/0001,
decision 9): it runs once however often it arrives. A request whose executing member dies is run
again when that is harmless or when it never left here, else its outcome is indeterminate
(docs/design/0013). Where operations recognise attempts (``Operation.recognise``) each has a name,
and the client's member repeats it under that name, for as long as a request may be parked
(docs/design/0015).
"""

from __future__ import annotations

import struct

from whimbrel.core.ids import Attempt, MemberId
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.errors import OverloadedError
from whimbrel.serialization.uuids import uuid_bytes
from whimbrel.serving.calls import CALL_TIMEOUT_US, Call
from whimbrel.serving.hub import Hub
from whimbrel.serving.operations import Operations
from whimbrel.serving.parking import ParkingLot
from whimbrel.serving.session import Connection, ForwardOrigin, Origin, Request
from whimbrel.serving.wait_frames import LOST
from whimbrel.serving.waits import TRY_AGAIN, Waits
from whimbrel.wire import errors as codes
from whimbrel.wire.frames import RawMessage
from whimbrel.wire.links import FORWARD

HOPS_MAX = 5
"""Times a request is sent on before the client is asked to try again later."""
HOPS_AT_ONCE = 2
"""Times a request is sent on without a pause; further ones wait for news of the table."""

_CALLER = struct.Struct(">16sQ")
"""The member's uuid, when it was started (us)."""


class Forwarding:
    """Lets requests wait, or sends them to their primaries."""

    def __init__(self, hub: Hub, operations: Operations, parking: ParkingLot, waits: Waits) -> None:
        self._hub = hub
        self._waits = waits
        self._operations = operations
        self._parking = parking
        ctx = hub.ctx
        self._caller = _CALLER.pack(uuid_bytes(ctx.id), ctx.started_us)
        self._named = 0
        """Attempts that were given names."""

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
        if request.attempt is None and isinstance(request.origin, Connection):
            request.attempt = self._name(request)
        body = self._waits.head_of(request, member) + request.data
        try:
            call = self._hub.calls.start(member, FORWARD, body, request)
        except OverloadedError as error:
            self._hub.answer_error(request, codes.OVERLOAD, str(error))
            return
        if request.wait is not None:
            request.wait.call = call
        self._hub.tally("requests_forwarded")

    def _name(self, request: Request) -> Attempt | None:
        """A new name for an attempt; None where nobody would recognise it."""
        operation = self._operations.in_partition.get(request.type)
        if operation is None or operation.recognise is None:
            return None
        self._named += 1
        return Attempt(self._caller, self._named)

    # -- attempts without an answer -------------------------------------------------------

    def on_lost(self, call: Call, request: Request, was_sent: bool) -> bool:
        """The executing member left before it answered; whether the request is to run again."""
        if not was_sent or self._is_harmless(request):
            return True
        left = f"member {call.target} left while it served the request"
        return self._repeats(request, f"{left}; it may have taken effect")

    def on_told_lost(self, call: Call, request: Request) -> bool:
        """Whom we sent a request to sent it on and says ``LOST``; whether it is to run again."""
        lost = f"member {call.target} sent the request on and got no answer"
        return self._repeats(request, f"{lost}; it may have taken effect")

    def on_overdue(self, call: Call, request: Request) -> bool:
        """The executing member is on the list and does not answer; whether to run it again."""
        hub = self._hub
        was_sent = hub.calls.was_sent(call)
        hub.calls.give_up(call)
        silent = f"member {call.target} has not answered for {CALL_TIMEOUT_US // 1_000_000} s"
        if not was_sent:
            hub.answer_error(request, codes.RETRYABLE, f"{silent}; the request was not sent")
        elif self._is_harmless(request):
            hub.answer_error(request, codes.OPERATION_TIMEOUT, silent)
        else:
            return self._repeats(request, f"{silent}; the request may have taken effect")
        return False

    def _repeats(self, request: Request, text: str) -> bool:
        """What became of an attempt is unknown: whether it is to be repeated, and by us.

        ``text`` tells the client when it is not.
        """
        hub, attempt, origin = self._hub, request.attempt, request.origin
        now_us = hub.ctx.now_us
        if attempt is not None and isinstance(origin, ForwardOrigin):
            hub.answer(request, LOST)
            return False
        if attempt is not None and not attempt.is_repetition:
            request.attempt = attempt._replace(is_repetition=True)
            request.deadline_us = now_us + hub.ctx.settings.backup_timeout_us
        if attempt is None or not origin.alive or request.deadline_us <= now_us:
            hub.answer_error(request, codes.INDETERMINATE, text)
            return False
        if request.wait is not None:
            request.wait.call = None
        hub.tally("attempts_repeated")
        return True

    def keeps(self, request: Request, code: int) -> bool:
        """Whether a request in doubt is repeated again after an error; if so it is parked."""
        now_us = self._hub.ctx.now_us
        is_in_time = request.origin.alive and now_us < request.deadline_us
        return code in TRY_AGAIN and is_in_time and self._parking.park(request, now_us)

    def _is_harmless(self, request: Request) -> bool:
        """Whether a request may run twice."""
        operations = self._operations
        kind = request.type
        operation = operations.in_partition.get(kind) or operations.others.get(kind)
        return operation is not None and operation.is_retryable
