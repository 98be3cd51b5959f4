"""A whole cluster comes back from its files: engines with played files (``recovery_net``)."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
from tests.unit.engine_pump import Error, Node, member_id
from tests.unit.recovery_net import (
    COMPLETE,
    FULL,
    RECENT,
    RecoveryPump,
    ask,
    set_state,
    stopped,
)
from tests.unit.split_pump import data

from whimbrel.core import messages as m
from whimbrel.core.context import Context
from whimbrel.core.model import ClusterState
from whimbrel.core.stimuli import LeaveWanted
from whimbrel.wire.errors import PARTITION_MIGRATING, TARGET_NOT_MEMBER


@pytest.mark.parametrize("cluster_version", ["4.0", "4.1"])
def test_all_come_back(cluster_version: str) -> None:
    """APR-06, APR-08, APR-10, APR-12, APR-13, S3: rows, state, id, structures and data; all serve
    at once.
    """
    pump = RecoveryPump(cluster_version=cluster_version)
    nodes = pump.found_cluster(3)
    pump.fill(nodes[1])
    pump.run(2)
    rows, before = pump.rows(1), nodes[0].engine.member.ctx.members
    numbers = {node.engine.member.membership.numbers.number for node in nodes}
    pump.crash(*nodes)
    pump.run(5)
    pump.seat_all(3, 1, 2)
    pump.await_joined(1, 2, 3)
    assert all(pump.rows(number) == rows for number in (1, 2, 3))
    members = pump.seats[1].engine.member.ctx.members
    assert (members.cluster_id, members.state) == (before.cluster_id, before.state)
    assert members.cluster_version == cluster_version
    assert members.version > before.version
    pump.run(15)
    assert all(pump.rows(number) == rows for number in (1, 2, 3)), "nothing moves"
    assert not pump.missing_entries(pump.seats[2])
    again = [pump.seats[number].engine.member.membership.numbers.number for number in (1, 2, 3)]
    assert len({*again}) == 3 and not numbers & {*again}, "no number comes twice"
    assert [disk.began for disk in pump.disks.values()] == [2, 2, 2]
    assert not any(disk.aside for disk in pump.disks.values())


@pytest.mark.parametrize("state", ["NO_MIGRATION", "FROZEN", "PASSIVE"])
def test_the_state_comes_back(state: str) -> None:
    """APR-13: each persisted state, on all members, after the last has loaded."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    set_state(pump, nodes[0], ClusterState(state))
    rows = pump.rows(1)
    pump.crash(*nodes)
    pump.seat_all(1, 2, 3)
    pump.await_joined(1, 2, 3)
    for number in (1, 2, 3):
        assert pump.seats[number].engine.member.ctx.members.state == state
        assert pump.seats[number].engine.member.ctx.members.missing == ()
    pump.run(15)
    assert pump.rows(3) == rows
    assert not pump.missing_entries(pump.seats[3])


def test_nothing_is_served_before_all_are_there() -> None:
    """APR-10, S1: half of the data is never shown as the whole; who is missing is named at every
    member.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    pump.seat_all(1, 2)
    pump.run(20)
    for number in (1, 2):
        told = pump.recovery(number)
        assert told is not None
        assert (told["phase"], told["members_expected"], told["members_here"]) == (
            "validating", 3, 2,
        )  # fmt: skip
        assert told["missing"] == [member_id(3)] and member_id(3) in told["reason"]
        node = pump.seats[number]
        assert not node.joined and not node.engine.member.is_joined
        assert node.engine.member.ctx.members.state is ClusterState.PASSIVE
        with pytest.raises(EOFError, match="not joined"):
            pump.client(node)
        assert pump.files[node].loads == []
        assert not node.engine.member.migrations.loop.in_charge, "the control loop stands still"
        assert not pump.notes("member_number_missing")
        settled, reason = node.engine.member.migrations.is_settled()
        assert not settled and "files" in reason
        assert "files" in node.engine.member.safety.not_serving_because()
    assert pump.rows(1) == [(0, (None,) * 7)] * 7, "nobody has arranged an empty table"
    pump.seat(3)
    pump.await_joined(1, 2, 3)
    assert pump.recovery(1) is None
    assert not pump.missing_entries(pump.seats[1])


def test_a_full_recovery_gives_up_without_harm() -> None:
    """APR-08: after the time-out everybody ends with 1 and names who is missing, also who was not
    the master; no file was touched, and with all three it goes.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    kept = {number: disk.file for number, disk in pump.disks.items()}
    pump.seat_all(1, 2)
    pump.run(58)
    assert pump.seats[1].alive and pump.seats[2].alive
    pump.run(5)
    for number in (1, 2):
        status, reason = stopped(pump.seats[number])
        assert status == 1 and member_id(3) in reason and member_id(2) not in reason
        assert FULL in reason
    assert {number: disk.file for number, disk in pump.disks.items()} == kept
    assert [disk.began for disk in pump.disks.values()] == [1, 1, 1]
    pump.seat_all(2, 3, 1)
    pump.await_joined(1, 2, 3)
    assert not pump.missing_entries(pump.seats[3])


