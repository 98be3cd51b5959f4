"""Who observes a member is told beside its stores, not in their place (docs/design/0015)."""

from __future__ import annotations

from tests.unit.test_replication_anti_entropy import settled

from whimbrel.core.replication.fragments import Fragment, PartitionReplica


def test_an_observed_backup_holds_what_it_is_sent() -> None:
    """APR-23: an observer is told beside the store, not in its place."""

    class Counting:
        """How often an observer was told what."""

        def __init__(self) -> None:
            self.said = {"changed": 0, "held": 0, "discarded": 0}

        def changed(self, fragment: Fragment, operation: bytes) -> None:
            """See ``Observer``."""
            self.said["changed"] += 1

        def held(self, partition: PartitionReplica, fragment: Fragment) -> None:
            """See ``Observer``."""
            self.said["held"] += 1

        def discarded(self, partition: PartitionReplica, fragment: Fragment) -> None:
            """See ``Observer``."""
            self.said["discarded"] += 1

    net = settled(partitions=1)
    observer = Counting()
    net["b"].plane.holdings.observe(observer)
    assert observer.said == {"changed": 0, "held": 3, "discarded": 0}
    net.put("m", 100, "seen")
    net.put("new", 1, "seen")
    net.pump()
    net.check_equal(0, "ab", "m")
    net.check_equal(0, "ab", "new")
    assert observer.said == {"changed": 2, "held": 4, "discarded": 0}
    net.set_row(0, "a", 6)
    assert observer.said == {"changed": 2, "held": 4, "discarded": 4}
