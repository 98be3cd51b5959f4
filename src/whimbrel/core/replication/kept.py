"""What a member keeps of partitions of which it is no replica: the base of a copy that it may get.

A kept fragment is read, promoted and counted by nobody. A copy of its namespace to us begins with a
comparison against it and brings only what differs (docs/design/0018). It goes when such a copy has
taken its place, when its structure is destroyed, and when whoever kept it gives it up.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.replication.fragments import Fragment

_NOTHING: Final[Mapping[Namespace, Fragment]] = MappingProxyType({})


class Owner(Protocol):
    """What is asked of the owner of all fragments."""

    def free(self, fragment: Fragment) -> None:
        """Give back the memory of a fragment that nobody holds, in pieces."""

    def is_destroyed(self, namespace: Namespace, generation: int) -> bool:
        """Whether what was begun after that destruction has been destroyed by a later one."""

    def destroy(self, namespace: Namespace, generation: int) -> None:
        """Discard what a structure held before the destruction of this number, everywhere."""


class Kept:
    """Fragments that nobody holds, by partition and namespace; at most one of each."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._partitions: dict[PartitionId, dict[Namespace, Fragment]] = {}

    def __len__(self) -> int:
        """Fragments kept."""
        return sum(map(len, self._partitions.values()))

    @property
    def bytes_used(self) -> int:
        """Bytes of the entries kept."""
        return sum(
            fragment.store.bytes_used
            for fragments in self._partitions.values()
            for fragment in fragments.values()
        )

    def keep(self, fragment: Fragment) -> None:
        """Keep a fragment that nobody holds, in place of an older one, which is freed.

        What was destroyed after it had begun is freed at once; what it has heard of destructions,
        we have now, too.
        """
        namespace, generation = fragment.namespace, fragment.generation
        if self._owner.is_destroyed(namespace, generation):
            self._owner.free(fragment)
            return
        self._owner.destroy(namespace, generation)
        older = self.take(fragment.partition_id, namespace)
        if older is not None and older is not fragment:
            self._owner.free(older)
        self._partitions.setdefault(fragment.partition_id, {})[namespace] = fragment

    def of(self, pid: PartitionId) -> Mapping[Namespace, Fragment]:
        """What is kept of a partition."""
        return self._partitions.get(pid, _NOTHING)

    def take(self, pid: PartitionId, namespace: Namespace) -> Fragment | None:
        """Keep this no longer: the caller holds it, or frees it."""
        fragments = self._partitions.get(pid)
        if fragments is None:
            return None
        fragment = fragments.pop(namespace, None)
        if not fragments:
            del self._partitions[pid]
        return fragment

    def release(self, pid: PartitionId) -> None:
        """Free what is kept of a partition."""
        for fragment in self._partitions.pop(pid, {}).values():
            self._owner.free(fragment)

    def forget(self, namespace: Namespace) -> None:
        """Free what is kept of a structure."""
        for pid in list(self._partitions):
            fragment = self.take(pid, namespace)
            if fragment is not None:
                self._owner.free(fragment)

    def clear(self) -> None:
        """Free everything."""
        for pid in list(self._partitions):
            self.release(pid)
