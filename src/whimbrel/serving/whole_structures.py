"""What whole-structure calls of several kinds have in common: looking, handing over, clearing."""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.core.ids import Namespace
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import Reply
from whimbrel.core.replication.shortage import Shortage
from whimbrel.errors import OverloadedError
from whimbrel.serving.listeners import StructureEvent
from whimbrel.serving.operations import RunShare, Share
from whimbrel.serving.scatter import Gather
from whimbrel.serving.server import Server
from whimbrel.serving.write_group import WriteGroup

INT_MAX = 2**31 - 1
"""Clients get numbers of entries as 32 bits; more are told as this many."""

ReadItems = Callable[[PartitionReplica, Namespace], list[bytes]]
Clear = Callable[[PartitionReplica, Namespace, Reply], int]
"""Removes everything; how many entries that were."""
Contains = Callable[[PartitionReplica, Namespace, bytes], bool]
"""Whether some entry has an equal value."""


def items_share(read: ReadItems) -> RunShare:
    """A share that hands over what it finds in a partition."""

    def run(
        share: Share, partition: PartitionReplica, namespace: Namespace, _: bytes, __: WriteGroup
    ) -> int:
        found = read(partition, namespace)
        share.items += found
        return len(found)

    return run


def contains_share(contains: Contains) -> RunShare:
    """A share that counts one as soon as a partition has the value that is its argument."""

    def run(
        share: Share,
        partition: PartitionReplica,
        namespace: Namespace,
        value: bytes,
        _: WriteGroup,
    ) -> int:
        fragment = partition.fragments.get(namespace)
        if share.count or fragment is None:
            return 0
        share.count = int(contains(partition, namespace, value))
        return len(fragment.store)

    return run


def clear_share(shortage: Shortage, clear: Clear) -> RunShare:
    """A share that clears a partition; one with too few backups, or of which one cannot keep up, is
    asked for again: an error here would be told of a call that others have carried out.
    """

    def run(
        share: Share,
        partition: PartitionReplica,
        namespace: Namespace,
        _: bytes,
        group: WriteGroup,
    ) -> int | None:
        if not shortage.admits(partition, namespace):
            return None
        reply = group.reply()
        try:
            count = clear(partition, namespace, reply)
        except OverloadedError:
            return None
        share.count += count
        group.expect(reply)
        return count

    return run


def publish_whole(server: Server, namespace: Namespace, flag: int, gather: Gather) -> None:
    """One event for a structure as a whole, from the member that was asked."""
    if gather.count:
        source, count = server.ctx.id, min(gather.count, INT_MAX)
        server.listeners.publish(StructureEvent(namespace, flag, None, None, None, source, count))


def pairs(items: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Keys and values that stand in turn, as pairs."""
    return list(zip(items[::2], items[1::2], strict=True))
