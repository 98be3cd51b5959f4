"""Goal: backups are applied once, in order, acknowledged, refused or counted as missed."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.replication_net import SECOND, SETTINGS, M, Net, key, make_row, value

from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import SyncRequested, TableRequested
from whimbrel.core.replication.outbox import (
    ACKS,
    FAILED_STALE,
    FAILED_TIMEOUT,
    REFUSAL,
    PendingReply,
)
from whimbrel.errors import OverloadedError, ProtocolError, RetryableError


def two() -> Net:
    """Members a and b, partition 0 on both, nothing under way."""
    net = Net("ab")
    net.set_row(0, "ab", 2)
    net.pump()
    return net


def frame(net: Net, sender: str = "a") -> bytes:
    """The one frame that a member has to send now."""
    ((_, payload),) = net[sender].plane.outgoing.take_backups()
    return payload


def requests(net: Net) -> list[SyncRequested]:
    """All sync requests with namespaces so far."""
    return [m for _, _, m in net.log if isinstance(m, SyncRequested) and m.namespaces]


def test_a_put_reaches_its_backup_and_is_acknowledged() -> None:
    """R4: the reply is complete when the backup has applied the write, not before."""
    net = two()
    reply = net.put("m", 1, "x")
    assert reply.remaining == 1 and not net["a"].plane.outgoing.completed
    net.pump()
    assert (
        net["a"].plane.outgoing.completed == [reply] and reply.remaining == 0 and not reply.failed
    )
    net.check_equal(0, "ab", "m")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_vector_travels_with_each_operation(count: int) -> None:
    """AE-03, AE-04: after one put with k backups replica r has the slots from r-1 to k-1."""
    net = Net("abcd")
    net.set_row(0, "abcd", 4)
    net.pump()
    name = "m" if count == 1 else f"b{count}"
    assert net.put(name, 1, "x").remaining == count
    net.pump()
    net.check_equal(0, "abcd", name)
    assert net["a"].fragment(0, name).counters() == (1,) * count + (0,) * (6 - count)
    coldest = net["abcd"[count]].fragment(0, name)
    assert coldest.counters() == (0,) * (count - 1) + (1,) + (0,) * (6 - count)
    assert not requests(net)


def test_requested_counts_rise_even_when_nobody_can_hold_them() -> None:
    """AE-02: two backups asked for, one there: both counters rise, one acknowledgement comes."""
    net = two()
    assert net.put("b2", 1, "x").remaining == 1
    assert net["a"].fragment(0, "b2").counters() == (1, 1, 0, 0, 0, 0)


def test_maps_without_backups_and_with_asynchronous_ones() -> None:
    """No backup: nothing is counted or sent. Asynchronous: sent, but nobody waits."""
    net = two()
    assert net.put("b0", 1, "x").remaining == 0 and not net["a"].plane.outgoing.take_backups()
    assert net.put("a1", 1, "x").remaining == 0
    net.pump()
    net.check_equal(0, "ab", "a1")
    assert net["b"].content(0, "b0") == {}


def test_a_member_with_nothing_to_send_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a turn costs nothing for what did not happen in it, and nothing stays behind. Method:
    the two hints through a put, a lost link, and a backup that cannot keep up.
    """
    net = two()
    primary, backup = net["a"].plane, net["b"].plane

    def hints() -> tuple[bool, bool]:
        return primary.outgoing.has_backups, backup.incoming.owes_acks

    assert hints() == (False, False)
    net.put("m", 1, "x")
    assert hints() == (True, False)
    backup.incoming.apply_backups(MemberId("a"), frame(net))
    assert hints() == (False, True)
    assert backup.incoming.take_acks() and hints() == (False, False)
    primary.link_restored(MemberId("b"))
    backup.link_restored(MemberId("a"))
    assert hints() == (True, True)
    assert primary.outgoing.take_backups() and backup.incoming.take_acks()
    net.cut("a", "b")
    monkeypatch.setattr("whimbrel.core.replication.outbox.BYTES_IN_FLIGHT_MAX", 5_000)
    net.put("m", 1, "v" * 5_000)
    primary.outgoing.take_backups()
    assert primary.outgoing.must_ask and hints() == (True, False)
    net.mend("a", "b")
    net.pump()
    assert primary.outgoing.must_ask == 0 and hints() == (False, False)


