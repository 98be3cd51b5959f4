"""What the log knows of one fragment that is held; the end of the path of a write."""

from __future__ import annotations

from typing import Final, Protocol

from whimbrel.core.ids import Namespace
from whimbrel.core.persistence.format import (
    BLOCK_BYTES_TARGET,
    LENGTH_BITS,
    RECORD,
    RECORD_BYTES,
    FragmentState,
    RecordKind,
    prefix_of,
)
from whimbrel.core.persistence.waiting import Waiting
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.replication.outbox import Reply

_pack_record = RECORD.pack
_OPERATION: Final = RecordKind.OPERATION << LENGTH_BITS


class OpenBlock(Protocol):
    """Where records are gathered.

    Attributes:
        parts: Of the open block, heads and bodies.
        size: Their bytes.
        waiting: Who waits for what is gathered.
        is_marked: Whether fragments wait to have their state written.
    """

    parts: list[bytes]
    size: int
    waiting: Waiting
    is_marked: bool

    def cut(self) -> None:
        """Close the open block."""

    def mark(self, fragment: Fragment) -> None:
        """Write the fragment's state before its next change."""

    def settle(self, fragment: Fragment) -> None:
        """Write it now, if it is to be written."""


class FragmentLog:
    """The log of one fragment. Implements ``fragments.ChangeLog``.

    Attributes:
        fragment: Whose it is.
        structure: The number of its structure.
        prefix: Of its records.
        waits: Whether replies and acknowledgements wait until a change is durable.
        floor: The first block of changes that it needs; 0 until the disk has all of it.
        image: The image that its changes go on top of, 0 for none.
    """

    __slots__ = ("_disk", "_waiting", "floor", "fragment", "image", "prefix", "structure", "waits")

    def __init__(self, disk: OpenBlock, fragment: Fragment, structure: int, *, waits: bool) -> None:
        self._disk, self._waiting = disk, disk.waiting
        self.fragment = fragment
        self.structure = structure
        self.prefix = prefix_of(structure, fragment.partition_id)
        self.waits = waits
        self.floor = self.image = 0

    @property
    def namespace(self) -> Namespace:
        """Of the structure."""
        return self.fragment.namespace

    def append(self, counter: int, operation: bytes, reply: Reply) -> None:
        """Write a change down.

        Args:
            counter: Of the fragment's own slot, with this change.
            operation: Of its store.
            reply: Its ``remaining`` rises by one if it has to wait for the disk.
        """
        disk = self._disk
        if disk.is_marked:
            disk.settle(self.fragment)
        length = len(operation)
        size = disk.size + length + RECORD_BYTES
        if size > BLOCK_BYTES_TARGET and disk.size:
            disk.cut()
            size = length + RECORD_BYTES
        disk.size = size
        disk.parts += (_pack_record(self.prefix, counter, _OPERATION | length), operation)
        if self.waits:
            self._waiting.is_waited_for = True
            if reply is not None:
                reply.remaining += 1
                self._waiting.replies.append(reply)

    def revise(self) -> None:
        """The fragment's versions have changed otherwise than by a change."""
        self._disk.mark(self.fragment)

    def state(self) -> FragmentState:
        """What the log says of the fragment beside its content."""
        fragment = self.fragment
        return FragmentState(
            fragment.lineage,
            fragment.base_lineage,
            fragment.base,
            fragment.counters(),
            fragment.slot,
            fragment.is_dirty,
            fragment.sync_count,
            fragment.async_count,
            fragment.generation,
        )