@pytest.mark.parametrize("policy", [RECENT, COMPLETE])
def test_partial_policies_go_on_by_themselves(policy: str) -> None:
    """PIM-37: after the time-out with whoever is there; backups are promoted. Who comes later is
    stale: its files are set aside, and it joins empty.
    """
    pump = RecoveryPump(policy)
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    pump.crash(*nodes)
    pump.seat_all(1, 2)
    pump.run(55)
    assert not pump.seats[1].joined
    pump.await_joined(1, 2)
    assert not pump.missing_entries(pump.seats[2])
    pump.fill(pump.seats[1], "new")
    pump.seat(3)
    pump.await_joined(1, 2, 3)
    assert len(pump.disks[3].aside) == 1 and not pump.disks[1].aside
    pump.run(15)
    assert not pump.missing_entries(pump.seats[3], "new")
    assert any(member_id(3) in row for _, row in pump.rows(1))


@pytest.mark.parametrize("policy", [FULL, RECENT, COMPLETE])
def test_partial_start(policy: str) -> None:
    """An operator need not wait; FULL_RECOVERY_ONLY is named and everybody waits on."""
    pump = RecoveryPump(policy)
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    pump.crash(*nodes)
    pump.seat_all(1, 2)
    pump.await_phase(2, "validating")
    pump.run(3)
    answer = ask(pump.seats[2], "recovery.partial_start")
    if policy == FULL:
        assert FULL in answer.error and member_id(3) in answer.error
        pump.run(5)
        assert not pump.seats[1].joined
        pump.seat(3)
        pump.await_joined(1, 2, 3)
        return
    assert not answer.error
    pump.await_joined(1, 2, timeout_s=5)
    assert not pump.missing_entries(pump.seats[2])
    assert "nothing recovers" in ask(pump.seats[2], "recovery.partial_start").error


def test_force_start() -> None:
    """Everybody begins empty, in a cluster of another id, ACTIVE; what was there is set aside. Who
    comes later is stale, and nobody's files of the past are taken.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    set_state(pump, nodes[0], ClusterState.FROZEN)
    before = nodes[0].engine.member.ctx.members.cluster_id
    pump.crash(*nodes)
    pump.seat_all(1, 2)
    pump.await_phase(2, "validating")
    pump.run(2)
    assert not ask(pump.seats[2], "recovery.force_start").error
    pump.await_joined(1, 2, timeout_s=10)
    members = pump.seats[1].engine.member.ctx.members
    assert members.state is ClusterState.ACTIVE and members.cluster_id != before
    assert pump.missing_entries(pump.seats[1], count=8) == list(range(8))
    assert [len(pump.disks[number].aside) for number in (1, 2, 3)] == [1, 1, 0]
    assert "nothing recovers" in ask(pump.seats[1], "recovery.force_start").error
    pump.fill(pump.seats[1], "new")
    pump.seat(3)
    pump.await_joined(1, 2, 3)
    assert len(pump.disks[3].aside) == 1
    pump.run(10)
    assert not pump.missing_entries(pump.seats[3], "new")


def test_a_forced_start_outlives_its_master() -> None:
    """The order is part of the list: the next master goes on with it, and nobody waits for files
    that are gone.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.crash(*nodes)
    for number in (1, 2, 3):
        pump.disks[number].load_us = 5_000_000
        pump.seat(number)
    pump.await_phase(3, "loading")
    assert not ask(pump.seats[3], "recovery.force_start").error
    pump.kill(pump.seats[1])
    pump.await_joined(2, 3, timeout_s=20)
    assert len(pump.disks[2].aside) == len(pump.disks[3].aside) == 1