def test_two_maps_count_independently() -> None:
    """AE-17, AE-19: a namespace has its own vector and an operation carries only that one."""
    net = two()
    net.put("m", 1, "x")
    net.put("n", 1, "x")
    net.put("n", 2, "x")
    net.pump()
    assert net["b"].fragment(0, "m").value == 1 and net["b"].fragment(0, "n").value == 2


def test_a_repeated_frame_is_acknowledged_but_not_applied_again() -> None:
    """AE-09: the same backups twice have one effect."""
    net = two()
    net.put("m", 1, "x")
    payload = frame(net)
    backup = net["b"].plane.incoming
    backup.apply_backups(MemberId("a"), payload)
    first = backup.take_acks()
    applied = net["b"].plane.counters["backups_applied"]
    backup.apply_backups(MemberId("a"), payload)
    assert backup.take_acks() == first and net["b"].plane.counters["backups_applied"] == applied
    assert net["b"].fragment(0, "m").value == 1


def test_an_older_operation_is_ignored() -> None:
    """AE-06: received below own changes nothing and is acknowledged all the same (bug 30)."""
    net = two()
    net.put("m", 1, "old")
    net.pump()
    net.put("m", 1, "new")
    net.pump()
    # The same primary sends in a new stream, as to a process that it takes for another one.
    net["a"].fragment(0, "m").value = 0
    net["a"].plane.outgoing.outboxes.clear()
    net["a"].plane.outgoing.refresh_targets(net["a"].plane.partitions[0])
    net.put("m", 1, "stale")
    net.pump()
    assert net["b"].content(0, "m") == {key(1): value("new")}
    assert net["b"].fragment(0, "m").value == 2 and not net["b"].fragment(0, "m").is_dirty
    assert net["b"].plane.counters["backups_ignored"] == 1


def test_a_gap_is_applied_and_asks_for_a_sync() -> None:
    """AE-07, AE-08: versions advance on the gap, the namespace is dirty, one request goes out."""
    net = two()
    net.put("m", 1, "x")
    net.pump()
    net["a"].fragment(0, "m").value += 1  # an operation that nobody sent
    net.put("m", 2, "y")
    payload = frame(net)
    net["b"].plane.incoming.apply_backups(MemberId("a"), payload)
    fragment = net["b"].fragment(0, "m")
    assert fragment.value == 3 and fragment.is_dirty
    assert net["b"].plane.counters["backups_applied"] == 2
    assert net["b"].content(0, "m")[key(2)] == value("y")
    net.pump()
    assert len(requests(net)) == 1
    net.check_equal(0, "ab", "m")


def test_a_thousand_backups_to_a_dirty_replica_make_one_request() -> None:
    """AE-13: one request in flight, whatever arrives; the next one only after the time-out."""
    net = two()
    net.put("m", 1, "x")
    net.pump()
    net["a"].fragment(0, "m").value += 1
    net.drop = lambda sender, target, what: isinstance(what, SyncRequested)
    for number in range(1_000):
        net.put("m", number, "y")
        if number % 100 == 0:
            net.pump()
    net.pump()
    assert len(requests(net)) == 1
    net.advance(9 * SECOND)
    assert len(requests(net)) == 1
    net.drop = None
    net.advance(4 * SECOND)
    assert len(requests(net)) == 2
    net.check_equal(0, "ab", "m")


def test_a_backup_for_another_place_is_not_applied() -> None:
    """AE-10: we are replica 2 in our table, the map has one backup: not ours, and no refusal."""
    net = Net("abc")
    net.set_row(0, "ab", 2)
    net.pump()
    net.set_row(0, "acb", 3, only="b")
    reply = net.put("m", 1, "x")
    net.pump()
    assert net["b"].content(0, "m") == {} and not reply.failed
    assert net["b"].plane.counters["backups_refused"] == 0


def test_a_stale_primary_is_told() -> None:
    """Decision 5: not the primary in our table and no newer version: the write is refused, and
    when its primary has heard why, its outcome is unknown.
    """
    net = two()
    net.set_row(0, "ba", 4, only="b")
    reply = net.put("m", 1, "x")
    net.pump()
    assert net["b"].plane.counters["backups_refused"] == 1 and reply.remaining == 1
    net.set_row(0, "ba", 4, only="a")
    assert reply.failed == FAILED_STALE and net["a"].plane.outgoing.completed == [reply]
    assert net["b"].content(0, "m") == {}
    assert not [m for _, _, m in net.log if isinstance(m, TableRequested)], "a is the master"


