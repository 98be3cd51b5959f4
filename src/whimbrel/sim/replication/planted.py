"""Bugs of backups and of anti-entropy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from whimbrel.core.audit.replica import Examination
from whimbrel.core.ids import MemberId
from whimbrel.core.messages import Purpose, ReplicaVersions, TransferAnswered
from whimbrel.core.messages.audit import Compare, Compared, Mark, Reply
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.replication.key_log import KeyLog
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace
from whimbrel.sim.structures.map.rules import BOUNDED
from whimbrel.structures.map.record import REMOVE

PERMITS_MANY = 1_000
"""More syncs at once than any run could begin."""


def gap_ignored(engine: Engine) -> None:
    """A broken connection's backups are not repeated, and the receiver takes the gap for order."""
    incoming = engine.member.dataplane.incoming
    apply_backups, out_of_step = incoming.apply_backups, incoming._apply_out_of_step

    def accept(sender: MemberId, payload: bytes) -> None:
        inbox = incoming.inboxes.get(sender)
        sequence = int.from_bytes(payload[12:20], "little")
        if inbox is not None and sequence > inbox.applied + 1 > 1:
            inbox.applied = sequence - 1
        apply_backups(sender, payload)

    def take(fragment: Fragment, counter: int, counters: Any, operation: bytes) -> None:
        out_of_step(fragment, counter, counters, operation)
        fragment.is_dirty = False

    backups_not_repeated(engine)
    replace(incoming, "apply_backups", accept)
    replace(incoming, "_apply_out_of_step", take)


def backups_not_repeated(engine: Engine) -> None:
    """What a broken connection lost is taken for done instead of being sent again."""
    dataplane = engine.member.dataplane
    link_lost = dataplane.link_lost

    def give_up(member: MemberId) -> None:
        outbox = dataplane.outgoing.outboxes.get(member)
        if outbox is not None:
            outbox.acknowledge(outbox.sequence, dataplane.outgoing.completed)
        link_lost(member)

    replace(dataplane, "link_lost", give_up)


def differences_hidden(engine: Engine) -> None:
    """A comparison finds that nothing differs (APR-49)."""
    handlers = engine.member.dataplane._handlers
    answered = handlers[TransferAnswered, Purpose.SYNC]

    def find_nothing(sender: MemberId, answer: TransferAnswered) -> None:
        progress = answer.progress
        differing = {name: bytes(len(bits)) for name, bits in progress.differing.items()}
        progress = msgspec.structs.replace(progress, differing=differing)
        answered(sender, msgspec.structs.replace(answer, progress=progress))

    handlers[TransferAnswered, Purpose.SYNC] = find_nothing


def _in_key_logs(engine: Engine, plant: Callable[[KeyLog], None]) -> None:
    """Put a bug into each log of changed keys of a member."""
    logs = engine.member.dataplane.holdings.key_logs
    begin = logs._begin

    def begin_with_bug(fragment: Fragment) -> bool:
        is_begun = begin(fragment)
        if is_begun and fragment.key_log is not None:
            plant(fragment.key_log)
        return is_begun

    replace(logs, "_begin", begin_with_bug)


def removal_not_logged(engine: Engine) -> None:
    """A key that is removed while somebody is away is not noted (APR-46)."""

    def plant(log: KeyLog) -> None:
        changed_key = log._changed_key

        def changed_but_removed(operation: bytes) -> bytes | None:
            return b"" if operation[0] == REMOVE else changed_key(operation)

        log._changed_key = changed_but_removed

    _in_key_logs(engine, plant)


def last_frames_not_logged(engine: Engine) -> None:
    """What was on its way to the disk of a member that died counts as known to it (APR-48)."""
    logs = engine.member.dataplane.holdings.key_logs
    look_back = logs._look_back

    def look_back_in_vain(begun: Mapping[Fragment, None], bodies: Iterable[bytes]) -> None:
        look_back(begun, bodies)
        for fragment in begun:
            if fragment.key_log is not None:
                fragment.key_log.keys = {}

    replace(logs, "_look_back", look_back_in_vain)


def not_cleared(engine: Engine) -> None:
    """A member that leaves a row keeps the data (leak after commit, demotion, rollback)."""
    replace(engine.member.dataplane.roles, "_drop_beyond", lambda _partition: None)


def anybody_tells_versions(engine: Engine) -> None:
    """Versions are believed whoever tells them, and backups tell theirs, too."""
    anti_entropy = engine.member.dataplane.anti_entropy
    told = anti_entropy._told

    def believe(sender: MemberId, replica: ReplicaVersions) -> None:
        partition = engine.member.dataplane.partitions[replica.partition_id]
        told(
            partition.primary or sender,
            msgspec.structs.replace(
                replica, index=partition.index, partition_version=partition.version
            ),
        )

    replace(anti_entropy, "_told", believe)


def permits_without_limit(engine: Engine) -> None:
    """Syncs are asked for and answered however many are under way.

    So that there are many at all, backups doubt what they hold whenever their row changes; alone
    this only costs time.
    """
    ctx = engine.member.ctx
    anti_entropy = engine.member.dataplane.anti_entropy
    role_taken = anti_entropy.role_taken
    ctx.settings = msgspec.structs.replace(ctx.settings, replication_max_parallel=PERMITS_MANY)

    def doubt(partition: PartitionReplica) -> None:
        role_taken(partition)
        for fragment in partition.fragments.values() if partition.index > 0 else ():
            engine.member.dataplane.doubts.mark_dirty(fragment)

    replace(anti_entropy, "role_taken", doubt)


def trees_believed(engine: Engine) -> None:
    """An audit tells what trees say that were made at different versions: every key of a leaf that
    differs is told, and no key is looked at on both sides at one version (0018).
    """
    replica = engine.member.audits._replica
    examine = replica._examine

    def at_once(found: Examination, question: object) -> Reply:
        if not isinstance(question, Compare):
            return examine(found, question)
        return Compared(bytes([Mark.DIFFERENT]) * len(question.keys))

    replace(replica, "_examine", at_once)


def one_skipped(engine: Engine) -> None:
    """A backup passes over every fifth operation on a map that evicts, and counts it.

    Of such a map nothing counts as lost, so no other rule looks before the cluster is at rest.
    """
    holdings = engine.member.dataplane.holdings
    follow = holdings.follow

    def skip_some(fragment: Fragment) -> None:
        follow(fragment)
        apply, number = fragment.apply, itertools.count(1)

        def pass_over(buffer: bytes, start: int, end: int) -> None:
            if next(number) % 5:
                apply(buffer, start, end)

        if fragment.namespace == BOUNDED:
            fragment.apply = pass_over

    replace(holdings, "follow", skip_some)


BUGS: tuple[Bug, ...] = (
    Bug(gap_ignored, "reset", ("R1", "D9", "D1", "L1")),
    Bug(not_cleared, "leave", ("D8", "L1", "X1")),
    Bug(anybody_tells_versions, "kill", ("R2",)),
    Bug(permits_without_limit, "ambush", ("R3",)),
    Bug(differences_hidden, "compared", ("D9", "D1", "D13", "L1")),
    Bug(trees_believed, "audited", ("R5",)),
    Bug(one_skipped, "audited", ("R5",)),
    Bug(removal_not_logged, "stable", ("D9", "D1", "D13"), range(4, 204)),
    Bug(last_frames_not_logged, "stable", ("D9", "D1", "D13"), range(9, 209)),
)
