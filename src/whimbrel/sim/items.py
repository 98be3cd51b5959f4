"""Items that say where they come from, for structures that lie whole in one partition.

An item is known by its code, which says who sent it and as which of its own. A ledger of such a
structure is of all its items: queues, ring buffers.
"""

from __future__ import annotations

import struct

from whimbrel.core.ids import PartitionId, namespace_of
from whimbrel.core.partition.hashing import partition_hash, partition_of
from whimbrel.serialization.data import to_data
from whimbrel.sim.history import Ledger

PRODUCER: int = 10_000_000
"""Codes of one producer; those below are of nobody in particular."""
FOREIGN = -1
"""The code of what is no item of this run."""

_ITEM = struct.Struct(">iiiqq")
_BYTES_TYPE = -12


def item_data(seed: int, code: int, padding: int) -> bytes:
    """An item that says where it comes from; ``padding`` is a number of bytes."""
    return _ITEM.pack(0, _BYTES_TYPE, 16 + padding, seed, code) + bytes(padding)


def code_of(seed: int, data: bytes) -> int:
    """The code of an item, FOREIGN when it is none of ours."""
    if len(data) < _ITEM.size:
        return FOREIGN
    _, kind, size, found, code = _ITEM.unpack_from(data)
    is_ours = kind == _BYTES_TYPE and len(data) == 12 + size and found == seed
    return int(code) if is_ours else FOREIGN


class ItemLedger(Ledger):
    """Everything that happened to one structure of items."""

    def __init__(
        self, kind: str, name: str, seed: int, partition_count: int, *, is_judged: bool
    ) -> None:
        pid = PartitionId(partition_of(partition_hash(to_data(name)), partition_count))
        super().__init__(name, namespace_of(kind, name), pid, is_judged)
        self._seed = seed

    @property
    def is_open(self) -> bool:
        """Never: calls under way are allowed for item by item."""
        return False

    @property
    def is_settled(self) -> bool:
        """Whether anything was acknowledged."""
        return self.acked is not None
