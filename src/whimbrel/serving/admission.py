"""Whether an operation may run now: one check before every operation that may be refused.

What refuses is known when a member list is installed: the cluster state, and split-brain
protection (``protection``). The operations concerned are marked as guarded; as long as none is,
nothing is looked at.

PASSIVE is for a cluster whose data must stand still (GCM-07); FROZEN allows what ACTIVE allows.
Reads, views, listeners and what a client needs to connect and read go on; what the table of
operations calls a write is refused at once. What members say to each other is not concerned:
backups under way, anti-entropy, membership and shutdown go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from whimbrel.core.context import Context
from whimbrel.core.kinds import StructureKind
from whimbrel.core.model import ClusterState
from whimbrel.errors import StateForbidsError
from whimbrel.serving.operations import Operation, Operations
from whimbrel.serving.protection import Protection
from whimbrel.wire.frames import RawMessage


class Admission:
    """What this member refuses at the moment."""

    def __init__(
        self, ctx: Context, kinds: Iterable[StructureKind], operations: Operations
    ) -> None:
        """Begin with nothing refused; ``members_changed`` decides with the first list."""
        self._ctx = ctx
        self._operations = operations
        self.is_passive = False
        """Whether the cluster state refuses what changes data (GCM-07)."""
        self.protection = Protection(ctx, kinds)

    def members_changed(self) -> None:
        """A member list is installed: what is refused from now on."""
        self.is_passive = self._ctx.members.state is ClusterState.PASSIVE
        self.protection.members_changed()
        self.guard()

    def guard(self) -> None:
        """Mark the operations that may be refused."""
        for row in self._operations.rows():
            is_refused = self.is_passive and row.is_write
            row.is_guarded = is_refused or self.protection.may_refuse(row)

    def admit(self, operation: Operation[Any], message: RawMessage) -> None:
        """Let a request pass, or refuse it before it has any effect.

        Raises:
            StateForbidsError: The cluster state is PASSIVE.
            SplitBrainProtectionError: This part of the cluster is too small.
        """
        # The structure's name is the first frame after the fixed fields.
        frames = message[3]
        name = bytes(message[0][frames[2] : frames[3]]) if len(frames) >= 4 else b""
        self.admit_named(operation, name)

    def admit_named(self, operation: Operation[Any], name: bytes) -> None:
        """As ``admit``, for the structure of this name."""
        if self.is_passive and operation.is_write:
            raise StateForbidsError(
                f"{operation.name} is refused: the cluster state is PASSIVE and allows reads only"
            )
        if self.protection.may_refuse(operation):
            self.protection.admit(operation.kind, operation.effect, name)
