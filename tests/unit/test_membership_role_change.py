"""Promotion of lite members and demotion of data members: every answer and every lost message."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.membership_net import SECOND, Host, Net

from whimbrel.core.messages import (
    ClaimAnswered,
    MembersPublished,
    Message,
    RoleChangeAnswered,
    RoleChangeRequested,
)
from whimbrel.core.model import ClusterState, MemberInfo, MemberList
from whimbrel.errors import GridError, IllegalStateError, UnsupportedError, UsageError

Ended = list[GridError | None]


def lite_cluster(net: Net, data: int = 2) -> tuple[list[Host], Host]:
    """Data members and, youngest, a lite one."""
    hosts = net.cluster(data)
    lite = net.start(data + 1, range(1, data + 1), lite=True)
    net.run_until(net.agreed)
    return hosts, lite


def want(host: Host, *, lite: bool) -> Ended:
    """Let a member wish; the list fills with how that ended."""
    ended: Ended = []

    def wish() -> None:
        host.room.want_role(lite, ended.append)

    host.step(wish)
    return ended


def in_state(hosts: list[Host], **changes: object) -> None:
    """Give all lists other facts, as an agreed change would."""
    for host in hosts:
        host.ctx.members = msgspec.structs.replace(host.ctx.members, **changes)


def requests(net: Net, host: Host) -> list[tuple[str, Message]]:
    """Record from now on what a member sends about roles; nothing is lost."""
    sent: list[tuple[str, Message]] = []

    def note(source: Host, target: Host, message: Message) -> bool:
        if source is host and isinstance(message, RoleChangeRequested):
            sent.append((target.id, message))
        return False

    net.lost = note
    return sent


def test_promotion_is_one_list_version_that_all_install() -> None:
    """GCM-18, GCM-21, GCM-23, bug 50: one request to the master, one new list with nothing else
    changed, and the member has it when the call ends.
    """
    net = Net()
    hosts, lite = lite_cluster(net)
    sent = requests(net, lite)
    before = hosts[0].ctx.members
    ended = want(lite, lite=False)
    net.run_until(lambda: bool(ended))
    assert ended == [None] and [to for to, _ in sent] == [hosts[0].id]
    assert not lite.ctx.me.lite and lite.ctx.members == hosts[0].ctx.members
    promoted = tuple(msgspec.structs.replace(info, lite=False) for info in before.members)
    assert hosts[0].ctx.members == before.with_members(promoted)
    net.run_until(net.agreed, SECOND)
    net.leave(lite)
    assert lite.alive, "a data member has to hand its data over"


def test_the_answer_brings_the_list() -> None:
    """GCM-23: the new list is the answer. Method: every publication to the requester is lost; it
    has the master's list and its new role all the same when the call ends.
    """
    net = Net()
    hosts, lite = lite_cluster(net)
    net.lost = lambda _, target, message: target is lite and isinstance(message, MembersPublished)
    ended = want(lite, lite=False)
    net.run_until(lambda: bool(ended), 2 * SECOND)
    assert ended == [None] and not lite.ctx.me.lite
    assert lite.ctx.members == hosts[0].ctx.members


def test_a_lite_master_promotes_itself() -> None:
    """GCM-18: the member known as master may be lite, and may be the one that asks."""
    net = Net()
    lite = net.start(1, lite=True)
    net.run_until(lambda: lite.joined)
    other = net.start(2, (1,), lite=True)
    net.run_until(net.agreed)
    assert want(lite, lite=False) == [None] and not lite.ctx.me.lite
    ended = want(other, lite=False)
    net.run_until(lambda: bool(ended))
    assert ended == [None] and len(lite.ctx.data_members()) == 2


def test_promotion_is_refused_before_anything_is_sent() -> None:
    """GCM-16, GCM-17: an old cluster is unsupported, a data member an illegal state."""
    net = Net()
    hosts, lite = lite_cluster(net)
    sent = requests(net, lite)
    [refusal] = want(hosts[1], lite=False)
    assert isinstance(refusal, IllegalStateError) and "data member already" in str(refusal)
    for version in ("3.8", "2.10", "nonsense"):
        in_state(net.hosts, cluster_version=version)
        [refusal] = want(lite, lite=False)
        assert isinstance(refusal, UnsupportedError) and "3.9" in str(refusal)
    net.run(5 * SECOND)
    assert sent == [] and lite.ctx.me.lite
    in_state(net.hosts, cluster_version="3.9")
    assert want(lite, lite=False) == [] and len(sent) == 1


def test_a_member_that_is_on_no_list_is_refused() -> None:
    """GCM-17: a member in discovery has no role to change."""
    net = Net()
    seeker = net.start(5, (4,))
    [refusal] = want(seeker, lite=False)
    assert isinstance(refusal, IllegalStateError) and "on no list" in str(refusal)


@pytest.mark.parametrize("state", ["NO_MIGRATION", "FROZEN", "PASSIVE"])
@pytest.mark.parametrize("lite_wanted", [False, True])
def test_states_without_migrations_refuse(state: str, lite_wanted: bool) -> None:
    """GCM-26: neither promotion nor demotion where migrations are forbidden; no list changes."""
    net = Net()
    hosts, lite = lite_cluster(net)
    in_state(net.hosts, state=ClusterState(state))
    version = hosts[0].ctx.members.version
    ended = want(hosts[1] if lite_wanted else lite, lite=lite_wanted)
    net.run_until(lambda: bool(ended))
    assert isinstance(ended[0], IllegalStateError) and state in str(ended[0])
    assert hosts[0].ctx.members.version == version and net.agreed()


def test_a_receiver_that_is_not_master_refuses() -> None:
    """GCM-19: a member that is not the master, and one whose claim runs, change no list."""
    net = Net()
    hosts, lite = lite_cluster(net, data=3)
    heard: list[RoleChangeAnswered] = []

    def note(source: Host, target: Host, message: Message) -> bool:
        if target is lite and isinstance(message, RoleChangeAnswered):
            heard.append(message)
        return False

    net.lost = note
    request = RoleChangeRequested(1, lite.id, lite=False)
    version = hosts[1].ctx.members.version
    hosts[1].step(lambda: hosts[1].room.on_message(lite.id, lite.address, request))
    hosts[1].room.is_claiming = True
    hosts[1].step(lambda: hosts[1].room.roles.on_request(lite.id, lite.address, request))
    hosts[1].room.is_claiming = False
    assert [answer.problem for answer in heard] == ["illegal_state"] * 2
    assert "not the master" in heard[0].reason and "claim" in heard[1].reason
    assert hosts[1].ctx.members.version == version


def test_an_unknown_requester_is_an_illegal_argument() -> None:
    """GCM-20: the identity counts, not the address; the list is as it was."""
    net = Net()
    hosts, lite = lite_cluster(net)
    before = hosts[0].ctx.members
    ended = want(lite, lite=False)
    wish = lite.room.roles.wish
    assert wish is not None
    strangers = before.with_members(tuple(i for i in before.members if i.id != lite.id))
    hosts[0].ctx.members = strangers  # the master has forgotten the requester
    request = RoleChangeRequested(wish.call, lite.id, lite=False)
    hosts[0].step(lambda: hosts[0].room.roles.on_request(lite.id, lite.address, request))
    net.run_until(lambda: bool(ended), SECOND)
    assert isinstance(ended[0], UsageError) and lite.id in str(ended[0])
    assert hosts[0].ctx.members == strangers


def test_a_member_that_is_data_already_gets_the_present_list() -> None:
    """GCM-23, GCM-25: a repeated request raises no version; its answer is the list as it is."""
    net = Net()
    hosts, lite = lite_cluster(net)
    lost: list[Message] = []

    def lose(source: Host, target: Host, message: Message) -> bool:
        if target is lite and isinstance(message, RoleChangeAnswered) and len(lost) < 2:
            lost.append(message)
            return True
        return False

    net.lost = lose
    net.cut([hosts[0]], [lite])  # neither the list nor the answer arrives
    ended = want(lite, lite=False)
    version = hosts[0].ctx.members.version + 1
    net.run_until(lambda: hosts[0].ctx.members.version == version)
    net.run(2 * SECOND)
    assert not ended
    net.heal()
    net.run_until(lambda: bool(ended))
    net.run(5 * SECOND)
    assert ended == [None] and hosts[0].ctx.members.version == version and net.agreed()


def test_many_callers_wait_for_one_wish() -> None:
    """GCM-25: the same call twice is one change; the opposite one meanwhile is refused."""
    net = Net()
    hosts, lite = lite_cluster(net)
    sent = requests(net, lite)
    first, second = want(lite, lite=False), want(lite, lite=False)
    net.run_until(lambda: bool(first))
    assert first == second == [None] and len(sent) == 1
    version = hosts[0].ctx.members.version
    assert isinstance(want(lite, lite=False)[0], IllegalStateError)
    assert hosts[0].ctx.members.version == version


@pytest.mark.parametrize("step", range(12))
def test_the_master_dies_at_every_step_of_a_promotion(step: int) -> None:
    """GCM-24, GCM-25, bug 49: the master dies after so many messages of the promotion, its last
    one lost. The call ends with success or an explicit error; called again it succeeds, and all
    lists agree.
    """
    net = Net(seed=step)
    hosts, lite = lite_cluster(net, data=3)
    master, count = hosts[0], [0]

    def dies(source: Host, target: Host, message: Message) -> bool:
        if not master.alive:
            return False
        if master not in (source, target):
            return False
        count[0] += 1
        if count[0] > step:
            net.at(0, lambda: net.kill(master))
            return True
        return False

    net.lost = dies
    ended = want(lite, lite=False)
    net.run_until(lambda: bool(ended))
    assert ended[0] is None or isinstance(ended[0], IllegalStateError)
    net.run_until(lambda: not master.alive)
    net.run_until(net.agreed)
    if lite.ctx.me.lite:
        assert ended[0] is not None, "a success was forgotten"
        again = want(lite, lite=False)
        net.run_until(lambda: bool(again))
        assert again == [None]
    net.run_until(net.agreed)
    assert all(len(host.ctx.data_members()) == 3 for host in net.live())


def test_a_promotion_ends_when_its_master_is_gone() -> None:
    """GCM-24, GCM-25: the master dies before the request is there: the call ends with an error
    that says so, and nobody asks the next master unbidden. Called again it is one list, and all
    have it.
    """
    net = Net()
    hosts, lite = lite_cluster(net, data=3)
    net.cut([lite], [hosts[0]])
    ended = want(lite, lite=False)
    net.kill(hosts[0])
    net.run_until(lambda: bool(ended))
    assert isinstance(ended[0], IllegalStateError) and "changed during" in str(ended[0])
    net.run_until(net.agreed)
    net.run(5 * SECOND)
    version = hosts[1].ctx.members.version
    assert lite.ctx.me.lite and lite.room.roles.wish is None
    again = want(lite, lite=False)
    net.run_until(lambda: bool(again))
    net.run_until(net.agreed)
    assert again == [None] and hosts[1].ctx.members.version == version + 1
    assert [host.ctx.me.lite for host in net.live()] == [False] * 3


def test_a_request_that_is_lost_is_made_again() -> None:
    """GCM-25: neither a lost request nor a lost answer ends the call; one list comes of it."""
    net = Net()
    hosts, lite = lite_cluster(net)
    lost: list[Message] = []

    def lose(_source: Host, _target: Host, message: Message) -> bool:
        if isinstance(message, RoleChangeRequested) and len(lost) < 2:
            lost.append(message)
            return True
        return False

    net.lost = lose
    version = hosts[0].ctx.members.version
    ended = want(lite, lite=False)
    net.run_until(lambda: bool(ended))
    assert ended == [None] and len(lost) == 2
    assert hosts[0].ctx.members.version == version + 1


def test_only_the_master_that_was_asked_answers() -> None:
    """GCM-24: an answer to another call, or of somebody else, neither ends the call nor installs
    a list; one that is no newer than ours changes no list.
    """
    net = Net()
    hosts, lite = lite_cluster(net)
    net.cut([lite], hosts, both=True)
    ended = want(lite, lite=False)
    wish = lite.room.roles.wish
    assert wish is not None
    before = lite.ctx.members
    request = RoleChangeRequested(wish.call, lite.id, lite=False)
    hosts[0].step(lambda: hosts[0].room.roles.on_request(lite.id, lite.address, request))
    promoted = hosts[0].ctx.members
    no = ("illegal_state", "no")
    for host, answer in (
        (hosts[1], RoleChangeAnswered(wish.call, *no, None)),
        (hosts[1], RoleChangeAnswered(wish.call, "", "", promoted)),
        (hosts[0], RoleChangeAnswered(wish.call + 1, *no, None)),
        (hosts[0], RoleChangeAnswered(wish.call + 1, "", "", promoted)),
    ):
        lite.step(lambda h=host, a=answer: lite.room.on_message(h.id, h.address, a))  # type: ignore[misc]
        assert not ended and lite.ctx.members == before
    same = msgspec.structs.replace(promoted, version=before.version)
    answer = RoleChangeAnswered(wish.call, "", "", same)
    lite.step(lambda: lite.room.on_message(hosts[0].id, hosts[0].address, answer))
    assert not ended and lite.ctx.members == before
    answer = RoleChangeAnswered(wish.call, "", "", promoted)
    lite.step(lambda: lite.room.on_message(hosts[0].id, hosts[0].address, answer))
    assert ended == [None] and lite.ctx.members == promoted


def test_an_answer_of_who_is_master_no_longer_is_not_installed() -> None:
    """GCM-24: its list may never have been anybody's; the call ends, and may be repeated."""
    net = Net()
    hosts, lite = lite_cluster(net)
    net.cut([lite], hosts, both=True)
    ended = want(lite, lite=False)
    wish = lite.room.roles.wish
    assert wish is not None
    before = lite.ctx.members
    request = RoleChangeRequested(wish.call, lite.id, lite=False)
    hosts[0].step(lambda: hosts[0].room.roles.on_request(lite.id, lite.address, request))
    answer = RoleChangeAnswered(wish.call, "", "", hosts[0].ctx.members)
    lite.room.accepted = hosts[1].id
    lite.step(lambda: lite.room.roles.on_answer(hosts[0].id, answer))
    assert isinstance(ended[0], IllegalStateError) and lite.ctx.members == before