def test_who_is_left_out_ends_where_stale_files_are_kept() -> None:
    """APR-15: it names the key and touches nothing; the others go on without it."""
    pump = RecoveryPump(RECENT, persistence={"auto_remove_stale_data": False})
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(nodes[2])
    pump.run(15)
    pump.crash(nodes[0], nodes[1])
    pump.seat_all(1, 2, 3)
    pump.await_joined(1, 2)
    status, reason = stopped(pump.seats[3])
    assert status == 1 and "persistence.auto_remove_stale_data" in reason
    assert pump.disks[3].file is not None and not pump.disks[3].aside


def test_lite_members_are_not_waited_for() -> None:
    """They hold nothing: the data members come back without one, and one alone brings nothing
    back. With the others it is in step like everybody.
    """
    pump = RecoveryPump()
    pump.found_cluster(2)
    pump.seat(3, lite=True)
    pump.await_joined(1, 2, 3)
    pump.fill(pump.seats[1])
    pump.run(2)
    rows = pump.rows(1)
    pump.crash(*pump.seats.values())
    pump.seat(3, lite=True)
    pump.run(5)
    told = pump.recovery(3)
    assert told is not None and told["missing"] == [member_id(1), member_id(2)]
    pump.seat(1)
    pump.seat(2)
    pump.await_joined(1, 2, 3)
    assert pump.rows(3) == rows and not pump.missing_entries(pump.seats[3])
    pump.crash(*pump.seats.values())
    pump.seat(1)
    pump.seat(2)
    pump.await_joined(1, 2)
    assert not any(disk.aside for disk in pump.disks.values())
    pump.seat(3, lite=True)
    pump.await_joined(1, 2, 3)


# -- joining ------------------------------------------------------------------------------


def test_a_lone_member_that_returns_is_stale() -> None:
    """APR-14: the cluster went on without it; its files are set aside and it is filled anew."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(nodes[2])
    pump.run(10)
    pump.fill(nodes[0], "new")
    pump.seat(3)
    pump.await_joined(1, 2, 3)
    assert len(pump.disks[3].aside) == 1
    pump.run(15)
    assert not pump.missing_entries(pump.seats[3], "new")


def test_stale_files_are_kept_where_they_may_not_be_set_aside() -> None:
    """APR-15: it refuses to start, names the key, and touches nothing."""
    pump = RecoveryPump(persistence={"auto_remove_stale_data": False})
    nodes = pump.found_cluster(3)
    pump.crash(nodes[2])
    kept = pump.disks[3].file
    pump.run(10)
    pump.seat(3)
    pump.run(5)
    status, reason = stopped(pump.seats[3])
    assert status == 1 and "persistence.auto_remove_stale_data" in reason
    assert pump.disks[3].file is kept and not pump.disks[3].aside


def test_files_of_another_cluster_are_refused_for_good() -> None:
    """A running cluster of the same name that never knew this member: it ends, and says both."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.crash(*nodes)
    file = pump.disks[3].file
    assert file is not None
    pump.disks[1].file = pump.disks[2].file = None
    pump.seat(1)
    pump.run_until(lambda: pump.seats[1].joined, 10)
    pump.seat(3)
    pump.run(5)
    status, reason = stopped(pump.seats[3])
    assert status == 1 and file.members.cluster_id in reason
    assert pump.seats[1].engine.member.ctx.members.cluster_id in reason
    assert pump.disks[3].file is file


@pytest.mark.parametrize("state", ["FROZEN", "PASSIVE"])
def test_a_missing_member_returns_with_its_files(state: str) -> None:
    """GCM-09, APR-39: its seats are kept; what lies on its disk is in them and is compared."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    set_state(pump, nodes[0], ClusterState(state))
    pump.crash(nodes[2])
    pump.run(10)
    rows = pump.rows(1)
    pump.seat(3)
    pump.await_joined(1, 2, 3)
    assert not pump.disks[3].aside and len(pump.files[pump.seats[3]].loads) == 1
    pump.run(15)
    assert pump.rows(3) == rows and not pump.missing_entries(pump.seats[3])


def test_a_partition_whose_owner_is_away_waits_for_it() -> None:
    """APR-16: in FROZEN nothing moves; a call to it gets the error that clients repeat when its
    time is over, and one made shortly before the return is answered with what was there.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    set_state(pump, nodes[0], ClusterState.FROZEN)
    rows = pump.rows(1)
    number = next(n for n in range(40) if rows[pump.pid(f"k{n}")][1][0] == nodes[2].id)
    key, client = f"k{number}", pump.client(nodes[0])
    pump.crash(nodes[2])
    pump.run(15)

    def ask_for_it() -> int:
        return client.ask("Map.get", pump.pid(key), name="m", key=data(key), thread_id=1)

    in_vain = ask_for_it()
    pump.run(15)
    with pytest.raises(Error) as caught:
        client.answer(in_vain)
    assert caught.value.code in (PARTITION_MIGRATING, TARGET_NOT_MEMBER)
    in_time = ask_for_it()
    pump.seat(3)
    assert client.answer(in_time) == data(f"old{number}")
    assert pump.rows(1) == rows


