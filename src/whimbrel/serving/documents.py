"""What one member can tell about itself, as JSON documents asked for by name.

Each document is made from this member's own state, at once and without waiting; whoever needs
the whole cluster's (``whimbrel.admin``) asks every member and combines. Knows shapes, no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from whimbrel.core.ids import MemberId, Namespace, Row, namespace_of, split_namespace
from whimbrel.core.member import Member
from whimbrel.core.model import NO_NUMBER, ClusterState
from whimbrel.core.registry import backups_of
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.stimuli import LeaveWanted
from whimbrel.errors import UsageError
from whimbrel.serving import losses
from whimbrel.serving.audit_orders import AuditOrders
from whimbrel.serving.backup_orders import BackupOrders
from whimbrel.serving.dry_run import PlanQuestion, dry_run
from whimbrel.serving.protection import Protection
from whimbrel.serving.questions import Document, MemberOrder, Questions, decoded
from whimbrel.serving.role_orders import RoleOrders

NAMES_MAX = 1_000
"""Structures in one question about sizes; who wants more asks again."""
LEAVE_ORDER_US = 10_000_000
"""For so long a member that was ordered to leave counts as leaving before it has asked."""
PROCESS_NAMES = ("active", "queued", "planned", "completed", "failed")
"""The figures of a process that ``status`` shows."""

_encode = msgspec.json.Encoder().encode


class StateWish(msgspec.Struct, frozen=True):
    """A wished change of what the whole cluster agreed on; empty fields stay as they are."""

    wish: str
    """Name of the wish: asked again under it, the document tells what became of it."""
    state: str = ""
    cluster_version: str = ""


class SeenOrder(msgspec.Struct, frozen=True):
    """An operator has seen the losses of this name, and no others."""

    name: str


class SizesQuestion(msgspec.Struct, frozen=True):
    """Names the structures whose sizes are asked."""

    namespaces: tuple[Namespace, ...]


class SafetyQuestion(msgspec.Struct, frozen=True):
    """Asks a member for what safety needs of it."""

    is_settled: bool = True
    """Whether the master is at rest. While it is not, nobody is safe and the costly part, which
    is linear in the partitions, is left out: people ask often while much is going on."""


class Documents:
    """The documents of one member; each is told to whoever asks by its name."""

    def __init__(self, member: Member, protection: Protection, questions: Questions) -> None:
        self._member = member
        self._protection = protection
        roles = RoleOrders(member)
        backups = self._backups = BackupOrders(member)
        audits = AuditOrders(member)
        self._ordered_us: dict[MemberId, int] = {}
        """As master: when members were ordered to leave that may not have asked yet."""
        told: dict[str, Callable[[bytes], object]] = {
            "members": self.members,
            "partitions": self.partitions,
            "safety": self.safety,
            "readiness": self.readiness,
            "serving": self.serving,
            "master": self.master,
            "migrations": self.migrations,
            "structures": self.structures,
            "sizes": self.sizes,
            "partition_bytes": self.partition_bytes,
            "plan": self.plan,
            "leave": self.leave,
            "may_leave": self.may_leave,
            "change_cluster": self.change_cluster,
            "cluster_state": self.cluster_state,
            "compare": self.compare,
            "losses": self.losses,
            "see_losses": self.see_losses,
            "recovery": self.recovery,
            "recovery.force_start": self.force_start,
            "recovery.partial_start": self.partial_start,
            "promote": roles.promote,
            "demote": roles.demote,
            "role": roles.role,
            "backups": backups.backups,
            "backup.start": backups.start,
            "backup.job": backups.job,
            "backup.set_schedule": backups.set_schedule,
            "audit.start": audits.start,
            "audit.job": audits.job,
            "audit.cancel": audits.cancel,
        }
        questions.documents |= {name: _as_json(make) for name, make in told.items()}

    # -- looking --------------------------------------------------------------------------

    def members(self, _: bytes = b"") -> object:
        """This member's own list, oldest first."""
        members = self._member.ctx.members
        return [
            {
                "uuid": info.id,
                "address": str(info.address),
                "lite": info.lite,
                "master": info.id == members.master,
                "version": info.version,
                "host": info.host,
                "zone": info.zone,
                "admin_port": info.admin_port,
            }
            for info in members.members
        ]

    def partitions(self, _: bytes = b"") -> object:
        """This member's own table; holes at a row's end are left out."""
        table = self._member.migrations.table
        rows = [
            {"version": version, "replicas": _trimmed(row)}
            for row, version in zip(table.rows, table.versions, strict=True)
        ]
        # Text, because readers of JSON in other languages round 64-bit numbers.
        return {
            "count": table.partition_count,
            "cluster_version": self._member.ctx.members.cluster_version,
            "version": self._member.migrations.table_version,
            "stamp": str(table.stamp),
            "rows": rows,
        }

    def safety(self, arguments: bytes = b"") -> object:
        """Whether this member's replicas are in step, as far as it knows itself."""
        member = self._member
        word = member.safety.member_word(decoded(arguments, SafetyQuestion).is_settled)
        return {
            **msgspec.structs.asdict(word),
            "writes_short_of_backups": member.dataplane.shortage.total,
            "has_number": member.membership.numbers.number != NO_NUMBER,
        }

    def readiness(self, _: bytes = b"") -> object:
        """Whether every replica this member should hold is there and in step; why not."""
        reason = self._member.safety.unready_because()
        return {"ready": not reason, "reason": reason}

    def serving(self, _: bytes = b"") -> object:
        """Whether clients may be sent to this member; why not.

        It answers them as long as it is on a list, whatever its copies and the cluster state are.
        One that leaves answers still, and wants no new ones.
        """
        reason = self._member.safety.not_serving_because()
        return {"serving": not reason, "reason": reason}

    def master(self, _: bytes = b"") -> object:
        """What only the master knows: its migration process, and whether anything is due."""
        member = self._member
        migrations = member.migrations
        progress = migrations.progress()
        return {
            **msgspec.structs.asdict(member.safety.master_word()),
            "degraded": member.safety.degraded_because(),
            "migrations": {name: progress[name] for name in PROCESS_NAMES},
            "losses": losses.summary_of(migrations.losses.unseen()),
            "split_brain_protection": self._protection.document(),
            "cluster_version": member.ctx.members.cluster_version,
            "backups": self._backups.backups() if member.persistence.is_enabled else None,
        }

    def cluster_state(self, _: bytes = b"") -> object:
        """What this member's own list says the whole cluster agreed on."""
        members = self._member.ctx.members
        return {"state": members.state, "cluster_version": members.cluster_version}

    def migrations(self, _: bytes = b"") -> object:
        """The process under way and the finished ones of this master, oldest first."""
        migrations = self._member.migrations
        current = migrations.current_process()
        return {"current": current, "history": list(migrations.reporter.finished)}

    def structures(self, _: bytes = b"") -> object:
        """The live structures with their synchronous and asynchronous backups, by kind and name.

        And whether this member keeps them on disk, too, and how many failures each survives by this
        member's table; what lies in no partition is on no disk, and there it is not known.
        """
        member, survives = self._member, self._member.safety.survives_of
        return [
            {
                "name": entry.key,
                "kind": entry.kind,
                "backups": sum(backups_of(entry)),
                "async_backups": backups_of(entry)[1],
                "persistent": entry.kind in member.services
                and member.ctx.settings.is_persistent(namespace_of(entry.kind, entry.key)),
                "survives": survives(backups_of(entry)[0])
                if entry.kind in member.services
                else None,
            }
            for entry in member.registry.structures()
        ]

    def sizes(self, arguments: bytes) -> object:
        """Entries and bytes of structures in the partitions of which we are the primary.

        And the changes made here with too few backups (``replication.shortage``). By namespace,
        because structures of two kinds may share a name.

        Raises:
            UsageError: The question is malformed or names too many structures.
        """
        question = decoded(arguments, SizesQuestion)
        if len(question.namespaces) > NAMES_MAX:
            raise UsageError(f"sizes of at most {NAMES_MAX} structures may be asked at once")
        services, owned = self._member.services, self._owned()
        short = self._member.dataplane.shortage.counts()
        found: dict[Namespace, tuple[int, int, int]] = {}
        for namespace in question.namespaces:
            service = services.get(split_namespace(namespace)[0])
            if service is None:
                continue
            entries = sum(service.size(partition, namespace) for partition in owned)
            held = [one.fragments[namespace] for one in owned if namespace in one.fragments]
            size = sum(fragment.store.bytes_used for fragment in held)
            writes = short.get(namespace, 0)
            if entries or size or writes:
                found[namespace] = (entries, size, writes)
        return found

    def partition_bytes(self, _: bytes = b"") -> object:
        """Bytes of keys and values of each partition of which we are the primary."""
        found: dict[str, int] = {}
        for partition in self._owned():
            size = sum(part.store.bytes_used for part in partition.fragments.values())
            if size:
                found[str(partition.pid)] = size
        return found

    def losses(self, _: bytes = b"") -> object:
        """What this member's table says is lost and no operator has seen."""
        marks = self._member.migrations.losses
        return losses.document_of(marks.name(), marks.unseen())

    def plan(self, arguments: bytes) -> object:
        """What a join, a leave or a crash would move; changes nothing (FN-17).

        Raises:
            UsageError: A member is unknown, or the question makes no sense.
        """
        question = decoded(arguments, PlanQuestion)
        member = self._member
        return dry_run(
            question,
            rows=member.migrations.table.rows,
            members=member.ctx.data_members(),
            already_leaving=member.ctx.leaving,
            group_kind=member.ctx.settings.member_group,
            group_patterns=member.ctx.settings.member_group_patterns,
            depth=member.migrations.loop.replica_depth,
        )

    def leave(self, arguments: bytes) -> object:
        """Order this very member to leave gracefully; repeating the order is harmless.

        Raises:
            UsageError: The order names another member.
        """
        order = decoded(arguments, MemberOrder)
        if order.member != self._member.ctx.id:
            raise UsageError(f"this is not member {order.member}")
        self._member.apply(LeaveWanted(cause=self._member.ctx.cause))
        return {"leaving": True}

    def may_leave(self, arguments: bytes) -> object:
        """As master, before an order to leave: whether nobody would stay to take over the data.

        Of two orders at the same time the second one finds the first member leaving.
        """
        ctx, member = self._member.ctx, MemberId(decoded(arguments, MemberOrder).member)
        since_us = ctx.now_us - LEAVE_ORDER_US
        going = {one: us for one, us in self._ordered_us.items() if us > since_us}
        staying = [info.id for info in ctx.staying() if info.id not in going]
        is_data = any(info.id == member for info in ctx.data_members())
        is_last = is_data and all(one == member for one in staying)
        if not is_last:
            going[member] = ctx.now_us
        self._ordered_us = going
        return {"is_last": is_last}

    def change_cluster(self, arguments: bytes) -> object:
        """As master, begin a change of the cluster state, or tell what became of it (GCM-11).

        Raises:
            UsageError: There is no such state, or nothing is wished.
        """
        wish = decoded(arguments, StateWish)
        if not wish.wish or not (wish.state or wish.cluster_version):
            raise UsageError("a wish has a name, and a state or a cluster version")
        outcome = self._member.membership.change_cluster(
            wish.wish, state_of(wish.state) if wish.state else None, wish.cluster_version or None
        )
        return {
            "done": outcome.is_done,
            "refusal": outcome.refusal,
            "passing": outcome.is_passing,
        }

    def see_losses(self, arguments: bytes) -> object:
        """As master, take the unseen losses for acknowledged; ``done`` once every member has it.

        Raises:
            UsageError: This is not the master.
        """
        order = decoded(arguments, SeenOrder)
        migrations = self._member.migrations
        if not migrations.loop.in_charge or migrations.loop.recovery.running:
            raise UsageError("this member is not the master, or not yet")
        is_same = migrations.see_losses(order.name)
        return {"same": is_same, "done": is_same and migrations.is_published()}

    def recovery(self, _: bytes = b"") -> object:
        """How the recovery of the cluster stands, as this member knows; null when there is none."""
        return self._member.recovery.document()

    def force_start(self, _: bytes = b"") -> object:
        """As master, have everybody set its files aside and begin empty.

        Raises:
            IllegalStateError: Nothing recovers, or it is too late, or this is not the master.
        """
        self._member.recovery.force_start()
        return {"ordered": True}

    def partial_start(self, _: bytes = b"") -> object:
        """As master, go on from files with the members that are here.

        Raises:
            IllegalStateError: Nothing recovers, the policy is to wait for all, or this is not the
                master.
        """
        self._member.recovery.partial_start()
        return {"ordered": True}

    def compare(self, _: bytes = b"") -> object:
        """Order this member to have its replicas compared now; ``readiness`` tells the outcome."""
        self._member.dataplane.anti_entropy.compare_now()
        return {"comparing": True}

    # -- figures --------------------------------------------------------------------------

    def _owned(self) -> list[PartitionReplica]:
        return [part for part in self._member.dataplane.partitions if part.is_primary]


def state_of(text: str) -> ClusterState:
    """The cluster state of this name.

    Raises:
        UsageError: Nobody can ask for a state of this name.
    """
    names = [state.value for state in ClusterState if state is not ClusterState.IN_TRANSITION]
    if text not in names:
        raise UsageError(f"there is no cluster state {text!r}; it is one of {', '.join(names)}")
    return ClusterState(text)


def _as_json(make: Callable[[bytes], object]) -> Document:
    return lambda arguments: _encode(make(arguments))


def _trimmed(row: Row) -> list[MemberId | None]:
    replicas = list(row)
    while len(replicas) > 1 and replicas[-1] is None:
        replicas.pop()
    return replicas