def test_a_stale_primary_asks_the_master_for_the_table() -> None:
    """Decision 5: it asks at most once a second."""
    net = Net("cab")
    net.set_row(0, "ab", 2)
    net.set_row(0, "ba", 4, only="b")
    for number in range(3):
        net.put("m", number, "x")
        net.pump()
    assert len([m for _, to, m in net.log if isinstance(m, TableRequested)]) == 1


def test_a_refusal_is_not_lost_with_its_acknowledgement() -> None:
    """A repeated frame whose refused write was not answered is refused again, not acknowledged."""
    net = two()
    net.set_row(0, "ba", 4, only="b")
    net.drop = lambda sender, target, what: sender == "b"
    reply = net.put("m", 1, "x")
    net.pump()
    assert not reply.failed and reply.remaining == 1
    net.drop = None
    net.cut("a", "b")
    net.mend("a", "b")
    net.pump()
    assert net["b"].plane.counters["backups_refused"] == 1 and reply.remaining == 1
    net.set_row(0, "ba", 4, only="a")
    assert reply.failed == FAILED_STALE


def test_operations_of_a_newer_row_are_taken() -> None:
    """Decision 5: the sender's row is newer than ours; our row finds the data there."""
    net = Net("ab")
    net.set_row(0, "ab", 2, only="a")
    reply = net.put("m", 1, "x")
    net.pump()
    replica = net["b"].plane.partitions[0]
    assert reply.remaining == 0 and replica.ahead_version > replica.version
    net.set_row(0, "ab", 2, only="b")
    net.pump()
    net.check_equal(0, "ab", "m")
    assert not replica.is_behind
    net.advance(SECOND)
    assert net["b"].plane.unsettled() == 0 and not requests(net)


def test_a_former_primary_that_is_primary_again_has_stale_operations_too() -> None:
    """Decision 5: an operation of an earlier term is refused, never acknowledged unapplied."""
    net = Net("abc")
    net.set_row(0, "ab", 2)
    net.pump()
    net.cut("a", "b")
    reply = net.put("m", 1, "sent in the first term")
    net.pump()
    net.set_row(0, "cb", 3)
    net.set_row(0, "ab", 4)
    net.mend("a", "b")
    net.pump()
    assert reply.failed == FAILED_STALE
    assert net["b"].content(0, "m") == {}


def test_a_backup_that_stays_one_is_waited_for_though_the_primary_moved() -> None:
    """R4, D1: the new primary has the write, but a single copy is not what the client asked for."""
    net = Net("abc")
    net.set_row(0, "ab", 2)
    net.pump()
    net.cut("a", "b")
    reply = net.put("m", 1, "x")
    net.pump()
    net.set_row(0, "cb", 3)
    assert reply.remaining == 1 and not net["a"].plane.outgoing.completed
    net.mend("a", "b")
    net.pump()
    assert reply.failed == FAILED_STALE


def test_frames_are_sent_again_after_the_link_was_lost() -> None:
    """Decision 4: nothing is lost, order is kept, repeats do no harm."""
    net = two()
    first = net.put("m", 1, "x")
    net.drop = lambda sender, target, what: True
    net.pump()
    net.drop = None
    net.cut("a", "b")
    second = net.put("m", 2, "y")
    net.pump()
    assert net["b"].content(0, "m") == {}
    net.mend("a", "b")
    net.pump()
    assert first.remaining == 0 and second.remaining == 0
    net.check_equal(0, "ab", "m")
    assert not requests(net)


def test_a_frame_that_overtakes_lost_ones_waits_for_them() -> None:
    """A frame out of order is not applied; the receiver asks, all is repeated in order."""
    net = two()
    net.put("m", 1, "x")
    frame(net)  # lost
    net.put("m", 2, "y")
    net.pump()
    net.check_equal(0, "ab", "m")
    assert not requests(net) and len(net["b"].content(0, "m")) == 2


def test_answers_lost_with_their_own_link_are_repeated() -> None:
    """R4: only the way back broke; when it stands again the backup says what it has applied."""
    net = two()
    net.cut("b", "a")
    reply = net.put("m", 1, "x")
    net.pump()
    assert reply.remaining == 1
    net.mend("b", "a")
    net.pump()
    assert reply.remaining == 0 and not reply.failed