@pytest.mark.parametrize("newcomer", [0, 4])
def test_a_newcomer_takes_nobodys_place(newcomer: int) -> None:
    """A member without files founds nothing and waits for longer than a join may take, whatever
    its address; then it joins the recovered cluster.
    """
    pump = RecoveryPump(persistence={"validation_timeout_us": 200_000_000})
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    pump.moved[4] = newcomer
    pump.seat(4)
    pump.seat(1)
    pump.seat(2)
    pump.run(100)
    assert pump.seats[4].alive and not pump.seats[4].joined
    told = pump.recovery(1)
    assert told is not None and told["members_here"] == 2
    pump.seat(3)
    pump.await_joined(1, 2, 3, 4)
    pump.run(15)
    assert not pump.missing_entries(pump.seats[4])


def test_who_has_heard_of_files_founds_nothing() -> None:
    """A recovery that gave up is repeated by its operators; a cluster that a newcomer had founded
    meanwhile would refuse its members for good.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.crash(*nodes)
    pump.seat(1)
    pump.seat(4)
    pump.run(5)
    pump.kill(pump.seats[1])
    pump.run(70)
    status, reason = stopped(pump.seats[4])
    assert status == 1 and "files" in reason


def test_other_addresses() -> None:
    """PIM-36: identity is the uuid; the rows of who moved get one version more, no others."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    rows = pump.rows(1)
    pump.crash(*nodes)
    pump.moved[2] = 5
    pump.seat_all(1, 2, 3)
    pump.await_joined(1, 2, 3)
    wanted = [(version + (member_id(2) in row), row) for version, row in rows]
    assert pump.rows(1) == pump.rows(2) == wanted
    assert not pump.missing_entries(pump.seats[3])


# -- standing still -----------------------------------------------------------------------


def test_sigterm_in_a_recovery_ends_with_0() -> None:
    """Nothing is handed over, nothing touched; the others wait for its return."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    for number in (1, 2, 3):
        pump.disks[number].load_us = 4_000_000
        pump.seat(number)
    pump.await_phase(2, "loading")
    pump.run(3)
    pump.leave(pump.seats[2], timeout_s=1)
    assert stopped(pump.seats[2]) == (0, "left")
    assert pump.seats[2].stopped is not None and not pump.seats[2].stopped.discarded
    pump.run(8)
    assert not pump.seats[1].joined and pump.disks[2].file is not None
    pump.seat(2)
    pump.await_joined(1, 2, 3)
    assert not pump.missing_entries(pump.seats[2])


def test_replicas_are_compared_when_it_is_known_what_there_is() -> None:
    """AE-11: what a primary says of its structures before the others know of these goes by unheard,
    and a backup that has nothing of one would be called in step until its turn comes.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(2)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    known: list[list[str]] = []
    pump.seat_all(1, 2)
    for node in pump.seats.values():
        member = node.engine.member
        member.recovery.on_over = lambda member=member: known.append(  # type: ignore[misc]
            [entry.key for entry in member.registry.structures()]
        )
    pump.await_joined(1, 2)
    assert known == [["m"], ["m"]]


