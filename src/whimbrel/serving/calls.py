"""Calls between members that happen once: numbered, kept until answered, answered again if asked.

A call is a FORWARD or SCATTER frame and its reply. A broken connection loses an unknown tail of
frames, so each side keeps what the other may not have: the caller its unanswered calls, the
executing member its answers until the caller says that it has them. Both send them again after
``LinkRestored`` (docs/design/0001, "Links between members"). A call that arrives twice is executed
once. Calls that began while the link was down are told apart by their numbers: should the member
leave, those have had no effect for certain (docs/design/0013).

Knows numbers and bytes; what a call means is its owner's affair.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from whimbrel.core.ids import MemberId
from whimbrel.errors import OverloadedError, ProtocolError

CALLS_PER_MEMBER_MAX = 20_000
"""Unanswered calls to one member; more are refused as overload, without effect."""
CALL_BYTES_PER_MEMBER_MAX = 128 * 1024 * 1024
"""Bytes of unanswered calls to one member (kept for repetition); one call may always go."""

CALL_TIMEOUT_US = 60_000_000
"""A call that nobody has answered by then is overdue: its caller waits no longer (C1). More than a
request may wait on its way, parked and for backups, in any but the rarest chain of moves."""
AGE_STEP_US = 5_000_000
"""Ages of calls are known to within this span, so that no call carries a time."""
HELD_MAX = 2 * CALLS_PER_MEMBER_MAX
"""Calls of one member that may wait here; its essential ones are not among those it counts."""
ANSWER_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of answers kept for one member; while there are more its further calls wait here."""
TELL_BYTES = 8 * 1024 * 1024
"""After so many bytes of answers their sender is told at once that it may forget them."""

_REQUEST = struct.Struct("<IQQ")
"""Incarnation of the caller, number of the call, lowest number it still waits for."""
_ALL_SENT = 1 << 64
"""Above all numbers of calls: the link is up, and whatever waits may have arrived."""
_NO_CALL = 0
"""Number in a frame that carries no call, only the lowest number waited for."""
_REPLY = struct.Struct("<IQ")
"""Incarnation of the caller, number of the call."""

SendFrame = Callable[[MemberId, int, bytes], None]


@dataclass(slots=True, eq=False)
class Call:
    """A call that waits for its answer. ``token`` is the owner's; None when it waits no more."""

    target: MemberId
    number: int
    kind: int
    payload: bytes
    token: object


@dataclass(slots=True, eq=False)
class _Outgoing:
    """Calls to one member."""

    next_number: int
    told_floor: int
    unsent_from: int = _ALL_SENT
    """Calls from this number on began while the link was down, so they have never left."""
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    """Moments (us), each with the number that the next call had then."""
    kind: int = 0
    waiting: dict[int, Call] = field(default_factory=dict)
    waiting_bytes: int = 0
    untold_bytes: int = 0
    """Bytes of answers that came since the other side was told which we have."""


@dataclass(slots=True, eq=False)
class _Incoming:
    """Calls from one incarnation of a member: None while one runs, (kind, reply) once answered."""

    incarnation: int
    floor: int = 1
    answers: dict[int, tuple[int, bytes] | None] = field(default_factory=dict)
    answer_bytes: int = 0
    """Bytes of the kept answers."""
    held: deque[tuple[int, int, bytes]] = field(default_factory=deque)
    """Calls that wait until some answers are forgotten: kind, number, body."""
    held_bytes: int = 0

    def forget(self, number: int) -> None:
        """The caller has this answer, or wants it no more."""
        answer = self.answers.pop(number)
        if answer is not None:
            self.answer_bytes -= len(answer[1])


