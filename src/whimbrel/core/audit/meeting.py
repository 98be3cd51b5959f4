"""How a backup has some keys at exactly one version of its primary, while operations go on.

A primary sums up entries and tells its version in one step; the question leaves before any later
operation does. So a backup that gets it is at that version, or before it, and answers in the very
moment when it has applied all operations up to it, and none after.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable

from whimbrel.core.messages import Vector
from whimbrel.core.messages.audit import Compare, Mark
from whimbrel.core.replication.content import ABSENT, NOTHING, Content, content_of
from whimbrel.core.replication.fragments import Fragment, in_step
from whimbrel.core.replication.vectors import lineage_version, slot_of
from whimbrel.errors import OperationError, SerializationError

Apply = Callable[[bytes, int, int], None]
"""As ``Fragment.apply``."""


class NotComparableError(OperationError):
    """Asked anew, it may be."""


class Meeting:
    """One question about keys, and its answer once the version is reached.

    Attributes:
        marks: The answer, a byte for each key; None before.
    """

    def __init__(self, fragment: Fragment | None, index: int, question: Compare) -> None:
        """Wait for the version, unless it is reached.

        Raises:
            NotComparableError: It will never be.
            SerializationError: There is not one sum for each key.
        """
        self.marks: bytes | None = None
        self._fragment = fragment
        self._index = index
        self._vector = question.vector
        self._keys = question.keys
        self._told = array("Q", question.sums)
        if sys.byteorder == "big":
            self._told.byteswap()
        if len(self._told) != len(self._keys):
            raise SerializationError("an audit asks about keys without their sums")
        self._problem: NotComparableError | None = None
        self._former: Apply = _nothing
        self._hook: Apply = _nothing
        self.look()
        if self.marks is None and fragment is not None:
            self._former, self._hook = fragment.apply, self._apply
            fragment.apply = self._hook

    def look(self) -> None:
        """See where we are now.

        Raises:
            NotComparableError: The version will not be reached any more, or in doubt.
        """
        if self.marks is None:
            if self._problem is None:
                self._problem = self._look()
            if self._problem is not None:
                raise self._problem

    def _look(self) -> NotComparableError | None:
        fragment = self._fragment
        if in_step(fragment, self._vector, self._index):
            content = NOTHING if fragment is None else content_of(fragment.store)
            self.marks = marks_of(content or NOTHING, self._keys, self._told)
        elif fragment is None or fragment.is_dirty:
            return NotComparableError("the replica may lack something and is being made good")
        elif not is_before(fragment, self._vector, self._index):
            return NotComparableError("the replica has another version than was asked for")
        return None

    def _apply(self, buffer: bytes, start: int, end: int) -> None:
        """In the fragment's stead: the next operation is about to be applied."""
        former = self._former
        try:
            self.look()
        except NotComparableError:
            self.leave()
        if self.marks is not None:
            self.leave()
        former(buffer, start, end)

    def leave(self) -> None:
        """Look at no more operations."""
        fragment = self._fragment
        if fragment is not None and fragment.apply is self._hook:
            fragment.apply = self._former


def _nothing(_buffer: bytes, _start: int, _end: int) -> None:
    """No operation is looked at."""


def is_before(fragment: Fragment, vector: Vector, index: int) -> bool:
    """Whether operations may come that lead a clean backup to this version."""
    slot = max(slot_of(index), fragment.slot)
    if fragment.lineage != vector.lineage:
        return lineage_version(fragment.lineage) <= lineage_version(vector.lineage)
    return fragment.value < vector.counters[slot]


def marks_of(content: Content, keys: tuple[bytes, ...], told: array[int]) -> bytes:
    """How each key is here, beside the sums of the primary."""
    own = content.sums_of(keys, sys.maxsize)
    found = bytearray(len(keys))
    for place, (here, there) in enumerate(zip(own, told, strict=True)):
        if here != there:
            found[place] = (
                Mark.MISSING
                if here == ABSENT
                else Mark.EXTRA
                if there == ABSENT
                else Mark.DIFFERENT
            )
    return bytes(found)
