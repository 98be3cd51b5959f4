"""Goal: a change of the cluster state locks the members, and no lock outlives it."""

from __future__ import annotations

from functools import partial

import pytest
from tests.unit.membership_net import SECOND, Host, Net

from whimbrel.core import messages as m
from whimbrel.core.ids import MemberId
from whimbrel.core.membership.cluster_state import LOCK_CALLS_MAX, StateChangeResult
from whimbrel.core.messages import Message
from whimbrel.core.model import ClusterState


def wished(master: Host) -> StateChangeResult:
    """In a small world of membership rooms: begin a change, or ask what has become of it."""
    found: list[StateChangeResult] = []
    master.step(lambda: found.append(master.room.change_cluster("the wish", ClusterState.FROZEN)))
    return found[0]


def test_who_is_silent_is_not_waited_for_again() -> None:
    """Goal: a change that fails for a silent member ends when the others have given their locks
    back; whom it has waited for already it does not wait for a second time.
    """
    net = Net()
    hosts = net.cluster(3)
    silent = (m.StateLockAnswered, m.StateUnlockAnswered)
    net.lost = lambda source, target, said: source is hosts[2] and isinstance(said, silent)
    assert wished(hosts[0]) == StateChangeResult()
    net.run(LOCK_CALLS_MAX * net.settings.call_timeout_us + SECOND // 10)
    assert "1 members do not answer" in wished(hosts[0]).refusal


def test_a_lock_is_asked_back_so_often() -> None:
    """Goal: an unlock that gets lost is sent ``LOCK_CALLS_MAX`` times, then the lease is left to
    end it. Method: a member is locked by another change and refuses; no unlock arrives.
    """
    net = Net()
    hosts = net.cluster(3)
    unlocks: list[MemberId] = []

    def lost(source: Host, target: Host, said: Message) -> bool:
        if isinstance(said, m.StateUnlockRequested):
            unlocks.append(target.id)
        return isinstance(said, m.StateUnlockRequested)

    net.lost = lost
    other = m.StateLockRequested("other", hosts[0].ctx.members.version, 0, 60 * SECOND)
    hosts[1].step(lambda: hosts[1].room.on_message(hosts[0].id, hosts[0].address, other))
    assert wished(hosts[0]) == StateChangeResult()
    net.run(LOCK_CALLS_MAX * net.settings.call_timeout_us + SECOND // 10)
    assert "under way there" in wished(hosts[0]).refusal
    assert sorted(unlocks) == sorted([hosts[1].id, hosts[2].id] * LOCK_CALLS_MAX)


def test_a_change_that_is_done_leaves_no_lock_behind() -> None:
    """PIM-31: a lock that was given back does not run out later. Method: a change, and the time of
    its lease.
    """
    net = Net()
    hosts = net.cluster(3)
    assert wished(hosts[0]) == StateChangeResult()
    net.run(SECOND)
    assert all(host.ctx.state is ClusterState.FROZEN for host in hosts)
    net.run(2 * net.settings.state_lock_lease_us)
    assert not [note for host in hosts for note in host.notes if note.kind == "state_lock_expired"]


@pytest.mark.parametrize("early_us", [1, 0])
def test_a_lease_ends_at_its_moment(early_us: int) -> None:
    """PIM-31: another change may lock a member when the lease is over, and not before. Method: the
    last microsecond of a lease, and the next one, before any timer fires.
    """
    net = Net()
    hosts = net.cluster(2)
    answers: list[m.StateLockAnswered] = []

    def lost(source: Host, target: Host, said: Message) -> bool:
        if isinstance(said, m.StateLockAnswered):
            answers.append(said)
        return False

    net.lost = lost
    version = hosts[0].ctx.members.version
    for name, after_us in (("one", 0), ("other", SECOND - early_us)):
        net.now_us += after_us
        asked = m.StateLockRequested(name, version, 0, SECOND)
        hosts[1].step(partial(hosts[1].room.on_message, hosts[0].id, hosts[0].address, asked))
    assert [bool(one.reason) for one in answers] == [False, bool(early_us)]


def test_who_waits_when_the_state_comes_to_forbid_it_stays_outside() -> None:
    """GCM-05: what counts is the state in which the window closes. Method: a joiner waits, and the
    lone master changes the state.
    """
    net = Net()
    (master,) = net.cluster(1)
    joiner = net.start(2, (1,))
    net.run_until(master.room.joining.has_data_joiner)
    assert wished(master) == StateChangeResult(is_done=True)
    net.run(net.settings.join_window_max_us)
    assert master.ids == (master.id,) and not joiner.joined
    assert not master.room.joining.has_data_joiner()


def test_a_change_under_way_sends_no_joiner_away() -> None:
    """GCM-08: until the new state is known nobody is admitted nor refused. Method: a joiner that
    has asked once sleeps; the window closes while the change waits for an answer, and the change
    ends in a state that lets joiners in.
    """
    net = Net()
    master, other = net.cluster(2)
    joiner = net.start(3, (1, 2))
    net.run_until(master.room.joining.has_data_joiner)
    net.pause(joiner)
    net.lost = lambda source, target, said: isinstance(said, m.StateLockAnswered)
    room = master.room
    master.step(lambda: room.change_cluster("the wish", ClusterState.NO_MIGRATION))
    net.run(2 * net.settings.join_window_max_us)
    assert master.ctx.state is ClusterState.IN_TRANSITION
    assert master.ids == (master.id, other.id)
    net.lost = lambda source, target, said: False
    net.run_until(lambda: master.ctx.is_member(joiner.id), 3 * SECOND)
    assert master.ctx.members.state is ClusterState.NO_MIGRATION
