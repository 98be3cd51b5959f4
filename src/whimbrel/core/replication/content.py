"""What equal replicas of a store have in common, entry by entry: what audits look at (0018).

An entry is what a structure holds under a key of its own: that of a map, the id of a queue's item,
the sequence of a ring buffer's, a key of a multimap with what tells its values apart. What a
primary alone knows (reads, who waits) is no part of it. A copy begins with a comparison only where
that pays (``comparison``); an audit compares every store that says here how.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, Protocol
from zlib import crc32

from whimbrel.core.replication.comparison import (
    SUM_BYTES,
    SUM_MASK,
    WORK_BYTES,
    Leaves,
    Summing,
)
from whimbrel.core.replication.fragments import Store
from whimbrel.errors import SerializationError
from whimbrel.serialization.data import to_object

HASH_BITS: Final = 32
"""Of CRC-32, whose first bits are the leaf of a key."""
ABSENT: Final = 0
"""In the place of the sum of an entry that is not there."""
NAME_LENGTH_MAX: Final = 80
"""Characters of a key that people are shown."""


class KeyWalk(Protocol):
    """The keys of some leaves, some at a time; some of them maybe twice."""

    @property
    def is_over(self) -> bool:
        """Whether there are no more."""

    def step(self, work_max: int) -> list[bytes]:
        """Look at so many entries; those of the leaves among them."""


class Content(ABC):
    """The content of one store, as it is whenever it is looked at."""

    @abstractmethod
    def sum_up(self, bits: int) -> Summing:
        """Begin to sum up a tree of 2^bits leaves."""

    @abstractmethod
    def keys_in(self, leaves: Leaves) -> KeyWalk:
        """Begin a walk over the keys of leaves that differ."""

    @abstractmethod
    def sums_of(self, keys: Sequence[bytes], work_max: int) -> array[int]:
        """The sums of the entries of the first keys, as they are now, ABSENT where there is none.

        Of all keys, unless that is too much work; of one at least.
        """

    @abstractmethod
    def name_of(self, key: bytes) -> str:
        """A key, for people."""


class Auditable(ABC):
    """A store whose replicas can be compared entry by entry."""

    __slots__ = ()

    @property
    @abstractmethod
    def content(self) -> Content:
        """What equal replicas have in common."""


def content_of(store: Store) -> Content | None:
    """The content of a store; None when replicas of its kind cannot be compared."""
    return store.content if isinstance(store, Auditable) else None


def sum_of(entry: bytes) -> int:
    """The sum of one entry that is there."""
    digest = blake2b(entry, digest_size=SUM_BYTES).digest()
    return int.from_bytes(digest, "little") or 1


def shown(data: bytes) -> str:
    """The value of a Data, for people, in few characters."""
    try:
        text = repr(to_object(data))
    except SerializationError:
        text = "#" + blake2b(data, digest_size=SUM_BYTES).hexdigest()
    return text if len(text) <= NAME_LENGTH_MAX else f"{text[:NAME_LENGTH_MAX]}..."


# -- of what is not there ---------------------------------------------------------------------


class _NoSums:
    """The sums of no entries."""

    is_over = True

    def __init__(self, bits: int) -> None:
        self.sums = array("Q", bytes(SUM_BYTES << bits))

    def step(self, work_max: int) -> int:
        return work_max


class _NoKeys:
    is_over = True

    def step(self, _work_max: int) -> list[bytes]:
        return []


class _Nothing(Content):
    """The content of a fragment that a backup does not have."""

    def sum_up(self, bits: int) -> Summing:
        return _NoSums(bits)

    def keys_in(self, leaves: Leaves) -> KeyWalk:
        return _NoKeys()

    def sums_of(self, keys: Sequence[bytes], work_max: int) -> array[int]:
        return array("Q", bytes(SUM_BYTES * len(keys)))

    def name_of(self, key: bytes) -> str:
        return shown(key)


NOTHING: Final[Content] = _Nothing()


# -- of stores of items -----------------------------------------------------------------------


class ItemWalk(Protocol):
    """The entries of a store, some at a time."""

    @property
    def begun(self) -> int:
        """How often it has begun: what came before the last time comes again."""

    @property
    def is_over(self) -> bool:
        """Whether there are no more."""

    def step(self, count_max: int) -> Sequence[tuple[bytes, bytes]]:
        """The next keys, each with its item; about so many."""


class ItemContent(Content):
    """The content of a store that walks over keys and items, and finds an item by its key."""

    @abstractmethod
    def open_walk(self) -> ItemWalk:
        """Begin a walk over everything."""

    @abstractmethod
    def item(self, key: bytes) -> bytes:
        """The item of a key; empty when there is none."""

    def find_work(self) -> int:
        """As how many entries it counts to find one by its key."""
        return 1

    def sum_up(self, bits: int) -> Summing:
        """See ``Content``."""
        return _ItemSumming(self.open_walk(), bits)

    def keys_in(self, leaves: Leaves) -> KeyWalk:
        """See ``Content``."""
        return _ItemKeys(self.open_walk(), leaves)

    def sums_of(self, keys: Sequence[bytes], work_max: int) -> array[int]:
        """See ``Content``."""
        sums = array("Q")
        find_work = self.find_work()
        for key in keys:
            item = self.item(key)
            sums.append(sum_of(_framed(key, item)) if item else ABSENT)
            work_max -= find_work + len(item) // WORK_BYTES
            if work_max <= 0:
                break
        return sums


class _ItemSumming:
    def __init__(self, walk: ItemWalk, bits: int) -> None:
        self._walk = walk
        self._begun = walk.begun
        self._shift = HASH_BITS - bits
        self._nothing = bytes(SUM_BYTES << bits)
        self.sums = array("Q", self._nothing)
        self.is_over = walk.is_over

    def step(self, work_max: int) -> int:
        found = self._walk.step(work_max)
        self.is_over = self._walk.is_over
        if self._walk.begun != self._begun:
            self._begun = self._walk.begun
            self.sums = array("Q", self._nothing)
        sums = self.sums
        for key, item in found:
            leaf = crc32(key) >> self._shift
            sums[leaf] = sums[leaf] + sum_of(_framed(key, item)) & SUM_MASK
            work_max -= 1 + len(item) // WORK_BYTES
        return work_max


class _ItemKeys:
    def __init__(self, walk: ItemWalk, leaves: Leaves) -> None:
        self._walk = walk
        self._leaves = leaves

    @property
    def is_over(self) -> bool:
        return self._walk.is_over

    def step(self, work_max: int) -> list[bytes]:
        table, shift = self._leaves.differs, HASH_BITS - self._leaves.bits
        return [key for key, _ in self._walk.step(work_max) if table[crc32(key) >> shift]]


def _framed(key: bytes, item: bytes) -> bytes:
    return b"".join((len(key).to_bytes(4, "little"), key, item))