def test_bytes_under_way_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Safety rule 9: large values stop writes before their number does."""
    monkeypatch.setattr("whimbrel.core.replication.outbox.BYTES_IN_FLIGHT_MAX", 5_000)
    net = two()
    net.cut("a", "b")
    net.put("m", 1, "v" * 5_000)
    net.pump()
    with pytest.raises(OverloadedError):
        net.put("m", 2, "x")
    net.mend("a", "b")
    net.pump()
    assert net.put("m", 2, "x").remaining == 1


def test_a_receiver_that_is_another_process_gets_a_new_stream() -> None:
    """A member restarted with its old id knows nothing of our frames: we begin again with one."""
    net = two()
    for number in range(3):
        net.put("m", number, "x")
        net.pump()
    fresh = net.restart("b", 77)
    fresh.ctx.members = net["a"].ctx.members
    net.set_row(0, "ab", 2, only="b")
    reply = net.put("m", 9, "z")
    net.pump()
    assert reply.remaining == 0
    net.advance(3 * SECOND)
    net.check_equal(0, "ab", "m")


def test_a_backup_that_leaves_releases_its_replies() -> None:
    """R4: what waited for a member that left the list counts as done, and says so."""
    net = two()
    net.cut("a", "b")
    reply = net.put("m", 1, "x")
    net.pump()
    net.crash("b")
    net.set_members("a")
    assert net["a"].plane.outgoing.completed == [reply]
    assert reply.released == 1 and not reply.failed
    assert net.put("m", 2, "x").remaining == 0, "the row still names it, the list does not"


def test_a_member_that_ceases_to_be_a_backup_releases_its_replies() -> None:
    """Replies wait no longer for a former backup of that partition; other partitions still do."""
    net = Net("abc")
    net.set_row(0, "ab", 2)
    net.set_row(1, "ab", 2)
    net.cut("a", "b")
    moved, stays = net.put("m", 1, "x", pid=0), net.put("m", 1, "x", pid=1)
    net.pump()
    net.set_row(0, "ac", 3)
    assert moved.released == 1 and net["a"].plane.outgoing.completed == [moved]
    assert stays.remaining == 1


def test_a_reply_does_not_wait_for_ever() -> None:
    """R4: after backup_timeout the outcome is indeterminate, and a late acknowledgement is too."""
    net = two()
    net.drop = lambda sender, target, what: sender == "b"
    reply = net.put("m", 1, "x")
    net.advance(9 * SECOND)
    assert not reply.failed
    net.advance(3 * SECOND)
    assert reply.failed == FAILED_TIMEOUT and net["a"].plane.outgoing.completed == [reply]
    net.drop = None
    net.cut("a", "b")
    net.mend("a", "b")
    net.pump()
    assert net["a"].plane.outgoing.completed == [reply]


def test_a_backup_that_cannot_keep_up_stops_writes_before_they_happen() -> None:
    """Safety rule 9: the operations under way have a named limit; a refused write has no effect."""
    settings = msgspec.structs.replace(SETTINGS, unacknowledged_backups_max=5)
    net = Net("ab", settings)
    net.set_row(0, "ab", 2)
    net.pump()
    net.cut("a", "b")
    for number in range(5):
        net.put("m", number, "x")
        net.pump()
    with pytest.raises(OverloadedError):
        net.put("m", 9, "x")
    assert len(net["a"].content(0, "m")) == 5
    net.mend("a", "b")
    net.pump()
    assert net.put("m", 9, "x").remaining == 1


def test_large_turns_are_split_into_frames() -> None:
    """A frame ends at about 256 KiB, and the last acknowledgement completes the reply."""
    net = two()
    plane = net["a"].plane
    replies = [net.put("m", number, "v" * 100_000) for number in range(10)]
    payloads = plane.outgoing.take_backups()
    assert len(payloads) == 4 and max(len(p) for _, p in payloads) < 400_000
    plane.link_lost(MemberId("b"))
    plane.link_restored(MemberId("b"))
    net.pump()
    assert all(reply.remaining == 0 for reply in replies)
    net.check_equal(0, "ab", "m")


def test_clients_that_count_are_told_by_the_backup() -> None:
    """Decision 7: an applied operation names client and correlation; asynchronous ones do not."""
    net = Net("abc", msgspec.structs.replace(SETTINGS, structures=(SETTINGS.structures[0],)))
    net.set_row(0, "abc", 3)
    net.pump()
    plane = net["a"].plane
    uuid = bytes(range(16))
    reply = PendingReply(ack_to=uuid + (-7).to_bytes(8, "little", signed=True))
    net["a"].maps.put(plane.partitions[0], M, key(1), value("x"), reply)
    net.pump()
    assert net["b"].plane.incoming.take_notifications() == [(uuid, -7, MemberId("a"))]
    assert net["b"].plane.incoming.take_notifications() == []


def test_damaged_frames_are_refused() -> None:
    """Bug 31, safety rule 6: a damaged frame raises, is not acknowledged, and advances nothing."""
    net = two()
    net.put("m", 1, "x")
    payload = frame(net)
    backup = net["b"].plane.incoming
    for size in range(0, len(payload) - 1, 3):
        with pytest.raises(ProtocolError):
            backup.apply_backups(MemberId("a"), payload[:size])
    assert backup.take_acks() == []
    backup.apply_backups(MemberId("a"), payload)
    assert net["b"].fragment(0, "m").value == 1
    with pytest.raises(ProtocolError):
        net["a"].plane.outgoing.apply_acks(MemberId("b"), b"short")


@pytest.mark.parametrize("gap", [0, 1])
def test_nobody_acknowledges_what_was_never_sent(gap: int) -> None:
    """Safety rule 5: a migration that waits for its backups believes the number, so frames to
    come must not be in it. Method: the frame after the last, alone and with a refusal; then the
    writes go on as if nothing had been said.
    """
    net = two()
    plane, backup = net["a"].plane, MemberId("b")
    reply = net.put("m", 1, "x")
    net["b"].plane.incoming.apply_backups(MemberId("a"), frame(net))
    outbox = plane.outgoing.outboxes[backup]
    for refusals in range(2):
        head = (outbox.incarnation, outbox.stream, outbox.sequence + 1, gap, refusals)
        with pytest.raises(ProtocolError, match="frame 2 is acknowledged"):
            plane.outgoing.apply_acks(backup, ACKS.pack(*head) + REFUSAL.pack(1, 0, 1) * refusals)
        assert (outbox.acknowledged, outbox.in_flight, reply.remaining) == (0, 1, 1)
        assert not outbox.must_resend and not plane.outgoing.completed
    later = net.put("m", 2, "y")
    assert later.remaining == 1
    net.pump()
    assert plane.outgoing.completed == [reply, later] and not reply.failed
    net.check_equal(0, "ab", "m")


def test_destroying_a_map_forgets_data_and_vectors() -> None:
    """AE-17, bug 34: nothing remains; the map begins anew under a lineage of its own."""
    net = two()
    for number in range(3):
        net.put("m", number, "x")
    net.pump()
    for name in "ab":
        net[name].destroy("m", 1)
        assert not net[name].plane.partitions[0].fragments
    net.put("m", 1, "y")
    net.pump()
    net.check_equal(0, "ab", "m")
    assert not requests(net)


def test_a_map_begun_again_before_its_backup_forgot_the_old_one() -> None:
    """AE-11: the second life counts under another lineage, so old counters cannot hide it."""
    net = two()
    for number in range(3):
        net.put("m", number, "old")
    net.pump()
    net["a"].destroy("m", 1)
    net.put("m", 7, "new")
    net.pump()
    net.advance(3 * SECOND)
    net.check_equal(0, "ab", "m")
    assert net["b"].content(0, "m") == {key(7): value("new")}


def test_rows_without_us_take_our_data_away() -> None:
    """ADL-73: index -1 or above the backup count means no data and no vector."""
    net = Net("abcd")
    net.set_row(0, "abcd", 4)
    net.put("m", 1, "x")
    net.put("b3", 1, "x")
    net.pump()
    net.set_row(0, "acdb", 8)
    assert list(net["b"].plane.partitions[0].fragments) == ["map/b3"]
    net.set_row(0, "acd", 9)
    assert not net["b"].plane.partitions[0].fragments
    net["b"].plane.roles.row_changed(PartitionId(0), make_row("acd"), make_row("acd"), 10)


def test_nobody_to_send_to_is_no_acknowledgement() -> None:
    """Goal: a write whose backups are not there waits for none. Method: its reply."""
    net = Net("a")
    net.set_row(0, "a", 2)
    net.put("m", 1, "x")
    plane = net["a"].plane
    fragment = net["a"].fragment(0, "m")
    reply = PendingReply()
    plane.holdings.change(plane.partitions[0], fragment, b"", reply)
    assert reply.remaining == 0


def test_frames_of_one_turn_are_acknowledged_together() -> None:
    """Goal: answers are cumulative. Method: two frames arrive before any answer leaves."""
    net = two()
    backup = net["b"].plane.incoming
    for number in range(2):
        net.put("m", number, "x")
        backup.apply_backups(MemberId("a"), frame(net))
    assert len(backup.take_acks()) == 1


def test_an_unknown_stream_is_asked_to_begin_anew() -> None:
    """Goal: what a younger process answers says "gap" and nothing else. Method: its bytes."""
    net = two()
    net.put("m", 1, "x")
    frame(net)
    net.put("m", 2, "x")
    younger = Net("b")["b"].plane.incoming
    younger.apply_backups(MemberId("a"), frame(net))
    ((_, payload),) = younger.take_acks()
    _, _, sequence, gap, count = ACKS.unpack(payload)
    assert (sequence, gap, count) == (0, 1, 0)


def test_nothing_is_under_way_to_a_member_that_left() -> None:
    """Goal: a closed outbox counts nothing. Method: close one with frames under way."""
    net = two()
    net.put("m", 1, "x")
    outbox = net["a"].plane.outgoing.outboxes[MemberId("b")]
    net["a"].plane.outgoing.take_backups()
    assert outbox.in_flight == 1
    outbox.close([])
    assert outbox.in_flight == outbox.bytes_in_flight == 0


def test_a_backup_that_moves_up_without_a_copy_counts_for_its_new_place() -> None:
    """AE-03: it fills the hotter slot with its own, so that it stays in step. Method: a row that a
    repair made, replica 2 becoming replica 1.
    """
    net = Net("abc")
    net.set_row(0, "abc", 2)
    for number in range(3):
        net.put("b2", number, "x")
    net.pump()
    net.set_row(0, "ac", 3)
    net.put("b2", 5, "y")
    net.pump()
    net.check_equal(0, "ac", "b2")


def test_a_replica_in_doubt_counts_on() -> None:
    """AE-06, AE-07: what follows on a gap is the next one, though its replica is in doubt: it is
    applied once and counted. Method: the sync that would end the doubt does not get through.
    """
    net = two()
    net.put("m", 1, "x")
    net.pump()
    net["a"].fragment(0, "m").value += 1  # an operation that nobody sent
    net.drop = lambda sender, target, what: isinstance(what, SyncRequested)
    for number in (2, 3):
        net.put("m", number, "y")
        net.pump()
    fragment = net["b"].fragment(0, "m")
    assert fragment.is_dirty and fragment.value == net["a"].fragment(0, "m").value == 4
    assert net["b"].plane.counters["backups_applied"] == 3
    assert not net["b"].plane.counters["backups_ignored"]


@pytest.mark.parametrize(("row", "reason"), [("ab", "is migrating"), ("ba", "its primary elsewhe")])
def test_a_refused_write_says_why(row: str, reason: str) -> None:
    """Safety rule 6: a client's log tells a copy that ends soon from a wrong address."""
    net = two()
    net.set_row(0, row, 3)
    net["a"].plane.partitions[0].writable = False
    with pytest.raises(RetryableError, match=f"partition 0 .*{reason}"):
        net.put("m", 1, "x")


