"""Rules of acknowledged data, whatever their structure: D1, D3, D6, D11, C5, R4."""

from __future__ import annotations

from typing import Any

from whimbrel.core.ids import MemberId, Namespace, PartitionId, Row, index_in
from whimbrel.core.messages import (
    MigrationCommitAnswered,
    MigrationCommitRequested,
    MigrationOpened,
    MigrationRequested,
    TransferAnswered,
    TransferSent,
)
from whimbrel.core.model import MigrationInfo
from whimbrel.core.replication.fragments import Store
from whimbrel.sim.history import ABSENT, Ledger, Operation, Outcome, Reply
from whimbrel.sim.host import Host
from whimbrel.sim.rule import Rule, Sightings
from whimbrel.sim.world import World

FEW_BACKUPS = "a write is acknowledged with fewer backups because the cluster is small"


class NothingLost(Rule):
    """D1 (promise table; Q): looked at on every ledger once the cluster rests."""

    rule = "D1"
    sentence = "no acknowledged write is lost while the harm stays within the promise"

    def quiet(self) -> None:
        """Q: the primary's store holds what was acknowledged."""
        if not self.world.data_is_promised():
            return
        for ledger in self.world.history.ledgers:
            if not ledger.owes or ledger.is_open:
                continue
            store = _primary_store(self.world, ledger)
            if ledger.lacks(store):
                self.fail(
                    f"{ledger.label} in p{ledger.partition_id} holds {ledger.shown(store)}, "
                    f"acknowledged was {ledger.acked!r}"
                )
                return


class NoResurrection(Rule):
    """D3 (promise table; Q): at rest a key holds the last acknowledged write, or an indeterminate
    one.
    """

    rule = "D3"
    sentence = "a key holds the last acknowledged write or an indeterminate one"

    def quiet(self) -> None:
        """Q."""
        if not self.world.data_is_promised():
            return
        for ledger in self.world.history.ledgers:
            if ledger.is_open:
                continue
            store = _primary_store(self.world, ledger)
            if not ledger.is_right(store):
                self.fail(
                    f"{ledger.label} in p{ledger.partition_id} holds {ledger.shown(store)}, "
                    f"last acknowledged is {ledger.acked!r}"
                )
                return


class CopyRemains(Rule):
    """D6 (ADL-20, ADL-46; ET): looked at whenever a member drops a replica or ends.

    A write of unknown outcome may take effect after one that was acknowledged later: then the store
    may show that one (``Ledger.lacks``).
    """

    rule = "D6"
    messages = (
        MigrationOpened,
        TransferSent,
        TransferAnswered,
        MigrationRequested,
        MigrationCommitRequested,
        MigrationCommitAnswered,
    )
    sentence = "of every acknowledged write a complete copy exists at any instant"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._partition_of: dict[str, PartitionId] = {}
        self._concerned: tuple[Host, PartitionId] | None = None
        self._entries = 0

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E: remember which partition a message about a migration concerns, and what is there."""
        self._concerned = None
        migration = getattr(message, "migration", None)
        pid: PartitionId | None = None
        if isinstance(migration, MigrationInfo):
            pid = self._partition_of[migration.id] = migration.partition_id
        else:
            transfer = getattr(message, "transfer", "")
            pid = self._partition_of.get(transfer or message.migration_id)
        if pid is not None:
            self._concerned = (host, pid)
            self._entries = host.entry_count(pid)

    def step(self, host: Host) -> None:
        """E: after a message of a migration that made a member hold less than before."""
        if self._concerned is None or self._concerned[0] is not host:
            return
        pid = self._concerned[1]
        self._concerned = None
        if host.entry_count(pid) < self._entries:
            self._look(pid, host)

    def row_settled(
        self, host: Host, pid: PartitionId, before: Row, after: Row, version: int
    ) -> None:
        """T."""
        mine = host.info.id
        index, index_after = index_in(before, mine), index_in(after, mine)
        if index >= 0 and (index_after < 0 or index_after > index):
            self._look(pid, host)

    def ended(self, host: Host, reason: str) -> None:
        """E."""
        for pid in range(self.world.plan.settings.partition_count):
            self._look(PartitionId(pid), host)

    def _look(self, pid: PartitionId, host: Host) -> None:
        world = self.world
        if not world.data_is_promised() or world.violations:
            return
        hosts = world.up_hosts()
        stores: dict[Namespace, list[Store | None]] = {}
        for ledger in world.history.by_partition[pid]:
            if not (ledger.owes and ledger.is_settled):
                continue
            held = stores.get(ledger.namespace)
            if held is None:
                there = [host.store_at(pid, ledger.namespace) for host in hosts]
                full = [one for one in there if one is not None and len(one)]
                held = stores[ledger.namespace] = [*full] or [None]
            if all(ledger.lacks(store) for store in held):
                self.fail(f"p{pid}: nobody holds {ledger.acked!r} any more", host.name)
                return


class NothingReturns(Rule):
    """D11 (AE-17; Q): what was destroyed stays away, whatever copies of it were under way."""

    rule = "D11"
    sentence = "no entry of a destroyed structure is there again"

    def quiet(self) -> None:
        """Q; not where a part that did not hear of it may be merged in."""
        if self.world.plan.profile.split:
            return
        for host in self.world.up_hosts():
            for ledger in self.world.history.destroyed:
                if not ledger.is_absent(_store(host, ledger)):
                    self.fail(f"p{ledger.partition_id} holds {ledger.label}", host.name)
                    break


class AnsweredAfterBackups(Rule):
    """R4 (promise table; H): when a client hears success, the copies it was promised exist."""

    rule = "R4"
    sentence = "a successful reply is sent after the required acknowledgements"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H: counted in the stores of all members, at the moment the client hears."""
        world = self.world
        if (
            operation.outcome is not Outcome.OK
            or operation.is_read
            or operation.effect == ABSENT
            or not world.is_calm_since(operation.invoked_us)
        ):
            return
        ledger = operation.ledger
        if ledger.unknown or not ledger.is_judged:
            return
        needed = 1 + min(world.plan.backup_count, len(world.places()) - 1)
        holders = [
            host.name for host in world.up_hosts() if ledger.keeps(_store(host, ledger), operation)
        ]
        if len(holders) < needed:
            names = ", ".join(holders) or "nobody"
            self.fail(f"{operation!r} of p{ledger.partition_id} is at {names}, {needed} are needed")


