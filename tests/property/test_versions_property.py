"""Goal: a partition's version is the number of its changed slots and of its failures' gaps.

A cluster of migration rooms lives through random joins, crashes, leaves, depths and lost messages;
every change of a row that a member makes by itself is booked and compared with the versions.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.migration_net import SETTINGS, Net, Node
from tests.unit.rows import slots_changed

from whimbrel.core.ids import PartitionId, Row
from whimbrel.core.messages import DATA_CHANNEL, Message
from whimbrel.core.model import MigrationInfo, Verdict

EVENT = st.tuples(st.sampled_from(["join", "crash", "fall", "leave", "depth"]), st.integers(0, 7))


class Book:
    """The changes of every member, and what each of them may have raised a version by."""

    def __init__(self) -> None:
        self.failed: dict[tuple[int, int], int] = {}
        """Final versions of failed migrations, by partition and initial version."""

    def watch(self, node: Node) -> None:
        manager, change = node.room.manager, node.room.manager.change
        apply = manager.apply_completed

        def completed(migration: MigrationInfo) -> bool:
            if migration.verdict is Verdict.FAILED:
                at = (migration.partition_id, migration.initial_version)
                self.failed[at] = migration.final_version
                assert migration.final_version == at[1] + migration.step.increment + 1
            return apply(migration)

        def changed(pid: PartitionId, row: Row, version: int, committed: str = "") -> None:
            table, loop = manager.table, node.room.loop
            before, old, others = table.version(pid), table.row(pid), table.versions[:]
            change(pid, row, version, committed)
            del others[pid]
            assert table.versions[:pid] + table.versions[pid + 1 :] == others
            if loop.in_charge and not loop.recovery.running:
                wanted = before + slots_changed(old, row)
                if row == old:
                    wanted = self.failed[pid, before]
                assert version == wanted, (old, row)

        manager.apply_completed = completed  # type: ignore[method-assign]
        manager.change = changed  # type: ignore[method-assign]


@example([("fall", 1), ("join", 0)], [400] * 6, 9)
@given(
    st.lists(EVENT, min_size=2, max_size=6),
    st.lists(st.integers(1, 400), min_size=6, max_size=6),
    st.integers(2, 9),
)
@settings(max_examples=40, deadline=None)
def test_versions_count_changed_slots(
    events: Sequence[tuple[str, int]], pauses_ms: Sequence[int], loss: int
) -> None:
    """PIM-01, PIM-13, PIM-14: whatever the master does to a row, its version rises by the slots
    that differ, or by a failed migration's increment and one; no other partition is touched.
    """
    net = Net(msgspec.structs.replace(SETTINGS, migration_timeout_us=3_000_000), 2)
    book = Book()
    sent = 0

    def fate(_from: str, _to: str, message: Message) -> str:
        nonlocal sent
        sent += 1
        return "drop" if isinstance(message, DATA_CHANNEL) and not sent % loss else "deliver"

    def join(*names: str) -> None:
        for name in names:
            net.nodes[name] = Node(net, name, lite=False)
            book.watch(net.nodes[name])
            net.order.append(name)
        net.view()

    join("a", "b", "c")
    net.settle()
    net.fill()
    net.on_send = fate
    for number, ((event, which), pause_ms) in enumerate(zip(events, pauses_ms, strict=False)):
        name = net.order[which % len(net.order)]
        staying = len(net.order) - len(net.leaving)
        if event == "join":
            join(f"n{number}")
        elif event == "crash" and staying > 2:
            net.crash(name)
        elif event == "fall" and staying > 2:  # two at once
            net.nodes[name].alive = False
            net.order.remove(name)
            net.leaving = tuple(member for member in net.leaving if member != name)
            net.crash(net.order[which % len(net.order)])
        elif event == "leave" and staying > 2 and name not in net.leaving:
            net.leave(name)
        elif event == "depth":
            for node in net.live:
                with net.step(node):
                    node.room.depth_changed(1 + which % 4)
        net.run_for(pause_ms / 1_000)
    net.on_send = lambda *_: "deliver"
    net.settle()
    table = net.master.room.table
    assert all(node.room.table.versions == table.versions for node in net.live)
