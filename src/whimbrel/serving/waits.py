"""Calls that wait until somebody changes something, for hours if need be (docs/design/0015).

A call waits at the member that its client is connected to, the *entry*. Each attempt is an ordinary
call, decided at once at the primary of its partition (docs/design/0013); one that finds nothing has
changed nothing, so between attempts nothing is unknown, whatever becomes of the primary. The call
is tried again when it is woken, when there is news of its partition or of the primary, and after a
while in any case, so that a lost wake costs time and not an answer. It holds no memory elsewhere
but a hint at the primary (``wait_queues``), and ends with its client's connection.

    entry                                            primary
      | FORWARD ------------------------------------>|  nothing there: ``later``
      |<---- FORWARD_REPLY (would wait: what for) ---|  a hint is kept
      |<--------------------- NOTIFY (wake: number) -|  somebody has changed it
      | FORWARD (follows that number, its age) ----->|
      | NOTIFY (over: number) ---------------------->|  or the call has ended: wake another
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Final

from whimbrel.core.ids import Attempt, MemberId, Namespace, PartitionId
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.errors import GridError, OverloadedError, UsageError
from whimbrel.serving.calls import Call
from whimbrel.serving.hub import NOTIFY_WAIT_OVER, NOTIFY_WAKE, Hub
from whimbrel.serving.parking import ParkingLot
from whimbrel.serving.session import Connection, ForwardOrigin, Origin, Request, Wait
from whimbrel.serving.wait_frames import (
    Head,
    WouldWait,
    decode_numbers,
    decode_would_wait,
    encode_numbers,
    encode_would_wait,
    read_head,
)
from whimbrel.serving.wait_queues import Hint, WaitQueues
from whimbrel.wire import errors as codes
from whimbrel.wire.errors import ALWAYS_RETRIED
from whimbrel.wire.frames import RawMessage

WAITING_PER_CONNECTION_MAX: Final = 10_000
"""Calls of one connection that wait: a client with one connection has those of all its threads on
it, and each costs its client a thread or a future."""
WAITING_MAX: Final = 100_000
"""Calls that wait at one member: some 100 MB, and 10,000 attempts a second to hold them all."""
WAITING_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes of waiting calls, which may carry what they want to add; the first one may always wait."""
AGAIN_US: Final = 10_000_000
"""An idle call is tried again after so long, woken or not."""
AGAIN_SOON_US: Final = 1_000_000
"""The same where nobody remembers the call, so that nobody would wake it."""
TRIES_PER_TICK: Final = 1_000
"""Attempts in one tick by calls that nobody has woken; the next ones follow with the next tick."""
ROUNDS_PER_TURN: Final = 1_000
"""How often in one turn those served may leave something for the next; the rest follows later."""
NEVER_US: Final = 1 << 62
FOR_EVER_MS: Final = -1
"""What those wait whose request has no time-out."""

TRY_AGAIN: Final = ALWAYS_RETRIED | {codes.OVERLOAD, codes.OPERATION_TIMEOUT}
"""Errors of an attempt after which its call goes on waiting: nothing has happened."""


TryAgain = Callable[[Request], bool]


