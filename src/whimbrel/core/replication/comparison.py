"""Comparing two copies of a fragment by hash trees, so that a copy carries the difference only.

    sender                                                  receiver, which has a base
      | first part: the vector, bits of the tree ----------->|  begins the fragment to come,
      |                                                      |  sums up its base, in pieces
      | sums of the root's 32 children --------------------->|
      |<---------------------------- which of them differ ---|
      | sums of their children, ... down to the leaves ----->|
      | entries of leaves that differ ---------------------->|  takes those of the other leaves
      |                                                      |  from its base, in pieces
      |<---------------------------------------------- ready |
      | last part ------------------------------------------>|

A leaf is a range of hashes of keys; its sum is that of a 64-bit hash of each of its entries, key
and all that belongs to it, modulo 2^64, so order does not count. The sum of an inner node is that
of its leaves. Trees are made when they are needed and thrown away: no change of an entry pays for
them. Why this is right while writes go on is in docs/design/0018; paper 05, APR-49 to APR-53.
"""

from __future__ import annotations

import enum
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol

from whimbrel.core.messages import CopyBase, Vector
from whimbrel.core.replication.fragments import Fragment, Store, counts_alike
from whimbrel.core.replication.vectors import NO_LINEAGE, slot_of
from whimbrel.core.settings import ComparisonBounds
from whimbrel.errors import SerializationError

LEVEL_BITS: Final = 5
"""Levels of a binary tree that travel in one message: 32 children of each node that differs."""
CHILDREN: Final = 1 << LEVEL_BITS
SUM_BYTES: Final = 8
MASK_BYTES: Final = CHILDREN >> 3
"""One bit for each child of a node, the lowest of a byte first."""
COUNT_BYTES: Final = 4
SUM_MASK: Final = (1 << 64) - 1
BITS_MAX: Final = 3 * LEVEL_BITS
"""32,768 leaves: a tree takes 256 KiB while it is needed, and its lowest level as much on the wire
at most. A fragment of millions of entries has more of them in each leaf."""
BASE_PART: Final = 8
"""A base with less than this part of the entries is no help: nearly all of them differ."""
WORK_BYTES: Final = 1024
"""So many bytes of a record count as one entry more."""


class Way(enum.Enum):
    """How a fragment is copied; the values are those of the figures."""

    WHOLE = "copies_whole"
    DIFFERENCE = "copies_by_difference"
    LOG = "copies_by_log"
    SAME = "copies_same"


COPY_FIGURES: Final = (
    *(way.value for way in Way),
    *("copy_entries_sent", "copy_removals_sent", "copy_sum_bytes_sent"),
)
"""What is counted of copies that are given."""

Nodes = Sequence[int]
"""Nodes of one level, ascending: the number of a node is the first bits of the hashes in it."""


class Leaves:
    """Which leaves of a tree differ.

    Attributes:
        bits: Of the tree: it has 2^bits leaves.
        differs: One byte for each leaf, 1 where it differs.
        count: How many differ.
    """

    def __init__(self, bits: int, nodes: Nodes) -> None:
        self.bits = bits
        self.count = len(nodes)
        differs = bytearray(1 << bits)
        for node in nodes:
            differs[node] = 1
        self.differs = bytes(differs)


NO_LEAVES: Final = Leaves(0, ())
"""Of fragments that are equal as a whole."""


class Summing(Protocol):
    """The sums of the leaves of one store, in the making."""

    sums: array[int]
    is_over: bool

    def step(self, work_max: int) -> int:
        """Look at the next entries; how much of ``work_max`` is left."""


class Filling(Protocol):
    """A store that takes from a base what the two have in common."""

    is_over: bool

    @property
    def work_left(self) -> int:
        """About how much there is still to do."""

    def step(self, work_max: int, *, wants_chunk: bool) -> tuple[int, bytes]:
        """Take the next entries.

        Returns:
            How much of ``work_max`` is left, and what was taken as a chunk, if that is wanted.
        """


