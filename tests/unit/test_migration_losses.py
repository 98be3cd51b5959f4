"""What is lost is known until an operator has seen it, whatever masters die (design 0014)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from tests.unit.migration_net import SETTINGS, Net

from whimbrel.core.ids import PartitionId
from whimbrel.core.messages import (
    LegacyTablePublished,
    LossesNoted,
    LossesTold,
    PromotionRequested,
    TablePublished,
)
from whimbrel.core.migration.losses import NAMED_MAX, Losses
from whimbrel.core.model import Loss, LostStructure
from whimbrel.core.partition.table import PartitionTable
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import ProtocolError

SERIAL = msgspec.structs.replace(SETTINGS, cluster_version="4.0")
LARGE = msgspec.structs.replace(SETTINGS, partition_count=271)


def lossy(settings: CoreSettings = SETTINGS, backup_count: int = 0) -> Net:
    """A lite master, and three data members; with no backups whoever dies takes data along."""
    net = Net(settings, backup_count=backup_count)
    net.add("m", "n", "a", "b", "c", lite=["m", "n"])
    net.settle()
    net.fill()
    return net


def owned(net: Net, name: str) -> list[int]:
    rows = net.master.room.table.rows
    return [pid for pid, row in enumerate(rows) if row[0] == name]


def told(net: Net, name: str) -> list[int]:
    return sorted(pid for pid, count in net.nodes[name].lost if count == 6)


def unseen(net: Net, name: str) -> list[int]:
    return [loss.partition_id for loss in net.nodes[name].room.losses.unseen()]


def name_structures(net: Net, backups: dict[str, int], entries: int | None = None) -> None:
    """Every member knows these structures and how many backups they have."""
    for node in net.nodes.values():

        def lost(_pid: PartitionId, fewest: int, most: int) -> Sequence[LostStructure]:
            names = [name for name, count in sorted(backups.items()) if fewest <= count <= most]
            return [LostStructure("map", name, entries, 5) for name in names]

        node.room.losses.structures_lost = lost


@pytest.mark.parametrize("settings", [SETTINGS, SERIAL, LARGE], ids=["4.1", "4.0", "271"])
@pytest.mark.parametrize("sent", [*range(12), 40, 200])
def test_a_survivor_tells_what_a_dead_master_saw(settings: CoreSettings, sent: int) -> None:
    """ADL-05: wherever two masters die one after the other, the next one tells the loss, once,
    and every member keeps it.
    """
    net = lossy(settings)
    lost = owned(net, "c")
    net.crash("c")
    net.run_sending(sent)
    net.crash("m")
    net.run_sending(sent)
    net.crash("n")
    net.settle()
    net.check()
    assert told(net, "a") == lost
    assert [unseen(net, name) for name in "ab"] == [lost, lost]


def test_a_newcomer_learns_of_a_loss_and_tells_it_as_master() -> None:
    """ADL-05: long after, with everybody gone who was there."""
    net = lossy()
    lost = owned(net, "c")
    net.crash("c")
    net.settle()
    net.add("d", "e")
    net.settle()
    net.leave("a", "b")
    net.settle()
    for name in ("m", "n", "a", "b"):
        net.crash(name)
        net.settle()
    assert told(net, "d") == lost
    assert unseen(net, "e") == lost


def test_who_was_master_before_tells_nothing_twice() -> None:
    """A loss is told by one master at most once."""
    net = lossy()
    lost = owned(net, "c")
    net.crash("c")
    net.settle()
    node = net.nodes["m"]
    with net.step(node):
        node.room.loop.resign()
        node.room.loop.take_charge()
    net.settle()
    assert told(net, "m") == lost


@pytest.mark.parametrize("settings", [SETTINGS, SERIAL], ids=["4.1", "4.0"])
def test_what_an_operator_has_seen_is_gone_everywhere(settings: CoreSettings) -> None:
    """Seen marks go on all members, and no later master tells them."""
    net = lossy(settings)
    net.crash("c")
    net.settle()
    node = net.nodes["m"]
    name = node.room.losses.name()
    with net.step(node):
        assert not node.room.see_losses("other")
        assert node.room.see_losses(name)
        assert node.room.see_losses(name), "said again it is the same"
    net.settle()
    assert all(not unseen(net, member) for member in net.order)
    net.crash("m")
    net.settle()
    assert told(net, "n") == []
    assert all(not unseen(net, member) for member in net.order)


def test_a_loss_after_what_was_seen_is_a_new_one() -> None:
    """Only what was looked at is acknowledged: a name is of exactly those marks."""
    net = lossy()
    net.crash("c")
    net.settle()
    node = net.nodes["m"]
    name = node.room.losses.name()
    lost = owned(net, "b")
    net.crash("b")
    net.settle()
    with net.step(node):
        assert not node.room.see_losses(name)
        assert node.room.see_losses(node.room.losses.name())
    net.settle()
    net.crash("a")
    net.run_for(1)
    assert lost and unseen(net, "n") == list(range(7))


def test_nothing_older_comes_back() -> None:
    """The greater (version, seen) counts, in whatever order the words come."""
    table = PartitionTable(3)
    old = Loss(PartitionId(1), 4, 6, 0)
    seen = Loss(PartitionId(1), 4, 6, 0, is_seen=True)
    later = Loss(PartitionId(1), 5, 0, 0)
    assert table.take_losses((old,)) == [old]
    assert table.take_losses((seen, old)) == [seen]
    assert table.losses == {1: seen}
    assert table.take_losses((later, seen)) == [later]


@pytest.mark.parametrize("settings", [SETTINGS, SERIAL], ids=["4.1", "4.0"])
def test_the_promoted_member_knows_what_was_lost_before_it(settings: CoreSettings) -> None:
    """ADL-06: the promotion brings the mark, also where the emptied row never came: the master
    may die before anybody else has heard of the row.
    """
    net = Net(settings, backup_count=1)
    net.add("m", "a", "b", lite=["m"])
    name_structures(net, {"b0": 0, "b1": 1})
    net.settle()
    net.fill()
    lost = owned(net, "b")
    tables = TablePublished | LegacyTablePublished
    net.on_send = lambda *sent: "drop" if isinstance(sent[2], tables) else "deliver"
    net.crash("b")
    while not any(isinstance(sent, PromotionRequested) for *_, sent in net.trace):
        net.run_sending(0)
    net.run_for(0.1)
    assert unseen(net, "a") == lost
    net.on_send = lambda *_: "deliver"
    net.crash("m")
    net.settle()
    assert sorted(net.nodes["a"].lost) == [(pid, 0) for pid in lost]


def test_a_loss_is_told_per_structure() -> None:
    """A promotion of index i loses every structure with fewer than i backups, and no other."""
    net = lossy(backup_count=2)
    name_structures(net, {"b0": 0, "b1": 1, "b2": 2}, entries=3)
    lost = owned(net, "c")
    net.crash("c")
    net.settle()
    marks = net.nodes["a"].room.losses.unseen()
    assert [mark.partition_id for mark in marks] == lost
    assert {mark.structures for mark in marks} == {(LostStructure("map", "b0", 3, 5),)}
    assert {mark.lost_backup_count for mark in marks} == {0}
    assert net.master.room.reporter.partitions_lost == 0, "no partition lost every replica"
    notes = [note for note in net.master.notes if note.kind == "partition.lost"]
    assert {(note.level, note.fields["structures"]) for note in notes} == {
        ("error", "map b0 (3 entries)")
    }


def test_without_a_structure_that_is_concerned_nothing_is_lost() -> None:
    """A primary that dies within the promise leaves no mark."""
    net = lossy(backup_count=1)
    name_structures(net, {"b1": 1})
    net.crash("c")
    net.settle()
    assert all(not unseen(net, member) for member in net.order)
    assert not any(note.level == "error" for note in net.master.notes)


def test_two_losses_of_a_partition_are_one_mark() -> None:
    """At most one mark a partition; entries add up, what is unknown stays unknown."""
    net = lossy()
    table = PartitionTable(3)
    table.set_row(PartitionId(0), ("a", None, None, None, None, None, None), 4)  # type: ignore[arg-type]
    losses = Losses(net.nodes["a"].ctx, table)
    found: list[LostStructure] = [LostStructure("map", "x", 3, 1), LostStructure("map", "y", 2, 1)]
    losses.structures_lost = lambda *_: found
    first = losses.seat_lost(PartitionId(0), 0)
    assert first is not None and first.version == 4
    found = [LostStructure("map", "x", 4, 2), LostStructure("map", "y", None, None)]
    second = losses.seat_lost(PartitionId(0), 1)
    assert second is not None and second.version == 5 and second.lost_backup_count == 1
    assert second.structures == (
        LostStructure("map", "x", 7, 2),
        LostStructure("map", "y", None, None),
    )
    found = [LostStructure("map", f"m{number:03}", 1, 1) for number in range(NAMED_MAX + 4)]
    third = losses.seat_lost(PartitionId(0), 1)
    assert third is not None and len(third.structures) == NAMED_MAX and third.unnamed == 6
    assert list(table.losses) == [0]


def test_what_was_seen_is_not_told_again_with_the_next_loss() -> None:
    """Goal: an operator who has seen a loss hears of the new one alone. Method: two losses of a
    partition, the first one seen.
    """
    net = lossy()
    table = PartitionTable(3)
    table.set_row(PartitionId(0), ("a", None, None, None, None, None, None), 4)  # type: ignore[arg-type]
    losses = Losses(net.nodes["a"].ctx, table)
    losses.structures_lost = lambda *_: [LostStructure("map", "x", 3, 1)]
    first = losses.seat_lost(PartitionId(0), 2)
    assert first is not None
    table.take_losses((msgspec.structs.replace(first, version=5, is_seen=True),))
    losses.structures_lost = lambda *_: [LostStructure("map", "y", 2, 1)]
    second = losses.seat_lost(PartitionId(0), 1)
    assert second is not None and second.lost_backup_count == 1
    assert second.structures == (LostStructure("map", "y", 2, 1),)


@pytest.mark.parametrize("lossless", [True, False])
def test_what_a_returned_member_finds_lost_reaches_all(lossless: bool) -> None:
    """GCM-09: its word to the master is repeated until it is noted."""
    net = lossy()
    dropped = 0

    def fate(_sender: str, _to: str, message: object) -> str:
        nonlocal dropped
        if not lossless and dropped < 2 and isinstance(message, LossesTold | LossesNoted):
            dropped += 1
            return "drop"
        return "deliver"

    net.on_send = fate
    node = net.nodes["a"]
    with net.step(node):
        node.room.seat_lost(PartitionId(3), 6)
    net.run_for(0.5)
    assert not lossless or all(unseen(net, member) == [3] for member in net.order), "at once"
    net.run_for(30)
    net.settle()
    assert all(unseen(net, member) == [3] for member in net.order)
    assert not node.room._untold
    assert dropped == (0 if lossless else 2)


def test_who_has_found_nothing_lost_tells_nothing() -> None:
    """Goal: no empty word travels with whatever else a member repeats. Method: the time to repeat
    comes at a member that waits for nobody.
    """
    net = lossy()
    node = net.nodes["a"]
    with net.step(node):
        node.room.on_timer("migration.repeat")
    assert not net.said(LossesTold)


def test_a_master_dies_before_it_notes_what_a_returned_member_found() -> None:
    """GCM-09: the next master has it from the member's own table."""
    net = lossy()
    net.on_send = lambda *sent: "drop" if isinstance(sent[2], LossesTold) else "deliver"
    node = net.nodes["a"]
    with net.step(node):
        node.room.seat_lost(PartitionId(3), 6)
    net.run_for(1)
    net.crash("m")
    net.settle()
    assert told(net, "n") == [3]
    assert all(unseen(net, member) == [3] for member in net.order)


