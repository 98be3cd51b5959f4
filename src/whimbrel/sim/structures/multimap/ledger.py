"""What is known of a multimap in a run: one ledger for each value under each key."""

from __future__ import annotations

from whimbrel.core.ids import PartitionId, namespace_of
from whimbrel.core.partition.hashing import partition_hash, partition_of
from whimbrel.core.replication.fragments import Store
from whimbrel.sim.history import ABSENT, Ledger, Operation
from whimbrel.sim.model import store_as
from whimbrel.sim.structures.map.model import key_data, value_data
from whimbrel.structures.multimap.settings import NAME
from whimbrel.structures.multimap.store import MultiMapStore

SET_NAME = "sim.multi"
SCRATCH_NAME = "sim.scratch"
"""Maps have one of that name, too: which is destroyed is the affair of the kind."""


def store_of(store: Store) -> MultiMapStore:
    """A multimap's store; see ``store_as``."""
    return store_as(MultiMapStore, store)  # type: ignore[type-abstract]


class PairLedger(Ledger):
    """Everything that happened to one value under one key: it is put once, and maybe removed.

    Number 0 stands for the key as a whole, of which nothing is judged here.
    """

    def __init__(
        self, name: str, key: int, number: int, partition_count: int, value: bytes = b""
    ) -> None:
        self.key = key
        self.number = number
        """Of the value among those of its key."""
        self.data = key_data(key)
        self.value = value
        self.is_alone = False
        """Whether no other value is put under the key, so that it is removed with the key."""
        pid = PartitionId(partition_of(partition_hash(self.data), partition_count))
        is_judged = number > 0 and name != SCRATCH_NAME
        label = f"{name}[{key}]" + (f"#{number}" if number else "")
        super().__init__(label, namespace_of(NAME, name), pid, is_judged)
        self.is_written_once = True

    def is_allowed(self, effect: int) -> bool:
        """Whether the value may be there (its put's number), or not (ABSENT), at rest."""
        if effect == (ABSENT if self.acked is None else self.acked.effect):
            return True
        return any(change.effect == effect for change in self.unknown)

    def count_in(self, store: Store | None) -> int:
        """How often the value is there."""
        if store is None:
            return 0
        return store_of(store).get(self.data).count(self.value)

    def lacks(self, store: Store | None) -> bool:
        """Whether the value is gone though nobody can have removed it.

        Asked of all values again and again: the store is asked for this one, not for its key's.
        """
        if not self.owes or self.is_allowed(ABSENT):
            return False
        return store is None or not store_of(store).contains_entry(self.data, self.value)

    def is_right(self, store: Store | None) -> bool:
        """Whether the value is there once, or not at all, as the calls allow."""
        count = self.count_in(store)
        return count <= 1 and self.is_allowed(self.changes[0].number if count else ABSENT)

    def shows(self, store: Store | None, operation: Operation) -> bool:
        """Whether the value is there after its put, or not after its removal."""
        return bool(self.count_in(store)) == (operation.effect != ABSENT)

    def is_absent(self, store: Store | None) -> bool:
        """Whether the value is not there."""
        return not self.count_in(store)

    def shown(self, store: Store | None) -> str:
        """How often the value is there."""
        return f"it {self.count_in(store)} times"


def new_pair(
    name: str, key: int, number: int, partition_count: int, seed: int, padding: int
) -> PairLedger:
    """The ledger of a value that says where it comes from."""
    value = value_data(seed, key, number, padding)
    return PairLedger(name, key, number, partition_count, value)
