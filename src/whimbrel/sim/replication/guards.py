"""Protections of backups and of anti-entropy."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from whimbrel.core.ids import MemberId, PartitionId, Row, index_in
from whimbrel.core.messages import Vector
from whimbrel.core.replication.backups_out import PREFIX
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.replication.outbox import FRAME
from whimbrel.errors import ProtocolError
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, nothing, replace
from whimbrel.sim.replication.planted import anybody_tells_versions
from whimbrel.sim.structures.map.guards import destroyed_refused
from whimbrel.sim.structures.map.model import store_of


def promoted_with_data(engine: Engine) -> None:
    """Only a first backup keeps its data when it is promoted (bugs 2 and 19b)."""
    roles, me = engine.member.dataplane.roles, engine.member.ctx.id
    row_changed = roles.row_changed

    def start_empty(pid: PartitionId, before: Row, after: Row, version: int) -> None:
        if index_in(before, me) > 1 and index_in(after, me) == 0:
            partition = engine.member.dataplane.partitions[pid]
            for namespace in list(partition.fragments):
                del partition.fragments[namespace]
        row_changed(pid, before, after, version)

    replace(roles, "row_changed", start_empty)


def told_by_the_primary(engine: Engine) -> None:
    """Versions are believed whoever tells them (bug 8)."""
    anybody_tells_versions(engine)


def lineage_compared(engine: Engine) -> None:
    """A backup counts on under a new primary without comparing where it starts (AE-11)."""
    doubts = engine.member.dataplane.doubts
    mark_dirty = doubts.mark_dirty

    def trust(fragment: Fragment, sound: Vector | None = None) -> None:
        if fragment.value == fragment.base[fragment.slot]:  # it has just met a new lineage
            fragment.is_dirty = False
        else:
            mark_dirty(fragment, sound)

    replace(doubts, "mark_dirty", trust)


def sync_replaces(engine: Engine) -> None:
    """A sync adds what the primary has and removes nothing (bug 37)."""
    syncs = engine.member.dataplane.syncs
    swap_in = syncs._swap_in

    def merge(partition: PartitionReplica, shadow: Fragment) -> None:
        old = partition.fragments.get(shadow.namespace)
        for key, record in () if old is None else store_of(old.store).records.items():
            store_of(shadow.store).records.setdefault(key, record)
        swap_in(partition, shadow)

    replace(syncs, "_swap_in", merge)


def permits_returned(engine: Engine) -> None:
    """A permit that was taken for a request never comes back (bugs 33 and 35)."""
    syncs, settings = engine.member.dataplane.syncs, engine.member.ctx.settings

    def left() -> int:
        return settings.replication_max_parallel - syncs.counters["syncs_requested"]

    replace(syncs, "_free_permits", left)


def backups_in_order(engine: Engine) -> None:
    """Frames are not numbered, and an old operation is taken like a new one (bugs 29 and 30)."""
    incoming = engine.member.dataplane.incoming
    apply_backups, out_of_step = incoming.apply_backups, incoming._apply_out_of_step

    def accept(sender: MemberId, payload: bytes) -> None:
        inbox = incoming.inboxes.get(sender)
        if inbox is not None:
            incarnation, stream, sequence, _ = FRAME.unpack_from(payload)
            if (incarnation, stream) == (inbox.incarnation, inbox.stream):
                inbox.applied = sequence - 1
        apply_backups(sender, payload)

    def take(fragment: Fragment, counter: int, counters: Sequence[int], operation: bytes) -> None:
        if counter > fragment.value:
            out_of_step(fragment, counter, counters, operation)
        else:
            fragment.store.apply(operation, 0, len(operation))
            fragment.value = counter

    replace(incoming, "apply_backups", accept)
    replace(incoming, "_apply_out_of_step", take)


def failed_backup_uncounted(engine: Engine) -> None:
    """An operation that fails at a backup advances its version all the same (bug 31)."""
    dataplane = engine.member.dataplane
    incoming = dataplane.incoming
    apply_backups = incoming.apply_backups

    def count(sender: MemberId, payload: bytes) -> None:
        try:
            apply_backups(sender, payload)
        except ProtocolError:
            inbox = incoming.inboxes[sender]
            heads = dataplane.holdings.heads[sender]
            _, _, sequence, operations = FRAME.unpack_from(payload)
            at = FRAME.size
            for _ in range(operations):
                length, head_length, counters, flags, counter = PREFIX.unpack_from(payload, at)
                start = at + 8 + 8 * counters + (24 if flags else 0)
                fragment = heads.get(payload[start : start + head_length])
                if fragment is not None and fragment.slot:
                    (counter,) = struct.unpack_from("<Q", payload, at + 8 + 8 * fragment.slot)
                if fragment is not None:
                    fragment.value = max(fragment.value, counter)
                at += length
            inbox.applied_frame(sequence)

    replace(incoming, "apply_backups", count)


def vanished_pruned(engine: Engine) -> None:
    """A backup takes, and keeps, what its primary does not have any more (bug 34)."""
    destroyed_refused(engine)
    replace(engine.member.dataplane.anti_entropy, "_left_out", nothing)


GUARDS: tuple[Bug, ...] = (
    Bug(promoted_with_data, "kill", ("D6", "D1", "D7")),
    Bug(told_by_the_primary, "pause", ("R2", "D9", "L1")),
    Bug(lineage_compared, "kill", ("D9", "L1", "D1")),
    Bug(sync_replaces, "kill", ("D9", "L1", "R2")),
    Bug(permits_returned, "kill", ("L1", "R3")),
    Bug(backups_in_order, "reset", ("R1", "D9", "L1")),
    Bug(failed_backup_uncounted, "reset", ("D9", "L1", "R4", "D1")),
    Bug(vanished_pruned, "operator", ("D8",)),
)
