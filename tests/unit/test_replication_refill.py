"""A primary that returns to its seat with empty hands gets its data back (GCM-09, AE-11)."""

from __future__ import annotations

import msgspec
from tests.unit.replication_net import SECOND, SETTINGS, Net, key, map_of

from whimbrel.core.effects import Send
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import RefillRefused, RefillRequested, TransferSent
from whimbrel.core.model import ClusterState, MemberList
from whimbrel.core.replication.vectors import make_lineage

ROW_VERSION = 5


class Scene:
    """Data on a row of three, and members of it that began anew while joining was forbidden."""

    def __init__(self, partitions: int = 1, parallel: int = 10) -> None:
        settings = msgspec.structs.replace(
            SETTINGS, partition_count=partitions, replication_max_parallel=parallel
        )
        self.net = Net("abc", settings)
        self.lost: list[tuple[int, int]] = []
        """(partition, backups lost), as the returned primary tells the migration room."""
        for pid in range(partitions):
            self.net.set_row(pid, "abc", ROW_VERSION)
            self.net.put("b2", 1, "x", pid)
        self.net.pump()
        self.net.log.clear()

    def restart(self, names: str, here: str) -> None:
        """These processes begin anew under their identities; ``here`` is on the list then."""
        net = self.net
        for number, name in enumerate(names):
            host = net.restart(name, 100 + number)
            host.plane.recovery.on_seat_lost = lambda pid, lost: self.lost.append((pid, lost))
        infos = tuple(net[name].info for name in here)
        missing = tuple(net[name].info for name in names)
        members = MemberList(9, infos, state=ClusterState.FROZEN, missing=missing)
        for name in here:
            plane = net[name].plane
            before, plane.ctx.members = plane.ctx.members, members
            plane.ctx.now_us = net.now_us
            plane.view_changed(before, members)
        for pid in range(net.settings.partition_count):
            net.set_row(pid, "abc", ROW_VERSION, only=names)

    def said(self, kind: type) -> list[object]:
        return [message for _, _, message in self.net.log if isinstance(message, kind)]


def test_a_returned_primary_asks_in_the_story_of_its_row() -> None:
    """Goal: what a timer asks for follows from the row in which there is no data."""
    scene = Scene()
    scene.restart("a", here="abc")
    plane = scene.net["a"].plane
    row = plane.ctx.cause
    plane.ctx.effects.clear()
    plane.ctx.resume("other-1")
    plane.recovery.on_timer()
    assert [one.cause for one in plane.ctx.effects if isinstance(one, Send)] == [row]


def test_a_returned_primary_says_how_many_backups_are_gone() -> None:
    """GCM-09: the number of lost backups is that of the places before the one that had the data.
    Method: the first backup is away, the second one gives.
    """
    scene = Scene()
    scene.restart("a", here="ac")
    scene.net.advance(2 * SECOND)
    assert scene.lost == [(0, 1)]
    assert list(scene.net["a"].content(0, "b2")) == [key(1)]


def test_a_returned_primary_counts_under_a_name_of_its_process() -> None:
    """AE-11: its predecessor may have counted under the same row. Method: the lineages."""
    scene = Scene()
    before = scene.net["c"].fragment(0, "b2").lineage
    scene.restart("a", here="abc")
    scene.net.advance(2 * SECOND)
    host = scene.net["a"]
    expected = make_lineage(ROW_VERSION, f"a@{host.ctx.started_us}")
    assert host.plane.partitions[0].lineage == host.fragment(0, "b2").lineage == expected != before


def test_a_backup_without_data_is_passed_over_at_once() -> None:
    """Goal: nobody waits for a time-out when the asked has nothing. Method: the first backup
    returned with empty hands as well, the second one gives.
    """
    scene = Scene()
    scene.restart("ab", here="abc")
    scene.net.advance(SECOND)
    assert scene.said(RefillRefused)
    assert scene.lost == [(0, 1)]


def test_only_a_row_that_both_know_is_given_data_for() -> None:
    """Goal: a backup whose row is another one gives nothing: it may be of another time. Method: a
    request that names a version of before.
    """
    scene = Scene()
    net = scene.net
    request = RefillRequested(7, PartitionId(0), ROW_VERSION - 1)
    net["b"].plane.on_message(MemberId("a"), request)
    net.pump()
    assert scene.said(RefillRefused) == [RefillRefused(7, PartitionId(0), False)]
    assert not scene.said(TransferSent)


def test_no_more_is_asked_for_at_once_than_syncs_are_allowed() -> None:
    """AE-14: many seats are filled some at a time. Method: nobody answers."""
    scene = Scene(partitions=6, parallel=2)
    scene.net.drop = lambda sender, target, what: isinstance(what, RefillRequested)
    scene.restart("a", here="abc")
    scene.net.advance(SECOND)
    assert len(scene.said(RefillRequested)) == 2


def test_a_repeated_request_is_given_one_copy() -> None:
    """Goal: whoever asks twice by one number is given once (AE-16): a second copy would begin with
    the same number of a message, and be taken for the first.
    """
    scene = Scene()
    net = scene.net
    request = RefillRequested(7, PartitionId(0), ROW_VERSION)
    for _ in range(2):
        net["b"].plane.on_message(MemberId("a"), request)
    assert len(net["b"].plane.recovery.exchange.given) == 1
    net.pump()
    assert len(scene.said(TransferSent)) == 1


def test_a_returned_primary_has_what_it_was_given_and_nothing_else() -> None:
    """AE-11: what came before it had its data is in nobody's count. Method: a fragment that its
    giver does not have.
    """
    scene = Scene()
    scene.net.drop = lambda sender, target, what: isinstance(what, RefillRequested)
    scene.restart("a", here="abc")
    plane = scene.net["a"].plane
    stray = plane.holdings.make(PartitionId(0), map_of("stray"))
    plane.holdings.hold(plane.partitions[0], stray)
    scene.net.drop = None
    scene.net.advance(20 * SECOND)
    assert scene.lost == [(0, 0)]
    assert list(plane.partitions[0].fragments) == [map_of("b2")]