class FailedIsWithoutEffect(Rule):
    """C5 (design 0013; QH): every error but the indeterminate one, also those after which a call is
    made again.

    A write is looked for in the stores of all members when its client hears of the error, before
    it is made again, and in the end if it was not. A call that is made again and finds the value
    that only itself can have written has been carried out before (a putIfAbsent loses to itself).
    """

    rule = "C5"
    sentence = "a call that ends in an error has had no effect, unless the error says: unknown"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._failed: list[Operation] = []

    def denied(self, operation: Operation, error: str) -> None:
        """H."""
        self._look(operation, error)

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        if operation.is_read:
            return
        if reply.outcome is Outcome.OK and operation.seen == operation.number:
            self.fail(f"{operation!r} met itself, after {reply.attempts} attempts")
        elif reply.outcome is Outcome.FAILED:
            self._failed.append(operation)

    def quiet(self) -> None:
        """Q."""
        for operation in self._failed:
            self._look(operation, "failed")

    def _look(self, operation: Operation, error: str) -> None:
        if operation.is_read or operation.effect == ABSENT:
            return
        ledger = operation.ledger
        for host in self.world.up_hosts():
            if ledger.shows(_store(host, ledger), operation):
                self.fail(f"{operation!r} of p{ledger.partition_id}: {error}", host.name)
                return


def _primary_store(world: World, ledger: Ledger) -> Store | None:
    """What the primary in the master's table holds."""
    for host in world.up_hosts():
        if host.is_master:
            rows = host.member.migrations.table.rows
            primary = world.host_of(rows[ledger.partition_id][0])
            if primary is None:
                break
            return _store(primary, ledger)
    return None


def _store(host: Host, ledger: Ledger) -> Store | None:
    return host.store_at(ledger.partition_id, ledger.namespace)


class DataSightings(Sightings):
    """What was acknowledged, and by how many."""

    situations = (FEW_BACKUPS,)

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        is_write = operation.outcome is Outcome.OK and not operation.is_read
        if is_write and self.world.data_member_count() <= self.world.plan.backup_count:
            self.saw(FEW_BACKUPS)


RULES: tuple[type[Rule], ...] = (
    CopyRemains,
    NothingReturns,
    NothingLost,
    NoResurrection,
    AnsweredAfterBackups,
    FailedIsWithoutEffect,
    DataSightings,
)
