"""The stable table of one member: the rows that the cluster goes back to (APR-34, 0019).

The member list names it by a mark. When the state is entered every member stands still on the same
table, so each finds the rows in its own; so only who comes later has to be told them, or has them
from its files. A master that has not got them asks everybody before it plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId, Row
from whimbrel.core.messages import StableTableRequested, StableTableTold
from whimbrel.core.model import PackedRows, StableMark
from whimbrel.core.partition.stable import slots_differing
from whimbrel.core.partition.table import PartitionTable, pack_rows, unpack_rows
from whimbrel.errors import ProtocolError

STABLE_TIMER = "migration.stable"
ROWS_TOLD = 2_048
"""Rows in one message: 28 KiB, about 2 ms to pack."""


class StableTable:
    """Takes the snapshot, keeps it as long as the list names it, tells it, asks for it."""

    def __init__(self, ctx: Context, table: PartitionTable) -> None:
        """Begin with none."""
        self._ctx = ctx
        self._table = table
        self._wanted: StableMark | None = None
        """Which one our list names."""
        self.packed: PackedRows | None = None
        """The rows as they lie in our files; None while we have none."""
        self.rows: tuple[Row, ...] | None = None
        """The row of partition 0, 1, ...; None while we have none."""
        self.fewest_backups = 1
        """Backups that every structure has: down to that index a step of a row loses no data."""
        self._found: tuple[StableMark, PackedRows] | None = None
        """What our files said."""
        self._coming: list[Row] = []
        """The first rows, while they are being told."""
        self._without: dict[MemberId, None] = {}
        """Members that have said that they have no rows either."""
        self._is_lost = False
        self._counted: tuple[tuple[int, int], int] | None = None

    @property
    def is_decided(self) -> bool:
        """Whether it is known where rows go; a lost table is none."""
        return self._wanted is None or self.rows is not None or self._is_lost

    def remember(self, stable: StableMark, packed: PackedRows) -> None:
        """Our files know these rows; they count if the list names them."""
        self._found = stable, packed

    def follow(self, mark: Callable[[], int]) -> None:
        """A list is installed: take the snapshot, or give it up.

        Args:
            mark: Gives that of our own table, as it is compared in changes of the state.
        """
        wanted = self._ctx.members.stable
        if wanted != self._wanted:
            self._wanted, self._is_lost = wanted, False
            self.rows = self.packed = self._counted = None
            self._coming = []
            if wanted is not None:
                self._find(wanted, mark)
        self._without.clear()
        if not self.is_decided:
            self.ask()

    def _find(self, wanted: StableMark, mark: Callable[[], int]) -> None:
        """Look for the rows in our table, then in our files."""
        if self._table.initialised and wanted.mark == mark():
            self._keep(tuple(self._table.rows))
        elif self._found is not None and self._found[0] == wanted:
            try:
                rows = unpack_rows(self._found[1])
            except ProtocolError:
                rows = []  # damage is found by its checksum: this is of another partition count
            if len(rows) == self._table.partition_count:
                self._keep(tuple(rows))

    def _keep(self, rows: tuple[Row, ...]) -> None:
        self.rows, self.packed = rows, pack_rows(rows)
        self._found, self._coming = None, []
        self._ctx.disarm(STABLE_TIMER)

    def names_us(self, pid: PartitionId) -> bool:
        """Whether we are to be in a row in the end, so that what we lose of it will come back."""
        return self.rows is not None and self._ctx.id in self.rows[pid]

    def awaits(self, pid: PartitionId, row: Row) -> bool:
        """Whether somebody who is to be in a row in the end is away from it, or from the list."""
        if self.rows is None or self._ctx.members.stable is None:
            return False
        return any(
            member is not None and (member not in row or not self._ctx.is_member(member))
            for member in self.rows[pid]
        )

    # -- telling --------------------------------------------------------------------------

    def ask(self) -> None:
        """Ask for what is missing: the master, or as master everybody who may have it."""
        ctx, wanted = self._ctx, self._wanted
        if wanted is None or self.rows is not None:
            return
        if ctx.is_master:
            asked: Sequence[MemberId] = [one for one in ctx.others() if one not in self._without]
        else:
            asked = () if ctx.master is None else (ctx.master,)
        if ctx.is_master and not asked:
            if not self._is_lost:
                self._is_lost = True
                ctx.note("stable_table.lost", "error", entered=wanted.entered)
            return
        for member in asked:
            ctx.send(member, StableTableRequested(wanted, len(self._coming)))
        ctx.arm(STABLE_TIMER, ctx.settings.call_timeout_us)

    def requested(self, sender: MemberId, request: StableTableRequested) -> None:
        """Tell the next rows, or that we have none."""
        rows: PackedRows | None = None
        if self.rows is not None and request.stable == self._wanted and request.start >= 0:
            rows = pack_rows(self.rows[request.start : request.start + ROWS_TOLD])
        self._ctx.send(sender, StableTableTold(request.stable, request.start, rows))

    def told(self, sender: MemberId, told: StableTableTold) -> None:
        """Take the next rows, and ask for those behind them.

        Raises:
            ProtocolError: The rows break a rule.
        """
        wanted = self._wanted
        if told.stable != wanted or self.rows is not None or told.start != len(self._coming):
            return
        if told.rows is None:
            self._without[sender] = None
            if self._ctx.is_master:
                self.ask()
            return
        self._coming += unpack_rows(told.rows)
        if len(self._coming) > self._table.partition_count or not told.rows.slots:
            self._coming = []
            raise ProtocolError("a stable table has one row per partition")
        if len(self._coming) == self._table.partition_count:
            self._keep(tuple(self._coming))
        else:
            self._ctx.send(sender, StableTableRequested(wanted, len(self._coming)))
            self._ctx.arm(STABLE_TIMER, self._ctx.settings.call_timeout_us)

    # -- figures --------------------------------------------------------------------------

    def slots_differing(self, depth: int) -> int | None:
        """Slots of our table that are not as in the stable one; None without a stable table.

        While its rows are not known here all slots count. Counted once for each table.
        """
        if self._wanted is None:
            return None
        if self.rows is None:
            return depth * self._table.partition_count
        key = (self._table.change_count, depth)
        if self._counted is None or self._counted[0] != key:
            self._counted = (key, slots_differing(self._table.rows, self.rows, depth))
        return self._counted[1]
