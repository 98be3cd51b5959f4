"""A recovery in which somebody's files are damaged, gone, or too slow to load."""

from __future__ import annotations

import pytest
from tests.unit.engine_pump import member_id
from tests.unit.recovery_net import COMPLETE, FULL, RECENT, RecoveryPump, stopped


def test_damage_with_the_full_policy_ends_one_and_the_others_wait() -> None:
    """It names file and offset; with its files mended it comes again, and all are there."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    pump.disks[2].damage = "log/changes-1.seg at 4711: a wrong checksum"
    pump.seat_all(1, 2, 3)
    pump.run(15)
    assert stopped(pump.seats[2]) == (1, pump.disks[2].damage)
    assert pump.seats[1].alive and pump.seats[3].alive and not pump.seats[1].joined
    told = pump.recovery(3)
    assert told is not None and told["phase"] == "loading" and told["missing"] == [member_id(2)]
    pump.disks[2].damage = ""
    pump.seat(2)
    pump.await_joined(1, 2, 3)
    assert not any(disk.aside for disk in pump.disks.values())
    assert not pump.missing_entries(pump.seats[2])


@pytest.mark.parametrize("policy", [FULL, RECENT, COMPLETE])
def test_nobody_waits_for_files_that_are_gone(policy: str) -> None:
    """Whoever was to load, and comes again without files, is left out by another order."""
    pump = RecoveryPump(policy)
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    pump.crash(*nodes)
    pump.disks[2].load_us = 1_000_000_000
    pump.seat_all(1, 2, 3)
    pump.run(15)
    told = pump.recovery(3)
    assert told is not None and told["phase"] == "loading"
    pump.crash(pump.seats[2])
    pump.disks[2].file, pump.disks[2].fragments = None, []
    pump.seat(2)
    pump.run(5)
    pump.await_joined(1, 2, 3)
    pump.run(15)
    assert not pump.missing_entries(pump.seats[2])
    loads = [len(pump.files[pump.seats[number]].loads) for number in (1, 3)]
    assert loads == [1, 1], "what is loaded is not loaded anew"


@pytest.mark.parametrize("victim", [1, 2])
@pytest.mark.parametrize("policy", [RECENT, COMPLETE])
def test_damage_with_a_partial_policy_is_healed_from_backups(policy: str, victim: int) -> None:
    """It is told, the files are set aside, and the member joins empty, also the master."""
    pump = RecoveryPump(policy)
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    pump.crash(*nodes)
    pump.disks[victim].damage = "log/changes-1.seg at 4711: a wrong checksum"
    pump.seat_all(1, 2, 3)
    pump.await_joined(1, 2, 3)
    assert [number for number, disk in pump.disks.items() if disk.aside] == [victim]
    assert any(
        note["reason"] == pump.disks[victim].damage for note in pump.notes("recovery.damaged")
    )
    pump.run(15)
    assert not pump.missing_entries(pump.seats[victim])
    loads = [pump.files[pump.seats[number]].loads for number in (1, 2, 3) if number != victim]
    assert [len(one) for one in loads] == [1, 1], "what is loaded is not loaded anew"


def test_when_nobody_can_load_the_start_fails() -> None:
    """Everybody damaged: all end with 1 and say what is wrong."""
    pump = RecoveryPump(RECENT)
    nodes = pump.found_cluster(2)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    for number in (1, 2):
        pump.disks[number].damage = f"log/changes-{number}.seg at 4711: a wrong checksum"
        pump.seat(number)
    pump.run(20)
    for number in (1, 2):
        status, reason = stopped(pump.seats[number])
        assert status == 1 and "wrong checksum" in reason


@pytest.mark.parametrize("policy", [FULL, RECENT])
def test_who_does_not_load_in_time(policy: str) -> None:
    """The load time-out: all end with FULL_RECOVERY_ONLY, the others go on else."""
    pump = RecoveryPump(policy)
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    pump.crash(*nodes)
    pump.disks[2].load_us = 1_000_000_000
    pump.seat_all(1, 2, 3)
    pump.run(35)
    assert not pump.seats[1].joined and pump.seats[1].alive
    if policy == FULL:
        pump.run(10)
        for number in (1, 2, 3):
            status, reason = stopped(pump.seats[number])
            assert status == 1 and member_id(2) in reason and member_id(1) not in reason
        return
    pump.await_joined(1, 2, 3)
    assert [number for number, disk in pump.disks.items() if disk.aside] == [2]
    pump.run(15)
    assert not pump.missing_entries(pump.seats[2])
