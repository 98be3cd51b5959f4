"""Goal: a copy takes the place of what it was asked for, and of nothing that has counted more."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.replication_net import SECOND, M, Net, key, migration
from tests.unit.test_replication_anti_entropy import lose, permits, said, settled

from whimbrel.core.ids import MemberId, Namespace
from whimbrel.core.messages import (
    SyncRequested,
    TransferSent,
)
from whimbrel.core.model import MigrationKind
from whimbrel.errors import InvariantViolation, SerializationError


@pytest.mark.parametrize(("whole", "number"), [(True, 2), (False, 1)])
def test_a_copy_that_missed_an_operation_is_doubted_at_once(whole: bool, number: int) -> None:
    """Goal: a replica that a sync has made anew, and that lacks what passed meanwhile, is not
    called in step. Method: one operation is lost between the request and the last piece.
    """
    net = settled(entries=60, whole=whole)
    lose(net, "m")
    host = net["b"]
    sent = [0]

    def drop(sender: MemberId, target: MemberId, what: object) -> bool:
        if isinstance(what, TransferSent):
            sent[0] += 1
            if sent[0] == number:
                lose(net, "m", number=9)
                net.put("m", 10, "passes")
        return False

    net.drop = drop
    while host.plane.syncs.counters["syncs_completed"] == 0:
        net.advance(SECOND // 100)
    assert host.fragment(0, "m").is_dirty, "the gap was seen"
    assert host.fragment(0, "m") in host.plane.doubts.dirty
    assert host.plane.unsettled() > 0
    net.drop = None
    net.advance(6 * SECOND)
    net.check_equal(0, "ab", "m")


def held_back(net: Net, kind: type) -> list[tuple[MemberId, MemberId, object]]:
    """Everything of a kind that is sent from now on; it does not arrive."""
    stopped: list[tuple[MemberId, MemberId, object]] = []

    def stop(sender: MemberId, target: MemberId, what: object) -> bool:
        if isinstance(what, kind):
            stopped.append((sender, target, what))
            return True
        return False

    net.drop = stop
    return stopped


def deliver(net: Net, stopped: list[tuple[MemberId, MemberId, object]]) -> None:
    """What was held back arrives; nothing is held back any more."""
    net.drop = None
    for sender, target, what in stopped:
        net.hosts[target].plane.on_message(sender, what)  # type: ignore[arg-type]
    net.pump()


def test_a_copy_does_not_replace_what_was_begun_since() -> None:
    """AE-24, R4: a copy takes the place of what was in doubt; a map that was destroyed and begun
    anew is not. Method: the answer is made in the map's next life and overtaken by a write.
    """
    net = settled()
    net["b"].plane.doubts.mark_dirty(net["b"].fragment(0, "m"))
    requests = held_back(net, SyncRequested)
    net.advance(2 * SECOND)
    for name in "ab":
        net[name].plane.holdings.destroy(M, 5)
    net.put("m", 1, "copied")
    net.pump()
    answers = held_back(net, TransferSent)
    for sender, target, what in requests:
        net.hosts[target].plane.on_message(sender, what)  # type: ignore[arg-type]
    net.pump()
    reply = net.put("m", 2, "overtakes the copy")
    net.pump()
    assert answers and reply.remaining == 0
    deliver(net, answers)
    assert net["b"].plane.syncs.counters["syncs_completed"] == 1, "nothing was wrong with it"
    net.check_equal(0, "ab", "m")
    assert len(net["b"].content(0, "m")) == 2
    net.advance(8 * SECOND)
    assert permits(net["a"].plane) == permits(net["b"].plane) == 0


def test_a_copy_that_too_much_passed_by_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: what a backup has acknowledged it has, also while it is healed. Method: more operations
    than are remembered overtake the first piece of an answer.
    """
    monkeypatch.setattr("whimbrel.core.replication.syncs.LOG_MAX", 3)
    net = settled()
    lose(net, "m")
    stopped = held_back(net, TransferSent)
    while not stopped:
        net.advance(SECOND // 4)
    replies = [net.put("m", 70 + number, "overtakes") for number in range(5)]
    net.pump()
    assert all(reply.remaining == 0 for reply in replies)
    deliver(net, stopped)
    assert not {key(70 + number) for number in range(5)} - net["b"].content(0, "m").keys()
    net.advance(8 * SECOND)
    net.check_equal(0, "ab", "m")
    assert len(said(net, SyncRequested)) == 2
    assert permits(net["a"].plane) == permits(net["b"].plane) == 0


def test_a_copy_that_was_not_asked_for_is_not_held() -> None:
    """AE-20: an answer brings what it was asked for. Method: one that brings another map, too."""
    net = settled(entries=2)
    net["b"].plane.doubts.mark_dirty(net["b"].fragment(0, "m"))
    stopped = held_back(net, TransferSent)
    net.advance(2 * SECOND)
    ((sender, target, what),) = stopped[:1]
    assert isinstance(what, TransferSent) and len(what.parts) == 1
    more = msgspec.structs.replace(what.parts[0], namespace=Namespace("map/other"))
    deliver(net, [(sender, target, msgspec.structs.replace(what, parts=(*what.parts, more)))])
    assert "map/other" not in net["b"].plane.partitions[0].fragments
    assert net["b"].plane.syncs.counters["syncs_completed"] == 1
    net.check_equal(0, "ab", "m")


def older(message: object) -> TransferSent:
    """An answer whose vectors count one less: no primary makes it."""
    assert isinstance(message, TransferSent)
    parts = tuple(
        msgspec.structs.replace(
            part,
            vector=msgspec.structs.replace(
                part.vector, counters=(part.vector.counters[0] - 1, *part.vector.counters[1:])
            ),
        )
        for part in message.parts
    )
    return msgspec.structs.replace(message, parts=parts)


def test_a_copy_that_counts_less_is_refused() -> None:
    """AE-11, safety rule 6: under one lineage no copy is older than what was acknowledged before
    it was asked for. Method: vectors that no primary makes, for a sync and for a migration.
    """
    net = settled(entries=2)
    backup = net["b"].plane
    fragment = net["b"].fragment(0, "m")
    backup.doubts.mark_dirty(fragment)
    stopped = held_back(net, TransferSent)
    net.advance(2 * SECOND)
    ((sender, target, what),) = stopped[:1]
    deliver(net, [(sender, target, older(what))])
    assert net["b"].fragment(0, "m") is fragment and fragment.is_dirty
    net.advance(8 * SECOND)
    net.check_equal(0, "ab", "m")
    copy = migration(MigrationKind.COPY, "b", 5, new=1)
    backup.roles.begin_destination(copy)
    with pytest.raises(SerializationError, match="counts less"):
        backup.roles.ingest(copy, older(what).parts)


def test_nothing_is_replaced_by_what_counts_less() -> None:
    """Goal: whatever path a copy comes by, a member stops rather than forget what it has
    acknowledged. Method: a copy of the same lineage, of one operation before.
    """
    net = settled()
    holdings = net["b"].plane.holdings
    partition, held = net["b"].plane.partitions[0], net["b"].fragment(0, "m")
    copy = holdings.make(partition.pid, held.namespace)
    copy.install(held.vector(), 1)
    copy.value -= 1
    with pytest.raises(InvariantViolation, match="counts no less"):
        holdings.hold(partition, copy)
    assert net["b"].fragment(0, "m") is held
    copy.value += 1
    assert holdings.hold(partition, copy)
