"""Items by sequence, in blocks.

Any of them is found at once, those at either end cost the same however many there are, and a
sequence may have no item. Knows nothing of heads and tails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from whimbrel.structures.ringbuffer.record import TIME_BYTES

BLOCK: Final = 64
"""Places in a block: half a kilobyte, which a ring buffer with one item has, too."""
_EMPTY: Final = (b"",) * BLOCK


class Slots:
    """Places for items, empty ones among them.

    Attributes:
        bytes_used: Bytes of the items' Data.
    """

    __slots__ = ("_blocks", "_count", "bytes_used")

    def __init__(self) -> None:
        self._blocks: dict[int, list[bytes]] = {}
        """Sequence // BLOCK to the items of that block; empty ones are left out."""
        self._count = 0
        self.bytes_used = 0

    def __len__(self) -> int:
        """Items held."""
        return self._count

    def __getitem__(self, sequence: int) -> bytes:
        """The item of a sequence; empty when there is none."""
        block = self._blocks.get(sequence // BLOCK)
        return block[sequence % BLOCK] if block is not None else b""

    def run(self, first: int, end: int) -> list[bytes]:
        """What is in the places from ``first`` to before ``end``."""
        found: list[bytes] = []
        while first < end:
            number, at = divmod(first, BLOCK)
            stop = min(BLOCK, at + end - first)
            found += self._blocks.get(number, _EMPTY)[at:stop]
            first += stop - at
        return found

    def put(self, first: int, items: Sequence[bytes]) -> None:
        """Put items into the places from ``first`` on, instead of what is there."""
        done = 0
        while done < len(items):
            number, at = divmod(first + done, BLOCK)
            block = self._blocks.get(number)
            if block is None:
                block = self._blocks[number] = list(_EMPTY)
            part = items[done : done + BLOCK - at]
            self._replace(block, at, part)
            done += len(part)

    def clear(self, first: int, end: int) -> None:
        """Empty the places from ``first`` to before ``end``; takes time for each of them."""
        while first < end:
            number, at = divmod(first, BLOCK)
            stop = min(BLOCK, at + end - first)
            block = self._blocks.get(number)
            if block is not None:
                self._replace(block, at, _EMPTY[at:stop])
                if not any(block):
                    del self._blocks[number]
            first += stop - at

    def _replace(self, block: list[bytes], at: int, part: Sequence[bytes]) -> None:
        for items, sign in ((block[at : at + len(part)], -1), (part, 1)):
            count = len(part) - items.count(b"")
            self._count += sign * count
            self.bytes_used += sign * (sum(map(len, items)) - TIME_BYTES * count)
        block[at : at + len(part)] = part

    def free_some(self, entries_max: int, bytes_max: int) -> int:
        """See ``deferred_free.Freeable``."""
        size = 0
        while self._blocks:
            number, block = self._blocks.popitem()
            while block and entries_max > 0 and size < bytes_max:
                item = block.pop()
                if item:
                    size += len(item)
                    entries_max -= 1
                    self._count -= 1
            if block:
                self._blocks[number] = block
                break
        return size
