"""A member returns with its files to a cluster that runs: as base of copies, or in its seats."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.engine_pump import Node
from tests.unit.recovery_net import FULL, RECENT, RecoveryPump, set_state, stopped

from whimbrel.core import messages as m
from whimbrel.core.ids import namespace_of
from whimbrel.core.invariants import check_member
from whimbrel.core.model import ClusterState
from whimbrel.core.safety import StableWord

ACTIVE, STABLE, FROZEN = ClusterState.ACTIVE, ClusterState.STABLE_CLUSTER, ClusterState.FROZEN
MAP = namespace_of("map", "m")
AT_REST = StableWord("stable", 0)


def founded(state: ClusterState, policy: str = FULL, **changes: object) -> RecoveryPump:
    """Three members in a state, with entries of a map with one backup and of one with none."""
    pump = RecoveryPump(policy, persistence=changes)
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.fill(nodes[0], name="b0")
    pump.run(3)
    set_state(pump, nodes[0], state)
    return pump


def kept(node: Node) -> int:
    return len(node.engine.member.dataplane.holdings.kept)


def is_at_rest(pump: RecoveryPump) -> bool:
    living = [node for node in pump.seats.values() if node.alive]
    return all(node.engine.member.safety.stable_word() == AT_REST for node in living)


def rows_of(pump: RecoveryPump, number: int) -> list[object]:
    return [row for _, row in pump.rows(number)]


def test_what_it_has_is_kept_as_base() -> None:
    """APR-39, S6: it loads before it comes in; nothing of it is held, and newer data stand."""
    pump = founded(STABLE)
    rows = rows_of(pump, 1)
    pump.crash(pump.seats[3])
    pump.run(25)
    assert rows_of(pump, 1) != rows
    pump.fill(pump.seats[1], "new")
    held: list[tuple[int, int]] = []

    def watch(source: Node, _target: Node, message: object) -> bool:
        if isinstance(message, m.JoinRequested) and message.has_loaded:
            plane = source.engine.member.dataplane
            held.append((sum(len(one.fragments) for one in plane.partitions), kept(source)))
        if isinstance(message, m.TransferSent):
            assert kept(pump.seats[3]) > 0 or not rows_of(pump, 3), "the base is there first"
        return False

    pump.watch = watch
    back = pump.seat(3)
    pump.run_until(lambda: back.joined, 30)
    assert held and held[0][0] > 0
    pump.run_until(lambda: pump.all_joined(1, 2, 3) and is_at_rest(pump), 60)
    pump.run(3)
    assert rows_of(pump, 1) == rows and len(pump.files[back].loads) == 1
    assert not pump.disks[3].aside and pump.disks[3].began == 2 and kept(back) == 0
    assert not pump.missing_entries(back, "new")
    for node in pump.seats.values():
        check_member(node.engine.member)


def counted(pump: RecoveryPump, figure: str) -> int:
    """A figure of copies, of all members that live."""
    members = [node.engine.member for node in pump.seats.values() if node.alive]
    return sum(member.dataplane.holdings.copies[figure] for member in members)


def logs(pump: RecoveryPump) -> int:
    """Fragments with a log of changed keys at any member that lives."""
    planes = [node.engine.member.dataplane for node in pump.seats.values() if node.alive]
    return sum(len(plane.holdings.key_logs) for plane in planes)


@pytest.mark.parametrize("state", [STABLE, FROZEN])
def test_it_is_sent_what_has_changed_since_it_left(state: ClusterState) -> None:
    """APR-46, APR-47, APR-48: keys that were put and keys that were removed, and no others.

    In FROZEN its backups are in its seats, and get them by syncs.
    """
    pump = founded(state)
    assert logs(pump) == 0
    rows = rows_of(pump, 1)
    pump.crash(pump.seats[3])
    pump.run(25)
    assert logs(pump) > 0
    sent = counted(pump, "copy_entries_sent")
    client, owners = pump.client(pump.seats[1]), [pump.seats[1].id, pump.seats[2].id]
    changed: list[int] = []
    for number in range(40):
        key = f"k{number}"
        if rows[pump.pid(key)][0] in owners and len(changed) < 8:  # type: ignore[index]
            changed.append(number)
            pump.put(client, "m", key, f"new{number}")
    back = pump.seat(3)
    pump.run_until(lambda: pump.all_joined(1, 2, 3), 60)
    pump.run(15)
    assert counted(pump, "copies_by_log") > 0 == counted(pump, "copies_by_difference")
    if state is STABLE:  # else primaries in their seats are sent the whole by their backups
        assert counted(pump, "copy_entries_sent") - sent <= len(changed)
    assert rows_of(pump, 1) == rows
    wrong = pump.missing_entries(back)
    assert wrong == changed
    assert not set(pump.missing_entries(back, "new")) & set(changed)
    for node in pump.seats.values():
        check_member(node.engine.member)
        assert logs(pump) == 0 or state is FROZEN
    set_state(pump, pump.seats[1], ACTIVE)
    pump.run(2)
    assert logs(pump) == 0


def test_leaving_the_state_frees_what_is_kept() -> None:
    """APR-39: outside of it nothing is due to be copied back."""
    pump = founded(STABLE)
    pump.crash(pump.seats[3])
    pump.run(25)
    pump.watch = lambda _source, _target, message: isinstance(message, m.MigrationOpened)
    back = pump.seat(3)
    pump.run_until(lambda: back.joined, 30)
    assert kept(back) > 0
    member = back.engine.member
    before = member.ctx.members
    after = msgspec.structs.replace(before, version=before.version + 1, state=ACTIVE, stable=None)
    member.begin(pump.now_us, pump.wall_ms)
    member.membership.install(after)
    assert kept(back) == 0


@pytest.mark.parametrize("victim", [1, 3])
def test_in_frozen_its_files_are_in_its_seats(victim: int) -> None:
    """APR-16, GCM-09: a map without backups is there again, and no partition is reported lost."""
    pump = founded(FROZEN)
    rows, other = rows_of(pump, 2), 4 - victim
    pump.crash(pump.seats[victim])
    pump.run(25)
    back = pump.seat(victim)
    pump.await_joined(1, 2, 3)
    pump.run(5)
    assert rows_of(pump, 2) == rows and not pump.disks[victim].aside
    for number in (other, victim):
        assert not pump.missing_entries(pump.seats[number], name="b0")
        assert not pump.missing_entries(pump.seats[number])
    assert not back.engine.member.migrations.seats_without_data()
    for node in pump.seats.values():
        assert node.engine.member.migrations.reporter.partitions_lost == 0
        check_member(node.engine.member)
    set_state(pump, next(n for n in pump.seats.values() if n.engine.member.ctx.is_master), ACTIVE)
    pump.run(5)
    assert not pump.missing_entries(pump.seats[other], name="b0")


def test_a_backup_that_has_counted_further_wins() -> None:
    """S6: what did not reach the disk is taken from the backup."""
    pump = founded(FROZEN)
    pump.save(pump.seats[3])
    pump.fill(pump.seats[1], "new")
    pump.run(1)
    pump.crash(pump.seats[3], saves=False)
    pump.run(25)
    pump.seat(3)
    pump.await_joined(1, 2, 3)
    pump.run(5)
    assert not pump.missing_entries(pump.seats[3], "new")


def test_files_that_have_more_than_the_backup_win() -> None:
    """APR-16: of one history the longer one counts; it was acknowledged, or could have been."""
    pump = founded(FROZEN)
    back = pump.seats[3]
    mine = [
        part
        for part in back.engine.member.dataplane.partitions
        if part.is_primary and MAP in part.fragments
    ]
    pump.crash(back)
    for saved in pump.disks[3].fragments:
        if saved.namespace == MAP and any(saved.pid == part.pid for part in mine):
            for node in (pump.seats[1], pump.seats[2]):
                held = node.engine.member.dataplane.partitions[saved.pid].fragments.get(MAP)
                if held is not None:
                    counters = list(held.counters())
                    counters[0] -= 1
                    held.set_counters(tuple(counters), held.slot)
    pump.run(25)
    again = pump.seat(3)
    pump.await_joined(1, 2, 3)
    pump.run(5)
    assert not pump.missing_entries(again)
    assert all(
        again.engine.member.dataplane.partitions[part.pid].fragments[MAP].value
        == part.fragments[MAP].value
        for part in mine
    )


def test_in_active_its_files_are_stale() -> None:
    """APR-14: the cluster has gone on without it."""
    pump = founded(ACTIVE)
    pump.crash(pump.seats[3])
    pump.run(25)
    pump.seat(3)
    pump.await_joined(1, 2, 3)
    assert len(pump.disks[3].aside) == 1 and pump.files[pump.seats[3]].loads == [{}]


@pytest.mark.parametrize("policy", [FULL, RECENT])
def test_damage_is_told_before_it_comes_in(policy: str) -> None:
    """APR-01: it ends and names the file, or comes in without what is damaged."""
    pump = founded(STABLE, policy)
    rows = rows_of(pump, 1)
    pump.crash(pump.seats[3])
    pump.run(25)
    pump.disks[3].damage = "log/changes-00000001.seg is damaged at 17"
    back = pump.seat(3)
    pump.run(20)
    if policy == FULL:
        assert stopped(back) == (1, pump.disks[3].damage) and not pump.disks[3].aside
    else:
        pump.run_until(lambda: pump.all_joined(1, 2, 3) and is_at_rest(pump), 60)
        assert len(pump.disks[3].aside) == 1 and rows_of(pump, 1) == rows


def test_all_die_in_the_state() -> None:
    """APR-13, APR-34: state and stable table come back, and whoever stays away may return."""
    pump = founded(STABLE, RECENT, validation_timeout_us=5_000_000)
    rows = rows_of(pump, 1)
    pump.crash(*pump.seats.values())
    pump.run(5)
    pump.seat_all(1, 2)
    pump.await_joined(1, 2)
    for number in (1, 2):
        member = pump.seats[number].engine.member
        assert member.ctx.members.state is STABLE
        assert [*(member.migrations.stable.rows or ())] == rows
        assert [info.id for info in member.ctx.members.missing] == [pump.seats[3].id]
    pump.run(10)
    assert rows_of(pump, 1) != rows and not pump.missing_entries(pump.seats[1])
    pump.seat(3)
    pump.run_until(lambda: pump.all_joined(1, 2, 3) and is_at_rest(pump), 60)
    assert rows_of(pump, 1) == rows
    assert not pump.missing_entries(pump.seats[3])


def test_files_of_another_row_are_not_served() -> None:
    """S6: whoever puts back an old directory has what was there under another row."""
    pump = founded(FROZEN)
    back = pump.seats[3]
    pump.crash(back)
    disk = pump.disks[3]
    assert disk.file is not None
    older = tuple(msgspec.structs.replace(one, version=one.version - 1) for one in disk.file.rows)
    disk.file = msgspec.structs.replace(disk.file, rows=older)
    pump.run(25)
    again = pump.seat(3)
    pump.await_joined(1, 2, 3)
    pump.run(5)
    owned = [one for one in again.engine.member.dataplane.partitions if one.is_primary]
    assert owned and not any(namespace_of("map", "b0") in one.fragments for one in owned)
    assert not pump.missing_entries(pump.seats[1])


def test_files_of_before_a_recovery_are_stale() -> None:
    """APR-14: the others have recovered without it; its seat is filled from backups (GCM-09)."""
    pump = founded(FROZEN, RECENT, validation_timeout_us=5_000_000)
    pump.crash(*pump.seats.values())
    pump.seat_all(1, 2)
    pump.await_joined(1, 2)
    pump.seat(3)
    pump.await_joined(1, 2, 3)
    assert len(pump.disks[3].aside) == 1
    pump.run(5)
    assert not pump.missing_entries(pump.seats[3])
