"""What was read of a backup, offered to the primaries of today, which take it as any other write.

Chunks are those that a smaller part of a split cluster offers (``core/merging``), and so are the
messages; but what is there already stays, whatever policy a structure has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from whimbrel.core.backups.flow import Fail, Resume, Wait, Work
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, split_namespace
from whimbrel.core.kinds import StructureService
from whimbrel.core.merging.target import MergeTarget
from whimbrel.core.messages import MergeAnswered, MergeRequested, RegistryEntry
from whimbrel.core.partition.table import PartitionTable
from whimbrel.core.registry import Fact, Registry, backups_value, is_structure
from whimbrel.core.replication.fragments import Fragment
from whimbrel.errors import OperationError

IN_FLIGHT_MAX: Final = 8
"""Chunks under way at once, and offered in one turn."""
CHUNK_BYTES_MAX: Final = 65_536
"""A chunk ends with the entry that reaches this size."""
STEP_TIMER: Final = "backups.step"
STEP_US: Final = 50_000
"""How often it is looked what can go on, and a refused chunk is offered again."""
PATIENCE_US: Final = 60_000_000
"""Without any answer for so long the offer is given up."""


class _Chunk:
    """A chunk under way."""

    __slots__ = ("asked", "message", "sent_us")

    def __init__(self, message: MergeRequested) -> None:
        self.message = message
        self.asked: MemberId | None = None
        """Who may have decided it, and is asked before anybody else."""
        self.sent_us = 0


class Offering:
    """Offers chunks, and waits for what others must know before."""

    def __init__(
        self,
        ctx: Context,
        table: PartitionTable,
        services: Mapping[str, StructureService],
        registry: Registry,
        target: MergeTarget,
        free: Callable[[Fragment], None],
    ) -> None:
        """``free`` gives back the memory of a fragment that nobody holds."""
        self._ctx = ctx
        self._table = table
        self._services = services
        self._registry = registry
        self._target = target
        self._free = free
        self._active: dict[int, _Chunk] = {}
        self._taken = self._in_turn = 0
        self._progress_us = 0
        self._conditions: list[tuple[Callable[[], bool], Resume, Fail]] = []

    # -- structures and schemas -----------------------------------------------------------------

    def announce(
        self, entries: Iterable[RegistryEntry], fragments: Iterable[Fragment]
    ) -> Work[None]:
        """See to it that every member knows the schemas, and the structures of these fragments.

        A structure keeps the backups that it has here; a new one gets those configured here.
        """
        facts: dict[tuple[str, str], Fact] = {
            (one.kind, one.key): (one.kind, one.key, True, one.value)
            for one in entries
            if not is_structure(one) and self._registry.get(one.kind, one.key) is None
        }
        for namespace in dict.fromkeys(one.namespace for one in fragments):
            kind, name = split_namespace(namespace)
            if self._registry.get(kind, name) is None:
                counts = self._ctx.settings.structure_of(namespace)
                value = backups_value(counts.backup_count, counts.async_backup_count)
                facts[kind, name] = (kind, name, True, value)
        if facts:
            self._registry.announce(list(facts.values()))
        yield self.when(self.is_announced)

    def is_announced(self) -> bool:
        """Whether every member knows what was announced here."""
        return not self._registry.announcing_count()

    def when(self, condition: Callable[[], bool]) -> Wait:
        """Resumes once this is true; looked at now and then."""

        def wait(resume: Resume, fail: Fail) -> None:
            self._conditions.append((condition, resume, fail))
            self._ctx.arm(STEP_TIMER, 0)

        return wait

    # -- chunks -----------------------------------------------------------------------------------

    def offer(
        self, fragments: list[tuple[Fragment, int]], tell: Callable[[int, int], None]
    ) -> Work[int]:
        """Offer all that is in fragments which nobody holds; each is taken out when it is done.

        Args:
            fragments: With the number of partitions of the cluster that they were of.
            tell: Told how many entries are offered, and how many there are.

        Returns:
            The entries that were taken, or were there.
        """
        self._taken = offered = 0
        total = sum(len(fragment.store) for fragment, _ in fragments)
        while fragments:
            fragment, partition_count = fragments[-1]
            cursor, left = fragment.store.open_cursor(), len(fragment.store)
            while left > 0:
                entries = self._offer_chunk(fragment, cursor, partition_count)
                offered, left = offered + entries, left - max(1, entries)
                if len(self._active) >= IN_FLIGHT_MAX or not entries:
                    tell(offered, total)
                    yield self.when(lambda: len(self._active) < IN_FLIGHT_MAX)
                else:
                    self._in_turn += 1
                    if self._in_turn >= IN_FLIGHT_MAX:
                        tell(offered, total)
                        yield self.when(_always)
            fragments.pop()
            self._free(fragment)
        yield self.when(lambda: not self._active)
        return self._taken

    def _offer_chunk(self, fragment: Fragment, cursor: Any, partition_count: int) -> int:
        """Offer the next chunk, in pieces if partitions are others here; its entries."""
        namespace = fragment.namespace
        kind, name = split_namespace(namespace)
        service, known = self._services[kind], self._registry.get(kind, name)
        if known is None:
            raise OperationError(f"{namespace} was destroyed meanwhile")
        chunk, entries = service.leftover_chunk(fragment.store, cursor, CHUNK_BYTES_MAX)
        pieces = [(fragment.partition_id, chunk, entries)]
        if partition_count != self._table.partition_count:
            pieces = service.split(namespace, chunk, entries, self._table.partition_count)
        for pid, piece, count in pieces:
            call = self._ctx.next_number()
            self._begin(
                MergeRequested(
                    call, pid, namespace, piece, count, known.destroyed, is_restored=True
                )
            )
        return entries

    def _begin(self, message: MergeRequested) -> None:
        self._active[message.call] = _Chunk(message)
        self._progress_us = self._ctx.now_us
        self._send(self._active[message.call])

    def _send(self, chunk: _Chunk) -> None:
        """To the present primary. Who was asked is asked again first: it may have decided."""
        ctx = self._ctx
        if chunk.asked is None or not ctx.is_member(chunk.asked):
            chunk.asked = self._table.row(chunk.message.partition_id)[0]
        if chunk.asked is None or not ctx.is_member(chunk.asked):
            chunk.asked = None
            return
        chunk.sent_us = ctx.now_us
        if chunk.asked == ctx.id:
            self._target.on_requested(ctx.id, chunk.message)
        else:
            ctx.send(chunk.asked, chunk.message)

    def on_answered(self, answered: MergeAnswered) -> None:
        """What became of a chunk; of another's nothing is known here."""
        chunk = self._active.get(answered.call)
        if chunk is None:
            return
        self._progress_us = self._ctx.now_us
        if not answered.accepted:
            chunk.asked = None
            return
        del self._active[answered.call]
        counts = answered.counts
        self._taken += counts.added + counts.replaced + counts.same
        if self._conditions:
            self._ctx.arm(STEP_TIMER, 0)

    def on_step(self) -> None:
        """Go on where it can be gone on; offer again what was refused or not answered."""
        ctx = self._ctx
        self._in_turn = 0
        for chunk in list(self._active.values()):
            if chunk.asked is None or ctx.now_us - chunk.sent_us >= ctx.settings.call_timeout_us:
                self._send(chunk)
        is_stuck = bool(self._active) and ctx.now_us - self._progress_us > PATIENCE_US
        waiting, self._conditions = self._conditions, []
        for condition, resume, fail in waiting:
            if is_stuck:
                self.give_up()
                fail(OperationError("no primary takes the entries; some of them are restored"))
            elif condition():
                resume(None)
            else:
                self._conditions.append((condition, resume, fail))
        if self._conditions:
            ctx.arm(STEP_TIMER, STEP_US)

    def give_up(self) -> None:
        """Offer nothing more."""
        self._active.clear()


def _always() -> bool:
    return True
