"""What partitions have lost, until an operator has seen it (docs/design/0014).

Knows how a mark comes to be, how it is joined with an earlier one, which marks this process has
told, and how they are acknowledged. The marks themselves are part of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec

from whimbrel.core.context import Context
from whimbrel.core.ids import LOST_ALL, PartitionId, Row, hottest_index
from whimbrel.core.model import Loss, LostStructure, structures_in_words
from whimbrel.core.partition.table import PartitionTable

NAMED_MAX = 20
"""Structures that one mark names; further ones are counted."""
NAME_BYTES = 8


class Losses:
    """The marks of one member's table.

    Attributes:
        structures_lost: Told a partition and a range of backup counts, both ends included; gives
            the structures with so many backups, by kind and name.
    """

    def __init__(self, ctx: Context, table: PartitionTable) -> None:
        self._ctx = ctx
        self._table = table
        self.structures_lost: Callable[[PartitionId, int, int], Sequence[LostStructure]]
        self.structures_lost = lambda _pid, _fewest, _most: ()
        self._told: dict[PartitionId, int] = {}
        """Versions of the marks that this process has told."""
        self._seen_name = ""

    # -- coming to be ---------------------------------------------------------------------

    def slots_emptied(self, pid: PartitionId, before: Row) -> Loss | None:
        """The slots of departed members are empty now: mark what went with them.

        The replicas up to the hottest one that is left are gone, and with them every structure
        with fewer backups (ADL-06). What the row before lacked already was marked then.
        """
        fewest, most = hottest_index(before), hottest_index(self._table.row(pid)) - 1
        return self._mark(pid, fewest, most) if fewest <= most else None

    def seat_lost(self, pid: PartitionId, lost_backup_count: int) -> Loss | None:
        """We came back to our seat and got back what colder replicas had (GCM-09)."""
        return self._mark(pid, 0, lost_backup_count)

    def _mark(self, pid: PartitionId, fewest: int, most: int) -> Loss | None:
        """Put down a loss; None when nothing can have been lost."""
        found = self.structures_lost(pid, fewest, most)
        if not found and most != LOST_ALL:
            return None
        known = self._table.losses.get(pid)
        version, unnamed = self._table.version(pid), 0
        if known is not None:
            version = max(version, known.version + 1)
            if not known.is_seen:
                most = max(most, known.lost_backup_count)
                found, unnamed = _joined(known.structures, found), known.unnamed
        unnamed += max(0, len(found) - NAMED_MAX)
        named = tuple(found[:NAMED_MAX])
        loss = Loss(pid, version, most, self._ctx.wall_ms, named, unnamed)
        self._table.take_losses((loss,))
        return loss

    # -- telling --------------------------------------------------------------------------

    def tell(self, pid: PartitionId) -> Loss | None:
        """The partition's mark, if this process has not told it; it counts as told then."""
        loss = self._table.losses.get(pid)
        if loss is None or loss.is_seen or self._told.get(pid, 0) >= loss.version:
            return None
        self._told[pid] = loss.version
        return loss

    def untold(self) -> list[Loss]:
        """Marks that nobody has seen and this process has not told, ascending."""
        return [
            loss for loss in self.unseen() if self._told.get(loss.partition_id, 0) < loss.version
        ]

    # -- looking and acknowledging ----------------------------------------------------------

    def unseen(self) -> list[Loss]:
        """Marks that no operator has seen, by partition."""
        losses = self._table.losses
        return [losses[pid] for pid in sorted(losses) if not losses[pid].is_seen]

    def name(self) -> str:
        """Names exactly these unseen marks, so that nothing else is acknowledged; "" for none."""
        unseen = self.unseen()
        if not unseen:
            return ""
        text = " ".join(f"{loss.partition_id}:{loss.version}" for loss in unseen)
        return blake2b(text.encode(), digest_size=NAME_BYTES).hexdigest()

    def see(self, name: str) -> list[Loss] | None:
        """An operator has seen the marks of this name.

        Returns:
            The marks that are changed by that, none when it was said before; None when the
            unseen marks are others by now, and nothing was changed.
        """
        if name == self._seen_name and name != self.name():
            return []
        if name != self.name():
            return None
        self._seen_name = name
        seen = [
            Loss(loss.partition_id, loss.version, loss.lost_backup_count, loss.at_ms, is_seen=True)
            for loss in self.unseen()
        ]
        return self._table.take_losses(seen)


def told_structures(loss: Loss) -> str:
    """The structures of a mark in words, for a log line."""
    words = structures_in_words(loss.structures)
    return f"{words} and {loss.unnamed} more" if loss.unnamed else words


def _joined(before: Sequence[LostStructure], then: Sequence[LostStructure]) -> list[LostStructure]:
    """Both losses of a partition as one, by kind and name; entries add up while all are known."""
    found = {(one.kind, one.name): one for one in before}
    for one in then:
        known = found.get((one.kind, one.name))
        if known is not None:
            both = known.entries is not None and one.entries is not None
            entries = (known.entries or 0) + (one.entries or 0) if both else None
            one = msgspec.structs.replace(one, entries=entries)
        found[one.kind, one.name] = one
    return [found[key] for key in sorted(found)]
