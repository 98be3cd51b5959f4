"""What a backup's disk does not take: refused, though applied; its primary says why (0017)."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.replication_net import SETTINGS, Net, key, map_of, value

from whimbrel.core.replication.outbox import (
    FAILED_DISK,
    REFUSED_DISK,
    WHOLE_FRAMES,
    Inbox,
    PendingReply,
    read_acks,
)
from whimbrel.core.settings import PersistenceSettings
from whimbrel.errors import OverloadedError
from whimbrel.structures.map.settings import MapSettings


def make_net() -> Net:
    """Two members; maps whose writes wait for disks, and one that is in memory alone."""
    persistence = PersistenceSettings(enabled=True, fsync="always")
    structures = (*SETTINGS.structures, MapSettings("volatile", persistent=False))
    net = Net(
        "ab", msgspec.structs.replace(SETTINGS, persistence=persistence, structures=structures)
    )
    net.set_row(0, "ab", 1)
    net.pump()
    return net


def put(net: Net, name: str, number: int) -> PendingReply:
    """A write at the primary."""
    host = net["a"]
    reply = PendingReply()
    host.maps.set(host.plane.partitions[0], map_of(name), key(number), value("x"), reply)
    return reply


class Waiting:
    """Stands for the log of a fragment whose changes wait for the disk."""

    waits = True

    def append(self, counter: int, operation: bytes, reply: object) -> None:
        """Nothing is written here."""

    def revise(self) -> None:
        """Nor this."""


def make_full(net: Net, *, is_full: bool) -> None:
    """The disk of the backup takes nothing, or does again."""
    backup = net["b"].plane
    backup.incoming.disk_changed(is_full=is_full)


def test_what_a_backup_cannot_keep_is_refused_and_applied() -> None:
    """APR-04, APR-25: the write ends unknown and says why; the backup has it in memory all the
    same.
    """
    net = make_net()
    put(net, "m", 1)
    net.pump()
    net["b"].fragment(0, "m").log = Waiting()
    make_full(net, is_full=True)
    reply = put(net, "m", 2)
    net.pump()
    assert reply.failed == FAILED_DISK
    assert net["b"].content(0, "m") == net["a"].content(0, "m")


def test_what_is_not_persistent_goes_on_at_a_full_disk() -> None:
    """A map in memory alone is acknowledged, also in one frame with what is refused."""
    net = make_net()
    put(net, "m", 1)
    put(net, "volatile", 1)
    net.pump()
    net["b"].fragment(0, "m").log = Waiting()
    make_full(net, is_full=True)
    kept, volatile = put(net, "m", 2), put(net, "volatile", 2)
    net.pump()
    assert (kept.failed, volatile.failed, volatile.remaining) == (FAILED_DISK, "", 0)


def test_the_primary_refuses_before_the_next_write_has_an_effect() -> None:
    """For a second after a refusal writes are refused in words; then the disk is tried again."""
    net = make_net()
    put(net, "m", 1)
    net.pump()
    net["b"].fragment(0, "m").log = Waiting()
    make_full(net, is_full=True)
    put(net, "m", 2)
    net.pump()
    before = dict(net["a"].content(0, "m"))
    with pytest.raises(OverloadedError, match="no space left on the disk"):
        put(net, "m", 3)
    assert net["a"].content(0, "m") == before
    assert put(net, "volatile", 3).remaining == 1
    make_full(net, is_full=False)
    net.advance(1_500_000)
    reply = put(net, "m", 4)
    net.pump()
    assert (reply.failed, reply.remaining) == ("", 0)


def test_our_own_full_disk_refuses_what_is_persistent() -> None:
    """A write that needs the disk fails at once; one that does not goes on."""
    net = make_net()
    net["a"].plane.outgoing.disk_changed("no space left on the disk")
    with pytest.raises(OverloadedError, match="no space left on the disk"):
        put(net, "m", 1)
    assert put(net, "volatile", 1).remaining == 1
    net["a"].plane.outgoing.disk_changed("")
    assert put(net, "m", 1).remaining == 1


def test_an_acknowledgement_that_was_held_back_refuses_what_it_covers() -> None:
    """Frames that were applied before the disk was full: nothing of them counts as kept, also when
    the answer is repeated after the link was lost.
    """
    inbox = Inbox(incarnation=7, stream=1)
    inbox.applied_frame(3)
    (payload,) = inbox.take_acks()
    incarnation, stream, sequence, gap, refusals = read_acks(inbox.refuse_held(payload))
    assert (incarnation, stream, sequence, gap) == (7, 1, 3, 0)
    assert refusals == [(3, WHOLE_FRAMES, REFUSED_DISK)]
    inbox.answer_again()
    (again,) = inbox.take_acks()
    assert read_acks(again)[4] == refusals


def test_a_refusal_of_whole_frames_fails_all_who_wait_for_them() -> None:
    """Everything up to the frame, nothing behind it."""
    net = make_net()
    first = [put(net, "m", number) for number in range(3)]
    outbox = net["a"].plane.outgoing.outboxes[net["b"].ctx.id]
    outbox.take(0)
    later = put(net, "m", 9)
    assert outbox.refuse_frames(outbox.sequence) == first
    assert later.remaining == 1 and all(reply.remaining == 1 for reply in first)
