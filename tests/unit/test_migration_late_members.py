"""Goal: a member that comes back when what it missed is no longer told one by one (ADL-25).

The master's log of finished migrations is bounded; whoever lacks what was dropped gets whole rows.
Whatever verdict it waited for, it ends in the role that the rows give it, and its services are told
a history that leads there.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.migration_net import SETTINGS, Net, Node, wish

from whimbrel.core.events import Endpoint, Moment, PartitionMigrationEvent
from whimbrel.core.ids import MemberId, PartitionId, index_in
from whimbrel.core.messages import Message, MigrationDataAnswered, TablePublished
from whimbrel.core.settings import CoreSettings

P0 = PartitionId(0)
COUNT = 271
BATCH = 20
LARGE = msgspec.structs.replace(SETTINGS, partition_count=COUNT, completed_batch_max=BATCH)


class Services:
    """What the services of one member know of its indexes, by what they are told (ADL-72)."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.index = {pid: index_in(row, node.id) for pid, row in enumerate(node.room.table.rows)}
        self.open: dict[int, PartitionMigrationEvent] = {}
        node.room.set_hook(self.told)

    def told(self, moment: Moment, event: PartitionMigrationEvent) -> None:
        pid = event.partition_id
        if event.endpoint is Endpoint.MASTER:
            return
        if moment is Moment.BEFORE:
            assert pid not in self.open and self.index[pid] == event.current_replica_index
            self.open[pid] = event
            return
        assert self.open.pop(pid) == event
        if moment is Moment.COMMIT:
            self.index[pid] = event.new_replica_index

    def check(self) -> None:
        """They know of every index that the table gives this member, and of nothing else."""
        assert not self.open
        rows = self._node.room.table.rows
        assert self.index == {pid: index_in(row, self._node.id) for pid, row in enumerate(rows)}


class Muted:
    """Nothing reaches or leaves a member from a moment on."""

    def __init__(self, net: Net, name: str) -> None:
        self.net, self.name, self.is_on = net, name, False
        net.on_send = self.fate

    def fate(self, sender: str, to: str, message: Message) -> str:
        if self.is_on and self.name in (sender, to):
            return "drop"
        if sender == self.name and isinstance(message, MigrationDataAnswered):
            self.is_on = True  # this one still arrives; its verdict does not come back
        return "deliver"

    def end(self) -> None:
        """All is delivered again, to the new links and what is repeated on them."""
        self.is_on = False
        self.net.on_send = lambda *_: "deliver"


def dropped(net: Net, known: dict[str, None]) -> list[str]:
    """Finished migrations that the master has told and dropped from its log."""
    kept = {migration.id for migration in net.master.room.completed_migrations()}
    return [name for name in known if name not in kept]


@pytest.mark.parametrize("master_dies", [False, True])
@pytest.mark.parametrize("moves_on", [False, True])
def test_a_source_whose_verdict_is_told_no_more(
    monkeypatch: pytest.MonkeyPatch, moves_on: bool, master_dies: bool
) -> None:
    """ADL-24, ADL-25, ADL-31: the former primary of partition 0 has copied and never heard that it
    was committed; more migrations than the log holds finish meanwhile, of that partition too by a
    parameter; it comes back to this master or to the next one. Whole rows end what it waits for.
    """
    wish(monkeypatch, {0: "cb", -1: "ab"})
    net = Net(LARGE, 1)
    net.add("m", "l", "a", "b", "c", lite=["m", "l"])
    net.settle()
    net.fill()
    services = [Services(node) for node in net.live]
    mute = Muted(net, "c")
    wish(monkeypatch, {0: "db", -1: "ad"})
    net.add("d")
    services.append(Services(net.nodes["d"]))
    net.run_for(2)
    c = net.nodes["c"]
    (waiting,) = c.room.active_migrations()
    if moves_on:
        wish(monkeypatch, {0: "be", -1: "ad"})
        net.add("e")
        services.append(Services(net.nodes["e"]))
        net.run_for(5)
    assert net.master.room.table.version(P0) >= waiting.final_version + 2 * moves_on
    assert dropped(net, {waiting.id: None}), "the log holds it no more"
    assert c.room.active_migrations() == [waiting] and c.host.flags == {0}
    mute.end()
    net.trace.clear()
    if master_dies:
        net.crash("m")
    net.settle()
    net.check()
    tables = [m for _, to, m in net.trace if to == "c" and isinstance(m, TablePublished)]
    assert any(message.whole for message in tables)
    assert not c.host.flags and 0 not in c.host.data
    for service in services[1 if master_dies else 0 :]:
        service.check()


@pytest.mark.parametrize("settings", [LARGE, CoreSettings(partition_count=1_500)])
def test_a_member_that_missed_more_than_is_kept_gets_the_whole_table(
    monkeypatch: pytest.MonkeyPatch, settings: CoreSettings
) -> None:
    """ADL-25, PIM-05, inv P8: also with the product's own limit of 1,000: a member misses more
    finished migrations than that. Until it has acknowledged the whole table nothing is settled.
    """
    wish(monkeypatch, {-1: "ab"})
    net = Net(settings, 1)
    net.add("a", "b", "l", lite=["l"])
    net.settle()
    net.fill()
    mute = Muted(net, "l")
    mute.is_on = True
    wish(monkeypatch, {-1: "ad"})
    net.add("d")
    finished: dict[str, None] = {}
    longest = 0

    def watch(node: Node) -> None:
        nonlocal longest
        completed = node.room.completed_migrations()
        longest = max(longest, len(completed))
        finished.update((migration.id, None) for migration in completed)

    net.after_step = watch
    net.run_for(20)
    assert len(finished) >= settings.partition_count > settings.completed_batch_max
    assert len(dropped(net, finished)) == len(finished) - settings.completed_batch_max
    assert longest <= settings.completed_batch_max + settings.migration_max_parallel
    late = net.nodes["l"]
    assert MemberId("d") not in late.room.table.row(P0)
    assert net.master.room.is_settled() == (False, net.master.room.is_settled()[1])
    assert "l" in net.master.room.is_settled()[1]
    mute.end()
    net.settle()
    net.check()
    assert late.room.table.row(P0)[1] == "d"
