"""What one member keeps, forgets and says, message by message: no network, no chance."""

from __future__ import annotations

import pytest
from tests.unit.membership_net import NoTable
from tests.unit.test_membership_late_words import fire, info_of, take

from whimbrel.core.context import Context
from whimbrel.core.effects import Note, Send, SendTo
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.membership.membership_state import (
    FORMER_ADDRESSES_MAX,
    PROCESSES_OVER_MAX,
    MemberPhase,
)
from whimbrel.core.membership.service import Membership
from whimbrel.core.messages import (
    Heartbeat,
    JoinRequested,
    LeaveAllowed,
    LeaveRequested,
    MembersPublished,
    Message,
    ProbeRequested,
    SuspicionTold,
)
from whimbrel.core.model import MemberInfo, MemberList
from whimbrel.core.settings import CoreSettings

SECOND = 1_000_000
SETTINGS = CoreSettings(
    join_window_us=1_000,
    join_window_max_us=1_000,
    heartbeat_interval_us=SECOND,
    heartbeat_timeout_us=5 * SECOND,
)
HEARTBEAT = "membership.heartbeat"


def founder() -> tuple[Context, Membership]:
    """The only member of its cluster."""
    ctx = Context(info_of(1, 5701), SETTINGS, 1)
    room = Membership(ctx, NoTable())
    room.on_started(())
    assert ctx.is_master
    return ctx, room


def install(room: Membership, *infos: MemberInfo) -> None:
    """The next list: the member itself, and these."""
    room.install(room.ctx.members.with_members((room.ctx.me, *infos)))


def say(room: Membership, sender: MemberInfo, message: Message) -> None:
    """A message comes from a process."""
    room.on_message(sender.id, sender.address, message)


def sent(ctx: Context, kind: type[Message]) -> list[tuple[MemberId | Address, Message]]:
    """The messages of a kind since the last look, each with its receiver."""
    found: list[tuple[MemberId | Address, Message]] = []
    for effect in take(ctx):
        if isinstance(effect, Send) and isinstance(effect.message, kind):
            found.append((effect.to, effect.message))
        elif isinstance(effect, SendTo) and isinstance(effect.message, kind):
            found.append((effect.address, effect.message))
    return found


# -- what is kept of those who are gone -----------------------------------------------------


def test_so_many_former_addresses_are_looked_for_and_the_oldest_forgotten() -> None:
    """Safety rule 9: where removed members listened is kept within its bound, newest last."""
    _, room = founder()
    others = [info_of(number, 6000 + number) for number in range(2, FORMER_ADDRESSES_MAX + 9)]
    install(room, *others)
    install(room)
    assert list(room.former.values()) == [info.id for info in others[-FORMER_ADDRESSES_MAX:]]
    install(room, others[-1])
    assert others[-1].address not in room.former


def test_so_many_late_processes_are_known_and_the_oldest_forgotten() -> None:
    """M4, safety rule 9: processes that are over are known within their bound."""
    ctx, room = founder()
    others = [info_of(number, 6000 + number) for number in range(2, PROCESSES_OVER_MAX + 9)]
    install(room, *others)
    for info in others:
        room.seat_taken(info.id, ctx.members.version)
    install(room)
    assert list(room.over) == [(info.id, 5) for info in others[-PROCESSES_OVER_MAX:]]


def test_a_later_list_does_not_make_a_member_new_again() -> None:
    """M4: who once knew of its seat is over when it is removed, however many lists came between;
    a list is news of those who came in with it only.
    """
    ctx, room = founder()
    old, late = info_of(2, 5702), info_of(3, 5703)
    install(room, old)
    room.seat_taken(old.id, ctx.members.version)
    install(room, old, late)
    install(room)
    assert list(room.over) == [(old.id, old.started_us)]


def test_each_member_is_told_of_once() -> None:
    """Safety rule 6: a line for each that comes in, none for ourselves or for who stays."""
    ctx, room = founder()
    second, third = info_of(2, 5702), info_of(3, 5703)
    install(room, second)
    install(room, second, third)
    notes = [one for one in take(ctx) if isinstance(one, Note) and one.kind == "member_added"]
    assert [note.fields["member"] for note in notes] == [second.id, third.id]


