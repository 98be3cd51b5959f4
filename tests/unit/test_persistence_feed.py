"""Every change of a fragment is one operation, which all who follow it get (docs/design/0015)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.unit.replication_net import Net, key, map_of, value

from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.replication.outbox import PendingReply, Reply

Followed = tuple[int, bytes]
"""A counter of the fragment's own slot, and the operation after which it stands there."""


@dataclass
class Disk:
    """Implements ``FragmentDisk`` and ``ChangeLog``: remembers what it is told."""

    waits: bool = False
    unfinished: int = 0
    told: list[Followed] = field(default_factory=list)

    def hold(self, fragment: Fragment) -> None:
        fragment.log = self

    def drop(self, fragment: Fragment) -> None:
        fragment.log = None

    def stage(self, fragment: Fragment, chunk: bytes, *, is_last: bool) -> None:
        """No copy arrives here."""

    def unstage(self, fragment: Fragment) -> None:
        """Nor is one given up."""

    def when_durable(self, then: Callable[[], None]) -> None:
        then()

    def try_again(self) -> None:
        """Nothing is refused here."""

    def expire(self, before_us: int) -> int:
        return 0

    def append(self, counter: int, operation: bytes, reply: Reply) -> None:
        self.told.append((counter, operation))

    def revise(self) -> None:
        """The versions are not looked at."""


class Follower:
    """An observer that remembers operations."""

    def __init__(self) -> None:
        self.told: list[Followed] = []

    def held(self, partition: PartitionReplica, fragment: Fragment) -> None:
        """See ``Observer``."""

    def changed(self, fragment: Fragment, operation: bytes) -> None:
        self.told.append((fragment.value, operation))

    def discarded(self, partition: PartitionReplica, fragment: Fragment) -> None:
        """See ``Observer``."""


def test_log_backup_and_observer_follow_one_feed() -> None:
    """APR-23: at both members the log has each operation once, in the order in which they were
    carried out, with the counter behind it; the observer of the backup hears the same ones.
    """
    net, disks, observer = Net("ab"), (Disk(), Disk()), Follower()
    for host, disk in zip((net["a"], net["b"]), disks, strict=True):
        host.plane.holdings.disk = disk
    net["b"].plane.holdings.observe(observer)
    net.set_row(0, "ab", 1)
    primary = net["a"]
    for number in (1, 2, 1, 3):
        partition = primary.plane.partitions[0]
        primary.maps.set(partition, map_of("m"), key(number), value("x"), PendingReply())
        net.pump()
    primary.maps.remove(primary.plane.partitions[0], map_of("m"), key(1), PendingReply())
    net.pump()
    net.check_equal(0, "ab", "m")
    assert [counter for counter, _ in disks[0].told] == [1, 2, 3, 4, 5]
    assert disks[0].told == disks[1].told
    assert [operation for _, operation in observer.told] == [one for _, one in disks[1].told]