def test_what_is_done_is_answered_in_every_state() -> None:
    """GCM-25, GCM-26: a repeated request for what has happened gets the list, whatever the state
    forbids by now; nobody asks for another member.
    """
    net = Net()
    hosts, lite = lite_cluster(net)
    heard: list[RoleChangeAnswered] = []

    def note(_source: Host, target: Host, message: Message) -> bool:
        if target is lite and isinstance(message, RoleChangeAnswered):
            heard.append(message)
        return False

    net.lost = note
    ended = want(lite, lite=False)
    net.run_until(lambda: bool(ended))
    in_state(net.hosts, state=ClusterState.NO_MIGRATION)
    members = hosts[0].ctx.members
    for sender, member, is_lite, problem in (
        (lite, lite, False, ""),
        (lite, hosts[1], True, "illegal_argument"),
        (lite, lite, True, "illegal_state"),
    ):
        request = RoleChangeRequested(9, member.id, is_lite)
        hosts[0].step(lambda s=sender, r=request: hosts[0].room.on_message(s.id, s.address, r))  # type: ignore[misc]
        assert heard[-1].problem == problem
        assert (heard[-1].list == members) is not bool(problem)
    assert hosts[0].ctx.members == members and hosts[0].ctx.leaving == ()


@pytest.mark.parametrize("is_empty", [True, False])
def test_an_answer_without_the_list_is_an_error(is_empty: bool) -> None:
    """GCM-24: an answer that cannot be installed ends the call with an illegal state."""
    net = Net()
    hosts, lite = lite_cluster(net)
    net.cut([lite], [hosts[0]])
    ended = want(lite, lite=False)
    wish = lite.room.roles.wish
    assert wish is not None
    others: tuple[MemberInfo, ...] = hosts[0].ctx.members.members[:2]
    answer = RoleChangeAnswered(wish.call, "", "", None if is_empty else MemberList(99, others))
    lite.step(lambda: lite.room.on_message(hosts[0].id, hosts[0].address, answer))
    assert isinstance(ended[0], IllegalStateError) and lite.ctx.me.lite