def test_a_member_that_was_removed_is_not_split() -> None:
    """M6: only who is told of another part went its own way; a list of its master is none."""
    ctx = Context(info_of(2, 5702), SETTINGS, 1)
    room = Membership(ctx, NoTable())
    master = info_of(1, 5701)
    room.on_started((master.address,))
    room.install(MemberList(2, (master, ctx.me)))
    assert not room.is_split
    say(room, master, MembersPublished(MemberList(3, (master,))))
    assert room.phase is MemberPhase.ENDED and not room.is_split


# -- what is said ---------------------------------------------------------------------------


def test_a_listed_member_that_asks_again_is_shown_its_list() -> None:
    """ADL-10: its list got lost. Method: the very request that brought it in, once more."""
    ctx, room = founder()
    joiner = info_of(2, 5702)
    request = JoinRequested(SETTINGS.cluster_name, SETTINGS.partition_count, joiner)
    say(room, joiner, request)
    fire(room, ctx, "membership.join", 2_000)
    take(ctx)
    say(room, joiner, request)
    (shown,) = sent(ctx, MembersPublished)
    assert shown[0] == joiner.id and isinstance(shown[1], MembersPublished)
    assert shown[1].list == ctx.members
    say(room, ctx.me, JoinRequested(SETTINGS.cluster_name, SETTINGS.partition_count, ctx.me))
    assert not sent(ctx, MembersPublished)


def test_a_suspected_member_gets_a_heartbeat_now_and_then() -> None:
    """L5: too rarely to trust us by them, and not never. Method: two others, one without a link."""
    ctx = Context(info_of(3, 5703), SETTINGS, 1)
    room = Membership(ctx, NoTable())
    master, cut_off = info_of(1, 5701), info_of(2, 5702)
    room.on_started((master.address,))
    room.install(MemberList(2, (master, cut_off, ctx.me)))
    room.on_link_failed(cut_off.id)
    take(ctx)
    to: list[MemberId | Address] = []
    for _ in range(20):
        say(room, master, Heartbeat(2, master.id))
        fire(room, ctx, HEARTBEAT, SECOND)
        to += [one for one, _ in sent(ctx, Heartbeat)]
    assert (to.count(master.id), to.count(cut_off.id)) == (20, 2)


def test_who_has_just_woken_tells_nobody_that_it_is_out() -> None:
    """M5: after a pause our list may name members long dead; for two time-outs we tell nobody by
    it. Method: a stranger's heartbeat before the pause, right after it, and later.
    """
    ctx, room = founder()
    stranger = info_of(9, 5709)

    def is_told() -> bool:
        take(ctx)
        say(room, stranger, Heartbeat(1, stranger.id))
        return bool(sent(ctx, SuspicionTold))

    assert is_told()
    ctx.now_us += 60 * SECOND
    assert not is_told()
    for _ in range(9):
        fire(room, ctx, HEARTBEAT, SECOND)
        assert not is_told()
    fire(room, ctx, HEARTBEAT, SECOND)
    assert is_told()


def test_a_permission_is_in_the_story_of_the_first_request() -> None:
    """0016: whatever makes its row free, the leaver goes in the story in which it asked. Method:
    the request comes twice, each time for another reason, as does the last copy.
    """
    ctx, room = founder()
    leaver = info_of(2, 5702)
    install(room, leaver)
    for cause in ("first-1", "second-1"):
        ctx.known_cause = cause
        say(room, leaver, LeaveRequested(leaver.id, 7))
    take(ctx)
    ctx.known_cause = "copied-1"
    room.allow_leave(leaver.id)
    (allowed,) = [one for one in take(ctx) if isinstance(one, Send)]
    assert allowed.message == LeaveAllowed(leaver.id, 7, False)
    assert allowed.cause == "first-1"


@pytest.mark.parametrize("is_probed", [False, True])
def test_only_what_we_were_told_of_is_probed(is_probed: bool) -> None:
    """Goal: an address that could not be reached is none to look at for that. Method: what a
    seeker probes after it heard that nobody is at some address.
    """
    ctx = Context(info_of(1, 5701), SETTINGS, 1)
    room = Membership(ctx, NoTable())
    told, elsewhere = Address("10.0.0.1", 5702), Address("10.0.0.1", 5799)
    room.on_started((told,))
    room.on_address_unreachable(told if is_probed else elsewhere)
    take(ctx)
    fire(room, ctx, "membership.discovery", SETTINGS.discovery_interval_us)
    assert [to for to, _ in sent(ctx, ProbeRequested)] == [told]
