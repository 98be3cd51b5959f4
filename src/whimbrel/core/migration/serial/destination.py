"""The promoted member's side below cluster version 4.1: the whole table or nothing."""

from __future__ import annotations

from whimbrel.core.ids import MemberId
from whimbrel.core.messages import PromotionAnswered, PromotionRequested
from whimbrel.core.migration.destination import DestinationSide
from whimbrel.core.migration.serial.versions import serial_manager, version_of_rows


class SerialDestination(DestinationSide):
    """As in the modern mode; a promotion is compared by the version of the table."""

    def promotion_requested(self, sender: MemberId, message: PromotionRequested) -> None:
        """Take the table as it is after the promotions, unless ours is newer (paper 07, 1.1).

        Raises:
            ProtocolError: The image is not a whole table; nothing was applied.
        """
        if sender != self._ctx.master:
            self._ctx.note("migration.foreign_promotion", "warning", sender=sender)
            return
        manager = serial_manager(self._manager)
        rows = list(manager.table.rows_of(message.image))
        manager.table.take_losses(message.image.losses)
        version = version_of_rows(rows)
        is_current = manager.apply_table(version, rows)
        if is_current and sender != self._ctx.id:
            for migration in message.migrations:
                self._subscriber.remember(migration)
        reason = "" if is_current else f"the table is at version {manager.version} already"
        self._loopback.post(sender, PromotionAnswered(message.batch, is_current, reason))
