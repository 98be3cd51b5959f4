"""Who holds the keys of one map in one partition, and nothing else.

Knows owners, how often they locked, leases, and the bytes of a lock. Knows nothing of entries: a
key need not be there to be locked. Time is given by the caller in wall clock milliseconds, and only
the primary looks at it: a backup has a lock until it is told that the lock has ended.

A lock is one ``bytes`` object: the owner (the client's uuid and its thread), the reference of the
owner's last call, the end of the lease (wall ms, NEVER_MS for none) and how often the owner has
locked. Clients repeat calls whose answer is lost, under the same reference, and a repeated one
counts once. That an owner has unlocked for the last time is remembered in the same form, with 0 as
the number; of such there are few, so that many keys that were locked once cost no memory.

Every change is said as what is true of a key from then on, so that applying one twice, or late in
its own order, does no harm.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from whimbrel.core.replication.walk import Walk
from whimbrel.errors import ProtocolError
from whimbrel.serialization.uuids import UUID_BYTES

LOCK: Final = struct.Struct("<16sqqqQ")
"""Client uuid, thread, reference, end of the lease (wall ms), how often it was locked."""
LOCK_BYTES: Final = LOCK.size
CLIENT_BYTES: Final = UUID_BYTES
FREE: Final = b""
"""In the place of a lock: the key has none, and nobody's call is remembered."""
UNLOCKED_KEPT_MAX: Final = 64
"""Keys of a map in a partition whose last unlock is remembered, those unlocked last. A call is
repeated when its answer is lost with a member or a connection, within seconds; a repeat that comes
later than so many unlocks of others hears that its caller holds nothing."""

Owner = bytes
"""A client and one of its threads; a client alone stands for all its threads."""
EVERYBODY: Final[Owner] = b""
"""Stands for whoever holds a lock: the owner of a write that no lock stops."""
_THREAD = struct.Struct("<q")


def owner_of(client: bytes, thread: int) -> Owner:
    """A thread of a client, 16 bytes of uuid."""
    return client + _THREAD.pack(thread)


class Locks:
    """The locks of one map in one partition.

    Attributes:
        held: Stored key to lock. Read-only for everybody else.
        unlocked: Stored key to the lock that its last owner gave back, the latest last.
        bytes_used: Bytes of all of these, their keys included.
    """

    __slots__ = ("_changes", "bytes_used", "held", "unlocked")

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}
        self.unlocked: dict[bytes, bytes] = {}
        self.bytes_used = 0
        self._changes = 0

    # -- asking ---------------------------------------------------------------------------

    def is_locked(self, key: bytes, now_ms: int) -> bool:
        """Whether somebody holds a key and the lease is not over."""
        lock = self.held.get(key)
        return lock is not None and LOCK.unpack(lock)[3] > now_ms

    def is_over(self, key: bytes, now_ms: int) -> bool:
        """Whether a key has a lock whose lease has ended."""
        lock = self.held.get(key)
        return lock is not None and LOCK.unpack(lock)[3] <= now_ms

    def stops(self, key: bytes, owner: Owner | None) -> bool:
        """Whether a key has a lock, ended or not, that is another's; None stands for nobody."""
        lock = self.held.get(key)
        return lock is not None and (owner is None or not lock.startswith(owner))

    def over(self, now_ms: int) -> list[bytes]:
        """Keys whose lease has ended."""
        return [key for key, lock in self.held.items() if LOCK.unpack(lock)[3] <= now_ms]

    def of_client(self, client: bytes) -> list[bytes]:
        """Keys that some thread of a client holds."""
        return [key for key, lock in self.held.items() if lock.startswith(client)]

    def clients(self) -> Iterator[bytes]:
        """The clients that hold locks, one for each lock."""
        return (lock[:CLIENT_BYTES] for lock in self.held.values())

    def state(self, key: bytes) -> bytes:
        """What is true of a key: its lock, or who gave it back last, or ``FREE``."""
        return self.held.get(key) or self.unlocked.get(key, FREE)

    # -- deciding: each gives what shall be true of the key ---------------------------------

    def locked(self, key: bytes, owner: Owner, reference: int, end_ms: int) -> bytes | None:
        """The lock of a key once this owner has locked it; None when it is another's.

        A lock of the owner's own counts once more, and its lease is the new one; the call that
        made it what it is, repeated, changes nothing.
        """
        former = self.held.get(key)
        count = 0
        if former is not None:
            if not former.startswith(owner):
                return None
            _, _, last, _, count = LOCK.unpack(former)
            if last == reference:
                return former
        return LOCK.pack(
            owner[:CLIENT_BYTES], *_THREAD.unpack_from(owner, CLIENT_BYTES), reference, end_ms,
            count + 1,
        )  # fmt: skip

    def given_back(self, key: bytes, owner: Owner, reference: int) -> bytes | None:
        """The lock of a key once this owner has unlocked it; None when it is not the owner's.

        A repeat of the call that gave the key back is told what is true now, whoever has it.
        """
        former = self.held.get(key)
        if former is None or not former.startswith(owner):
            last = self.unlocked.get(key)
            is_repeated = (
                last is not None and last.startswith(owner) and LOCK.unpack(last)[2] == reference
            )
            return self.state(key) if is_repeated else None
        client, thread, last_reference, end_ms, count = LOCK.unpack(former)
        if last_reference == reference:
            return former
        return LOCK.pack(client, thread, reference, end_ms, count - 1)

    # -- changing -------------------------------------------------------------------------

    def set(self, key: bytes, lock: bytes) -> None:
        """Make this true of a key: its lock, one that was given back (0 times), or ``FREE``.

        Raises:
            ProtocolError: These are no bytes of a lock.
        """
        if lock and len(lock) != LOCK_BYTES:
            raise ProtocolError(f"a lock has {LOCK_BYTES} bytes, not {len(lock)}")
        is_held = bool(lock) and LOCK.unpack(lock)[4] > 0
        if self.held.pop(key, None) is not None:
            self.bytes_used -= len(key) + LOCK_BYTES
        if is_held:
            self.held[key] = lock
            self.bytes_used += len(key) + LOCK_BYTES
        elif lock:
            self._remember(key, lock)
        self._changes += 1

    def _remember(self, key: bytes, lock: bytes) -> None:
        if self.unlocked.pop(key, None) is None:
            self.bytes_used += len(key) + LOCK_BYTES
        self.unlocked[key] = lock
        if len(self.unlocked) > UNLOCKED_KEPT_MAX:
            oldest = next(iter(self.unlocked))
            del self.unlocked[oldest]
            self.bytes_used -= len(oldest) + LOCK_BYTES

    # -- copies -----------------------------------------------------------------------------

    def open_cursor(self) -> Walk:
        """A walk over all of them, for ``export``."""
        return Walk(self._changes, self.unlocked, self.held)

    def export(self, cursor: Walk, count_max: int, bytes_max: int) -> Iterator[tuple[bytes, bytes]]:
        """The next keys and what is true of each; at the end the cursor has no keys.

        A key that is locked and was given back before comes twice, its former owner first.
        """
        size = 0
        while cursor.keys and count_max > 0 and size < bytes_max:
            key = cursor.keys[cursor.position]
            for lock in (self.unlocked.get(key, FREE), self.held.get(key, FREE)):
                if lock:
                    yield key, lock
                    size += len(key) + LOCK_BYTES
            count_max -= 1
            cursor.position += 1
            if cursor.position == len(cursor.keys):
                cursor.go_on(self._changes)
