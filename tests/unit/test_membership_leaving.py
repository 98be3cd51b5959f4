"""Graceful leave: the leaver asks, the master keeps, the migration room allows."""

from __future__ import annotations

from functools import partial

import pytest
from tests.unit.membership_net import SECOND, SETTINGS, Host, Net, with_settings

from whimbrel.core.membership.leaving import GRACE_TIMER, GRACE_US
from whimbrel.core.messages import LeaveAllowed, LeaveOrdered, LeaveRequested, Message
from whimbrel.core.model import LostStructure, MemberList
from whimbrel.core.settings import PersistenceSettings


@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_member_leaves(who: int) -> None:
    """Goal: a leave ends with exit status 0 and a list without the leaver at once, the master's
    own included. Method: each of three.
    """
    net = Net()
    hosts = net.cluster(3)
    leaver = hosts[who]
    net.leave(leaver)
    assert leaver.room.leave.is_wanted and leaver.alive
    net.run_until(lambda: not leaver.alive, 2 * SECOND)
    assert (leaver.reason(), leaver.exit_status()) == ("left", 0)
    assert leaver.calls[-1] == "left"
    assert net.run_until(net.agreed) < SECOND // 10
    removed = [note for host in net.live() for note in host.notes if note.kind == "member_removed"]
    assert {note.fields["why"] for note in removed} == {"left"} or who == 0


def test_lite_and_seeking_members_leave_at_once() -> None:
    """Goal: who holds nothing waits for nobody. Method: a lite member; a member in discovery; one
    that was never started.
    """
    net = Net()
    hosts = net.cluster(2)
    lite = net.start(3, (1, 2), lite=True)
    net.run_until(net.agreed)
    net.leave(lite)
    assert lite.exit_status() == 0
    net.run_until(lambda: net.agreed(hosts), SECOND)
    seeker = net.start(4, (1, 2))
    net.leave(seeker)
    assert seeker.exit_status() == 0
    net.run(5 * SECOND)
    assert net.agreed(hosts)


def test_a_lite_member_that_asks_is_allowed_at_once() -> None:
    """P12: nobody moves data for whom holds none. Method: the request of a member whose entry is
    lite by the time it arrives.
    """
    net = Net()
    master = net.cluster(2)[0]
    lite = net.start(3, (1, 2), lite=True)
    net.run_until(net.agreed)
    allowed: list[LeaveAllowed] = []

    def watched(source: Host, target: Host, said: Message) -> bool:
        if isinstance(said, LeaveAllowed) and target is lite:
            allowed.append(said)
        return False

    net.lost = watched
    request = LeaveRequested(lite.id, 7)
    master.step(lambda: master.room.on_message(lite.id, lite.address, request))
    assert allowed == [LeaveAllowed(lite.id, 7, is_end=False)]
    assert not master.ctx.leaving


def test_two_leave_at_once_and_the_master_keeps_their_order() -> None:
    """Goal: ``ctx.leaving`` is in the order of requests and is emptied. Method: two of four while
    the master keeps them, then lets them go.
    """
    net = Net(delay_us=(1_000, 1_001))
    hosts = net.cluster(4)
    net.hold_leavers = True
    net.leave(hosts[3])
    net.run(2_000)
    net.leave(hosts[1])
    net.run(3 * SECOND)
    assert list(hosts[0].ctx.leaving) == [hosts[3].id, hosts[1].id]
    net.hold_leavers = False
    net.run_until(lambda: net.agreed([hosts[0], hosts[2]]), 5 * SECOND)
    assert not hosts[0].ctx.leaving


@pytest.mark.parametrize("count", [2, 4, 6])
def test_all_leave_at_once(count: int) -> None:
    """Goal: everybody gets out, the last one too. Method: all members in the same moment."""
    net = Net()
    hosts = net.cluster(count)
    for host in hosts:
        net.leave(host)
    net.run_until(lambda: not net.live(), 10 * SECOND)
    assert all(host.exit_status() == 0 for host in hosts)


