"""Goal: a member leaves when, and only when, it is in no row and everybody knows it (P12)."""

from __future__ import annotations

import pytest
from tests.unit.migration_net import Net

from whimbrel.core.ids import MemberId
from whimbrel.core.messages import PublicationAnswered

pytestmark = pytest.mark.usefixtures("both_sizes")


def grown(names: str, backups: int = 1, lite: str = "") -> Net:
    net = Net(backup_count=backups)
    net.add(*names, lite=list(lite))
    net.settle()
    net.fill()
    return net


def finish(net: Net, *names: str) -> None:
    """Run until these members were told that they may leave; then they go."""
    net.run(stop=lambda: all(MemberId(name) in net.master.may_leave for name in names))
    for name in names:
        assert all(name not in row for row in net.master.room.table.rows)
        assert net.nodes[name].host.data == {}
    for name in names:
        net.crash(name)
    net.settle()


@pytest.mark.parametrize("backups", [0, 1, 2])
@pytest.mark.parametrize("leaver", ["a", "b", "d"])
def test_one_leaves_and_nothing_is_lost(leaver: str, backups: int) -> None:
    """ADL-01, bug 23: master or not, also without any backup; its share is copied, no more."""
    net = grown("abcd", backups)
    held = net.master.room.table.replica_count(MemberId(leaver))
    net.leave(leaver)
    assert not net.master.room.is_settled()[0]
    assert not net.master.room.loop.may_leave(MemberId(leaver))
    finish(net, leaver)
    net.check()
    assert not net.lost_everything()
    copies = [
        process["copies"]
        for node in [*net.nodes.values()]
        for process in node.room.reporter.finished
    ]
    assert held in copies


def test_several_leave_at_once_and_one_crashes() -> None:
    """FN-12: half of six, with the master among them, and a kill during it."""
    net = grown("abcdef", 1)
    net.leave("a", "b", "c")
    net.run_for(0.004)
    net.crash("d")
    finish(net, "a", "b", "c")
    net.check()
    assert not net.lost_everything()


def test_all_leave_at_once() -> None:
    """FN-12: nobody is left to hand over to, so all may go at once."""
    net = grown("abc", 1)
    net.leave("a")
    net.leave("b", "c")
    assert sorted(set(net.master.may_leave)) == ["a", "b", "c"]


def test_the_last_data_member_may_leave_a_lite_master() -> None:
    """GCM: lite members hold nothing; there is nobody to hand over to."""
    net = grown("ma", 1, lite="m")
    net.leave("a")
    assert net.master.may_leave == ["a"]


def test_a_repeated_request_is_answered_again() -> None:
    """The permission may be lost: asking again tells again, without a new plan."""
    net = grown("abc")
    net.leave("c")
    net.settle()
    assert net.master.may_leave == ["c"]
    done = len(net.master.room.reporter.finished)
    with net.step(net.master):
        net.master.room.leave_requested()
    assert net.master.may_leave == ["c", "c"]
    assert len(net.master.room.reporter.finished) == done


def test_nobody_leaves_before_all_have_acknowledged() -> None:
    """P12: the others must know the rows without it, or they would look for data there."""
    net = grown("abcd")
    net.on_send = lambda sender, _to, m: (
        "drop" if sender == "b" and isinstance(m, PublicationAnswered) else "deliver"
    )
    net.leave("d")
    net.run_for(30)
    assert net.master.room.table.replica_count(MemberId("d")) == 0
    assert net.master.may_leave == []
    net.on_send = lambda *_: "deliver"
    net.settle()
    assert net.master.may_leave == ["d"]


def test_a_new_master_continues() -> None:
    """FN-12: the master dies in the middle; the request is repeated to the next one."""
    net = grown("abcd", 1)
    net.leave("d")
    net.run_for(0.003)
    leaving = net.leaving
    net.crash("a")
    net.run_for(0.5)
    net.leaving = ()
    net.leave(*leaving)
    finish(net, "d")
    net.check()
    assert not net.lost_everything()


def test_a_leaver_gets_nothing_new() -> None:
    """ADL-01: while it waits to leave, no migration has it as destination."""
    net = grown("abcd", 1)
    net.leave("d")
    net.run_for(0.002)
    net.add("e")
    net.run_for(0.002)
    for migration in net.master.room.running_migrations():
        assert migration.step.destination != "d"
    finish(net, "d")
    net.check()
