"""When a member that has joined is ready: its replicas are there, and nobody's row has a hole."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.engine_pump import Node, Pump, member_id, quick_settings

from whimbrel.core.ids import Address, MemberId
from whimbrel.core.messages import MigrationOpened
from whimbrel.core.model import ClusterState
from whimbrel.serialization.data import to_data


def arriving(node: Node) -> str:
    return node.engine.member.safety.arriving_because()


def unprotected(pump: Pump) -> list[str]:
    """Partitions whose primary would accept a write now and has no backup for it."""
    found = []
    for node in pump.living():
        member = node.engine.member
        for replica in member.dataplane.partitions:
            row = member.migrations.table.rows[replica.pid]
            if row[0] == node.id and row[1] is None and not replica.migrating:
                found.append(f"{node.id}: partition {replica.pid}")
    return found


class Watching(Pump):
    """Looks at the members that have joined after each message that any member has taken."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(quick_settings(**settings))
        self.ready: list[Node] = []
        self.waited: dict[MemberId, None] = {}
        """Members that were seen waiting for replicas."""

    def _deliver(self, sender: Node, to: MemberId | Address, kind: int, payload: Any) -> None:
        super()._deliver(sender, to, kind, payload)
        for node in self.nodes[1:]:
            if not node.joined or node in self.ready:
                continue
            if arriving(node):
                self.waited[node.id] = None
                continue
            self.ready.append(node)
            found = unprotected(self)
            assert not found, f"{node.id} is ready, and unprotected are {found[:3]}"


@pytest.mark.parametrize("count", [7, 271])
@pytest.mark.parametrize("together", [1, 3])
def test_on_the_word_of_a_joiner_every_write_has_its_backup(count: int, together: int) -> None:
    """Goal: between the ready of a joiner of an empty grid and safe no write is acknowledged by
    its primary alone. Method: members join one by one, or three at once; when each of them first
    says that nothing is to come, every primary that takes writes has a backup. Both below and
    above the number of rows that one step does.
    """
    pump = Watching(partition_count=count)
    pump.start()
    pump.run(1)
    for _ in range(3 // together):
        newcomers = [pump.start() for _ in range(together)]
        pump.run_until(lambda: all(node in pump.ready for node in newcomers), 30)  # noqa: B023
    assert [node.id for node in pump.nodes[1:]] == sorted(pump.waited)


def test_who_gets_nothing_waits_for_nothing() -> None:
    """Goal: a founder, a lite member, a member of a cluster whose state lets nothing move, and
    one where an interval spreads migrations on purpose are ready when they have joined.
    """
    pump = Pump(quick_settings(migration_interval_us=0))
    founder = pump.start()
    pump.settle()
    assert founder.joined and not arriving(founder)
    lite = pump.start(lite=True)
    pump.run_until(lambda: lite.joined, 30)
    assert not arriving(lite)
    founder.engine.member.membership.change_cluster("wish", ClusterState.NO_MIGRATION, None)
    pump.run_until(lambda: lite.engine.member.ctx.members.state is ClusterState.NO_MIGRATION, 30)
    third = pump.start()
    pump.run_until(lambda: third.joined, 30)
    assert not third.engine.member.migrations.table.replica_count(third.id)
    assert not arriving(third)
    slow = Pump(quick_settings(migration_interval_us=200_000))
    slow.form(1)
    newcomer = slow.start()
    slow.run_until(lambda: newcomer.joined, 30)
    assert not arriving(newcomer)


class Holding(Pump):
    """Withholds the copies of missing backups that go to one member."""

    def __init__(self, to: MemberId) -> None:
        super().__init__(quick_settings(partition_count=4))
        self._to = to
        self._is_open = False
        self.held: list[tuple[Node, MemberId | Address, int, Any]] = []

    def _deliver(self, sender: Node, to: MemberId | Address, kind: int, payload: Any) -> None:
        is_copy = isinstance(payload, MigrationOpened) and payload.migration.step.kind == "COPY"
        if is_copy and to == self._to and not self._is_open:
            self.held.append((sender, to, kind, payload))
        else:
            super()._deliver(sender, to, kind, payload)

    def release(self) -> None:
        self._is_open = True
        for sender, to, kind, payload in self.held:
            self._deliver(sender, to, kind, payload)


def test_a_joiner_waits_as_long_as_a_replica_is_on_its_way() -> None:
    """Goal: the reason is told in words until the last copy has been committed. Method: a second
    member joins and the copies to it are withheld.
    """
    pump = Holding(member_id(2))
    pump.form(1)
    joiner = pump.start()
    pump.run_until(lambda: pump.held, 30)
    pump.run(1)
    assert arriving(joiner) == f"{len(pump.held)} of 4 replicas have not arrived"
    pump.release()
    pump.run(1)
    assert not arriving(joiner)


def test_a_joiner_waits_for_the_backups_of_others() -> None:
    """Goal: a client that connects on the word of one joiner writes to all partitions, so all
    rows are full then. Method: two members join at once; the copies to one are withheld, the
    other has all its replicas and waits none the less.
    """
    pump = Holding(member_id(3))
    pump.form(1)
    served, starved = pump.start(), pump.start()
    pump.run_until(lambda: pump.held, 30)
    pump.run(1)
    assert arriving(served) == f"{len(pump.held)} replicas are missing"
    pump.release()
    pump.run(1)
    assert not arriving(served) and not arriving(starved)


@pytest.mark.parametrize("has_map", [False, True])
def test_only_a_grid_with_structures_is_limited(has_map: bool) -> None:
    """PIM-24: without any map all copies of a join go together, with one at most ten.

    Method: the most migrations that ever ran at the master, counted after every message.
    """

    class Counting(Pump):
        most = 0

        def _deliver(self, sender: Node, to: MemberId | Address, kind: int, payload: Any) -> None:
            super()._deliver(sender, to, kind, payload)
            running = self.nodes[0].engine.member.migrations.running_migrations()
            self.most = max(self.most, len(running))

    pump = Counting(quick_settings(partition_count=271))
    founder = pump.start()
    pump.run(1)
    if has_map:
        key, value = to_data("k"), to_data("v")
        put = {"name": "m", "key": key, "value": value, "thread_id": 1, "ttl": -1}
        pump.client(founder).call("Map.put", 3, **put)
    joiner = pump.start()
    pump.run_until(lambda: joiner.joined and not arriving(joiner), 30)
    assert pump.most == (10 if has_map else 271)
