"""When changed keys are logged, from where on, and what the logs of a member may take.

Knows who is away and may return, the rows that they are to return to, and the last frames of the
links to those that leave; what a log has and proves is in ``key_log`` (docs/design/0018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, Namespace, PartitionId, Row
from whimbrel.core.replication.backups_out import HEAD, operations_in
from whimbrel.core.replication.comparison import comparison_of
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.replication.key_log import KeyLog
from whimbrel.core.settings import ComparisonBounds

LOG_FIGURES: Final = ("key_logs_dropped",)


class KeyLogs:
    """All logs of changed keys of a member: when they begin and end, and what they may take.

    Attributes:
        bytes_used: What all take together.
        counters: Logs that were given up because they had grown too large.
        awaits: Whether somebody who is in the stable row of a partition is away from its row.
        attach: Has changes told to the log of a fragment that come from its primary.
    """

    def __init__(
        self,
        ctx: Context,
        partitions: Sequence[PartitionReplica],
        attach: Callable[[Fragment], None],
    ) -> None:
        self._ctx = ctx
        self._partitions = partitions
        self._bounds: ComparisonBounds = ctx.settings.comparison
        self._attach = attach
        self._logs: dict[Fragment, KeyLog] = {}
        self.bytes_used = 0
        self.counters = dict.fromkeys(LOG_FIGURES, 0)
        self.awaits: Callable[[PartitionId, Row], bool] = lambda _pid, _row: False

    def __len__(self) -> int:
        """Fragments that have one."""
        return len(self._logs)

    @property
    def keys(self) -> int:
        """Keys in all of them."""
        return sum(len(log.keys) for log in self._logs.values())

    # -- when -----------------------------------------------------------------------------

    def is_wanted(self, pid: PartitionId, row: Row) -> bool:
        """Whether somebody may come back with an older copy of a partition with this row."""
        members = self._ctx.members
        if members.stable is not None and self.awaits(pid, row):
            return True
        if not members.seats_kept:
            return False
        others = [one for one in row if one not in (None, self._ctx.id)]
        return any(one is not None and members.is_missing(one) for one in others)

    @property
    def _may_be_wanted(self) -> bool:
        members = self._ctx.members
        return members.stable is not None or bool(members.missing)

    def look_at(self, pids: Iterable[PartitionId]) -> None:
        """Rows, or who is away, have changed: begin or end the logs of these partitions.

        Where somebody is back, and there is none, there is none to be begun.
        """
        if not self._logs and not self._ctx.members.missing:
            return
        for pid in pids:
            partition = self._partitions[pid]
            is_wanted = self.is_wanted(pid, partition.row)
            for fragment in partition.fragments.values():
                if is_wanted:
                    self._begin(fragment)
                else:
                    self.end(fragment)

    def look_at_all(self) -> None:
        """The same of all partitions."""
        self.look_at(PartitionId(pid) for pid in range(len(self._partitions)))

    def held(self, fragment: Fragment) -> None:
        """A fragment is held from now on: who returns may have just this."""
        pid = fragment.partition_id
        if self._may_be_wanted and self.is_wanted(pid, self._partitions[pid].row):
            self._begin(fragment)

    def _begin(self, fragment: Fragment) -> bool:
        """Begin a log, if there is none and there may be one."""
        comparison = comparison_of(fragment.store)
        if fragment.key_log is not None or fragment.is_dirty or comparison is None:
            return False
        if not fragment.backup_count or not self._ctx.settings.is_persistent(fragment.namespace):
            return False
        log = KeyLog(self, fragment, comparison.changed_key)
        fragment.log = fragment.key_log = self._logs[fragment] = log
        if log.inner is None:
            self._attach(fragment)
        return True

    def end(self, fragment: Fragment) -> None:
        """Nobody asks for the log of a fragment any more, or it cannot go on."""
        log = self._logs.pop(fragment, None)
        if log is not None:
            self.bytes_used -= log.bytes_used
            fragment.log, fragment.key_log = log.inner, None

    # -- who leaves -----------------------------------------------------------------------

    def members_left(
        self, left: Sequence[MemberId], last_frames: Callable[[MemberId], Iterable[bytes]]
    ) -> None:
        """Members are on the list no longer: what changes from now on, they lack.

        Args:
            left: Who.
            last_frames: Bodies of frames of backup operations, in order: the last ones from a
                member to us, and behind them those from us to it. What it had on its disk may be
                behind what is counted by those.
        """
        gone, begun = frozenset(left), dict[Fragment, None]()
        for partition in self._partitions if self._may_be_wanted else ():
            row = partition.row
            if not gone.isdisjoint(row) and self.is_wanted(partition.pid, row):
                for fragment in partition.fragments.values():
                    if fragment.key_log is not None:
                        fragment.key_log.begin_stretch()
                    elif self._begin(fragment):
                        begun[fragment] = None
        if begun:
            for member in left:
                self._look_back(begun, last_frames(member))

    def _look_back(self, begun: Mapping[Fragment, None], bodies: Iterable[bytes]) -> None:
        """Let logs that have just begun go back over the last operations that are at hand."""
        heads: dict[bytes, Fragment | None] = {}
        runs: dict[Fragment, tuple[int, list[bytes]]] = {}
        for body in bodies:
            for head, counters, operation in operations_in(body):
                if head not in heads:
                    heads[head] = self._fragment_of(head)
                fragment = heads[head]
                if fragment is None or fragment not in begun:
                    continue
                counter = counters[fragment.slot]
                last, run = runs.get(fragment, (-1, []))
                if counter == last:
                    continue  # sent again
                if counter != last + 1:
                    run = []
                run.append(operation)
                runs[fragment] = counter, run
        for fragment, (last, run) in runs.items():
            if last == fragment.value and fragment.key_log is not None:
                fragment.key_log.look_back(run)

    def _fragment_of(self, head: bytes) -> Fragment | None:
        """The fragment of a backup operation, if we count on under its lineage."""
        pid, _, generation, lineage, _, k = HEAD.unpack_from(head)
        namespace = Namespace(head[HEAD.size + 8 * k :].decode())
        fragment = self._partitions[pid].fragments.get(namespace)
        if fragment is None or fragment.slot >= k:
            return None
        is_it = (lineage, generation, k) == (
            fragment.lineage, fragment.generation, fragment.backup_count
        )  # fmt: skip
        return fragment if is_it else None

    # -- what they take -------------------------------------------------------------------

    def grow(self, log: KeyLog, size: int) -> None:
        """A log is about to take more; one that takes too much is given up (APR-48)."""
        log.bytes_used += size
        if log.fragment.key_log is not log:
            return
        self.bytes_used += size
        bounds = self._bounds
        if len(log.keys) >= bounds.log_keys_max or self.bytes_used > bounds.log_bytes_max:
            self.end(log.fragment)
            self.counters["key_logs_dropped"] += 1

    def shrink(self, log: KeyLog) -> None:
        """All keys of a log go."""
        if log.fragment.key_log is log:
            self.bytes_used -= log.bytes_used
        log.bytes_used = 0
