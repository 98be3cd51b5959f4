"""More protections that a scenario file may switch off: of commits, data, roles and lists.

See ``guards``, which lists them with its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from whimbrel.core.events import (
    GridEvent,
    Hook,
    Moment,
    PartitionMigrationEvent,
    ReplicaMigrated,
)
from whimbrel.core.ids import NO_INDEX, MemberId
from whimbrel.core.jobs import Job
from whimbrel.core.membership.strangers import SEARCH_TIMER
from whimbrel.core.messages import (
    PublicationAnswered,
    TablePublished,
)
from whimbrel.core.migration.keeper import ActiveMigration
from whimbrel.core.model import MemberInfo, MemberList, MigrationInfo, Verdict
from whimbrel.core.replication.backups_out import PREFIX
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.replication.outbox import FAILED_STALE, FRAME, PendingReply
from whimbrel.core.stimuli import Received
from whimbrel.errors import ProtocolError
from whimbrel.serving.calls import Call
from whimbrel.serving.engine import Engine
from whimbrel.serving.session import Origin
from whimbrel.sim.bug import Bug, nothing, replace
from whimbrel.wire.errors import INDETERMINATE, RETRYABLE

LEASE_FACTOR = 1_000


def told_before_table(engine: Engine) -> None:
    """Services hear of a change that is to come when the table has changed already (bug 6)."""
    migrations = engine.member.migrations
    set_hook = migrations.set_hook

    def late(hook: Hook) -> None:
        waiting: dict[int, PartitionMigrationEvent] = {}

        def tell(moment: Moment, event: PartitionMigrationEvent) -> None:
            if moment is Moment.BEFORE:
                waiting[event.partition_id] = event
                return
            before = waiting.pop(event.partition_id, None)
            if before is not None:
                hook(Moment.BEFORE, before)
            hook(moment, event)

        set_hook(tell)

    replace(migrations, "set_hook", late)


def own_indexes_told(engine: Engine) -> None:
    """The index that a migration leads to is not told to services (bug 14)."""
    keeper = engine.member.migrations._keeper
    event = keeper._event

    def without_index(active: ActiveMigration) -> PartitionMigrationEvent:
        return msgspec.structs.replace(event(active), new_replica_index=NO_INDEX)

    replace(keeper, "_event", without_index)


def carried_applied(engine: Engine) -> None:
    """The finished migrations that a request carries are not looked at (bug 7)."""
    replace(engine.member.migrations._keeper, "apply_carried", nothing)


def kept_until_acknowledged(engine: Engine) -> None:
    """The master forgets a finished migration as soon as it is told (ADL-25)."""
    publisher = engine.member.migrations._loop.publisher
    replace(publisher, "completed_of", lambda _pid: ())


def strangers_unheard(engine: Engine) -> None:
    """A table is taken from whoever sends it, also before the first list (bugs 9 and 60)."""
    member = engine.member
    take, keeper = member._on_message, member.migrations._keeper

    def believe(received: Received) -> None:
        ctx, sender, message = member.ctx, received.sender, received.message
        if not isinstance(message, TablePublished) or sender in (ctx.master, ctx.id):
            take(received)
            return
        for migration in message.completed:
            keeper.apply_completed(migration)
        for row in list(keeper.table.rows_of(message.image)):
            keeper.apply_row(row)
        member.migrations._conclude()
        ctx.send(sender, PublicationAnswered(message.publication, True, 0))

    replace(member, "_on_message", believe)


def failure_counted(engine: Engine) -> None:
    """A failed migration keeps its permits: the counter says that it still runs (bug 18)."""
    execution = engine.member.migrations._loop.execution
    decide = execution._decide

    def keep(flight: Any, verdict: Verdict, reason: str = "") -> None:
        if verdict is Verdict.FAILED:
            replace(execution.queue, "release", nothing)
        try:
            decide(flight, verdict, reason)
        finally:
            vars(execution.queue).pop("release", None)

    replace(execution, "_decide", keep)


def source_may_die(engine: Engine) -> None:
    """The master fails a migration whose source leaves although its destination may have it."""
    execution = engine.member.migrations._loop.execution
    members_changed = execution.members_changed

    def fail(gone: Collection[MemberId]) -> None:
        for flight in list(execution.flights.values()):
            if flight.source in gone and flight.destination not in gone:
                execution._decide(flight, Verdict.FAILED, "the source left the member list")
        members_changed(gone)

    replace(execution, "members_changed", fail)


def promoted_may_die(engine: Engine) -> None:
    """The master waits for the answer of a promoted member that has left (ADL-21)."""
    replace(engine.member.migrations._loop.repair, "members_changed", nothing)


def fetch_repeated(engine: Engine) -> None:
    """A new master asks each member for its table once (ADL-13)."""
    recovery = engine.member.migrations._loop.recovery
    replace(recovery, "repeat", nothing)
    replace(recovery, "link_restored", nothing)


def fetch_from_living(engine: Engine) -> None:
    """A new master waits for the table of a member that has left (ADL-12)."""
    replace(engine.member.migrations._loop.recovery, "members_changed", nothing)


def groups_kept(engine: Engine) -> None:
    """Members of one machine count as places of their own (bug 19c)."""
    ctx, loop = engine.member.ctx, engine.member.migrations._loop

    def alone() -> list[tuple[MemberId, ...]]:
        return [(info.id,) for info in ctx.data_members() if info.id not in ctx.leaving]

    replace(loop, "_groups", alone)


def lost_owner_anyway(engine: Engine) -> None:
    """A partition without any replica gets an owner only where migrations are allowed (bug 48)."""
    ctx, loop = engine.member.ctx, engine.member.migrations._loop
    replacing_lost = loop._replacing_lost

    def only_active() -> Job[None]:
        if ctx.state.migration_allowed:
            yield from replacing_lost()

    replace(loop, "_replacing_lost", only_active)


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
            heads = dataplane.holdings.heads_of(sender)
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


def every_index_told(engine: Engine) -> None:
    """Listeners hear of primaries only, as before version 4.0 (bug 68)."""
    migrations = engine.member.migrations
    tell_events = migrations.tell_events

    def quietly(emit: Callable[[GridEvent], None]) -> None:
        def primaries(event: GridEvent) -> None:
            if not isinstance(event, ReplicaMigrated) or event.replica_index == 0:
                emit(event)

        tell_events(primaries)

    replace(migrations, "tell_events", quietly)


def outlived_unheard(engine: Engine) -> None:
    """What an earlier process of an identity has said is taken for the present one's (M4)."""
    replace(engine.member, "is_outlived", lambda _received: False)