def test_a_list_in_which_nothing_has_changed_is_an_error() -> None:
    """GCM-24: the answer is the list that was asked for, or the call has failed."""
    net = Net()
    hosts, lite = lite_cluster(net)
    net.cut([lite], [hosts[0]])
    ended = want(lite, lite=False)
    wish = lite.room.roles.wish
    assert wish is not None
    answer = RoleChangeAnswered(wish.call, "", "", hosts[0].ctx.members)
    lite.step(lambda: lite.room.on_message(hosts[0].id, hosts[0].address, answer))
    assert isinstance(ended[0], IllegalStateError) and lite.ctx.me.lite


def test_whoever_waits_hears_of_the_members_end() -> None:
    """GCM-25: a member that ends or is expelled tells its callers."""
    net = Net()
    hosts, lite = lite_cluster(net)
    net.cut([lite], [hosts[0]])
    ended = want(lite, lite=False)
    net.leave(lite)
    assert isinstance(ended[0], IllegalStateError) and "ended" in str(ended[0])


# -- demotion -----------------------------------------------------------------------------


def test_demotion_waits_until_the_member_holds_nothing() -> None:
    """FN-13: drained like a leaver, then one list in which it is lite, and it stays."""
    net = Net()
    hosts = net.cluster(3)
    net.hold_leavers = True
    ended = want(hosts[2], lite=True)
    net.run(5 * SECOND)
    assert not ended and list(hosts[0].ctx.leaving) == [hosts[2].id]
    version = hosts[0].ctx.members.version
    hosts[0].step(lambda: hosts[0].room.allow_leave(hosts[2].id))
    net.run_until(lambda: bool(ended))
    assert ended == [None] and hosts[2].alive
    assert [info.lite for info in hosts[2].ctx.members.members] == [False, False, True]
    assert hosts[0].ctx.members.version == version + 1
    assert len(hosts[0].ctx.leaving) == 0
    net.run_until(net.agreed)
    back = want(hosts[2], lite=False)
    net.run_until(lambda: bool(back))
    assert back == [None] and len(hosts[2].ctx.data_members()) == 3


