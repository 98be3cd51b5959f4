"""The modelled links under the production rooms, and the tables of paper 07 made with them."""

from __future__ import annotations

import msgspec
import pytest

from whimbrel.bench import copy_cost, paper_07
from whimbrel.bench.grid_model import (
    ANSWER_BYTES,
    FRAGMENT_HEAD_BYTES,
    SOME_CAUSE,
    Card,
    Extent,
    GridModel,
    GridModelSettings,
    wire_size,
)
from whimbrel.core.ids import MemberId, Namespace, PartitionId
from whimbrel.core.messages import FragmentPart, Purpose, TransferAnswered, TransferSent, Vector
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import OperationError
from whimbrel.runtime import occupation
from whimbrel.wire.links import encode_message

SIZE = paper_07.Size(partitions=2_000, serial_partitions=100, entries=2_000_000)
"""The same in small: replicas of 16 MB, 400 copies when a member comes or goes."""
IDEAL = GridModelSettings(0)


def fragment(data: bytes) -> TransferSent:
    member = MemberId("00000001-0000-4000-8000-000000000001")
    migration = f"migration:{member}:1000000:1234"
    vector = Vector(1, (0,) * 6)
    part = FragmentPart(Namespace("map/bench"), data, vector, (1, 0), first=False, last=False)
    return TransferSent(Purpose.MIGRATION, migration, PartitionId(1), 1, (part,), last=False)


def test_modelled_messages_are_as_large_as_real_ones() -> None:
    """PIM-46: the model's constants are no smaller than what a member sends, nor twice as large."""
    sent = fragment(b"")
    answer = TransferAnswered(Purpose.MIGRATION, sent.transfer, 1, True, "")
    for message, modelled in ((sent, FRAGMENT_HEAD_BYTES), (answer, ANSWER_BYTES)):
        real = len(encode_message(message, SOME_CAUSE))
        assert real <= modelled < 2 * real
    assert wire_size(fragment(Extent(1_000_000))) > 1_000_000 > len(bytes(Extent(1_000_000)))


@pytest.fixture(scope="module")
def twenty() -> dict[str, paper_07.Figures]:
    """One flow with a limit of 20."""
    return {row["event"]: row for row in paper_07.flow(SIZE, IDEAL, "20")}


def test_changes_take_little_more_than_the_links_need(
    twenty: dict[str, paper_07.Figures],
) -> None:
    """PIM-47, PIM-48, PIM-49: on ideal members a join and a leave end within 1.15 times the least
    time of the links, a crash within 1.3, and nothing is faster than the links.
    """
    assert 1.0 <= twenty["join"]["of_bound"] <= 1.15
    assert 1.0 <= twenty["leave"]["of_bound"] <= 1.15
    assert 1.0 <= twenty["crash"]["of_bound"] <= 1.3


def test_no_copy_is_made_that_is_not_needed(twenty: dict[str, paper_07.Figures]) -> None:
    """PIM-30: 400 of 4,000 replicas go to, or away from, one of ten members."""
    assert {event: row["copies"] for event, row in twenty.items()} == dict.fromkeys(twenty, 400)
    data = 400 * SIZE.partition_bytes
    for row in twenty.values():
        assert data < row["sent_bytes"] < 1.02 * data


def test_a_member_holds_a_ninth_more_when_one_is_gone(
    twenty: dict[str, paper_07.Figures],
) -> None:
    """PIM-56: bytes of a member with nine members and with ten, and as before after the return."""
    leave, join = twenty["leave"], twenty["join"]
    ratio = leave["member_bytes_after"] / leave["member_bytes_before"]
    assert ratio == pytest.approx(10 / 9, abs=0.02)
    assert join["member_bytes_after"] == leave["member_bytes_before"]


def test_a_leaver_may_go_when_its_data_are_elsewhere(
    twenty: dict[str, paper_07.Figures],
) -> None:
    """PIM-53: the shutdown lasts as long as its rebalancing, not longer."""
    assert 0 < twenty["leave"]["shutdown_s"] <= twenty["leave"]["seconds"]
    assert twenty["join"]["shutdown_s"] is None


def test_a_lower_limit_is_never_exceeded() -> None:
    """PIM-25: with limit 5 a newcomer takes part in five at once, and all ten in at most 25. That
    is enough for the same shares of the least time.
    """
    rows = {row["event"]: row for row in paper_07.flow(SIZE, IDEAL, "5")}
    assert rows["join"]["at_once"] == 5
    assert rows["leave"]["at_once"] <= 25 and rows["crash"]["at_once"] <= 25
    assert rows["join"]["of_bound"] <= 1.15 and rows["leave"]["of_bound"] <= 1.15
    assert rows["crash"]["of_bound"] <= 1.3