class Calls:
    """All calls of one member, in both directions."""

    def __init__(self, incarnation: int, send: SendFrame) -> None:
        self._incarnation = incarnation & 0xFFFFFFFF
        self._send = send
        self._outgoing: dict[MemberId, _Outgoing] = {}
        self._incoming: dict[MemberId, _Incoming] = {}
        self._down: dict[MemberId, None] = {}
        """Members whose link is down: what is sent to them is dropped until it stands again."""
        self._first_number = 1
        """Of the calls to a member that we had no calls to before, or that came back: greater than
        any number used to one that left. A process that starts again under the same identity may
        have heard calls meant for the one before it, and their numbers must not mean others."""

    # -- as the caller --------------------------------------------------------------------

    def start(
        self,
        target: MemberId,
        kind: int,
        body: bytes,
        token: object,
        *,
        essential: bool = False,
    ) -> Call:
        """Send a call; the answer comes from ``take_reply``, or the call from ``member_left``.

        An essential call is small, rare and our own; it goes out whatever waits.

        Raises:
            OverloadedError: Too many calls, or bytes of calls, wait for that member already.
        """
        outgoing = self._outgoing.get(target)
        if outgoing is None:
            outgoing = self._outgoing[target] = _Outgoing(self._first_number, self._first_number)
            if target in self._down:
                outgoing.unsent_from = self._first_number
        waiting = outgoing.waiting
        if (
            waiting
            and not essential
            and (
                len(waiting) >= CALLS_PER_MEMBER_MAX
                or outgoing.waiting_bytes + len(body) > CALL_BYTES_PER_MEMBER_MAX
            )
        ):
            raise OverloadedError(
                f"{len(waiting)} calls ({outgoing.waiting_bytes} bytes) wait for one member already"
            )
        number = outgoing.next_number
        outgoing.next_number = number + 1
        floor = next(iter(waiting)) if waiting else number
        outgoing.told_floor = floor
        outgoing.untold_bytes = 0
        outgoing.kind = kind
        payload = _REQUEST.pack(self._incarnation, number, floor) + body
        call = Call(target, number, kind, payload, token)
        waiting[number] = call
        outgoing.waiting_bytes += len(payload)
        self._send(target, kind, payload)
        return call

    def take_reply(self, peer: MemberId, payload: bytes) -> tuple[Call, bytes] | None:
        """The call that a reply frame answers, and the reply's body; None when it is an old one.

        Raises:
            ProtocolError: The frame is too short.
        """
        if len(payload) < _REPLY.size:
            raise ProtocolError("a reply frame without a call number")
        incarnation, number = _REPLY.unpack_from(payload)
        outgoing = self._outgoing.get(peer)
        if outgoing is None or incarnation != self._incarnation:
            return None
        call = outgoing.waiting.pop(number, None)
        if call is None:
            return None
        outgoing.waiting_bytes -= len(call.payload)
        outgoing.untold_bytes += len(payload)
        if outgoing.untold_bytes > TELL_BYTES:
            self._tell_floor(peer, outgoing)
        return call, payload[_REPLY.size :]

    def take_overdue(self, now_us: int) -> list[Call]:
        """Calls that wait for longer than ``CALL_TIMEOUT_US``, until given up or without a token.

        To be asked again and again; a call is named at most two steps late.
        """
        overdue: list[Call] = []
        for outgoing in self._outgoing.values():
            marks, waiting = outgoing.marks, outgoing.waiting
            if not waiting:
                marks.clear()
                continue
            if not marks or now_us - marks[-1][0] >= AGE_STEP_US:
                marks.append((now_us, outgoing.next_number))
            floor = 0
            while marks and now_us - marks[0][0] >= CALL_TIMEOUT_US:
                floor = marks.popleft()[1]
            for number, call in waiting.items():
                if number >= floor:
                    break
                if call.token is not None:
                    overdue.append(call)
        return overdue

    def give_up(self, call: Call) -> None:
        """Wait no longer for a call; it is not sent again, and a late answer is an old one."""
        outgoing = self._outgoing.get(call.target)
        if outgoing is not None and outgoing.waiting.pop(call.number, None) is not None:
            outgoing.waiting_bytes -= len(call.payload)

    def tick(self) -> None:
        """Let members forget answers that we have, where no further call would tell them."""
        for peer, outgoing in self._outgoing.items():
            self._tell_floor(peer, outgoing)

    def _tell_floor(self, peer: MemberId, outgoing: _Outgoing) -> None:
        waiting = outgoing.waiting
        floor = next(iter(waiting)) if waiting else outgoing.next_number
        outgoing.untold_bytes = 0
        if outgoing.told_floor < floor:
            outgoing.told_floor = floor
            payload = _REQUEST.pack(self._incarnation, _NO_CALL, floor)
            self._send(peer, outgoing.kind, payload)

    def waiting_count(self) -> int:
        """Calls that wait for an answer."""
        return sum(len(outgoing.waiting) for outgoing in self._outgoing.values())

    # -- as the executing member ----------------------------------------------------------

    def take_request(self, peer: MemberId, payload: bytes) -> tuple[int, bytes] | None:
        """The number and body of a call to execute; None when it was seen before.

        Raises:
            ProtocolError: The frame is too short, or waits for calls after itself only.
        """
        if len(payload) < _REQUEST.size:
            raise ProtocolError("a call frame without its numbers")
        incarnation, number, floor = _REQUEST.unpack_from(payload)
        if number != _NO_CALL and floor > number:
            raise ProtocolError("a call that is not among those waited for")
        incoming = self._incoming.get(peer)
        if incoming is None or incoming.incarnation != incarnation:
            incoming = self._incoming[peer] = _Incoming(incarnation)
        if floor > incoming.floor:
            incoming.floor = floor
            answers = incoming.answers
            # Numbers mostly arrive in rising order, so the lowest stand first.
            while answers and (first := next(iter(answers))) < floor:
                incoming.forget(first)
        if number < incoming.floor or number == _NO_CALL:
            return None
        if number in incoming.answers:
            answer = incoming.answers[number]
            if answer is not None:
                self._send(peer, answer[0], answer[1])
            return None
        incoming.answers[number] = None
        return number, payload[_REQUEST.size :]

    def hold(self, peer: MemberId, kind: int, number: int, body: bytes) -> bool:
        """Whether a call must wait, because the caller has not confirmed large answers.

        It then comes from ``take_held``. So whoever asks faster than it reads fills neither our
        memory nor the link.

        Raises:
            ProtocolError: More calls wait than a caller may have under way.
        """
        incoming = self._incoming[peer]
        if incoming.answer_bytes <= ANSWER_BYTES_MAX and not incoming.held:
            return False
        too_many = len(incoming.held) >= HELD_MAX
        if too_many or incoming.held_bytes > CALL_BYTES_PER_MEMBER_MAX:
            raise ProtocolError("more calls than one member may have under way", reason="overload")
        incoming.held.append((kind, number, body))
        incoming.held_bytes += len(body)
        return True

    def take_held(self, peer: MemberId) -> tuple[int, int, bytes] | None:
        """The next call (kind, number, body) that waited and may run now; None when none may."""
        incoming = self._incoming.get(peer)
        if incoming is None or incoming.answer_bytes > ANSWER_BYTES_MAX:
            return None
        while incoming.held:
            call = incoming.held.popleft()
            incoming.held_bytes -= len(call[2])
            if call[1] >= incoming.floor:  # else its caller has given it up
                return call
        return None

    def owes_much(self, peer: MemberId) -> bool:
        """Whether a caller has large answers that it has not confirmed."""
        incoming = self._incoming.get(peer)
        return incoming is not None and incoming.answer_bytes > ANSWER_BYTES_MAX

    def held_count(self) -> int:
        """Calls that wait until their callers have confirmed answers."""
        return sum(len(incoming.held) for incoming in self._incoming.values())

    def answer(self, peer: MemberId, number: int, kind: int, body: bytes) -> None:
        """Send the answer of a call and keep it until the caller has it."""
        incoming = self._incoming.get(peer)
        if incoming is None or number not in incoming.answers:
            return
        payload = _REPLY.pack(incoming.incarnation, number) + body
        incoming.answers[number] = (kind, payload)
        incoming.answer_bytes += len(payload)
        self._send(peer, kind, payload)

    # -- links and members ----------------------------------------------------------------

    def link_lost(self, peer: MemberId) -> None:
        """The link to a member is down: calls that begin from now on stay here.

        What was given to the shell before may have arrived, whenever the other side died.
        """
        if peer not in self._down:
            self._down[peer] = None
            outgoing = self._outgoing.get(peer)
            if outgoing is not None:
                outgoing.unsent_from = outgoing.next_number

    def is_down(self, peer: MemberId | None) -> bool:
        """Whether a call to a member would wait for its link."""
        return peer in self._down

    def was_sent(self, call: Call) -> bool:
        """Whether a call that waits may have arrived: it was given to a link that stood."""
        outgoing = self._outgoing.get(call.target)
        return outgoing is None or call.number < outgoing.unsent_from

    def link_restored(self, peer: MemberId) -> None:
        """Send again what the broken connection may have lost."""
        outgoing = self._outgoing.get(peer)
        if outgoing is not None:
            for call in outgoing.waiting.values():
                self._send(peer, call.kind, call.payload)
        self.member_came(peer)

    def member_came(self, peer: MemberId) -> None:
        """Send again the answers that a member may lack.

        A newcomer may call us before we have the list with it; there is no link back then, and
        what we answered went nowhere. The link is taken for standing: shells say when it is not.
        """
        self._down.pop(peer, None)
        outgoing = self._outgoing.get(peer)
        if outgoing is not None:
            outgoing.unsent_from = _ALL_SENT
        incoming = self._incoming.get(peer)
        if incoming is not None:
            for answer in incoming.answers.values():
                if answer is not None:
                    self._send(peer, answer[0], answer[1])

    def member_left(self, peer: MemberId) -> list[tuple[Call, bool]]:
        """Forget a member.

        Returns:
            The calls that will never be answered, each with whether it may have arrived.
        """
        self._incoming.pop(peer, None)
        self._down.pop(peer, None)
        outgoing = self._outgoing.pop(peer, None)
        if outgoing is None:
            return []
        self._first_number = max(self._first_number, outgoing.next_number)
        unsent_from = outgoing.unsent_from
        return [(call, number < unsent_from) for number, call in outgoing.waiting.items()]
