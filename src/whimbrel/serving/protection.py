"""Split-brain protection: a part of the cluster that is too small refuses to serve maps.

While the member list has fewer data members than ``split_brain_protection.minimum_size``, the
protected requests are answered at once with the protocol's split-brain protection error. The switch
is flipped when a list is installed, by putting refusing handlers in the place of the ordinary ones,
so an unprotected or healthy cluster pays nothing per request. Until a cut-off member is off the
list (a heartbeat time-out) both parts serve; docs/guarantees.md says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from whimbrel.core.ids import PartitionId
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.errors import SplitBrainProtectionError
from whimbrel.serving.session import Connection, Origin
from whimbrel.wire.frames import RawMessage
from whimbrel.wire.protocol_table import message_type

if TYPE_CHECKING:
    from whimbrel.serving.scatter import Share
    from whimbrel.serving.server import PartitionOperation, RunOnPartition, Server

K = TypeVar("K")
V = TypeVar("V")

WRITES = ("Map.clear", "Map.evictAll", "Client.destroyProxy")
"""Protected writes that belong to no partition."""
READS = ("Map.size", "Map.isEmpty", "Map.containsValue", "Map.keySet", "Map.values", "Map.entrySet")
"""Protected reads that belong to no partition."""
WRITE_SHARES = ("clear", "evict_all")
"""Shares of whole-map writes that another member asks for."""


class Protection:
    """Whether this member refuses, and the handlers that it has put aside meanwhile."""

    def __init__(self, server: Server) -> None:
        """Begin unprotected; ``members_changed`` decides with the first list."""
        self._server = server
        settings = server.ctx.settings
        self.minimum_size = settings.split_brain_minimum_size
        self.protects = settings.split_brain_protects
        self.is_refusing = False
        self._put_aside: list[Callable[[], None]] = []

    @property
    def size(self) -> int:
        """Data members on our list."""
        return len(self._server.ctx.data_members())

    def members_changed(self) -> None:
        """A member list is installed: refuse or serve from now on."""
        is_small = self.size < self.minimum_size
        if is_small == self.is_refusing:
            return
        self.is_refusing = is_small
        if is_small:
            self._replace_handlers()
        else:
            for put_back in self._put_aside:
                put_back()
            self._put_aside.clear()
        self._server.ctx.note(
            "split_brain_protection.refusing" if is_small else "split_brain_protection.serving",
            "warning" if is_small else "info",
            members=self.size,
            minimum_size=self.minimum_size,
            protects=self.protects,
        )

    def document(self) -> dict[str, object] | None:
        """What operators see; None when nothing is configured."""
        if not self.minimum_size:
            return None
        return {
            "minimum_size": self.minimum_size,
            "protects": self.protects,
            "data_members": self.size,
            "refusing": self.is_refusing,
        }

    def refuse(self) -> NoReturn:
        """Answer a protected request.

        Raises:
            SplitBrainProtectionError: Always.
        """
        what = {"write": "writes", "read": "reads"}.get(self.protects, "reads and writes")
        raise SplitBrainProtectionError(
            f"{what} are refused: this part of the cluster has {self.size} data members, "
            f"split_brain_protection.minimum_size asks for {self.minimum_size}; "
            "try again when more members are back"
        )

    def _replace_handlers(self) -> None:
        """Put refusing handlers in the place of the protected ones."""
        writes = self.protects in ("write", "read_write")
        reads = self.protects in ("read", "read_write")
        server = self._server
        for operation in server.partition_operations.values():
            if writes if operation.write else reads:
                self._put_aside.append(_restorer(operation, operation.run))
                operation.run = self._refuse_partition
        others = server.connection_operations
        for name in (*(WRITES if writes else ()), *(READS if reads else ())):
            kind = message_type(name)
            run = others.get(kind)
            if run is not None:
                self._put_aside.append(_item_restorer(others, kind, run))
                others[kind] = self._refuse_connection
        executors = server.scatter.executors
        for name in sorted(executors):
            if writes if name in WRITE_SHARES else reads:
                self._put_aside.append(_item_restorer(executors, name, executors[name]))
                executors[name] = self._refuse_share

    def _refuse_partition(
        self, origin: Origin, partition: PartitionReplica, message: RawMessage
    ) -> None:
        self.refuse()

    def _refuse_connection(self, connection: Connection, message: RawMessage) -> None:
        self.refuse()

    def _refuse_share(
        self,
        name: str,
        argument: bytes,
        partitions: Sequence[PartitionId],
        done: Callable[[Share], None],
    ) -> None:
        self.refuse()


def _restorer(operation: PartitionOperation, run: RunOnPartition) -> Callable[[], None]:
    def put_back() -> None:
        operation.run = run

    return put_back


def _item_restorer(table: dict[K, V], key: K, value: V) -> Callable[[], None]:
    def put_back() -> None:
        table[key] = value

    return put_back
