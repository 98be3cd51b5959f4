"""Walking over the keys of a store that may change meanwhile, some at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

KEYS_TAKEN: Final = 50_000
"""Keys that a walk lists in one step, less than a millisecond."""
_LISTED: Final = -1
"""In place of a number of changes: nothing more is read from the dictionaries."""


class Walk:
    """The keys of some dictionaries, some at a time: a list of a million takes 13 ms.

    When keys come or go before all are taken, which a migration does not allow and a sync does, it
    begins again with a list of all of them: an entry sent twice does no harm. That their number is
    the same is not enough to go on: a dictionary that grows lays out its keys anew, without those
    that went, and what iterates it would step over as many others.

    Attributes:
        keys: The keys at hand; none at the end.
        position: The next of them.
        begun: How often it has begun: what was looked at before the last time comes again.
    """

    __slots__ = ("_changes", "_rest", "_tables", "begun", "keys", "position")

    def __init__(self, changes: int, *tables: Iterable[bytes]) -> None:
        """Begin with dictionaries; ``changes`` is a number that rises when a key comes or goes."""
        self._tables = tables
        self._changes = changes
        self._rest: Iterator[bytes] = chain(*tables)
        self.begun = 1
        self.go_on(changes)

    @property
    def is_over(self) -> bool:
        """Whether there are no more keys."""
        return not self.keys

    def go_on(self, changes: int) -> None:
        """Take the next keys."""
        if changes != self._changes != _LISTED:
            self._changes = _LISTED
            self._rest = iter(list(chain(*self._tables)))
            self.begun += 1
        self.position = 0
        self.keys = list(islice(self._rest, KEYS_TAKEN))
        if len(self.keys) < KEYS_TAKEN:
            self._changes, self._rest = _LISTED, iter(())
