"""The protocol by which a cluster comes back from its files (docs/design/0017).

    every member tells its master what its files are of, until that is noted
    all expected are here, or time and policy say so: the master orders (``decision``)
    everybody loads what the ordered rows give it; who is not chosen sets its files aside
    all have: a list that names the order; with it the rows are in force, everywhere
    all have that list, and what structures there are: a list without a recovery; all serve

That a recovery is on, and that its rows are in force, is part of the member list; so claims, new
masters and joiners agree on it by the rules of lists. Everything before is the master's alone: a
new one asks everybody anew. No file is written before the last step, so whoever dies begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from whimbrel.core import messages as m
from whimbrel.core.context import Context
from whimbrel.core.ids import NO_INDEX, MemberId, PartitionId, ReplicaIndex, index_in
from whimbrel.core.membership.discovery import new_cluster_id
from whimbrel.core.membership.service import Membership
from whimbrel.core.migration.service import Migrations
from whimbrel.core.model import (
    ClusterState,
    MemberList,
    Recovery,
    RecoveryPhase,
    RecoveryWord,
    members_left,
)
from whimbrel.core.partition.table import PartitionTable, unpack_rows
from whimbrel.core.persistence.metadata import ClusterFile
from whimbrel.core.ports import FilesHost
from whimbrel.core.recovery.decision import Rows, recovery_of
from whimbrel.core.recovery.gathering import Gathering, table_of
from whimbrel.core.registry import Registry
from whimbrel.errors import IllegalStateError

RECOVERY_TIMER = "recovery.tell"
TELL_US = 250_000
"""How often a member says how far it is."""
STALE_DATA_KEY = "persistence.auto_remove_stale_data"
POLICY_KEY = "persistence.recovery_policy"


@dataclass(slots=True, eq=False)
class _Order:
    """The last order that this member was given, and how far it is."""

    name: str = ""
    given_us: int = 0
    chosen: tuple[MemberId, ...] = ()
    is_chosen: bool = False
    table: PartitionTable | None = None
    wanted: dict[PartitionId, ReplicaIndex] | None = None
    """What was asked of the files, None before anything was."""
    is_done: bool = False


class ClusterRecovery:
    """One member's part in a recovery, as member and as its master."""

    def __init__(
        self,
        ctx: Context,
        membership: Membership,
        migrations: Migrations,
        registry: Registry,
    ) -> None:
        """Begin with no recovery, and without files; ``use_files`` gives them.

        Args:
            ctx: Shared with the other rooms.
            membership: Installs the lists that begin, commit and end a recovery.
            migrations: Gets the rows.
            registry: Gets what structures the files know.
        """
        self._ctx, self._settings = ctx, ctx.settings.persistence
        self._membership, self._migrations, self._registry = membership, migrations, registry
        self.on_over: Callable[[], None] = lambda: None
        """Told when the cluster runs again: what there is is known to all from here on, so replicas
        can be compared."""
        self._files: FilesHost | None = None
        self._begun_us: int | None = None
        """When we first were in a recovery."""
        self._has_begun = False
        """Whether the cluster runs with us."""
        self._order = _Order()
        self._damage = ""
        self._on_base: Callable[[], None] | None = None
        """Waits until what our files have is loaded, so that we can return with it."""
        self._has_base = False
        self.take_base: Callable[[Rows], None] = lambda _rows: None
        """Told, with our first list, in which rows we keep the seats that what is loaded is of."""
        self._noted_by: tuple[MemberId, int] | None = None
        """The process of the master that has noted our files, and the one that was told them."""
        self._told_us: tuple[tuple[MemberId, int], int] | None = None
        self._word: RecoveryWord | None = None
        """The master's last one."""
        self._gathering: Gathering | None = None
        """As master of a recovery: what the members have told."""

    def use_files(self, files: FilesHost) -> None:
        """Take part with these files; before the member starts."""
        self._files = self._membership.files = files
        files.on_loaded = self._loaded
        files.on_damaged = self._damaged
        self._membership.load_base = self._load_base

    @property
    def _found(self) -> ClusterFile | None:
        return self._membership.found

    # -- stimuli --------------------------------------------------------------------------

    def view_changed(self, old: MemberList, new: MemberList) -> None:
        """A list is installed; before the migration room hears of it, which reads our rows."""
        recovery, before = new.recovery, old.recovery
        if recovery is None:
            self._run(before, new)
            return
        if self._begun_us is None:
            self._begun_us = self._ctx.now_us
        if recovery.is_given_up:
            self._set_aside()
        elif recovery.order and not (before is not None and before.order):
            self._put_in_force(recovery.order)
        self._follow_master(old, new)
        self._ctx.arm(RECOVERY_TIMER, 0)

    def on_timer(self, key: str) -> None:
        """Say how far we are; as master, hear ourselves and go on."""
        ctx = self._ctx
        if key != RECOVERY_TIMER or ctx.members.recovery is None or not self._is_member():
            return
        ctx.arm(RECOVERY_TIMER, TELL_US)
        if self._gathering is not None:
            self._take(ctx.id, self._told())
        elif ctx.master is not None:
            ctx.send(ctx.master, self._told())

    def on_message(self, sender: MemberId, message: m.RecoveryMessage) -> None:
        """Take a message of a member of our list; outside a recovery they mean nothing."""
        if self._ctx.members.recovery is None or not self._is_member():
            return
        if isinstance(message, m.RecoveryTold):
            if self._gathering is not None:
                self._take(sender, message)
        elif sender == self._ctx.master:
            if isinstance(message, m.RecoveryNoted):
                self._word = message.word
                self._noted_by = self._master_process() if message.has_files else None
            elif isinstance(message, m.RecoveryOrdered):
                self._take_order(message)
            elif isinstance(message, m.RecoveryFailed):
                self._fail(message.reason)

    def _is_member(self) -> bool:
        return self._membership.is_listed

    def _master_process(self) -> tuple[MemberId, int] | None:
        master = self._ctx.master
        info = None if master is None else self._ctx.members.get(master)
        return None if info is None else (info.id, info.started_us)

    # -- every member ---------------------------------------------------------------------

    def _told(self) -> m.RecoveryTold:
        """How we stand; with what our files are of as long as the master does not know."""
        ctx, files, order = self._ctx, self._files, self._order
        return m.RecoveryTold(
            files=self._files_told(),
            list_version=ctx.members.version,
            has_none=self._found is None,
            order=order.name,
            is_done=order.is_done,
            damage=self._damage,
            bytes_total=0 if files is None else files.bytes_total,
            bytes_loaded=0 if files is None else files.bytes_loaded,
        )

    def _files_told(self) -> m.FilesTold | None:
        """What our files are of, unless it is noted, or was sent a moment ago.

        Who left gracefully has nothing to bring, but may know a newer list than who stayed and
        died before it had put that down: whoever came with it has to be waited for.
        """
        ctx, found, master = self._ctx, self._found, self._master_process()
        left = None if self._files is None else self._files.left
        if left is not None and left.cluster_id != ctx.members.cluster_id:
            left = None
        if (found is None and left is None) or master is None or self._noted_by == master:
            return None
        since_us = ctx.now_us - ctx.settings.call_timeout_us
        if self._told_us is not None and self._told_us[0] == master and self._told_us[1] > since_us:
            return None
        self._told_us = master, ctx.now_us
        if found is None:
            return None if left is None else m.FilesTold(left, table_of(1, ()).image(()), ())
        table = table_of(ctx.settings.partition_count, found.rows)
        table.take_losses(found.losses)
        return m.FilesTold(found.members, table.image(), found.registry, found.numbering)

    def _take_order(self, ordered: m.RecoveryOrdered) -> None:
        """Carry out the master's order, which takes the place of any before it.

        Raises:
            ProtocolError: Its image breaks a rule; nothing was done.
        """
        recovery = self._ctx.members.recovery
        is_final = recovery is None or recovery.order or recovery.is_given_up
        if ordered.order == self._order.name or is_final:
            return
        count = self._ctx.settings.partition_count
        taken = PartitionTable(count)
        rows = tuple(taken.take_image(ordered.image))
        table = table_of(count, rows)
        table.take_losses(taken.losses.values())
        before, me = self._order, self._ctx.id
        chosen = ordered.chosen
        order = self._order = _Order(ordered.order, self._ctx.now_us, chosen, me in chosen, table)
        if not order.is_chosen:
            self._leave_out(order)
            return
        order.wanted = _wanted(rows, me)
        if self._ctx.me.lite:
            order.is_done = True
            return
        if self._files is None or self._found is None:
            return
        if before.wanted == order.wanted:
            order.is_done = before.is_done
        else:
            self._ctx.note("recovery.loading", partitions=len(order.wanted))
            self._files.load(order.wanted)

    def _leave_out(self, order: _Order) -> None:
        """Others' files count: ours are stale, or damaged."""
        if not (self._damage or self._settings.auto_remove_stale_data) and self._found is not None:
            self._membership.stop(
                "the cluster is recovered from the files of other members, ours are stale; they "
                f"are not set aside because {STALE_DATA_KEY} is false",
                1,
            )
            return
        self._ctx.note("recovery.left_out", "warning", damage=self._damage)
        self._set_aside()
        order.is_done = self._found is None

    def _set_aside(self) -> None:
        """Begin without our files; they stay where an operator finds them."""
        if self._files is not None and self._found is not None:
            self._files.set_aside(self._is_set_aside)

    def _is_set_aside(self) -> None:
        if not self._order.is_chosen:
            self._order.is_done = True
        if self._ctx.members.recovery is not None:
            self._ctx.arm(RECOVERY_TIMER, 0)

    # -- returning to a cluster that runs -------------------------------------------------

    def _load_base(self, then: Callable[[], None]) -> None:
        """Bring back what our files have of our seats, of the present rows and the stable ones."""
        files, found = self._files, self._found
        if files is None or found is None:
            then()
            return
        self._on_base = then
        stable = [] if found.stable is None else unpack_rows(found.stable)
        wanted: dict[PartitionId, ReplicaIndex] = {}
        for rows in ([state.row for state in found.rows], stable):
            for pid, row in enumerate(rows[: len(found.rows)]):
                index = index_in(row, self._ctx.id)
                if index != NO_INDEX:
                    wanted[PartitionId(pid)] = min(index, wanted.get(PartitionId(pid), index))
        self._ctx.note("files_loading", partitions=len(wanted))
        files.load(wanted)

    def _end_base(self) -> Callable[[], None] | None:
        then, self._on_base = self._on_base, None
        return then

    # -- loading --------------------------------------------------------------------------

    def _loaded(self) -> None:
        """All that was last asked for is here."""
        then = self._end_base()
        if then is not None and not self._order.name:
            self._has_base = True
            then()
        elif self._order.is_chosen:
            self._order.is_done = True
            self._ctx.arm(RECOVERY_TIMER, 0)

    def _damaged(self, sentence: str) -> None:
        """Our files cannot be loaded: end with them, or tell, and go on without them."""
        self._ctx.note("recovery.damaged", "error", reason=sentence)
        if self._settings.recovery_policy == "FULL_RECOVERY_ONLY":
            self._membership.stop(sentence, 1)
            return
        then = self._end_base()
        if then is not None and not self._order.name and self._files is not None:
            self._files.set_aside(then)  # others have what is damaged here
        else:
            self._damage = sentence
            self._ctx.arm(RECOVERY_TIMER, 0)

    def _put_in_force(self, name: str) -> None:
        """Everybody has carried out this order: its rows are ours.

        Who was left out has nothing and shows it: without a version of its rows it gets them with
        the first table, as a member that comes back without data (``settlement.without_data``).
        """
        order = self._order
        if order.name == name and order.is_chosen and order.is_done and order.table is not None:
            table = order.table
            if self._files is not None:
                self._files.follow()
            rows = [table.state(PartitionId(pid)) for pid in range(table.partition_count)]
            self._migrations.restore(rows, table.losses.values())

    def _run(self, before: Recovery | None, new: MemberList) -> None:
        """The cluster runs with us, after a recovery or without one."""
        if self._has_begun:
            return
        self._has_begun = True
        self._ctx.disarm(RECOVERY_TIMER)
        self._gathering, self._word, self._order.table = None, None, None
        if before is not None:
            self._ctx.note("recovery.over")
        files = self._files
        is_left_out = self._found is not None and not self._order.is_chosen
        if files is not None and is_left_out and self._has_base and before is None:
            self.take_base(self._found.rows if new.keeps_seats and self._found else ())
            files.began()
        elif files is not None and is_left_out:
            files.set_aside(files.began)
        elif files is not None:
            files.began()
        if before is not None:
            self.on_over()

    def _fail(self, reason: str) -> None:
        """The recovery is given up: end; whatever lies on the disk stays as it is."""
        self._word = RecoveryWord(RecoveryPhase.FAILED, (), reason=reason)
        self._membership.stop(reason, 1)

    # -- the master -----------------------------------------------------------------------

    def _follow_master(self, old: MemberList, new: MemberList) -> None:
        ctx = self._ctx
        if not ctx.is_master:
            self._gathering = None
        elif self._gathering is None:
            self._gathering = Gathering(ctx, self._until_us())
        else:
            self._gathering.forget(members_left(old, new))

    def _until_us(self) -> int:
        """How long we as a new master wait for who is missing, the one before us for example.

        As long as it would have waited: the time is that of the recovery, whoever its master is.
        """
        settings = self._settings
        begun_us = self._ctx.now_us if self._begun_us is None else self._begun_us
        until_us = begun_us + settings.validation_timeout_us
        if self._order.name:
            until_us = max(until_us, self._order.given_us + settings.data_load_timeout_us)
        return until_us

    def _take(self, sender: MemberId, told: m.RecoveryTold) -> None:
        """A member, or we ourselves, says how it stands.

        Raises:
            ProtocolError: What it says of its files breaks a rule.
        """
        gathering, ctx = self._gathering, self._ctx
        if gathering is None:
            return
        newer = gathering.take(sender, told)
        if newer is not None:
            membership = self._membership
            membership.install(gathering.list_after(newer))
        self._proceed(gathering)
        if ctx.members.recovery is None or not self._is_member():
            return
        word = gathering.word(sender)
        if sender == ctx.id:
            self._word = word
            self._noted_by = self._master_process() if gathering.has_files(sender) else None
        else:
            ctx.send(sender, m.RecoveryNoted(gathering.has_files(sender), word))
        ordered = gathering.order_for(sender)
        if ordered is not None and sender == ctx.id:
            self._take_order(ordered)
        elif ordered is not None:
            ctx.send(sender, ordered)

    def _proceed(self, gathering: Gathering) -> None:
        """Take the next step, if nothing more is missing for it."""
        recovery = self._ctx.members.recovery
        if recovery is None:
            return
        if recovery.is_given_up:
            if gathering.is_done():
                self._end_empty()
        elif recovery.order:
            self._start(gathering)
        elif gathering.is_done():
            self._ctx.note("recovery.loaded", order=gathering.order_name)
            self._change(order=gathering.order_name)
        elif gathering.must_decide():
            self._decide(gathering)
        elif gathering.is_late():
            gathering.bar_late()
            is_full = self._settings.recovery_policy == "FULL_RECOVERY_ONLY"
            self._decide(gathering, allowed=not is_full)

    def _decide(self, gathering: Gathering, *, allowed: bool = True) -> None:
        """Order, with the members that are here; where that may not be, or cannot, all end."""
        if not (allowed and gathering.decide()):
            reason = gathering.failure()
            self._ctx.broadcast(m.RecoveryFailed(reason))
            self._fail(reason)

    def _change(self, order: str = "", *, is_given_up: bool = False) -> None:
        """As master, go on to a list that says so."""
        members = self._ctx.members
        recovery = members.recovery
        if recovery is not None:
            changed = msgspec.structs.replace(recovery, order=order, is_given_up=is_given_up)
            self._membership.install(
                msgspec.structs.replace(members, version=members.version + 1, recovery=changed)
            )

    def _start(self, gathering: Gathering) -> None:
        """The rows are in force: once everybody has them, and knows what there is, all serve."""
        order = self._order
        chosen = {one: None for one in order.chosen if self._ctx.is_member(one)}
        entries = gathering.take_registry(chosen)
        if entries:
            self._registry.restore(entries)
        if not gathering.has_started() or self._registry.announcing_count():
            return
        members = self._ctx.members
        recovery = members.recovery
        if recovery is None:
            return
        self._membership.numbers.resume(gathering.numbering())
        without = tuple(info for info in recovery.expected if info.id not in chosen)
        away = () if recovery.state.join_allowed else without
        known = {info.id for info in away}
        kept = tuple(info for info in members.missing if info.id not in known)
        if recovery.state.promotion_allowed:  # no seats are kept: who is here has come back
            kept = tuple(info for info in kept if members.get(info.id) is None)
            away = tuple(info for info in away if members.get(info.id) is None)
        self._membership.install(
            msgspec.structs.replace(
                members,
                version=members.version + 1,
                state=recovery.state,
                missing=() if recovery.state.join_allowed else (*kept, *away),
                recovery=None,
                recovered=members.version + 1,
            )
        )
        if recovery.state.promotion_allowed:
            self._migrations.note_without_data(self._seats_of_others(chosen))

    def _seats_of_others(self, chosen: dict[MemberId, None]) -> list[tuple[PartitionId, MemberId]]:
        """The seats of whoever has no data: it is taken out of the rows, even if it comes soon."""
        table = self._migrations.table
        return [
            (pid, member)
            for member in table.holders()
            if member not in chosen
            for pid in table.partitions_of(member)
        ]

    def _end_empty(self) -> None:
        """Everybody has set its files aside: begin as a new cluster, in which they are stale."""
        ctx, members = self._ctx, self._ctx.members
        self._membership.numbers.found()
        self._membership.install(
            msgspec.structs.replace(
                members,
                version=members.version + 1,
                cluster_id=new_cluster_id(ctx),
                state=ClusterState.ACTIVE,
                missing=(),
                stable=None,
                recovery=None,
                given_up=members.cluster_id,
            )
        )

    # -- operators ------------------------------------------------------------------------

    def document(self) -> dict[str, object] | None:
        """How the recovery stands, for status; None when there is none."""
        recovery, files = self._ctx.members.recovery, self._files
        if self._ctx.members.version == 0 and self._found is not None:
            recovery = recovery_of(self._found.members)
        if recovery is None:
            return None
        word = self._word or self._first_word(recovery)
        own_total, own_loaded = (0, 0) if files is None else (files.bytes_total, files.bytes_loaded)
        return {
            "phase": word.phase.value,
            "members_expected": len(recovery.expected),
            "members_here": len(recovery.expected) - len(word.missing),
            "missing": list(word.missing),
            "bytes_total": word.bytes_total + own_total,
            "bytes_loaded": word.bytes_loaded + own_loaded,
            "reason": word.reason,
        }

    def _first_word(self, recovery: Recovery) -> RecoveryWord:
        """What our own list says before the master has told us anything."""
        here = self._ctx.is_member
        missing = tuple(one.id for one in recovery.expected if not here(one.id))
        if self._ctx.members.version == 0:
            missing = tuple(one for one in missing if one != self._ctx.id)
        return RecoveryWord(RecoveryPhase.VALIDATING, missing, reason="the members gather")

    def force_start(self) -> None:
        """As master: everybody begins empty. Asked again it changes nothing.

        Raises:
            IllegalStateError: Nothing recovers, or this is not the master, or all is loaded.
        """
        recovery, _ = self._ruled()
        if recovery.order:
            raise IllegalStateError("every member has loaded its files, and the cluster starts")
        if not recovery.is_given_up:
            self._ctx.note("recovery.given_up", "warning")
            self._change(is_given_up=True)

    def partial_start(self) -> None:
        """As master: go on with the members that are here, if the policy allows it.

        Raises:
            IllegalStateError: Nothing recovers, or this is not the master, or somebody is missing
                and the policy is to wait for all.
        """
        recovery, gathering = self._ruled()
        if recovery.order or recovery.is_given_up:
            return
        missing = gathering.missing()
        policy = self._settings.recovery_policy
        if missing and policy == "FULL_RECOVERY_ONLY":
            raise IllegalStateError(
                f"{POLICY_KEY} is {policy}, and {len(missing)} of {len(recovery.expected)} members "
                f"are missing: {', '.join(missing)}"
            )
        if missing and not gathering.decide():
            raise IllegalStateError("no member that is here has told of its files yet; try again")
        self._ctx.arm(RECOVERY_TIMER, 0)

    def _ruled(self) -> tuple[Recovery, Gathering]:
        recovery, gathering = self._ctx.members.recovery, self._gathering
        if recovery is None or not self._is_member():
            raise IllegalStateError("nothing recovers here")
        if gathering is None:
            raise IllegalStateError("this member is not the master of the recovery")
        return recovery, gathering


def _wanted(rows: Rows, me: MemberId) -> dict[PartitionId, ReplicaIndex]:
    """Where a member stands in some rows."""
    return {row.partition_id: index_in(row.row, me) for row in rows if me in row.row}