def destroyed_refused(engine: Engine) -> None:
    """Copies that were under way when their map was destroyed are taken (D11)."""
    replace(engine.member.dataplane.holdings, "is_destroyed", lambda *_: False)


def vanished_pruned(engine: Engine) -> None:
    """A backup takes, and keeps, what its primary does not have any more (bug 34)."""
    destroyed_refused(engine)
    replace(engine.member.dataplane.anti_entropy, "_left_out", nothing)


def stale_reads_refused(engine: Engine) -> None:
    """A partition is read while it migrates, also where reads must be fresh (bug 40)."""
    for partition in engine.member.dataplane.partitions:
        partition.stale_read_disabled = False


def chunks_bounded(engine: Engine) -> None:
    """A fragment travels in one message, however large it is (bug 41)."""
    dataplane = engine.member.dataplane
    open_export = dataplane.roles.open_export

    def whole(migration: MigrationInfo) -> Any:
        export = open_export(migration)
        export._in_one = True
        return export

    replace(dataplane.roles, "open_export", whole)


def wish_ends(engine: Engine) -> None:
    """Who waits for a promotion waits on when the master that it asked is gone (bug 49)."""
    roles = engine.member.membership.roles
    follow = roles.follow

    def wait() -> None:
        wish, room = roles.wish, roles._room
        if wish is None or room.ctx.me.lite == wish.lite or room.taken_master == wish.master:
            follow()

    replace(roles, "follow", wait)


def promotion_is_change(engine: Engine) -> None:
    """A list in which a member changed between lite and data leads to no plan (bug 50)."""
    loop = engine.member.migrations._loop
    members_changed = loop.members_changed

    def overlook(old: MemberList, new: MemberList) -> None:
        if old.ids() != new.ids() or old.state is not new.state:
            members_changed(old, new)

    replace(loop, "members_changed", overlook)


def lite_hold_nothing(engine: Engine) -> None:
    """Lite members get replicas like everybody else."""
    ctx, loop = engine.member.ctx, engine.member.migrations._loop

    def everybody() -> list[tuple[MemberId, ...]]:
        return [(info.id,) for info in ctx.members.members if info.id not in ctx.leaving]

    replace(loop, "_groups", everybody)


def lock_ends(engine: Engine) -> None:
    """A lock of a change of state outlives its list, and its lease has no end (bug 54)."""
    states = engine.member.membership.states
    take_lock = states._take_lock
    replace(states, "before_list", nothing)
    replace(states, "_take_lock", lambda name, lease_us: take_lock(name, LEASE_FACTOR * lease_us))


def leave_in_any_state(engine: Engine) -> None:
    """Who wants to leave waits until its data are elsewhere, also where nothing may move."""
    loop, ctx = engine.member.migrations._loop, engine.member.ctx
    may_leave = loop.may_leave

    def wait(member: MemberId) -> bool:
        return may_leave(member) and (
            ctx.state.migration_allowed or loop._keeper.table.replica_count(member) == 0
        )

    replace(loop, "may_leave", wait)


def claims_need_suspicion(engine: Engine) -> None:
    """A member agrees to a claim although it hears the master well."""
    claim = engine.member.membership.claim
    replace(claim, "may_follow", lambda _claimant: True)


def suspicion_told(engine: Engine) -> None:
    """A member that is told that the cluster goes on without it goes on as before."""
    replace(engine.member.membership.strangers, "on_told", nothing)


