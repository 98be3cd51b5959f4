"""What may differ between a primary and its backups: what is known of that, and what is to be told.

Knows fragments that may lack something, backups that their primary has not confirmed, and
partitions whose versions are to be told. It compares nothing and asks nobody (``anti_entropy``).
"""

from __future__ import annotations

from typing import Final

from whimbrel.core.context import Context
from whimbrel.core.ids import PartitionId
from whimbrel.core.messages import Vector
from whimbrel.core.replication.fragments import Fragment, PartitionReplica

CONFIRM_US: Final = 250_000
"""A backup that has not heard a new primary's versions asks for them after this time."""
ANNOUNCE: Final = "replication.announce"
CONFIRM: Final = "replication.confirm"


class Doubts:
    """The doubts of one member.

    Attributes:
        dirty: Fragments that may lack something and are to be synchronised.
        behind: Fragments to the version we were told, the one we had when last looked at, and since
            when that has not changed.
        absent: Fragments that their primary left out, to the time of it, lineage and version then.
        unconfirmed: Partitions whose backups we are and whose primary has not told its versions.
        announced: Partitions of ours whose versions are to be told.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.dirty: dict[Fragment, None] = {}
        self.behind: dict[Fragment, tuple[int, int, int]] = {}
        self.absent: dict[Fragment, tuple[int, int, int]] = {}
        self.unconfirmed: dict[PartitionId, None] = {}
        self.announced: dict[PartitionId, None] = {}

    def mark_dirty(self, fragment: Fragment, sound: Vector | None = None) -> None:
        """A fragment may lack something; it is asked for as soon as the guards allow.

        Args:
            fragment: Which.
            sound: Where it lacked nothing, if it is known that all that it may lack came later.
        """
        fragment.is_dirty = True
        fragment.sound = sound
        self.dirty[fragment] = None
        if fragment.log is not None:
            fragment.log.revise()

    def forget(self, fragment: Fragment) -> None:
        """The fragment is gone, replaced, or ours to define."""
        self.dirty.pop(fragment, None)
        self.behind.pop(fragment, None)
        self.absent.pop(fragment, None)

    def is_doubted(self, partition: PartitionReplica) -> bool:
        """Whether a backup of ours is known to lack something, or may."""
        return any(
            fragment.is_dirty or fragment in self.behind
            for fragment in partition.fragments.values()
        )

    def confirm(self, partition: PartitionReplica) -> None:
        """The primary has told its versions, or it is us."""
        partition.is_confirmed = True
        self.unconfirmed.pop(partition.pid, None)

    def unconfirm(self, partition: PartitionReplica) -> None:
        """We are a backup, and are not known to be in step until the primary has told more."""
        partition.is_confirmed = False
        self.unconfirmed[partition.pid] = None
        if not self._ctx.is_armed(CONFIRM):
            self._ctx.arm(CONFIRM, CONFIRM_US)

    def announce(self, partition: PartitionReplica) -> None:
        """Tell the partition's backups our versions soon, with those of other partitions."""
        if partition.is_primary:
            self.announced[partition.pid] = None
            if not self._ctx.is_armed(ANNOUNCE):
                self._ctx.arm(ANNOUNCE, 0)