def test_a_demotion_goes_on_when_migrations_are_forbidden_meanwhile() -> None:
    """GCM-26: what was begun is carried through: its repeated request is not refused."""
    net = Net()
    hosts = net.cluster(3)
    net.hold_leavers = True
    ended = want(hosts[2], lite=True)
    net.run(2 * SECOND)
    in_state(hosts, state=ClusterState.NO_MIGRATION)
    net.run(5 * SECOND)
    assert not ended and hosts[0].ctx.leaving == (hosts[2].id,)
    hosts[0].step(lambda: hosts[0].room.allow_leave(hosts[2].id))
    net.run_until(lambda: bool(ended))
    assert ended == [None]


def test_a_demotion_that_is_done_is_not_begun_again() -> None:
    """GCM-25: list and answer are lost: the repeated request gets the list, nobody is drained."""
    net = Net()
    hosts = net.cluster(3)
    net.hold_leavers = True
    ended = want(hosts[2], lite=True)
    net.run(SECOND)
    net.cut([hosts[0]], [hosts[2]])
    hosts[0].step(lambda: hosts[0].room.allow_leave(hosts[2].id))
    version = hosts[0].ctx.members.version
    net.run(2 * SECOND)
    assert not ended and hosts[0].ctx.leaving == ()
    net.heal()
    net.run_until(lambda: bool(ended))
    assert ended == [None] and hosts[0].ctx.members.version == version
    assert hosts[0].ctx.leaving == ()