@pytest.mark.parametrize("settings", [SETTINGS, SERIAL], ids=["4.1", "4.0"])
def test_a_promotion_that_waits_is_told_once_by_the_next_master(settings: CoreSettings) -> None:
    """ADL-06: the row without primary and its mark came, the promotion did not."""
    net = Net(settings, backup_count=1)
    net.add("m", "a", "b", lite=["m"])
    name_structures(net, {"b0": 0, "b1": 1})
    net.settle()
    net.fill()
    lost = owned(net, "b")
    net.on_send = lambda *sent: "drop" if isinstance(sent[2], PromotionRequested) else "deliver"
    net.crash("b")
    net.run_for(0.5)
    assert unseen(net, "a") == lost
    net.on_send = lambda *_: "deliver"
    net.crash("m")
    net.settle()
    assert sorted(net.nodes["a"].lost) == [(pid, 0) for pid in lost]


def test_what_was_lost_already_is_not_lost_again() -> None:
    """ADL-06: the member to be promoted dies as well: the structures that went with the primary
    are counted once, those that go now are added.
    """
    net = lossy(backup_count=2)
    name_structures(net, {"b0": 0, "b1": 1, "b2": 2}, entries=3)
    lost = [pid for pid, row in enumerate(net.master.room.table.rows) if row[:2] == ("a", "b")]
    net.on_send = lambda *sent: "drop" if isinstance(sent[2], PromotionRequested) else "deliver"
    net.crash("a")
    net.run_for(0.5)
    net.on_send = lambda *_: "deliver"
    net.crash("b")
    net.settle()
    marks = {mark.partition_id: mark for mark in net.nodes["c"].room.losses.unseen()}
    assert lost
    for pid in lost:
        assert marks[PartitionId(pid)].lost_backup_count == 1
        assert marks[PartitionId(pid)].structures == (
            LostStructure("map", "b0", 3, 5),
            LostStructure("map", "b1", 3, 5),
        )


def test_a_table_on_its_way_does_not_hide_what_was_seen_meanwhile() -> None:
    """In 4.0 the version of the table says nothing of marks: the table is owed once more."""
    net = lossy(SERIAL)
    net.crash("c")
    net.settle()
    node = net.nodes["m"]
    node.room.loop.publisher.ask_for_acknowledgements()
    with net.step(node):
        node.room.loop.publisher.flush()
    with net.step(node):
        assert node.room.see_losses(node.room.losses.name())
    net.settle()
    assert all(not unseen(net, member) for member in net.order)


def test_a_mark_of_a_partition_that_is_not_there_is_refused() -> None:
    """A broken word changes nothing, whether it comes with rows or alone."""
    net = lossy()
    node, foreign = net.nodes["m"], Loss(PartitionId(99), 1, 6, 0)
    with pytest.raises(ProtocolError, match="unknown partition"):
        node.room.on_message(net.nodes["a"].id, LossesTold((foreign,)))
    image = msgspec.structs.replace(node.room.table.image([PartitionId(1)]), losses=(foreign,))
    with pytest.raises(ProtocolError, match="not listed"):
        node.room.table.take_image(image)
    assert not node.room.table.losses
