"""What locking a key of a map means, on the primary of its partition.

A lock lies in the map's own fragment (AE-36): it is changed by backup operations, copied, promoted
and destroyed with the entries, and travels wherever they go (AE-37). Nothing here waits: an attempt
that finds its key locked has had no effect, and whoever wants to wait waits for the stored key,
which is woken whenever it gets free.

A lease ends by the wall clock, as an entry's life does: at its new home it has as long to go as at
the old one, by the clocks of both.
"""

from __future__ import annotations

from typing import cast

from whimbrel.core.ids import Namespace
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.replication.outbox import Reply
from whimbrel.errors import IllegalMonitorStateError, RetryableError
from whimbrel.structures.map.locks import FREE, Locks, Owner
from whimbrel.structures.map.record import NEVER_MS, SPAN_MS_MAX, split_key, stored_key
from whimbrel.structures.map.store import MapStore


class KeyLockedError(RetryableError):
    """Somebody else holds the lock of a key; nothing has happened.

    Attributes:
        key: As whoever waits for it names it.
    """

    def __init__(self, key: bytes) -> None:
        super().__init__("somebody else holds the lock of this key")
        self.key = key


class KeyLocks:
    """The locks of all maps of one member.

    Attributes:
        ended: Leases that have ended here so far.
        freed: Locks of clients that were gone.
        dropped: Locks of a part that gave way after a split.
        held: How many there are at partitions of ours, as of the last round of ``sweep``.
        clients: Who held them then.
    """

    def __init__(self, plane: DataPlane) -> None:
        self._ctx = plane.ctx
        self._holdings = plane.holdings
        self._outgoing = plane.outgoing
        self._wakes = plane.wakes
        self.ended = self.freed = self.dropped = 0
        self.held = 0
        self.clients: dict[bytes, None] = {}
        self._seen_held = 0
        self._seen_clients: dict[bytes, None] = {}
        """Of the round under way."""
        self._dropped_told = 0

    # -- calls ----------------------------------------------------------------------------

    def lock(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        owner: Owner,
        lease_ms: int,
        reference: int,
        reply: Reply,
    ) -> None:
        """Lock a key, once more if the owner holds it already.

        Args:
            partition: Of the key.
            namespace: The map; the key need not be in it.
            key: Its Data.
            owner: Client and thread.
            lease_ms: When the lock ends by itself, from now on; negative for never.
            reference: Of the call: the owner's last one counts once, however often it comes.
            reply: Waits for the backups.

        Raises:
            RetryableError: We are not the primary, or the partition is migrating.
            OverloadedError: A backup cannot keep up.
            UsageError: The key is no serialized object.
            KeyLockedError: Another holds the key.
        """
        _, stored = split_key(key)
        self._outgoing.admit(partition, namespace)
        fragment = self._holdings.begin(partition, namespace)
        self._end_if_over(partition, fragment, stored)
        now_ms = self._ctx.wall_ms
        end_ms = now_ms + lease_ms if 0 <= lease_ms < SPAN_MS_MAX else NEVER_MS
        locks = cast("MapStore", fragment.store).locks or Locks()
        lock = locks.locked(stored, owner, reference, end_ms)
        if lock is None:
            raise KeyLockedError(stored)
        self._set(partition, fragment, stored, lock, reply)

    def unlock(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        owner: Owner,
        reference: int,
        reply: Reply,
    ) -> None:
        """Undo one ``lock`` of the owner's; the last one frees the key. Errors as of ``lock``.

        Raises:
            IllegalMonitorStateError: The owner does not hold the lock.
        """
        self._outgoing.admit(partition, namespace)
        stored = stored_key(key)
        fragment = partition.fragments.get(namespace)
        locks = None if fragment is None else cast("MapStore", fragment.store).locks
        if fragment is not None and locks is not None:
            self._end_if_over(partition, fragment, stored)
            lock = locks.given_back(stored, owner, reference)
            if lock is not None:
                self._set(partition, fragment, stored, lock, reply)
                self._wake_if_free(partition, fragment, stored)
                return
        raise IllegalMonitorStateError("the caller does not hold the lock of this key")

    def force_unlock(
        self, partition: PartitionReplica, namespace: Namespace, key: bytes, reply: Reply
    ) -> None:
        """Free a key, whoever holds it and however often. Errors as of ``lock``."""
        self._outgoing.admit(partition, namespace)
        fragment = partition.fragments.get(namespace)
        locks = None if fragment is None else cast("MapStore", fragment.store).locks
        stored = stored_key(key)
        if fragment is not None and locks is not None and stored in locks.held:
            self._set(partition, fragment, stored, FREE, reply)
            self._wake_if_free(partition, fragment, stored)

    def is_locked(self, partition: PartitionReplica, namespace: Namespace, key: bytes) -> bool:
        """Whether somebody holds the lock of a key."""
        fragment = partition.fragments.get(namespace)
        locks = None if fragment is None else cast("MapStore", fragment.store).locks
        return locks is not None and locks.is_locked(stored_key(key), self._ctx.wall_ms)

    # -- writes of entries ------------------------------------------------------------------

    def admit(
        self, partition: PartitionReplica, fragment: Fragment, stored: bytes, owner: Owner | None
    ) -> None:
        """Before a write of a map that has had locks: see whether the key's lets it pass.

        A write that passes leaves the key as free as it was, so the next one who waits is woken.

        Raises:
            KeyLockedError: Another than ``owner`` holds it; None is nobody.
        """
        self._end_if_over(partition, fragment, stored)
        if cast("Locks", cast("MapStore", fragment.store).locks).stops(stored, owner):
            raise KeyLockedError(stored)
        self._wake_if_free(partition, fragment, stored)

    # -- the end of locks -------------------------------------------------------------------

    def sweep(self, partition: PartitionReplica, fragment: Fragment, wall_ms: int) -> None:
        """End the leases of a fragment that we may write; see who holds locks."""
        locks = cast("MapStore", fragment.store).locks
        if locks is None:
            return
        if partition.writable:
            self.end_leases(partition, fragment, wall_ms)
        if partition.is_primary:
            self._seen_held += len(locks.held)
            self._seen_clients.update(dict.fromkeys(locks.clients()))

    def end_round(self) -> None:
        """All fragments were swept once more."""
        self.held, self._seen_held = self._seen_held, 0
        self.clients, self._seen_clients = self._seen_clients, {}
        if self.dropped > self._dropped_told:
            count, self._dropped_told = self.dropped - self._dropped_told, self.dropped
            self._ctx.note("split_brain.locks_dropped", "warning", locks=count)

    def end_leases(self, partition: PartitionReplica, fragment: Fragment, wall_ms: int) -> None:
        """Free the keys whose lease has ended."""
        locks = cast("MapStore", fragment.store).locks
        for stored in [] if locks is None else locks.over(wall_ms):
            self._end_if_over(partition, fragment, stored)

    def client_gone(self, client: bytes) -> None:
        """A client will not come back: free what it holds in partitions that we may write.

        In one step, so that what it locks should it come back nevertheless is not freed with it.
        """
        count = 0
        for partition in self._holdings.partitions:
            if not partition.writable:
                continue
            for fragment in partition.fragments.values():
                store = fragment.store
                locks = store.locks if isinstance(store, MapStore) else None
                for stored in [] if locks is None else locks.of_client(client):
                    self._set(partition, fragment, stored, FREE, None)
                    self._wake_if_free(partition, fragment, stored)
                    count += 1
        if count:
            self.freed += count
            self._ctx.note("locks.client_gone", "warning", client=client.hex(), locks=count)

    def drop(self, store: MapStore) -> None:
        """A part that gives way after a split holds no locks: those of the bigger one stand."""
        locks, store.locks = store.locks, None
        self.dropped += 0 if locks is None else len(locks.held)

    def _end_if_over(self, partition: PartitionReplica, fragment: Fragment, stored: bytes) -> None:
        locks = cast("MapStore", fragment.store).locks
        if locks is not None and locks.is_over(stored, self._ctx.wall_ms):
            self.ended += 1
            self._set(partition, fragment, stored, FREE, None)
            self._wake_if_free(partition, fragment, stored)

    # -- inside ---------------------------------------------------------------------------

    def _set(
        self,
        partition: PartitionReplica,
        fragment: Fragment,
        stored: bytes,
        lock: bytes,
        reply: Reply,
    ) -> None:
        """Make this true of a key's lock, here and at the backups.

        Also where it is so already: who repeats a call is answered when the backups know it.
        """
        operation = cast("MapStore", fragment.store).set_lock(stored, lock)
        self._holdings.change(partition, fragment, operation, reply)

    def _wake_if_free(self, partition: PartitionReplica, fragment: Fragment, stored: bytes) -> None:
        locks = cast("MapStore", fragment.store).locks
        if locks is None or stored not in locks.held:
            self._wakes.wake(partition, fragment.namespace, stored)