def test_a_claimant_that_wishes_waits_for_the_end_of_its_claim() -> None:
    """GCM-19, GCM-25: while its own claim runs it decides nothing, also not for itself."""
    net = Net()
    hosts = net.cluster(3)
    net.hold_leavers = True
    ended = want(hosts[1], lite=True)
    net.run(SECOND)
    net.lost = lambda _source, _target, message: isinstance(message, ClaimAnswered)
    net.kill(hosts[0])
    net.run_until(lambda: hosts[1].room.is_claiming)
    net.run(4 * SECOND)
    assert hosts[1].room.is_claiming and not ended
    net.lost = lambda *_: False
    net.hold_leavers = False
    net.run_until(lambda: bool(ended))
    assert ended == [None] and hosts[1].ctx.is_master


def test_the_master_itself_is_demoted_and_stays_master() -> None:
    """FN-13: the master may be lite."""
    net = Net()
    hosts = net.cluster(2)
    ended = want(hosts[0], lite=True)
    net.run_until(lambda: bool(ended))
    assert ended == [None] and hosts[0].ctx.is_master and hosts[0].ctx.me.lite
    net.run_until(net.agreed)


def test_the_last_data_member_is_not_demoted() -> None:
    """FN-13: somebody must hold the data; a leaver counts as gone."""
    net = Net()
    hosts, _ = lite_cluster(net, data=1)
    [refusal] = want(hosts[0], lite=True)
    assert isinstance(refusal, IllegalStateError) and "no other data member" in str(refusal)
    net = Net()
    hosts = net.cluster(2)
    net.hold_leavers = True
    net.leave(hosts[0])
    ended = want(hosts[1], lite=True)
    net.run_until(lambda: bool(ended))
    assert isinstance(ended[0], IllegalStateError) and hosts[0].ctx.leaving == (hosts[0].id,)


