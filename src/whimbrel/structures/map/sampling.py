"""Samples of the keys of a dictionary, without randomness: which entries may be evicted next.

The keys are listed, and a sample is every n-th of them, from the first one on, then from the second
one on, until each was in one sample; then they are listed anew. So a sample is spread over the
whole map, keys that came one after the other are not in the same one, and everything follows from
the order of the dictionary: one history has the same samples in any process.
"""

from __future__ import annotations

from collections.abc import Collection


class Sampling:
    """Where the samples of one dictionary have come to.

    It keeps the list of the present round, 8 bytes for a key; to make it takes half a millisecond
    for 40,000, once in as many keys as were looked at. Keys that came since are not in it, and
    those that went are passed over.
    """

    __slots__ = ("_keys", "_next", "_samples")

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._next = 0
        self._samples = 0

    def take(self, present: Collection[bytes], count: int, spared: bytes) -> list[bytes]:
        """The next sample of the keys that are there, without one that is to stay.

        Returns:
            About ``count`` of them, half of it at least and twice at most; all, where there are no
            more than ``count``.
        """
        if len(present) <= count + 1:
            return [key for key in present if key != spared]
        while True:
            if self._next == self._samples:
                self._keys = list(present)
                self._next, self._samples = 0, len(self._keys) // count
            sample = self._keys[self._next :: self._samples]
            self._next += 1
            found = [key for key in sample if key in present and key != spared]
            if 2 * len(found) >= count:
                return found
            self._next = self._samples  # too many have gone since they were listed