@pytest.mark.parametrize("is_first", [True, False])
def test_who_has_left_knows_the_newer_list(is_first: bool) -> None:
    """D1: the master lets somebody in and leaves; who stays dies before its disk has heard of
    either. Those of the older list are all there, and yet the one that came is waited for.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(2)
    pump.save(nodes[1])
    earlier = pump.disks[2].file
    pump.seat(3)
    pump.await_joined(1, 2, 3)
    pump.run(5)
    pump.disks[1].left = nodes[0].engine.member.ctx.members
    pump.leave(nodes[0])
    pump.run(5)
    pump.fill(pump.seats[3], "new")
    pump.run(3)
    pump.crash(nodes[1], pump.seats[3])
    pump.disks[2].file, pump.disks[1].file = earlier, None
    pump.seat_all(*((1, 2) if is_first else (2, 1)))
    pump.run(10)
    told = pump.recovery(2)
    assert told is not None and told["missing"] == [member_id(3)]
    pump.seat(3)
    pump.await_joined(1, 2, 3)
    pump.run(15)
    assert not pump.missing_entries(pump.seats[2], "new")


def test_a_list_of_another_cluster_is_not_told() -> None:
    """Who had left another cluster says nothing of that one, and is in nobody's way."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(2)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    disk = pump.disks[2]
    assert disk.file is not None
    disk.left = msgspec.structs.replace(disk.file.members, cluster_id=member_id(9), version=1_000)
    disk.file = None
    pump.seat_all(1, 2)
    pump.await_joined(1, 2)
    pump.run(15)
    assert not pump.missing_entries(pump.seats[2])


def test_who_sees_only_a_link_end_knows_that_all_leave() -> None:
    """S1: all are asked to leave, and a goodbye is slower than the end of its sender. What the next
    one writes from then on would say that it was there alone.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(2)
    pump.fill(nodes[0])
    pump.watch = lambda _source, _target, message: isinstance(message, m.GoodbyeTold)
    closed: dict[int, int] = {}

    def close(node: Node) -> None:
        closed.setdefault(node.number, len(node.engine.member.ctx.members.members))

    for node in nodes:
        member = node.engine.member
        member.membership.on_end_seen = partial(close, node)
        node.handle(LeaveWanted())
    pump.run_until(lambda: not pump.living(), 30)
    assert list(closed.values()) == [2], "the last one, and before the list without the other"


def test_nothing_is_changed_in_a_recovery() -> None:
    """Neither the cluster state nor a member's role; each refusal says why."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.crash(*nodes)
    pump.seat(1)
    pump.seat(2)
    pump.run(5)
    member = pump.seats[1].engine.member
    member.begin(pump.now_us, pump.wall_ms)
    assert "files" in member.membership.change_cluster("w", ClusterState.FROZEN).refusal
    ended: list[object] = []
    pump.seats[2].engine.want_role(True, ended.append, pump.now_us, pump.wall_ms)
    assert "files" in str(ended[0])


def test_without_a_recovery_there_is_nothing_to_order() -> None:
    """Both orders are errors, and a member that is not the master says so."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(2)
    for what in ("recovery.force_start", "recovery.partial_start"):
        assert "nothing recovers" in ask(nodes[1], what).error
    pump.crash(*nodes)
    pump.seats.clear()
    for number in (1, 2):
        pump.disks[number].load_us = 4_000_000
        pump.seat(number)
    pump.await_phase(2, "loading")
    document = pump.seats[2].engine.questions.documents
    with pytest.raises(Exception, match="not the master"):
        document["recovery.force_start"](b"")


def test_nobody_waits_for_files_that_an_expected_member_never_had() -> None:
    """S3: whoever died before it had any, or left before others had written that down, says so;
    without its word it is waited for.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    pump.disks[3].file, pump.disks[3].fragments = None, []
    pump.seat_all(1, 2)
    pump.run(5)
    told = pump.recovery(1)
    assert told is not None and told["missing"] == [member_id(3)]
    pump.seat(3)
    pump.await_joined(1, 2, 3)
    pump.run(15)
    assert not pump.missing_entries(pump.seats[3])
    assert [disk.began for disk in pump.disks.values()] == [2, 2, 2]


def test_nothing_is_swept_while_a_cluster_comes_back() -> None:
    """A primary that has its rows would send changes to backups that have loaded and have none
    yet, and nobody would write them down.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    swept: list[bool] = []
    for number in (1, 2, 3):
        node = pump.seat(number)
        ctx = node.engine.member.ctx

        def sweep(_wall_ms: int, _budget: int, ctx: Context = ctx) -> int:
            swept.append(ctx.members.recovery is None)
            return 0

        vars(node.engine.member.services["map"])["sweep"] = sweep
    pump.await_joined(1, 2, 3)
    pump.run(1)
    assert swept and all(swept)