def test_an_acknowledgement_with_refusals_that_are_not_there_is_refused() -> None:
    """Safety rule 6: one that announces a refusal and ends before it acknowledges nothing."""
    net = two()
    reply = net.put("m", 1, "x")
    frame(net)
    outbox = net["a"].plane.outgoing.outboxes[MemberId("b")]
    head = (outbox.incarnation, outbox.stream, outbox.sequence, 0, 1)
    with pytest.raises(ProtocolError, match="length"):
        net["a"].plane.outgoing.apply_acks(MemberId("b"), ACKS.pack(*head))
    assert reply.remaining == 1 and outbox.in_flight == 1


@pytest.mark.parametrize(("incarnation", "stream"), [(0, 1), (1, 0), (1, 1)])
def test_an_acknowledgement_of_another_stream_is_ignored(incarnation: int, stream: int) -> None:
    """Decision 4: what a process of before, or a stream of before, was sent says nothing of ours.
    Method: the head of the right acknowledgement with another incarnation, stream, or both.
    """
    net = two()
    reply = net.put("m", 1, "x")
    frame(net)
    outbox = net["a"].plane.outgoing.outboxes[MemberId("b")]
    head = (outbox.incarnation + incarnation, outbox.stream + stream, outbox.sequence)
    net["a"].plane.outgoing.apply_acks(MemberId("b"), ACKS.pack(*head, 0, 0))
    net["a"].plane.outgoing.apply_acks(
        MemberId("b"), ACKS.pack(*head, 0, 1) + REFUSAL.pack(1, 0, 1)
    )
    assert reply.remaining == 1 and not reply.failed and outbox.in_flight == 1
