"""Backup operations on their way to one member, and the acknowledgements that come back.

Knows frames, sequence numbers and the replies that wait; knows nothing of partitions, versions or
what an operation does. One frame goes out per target and turn, so a synchronous backup costs no
write of its own (FN-19). Frames are numbered per target and kept until acknowledged; after the link
was lost they are sent again under the same numbers (design 0001 decision 4).
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import ProtocolError

FRAME: Final = struct.Struct("<QIQI")
"""Start of a BACKUPS payload: sender incarnation, stream, sequence number, operations."""
FRAME_BYTES_TARGET: Final = 256 * 1024
"""A frame is closed at about this size, so that applying one never takes long."""

BYTES_IN_FLIGHT_MAX: Final = 256 * 1024 * 1024
"""Frames kept for one member; large values reach this before the number of operations does."""

ACKS: Final = struct.Struct("<QIQBI")
"""Start of an ACKS payload: incarnation, stream, last sequence applied, gap flag, refusals."""
REFUSAL: Final = struct.Struct("<QIB")
"""A refused operation: sequence number of its frame, position in it, reason."""
REFUSED_STALE_PRIMARY: Final = 1
REFUSED_DISK: Final = 2
"""It is applied, and the disk that it belongs on takes nothing."""
WHOLE_FRAMES: Final = 0xFFFFFFFF
"""In place of a position: everything up to this frame that is not acknowledged is refused."""
REFUSALS_MAX: Final = 100_000
"""More refusals than this in one ACKS payload are not believed."""

_pack_frame = FRAME.pack
_unpack_frame = FRAME.unpack_from
_pack_acks = ACKS.pack

FAILED_STALE = "stale primary"
"""The partition went to another member, which may have the write or not."""
FAILED_TIMEOUT = "backup timeout"
FAILED_DISK = "no space left on the disk of a backup"
_NEVER_DONE = -(1 << 40)
CLOSED: Final = 1 << 62
"""Acknowledged sequence of an outbox whose member is gone: whoever waits for it goes on."""


class PendingReply(msgspec.Struct, eq=False, gc=False):
    """A client's reply that waits for synchronous backups.

    Attributes:
        remaining: Acknowledgements still to come; 0 means that nothing needs to be waited for.
        failed: Why nobody can tell whether it succeeded (FAILED_STALE, FAILED_TIMEOUT, what a disk
            said), empty while somebody may. The change itself is done here in any case.
        released: How many of the backups left or ceased to be backups before they acknowledged.
            They count as done; a backup-aware client must be told this many acknowledgements.
        owner: The serving layer's: whose reply it is.
        payload: The serving layer's: the encoded reply.
        ack_to: Client uuid (16 bytes) and correlation (8, little-endian) that the synchronous
            backups tell when they have applied the change; empty for nobody.
        partition_id: The partition written to.
    """

    owner: object = None
    ack_to: bytes = b""
    payload: object = None
    remaining: int = 0
    failed: str = ""
    released: int = 0
    partition_id: int = -1

    def fail(self, reason: str) -> bool:
        """Give it up; False when it was decided before."""
        if self.remaining <= 0:
            return False
        self.remaining = _NEVER_DONE
        self.failed = reason
        return True

    def release(self, completed: list[PendingReply]) -> None:
        """Wait for one acknowledgement less: nobody is asked for it any more."""
        self.released += 1
        self.remaining -= 1
        if self.remaining == 0:
            completed.append(self)


Reply = PendingReply | None
"""Who waits for the backups of a change; None for nobody."""


class Frame(msgspec.Struct, eq=False):
    """Operations of one turn for one target."""

    sequence: int
    body: bytes
    count: int
    replies: list[Reply]
    sent_us: int


class Tail:
    """The last frames of a link, for as long as more have not passed.

    Whoever has got them may die before its disk has: what it lacks when it returns is in these
    (docs/design/0018).
    """

    __slots__ = ("_bytes_max", "_size", "frames")

    def __init__(self, bytes_max: int) -> None:
        """Keep none yet, and never more than so many bytes."""
        self._bytes_max = bytes_max
        self._size = 0
        self.frames: deque[bytes] = deque()

    def add(self, frame: bytes) -> None:
        """Keep one more; the oldest go."""
        frames = self.frames
        frames.append(frame)
        self._size += len(frame)
        while self._size > self._bytes_max:
            self._size -= len(frames.popleft())


def make_tail(settings: CoreSettings) -> Tail | None:
    """A tail for a link of this member; None where nobody has anything on a disk."""
    if not settings.persistence.enabled:
        return None
    return Tail(settings.comparison.tail_bytes_max)


@dataclass(slots=True, eq=False)
class Outbox:
    """Everything under way to one member.

    Attributes:
        operations: Encoded operations of this turn; the hot path appends to it.
        replies: Parallel to ``operations``: who waits for it, or None.
        in_flight: Operations in frames that are not acknowledged.
        bytes_in_flight: Their bytes.
        must_resend: Whether the next ``take`` sends every frame again.
        tail: The last frames that were acknowledged, if they are kept.
    """

    member: MemberId
    incarnation: int
    stream: int
    operations: list[bytes] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    frames: deque[Frame] = field(default_factory=deque)
    sequence: int = 0
    acknowledged: int = 0
    in_flight: int = 0
    bytes_in_flight: int = 0
    is_up: bool = True
    must_resend: bool = False
    tail: Tail | None = None

    # -- sending --------------------------------------------------------------------------

    def follow(self, _fragment: object, _operation: bytes, record: bytes) -> None:
        """Send a change for which nobody waits."""
        self.operations.append(record)
        self.replies.append(None)

    def take(self, now_us: int) -> list[bytes]:
        """Close this turn's frames; the payloads to send now, in order.

        While the link is down frames are kept only; they all go out when it is up again.
        """
        operations = self.operations
        if operations and self.is_up and not self.must_resend:
            # Nearly every turn: one frame that goes out at once.
            body = b"".join(operations)
            size, count = len(body), len(operations)
            if size <= FRAME_BYTES_TARGET:
                replies = self.replies
                self.operations, self.replies = [], []
                self.in_flight += count
                self.bytes_in_flight += size
                sequence = self.sequence = self.sequence + 1
                self.frames.append(Frame(sequence, body, count, replies, now_us))
                return [_pack_frame(self.incarnation, self.stream, sequence, count) + body]
        fresh = self._close_frames(now_us) if operations else []
        if not self.is_up:
            return []
        if self.must_resend:
            self.must_resend = False
            return [self._payload(frame) for frame in self.frames]
        return [self._payload(frame) for frame in fresh]

    def _close_frames(self, now_us: int) -> list[Frame]:
        operations, replies = self.operations, self.replies
        self.operations, self.replies = [], []
        self.in_flight += len(operations)
        self.bytes_in_flight += sum(map(len, operations))
        start, size = 0, 0
        fresh: list[Frame] = []
        for position, operation in enumerate(operations):
            size += len(operation)
            if size >= FRAME_BYTES_TARGET or position + 1 == len(operations):
                stop = position + 1
                self.sequence += 1
                body, waiting = b"".join(operations[start:stop]), replies[start:stop]
                fresh.append(Frame(self.sequence, body, stop - start, waiting, now_us))
                start, size = stop, 0
        self.frames.extend(fresh)
        return fresh

    def _payload(self, frame: Frame) -> bytes:
        head = _pack_frame(self.incarnation, self.stream, frame.sequence, frame.count)
        return head + frame.body

    def is_full(self, operations_max: int) -> bool:
        """Whether the receiver is so far behind that no more writes may wait for it."""
        return self.in_flight >= operations_max or self.bytes_in_flight >= BYTES_IN_FLIGHT_MAX

    def link_lost(self) -> None:
        """Frames from now on would be lost: keep them."""
        self.is_up = False

    def link_restored(self) -> None:
        """Send every frame that is not acknowledged again, at the next ``take``."""
        self.is_up = True
        self.must_resend = True

    def renumber(self, stream: int) -> None:
        """Begin a new stream: the receiver is another process now and knows nothing of ours."""
        self.stream = stream
        self.acknowledged = 0
        self.sequence = 0
        for frame in self.frames:
            self.sequence += 1
            frame.sequence = self.sequence
        self.must_resend = True

    # -- being answered -------------------------------------------------------------------

    def is_answered_by(self, incarnation: int, stream: int, sequence: int) -> bool:
        """Whether an acknowledgement is one of this stream.

        Raises:
            ProtocolError: It acknowledges a frame that was never made. Whoever waits for frames
                to come (``transfer.FragmentExport``) would go on without them.
        """
        if stream != self.stream or incarnation != self.incarnation:
            return False
        if sequence > self.sequence:
            raise ProtocolError(f"frame {sequence} is acknowledged, the last is {self.sequence}")
        return True

    def acknowledge(self, sequence: int, completed: list[PendingReply]) -> None:
        """Everything up to this frame is applied; decided replies are added to ``completed``."""
        frames, tail = self.frames, self.tail
        while frames and frames[0].sequence <= sequence:
            frame = frames.popleft()
            if tail is not None:
                tail.add(frame.body)
            self.in_flight -= frame.count
            self.bytes_in_flight -= len(frame.body)
            for reply in frame.replies:
                if reply is not None:
                    reply.remaining -= 1
                    if reply.remaining == 0:
                        completed.append(reply)
        self.acknowledged = max(self.acknowledged, sequence)

    def refuse(self, sequence: int, position: int) -> PendingReply | None:
        """The receiver refuses an operation: who waits for that write (decision 5).

        No acknowledgement will come for it any more.
        """
        for frame in self.frames:
            if frame.sequence == sequence and position < len(frame.replies):
                reply, frame.replies[position] = frame.replies[position], None
                return reply if reply is not None and reply.remaining > 0 else None
            if frame.sequence >= sequence:
                break
        return None

    def refuse_frames(self, sequence: int) -> list[PendingReply]:
        """The same of everything up to a frame: who waits for it."""
        found: list[PendingReply] = []
        for frame in self.frames:
            if frame.sequence > sequence:
                break
            found += [reply for reply in frame.replies if reply is not None and reply.remaining > 0]
            frame.replies = [None] * len(frame.replies)
        return found

    # -- not being answered ---------------------------------------------------------------

    def release(self, partition_id: int | None, completed: list[PendingReply]) -> None:
        """Wait no longer for this member, for one partition or (None) for all.

        The member left, or its replica was taken over by another that has got all the data.
        """
        for reply in self._take_waiting(partition_id):
            reply.release(completed)

    def disown(self, partition_id: int, completed: list[PendingReply]) -> None:
        """Nobody can tell what became of the writes of a partition: their replies fail."""
        waiting = self._take_waiting(partition_id)
        completed.extend([reply for reply in waiting if reply.fail(FAILED_STALE)])

    def _take_waiting(self, partition_id: int | None) -> list[PendingReply]:
        """Take out the replies that wait for this member, of one partition or (None) of all."""
        taken: list[PendingReply] = []
        for replies in [frame.replies for frame in self.frames] + [self.replies]:
            for position, reply in enumerate(replies):
                if reply is not None and partition_id in (None, reply.partition_id):
                    replies[position] = None
                    taken.append(reply)
        return taken

    def close(self, completed: list[PendingReply]) -> None:
        """The member is gone: nothing is kept and nobody waits any longer."""
        self.release(None, completed)
        self.frames.clear()
        self.operations, self.replies = [], []
        self.in_flight = self.bytes_in_flight = 0
        self.acknowledged = CLOSED

    def expire(self, before_us: int, completed: list[PendingReply]) -> int:
        """Fail replies of frames closed before that moment; returns how many."""
        failed = 0
        for frame in self.frames:
            if frame.sent_us > before_us:
                break
            for position, reply in enumerate(frame.replies):
                if reply is not None and reply.fail(FAILED_TIMEOUT):
                    completed.append(reply)
                    failed += 1
                frame.replies[position] = None
        return failed

    def unacknowledged(self) -> list[bytes]:
        """The operations that are not acknowledged, frame by frame, and those of this turn."""
        return [*(frame.body for frame in self.frames), *self.operations]

    def last(self) -> list[bytes]:
        """The same, and before them the last ones that are, as far as they are kept."""
        acknowledged = () if self.tail is None else self.tail.frames
        return [*acknowledged, *self.unacknowledged()]

    def waits_since_us(self) -> int | None:
        """When the oldest frame without acknowledgement was closed; None when there is none."""
        return self.frames[0].sent_us if self.frames else None


@dataclass(slots=True, eq=False)
class Inbox:
    """What came from one sender: its stream, the next frame expected, what is owed in return.

    Attributes:
        refusals: (sequence, position, reason) since the last ``take_acks``.
        owed: (incarnation, stream, sequence, gap flag) of acknowledgements not taken yet.
        tail: The payloads that were applied last, if they are kept.
    """

    incarnation: int = 0
    stream: int = 0
    applied: int = 0
    refusals: list[tuple[int, int, int]] = field(default_factory=list)
    _refused: deque[tuple[int, int, int]] = field(
        default_factory=lambda: deque(maxlen=REFUSALS_MAX)
    )
    owed: list[tuple[int, int, int, int]] = field(default_factory=list)
    _gap_told: int = -1
    tail: Tail | None = None

    def admit(self, payload: bytes) -> tuple[int, int] | None:
        """Its sequence and number of operations when a frame is the next one and to be applied.

        A repeated frame is acknowledged again; one that comes too early is asked for again.

        Raises:
            ProtocolError: The head is cut off.
        """
        if len(payload) < FRAME.size:
            raise ProtocolError("a backup frame ends within its head")
        incarnation, stream, sequence, count = _unpack_frame(payload)
        if incarnation != self.incarnation or stream != self.stream:
            if sequence != 1:
                # We are a younger process than the one this stream began with.
                self.owed.append((incarnation, stream, 0, 1))
                return None
            self.incarnation, self.stream, self.applied = incarnation, stream, 0
            self._gap_told = -1
            self._refused.clear()
        if sequence <= self.applied:
            # The answer may have been lost, and with it what we refused.
            self.refusals.extend(entry for entry in self._refused if entry[0] == sequence)
            self._owe(0)
            return None
        if sequence > self.applied + 1:
            if self._gap_told != self.applied:
                self._gap_told = self.applied
                self._owe(1)
            return None
        return sequence, count

    def applied_frame(self, sequence: int) -> None:
        """The frame is applied: it will be acknowledged."""
        self.applied = sequence
        owed = self.owed
        if not owed:
            owed.append((self.incarnation, self.stream, sequence, 0))
        else:
            self._owe(0)

    def refuse(self, sequence: int, position: int, reason: int) -> None:
        """The operation at this position of the frame is refused."""
        refusal = (sequence, position, reason)
        self.refusals.append(refusal)
        self._refused.append(refusal)

    def last(self) -> list[bytes]:
        """The bodies of the frames that were applied last, as far as they are kept."""
        return [] if self.tail is None else [frame[FRAME.size :] for frame in self.tail.frames]

    def answer_again(self) -> None:
        """The link to the sender was lost, and with it perhaps our last answers."""
        if self.applied:
            self.refusals = list(self._refused)
            self._owe(0)

    def _owe(self, gap: int) -> None:
        owed = (self.incarnation, self.stream, self.applied, gap)
        if self.owed and not gap and self.owed[-1][3] == 0:
            self.owed[-1] = owed
        else:
            self.owed.append(owed)

    def refuse_held(self, payload: bytes) -> bytes:
        """An acknowledgement that was held back, as one that refuses all it would acknowledge."""
        incarnation, stream, sequence, gap, refusals = read_acks(payload)
        refusal = (sequence, WHOLE_FRAMES, REFUSED_DISK)
        self._refused.append(refusal)
        head = _pack_acks(incarnation, stream, sequence, gap, len(refusals) + 1)
        return b"".join([head, *(REFUSAL.pack(*one) for one in (refusal, *refusals))])

    def take_acks(self) -> list[bytes]:
        """The ACKS payloads owed since the last call."""
        if not self.owed:
            return []
        owed, self.owed = self.owed, []
        if len(owed) == 1 and not self.refusals:
            return [_pack_acks(*owed[0], 0)]
        refusals, self.refusals = self.refusals, []
        # Refusals go first: once its frame is acknowledged a reply counts as successful.
        first = _pack_acks(*owed[0], len(refusals))
        payloads = [first + b"".join([REFUSAL.pack(*refusal) for refusal in refusals])]
        payloads.extend(_pack_acks(*entry, 0) for entry in owed[1:])
        return payloads


def read_acks(payload: bytes) -> tuple[int, int, int, int, list[tuple[int, int, int]]]:
    """Incarnation, stream, last sequence applied, gap flag, and the refusals.

    A refusal is sequence, position and reason; its position may be WHOLE_FRAMES.

    Raises:
        ProtocolError: The payload is cut off or too long.
    """
    if len(payload) < ACKS.size:
        raise ProtocolError("an acknowledgement ends within its head")
    *head, count = ACKS.unpack_from(payload)
    if count > REFUSALS_MAX or len(payload) != ACKS.size + count * REFUSAL.size:
        raise ProtocolError("an acknowledgement does not have the length it announces")
    refusals = [entry[:3] for entry in REFUSAL.iter_unpack(payload[ACKS.size :])]
    incarnation, stream, sequence, gap = head
    return incarnation, stream, sequence, gap, refusals