def all_removed_remembered(engine: Engine) -> None:
    """Of members removed in one view only the last is remembered (bug 62)."""
    membership = engine.member.membership
    install = membership.install

    def forget(new: MemberList) -> None:
        install(msgspec.structs.replace(new, missing=new.missing[-1:]))

    replace(membership, "install", forget)


def restart_recognised(engine: Engine) -> None:
    """A new process with the identity of a listed member is taken for that member (bug 64)."""
    membership = engine.member.membership
    displaced_by = membership.displaced_by

    def same(process: MemberInfo) -> MemberId | None:
        known = displaced_by(process)
        return None if known == process.id else known

    replace(membership, "displaced_by", same)
    replace(membership.joining, "_on_repetition", lambda joiner: membership.publish(joiner.id))


def refusals_weighed(engine: Engine) -> None:
    """A write that its backup has refused is told to have had no effect (0013)."""
    server, dataplane = engine.server, engine.member.dataplane

    def give_up(_: MemberId, reply: PendingReply) -> None:
        if reply.fail(FAILED_STALE):
            dataplane.outgoing.completed.append(reply)

    def fail_write(origin: Origin, correlation: int, reason: str) -> None:
        code = RETRYABLE if reason == FAILED_STALE else INDETERMINATE
        server.fail(origin, correlation, code, reason)

    replace(dataplane.handovers, "refused", give_up)
    replace(server, "_fail_write", fail_write)


def sent_once(engine: Engine) -> None:
    """A request whose executing member died is sent to the next one, whatever it is (0013)."""
    calls = engine.server.calls
    member_left = calls.member_left

    def forget(peer: MemberId) -> list[tuple[Call, bool]]:
        return [(call, False) for call, _ in member_left(peer)]

    replace(calls, "member_left", forget)


def followers_search(engine: Engine) -> None:
    """Only a master looks for other parts of the cluster."""
    membership = engine.member.membership
    strangers, on_timer = membership.strangers, membership.strangers.on_timer

    def search() -> None:
        if membership.ctx.is_master:
            on_timer()
        else:
            strangers.start()

    membership._timers[SEARCH_TIMER] = search


MORE_GUARDS: tuple[Bug, ...] = (
    Bug(told_before_table, "services are told too late", "kill", ("P13",)),
    Bug(own_indexes_told, "services are told no index", "kill", ("P13",)),
    Bug(carried_applied, "carried migrations are ignored", "move", ()),
    Bug(kept_until_acknowledged, "finished migrations are forgotten", "move", ()),
    Bug(strangers_unheard, "anybody's table counts", "pause", ("P1", "P4", "X2", "P2")),
    Bug(failure_counted, "a failed migration keeps its permits", "move", ("L1", "L2")),
    Bug(source_may_die, "a dead source fails its migration", "move", ("P2", "P6", "P7", "X2")),
    Bug(promoted_may_die, "a dead promoted member is waited for", "kill", ("L1",)),
    Bug(fetch_repeated, "a lost request for tables is not repeated", "kill", ("L1",)),
    Bug(fetch_from_living, "the table of a dead member is waited for", "kill", ("L1",)),
    Bug(groups_kept, "one machine counts as several", "swarm", ("D6", "D7", "D1")),
    Bug(lost_owner_anyway, "lost partitions stay without an owner", "over", ("C1", "L1")),
    Bug(backups_in_order, "old backups are taken", "reset", ("R1", "D9", "L1")),
    Bug(failed_backup_uncounted, "a failed backup counts", "reset", ("D9", "L1", "R4", "D1")),
    Bug(every_index_told, "only primaries are told", "move", ("P14",)),
    Bug(outlived_unheard, "late words count for a successor", "states", ("X2", "M5")),
    Bug(destroyed_refused, "a destroyed map comes back", "operator", ("D11",)),
    Bug(vanished_pruned, "destroyed structures stay at backups", "operator", ("D8",)),
    Bug(stale_reads_refused, "stale reads are answered", "move", ("D4", "D3")),
    Bug(chunks_bounded, "chunks have no bound", "move", ("X1",)),
    Bug(wish_ends, "a promotion waits for a dead master", "swarm", ("L1",)),
    Bug(promotion_is_change, "a promotion changes nothing", "swarm", ("L1",)),
    Bug(lite_hold_nothing, "lite members get replicas", "swarm", ("P9",)),
    Bug(lock_ends, "a lock stays", "kill", ("L1", "L2")),
    Bug(leave_in_any_state, "leaving waits for a state", "leave", ("L1", "L2")),
    Bug(claims_need_suspicion, "any claim is agreed to", "split", ("M1", "M2", "M3", "L1")),
    Bug(suspicion_told, "a removed member hears nothing", "pause", ("L1",)),
    Bug(followers_search, "followers look for nobody", "lists", ("L1",)),
    Bug(all_removed_remembered, "one of two missing members is forgotten", "states", ()),
    Bug(restart_recognised, "a restart is not noticed", "states", ("C1", "D6", "D1", "L1")),
    Bug(refusals_weighed, "a refused write is called failed", "reset", ("C5",)),
    Bug(sent_once, "a lost answer is asked for again", "kill", ("C5",)),
)