class Waits:
    """The calls that wait at one member, and its part in those that wait elsewhere."""

    def __init__(self, hub: Hub, parking: ParkingLot, try_again: TryAgain) -> None:
        """Begin with none; ``try_again`` makes an attempt, or says that none can be made now."""
        self._hub = hub
        self._parking = parking
        self._try_again = try_again
        self._wakes = hub.dataplane.wakes
        self.queues = WaitQueues(self._wakes)
        self._calls: dict[int, Request] = {}
        """By order."""
        self._by_partition: dict[PartitionId, dict[int, Request]] = {}
        self._remembered: dict[MemberId, dict[int, Request]] = {}
        """Calls that another member remembers, by the number that it knows."""
        self._due: list[tuple[int, int]] = []
        """Heap of (when, order); what a call is not due at any more is left out when it comes."""
        self._over: dict[MemberId, list[int]] = {}
        """Numbers that other members need not remember any more, told with the next tick."""
        self._bytes = 0

    @property
    def count(self) -> int:
        """Calls of our clients that wait."""
        return len(self._calls)

    # -- an attempt found nothing ---------------------------------------------------------

    def later(
        self,
        origin: Origin,
        message: RawMessage,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        timeout_ms: int,
        expired: bytes,
        request: Request | None = None,
    ) -> None:
        """Try a request again when ``key`` of a structure was changed; it must have had no effect.

        Args:
            origin: Who asks.
            message: The request.
            partition: The partition it runs in.
            namespace: The structure.
            key: What must change, as services name it to ``Wakes.wake``.
            timeout_ms: How long it waits from its first attempt on; negative for ever. A request
                that does not wait at all is answered by its handler.
            expired: The whole response at the end of that time.
            request: The same request, where the handler was given it.

        Raises:
            OverloadedError: Too many calls wait.
            UsageError: The client uses the number of a call that waits.
        """
        if isinstance(origin, ForwardOrigin):
            is_remembered = origin.hops == 1  # else whoever sent it on knows nothing of it
            if is_remembered:
                now_us = self._hub.ctx.now_us
                place = origin.place or (now_us, self.queues.next_number())
                self.queues.remember(
                    Hint(partition, namespace, key, place, origin.member, origin.call, now_us)
                )
            found = WouldWait(namespace, key, timeout_ms, expired, is_remembered)
            self._hub.deliver(origin, encode_would_wait(found))
            self._hub.flush_origin(origin)  # before whoever is woken in this turn hears of it
        elif isinstance(origin, Connection):
            if request is None:
                request = origin.waiting.get(message[5])
                if request is None or request.wait is None or not request.wait.is_here:
                    request = Request.of(origin, message)
                    request.since_us = self._hub.ctx.now_us
            if request.wait is None:
                found = WouldWait(namespace, key, timeout_ms, expired, is_remembered=True)
                self._begin(origin, request, found)
            self._rest(request, AGAIN_US)
            self.queues.add(request)

    def told(self, call: Call, request: Request, body: bytes) -> None:
        """The primary has answered an attempt of ours with ``WOULD_WAIT``.

        Raises:
            ProtocolError: The answer does not say what for.
        """
        found = decode_would_wait(body)
        hub, origin = self._hub, request.origin
        if not isinstance(origin, Connection):
            hub.answer(request, body)
            return
        origin.in_flight -= 1
        if not origin.alive:
            self._is_over(call)
            return
        wait = request.wait
        try:
            wait = wait or self._begin(origin, request, found)
        except GridError as error:
            self._is_over(call)
            hub.refuse(origin, request.correlation, error)
            return
        self._set_number(request, wait, call)
        primary = hub.primary_to_ask(request.partition)
        is_ours = hub.dataplane.partitions[request.partition].is_primary
        if is_ours or primary not in (None, call.target):
            self._rest(request, 0)
        else:
            self._rest(request, AGAIN_US if found.is_remembered else AGAIN_SOON_US)

    def goes_on(self, request: Request, code: int | None) -> bool:
        """An attempt is answered, maybe by an error: whether its call waits on; else it ends."""
        if request.wait is not None and code in TRY_AGAIN:
            self._rest(request, AGAIN_SOON_US)
            return True
        self.end(request)
        return False

    def _begin(self, origin: Connection, request: Request, found: WouldWait) -> Wait:
        """A call waits from now on."""
        if request.correlation in origin.waiting:
            raise UsageError(f"call {request.correlation} of this connection waits already")
        size = len(request.data) + len(found.expired)
        is_full = self._bytes and self._bytes + size > WAITING_BYTES_MAX
        if len(origin.waiting) >= WAITING_PER_CONNECTION_MAX:
            raise OverloadedError(f"{len(origin.waiting)} calls of this connection wait already")
        if is_full or len(self._calls) >= WAITING_MAX:
            raise OverloadedError(f"{len(self._calls)} calls ({self._bytes} bytes) wait already")
        deadline_us = NEVER_US
        if found.timeout_ms >= 0:
            deadline_us = request.since_us + found.timeout_ms * 1_000
        order = self.queues.next_number()
        wait = Wait(found.namespace, found.key, found.expired, deadline_us, order)
        request.wait = wait
        origin.waiting[request.correlation] = request
        self._calls[order] = request
        self._by_partition.setdefault(request.partition, {})[order] = request
        self._bytes += size
        return wait

    def _set_number(self, request: Request, wait: Wait, call: Call | None) -> None:
        """The last attempt is what a member remembers a call by; none once it has ended."""
        if wait.target is not None:
            numbers = self._remembered[wait.target]
            del numbers[wait.number]
            if not numbers:
                del self._remembered[wait.target]
        wait.target = None
        if call is not None:
            wait.target, wait.number = call.target, call.number
            self._remembered.setdefault(call.target, {})[call.number] = request

    def _rest(self, request: Request, again_us: int) -> None:
        """No attempt is under way until something happens, or so long; none has had any effect."""
        wait = request.wait
        request.attempt = None
        if wait is not None:
            wait.is_idle, wait.is_here, wait.call = True, False, None
            self._set_due(wait, min(wait.deadline_us, self._hub.ctx.now_us + again_us))

    def _set_due(self, wait: Wait, due_us: int) -> None:
        wait.due_us = due_us
        heappush(self._due, (due_us, wait.order))

    # -- the end --------------------------------------------------------------------------

    def end(self, request: Request) -> None:
        """A call is answered, or nobody waits for it any more; harmless when it does not wait."""
        wait = request.wait
        if wait is None:
            return
        self.queues.remove(request)
        if wait.target is not None and wait.call is None:  # else its attempt says it
            self._over.setdefault(wait.target, []).append(wait.number)
        self._set_number(request, wait, None)
        request.wait = None
        if isinstance(request.origin, Connection):
            del request.origin.waiting[request.correlation]
        del self._calls[wait.order]
        calls = self._by_partition[request.partition]
        del calls[wait.order]
        if not calls:
            del self._by_partition[request.partition]
        self._bytes -= len(request.data) + len(wait.expired)

    def drop(self, connection: Connection) -> None:
        """A client is gone: its calls end, and what one was woken for is for somebody else."""
        for request in list(connection.waiting.values()):
            wait = request.wait
            if wait is not None and not wait.is_idle:
                partition = self._hub.dataplane.partitions[request.partition]
                self._wakes.wake(partition, wait.namespace, wait.key)
                if wait.call is not None:
                    self._hub.calls.give_up(wait.call)
                    self._is_over(wait.call)
                    wait.call = None
            self.end(request)
            self._hub.tally("waits_ended_with_client")

    def _is_over(self, call: Call) -> None:
        self._over.setdefault(call.target, []).append(call.number)

    # -- trying again ---------------------------------------------------------------------

    def head_of(self, request: Request, primary: MemberId) -> bytes:
        """What stands before a request that is sent on: the hops, whose it is, which attempt."""
        waited, wait = None, request.wait
        if wait is not None:
            number = wait.number if wait.target == primary else 0
            waited = (number, self._hub.ctx.now_us - request.since_us)
        head = Head(request.hops + 1, request.origin.client_id, waited, request.attempt)
        return head.encode()

    def came(self, origin: ForwardOrigin, body: bytes) -> tuple[Attempt | None, int]:
        """A FORWARD is here: note whose it is; the attempt's name, and where the request begins.

        Raises:
            ProtocolError: It is shorter than its head.
        """
        head, start = read_head(body)
        origin.hops, origin.client_id = head.hops, head.client_id
        if head.waited is not None:
            number, age_us = head.waited
            place = self.queues.come(origin.member, number)
            since_us = self._hub.ctx.now_us - age_us
            origin.place = place or (since_us, self.queues.next_number())
        return head.attempt, start

    def _try(self, request: Request) -> None:
        """Make the next attempt of an idle call, if one can be made."""
        wait = request.wait
        if wait is None or not wait.is_idle:
            return
        self.queues.remove(request)
        wait.is_idle = False
        request.hops = request.deadline_us = 0
        if not self._try_again(request):
            self._rest(request, AGAIN_US)
            if self._hub.dataplane.partitions[request.partition].is_primary:
                self.queues.add(request)

    def tick(self) -> None:
        """Time has passed: end what has waited long enough, try again what nobody has woken."""
        self._go_on()
        self.queues.forget_old(self._hub.ctx.now_us)
        over, self._over = self._over, {}
        for member, numbers in over.items():
            self._hub.notify(member, NOTIFY_WAIT_OVER, encode_numbers(numbers))

    def _go_on(self) -> None:
        """Take up the calls that are due, the oldest first, as many as one tick may hold."""
        now_us, due = self._hub.ctx.now_us, self._due
        for _ in range(TRIES_PER_TICK):
            if not due or due[0][0] > now_us:
                return
            due_us, order = heappop(due)
            request = self._calls.get(order)
            wait = None if request is None else request.wait
            if request is None or wait is None or not wait.is_idle or wait.due_us != due_us:
                continue
            if now_us < wait.deadline_us:
                self._try(request)
            else:
                self._hub.tally("waits_expired")
                self.end(request)
                self._hub.deliver(request.origin, wait.expired)

    def hurry(self, wanted: Callable[[Request, Wait], bool]) -> None:
        """Something has happened: with the next tick try the idle calls that ``wanted`` names.

        Not at once, because news come while whoever brings them is at work.
        """
        self._hurry(self._calls, wanted)

    def _hurry(
        self, calls: dict[int, Request], wanted: Callable[[Request, Wait], bool] | None = None
    ) -> None:
        now_us = self._hub.ctx.now_us
        for request in calls.values():
            wait = request.wait
            if wait is None or not wait.is_idle or wait.due_us <= now_us:
                continue
            if wanted is None or wanted(request, wait):
                self._set_due(wait, now_us)

    # -- news -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Once per turn: whatever was changed, let whoever waits longest for it look."""
        if self._hub.member.is_expelled:
            return
        hints: list[Hint] = []
        for _ in range(ROUNDS_PER_TURN):
            for pid, namespace, key in self._wakes.take():
                waiter = self.queues.take_oldest(pid, namespace, key)
                if isinstance(waiter, Hint):
                    hints.append(waiter)
                elif waiter is not None:
                    self._hub.tally("waits_woken")
                    self._try(waiter)
            if not self._wakes.pending:
                break
        self._tell_woken(hints)

    def _tell_woken(self, hints: Iterable[Hint]) -> None:
        woken: dict[MemberId, list[int]] = {}
        for hint in hints:
            woken.setdefault(hint.member, []).append(hint.number)
        for member, numbers in woken.items():
            self._hub.notify(member, NOTIFY_WAKE, encode_numbers(numbers))

    def on_wake(self, peer: MemberId, body: bytes) -> None:
        """The primary has something for calls of ours; it hears of those that will not come.

        Raises:
            ProtocolError: The body is no list of numbers.
        """
        gone = []
        remembered = self._remembered.get(peer, {})
        for number in decode_numbers(body):
            request = remembered.get(number)
            wait = None if request is None else request.wait
            if request is None or wait is None:
                gone.append(number)
            elif wait.is_idle:
                self._hub.tally("waits_woken")
                self._try(request)
                if wait.is_idle:
                    gone.append(number)  # it cannot be tried there now
            elif wait.call is None or wait.call.target != peer:
                gone.append(number)  # its attempt goes elsewhere
        if gone:
            self._hub.notify(peer, NOTIFY_WAIT_OVER, encode_numbers(gone))

    def on_over(self, peer: MemberId, body: bytes) -> None:
        """Calls of another member have ended: do not remember them, do not run what is parked.

        Raises:
            ProtocolError: The body is no list of numbers.
        """
        unknown = frozenset(self.queues.forget(peer, decode_numbers(body)))

        def is_over(request: Request) -> bool:
            origin = request.origin
            return (
                isinstance(origin, ForwardOrigin)
                and origin.member == peer
                and origin.call in unknown
            )

        if unknown:
            for request in self._parking.take_where(is_over):
                self.queues.wake_first(self._hub.dataplane.partitions[request.partition])

    def row_changed(self, pid: PartitionId) -> None:
        """The row of a partition changed."""
        if not self._hub.dataplane.partitions[pid].is_primary:
            self.queues.leave(pid)
        if pid in self._by_partition:
            self._hurry(self._by_partition[pid])

    def released(self, pid: PartitionId) -> None:
        """A partition of ours may be written again; wakes may have found it closed."""
        self.queues.wake_first(self._hub.dataplane.partitions[pid])

    def member_left(self, member: MemberId) -> None:
        """A member is off the list."""
        self.queues.member_left(member)
        self._over.pop(member, None)
        self.hurry(lambda request, wait: wait.target == member)

    def link_restored(self, member: MemberId) -> None:
        """What was said to a member may be lost; what it remembers may be gone."""
        self._tell_woken(self.queues.woken_of(member))
        self.hurry(lambda request, wait: wait.target == member)

    def destroyed(self, namespace: Namespace) -> None:
        """A structure is gone: whoever waits for it looks again."""
        self._tell_woken(self.queues.take_all(namespace))
        self.hurry(lambda request, wait: wait.namespace == namespace)
