"""The fragments of one member: made, held, discarded and freed here and nowhere else.

A fragment that is held stands in its partition; with one that goes, everything that was known of it
goes, and a large store is freed in pieces whichever way it went. What was destroyed is remembered
by its number, so that no late copy brings it back (D11).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, Namespace, PartitionId, split_namespace
from whimbrel.core.messages import FragmentPart
from whimbrel.core.replication.backups_out import PREFIX, BackupsOut, encode, make_head
from whimbrel.core.replication.comparison import COPY_FIGURES
from whimbrel.core.replication.deferred_free import DeferredFree
from whimbrel.core.replication.doubts import Doubts
from whimbrel.core.replication.fragments import Fragment, Observer, PartitionReplica, Store
from whimbrel.core.replication.kept import Kept
from whimbrel.core.replication.key_logs import KeyLogs
from whimbrel.core.replication.outbox import Reply, Tail, make_tail
from whimbrel.core.replication.shortage import Shortage
from whimbrel.core.replication.vectors import make_lineage
from whimbrel.errors import SerializationError

_pack_prefix = PREFIX.pack

StoreFactory = Callable[[Namespace], Store]


class FragmentDisk(Protocol):
    """The disk, as far as fragments are kept there; sets ``log`` of those that it follows."""

    def hold(self, fragment: Fragment) -> None:
        """It is held from now on: all of it, and each change, belongs on the disk."""

    def drop(self, fragment: Fragment) -> None:
        """It is held no longer."""

    def stage(self, fragment: Fragment, chunk: bytes, *, is_last: bool) -> None:
        """A chunk of a copy that may be held later has arrived."""

    def unstage(self, fragment: Fragment) -> None:
        """A copy that was staged, or was not, will not be held."""

    def when_durable(self, then: Callable[[], None]) -> None:
        """Call this once all that has happened so far is durable."""

    def try_again(self) -> None:
        """Another disk takes things again; if this one does not, see whether it does, too."""

    def expire(self, before_us: int) -> int:
        """Fail replies that wait for it since before that moment; returns how many."""

    @property
    def unfinished(self) -> int:
        """Fragments that are held and of which it does not have everything yet."""


class Holdings:
    """The only owner of fragments, and what is known of them.

    Attributes:
        partitions: By partition id.
        outgoing: Where changes of ours go.
        shortage: Which of our fragments have too few backups.
        doubts: Which of them may differ from their primary's.
        deferred: What is freed in pieces; stores give it what a ``clear`` leaves behind.
        kept: Fragments that are no replica, as base of copies to us.
        key_logs: Which keys have changed since somebody left who may return.
        bounds: Of comparisons.
        copies: What is counted of copies that are given, by name.
        heads: By sender, the heads of its backup operations that were checked, and the fragments
            that they lead to; valid until a row, a lineage or a fragment changes.
        disk: Where persistent fragments are kept as well, None where nothing is.
    """

    def __init__(
        self,
        ctx: Context,
        partitions: Sequence[PartitionReplica],
        outgoing: BackupsOut,
        shortage: Shortage,
        doubts: Doubts,
    ) -> None:
        self._ctx = ctx
        self.outgoing = outgoing
        self.shortage = shortage
        self.doubts = doubts
        self.partitions = partitions
        self.deferred = DeferredFree(ctx)
        self.kept = Kept(self)
        self.key_logs = KeyLogs(ctx, partitions, self._attach)
        self.bounds = ctx.settings.comparison
        self.copies = dict.fromkeys(COPY_FIGURES, 0)
        self.returns: Callable[[PartitionId], bool] = lambda _pid: False
        """Whether we lose a row only on its way to one that we stand in."""
        self.heads: dict[MemberId, dict[bytes, Fragment]] = {}
        self.disk: FragmentDisk | None = None
        self._factories: dict[str, StoreFactory] = {}
        """By kind of structure."""
        self._generations: dict[Namespace, int] = {}
        """Of namespaces that were destroyed, the number of the latest destruction."""
        self._begun: dict[Namespace, None] = {}
        """Namespaces of which something may be held here."""
        self._observers: tuple[Observer, ...] = ()

    def register(self, kind: str, factory: StoreFactory) -> None:
        """Let structures of a kind keep fragments here; the factory gives an empty store."""
        self._factories[kind] = factory

    # -- fragments ------------------------------------------------------------------------

    def make(
        self, pid: PartitionId, namespace: Namespace, part: FragmentPart | None = None
    ) -> Fragment:
        """An empty fragment that nobody holds yet, for the copy that a part is of, or of today.

        Raises:
            SerializationError: We have no structures of this kind.
        """
        if part is not None:
            return self.make_as(pid, namespace, part.settings, part.generation)
        settings = self._ctx.settings.structure_of(namespace)
        counts = (settings.backup_count, settings.async_backup_count)
        return self.make_as(pid, namespace, counts, self._generations.get(namespace, 0))

    def make_as(
        self, pid: PartitionId, namespace: Namespace, counts: tuple[int, int], generation: int
    ) -> Fragment:
        """The same with these backups (sync, async), begun after that destruction.

        Raises:
            SerializationError: We have no structures of this kind.
        """
        factory = self._factories.get(split_namespace(namespace)[0])
        if factory is None:
            raise SerializationError(f"no service is responsible for {namespace}")
        return Fragment(pid, namespace, factory(namespace), *counts, generation)

    def begin(self, partition: PartitionReplica, namespace: Namespace) -> Fragment:
        """The primary's fragment, made and counted from zero when it is not there."""
        found = partition.fragments.get(namespace)
        if found is not None:
            return found
        check(partition.is_primary, "only a primary begins a fragment")
        fragment = self.make(partition.pid, namespace)
        # A name of its own for each beginning: see vectors.make_lineage.
        name = f"{self._ctx.id}@{self._ctx.started_us}/{self._ctx.next_number()}"
        fragment.lineage = make_lineage(partition.version, name)
        self.hold(partition, fragment)
        self.outgoing.refresh_targets(partition)
        return fragment

    def hold(self, partition: PartitionReplica, fragment: Fragment) -> bool:
        """Hold a fragment, in place of the one of its namespace, unless it was destroyed meanwhile.

        A copy, and a backup operation, may have been under way when its sender and we heard of
        the destruction; what was destroyed must not come back with it.

        A copy under the same lineage counts no less than what it replaces. A migration copies while
        writes wait, and its primary sends us nothing before we have committed; a sync is given all
        that passes meanwhile, and replaces nothing else than what it was asked for.

        Returns:
            Whether it is held; if not it is freed.
        """
        namespace = fragment.namespace
        if self.is_destroyed(namespace, fragment.generation):
            self.free(fragment)
            return False
        self.destroy(namespace, fragment.generation)
        held = partition.fragments.get(namespace)
        check(
            held is None or not fragment.is_behind(held),
            "a copy counts no less than what it replaces",
        )
        self._begun[namespace] = None
        self.discard(partition, namespace)
        partition.fragments[namespace] = fragment
        self.follow(fragment)
        for observer in self._observers:
            observer.held(partition, fragment)
        return True

    def follow(self, fragment: Fragment) -> None:
        """See that the disk and observers hear of the changes of a fragment that is held."""
        self.key_logs.end(fragment)
        if self.disk is not None:
            self.disk.hold(fragment)
        if self._observers or fragment.log is not None:
            self._attach(fragment)
        self.key_logs.held(fragment)

    def discard(self, partition: PartitionReplica, namespace: Namespace) -> None:
        """Hold a fragment no longer; its vector (bug 34) and all that is noted of it go, too."""
        fragment = self._let_go(partition, namespace)
        if fragment is not None:
            self.free(fragment)

    def give_up(self, partition: PartitionReplica, namespace: Namespace) -> None:
        """Our row asks for a fragment no more: discard it, unless the row leads back (APR-42)."""
        if self.returns(partition.pid):
            self.keep(partition, namespace)
        else:
            self.discard(partition, namespace)

    def keep(self, partition: PartitionReplica, namespace: Namespace) -> None:
        """Hold a fragment no longer, and keep it as base of a copy to us."""
        fragment = self._let_go(partition, namespace)
        if fragment is not None:
            self.kept.keep(fragment)

    def _let_go(self, partition: PartitionReplica, namespace: Namespace) -> Fragment | None:
        """The fragment, which nobody holds any more."""
        fragment = partition.fragments.pop(namespace, None)
        if fragment is not None:
            self.key_logs.end(fragment)
            self.shortage.close_fragment(fragment)
            self.doubts.forget(fragment)
            self.forget_heads()
            for observer in self._observers:
                observer.discarded(partition, fragment)
            if self.disk is not None:
                self.disk.drop(fragment)
        return fragment

    def free(self, fragment: Fragment) -> None:
        """Give back the memory of a fragment that nobody holds."""
        if self.disk is not None:
            self.disk.unstage(fragment)
        self.deferred.take(fragment.store.release())

    def is_destroyed(self, namespace: Namespace, generation: int) -> bool:
        """Whether what was begun after that destruction has been destroyed by a later one."""
        return generation < self._generations.get(namespace, 0)

    def destroy(self, namespace: Namespace, generation: int) -> None:
        """Discard what a structure held before the destruction of this number, everywhere."""
        if generation <= self._generations.get(namespace, 0):
            return
        self._generations[namespace] = generation
        self.kept.forget(namespace)
        if namespace not in self._begun:
            return
        del self._begun[namespace]
        for partition in self.partitions:
            if namespace in partition.fragments:
                self.discard(partition, namespace)
                self.doubts.announce(partition)
        self.shortage.forget(namespace)

    def is_on_disk(self, namespace: Namespace) -> bool:
        """Whether what we hold of a structure is kept on our disk as well."""
        return self.disk is not None and self._ctx.settings.is_persistent(namespace)

    def make_tail(self) -> Tail | None:
        """Where the last frames of a link are kept; None where they are not."""
        return make_tail(self._ctx.settings)

    # -- changes --------------------------------------------------------------------------

    def change(
        self, partition: PartitionReplica, fragment: Fragment, operation: bytes, reply: Reply
    ) -> None:
        """Count a change that was made here as primary, and send it to the backups (AE-02, AE-04).

        ``operation`` is the store's backup operation; the ``remaining`` of a reply that waits for
        it rises by the acknowledgements that will come, of backups and of the disk.
        """
        count, log = fragment.backup_count, fragment.log
        if not count:
            if log is not None:
                log.append(fragment.value, operation, reply)
            for follow in fragment.others:
                follow(fragment, operation, b"")
            return
        value = fragment.value + 1
        if log is not None:
            log.append(value, operation, reply)
        fragment.value = value
        targets = fragment.sync_targets
        if not targets and not fragment.others:
            return
        head = fragment.head or make_head(partition, fragment)
        ack_to = b"" if reply is None else reply.ack_to
        if count == 1:
            length = 16 + len(ack_to) + len(head) + len(operation)
            prefix = _pack_prefix(length, len(head), 1, 1 if ack_to else 0, value)
            record = b"".join((prefix, ack_to, head, operation))
        else:
            record = encode(fragment, head, operation, ack_to)
        self.outgoing.has_backups = True
        for outbox in targets:
            outbox.operations.append(record)
            outbox.replies.append(reply)
        if fragment.others:
            if ack_to:
                record = encode(fragment, head, operation, b"")
            for follow in fragment.others:
                follow(fragment, operation, record)
        if reply is not None:
            reply.remaining += len(targets)
            reply.partition_id = partition.pid

    # -- observers ------------------------------------------------------------------------

    def observe(self, observer: Observer) -> None:
        """Tell an observer what is held now, and each change from now on."""
        self._observers = (*self._observers, observer)
        self.outgoing.observers = (
            *self.outgoing.observers,
            lambda fragment, operation, _record: observer.changed(fragment, operation),
        )
        for partition in self.partitions:
            for fragment in partition.fragments.values():
                self._attach(fragment)
                observer.held(partition, fragment)
            if partition.is_primary:
                self.outgoing.refresh_targets(partition)

    def _attach(self, fragment: Fragment) -> None:
        """Have the changes written down and told that come to a fragment from its primary."""

        def apply(buffer: bytes, start: int, end: int) -> None:
            fragment.store.apply(buffer, start, end)
            self.applied(fragment, fragment.value + 1, buffer[start:end])

        fragment.apply = apply

    def applied(self, fragment: Fragment, counter: int, operation: bytes) -> None:
        """An operation that came from the primary has been carried out on the store."""
        if fragment.log is not None:
            fragment.log.append(counter, operation, None)
        for observer in self._observers:
            observer.changed(fragment, operation)

    # -- heads ----------------------------------------------------------------------------

    def forget_heads(self) -> None:
        """Check every head anew: a row, a lineage or a fragment has changed."""
        for heads in self.heads.values():
            heads.clear()

    def forget_sender(self, member: MemberId) -> None:
        """The member is off the list."""
        self.heads.pop(member, None)