@pytest.mark.parametrize("seed", range(4))
def test_with_files_nobody_goes_before_all_know_that_all_leave(seed: int) -> None:
    """Goal: whoever sees another go takes it for the end of all, so that nobody writes down that it
    was there alone. Method: all leave within a while, over slow links; looked at when each goes.
    """
    persistence = PersistenceSettings(enabled=True)
    net = Net(seed, delay_us=(1_000, 400_000), settings=with_settings(persistence=persistence))
    hosts = net.cluster(3)
    unaware: list[str] = []

    def left(host: Host) -> None:
        assert host.room.leave.is_end
        others = [one for one in net.live() if one is not host and not one.room.leave.is_end]
        unaware.extend(one.id for one in others)

    for number, host in enumerate(hosts):
        host.room.on_left = partial(left, host)
        net.at(number * SECOND // 20, partial(net.leave, host))
    net.run_until(lambda: not net.live(), 30 * SECOND)
    assert not unaware
    assert all(host.exit_status() == 0 for host in hosts)


def test_a_new_master_learns_of_the_leaver() -> None:
    """Goal: requests repeat, so a crash of the master delays a leave, no more. Method: kill the
    master while it keeps the leaver.
    """
    net = Net()
    hosts = net.cluster(3)
    net.hold_leavers = True
    net.leave(hosts[2])
    net.run(SECOND)
    net.kill(hosts[0])
    net.run(SECOND)
    assert hosts[1].ctx.leaving == (hosts[2].id,)
    net.hold_leavers = False
    net.run_until(lambda: net.agreed([hosts[1]]), 5 * SECOND)
    assert hosts[2].exit_status() == 0


def test_a_leaver_that_becomes_master_lets_itself_go() -> None:
    """Goal: a master candidate may leave as well. Method: the second oldest leaves, the master is
    killed in the same moment.
    """
    net = Net()
    hosts = net.cluster(3)
    net.leave(hosts[1])
    net.kill(hosts[0])
    net.run_until(lambda: net.agreed([hosts[2]]), 5 * SECOND)
    assert hosts[1].exit_status() == 0


def test_a_lost_permission_is_repeated() -> None:
    """Goal: the leaver does not hang on one lost message. Method: cut the master's way to the
    leaver when it allows; heal.
    """
    net = Net()
    hosts = net.cluster(3)
    net.cut([hosts[0]], [hosts[2]])
    net.leave(hosts[2])
    net.run(2 * SECOND)
    assert hosts[2].alive
    net.heal()
    net.run_until(lambda: not hosts[2].alive, 2 * SECOND)
    assert hosts[2].exit_status() == 0


def test_a_leave_that_is_never_allowed_ends_with_an_error() -> None:
    """Goal: every wait is bounded; and what is told of the end is that the others go on. Method:
    the master never allows.
    """
    net = Net(settings=with_settings(leave_timeout_us=20 * SECOND))
    hosts = net.cluster(2)
    is_end: list[bool] = []

    def discarded(told: bool) -> tuple[LostStructure, ...]:
        is_end.append(told)
        return ()

    hosts[1].room.discarded = discarded
    net.hold_leavers = True
    net.leave(hosts[1])
    net.run(19 * SECOND)
    assert hosts[1].alive
    net.run(2 * SECOND)
    assert hosts[1].exit_status() == 1
    assert "20 s" in hosts[1].reason()
    assert is_end == [False]


def test_only_the_right_permission_counts() -> None:
    """Goal: a permission reaches the incarnation it is meant for, from the master, and only if it
    was asked for (P12). Method: wrong member, wrong sender, not leaving.
    """
    net = Net()
    hosts = net.cluster(3)
    net.hold_leavers = True
    leaver = hosts[2]
    asked: list[LeaveRequested] = []

    def notice(source: object, target: object, message: object) -> bool:
        if isinstance(message, LeaveRequested):
            asked.append(message)
        return False

    net.lost = notice

    def say(sender: int, allowed: LeaveAllowed) -> None:
        source = hosts[sender]
        leaver.step(lambda: leaver.room.on_message(source.id, source.address, allowed))

    say(0, LeaveAllowed(leaver.id))
    net.leave(leaver)
    say(0, LeaveAllowed(hosts[1].id))
    say(1, LeaveAllowed(leaver.id))
    net.run(GRACE_US * 2)
    assert leaver.alive
    say(0, LeaveAllowed(leaver.id))
    assert leaver.alive, "clients hear who serves now before connections end"
    net.run(GRACE_US * 2)
    call = asked[-1].call
    assert leaver.alive and call, "it asks a last time"
    say(0, LeaveAllowed(leaver.id))
    say(0, LeaveAllowed(leaver.id, call + 1))
    say(1, LeaveAllowed(leaver.id, call))
    assert leaver.alive
    say(0, LeaveAllowed(leaver.id, call))
    assert not leaver.alive


def test_a_request_for_somebody_else_is_ignored() -> None:
    """Goal: a member leaves by its own wish only. Method: one asks for another; an order to the
    member itself works.
    """
    net = Net()
    hosts = net.cluster(3)
    master, second, third = hosts
    request = LeaveRequested(third.id)
    master.step(lambda: master.room.on_message(second.id, second.address, request))
    assert master.ctx.leaving == ()
    for member in (second.id, third.id):
        order = LeaveOrdered(member)
        third.step(lambda order=order: third.room.on_message(master.id, master.address, order))  # type: ignore[misc]
        assert third.room.leave.is_wanted == (member == third.id)


def test_permissions_for_unknown_members_do_nothing() -> None:
    """Goal: the migration room may be late. Method: allow a stranger; allow at a non-master;
    allow a member that did not ask while it is ourselves.
    """
    net = Net()
    hosts = net.cluster(2)
    hosts[0].step(lambda: hosts[0].room.allow_leave(type(hosts[0].id)("nobody")))
    hosts[1].step(lambda: hosts[1].room.allow_leave(hosts[0].id))
    hosts[0].step(lambda: hosts[0].room.allow_leave(hosts[0].id))
    net.run(SECOND)
    assert net.agreed(hosts)


def test_a_leaver_that_is_expelled_just_ends() -> None:
    """Goal: who wants to go does not come back as a fresh member. Method: pause a leaver until it
    is removed, wake it.
    """
    net = Net()
    hosts = net.cluster(3)
    net.hold_leavers = True
    net.leave(hosts[2])
    net.pause(hosts[2])
    net.run_until(lambda: net.agreed(hosts[:2]))
    net.run(20 * SECOND)
    net.resume(hosts[2])
    net.run_until(lambda: not hosts[2].alive, 5 * SECOND)
    assert hosts[2].expelled is None and hosts[2].exit_status() is not None
    assert hosts[2].exit_status() == 1


def test_an_ended_member_takes_no_notice() -> None:
    """Goal: after its end a room does nothing. Method: every entry after a leave."""
    net = Net()
    (host,) = net.cluster(1)
    net.leave(host)
    net.run(SECOND)
    assert not host.alive
    host.ctx.effects.clear()
    host.room.on_started(())
    host.room.on_timer("membership.heartbeat")
    host.room.on_link_failed(host.id)
    host.room.on_link_restored(host.id)
    host.room.on_address_unreachable(host.address)
    host.room.want_leave()
    host.room.allow_leave(host.id)
    host.room.on_message(host.id, host.address, LeaveOrdered(host.id))
    assert host.ctx.effects == [] and isinstance(host.ctx.members, MemberList)
    assert SETTINGS.leave_retry_us == SECOND


def test_a_permission_of_a_former_master_does_not_outlive_it() -> None:
    """Goal: during the moment a leaver stays, a new master may plan anew, so the permission must
    be its own (P12). Method: the master dies in that moment; the leaver asks the next one.
    """
    net = Net()
    hosts = net.cluster(3)
    net.hold_leavers = True
    master, second, leaver = hosts
    net.leave(leaver)
    allowed = LeaveAllowed(leaver.id)
    leaver.step(lambda: leaver.room.on_message(master.id, master.address, allowed))
    net.kill(master)
    net.run_until(lambda: leaver.room.taken_master == second.id, 20 * SECOND)
    net.run(GRACE_US * 2)
    assert leaver.alive and leaver.id in second.ctx.leaving


@pytest.mark.parametrize("lite", [False, True])
def test_the_last_one_waits_for_a_joiner_that_can_have_its_data(lite: bool) -> None:
    """Goal: nothing is lost silently while somebody comes who could take it. Method: the only
    member leaves while a joiner waits in the window; it may go at once if the joiner is lite, and
    only as a member beside the joiner, if the migration room says so, if it is not.
    """
    net = Net(settings=with_settings(join_window_us=SECOND, join_window_max_us=SECOND))
    (leaver,) = net.cluster(1)
    joiner = net.start(2, (1,), lite=lite)
    net.run(SECOND // 10)
    net.leave(leaver)
    net.run_until(lambda: not leaver.alive, 10 * SECOND)
    assert leaver.exit_status() == 0
    assert leaver.ctx.is_member(joiner.id) != lite


def test_a_permission_is_asked_for_again_before_it_is_used() -> None:
    """Goal: a permission of which the reason is gone does not count. Method: the leaver is allowed
    to go; before the moment it stays is over the master does not allow it any more.
    """
    net = Net()
    hosts = net.cluster(2)
    net.leave(hosts[1])
    net.run_until(lambda: hosts[1].ctx.is_armed(GRACE_TIMER), SECOND)
    net.hold_leavers = True
    net.run(10 * SECOND)
    assert hosts[1].alive
    net.hold_leavers = False
    net.run_until(lambda: net.agreed([hosts[0]]), 5 * SECOND)
    assert hosts[1].exit_status() == 0


def test_nobody_comes_in_while_somebody_goes_out() -> None:
    """Goal: who was told to go counts on the list of that moment. Method: the last permission is
    lost; a joiner waits, is let in when the leaver has asked anew, and the leaver goes later.
    """
    net = Net()
    hosts = net.cluster(2)
    master, leaver = hosts
    net.lost = lambda source, target, message: (
        isinstance(message, LeaveAllowed) and message.call != 0
    )
    net.leave(leaver)
    net.run_until(lambda: leaver.id in master.room.parting, 5 * SECOND)
    joiner = net.start(9, (1,))
    net.run(SECOND // 2)
    assert not joiner.joined
    net.run_until(lambda: joiner.joined, 2 * SECOND)
    assert leaver.alive and leaver.id not in master.room.parting
    net.lost = lambda source, target, message: False
    net.run_until(lambda: net.agreed([master, joiner]), 5 * SECOND)
    assert leaver.exit_status() == 0
