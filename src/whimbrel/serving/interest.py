"""What other members want to hear of structures, and which of them is told for whom.

A member's *interest* says which events its clients' listeners want that arise elsewhere. A listener
stands in it by its *mark*, which is the same wherever the same client makes the same registration:
there are clients that make it at every member and expect each event once all the same. So whoever
has an event tells it to one member for each mark.

That is the member that has made the mark known last. A client that comes back elsewhere is with
the new member; the one that it was with need not have noticed, and would tell nobody. Members need
not agree on it, since an event arises at one of them and that one chooses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable
from hashlib import blake2b
from typing import Annotated, Final

import msgspec

from whimbrel.core.ids import MemberId, Namespace
from whimbrel.errors import ProtocolError
from whimbrel.serving.bodies import read_body
from whimbrel.wire.frames import REQUEST_FIXED, RawMessage

MARK_BYTES: Final = 8

Mark = Annotated[bytes, msgspec.Meta(min_length=MARK_BYTES, max_length=MARK_BYTES)]
"""What registrations of one client for the same have in common, at whichever members they are."""
Marks = dict[Namespace, tuple[Mark, ...]]
"""What is wanted, by structure. Of GRID all are told who want it, whatever the marks, if any."""

_COUNT = struct.Struct("<I")


class Interest(msgspec.Struct, frozen=True, array_like=True):
    """What a member wants to hear that arises elsewhere; the greater number is newer."""

    number: int
    marks: Marks
    late: dict[MemberId, Marks]
    """What else it wants to hear from single members that came later than their listeners."""


_encode_interest = msgspec.msgpack.Encoder().encode
_decode_interest = msgspec.msgpack.Decoder(Interest).decode


def mark_of(client: bytes, message: RawMessage) -> bytes:
    """The mark of a registration: MARK_BYTES of who asks and what for.

    Args:
        client: Uuid of the client.
        message: The request. What differs from member to member is left out: the flags, the
            correlation and the partition.
    """
    buffer, end, start = message[0], message[2], message[3][0]
    what = blake2b(client, digest_size=MARK_BYTES)
    what.update(message[4].to_bytes(4, "little", signed=True))
    what.update(buffer[start + REQUEST_FIXED : end])
    return what.digest()


def encode_interest(interest: Interest) -> bytes:
    """As other members take it with ``Interests.take``."""
    return _encode_interest(interest)


def pack_marks(marks: Iterable[bytes]) -> bytes:
    """What a notice of an event begins with: for whom it is."""
    joined = b"".join(marks)
    return _COUNT.pack(len(joined) // MARK_BYTES) + joined


def unpack_marks(notice: bytes) -> tuple[Container[bytes], bytes]:
    """The marks that a notice begins with, and the rest of it.

    Raises:
        ProtocolError: It ends before that.
    """
    count = int.from_bytes(notice[: _COUNT.size], "little")
    end = _COUNT.size + count * MARK_BYTES
    if len(notice) < end:
        raise ProtocolError(f"not an event: {len(notice)} bytes, and {count} marks before it")
    if count == 1:  # of nearly every event
        return (notice[_COUNT.size : end],), notice[end:]
    marks = {notice[at : at + MARK_BYTES]: None for at in range(_COUNT.size, end, MARK_BYTES)}
    return marks, notice[end:]


class Interests:
    """What the other members want to hear."""

    def __init__(self, me: MemberId, changed: Callable[[Namespace, int], None]) -> None:
        """Nobody wants anything yet.

        Args:
            me: This member.
            changed: Is told of a structure for which other marks are wanted, or by other members,
                and how many members more want to hear of it than before.
        """
        self._me = me
        self._changed = changed
        self._by_member: dict[MemberId, Interest] = {}
        self._by_mark: dict[Namespace, dict[bytes, dict[MemberId, None]]] = {}
        """Members in the order in which they made a mark known."""

    def take(self, member: MemberId, body: bytes) -> None:
        """A member says what it wants to hear; what it has said before is over.

        Raises:
            ProtocolError: It is no interest.
        """
        told = read_body(_decode_interest, body, "an interest")
        known = self._by_member.get(member)
        if known is None or known.number < told.number:
            marks = dict(told.marks)
            for name, late in told.late.get(self._me, {}).items():
                marks[name] = (*marks.get(name, ()), *late)
            self._by_member[member] = Interest(told.number, marks, {})
            self._replace(member, known.marks if known else {}, marks)

    def forget(self, member: MemberId) -> None:
        """A member has left."""
        known = self._by_member.pop(member, None)
        if known is not None:
            self._replace(member, known.marks, {})

    def members(self, name: Namespace) -> list[MemberId]:
        """Who wants to hear of a structure, or of GRID."""
        return [member for member, interest in self._by_member.items() if name in interest.marks]

    def tellers(self, name: Namespace, here: Container[bytes]) -> dict[MemberId, list[bytes]]:
        """Whom to tell the events of a structure, and for which marks.

        Args:
            name: The structure.
            here: Marks of listeners that are told here already.
        """
        told: dict[MemberId, list[bytes]] = {}
        for mark, members in self._by_mark.get(name, {}).items():
            if mark not in here:
                told.setdefault(next(reversed(members)), []).append(mark)
        return told

    def _replace(self, member: MemberId, old: Marks, new: Marks) -> None:
        for name in dict.fromkeys((*old, *new)):
            by_mark = self._by_mark.setdefault(name, {})
            before, after = dict.fromkeys(old.get(name, ())), dict.fromkeys(new.get(name, ()))
            for mark in before:
                if mark not in after:
                    members = by_mark[mark]
                    del members[member]
                    if not members:
                        del by_mark[mark]
            for mark in after:
                if mark not in before:
                    by_mark.setdefault(mark, {})[member] = None
            if not by_mark:
                del self._by_mark[name]
            self._changed(name, (name in new) - (name in old))
