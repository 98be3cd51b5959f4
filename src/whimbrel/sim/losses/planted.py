"""Bugs of what is told of losses."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from whimbrel.core.ids import PartitionId
from whimbrel.core.messages import TableImage
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, nothing, replace


def loss_not_told(engine: Engine) -> None:
    """The event of a lost partition is dropped."""
    replace(engine.member.migrations.reporter, "lost", nothing)


def losses_kept_by_master(engine: Engine) -> None:
    """A lost partition is known to the acting master alone, and only as long as it lives."""
    table = engine.member.migrations.table
    image = table.image

    def without_losses(partition_ids: Iterable[PartitionId] | None = None) -> TableImage:
        return msgspec.structs.replace(image(partition_ids), losses=())

    replace(table, "image", without_losses)


def losses_of_rows_only(engine: Engine) -> None:
    """Only a partition without any replica counts as lost, not a map with fewer backups."""
    losses = engine.member.migrations.losses
    losses.structures_lost = lambda _pid, _fewest, _most: ()


BUGS: tuple[Bug, ...] = (
    Bug(loss_not_told, "over", ("D7",)),
    Bug(losses_kept_by_master, "over", ("D12",)),
    Bug(losses_of_rows_only, "over", ("D12",), seeds=range(31, 101)),
)