class Comparison(ABC):
    """How a store is compared with another one of the same structure."""

    @abstractmethod
    def sum_up(self, bits: int) -> Summing:
        """Begin to sum up its leaves."""

    @abstractmethod
    def open_export(self, leaves: Leaves) -> Any:
        """A cursor for ``Store.export``: entries of leaves that differ, and all that is none."""

    @abstractmethod
    def fill_from(self, base: Store, leaves: Leaves) -> Filling:
        """Begin to take the entries of all other leaves from a base, by reference."""

    @abstractmethod
    def changed_key(self, operation: bytes) -> bytes | None:
        """The key of the entry that a backup operation changes or removes.

        Empty if it leaves all entries as they are, None if it may change any.
        """

    @abstractmethod
    def parted(self, keys: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Those of some keys that have an entry here, and those that have none."""

    @abstractmethod
    def open_export_of(self, keys: Sequence[bytes]) -> Any:
        """A cursor for ``Store.export``: the entries of these keys, and all that is no entry."""

    @abstractmethod
    def fill_beside(self, base: Store, removed: Collection[bytes]) -> Filling:
        """Begin to take from a base, by reference, the entries of all keys but those removed, and
        but those that have one here.
        """


class Comparable(ABC):
    """A store that may be compared; others are copied whole."""

    __slots__ = ()

    @property
    @abstractmethod
    def comparison(self) -> Comparison | None:
        """How that is done; None where the structure is not to be compared (APR-52)."""


def comparison_of(store: Store) -> Comparison | None:
    """How a store is compared, None when it is not."""
    return store.comparison if isinstance(store, Comparable) else None


def bits_for(entries: int, leaf_entries: int) -> int:
    """The bits of a tree over so many entries."""
    bits = LEVEL_BITS
    while bits < BITS_MAX and entries > leaf_entries << bits:
        bits += LEVEL_BITS
    return bits


def is_worthwhile(fragment: Fragment, base: CopyBase, bounds: ComparisonBounds) -> bool:
    """Whether to compare with a base is likely to cost less than to copy everything."""
    entries = len(fragment.store)
    if comparison_of(fragment.store) is None or base.entries * BASE_PART < entries:
        return False
    return entries > bounds.few_entries or fragment.store.bytes_used > bounds.few_bytes


def base_of(fragment: Fragment, *, is_trusted: bool) -> CopyBase | None:
    """What is told of a fragment that a copy to us may be compared with; None if it may not.

    ``is_trusted`` is False where its versions say nothing of what it lacks.
    """
    if comparison_of(fragment.store) is None:
        return None
    vector = fragment.vector()
    if not is_trusted or fragment.is_dirty:
        vector = Vector(NO_LINEAGE, vector.counters)
    name, entries = fragment.namespace, len(fragment.store)
    since = (fragment.last_sound(), fragment.lineage if fragment.is_dirty else NO_LINEAGE)
    return CopyBase(name, entries, fragment.generation, vector, fragment.slot, *since)


def is_same(fragment: Fragment, base: CopyBase, index: int) -> bool:
    """Whether a base of the replica at ``index`` is equal by versions alone (APR-43, APR-44).

    Counters that no operation raises say nothing: those of a structure without backups.
    """
    slot = max(slot_of(index), base.slot)
    lineage, counters = base.vector.lineage, tuple(base.vector.counters)
    if comparison_of(fragment.store) is None or lineage == NO_LINEAGE:
        return False
    if base.generation != fragment.generation or slot >= fragment.backup_count:
        return False
    return counts_alike(lineage, counters, fragment.vector(), slot)


def lacked_by(fragment: Fragment, base: CopyBase) -> list[bytes] | None:
    """The keys that a base lacks, if there is a log of them and it is no longer than the whole."""
    log = fragment.key_log
    keys = None if log is None else log.lacked_by(base)
    return None if keys is None or len(keys) > len(fragment.store) else keys


# -- trees --------------------------------------------------------------------------------


def child_sums(sums: array[int], bits: int, depth: int, nodes: Nodes) -> array[int]:
    """The sums of the children of some nodes, which are at ``depth`` (bits from the root)."""
    width = 1 << bits - depth - LEVEL_BITS
    if width == 1:
        found = array("Q")
        for node in nodes:
            found += sums[node << LEVEL_BITS : node + 1 << LEVEL_BITS]
        return found
    return array(
        "Q",
        [
            sum(sums[child * width : (child + 1) * width]) & SUM_MASK
            for node in nodes
            for child in range(node << LEVEL_BITS, node + 1 << LEVEL_BITS)
        ],
    )


def encode_sums(sums: array[int]) -> bytes:
    """As they travel, little-endian: how many nodes, which children of each have entries, and the
    sums of those. Most leaves of a tree that tells entries apart are empty.
    """
    masks = bytearray(len(sums) >> 3)
    for place, one in enumerate(sums):
        if one:
            masks[place >> 3] |= 1 << (place & 7)
    told = _in_order(array("Q", filter(None, sums)))
    count = len(sums) // CHILDREN
    return count.to_bytes(COUNT_BYTES, "little") + masks + told.tobytes()


def nothing_differs(data: bytes) -> bytes:
    """The answer to these sums that no child differs.

    Raises:
        SerializationError: They are cut.
    """
    size = int.from_bytes(data[:COUNT_BYTES], "little") * MASK_BYTES
    if len(data) < COUNT_BYTES + size:
        raise SerializationError("the sums of a comparison are cut")
    return bytes(size)


def decode_sums(data: bytes, nodes: int) -> array[int]:
    """The sums of the children of so many nodes, as a member has sent them.

    Raises:
        SerializationError: They are of another number of nodes, or cut.
    """
    start = COUNT_BYTES + nodes * MASK_BYTES
    masks = data[COUNT_BYTES:start]
    present = int.from_bytes(masks, "little").bit_count()
    if (
        int.from_bytes(data[:COUNT_BYTES], "little") != nodes
        or len(data) != start + present * SUM_BYTES
    ):
        raise SerializationError("a comparison has sums of other nodes than were asked about")
    told = iter(_in_order(array("Q", data[start:])))
    return array(
        "Q",
        [next(told) if mask >> bit & 1 else 0 for mask in masks for bit in range(8)],
    )


def _in_order(sums: array[int]) -> array[int]:
    if sys.byteorder == "big":
        sums = sums[:]
        sums.byteswap()
    return sums


def differing_bits(own: array[int], told: array[int]) -> bytes:
    """One bit for each sum, the lowest of a byte first: 1 where they differ."""
    found = bytearray(len(own) >> 3)
    if own != told:
        for place, (one, other) in enumerate(zip(own, told, strict=True)):
            if one != other:
                found[place >> 3] |= 1 << (place & 7)
    return bytes(found)


def children_of(nodes: Nodes, differing: bytes) -> list[int]:
    """The children that differ.

    Raises:
        SerializationError: There is not one bit for each child.
    """
    size = MASK_BYTES
    if len(differing) != len(nodes) * size:
        raise SerializationError("a comparison was answered for other nodes than were asked about")
    found = []
    for position, node in enumerate(nodes):
        mask = int.from_bytes(differing[position * size : (position + 1) * size], "little")
        if mask:
            first = node << LEVEL_BITS
            found += [first + child for child in range(CHILDREN) if mask >> child & 1]
    return found


class Descent:
    """Where a comparison stands: which nodes' children are to be compared next."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.depth = 0
        self.nodes: list[int] = [0]

    def go_down(self, differing: bytes) -> Leaves | None:
        """These children differ; the leaves that do, once it is known."""
        self.nodes = children_of(self.nodes, differing)
        self.depth += LEVEL_BITS
        if self.nodes and self.depth < self.bits:
            return None
        return Leaves(self.bits, self.nodes if self.depth == self.bits else ())


# -- the sender's side ----------------------------------------------------------------------


class Asking:
    """One fragment that a sender compares with the base of its receiver.

    Attributes:
        leaves: Those that differ, once it is known.
        is_begun: Whether the receiver has been told of it.
    """

    def __init__(self, fragment: Fragment, comparison: Comparison, bits: int) -> None:
        self.fragment = fragment
        self.vector = fragment.vector()
        self.bits = bits
        self.leaves: Leaves | None = None
        self.is_begun = False
        self._comparison = comparison
        self._summing: Summing | None = None
        self._descent = Descent(self.bits)
        self._is_waiting = False

    def begin(self) -> None:
        """Tell the receiver now: what changes from here on reaches it as an operation."""
        self.is_begun = True
        self.vector = self.fragment.vector()
        self._summing = self._comparison.sum_up(self.bits)

    def sum_up(self, work_max: int) -> int:
        """A piece of our tree; how much of the work is left."""
        if self._summing is None or self._summing.is_over:
            return work_max
        return self._summing.step(work_max)

    def next_sums(self) -> bytes:
        """The sums to be sent now; none while our tree, or an answer, is awaited."""
        if self._is_waiting or self._summing is None or not self._summing.is_over:
            return b""
        self._is_waiting = True
        descent = self._descent
        return encode_sums(child_sums(self._summing.sums, self.bits, descent.depth, descent.nodes))

    def answered(self, differing: bytes) -> None:
        """Which of the sums that were sent differ.

        Raises:
            SerializationError: It answers what was not asked.
        """
        if not self._is_waiting or self.leaves is not None:
            raise SerializationError(f"no comparison of {self.fragment.namespace} is under way")
        self._is_waiting = False
        self.leaves = self._descent.go_down(differing)
        if self.leaves is not None:
            self._summing = None

    def open_export(self) -> Any:
        """A cursor over what is to be sent."""
        return self._comparison.open_export(self.leaves or NO_LEAVES)


# -- the receiver's side --------------------------------------------------------------------


class Answering:
    """One fragment that a receiver has a base for.

    Attributes:
        differing: What the sender is to be told of the sums it has sent; empty before it is known.
    """

    def __init__(
        self, base: Fragment, copy: Fragment, bits: int, *, is_by_log: bool = False
    ) -> None:
        """Without bits the two are the same, or what differs is told key by key.

        Raises:
            SerializationError: Stores of this kind are not compared, or not in this way.
        """
        comparison, filled = comparison_of(base.store), comparison_of(copy.store)
        if comparison is None or filled is None:
            raise SerializationError(f"{copy.namespace} is not compared here")
        if bits % LEVEL_BITS or not 0 <= bits <= BITS_MAX:
            raise SerializationError(f"{copy.namespace} is compared by a tree of {bits} bits")
        self.base = base
        self.copy = copy
        self.differing = b""
        self._filled = filled
        self._descent = Descent(bits)
        self._told: array[int] | None = None
        self._summing: Summing | None = None
        self._filling: Filling | None = None
        self._removed: dict[bytes, None] | None = {} if is_by_log else None
        if bits:
            self._summing = comparison.sum_up(bits)
        elif not is_by_log:
            self._fill(NO_LEAVES)

    @property
    def is_decided(self) -> bool:
        """Whether it is known which leaves differ: what the base has of the others is taken."""
        return self._filling is not None

    def removed(self, keys: Sequence[bytes], *, is_told: bool) -> None:
        """The sender has these no more; with ``is_told`` it has told of all that it has changed.

        Raises:
            SerializationError: They are compared in another way, or it has told of all before.
        """
        if self._removed is None or self.is_decided:
            raise SerializationError(f"{self.copy.namespace} is not copied key by key")
        self._removed.update(dict.fromkeys(keys))
        if is_told:
            self._filling = self._filled.fill_beside(self.base.store, self._removed)

    @property
    def sums_told(self) -> int:
        """How many sums wait for their answer."""
        return 0 if self._told is None else len(self._told)

    @property
    def work_left(self) -> int:
        """What is still to be taken from the base."""
        return 0 if self._filling is None or self._filling.is_over else self._filling.work_left

    def told(self, sums: bytes) -> None:
        """The sender's sums of the nodes whose turn it is.

        Raises:
            SerializationError: They are not so many.
        """
        if self.is_decided:
            raise SerializationError(f"{self.copy.namespace} is compared already")
        self._told = decode_sums(sums, len(self._descent.nodes))

    def compare(self, work_max: int) -> int:
        """A piece of our tree, and the answer once that is made; how much work is left."""
        summing = self._summing
        if summing is None:
            return work_max
        if not summing.is_over:
            work_max = summing.step(work_max)
        if summing.is_over and self._told is not None:
            descent = self._descent
            own = child_sums(summing.sums, descent.bits, descent.depth, descent.nodes)
            self.differing = differing_bits(own, self._told)
            self._told = None
            leaves = descent.go_down(self.differing)
            if leaves is not None:
                self._fill(leaves)
        return work_max

    def _fill(self, leaves: Leaves) -> None:
        self._summing = None
        self._filling = self._filled.fill_from(self.base.store, leaves)

    def fill(self, work_max: int, *, wants_chunk: bool) -> tuple[int, bytes]:
        """A piece of what the base has; see ``Filling.step``."""
        if self._filling is None or self._filling.is_over:
            return work_max, b""
        return self._filling.step(work_max, wants_chunk=wants_chunk)
