"""Heartbeats, suspicion, removal, mastership claims, pauses, one-way links."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from tests.unit.membership_net import SECOND, SETTINGS, Host, Net, address_of, with_settings

from whimbrel.core.effects import SendTo
from whimbrel.core.ids import MemberId
from whimbrel.core.messages import (
    ClaimRequested,
    GoodbyeTold,
    Heartbeat,
    JoinersNoted,
    JoinersTold,
    MembersPublished,
    ProbeRequested,
    SuspicionTold,
)
from whimbrel.core.model import MemberInfo, MemberList

TIMEOUT_US = SETTINGS.heartbeat_timeout_us


def say(net: Net, sender: Host, receiver: Host, message: object) -> None:
    """Deliver a message now, as if it came over a link."""
    receiver.step(
        lambda: receiver.room.on_message(sender.id, sender.address, message)  # type: ignore[arg-type]
    )


# -- detection ----------------------------------------------------------------------------


def test_a_quiet_cluster_stays_as_it_is() -> None:
    """Goal: no false alarm (M1). Method: five members for ten minutes; the list never changes
    and each member sends some four heartbeats a second.
    """
    net = Net()
    hosts = net.cluster(5)
    version, sent = hosts[0].ctx.members.version, hosts[1].messages_sent
    net.run(600 * SECOND)
    assert net.agreed(hosts) and hosts[0].ctx.members.version == version
    assert 4 * 595 <= hosts[1].messages_sent - sent <= 4 * 605


def test_a_mute_member_is_removed_after_the_timeout() -> None:
    """Goal: silence is judged in time, not before (M5). Method: pause a member for good."""
    net = Net()
    hosts = net.cluster(3)
    net.pause(hosts[1])
    rest = [hosts[0], hosts[2]]
    spent_us = net.run_until(lambda: net.agreed(rest))
    assert TIMEOUT_US - SECOND < spent_us < TIMEOUT_US + 2 * SECOND


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_dead_process_is_removed_at_once(victim: int) -> None:
    """Goal: a refused connection needs no time-out, also when the master dies. Method: kill one
    of three; the others agree within a tenth of a second.
    """
    net = Net()
    hosts = net.cluster(3)
    net.kill(hosts[victim])
    rest = [host for host in hosts if host.alive]
    assert net.run_until(lambda: net.agreed(rest)) < SECOND // 10


def test_a_broken_link_that_comes_back_changes_nothing() -> None:
    """Goal: only a link that cannot be made again is a failure; one that could, after all, is
    none for a member that does not decide. Method: fail and restore at a non-master.
    """
    net = Net()
    hosts = net.cluster(3)
    version = hosts[0].ctx.members.version
    hosts[1].step(lambda: hosts[1].room.on_link_failed(hosts[2].id))
    assert hosts[1].room.detector.suspected() == [hosts[2].id]
    net.run(2 * SECOND)
    assert hosts[1].room.detector.suspected() == [hosts[2].id], "hearing it is not reaching it"
    hosts[1].step(lambda: hosts[1].room.on_link_restored(hosts[2].id))
    assert hosts[1].room.detector.suspected() == []
    net.run(10 * SECOND)
    assert net.agreed(hosts) and hosts[0].ctx.members.version == version


def test_hearing_again_clears_a_suspicion() -> None:
    """Goal: silence is forgiven. Method: cut two non-masters from each other for longer than
    the time-out, heal; nobody was removed and nobody is suspected.
    """
    net = Net()
    hosts = net.cluster(3)
    net.cut([hosts[1]], [hosts[2]])
    net.run(2 * TIMEOUT_US)
    assert hosts[2].room.detector.suspected() == [hosts[1].id]
    net.heal()
    net.run(3 * TIMEOUT_US)
    assert net.agreed(hosts)
    assert not any(host.room.detector.suspected() for host in hosts)


def test_an_older_list_version_in_a_heartbeat_brings_the_list_again() -> None:
    """Goal: a lost publication is repeated (ADL-10 for lists). Method: lose the publication of a
    join to one member only.
    """
    net = Net()
    hosts = net.cluster(2)
    net.lost = lambda source, target, message: (
        target is hosts[1] and isinstance(message, MembersPublished)
    )
    joiner = net.start(3, (1,))
    net.run_until(lambda: joiner.joined)
    net.run(SECOND // 2)
    assert not hosts[1].ctx.is_member(joiner.id)
    net.lost = lambda source, target, message: False
    net.run_until(net.agreed, 2 * SECOND)


# -- pauses -------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [0, 2], ids=["master", "other"])
def test_a_short_pause_changes_nothing(who: int) -> None:
    """Goal: a pause below the time-out is no failure. Method: four seconds of five."""
    net = Net()
    hosts = net.cluster(3)
    version = hosts[0].ctx.members.version
    net.pause(hosts[who])
    net.run(4 * SECOND)
    net.resume(hosts[who])
    net.run(20 * SECOND)
    assert net.agreed(hosts) and hosts[0].ctx.members.version == version


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("who", ["master", "other"])
def test_a_paused_member_wakes_and_is_expelled(count: int, who: str) -> None:
    """Goal: the sleeper learns that the others went on, and harms nobody (M5). Method: pause for
    a minute; it must suspect nobody for its own pause, and end; the others stay.
    """
    net = Net()
    hosts = net.cluster(count)
    sleeper = hosts[0] if who == "master" else hosts[-1]
    rest = [host for host in hosts if host is not sleeper]
    net.pause(sleeper)
    net.run_until(lambda: net.agreed(rest))
    net.run(60 * SECOND)
    views = len(sleeper.views)
    net.resume(sleeper)
    net.run_until(lambda: sleeper.expelled is not None, 5 * SECOND)
    assert len(sleeper.views) == views, "it removed somebody before it ended"
    net.run(20 * SECOND)
    assert net.agreed(rest)


def test_a_sleeping_majority_does_not_overrule_who_stayed_awake() -> None:
    """Goal: what the only waking member did is not lost to two that slept. Method: two of three
    sleep; the third goes on alone; they wake and give way.
    """
    for sleepers in ((0, 1), (0, 2), (1, 2)):
        net = Net()
        hosts = net.cluster(3)
        awake = next(host for number, host in enumerate(hosts) if number not in sleepers)
        for number in sleepers:
            net.pause(hosts[number])
        net.run_until(lambda: net.agreed([awake]))  # noqa: B023
        net.run(60 * SECOND)
        for number in sleepers:
            net.resume(hosts[number])
        net.run(10 * SECOND)
        assert awake.joined and all(hosts[number].expelled for number in sleepers)


def test_who_has_slept_tells_nobody_that_the_cluster_goes_on_without_it() -> None:
    """FN-11, M5: a list that may be long out of date is no news, for two heartbeat time-outs.
    Method: strangers' heartbeats before a pause, at its end, and when that time is over.
    """
    net = Net()
    (host,) = net.cluster(1)

    def is_told(stranger: int) -> bool:
        beat = Heartbeat(0, None)
        host.begin()
        host.room.on_message(MemberId(f"s{stranger}"), address_of(90 + stranger), beat)
        told = [one for one in host.ctx.effects if isinstance(one, SendTo)]
        host.carry_out()
        return any(isinstance(one.message, SuspicionTold) for one in told)

    assert is_told(1)
    net.pause(host)
    net.run(60 * SECOND)
    net.resume(host)
    assert not is_told(2)
    net.run(2 * SETTINGS.heartbeat_timeout_us)
    assert is_told(3)


def test_everybody_paused_at_once_changes_nothing() -> None:
    """Goal: a machine that sleeps wakes with its cluster. Method: pause all for an hour."""
    net = Net()
    hosts = net.cluster(4)
    version = hosts[0].ctx.members.version
    for host in hosts:
        net.pause(host)
    net.run(3600 * SECOND)
    for host in hosts:
        net.resume(host)
    net.run(60 * SECOND)
    assert net.agreed(hosts) and hosts[0].ctx.members.version == version


# -- one-way links ------------------------------------------------------------------------


@pytest.mark.parametrize("who", [0, 1, 3], ids=["master", "second", "youngest"])
@pytest.mark.parametrize("way", ["hears nobody", "is heard by nobody", "neither"])
def test_a_half_connected_member_ends_outside(who: int, way: str) -> None:
    """Goal: a member that hears but is not heard, or the reverse, ends outside the list and the
    core goes on (L5); when the cut heals it learns it and leaves (M5, M6). Method: cut one of
    four, one way or both, wait, look at the core, heal.
    """
    net = Net()
    hosts = net.cluster(4)
    outsider = hosts[who]
    core = [host for host in hosts if host is not outsider]
    if way != "is heard by nobody":
        net.cut(core, [outsider])
    if way != "hears nobody":
        net.cut([outsider], core)
    net.run_until(lambda: net.agreed(core), 60 * SECOND)
    net.run(20 * SECOND)
    assert net.agreed(core) and all(host.expelled is None for host in core)
    net.heal()
    net.run(30 * SECOND)
    assert outsider.expelled is not None and net.agreed(core)


def test_a_cut_between_master_and_second_leaves_one_cluster() -> None:
    """Goal: a claim that the others refuse ends with the claimant's removal. Method: two-way cut
    of the two oldest of four.
    """
    net = Net()
    hosts = net.cluster(4)
    net.cut([hosts[0]], [hosts[1]], both=True)
    net.run_until(lambda: net.agreed([hosts[0], hosts[2], hosts[3]]))
    net.run_until(lambda: hosts[1].expelled is not None)
    assert all(host.expelled is None for host in hosts if host is not hosts[1])


@pytest.mark.parametrize("split", [1, 2, 3])
def test_two_halves_meet_again_as_one_cluster(split: int) -> None:
    """Goal: after a split healed the weaker part gives way as a whole and its processes join
    anew (M6); there is no third cluster. Method: five members, first ``split`` of them cut off.
    """
    net = Net()
    hosts = net.cluster(5)
    one, other = hosts[:split], hosts[split:]
    net.cut(one, other, both=True)
    net.run_until(lambda: net.agreed(one) and net.agreed(other))
    assert one[0].ctx.is_master and other[0].ctx.is_master, "M2: disjoint views, a master each"
    net.respawn = True
    net.heal()
    net.run_until(lambda: len(net.live()) == 5 and net.agreed(), 120 * SECOND)
    winner = one if len(one) > len(other) else other
    assert all(host.alive for host in winner)


def test_equal_halves_choose_the_same_winner() -> None:
    """Goal: ties have a rule that both sides know (M6). Method: two of four against two."""
    for seed in range(10):
        net = Net(seed)
        hosts = net.cluster(4)
        net.cut(hosts[:2], hosts[2:], both=True)
        net.run_until(lambda: net.agreed(hosts[:2]) and net.agreed(hosts[2:]))  # noqa: B023
        net.heal()
        net.respawn = True
        net.run_until(net.agreed, 120 * SECOND)
        assert sum(host.alive for host in hosts) == 2


# -- claims -------------------------------------------------------------------------------


@pytest.mark.parametrize("dead", [(0,), (0, 1), (0, 1, 2), (0, 2), (1, 2), (0, 4), (0, 1, 2, 3)])
def test_the_oldest_survivor_becomes_master(dead: tuple[int, ...]) -> None:
    """Goal: a claim ends with the oldest survivor as master (M2), also when candidates die with
    the master. Method: kill subsets of five at once; the version jumps when the master died.
    """
    for seed in range(5):
        net = Net(seed)
        hosts = net.cluster(5)
        version = hosts[0].ctx.members.version
        for number in dead:
            net.kill(hosts[number])
        net.run_until(net.agreed, 3 * SECOND)
        rest = net.live()
        assert rest[0].ctx.is_master and rest == [host for host in hosts if host.alive]
        if 0 in dead:
            assert rest[0].ctx.members.version > version + 1
            assert rest[0].calls[-1] == "became_master"


@pytest.mark.parametrize("delay_us", [1, 500, 1_500, 3_000, 5_000, 8_000])
def test_the_claimant_dies_while_claiming(delay_us: int) -> None:
    """Goal: a dead claimant binds nobody. Method: the second oldest dies shortly after the
    master, at several moments of its claim.
    """
    for seed in range(10):
        net = Net(seed)
        hosts = net.cluster(5)
        net.kill(hosts[0])
        net.run(delay_us)
        net.kill(hosts[1])
        net.run_until(net.agreed, 3 * SECOND)
        assert hosts[2].ctx.is_master


def test_a_newer_list_shown_in_an_answer_wins() -> None:
    """Goal: what the old master published last is not lost (ADL-15 for lists). Method: a member
    joins, only the youngest gets the new list, the master dies; the joiner is kept.
    """
    net = Net()
    hosts = net.cluster(3)
    net.lost = lambda source, target, message: (
        source is hosts[0] and target is hosts[1] and isinstance(message, MembersPublished)
    )
    joiner = net.start(4, (1,))
    net.run_until(lambda: joiner.joined and hosts[2].ctx.is_member(joiner.id))
    assert not hosts[1].ctx.is_member(joiner.id)
    net.kill(hosts[0])
    net.run_until(lambda: net.agreed([*hosts[1:], joiner]), 5 * SECOND)
    assert hosts[1].ctx.is_master


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("later_us", [0, 1_000, 20_000])
def test_a_joiner_outlives_the_master_that_alone_knew_it(count: int, later_us: int) -> None:
    """Goal: an admission is not lost with its master (M5). Method: the list that admits a joiner
    reaches the joiner only, then the master dies; the claimant asks the joiner and takes its list.
    """
    for seed in range(5):
        net = Net(seed)
        hosts = net.cluster(count)
        net.lost = lambda source, target, message: (
            source is hosts[0]  # noqa: B023
            and target in hosts  # noqa: B023
            and isinstance(message, MembersPublished)
        )
        joiner = net.start(9, (1,))
        net.run_until(lambda: joiner.joined)  # noqa: B023
        net.run(later_us)
        assert not any(host.ctx.is_member(joiner.id) for host in hosts[1:])
        net.kill(hosts[0])
        net.run_until(lambda: net.agreed([*hosts[1:], joiner]), SECOND)  # noqa: B023
        assert hosts[1].ctx.is_master and joiner.calls == ["joined"]
        assert hosts[1].ctx.members.ids()[-1] == joiner.id


def test_a_joiner_that_was_not_let_in_holds_no_claim_up() -> None:
    """Goal: a claim does not wait for joiners that have no list. Method: the master dies before
    the window closes; one joiner lives, one is dead; then the first joins under its identity.
    """
    net = Net(settings=with_settings(join_window_us=SECOND, join_window_max_us=SECOND))
    hosts = net.cluster(3)
    joiner, dead = net.start(8, (1, 2, 3)), net.start(9, (1, 2, 3))
    net.run(SECOND // 2)
    net.kill(dead)
    net.kill(hosts[0])
    net.run_until(lambda: net.agreed(hosts[1:]), SECOND // 10)
    net.run_until(net.agreed, 5 * SECOND)
    assert joiner.ids == (hosts[1].id, hosts[2].id, joiner.id)


def test_a_listed_joiner_without_the_list_agrees_to_a_claim() -> None:
    """Goal: nor does a claim wait for a joiner that stands on a list and never got it. Method: the
    joiner's list is lost, the master dies; the claimant keeps it, at once.
    """
    net = Net()
    hosts = net.cluster(3)
    joiner = net.start(9, (1, 2, 3))
    net.lost = lambda source, target, message: (
        source is hosts[0] and target is joiner and isinstance(message, MembersPublished)
    )
    net.run_until(lambda: all(host.ctx.is_member(joiner.id) for host in hosts))
    assert not joiner.joined
    net.kill(hosts[0])
    net.run_until(lambda: net.agreed([*hosts[1:], joiner]), SECOND)


@pytest.mark.parametrize("younger", [1, 2])
@pytest.mark.parametrize("seekers", [1, 2])
def test_an_elder_that_never_got_its_list_is_shown_it(younger: int, seekers: int) -> None:
    """M5, L1: a member that stands on a list and never got it does not keep all others waiting.

    Method: the list that admits elders and younger ones reaches the younger ones only, then all
    older members die. The elder's probes keep it from being suspected, so nobody younger may
    claim; it must be shown the list and claim itself. New processes come to the dead addresses.
    """
    net = Net(settings=with_settings(join_window_us=SECOND, join_window_max_us=2 * SECOND))
    master = net.start(1, range(1, 9))
    net.run_until(lambda: master.joined)
    elders: list[Host] = []
    net.lost = lambda source, target, message: (
        source is master and target in elders and isinstance(message, MembersPublished)
    )
    for number in range(seekers):
        elders.append(net.start(2 + number, range(1, 9)))
        net.run(SECOND // 10)
    last = [net.start(5 + number, range(1, 9)) for number in range(younger)]
    net.run_until(lambda: all(host.joined for host in last))
    assert last[0].ids[: seekers + 1] == (master.id, *(elder.id for elder in elders))
    assert not any(elder.joined for elder in elders)
    net.kill(master)
    fresh = net.start(1, range(1, 9))
    net.run_until(lambda: net.agreed([*elders, *last, fresh]), 2 * TIMEOUT_US)
    assert elders[0].ctx.is_master


def test_a_list_is_shown_to_its_very_process_by_a_member_of_it_only() -> None:
    """M4, M5: a seeker is shown a list when it is next to rule, and takes it from its members only.

    Method: a seeker's probe reaches a member whose list has it; whether the member shows the list
    hangs on the elders that it trusts and on the start of the process. Then a stranger shows one.
    """
    for case in ("next", "elder lives", "other start"):
        net = Net()
        first, second = net.cluster(2)
        seeker = net.start(9, (8,))
        info = seeker.ctx.me
        if case == "other start":
            info = msgspec.structs.replace(info, started_us=info.started_us - 1)
        listed = MemberList(7, (first.ctx.me, info, second.ctx.me))
        for host in (seeker, second):
            host.room.on_view_changed = lambda _old, _new: None  # a list made up here
        say(net, first, second, MembersPublished(listed))
        if case != "elder lives":
            say(net, first, second, GoodbyeTold(first.id))
        net.cut([first], net.hosts, both=True)
        probe = ProbeRequested(SETTINGS.cluster_name, seeker.ctx.me, second.address)
        say(net, seeker, second, probe)
        net.run(SECOND // 10)
        assert seeker.joined == (case == "next"), case
    net = Net()
    stranger, seeker = net.cluster(1)[0], net.start(9, (8,))
    other = MemberInfo(MemberId("elsewhere"), address_of(7))
    say(net, stranger, seeker, MembersPublished(MemberList(7, (other, seeker.ctx.me))))
    assert not seeker.joined


def test_a_list_that_a_claim_overtook_is_not_installed() -> None:
    """Goal: a joiner that told a claimant that it has no list keeps to that. Method: it is asked,
    then the old master's list arrives; a list of the claimant, one without it, and after the claim
    time-out, or when the claim is abandoned, any list is installed.
    """
    for case in range(5):
        net = Net()
        hosts = net.cluster(2)
        master, claimant = hosts
        joiner = net.start(9, (8,))
        joiner.room.on_view_changed = lambda _old, _new: None  # these lists are made up here
        say(net, claimant, joiner, ClaimRequested(2, 7))
        listed = (*master.ctx.members.members, joiner.ctx.me)
        late = MemberList(5, listed)
        say(net, master, joiner, MembersPublished(late))
        assert not joiner.joined
        if case == 0:
            say(net, claimant, joiner, MembersPublished(MemberList(9, listed[1:])))
        elif case == 1:
            say(net, master, joiner, MembersPublished(MemberList(6, (listed[0], listed[2]))))
        elif case == 2:
            joiner.ctx.now_us = net.now_us = net.now_us + SETTINGS.claim_timeout_us + 1
            say(net, master, joiner, MembersPublished(late))
        else:
            say(net, claimant, joiner, Heartbeat(2, (master, claimant)[case - 3].id))
            say(net, master, joiner, MembersPublished(late))
        assert joiner.joined == (case != 4)


def test_nobody_is_let_in_before_everybody_knows() -> None:
    """Goal: the claimant-to-be always knows whom to ask. Method: one member cannot hear the master;
    a joiner waits until that member is off the list, and no longer.
    """
    net = Net()
    hosts = net.cluster(3)
    net.pause(hosts[1])
    joiner = net.start(9, (1,))
    net.run(TIMEOUT_US // 2)
    assert not joiner.joined and len(hosts[0].ids) == 3
    net.run_until(lambda: joiner.joined, TIMEOUT_US)
    assert not joiner.ctx.is_member(hosts[1].id)


def test_notes_count_from_members_for_the_very_process() -> None:
    """Goal: a note is the word of one member about one process. Method: notes of a stranger and
    about another start do not let the joiner in.
    """
    net = Net()
    hosts = net.cluster(2)
    net.lost = lambda source, target, message: isinstance(message, JoinersTold)
    joiner = net.start(9, (1,))
    net.run(SECOND)
    info = joiner.ctx.me
    say(net, joiner, hosts[0], JoinersNoted((info,)))
    other = msgspec.structs.replace(info, started_us=info.started_us + 1)
    say(net, hosts[1], hosts[0], JoinersNoted((other,)))
    assert not hosts[0].ctx.is_member(joiner.id)
    say(net, hosts[1], hosts[0], JoinersNoted((info,)))
    assert hosts[0].ctx.is_member(joiner.id)


def test_joiners_told_by_others_than_the_master_are_not_kept() -> None:
    """Goal: one writer. Method: another member names a joiner; the master does; a claim looks for
    the second only, and not after the join time-out.
    """
    net = Net()
    hosts = net.cluster(3)
    infos = [MemberInfo(MemberId(f"x{port}"), address_of(port)) for port in (8, 9)]
    say(net, hosts[2], hosts[1], JoinersTold((infos[0],)))
    say(net, hosts[0], hosts[1], JoinersTold((infos[1],)))
    pending_joiners = hosts[1].room.pending_joiners
    assert pending_joiners.missing_in(hosts[1].ctx.members) == [infos[1]]
    net.run(SETTINGS.join_timeout_us + SECOND)
    assert pending_joiners.missing_in(hosts[1].ctx.members) == []


def test_a_claimant_that_was_removed_learns_it_from_an_answer() -> None:
    """Goal: a claim does not undo a removal (M5). Method: the master removes the second oldest
    and dies before that one hears of it; the youngest knows and ends as master.
    """
    net = Net()
    hosts = net.cluster(3)
    net.cut([hosts[0]], [hosts[1]])
    hosts[0].step(lambda: hosts[0].room.on_link_failed(hosts[1].id))
    net.run_until(lambda: not hosts[2].ctx.is_member(hosts[1].id))
    net.kill(hosts[0])
    net.run_until(lambda: hosts[1].expelled is not None, 5 * SECOND)
    net.run_until(lambda: net.agreed([hosts[2]]))
    assert hosts[2].ctx.is_master
    assert not hosts[2].ctx.is_member(hosts[1].id)


def test_a_member_that_never_answers_a_claim_is_dropped() -> None:
    """Goal: a claim ends in bounded time. Method: one of four is paused when the master dies; the
    claim is over after the claim time-out, or earlier by silence, without the sleeper.
    """
    net = Net()
    hosts = net.cluster(4)
    net.pause(hosts[2])
    net.kill(hosts[0])
    rest = [hosts[1], hosts[3]]
    limit_us = min(SETTINGS.claim_timeout_us, TIMEOUT_US) + 2 * SECOND
    assert net.run_until(lambda: net.agreed(rest)) <= limit_us
    net.resume(hosts[2])
    net.run_until(lambda: hosts[2].expelled is not None, 5 * SECOND)


def test_a_late_claim_of_a_dead_member_binds_nobody() -> None:
    """Goal: who agreed to the next claimant stays with it (found by a seed: it was then removed for
    following another master). Method: the two oldest die; a claim of the second arrives when the
    youngest has agreed to the third, whose own claim waits for a sleeper.
    """
    net = Net()
    hosts = net.cluster(5)
    net.pause(hosts[3])
    net.kill(hosts[0])
    net.kill(hosts[1])
    youngest = hosts[4]
    net.run_until(lambda: youngest.room.accepted == hosts[2].id)
    late = ClaimRequested(youngest.ctx.members.version, 1)
    youngest.step(lambda: youngest.room.on_message(hosts[1].id, hosts[1].address, late))
    assert youngest.room.accepted == hosts[2].id
    net.run_until(lambda: net.agreed([hosts[2], youngest]))
    assert hosts[2].ctx.is_master and youngest.expelled is None


def test_a_claimant_that_pauses_is_still_followed() -> None:
    """Goal: nobody is removed for having agreed to a claim long ago (found by a seed: a master of
    nine removed five). Method: a claim waits for a sleeper; the claimant sleeps too, until those
    who agreed suspect it; then it wakes, finds the last answer, and publishes its list.
    """
    net = Net()
    hosts = net.cluster(5)
    net.pause(hosts[2])
    net.kill(hosts[0])
    net.run_until(lambda: all(host.room.accepted == hosts[1].id for host in hosts[3:]))
    net.run(SECOND)
    net.pause(hosts[1])
    net.run(3 * SECOND)
    net.resume(hosts[2])
    net.run_until(lambda: all(host.room.accepted is None for host in hosts[3:]), 4 * SECOND)
    assert not hosts[2].room.is_claiming
    net.resume(hosts[1])
    net.run_until(lambda: net.agreed(hosts[1:]), 2 * SECOND)
    assert hosts[1].ctx.is_master
    assert all(host.expelled is None for host in hosts)


def test_a_claimant_that_slept_through_its_own_removal_takes_nobody_along() -> None:
    """Goal: answers to a claim do not outlive a long pause (found by a seed: a claimant of seven
    woke, became master by them and had the living master and its joiners expelled; M4, M5).
    Method: the claimant sleeps as the answers come; the old master wakes, is followed again and
    removes it; then it wakes and finds the answers first and the news behind them.
    """
    net = Net()
    hosts = net.cluster(4)
    net.pause(hosts[0])
    net.run_until(lambda: hosts[1].room.is_claiming)
    net.pause(hosts[1])
    net.run(SECOND)
    net.resume(hosts[0])
    followers = [hosts[0], *hosts[2:]]
    net.run_until(lambda: net.agreed(followers), 30 * SECOND)
    net.resume(hosts[1])
    net.run(10 * SECOND)
    assert all(host.expelled is None for host in followers) and net.agreed(followers)
    assert hosts[0].ctx.is_master and hosts[1].expelled is not None
    assert not any(note.kind == "became_master" for note in hosts[1].notes)


def test_a_claim_is_abandoned_when_an_older_member_is_heard() -> None:
    """Goal: a suspicion that clears ends the claim, and those who agreed follow the old master
    again. Method: the master is heard again while one member still has not answered.
    """
    net = Net()
    hosts = net.cluster(4)
    version = hosts[0].ctx.members.version
    net.cut([hosts[0]], hosts[1:])
    net.run(2 * SECOND)
    net.cut([hosts[3]], [hosts[1]])
    net.run_until(lambda: hosts[1].room.is_claiming)
    net.run_until(lambda: hosts[2].room.accepted == hosts[1].id)
    net.heal()
    net.cut([hosts[3]], [hosts[1]])
    net.run_until(lambda: not hosts[1].room.is_claiming)
    net.heal()
    net.run(20 * SECOND)
    assert net.agreed(hosts) and hosts[0].ctx.members.version == version
    assert hosts[2].room.accepted is None
    assert any(note.kind == "claim_abandoned" for note in hosts[1].notes)


def test_a_claim_is_refused_while_an_older_member_is_trusted() -> None:
    """Goal: one member's suspicion is not everybody's. Method: a claim of the second oldest while
    the third hears the master; then the third suspects it too and says so unasked.
    """
    net = Net()
    hosts = net.cluster(3)
    net.pause(hosts[0])
    say(net, hosts[1], hosts[2], ClaimRequested(hosts[1].ctx.members.version, 77))
    assert hosts[2].room.accepted is None
    hosts[2].step(lambda: hosts[2].room.on_link_failed(hosts[0].id))
    assert hosts[2].room.accepted == hosts[1].id


# -- lists --------------------------------------------------------------------------------


def test_a_list_of_a_non_master_changes_nothing() -> None:
    """Goal: only the master's list counts (M1, ADL-08 for lists). Method: a newer list from the
    youngest; the receiver keeps its own and tells the sender.
    """
    net = Net()
    hosts = net.cluster(3)
    ours = hosts[1].ctx.members
    forged = MemberList(ours.version + 5, ours.members[1:], ours.cluster_id)
    sent = hosts[1].messages_sent
    say(net, hosts[2], hosts[1], MembersPublished(forged))
    assert hosts[1].ctx.members is ours and hosts[1].messages_sent == sent + 1


@pytest.mark.parametrize("change", [0, -1])
def test_an_equal_or_older_list_of_the_master_changes_nothing(change: int) -> None:
    """Goal: versions rise (M1). Method: the master's own list again, and an older one."""
    net = Net()
    hosts = net.cluster(3)
    ours = hosts[1].ctx.members
    again = MemberList(ours.version + change, ours.members, ours.cluster_id)
    say(net, hosts[0], hosts[1], MembersPublished(again))
    assert hosts[1].ctx.members is ours


