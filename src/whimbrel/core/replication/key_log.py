"""Which keys have changed while somebody is away, so that who returns is sent just these.

A log stands before the disk's log of its fragment, so whatever is counted passes it, at a primary
and at a backup, and a write that nobody is away for does not know of it. It is a dictionary: each
changed or removed key, once, to the number of the *stretch* in which it changed last. Within a
stretch all is counted under one lineage, in one slot; another begins with each change of these, and
whenever somebody leaves. So a base whose vector lies in a stretch lacks nothing but keys of that
one and of later ones, and a base whose vector lies in none is not spoken of (docs/design/0018;
paper 05, APR-46 to APR-48).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from whimbrel.core.messages import CopyBase, Stretch, Vector
from whimbrel.core.replication.fragments import ChangeLog, Fragment
from whimbrel.core.replication.outbox import Reply
from whimbrel.core.replication.vectors import NO_LINEAGE, Counters

KEY_BYTES: Final = 100
"""What a key takes here beside its own bytes, about: its object, and its place in a dictionary."""
STRETCHES_MAX: Final = 64
"""Stretches remembered of one fragment; the oldest goes first, and with it what it covers."""


def steps_to(stretch: Stretch, vector: Vector, slot: int) -> int:
    """After how many of its operations a replica that keeps the slots from ``slot`` on has this
    vector; -1 if after none.
    """
    if vector.lineage != stretch.lineage or vector.lineage == NO_LINEAGE:
        return -1
    first, last = max(slot, stretch.slot), stretch.backup_count
    told, begun = vector.counters[first:last], stretch.counters[first:last]
    if len(told) != len(begun) or not told:
        return -1
    steps = told[-1] - begun[-1]
    is_even = all(one - other == steps for one, other in zip(told, begun, strict=True))
    return steps if is_even and 0 <= steps <= stretch.steps else -1


class Owner(Protocol):
    """What is asked of the owner of all logs."""

    def end(self, fragment: Fragment) -> None:
        """The log of a fragment cannot go on."""

    def grow(self, log: KeyLog, size: int) -> None:
        """A log is about to take so many bytes more; it may end with that."""

    def shrink(self, log: KeyLog) -> None:
        """All keys of a log go."""


class KeyLog:
    """The log of one fragment. Implements ``fragments.ChangeLog``, before the disk's.

    Attributes:
        fragment: Whose it is.
        inner: The disk's log of it, None where there is none.
        waits: As that one's.
        keys: Each key that has changed to the number of the stretch in which it did so last.
        bytes_used: What they take.
        stretches: The last ones; ``first`` is the number of the first of them.
    """

    __slots__ = (
        "_changed_key", "_logs", "_stretch", "_value", "bytes_used", "first", "fragment", "inner",
        "keys", "stretches", "waits",
    )  # fmt: skip

    def __init__(
        self, logs: Owner, fragment: Fragment, changed_key: Callable[[bytes], bytes | None]
    ) -> None:
        """Begin with a fragment as it is, which lacks nothing that it has counted."""
        self._logs = logs
        self._changed_key = changed_key
        self.fragment = fragment
        self.inner: ChangeLog | None = fragment.log
        self.waits = self.inner is not None and self.inner.waits
        self.keys: dict[bytes, int] = {}
        self.bytes_used = 0
        self.stretches: list[Stretch] = []
        self.first = 0
        self._stretch = -1
        self._value = fragment.value
        own, base = fragment.counters(), fragment.base
        if fragment.base_lineage not in (NO_LINEAGE, fragment.lineage) and own == base:
            # The primary has changed nothing yet of what it began with.
            self._begin(fragment.base_lineage, base)
        self._begin(fragment.lineage, own)

    # -- the path of a write --------------------------------------------------------------

    def append(self, counter: int, operation: bytes, reply: Reply) -> None:
        """See ``fragments.ChangeLog``: note the key of a change, and have it written down."""
        key = self._changed_key(operation)
        self._value = counter
        if key:
            keys = self.keys
            if key not in keys:
                self._logs.grow(self, KEY_BYTES + len(key))
            keys[key] = self._stretch
        elif key is None:
            self._begin_anew(counter)
        inner = self.inner
        if inner is not None:
            inner.append(counter, operation, reply)

    def revise(self) -> None:
        """See ``fragments.ChangeLog``: another stretch, unless the fragment is in doubt now."""
        if self.fragment.is_dirty:
            self._logs.end(self.fragment)
        else:
            self.begin_stretch()
        if self.inner is not None:
            self.inner.revise()

    # -- stretches ------------------------------------------------------------------------

    def begin_stretch(self) -> None:
        """Begin a stretch where the fragment is now: somebody leaves, or it counts otherwise."""
        fragment = self.fragment
        self._settle()
        self._value = fragment.value
        now = (fragment.lineage, fragment.counters(), fragment.slot, fragment.backup_count)
        last = self.stretches[-1]
        if last.steps or now != (last.lineage, last.counters, last.slot, last.backup_count):
            self._begin(fragment.lineage, fragment.counters())

    def _begin(self, lineage: int, counters: Counters) -> None:
        fragment = self.fragment
        self.stretches.append(Stretch(lineage, counters, fragment.slot, fragment.backup_count))
        self._stretch += 1
        while len(self.stretches) > STRETCHES_MAX:
            del self.stretches[0]
            self.first += 1

    def _settle(self) -> None:
        """Count the operations of the last stretch."""
        last = self.stretches[-1]
        if last.slot < last.backup_count:
            steps = self._value - last.counters[last.slot]
            self.stretches[-1] = msgspec.structs.replace(last, steps=steps)

    def _begin_anew(self, counter: int) -> None:
        """Any key may have changed, up to this counter: no base of before is of help."""
        fragment = self.fragment
        counters = _moved(fragment.counters(), fragment, counter - fragment.value)
        self._logs.shrink(self)
        self.keys, self.stretches, self.first = {}, [], self._stretch + 1
        self._begin(fragment.lineage, counters)

    def look_back(self, operations: Sequence[bytes]) -> None:
        """Begin before the last operations of this lineage, which are these, in order.

        In stretches of 1, 2, 4, ... of them, the smallest last: who lacks a few of them is sent no
        more than twice as many keys.
        """
        if self.keys or len(self.stretches) != 1:
            return
        found: list[bytes] = []
        for operation in reversed(operations):
            key = self._changed_key(operation)
            if key is None:
                break
            found.append(key)
        fragment, count = self.fragment, len(found).bit_length()
        begins = [min((2 << place) - 1, len(found)) for place in range(count)]
        for begin, end in zip(begins, [0, *begins], strict=False):
            counters = _moved(fragment.counters(), fragment, -begin)
            told = (fragment.lineage, counters, fragment.slot, fragment.backup_count)
            self.stretches.insert(0, Stretch(*told, begin - end))
        self._stretch += count
        for age, key in enumerate(found, 1):
            if key:
                self.keys.setdefault(key, self._stretch - age.bit_length())
        self._logs.grow(self, sum(map(len, self.keys)) + KEY_BYTES * len(self.keys))

    # -- moving ---------------------------------------------------------------------------

    def told(self) -> list[tuple[bytes, int]]:
        """Each key, and the place of its stretch among ``stretches`` now; who is in none is left
        out.
        """
        self._settle()
        first = self.first
        return [(key, stretch - first) for key, stretch in self.keys.items() if stretch >= first]

    def go_on_from(self, stretches: Sequence[Stretch], keys: Mapping[bytes, int]) -> None:
        """A log that came with the copy that this fragment is, if it ends where the copy begins."""
        fragment = self.fragment
        vector, slot = fragment.vector(), fragment.slot
        if not stretches or steps_to(stretches[-1], vector, slot) != stretches[-1].steps:
            return
        self.stretches = [*stretches, *self.stretches]
        self.keys = dict(keys)
        self._stretch += len(stretches)
        self._logs.grow(self, sum(map(len, keys)) + KEY_BYTES * len(keys))

    # -- a base ---------------------------------------------------------------------------

    def lacked_by(self, base: CopyBase) -> list[bytes] | None:
        """The keys that may differ in a base, and no others do; None if that is not known."""
        sound, fragment = base.sound, self.fragment
        if sound is None or base.generation != fragment.generation:
            return None
        if base.met not in (NO_LINEAGE, fragment.lineage):
            return None  # it has got what a former primary did, and may be the only one that has
        self._settle()
        for place in range(len(self.stretches) - 1, -1, -1):
            if steps_to(self.stretches[place], sound, base.slot) >= 0:
                since = self.first + place
                return [key for key, stretch in self.keys.items() if stretch >= since]
        return None


def _moved(counters: Counters, fragment: Fragment, steps: int) -> Counters:
    """The counters of a fragment so many operations later, or earlier."""
    return tuple(
        value + steps if fragment.slot <= slot < fragment.backup_count else value
        for slot, value in enumerate(counters)
    )