def test_a_control_message_does_not_wait_behind_bulk_data() -> None:
    """PIM-46: a link has a connection for each, and a card sends packets of both in turn: the
    message passes at once, and what it takes of the card comes off the data.
    """
    card = Card(0.0)
    assert card.take_bulk(10.0, 1_000.0) == 10.0
    assert card.take_control(20.0, 5.0) == 20.0
    assert card.take_control(21.0, 5.0) == 25.0
    assert card.take_bulk(30.0, 1_000.0) == 1_020.0


def test_only_a_serial_run_is_called_serial() -> None:
    """PIM-47: the name follows what ran: serial is one migration at a time in all the cluster."""
    for row in paper_07.flow(SIZE, IDEAL, "serial"):
        assert (row["parallel"] == "serial") == (row["at_once"] == 1)
        assert row["partitions"] == SIZE.serial_partitions


def test_ten_maps_are_handed_over_in_parallel() -> None:
    """PIM-50: ten maps, one of ten members leaves: many migrations at once, at least twice as fast
    as one after the other, and a crash is repaired at least six times as fast; as many bytes.
    """
    ten = msgspec.structs.replace(IDEAL, maps=10)
    serial, parallel = (
        {row["event"]: row for row in paper_07.flow(SIZE, ten, mode)} for mode in ("serial", "20")
    )
    assert parallel["leave"]["at_once"] > 20 and serial["leave"]["at_once"] == 1
    assert serial["leave"]["seconds"] >= 2 * parallel["leave"]["seconds"]
    assert serial["crash"]["seconds"] >= 6 * parallel["crash"]["seconds"]
    sent = serial["leave"]["sent_bytes"]
    assert parallel["leave"]["sent_bytes"] == pytest.approx(sent, rel=0.01)


def test_the_longest_stall_of_a_member_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIM-55: pauses are the longest step and the greatest lateness of a tick since the start, in
    seconds; a shorter one later hides neither.
    """
    now = [1_000_000]
    monkeypatch.setattr(occupation, "now_us", lambda: now[0])
    stalls = occupation.Occupation()
    for spent_us, late_us in ((2_000, 30_000), (250_000, 400_000), (40_000, 0)):
        begun_us = now[0]
        now[0] += spent_us
        stalls.stepped(begun_us)
        stalls.ticked(late_us)
    assert stalls.gauges() == {
        "loop_step_longest_seconds": 0.25,
        "loop_late_longest_seconds": 0.4,
    }


def test_the_processor_slows_members_down() -> None:
    """PIM-46: with a cost of processing the same change takes longer, by the cost of its busiest
    member at least: 400 copies of 16 MB into one newcomer at 10 ms a MiB are 62 s.
    """
    slow = msgspec.structs.replace(IDEAL, ingest_us_per_mib=10_000.0)
    rows = {row["event"]: row for row in paper_07.flow(SIZE, slow, "20")}
    assert 400 * SIZE.partition_bytes / (1 << 20) * 0.01 <= rows["join"]["seconds"] < 80.0


def test_the_cost_of_a_copy_is_measured_on_a_real_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIM-46: every entry arrives, and each figure is a positive time."""
    monkeypatch.setattr(copy_cost, "ENTRIES", 64)
    monkeypatch.setattr(copy_cost, "ROUNDS", 1)
    assert all(value > 0 for value in copy_cost.measure().values())


def test_a_cluster_that_cannot_settle_is_an_error() -> None:
    """Goal: the model never runs for ever in silence. Method: messages to a member that hears
    nothing, and no time left.
    """
    grid = GridModel(2, CoreSettings(partition_count=5), GridModelSettings(1_000), "4.1")
    grid.install([*grid.members, grid.make()])
    grid._events.clear()
    with pytest.raises(OperationError, match="does not settle"):
        grid.run()


def test_the_table_stands_beside_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIM-50, PIM-51, PIM-52: rows name the paper's seconds and their own; every step is told."""
    monkeypatch.setattr(paper_07, "RUNS", (("20", 10),))
    monkeypatch.setattr(paper_07, "RUNS_WITH_CPU", ())
    monkeypatch.setattr(copy_cost, "ENTRIES", 64)
    told: list[tuple[int, int]] = []
    figures = paper_07.run(lambda done, total: told.append((done, total)), 512, SIZE)
    assert [row["paper_s"] for row in figures["rows"]] == [107, 244, 51]
    assert told == [(1, 3), (2, 3), (3, 3)]
    [(title, columns, rows)] = paper_07.tables(figures)
    assert "2000 partitions" in title
    assert all(len(row) == len(columns) for row in rows)
