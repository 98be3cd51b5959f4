"""What the master of a recovery has been told, and what follows from it.

Knows who is here with which files, who is waited for and until when, and what was ordered. It asks
nobody and sends nothing; a new master begins another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import msgspec

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId
from whimbrel.core.messages import (
    FilesTold,
    RecoveryOrdered,
    RecoveryTold,
    RegistryEntry,
)
from whimbrel.core.model import (
    Loss,
    MemberList,
    Numbering,
    Recovery,
    RecoveryPhase,
    RecoveryWord,
    RowState,
)
from whimbrel.core.partition.table import PartitionTable
from whimbrel.core.recovery.decision import Finding, Rows, choose, recovery_of, with_moved

OTHER_CLUSTER = "its files are of another cluster"
LATE = "it has not loaded in time"


@dataclass(slots=True, eq=False)
class _Teller:
    """A member of the recovery."""

    told: RecoveryTold = field(default_factory=RecoveryTold)
    """Its last word."""
    files: FilesTold | None = None
    rows: Rows = ()
    losses: tuple[Loss, ...] = ()
    barred: str = ""
    """Why its files do not count, empty when they do."""
    ordered: str = ""
    """The order that it was sent last, and when."""
    ordered_us: int = 0

    @property
    def counts(self) -> bool:
        """Whether its files may be chosen."""
        return self.files is not None and not self.barred and not self.told.has_none

    @property
    def is_heard(self) -> bool:
        """Whether it has said what it has."""
        return self.files is not None or self.told.has_none


class Gathering:
    """What one master of a recovery knows."""

    def __init__(self, ctx: Context, until_us: int) -> None:
        """Begin knowing nothing.

        Args:
            ctx: Shared with the other rooms; its list is one of a recovery as long as this lives.
            until_us: How long whoever is missing is waited for before anything is ordered.
        """
        self._ctx, self._settings = ctx, ctx.settings.persistence
        self._until_us, self._since_us = until_us, ctx.now_us
        self._tellers: dict[MemberId, _Teller] = {}
        self._order: RecoveryOrdered | None = None
        self._ordered_us = 0
        self._has_taken_registry = False

    @property
    def _recovery(self) -> Recovery:
        return self._ctx.members.recovery or recovery_of(self._ctx.members)

    # -- what is told ---------------------------------------------------------------------

    def take(self, sender: MemberId, told: RecoveryTold) -> MemberList | None:
        """Note a member's word.

        Returns:
            The list in its files, when that is newer than any told of before: then others are
            expected, and what was ordered is void.

        Raises:
            ProtocolError: What it says of its table breaks a rule; nothing was noted.
        """
        teller = self._tellers.get(sender) or _Teller()
        newest = None
        if told.files is not None and teller.files is None:
            newest = self._note(teller, told.files)
        self._tellers[sender] = teller
        teller.told = msgspec.structs.replace(told, files=None)
        teller.barred = told.damage or teller.barred
        return newest

    def _note(self, teller: _Teller, files: FilesTold) -> MemberList | None:
        table = PartitionTable(self._ctx.settings.partition_count)
        rows = table.take_image(files.image)
        teller.rows = tuple(sorted((row for row in rows if row.version), key=_partition))
        teller.losses = tuple(table.losses.values())
        teller.files = files
        if files.list.cluster_id != self._ctx.members.cluster_id:
            teller.barred = OTHER_CLUSTER
            return None
        recovery = self._recovery
        is_open = not (recovery.order or recovery.is_given_up)
        if not is_open or files.list.version <= recovery.list_version:
            return None
        self._order = None
        return files.list

    def list_after(self, newest: MemberList) -> MemberList:
        """The next list: a recovery of the cluster that had this one."""
        members = self._ctx.members
        return msgspec.structs.replace(
            members,
            version=max(members.version, newest.version) + 1,
            cluster_version=newest.cluster_version,
            missing=newest.missing,
            recovery=recovery_of(newest),
            stable=newest.stable,
        )

    def forget(self, left: Iterable[MemberId]) -> None:
        """These processes are no members any more; their successors will be asked anew."""
        for member in left:
            self._tellers.pop(member, None)

    def has_files(self, member: MemberId) -> bool:
        """Whether we know what the files of a member are of."""
        teller = self._tellers.get(member)
        return teller is not None and teller.files is not None

    def missing(self) -> tuple[MemberId, ...]:
        """Who is expected and has not told of its files, or that it has none, in list order."""
        heard = self._tellers
        return tuple(
            info.id
            for info in self._recovery.expected
            if info.id not in heard or not heard[info.id].is_heard
        )

    def _all_heard(self) -> bool:
        heard = self._tellers
        return all(one in heard and heard[one].is_heard for one in self._ctx.members.ids())

    # -- deciding -------------------------------------------------------------------------

    def must_decide(self) -> bool:
        """Whether an order can be given now, or another one has to be."""
        if self._order is None or self._has_lost_files():
            return not self.missing() and self._all_heard()
        if self._settings.recovery_policy == "FULL_RECOVERY_ONLY":
            return False
        barred = [one for one, teller in self._tellers.items() if teller.barred]
        return any(member in self._order.chosen for member in barred)

    def _has_lost_files(self) -> bool:
        """Whether somebody who was to load files has come again without any.

        Nobody waits for files that are gone, under any policy: as little as when they had been
        gone before the order.
        """
        return any(
            teller.told.has_none and self._is_needed(member)
            for member, teller in self._tellers.items()
            if self._order is not None and member in self._order.chosen
        )

    def is_late(self) -> bool:
        """Whether the time for the present phase is over.

        Whoever is here is heard first: this member may have become master a moment ago.
        """
        if self._order is None:
            end_us = self._until_us
        else:
            end_us = self._ordered_us + self._settings.data_load_timeout_us
        patience_us = self._ctx.settings.heartbeat_timeout_us
        now_us = self._ctx.now_us
        is_heard = self._all_heard() or now_us >= max(end_us, self._since_us) + patience_us
        return now_us >= end_us and is_heard

    def bar_late(self) -> None:
        """The files of those that have not loaded by now do not count."""
        if self._order is not None:
            for member in self._unfinished():
                if member in self._tellers:
                    self._tellers[member].barred = LATE

    def decide(self) -> bool:
        """Order, with the files of those that are here.

        Returns:
            False when there are none that count.
        """
        ctx, recovery, policy = self._ctx, self._recovery, self._settings.recovery_policy
        counting = {one: teller for one, teller in self._tellers.items() if teller.counts}
        lite = {info.id for info in ctx.members.members if info.lite}
        if policy == "FULL_RECOVERY_ONLY":
            expected = {info.id for info in recovery.expected}
            counting = {k: v for k, v in counting.items() if k in expected or k in lite}
        findings = [
            Finding(one, teller.files.list, teller.rows, one in lite)
            for one, teller in counting.items()
            if teller.files is not None
        ]
        if not findings:
            return False
        choice = choose(policy, findings)
        table = table_of(
            ctx.settings.partition_count, with_moved(choice.rows, recovery.expected, ctx.members)
        )
        for member in choice.chosen:
            table.take_losses(counting[member].losses)
        name = ctx.next_name("recovery")
        self._order = RecoveryOrdered(name, choice.chosen, table.image())
        self._ordered_us = ctx.now_us
        left_out = [one for one in ctx.members.ids() if one not in choice.chosen]
        ctx.note(
            "recovery.ordered",
            chosen=len(choice.chosen),
            left_out=", ".join(left_out),
            tables=choice.tables,
        )
        return True

    # -- carrying out ---------------------------------------------------------------------

    @property
    def order_name(self) -> str:
        """Of what is ordered, empty when nothing is."""
        return "" if self._order is None else self._order.order

    def order_for(self, member: MemberId) -> RecoveryOrdered | None:
        """What a member has to be sent, because it shows that it has not got it."""
        order, teller, now_us = self._order, self._tellers.get(member), self._ctx.now_us
        recovery = self._recovery
        if order is None or teller is None or recovery.order or recovery.is_given_up:
            return None
        if teller.told.order == order.order:
            return None
        is_on_its_way = teller.ordered == order.order
        if is_on_its_way and now_us - teller.ordered_us < self._ctx.settings.call_timeout_us:
            return None
        teller.ordered, teller.ordered_us = order.order, now_us
        return order

    def is_done(self) -> bool:
        """Whether everybody has done what there is to do: loaded, or set its files aside."""
        present = self._ctx.members.ids()
        if self._recovery.is_given_up:
            tellers = [self._tellers.get(one) for one in present]
            return all(one is not None and one.told.has_none for one in tellers)
        return self._order is not None and not self._unfinished() and not self._unaware()

    def _unfinished(self) -> list[MemberId]:
        """The chosen that have not loaded what was ordered; a lite member has nothing to load."""
        if self._order is None:
            return []
        return [one for one in self._order.chosen if self._is_needed(one) and not self._has(one)]

    def _is_needed(self, member: MemberId) -> bool:
        info = self._ctx.members.get(member)
        if info is not None:
            return not info.lite
        return any(one.id == member for one in self._recovery.expected)

    def _has(self, member: MemberId) -> bool:
        teller = self._tellers.get(member)
        return teller is not None and teller.told.order == self.order_name and teller.told.is_done

    def _unaware(self) -> list[MemberId]:
        """Members that have not got the order; who is left out need not have finished with it."""
        told = {one: teller.told.order for one, teller in self._tellers.items()}
        return [one for one in self._ctx.members.ids() if told.get(one) != self.order_name]

    # -- starting -------------------------------------------------------------------------

    def take_registry(self, chosen: Collection[MemberId]) -> list[RegistryEntry]:
        """What the files of the chosen know of structures, once, when all have told it."""
        if self._has_taken_registry or not all(self.has_files(one) for one in chosen):
            return []
        self._has_taken_registry = True
        return [entry for files in self._files_of(chosen) for entry in files.registry]

    def has_started(self) -> bool:
        """Whether everybody has this list, with which the rows are in force."""
        version, tellers = self._ctx.members.version, self._tellers
        return self._has_taken_registry and all(
            one in tellers and tellers[one].told.list_version >= version
            for one in self._ctx.members.ids()
        )

    def numbering(self) -> Numbering | None:
        """The latest decision on numbers that anybody's files know, chosen or not: what was given
        once is not given again.
        """
        ours = self._ctx.members.cluster_id
        told = [teller.files for teller in self._tellers.values() if teller.files is not None]
        known = [
            one.numbering
            for one in told
            if one.numbering is not None and one.list.cluster_id == ours
        ]
        return max(known, key=lambda one: (one.decision, one.free), default=None)

    def _files_of(self, chosen: Collection[MemberId]) -> list[FilesTold]:
        found = [teller.files for one, teller in self._tellers.items() if one in chosen]
        return [files for files in found if files is not None]

    # -- telling --------------------------------------------------------------------------

    def word(self, to: MemberId) -> RecoveryWord:
        """How things stand, for one member."""
        others = [teller.told for one, teller in self._tellers.items() if one != to]
        recovery = self._recovery
        if recovery.order or recovery.is_given_up:
            phase = RecoveryPhase.STARTING
        else:
            is_ordered = self._order is not None
            phase = RecoveryPhase.LOADING if is_ordered else RecoveryPhase.VALIDATING
        return RecoveryWord(
            phase,
            self.missing(),
            sum(told.bytes_total for told in others),
            sum(told.bytes_loaded for told in others),
            self._reason(phase),
        )

    def _reason(self, phase: RecoveryPhase) -> str:
        if self._recovery.is_given_up:
            return "the members set their files aside, to begin empty"
        if phase is RecoveryPhase.STARTING:
            return "all is loaded, the members take over the table"
        waiting = self._unfinished() if phase is RecoveryPhase.LOADING else self.missing()
        what = "to load" if phase is RecoveryPhase.LOADING else "to come"
        reasons = [f"waiting for these {what}: {self._named(waiting)}"] if waiting else []
        reasons += [f"{self._named([k])}: {v.barred}" for k, v in self._tellers.items() if v.barred]
        return "; ".join(reasons)

    def failure(self) -> str:
        """Why the recovery is given up, as a sentence."""
        policy = self._settings.recovery_policy
        settings = self._settings
        missing, total = self.missing(), len(self._recovery.expected)
        if not any(teller.counts for teller in self._tellers.values()):
            why = "nobody who is here has files that can be loaded"
        elif self._order is None:
            why = f"members that did not come in time: {len(missing)} of {total}"
        else:
            missing = tuple(self._unfinished())
            seconds = settings.data_load_timeout_us / 1_000_000
            why = f"members that did not load their files within {seconds:g} s: {len(missing)}"
        who = f" ({self._named(missing)})" if missing else ""
        barred = [teller.barred for teller in self._tellers.values() if teller.barred]
        more = f"; {'; '.join(barred)}" if barred else ""
        return f"the recovery has failed: {why}{who}{more}; {policy} is the policy"

    def _named(self, members: Iterable[MemberId]) -> str:
        """Ids with the addresses that they have, or had."""
        places = {info.id: info.address for info in self._recovery.expected}
        places |= {info.id: info.address for info in self._ctx.members.members}
        return ", ".join(f"{one} at {places[one]}" if one in places else one for one in members)


def table_of(partition_count: int, rows: Iterable[RowState]) -> PartitionTable:
    """A table of these rows, which is nobody's."""
    table = PartitionTable(partition_count)
    for row in rows:
        if row.version:
            table.set_row(row.partition_id, row.row, row.version)
    return table


def _partition(row: RowState) -> int:
    return row.partition_id