@pytest.mark.parametrize("how", ["leaves", "dies"])
def test_a_demotion_is_called_off_when_the_last_other_goes(how: str) -> None:
    """FN-13: the other data member leaves or dies during the drain: the data stay here."""
    net = Net()
    hosts = net.cluster(2)
    net.hold_leavers = True
    ended = want(hosts[0], lite=True)
    assert not ended and hosts[0].ctx.leaving == (hosts[0].id,)
    if how == "leaves":
        net.leave(hosts[1])
    else:
        net.kill(hosts[1])
    net.run_until(lambda: bool(ended))
    assert isinstance(ended[0], IllegalStateError) and not hosts[0].ctx.me.lite
    assert hosts[0].id not in hosts[0].ctx.leaving


def test_a_leave_overtakes_a_demotion() -> None:
    """FN-13: who wants to go does not become lite first."""
    net = Net()
    hosts = net.cluster(3)
    net.hold_leavers = True
    ended = want(hosts[2], lite=True)
    net.run(SECOND)
    net.leave(hosts[2])
    net.run_until(lambda: bool(ended))
    assert isinstance(ended[0], IllegalStateError) and hosts[0].ctx.leaving == (hosts[2].id,)
    net.hold_leavers = False
    net.run_until(lambda: not hosts[2].alive)
    assert hosts[2].exit_status() == 0


@pytest.mark.parametrize("who", [1, 2])
def test_a_new_master_goes_on_with_a_demotion(who: int) -> None:
    """GCM-25, FN-13: the request repeats, so a master that takes over drains and answers, also
    when it is the member that asks.
    """
    net = Net()
    hosts = net.cluster(3)
    net.hold_leavers = True
    ended = want(hosts[who], lite=True)
    net.run(SECOND)
    net.kill(hosts[0])
    net.hold_leavers = False
    net.run_until(lambda: bool(ended))
    assert ended == [None] and hosts[1].ctx.is_master
    net.run_until(net.agreed)
    assert [info.lite for info in hosts[1].ctx.members.members] == [who == 1, who == 2]