def test_a_list_of_the_master_without_us_expels_us() -> None:
    """Goal: being left out is being told (M5). Method: a newer list without the receiver."""
    net = Net()
    hosts = net.cluster(3)
    ours = hosts[1].ctx.members
    kept = tuple(info for info in ours.members if info.id != hosts[1].id)
    say(net, hosts[0], hosts[1], MembersPublished(MemberList(ours.version + 1, kept)))
    assert hosts[1].expelled is not None


@pytest.mark.parametrize(("version", "sender"), list(itertools.product([-1, 0, 1], [0, 2])))
def test_a_plain_suspicion_counts_from_whom_and_how_new_it_is(version: int, sender: int) -> None:
    """Goal: a suspicion without a member list counts from our master at our version or above,
    from another only as master of a newer list (M5). Method: all cases.
    """
    net = Net()
    hosts = net.cluster(3)
    ours = hosts[1].ctx.members.version
    teller = hosts[sender]
    say(net, teller, hosts[1], SuspicionTold(ours + version, teller.id))
    is_believed = version >= 0 if sender == 0 else version > 0
    assert (hosts[1].expelled is not None) == is_believed


def test_a_heartbeat_of_a_stranger_is_answered_by_the_master() -> None:
    """Goal: a member that was removed learns it (M5). Method: heartbeats of somebody unknown, to
    the master and to others: they answer only if their list is newer.
    """
    net = Net()
    hosts = net.cluster(2)
    stranger = net.start(9, ())
    counts = []
    for receiver, version in ((0, 99), (1, 99), (1, 1)):
        before = hosts[receiver].messages_sent
        say(net, stranger, hosts[receiver], Heartbeat(version, MemberId("x")))
        counts.append(hosts[receiver].messages_sent - before)
    assert counts == [1, 0, 1]
