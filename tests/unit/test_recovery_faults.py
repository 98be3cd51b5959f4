"""A recovery from files in which something goes wrong: deaths, old files, two at once."""

from __future__ import annotations

import random
from functools import partial

import msgspec
import pytest
from tests.unit.engine_pump import Node, member_id
from tests.unit.recovery_net import (
    COMPLETE,
    FULL,
    RECENT,
    RecoveryPump,
    ask,
    received,
    set_state,
    stopped,
)

from whimbrel.core import messages as m
from whimbrel.core.model import ClusterState
from whimbrel.errors import ProtocolError

EMPTY = m.TableImage((), (), (), b"")


# -- deaths -------------------------------------------------------------------------------

PHASES = ["validating", "loading"]


@pytest.mark.parametrize("victim", [1, 2, 3])
@pytest.mark.parametrize("phase", PHASES)
def test_who_dies_is_waited_for(phase: str, victim: int) -> None:
    """APR-12: a member, the master too, dies and comes back; loading begins anew."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    rows = pump.rows(1)
    pump.crash(*nodes)
    for number in (1, 2, 3) if phase == "loading" else (victim, victim % 3 + 1):
        pump.disks[number].load_us = 4_000_000
        pump.seat(number)
    pump.await_phase(victim, phase)
    pump.run(2)
    pump.kill(pump.seats[victim])
    pump.run(10)
    assert not any(node.joined for node in pump.seats.values() if node.alive)
    for number in (1, 2, 3):
        if not pump.seats[number].alive:
            pump.seat(number)
    pump.await_joined(1, 2, 3)
    assert all(pump.rows(number) == rows for number in (1, 2, 3))
    assert not pump.missing_entries(pump.seats[victim])


def test_all_die_again_and_again() -> None:
    """S3: a recovery can be begun anew from any point; nothing was written in between."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    pump.crash(*nodes)
    for times in range(6):
        for number in (1, 2, 3):
            pump.seat(number)
        pump.run(0.3 + 0.35 * times)
        for number in (1, 2, 3):
            if not pump.seats[number].joined:
                pump.kill(pump.seats[number])
        if pump.all_joined(1, 2, 3):
            break
        pump.run(1)
    for number in (1, 2, 3):
        if not pump.seats[number].alive:
            pump.seat(number)
    pump.await_joined(1, 2, 3)
    assert not pump.missing_entries(pump.seats[2])


KINDS = [
    m.RecoveryTold, m.RecoveryNoted, m.RecoveryOrdered, m.MembersPublished, m.RegistryTold,
    m.JoinRequested, m.JoinersTold,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_may_be_lost(kind: type) -> None:
    """Whatever is said is said again."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    pump.doomed = [kind] * 3
    for number in (1, 2, 3):
        pump.seat(number)
        pump.run(1)
    pump.await_joined(1, 2, 3)
    assert not pump.doomed
    assert not pump.missing_entries(pump.seats[3])


@pytest.mark.parametrize(
    ("kind", "times"),
    [(kind, times) for kind in (m.RecoveryTold, m.RecoveryNoted) for times in (1, 2, 4, 6, 9)]
    + [(m.RecoveryOrdered, 1), (m.RecoveryOrdered, 2)],
)
def test_the_master_may_die_at_every_message(kind: type, times: int) -> None:
    """APR-13: between any two messages: the others go on, and wait for it; it returns, and all is
    there.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    rows = pump.rows(1)
    pump.crash(*nodes)
    seen: list[object] = []
    dead: list[Node] = []

    def watch(source: Node, target: Node, message: object) -> bool:
        if isinstance(message, kind):
            seen.append(message)
            if len(seen) == times:
                master = source.engine.member.ctx.master
                assert master is not None
                dead.append(pump.by_id[master])
                pump.kill(dead[0])
        return source in dead

    pump.watch = watch
    pump.seat_all(1, 2, 3)
    pump.run(12)
    for number in (1, 2, 3):
        if not pump.seats[number].alive:
            pump.seat(number)
    pump.await_joined(1, 2, 3)
    assert len(seen) >= times, "nobody died"
    pump.run(15)
    assert not pump.missing_entries(pump.seats[3])
    assert [row for _, row in pump.rows(1)] == [row for _, row in rows] or pump.disks[1].aside


def test_the_time_is_that_of_the_recovery_and_not_of_its_master() -> None:
    """Masters that die one after the other prolong nothing."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(4)
    pump.crash(*nodes)
    pump.seat_all(1, 2, 3)
    pump.run(30)
    pump.kill(pump.seats[1])
    pump.run(20)
    pump.kill(pump.seats[2])
    pump.run(13)
    status, reason = stopped(pump.seats[3])
    assert status == 1
    assert [member_id(number) in reason for number in (1, 2, 3, 4)] == [True, True, False, True]


@pytest.mark.parametrize("policy", [FULL, RECENT])
def test_a_master_that_dies_while_all_load_is_waited_for(policy: str) -> None:
    """Loading may take longer than gathering: that time is the one that counts then."""
    pump = RecoveryPump(policy, persistence={"validation_timeout_us": 5_000_000})
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    for number in (1, 2, 3):
        pump.disks[number].load_us = 15_000_000
        pump.seat(number)
    pump.run(10)
    pump.kill(pump.seats[1])
    pump.run(15)
    pump.seat(1)
    pump.await_joined(1, 2, 3)
    assert not any(disk.aside for disk in pump.disks.values())
    assert not pump.missing_entries(pump.seats[1])


def test_a_new_master_hears_everybody_before_it_decides() -> None:
    """Its time may be over when it takes over: whoever is here counts all the same."""
    pump = RecoveryPump(RECENT)
    nodes = pump.found_cluster(4)
    pump.fill(nodes[0], name="b2")
    pump.run(5)
    pump.crash(*nodes)
    pump.seat_all(1, 2, 3)
    pump.run(58)
    pump.watch = lambda source, _target, message: (
        source.number == 3 and isinstance(message, m.RecoveryTold)
    )
    pump.kill(pump.seats[1])
    pump.run(5)
    pump.watch = lambda _source, _target, _message: False
    pump.await_joined(2, 3)
    assert not any(disk.aside for disk in pump.disks.values())
    assert not pump.missing_entries(pump.seats[3], name="b2")


@pytest.mark.parametrize("policy", [FULL, RECENT])
@pytest.mark.parametrize("seed", range(12))
def test_any_two_deaths(seed: int, policy: str) -> None:
    """S3: whoever dies twice at whatever message, and comes back at whatever time: as long as one
    that has everything lives on, all are one cluster in the end that lacks nothing.
    """
    rng = random.Random(seed)
    pump = RecoveryPump(policy)
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0], name="b2")
    pump.run(3)
    pump.crash(*nodes)
    deaths = sorted(rng.sample(range(10, 120), 2))
    seen = 0

    def come_back(number: int) -> None:
        pump.seat(number)

    def watch(source: Node, target: Node, message: object) -> bool:
        nonlocal seen
        seen += 1
        if deaths and seen >= deaths[0]:
            deaths.pop(0)
            victim = rng.choice([node for node in pump.seats.values() if node.alive])
            pump.kill(victim)
            pump.at(rng.randrange(1, 15_000_000), partial(come_back, victim.number))
        return rng.random() < 0.1

    pump.watch = watch
    for number in (1, 2, 3):
        pump.seat(number)
        pump.run(rng.choice([0, 0.1, 1]))
    pump.run(20)
    pump.watch = lambda _source, _target, _message: False
    pump.await_joined(1, 2, 3, timeout_s=120)
    assert not deaths
    pump.run(15)
    for number in (1, 2, 3):
        assert not pump.missing_entries(pump.seats[number], name="b2")


@pytest.mark.parametrize("reaches", [0, 1])
@pytest.mark.parametrize("is_last", [False, True])
def test_the_master_dies_with_a_list_on_its_way(is_last: bool, reaches: int) -> None:
    """The lists that put the rows in force and end the recovery are committed like any list: one
    that reached nobody is not, one that reached somebody is everybody's.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    pump.crash(*nodes)
    dying: list[int] = []

    def watch(source: Node, target: Node, message: object) -> bool:
        if not isinstance(message, m.MembersPublished) or dying:
            return bool(dying) and not source.alive
        recovery = message.list.recovery
        is_it = recovery is None if is_last else bool(recovery is not None and recovery.order)
        if is_it and source.number == 1:
            dying.append(target.number)
            if reaches:
                target.handle(received(source, message))
            pump.kill(source)
        return bool(dying)

    pump.watch = watch
    pump.seat_all(1, 2, 3)
    pump.run_until(lambda: bool(dying), 30)
    committed = is_last or reaches
    if committed:
        pump.await_joined(2, 3)
    else:
        pump.run(15)
        assert not pump.seats[2].joined and not pump.seats[3].joined
    pump.seat(1)
    pump.await_joined(1, 2, 3)
    assert len(pump.disks[1].aside) == committed
    pump.run(15)
    assert not pump.missing_entries(pump.seats[1])


# -- who is newer -------------------------------------------------------------------------


def test_the_newest_list_says_who_is_expected() -> None:
    """One was removed and the others went on before they died, too: it is not waited for, and what
    it has is stale, also when it is first up and founds the recovery.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(nodes[0])
    pump.run(10)
    pump.fill(nodes[1], "new")
    pump.run(3)
    pump.crash(nodes[1], nodes[2])
    pump.seat(1)
    pump.run(5)
    told = pump.recovery(1)
    assert told is not None and told["members_expected"] == 3
    pump.seat(2)
    pump.run(5)
    told = pump.recovery(1)
    assert told is not None and told["members_expected"] == 2
    assert told["missing"] == [member_id(3)]
    pump.seat(3)
    pump.await_joined(1, 2, 3)
    assert [number for number, disk in pump.disks.items() if disk.aside] == [1]
    pump.run(15)
    assert not pump.missing_entries(pump.seats[1], "new")


def put_two_back(policy: str) -> RecoveryPump:
    """All are dead, and the disks of the first two are those of an earlier time, before the table
    moved on. Each holds everything, so the values show whose files count.
    """
    pump = RecoveryPump(policy)
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0], "old", "b2")
    pump.run(5)
    for node in nodes:
        pump.save(node)
    earlier = {number: (pump.disks[number].file, pump.disks[number].fragments) for number in (1, 2)}
    pump.seat(4)
    pump.await_joined(1, 2, 3, 4)
    pump.run(10)
    pump.leave(pump.seats[4])
    pump.run(10)
    pump.fill(nodes[0], "new", "b2")
    pump.crash(*nodes)
    for number, (file, fragments) in earlier.items():
        pump.disks[number].file, pump.disks[number].fragments = file, fragments
    return pump


@pytest.mark.parametrize(("policy", "left_out"), [(RECENT, [1, 2]), (COMPLETE, [3])])
def test_partial_policies_choose_between_tables(policy: str, left_out: list[int]) -> None:
    """PIM-37: one group counts. Who is left out, be it the master, shows nothing of its own."""
    pump = put_two_back(policy)
    pump.seat_all(1, 2, 3)
    pump.await_joined(1, 2, 3)
    assert [number for number, disk in pump.disks.items() if disk.aside] == left_out
    text = "new" if policy == RECENT else "old"
    assert not pump.missing_entries(pump.seats[3], text, "b2")
    pump.run(15)
    for number in (1, 2):
        assert not pump.missing_entries(pump.seats[number], text, "b2")


@pytest.mark.parametrize(("policy", "left_out"), [(RECENT, 1), (COMPLETE, 3)])
def test_numbers_that_only_somebody_knows_who_is_left_out_are_not_given(
    policy: str, left_out: int
) -> None:
    """M7: its data do not count, and what was given when it was there is given for good."""
    pump = put_two_back(policy)
    file = pump.disks[left_out].file
    assert file is not None and file.numbering is not None
    later = msgspec.structs.replace(
        file.numbering, decision=file.numbering.decision + 9, free=9_000
    )
    pump.disks[left_out].file = msgspec.structs.replace(file, numbering=later)
    pump.seat_all(1, 2, 3)
    pump.await_joined(1, 2, 3)
    pump.run(15)
    numbers = [pump.seats[one].engine.member.membership.numbers.number for one in (1, 2, 3)]
    assert min(numbers) >= 9_000


def test_who_is_left_out_is_known_without_its_master() -> None:
    """The master dies with the list that ends the recovery: the next one, left out itself, has no
    version of the rows that it stands in, and takes itself out of them.
    """
    pump = put_two_back(RECENT)
    dead: list[Node] = []

    def watch(source: Node, target: Node, message: object) -> bool:
        is_list = isinstance(message, m.MembersPublished) and message.list.recovery is None
        if is_list and target.number == 3 and not dead:
            target.handle(received(source, message))
            dead.append(source)
            pump.kill(source)
        return source in dead

    pump.watch = watch
    pump.seat_all(1, 2, 3)
    pump.await_joined(2, 3)
    assert [node.number for node in dead] == [1]
    assert not pump.missing_entries(pump.seats[3], "new", "b2")
    pump.run(15)
    assert not pump.missing_entries(pump.seats[2], "new", "b2")


def test_nothing_is_in_force_before_everybody_knows_who_is_chosen() -> None:
    """Whoever may be the next master has to know whose data there are."""
    pump = put_two_back(RECENT)

    def watch(source: Node, target: Node, message: object) -> bool:
        return isinstance(message, m.RecoveryOrdered) and target.number == 2

    pump.watch = watch
    pump.seat_all(1, 2, 3)
    pump.run(15)
    assert pump.files[pump.seats[3]].bytes_loaded and not pump.seats[1].joined
    assert not order_of(pump.seats[1])
    pump.watch = lambda _source, _target, _message: False
    pump.await_joined(1, 2, 3)


def test_killed_while_the_table_changes() -> None:
    """Bug 61: members of different tables, each newer in some partitions. The newest row of each
    counts, as for a new master, and the load goes to who holds the newest.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(3)
    for node in nodes:
        pump.save(node)
    pump.seat(4)
    changed = 0
    while changed < 3:
        pump.run(0.02)
        table = nodes[0].engine.member.migrations.table
        file = pump.disks[1].file
        assert file is not None
        changed = sum(row.version != table.version(row.partition_id) for row in file.rows)
    pump.save(nodes[0])
    pump.crash(nodes[2], pump.seats[4])
    pump.crash(*nodes[:2], saves=False)
    sums = {sum(row.version for row in disk.file.rows) for disk in pump.disks.values() if disk.file}
    assert len(sums) > 1, "the tables differ"
    pump.seat_all(1, 2, 3, 4)
    pump.await_joined(1, 2, 3, 4)
    pump.run(15)
    assert not pump.missing_entries(pump.seats[2])


def test_what_was_destroyed_stays_destroyed() -> None:
    """Only one member's files know it: the mark reaches everybody before anybody serves."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.fill(nodes[0], "kept", "other")
    for node in nodes:
        pump.save(node)
    client = pump.client(nodes[2])
    client.call("Client.destroyProxy", name="m", service_name="hz:impl:mapService")
    pump.save(nodes[2])
    pump.crash(*nodes, saves=False)
    pump.seat_all(1, 2, 3)
    pump.await_joined(1, 2, 3)
    for number in (1, 2, 3):
        names = [one.key for one in pump.seats[number].engine.member.registry.structures()]
        assert names == ["other"]
    assert pump.missing_entries(pump.seats[1], count=8) == list(range(8))
    assert not pump.missing_entries(pump.seats[1], "kept", "other")


def test_a_primary_that_lost_its_tail_counts_under_another_name() -> None:
    """AE-11, APR-44: its backup holds more under the former lineage. If it counted on under that,
    equal numbers would hide the difference; so the two are found different, and are made alike.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(2)
    pump.fill(nodes[0], count=7)
    pump.run(2)
    pump.crash(*nodes)
    nodes = [pump.seat(number) for number in (1, 2)]
    pump.await_joined(1, 2)
    pump.run(5)
    for node in nodes:
        pump.save(node)
    row = pump.rows(1)[pump.pid("k1")][1]
    primary = next(node for node in nodes if node.id == row[0])
    backup = next(node for node in nodes if node.id == row[1])
    client = pump.client(primary)
    pump.put(client, "m", "k1", "lost 1")
    pump.put(client, "m", "k1", "lost 2")
    pump.run(1)
    pump.save(backup)
    pump.crash(*nodes, saves=False)
    pump.watch = lambda _source, _target, message: isinstance(message, m.VersionsTold)
    pump.seat_all(1, 2)
    pump.await_joined(1, 2)
    client = pump.client(pump.seats[primary.number])
    pump.put(client, "m", "k1", "again 1")
    pump.put(client, "m", "k1", "again 2")
    pump.watch = lambda _source, _target, _message: False
    pump.run(40)
    pump.kill(pump.seats[primary.number])
    survivor = pump.seats[backup.number]
    pump.run(15)
    assert pump.get(pump.client(survivor), "m", "k1") == "again 2"


# -- two at once --------------------------------------------------------------------------


def test_recoveries_that_were_founded_apart_become_one() -> None:
    """The network is cut while all start: nothing was served, so the one that gives way begins
    anew with its files.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    for number in (1, 2, 3):
        pump.part_of[pump.address_of(number)] = number == 3
    pump.seat_all(1, 2, 3)
    pump.run(15)
    first, third = pump.recovery(1), pump.recovery(3)
    assert first is not None and first["members_here"] == 2
    assert third is not None and third["members_here"] == 1
    pump.heal()
    pump.await_joined(1, 2, 3)
    assert not any(disk.aside for disk in pump.disks.values())
    assert not pump.missing_entries(pump.seats[3])


def test_who_recovers_gives_way_to_its_cluster_that_runs() -> None:
    """A single member went on by its policy behind a cut; the two that recover at the other side
    have served nobody, and are stale however many they are.
    """
    pump = RecoveryPump(RECENT, persistence={"validation_timeout_us": 30_000_000})
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0], "old", "b2")
    pump.run(3)
    pump.crash(*nodes)
    for number in (1, 2, 3):
        pump.part_of[pump.address_of(number)] = number == 3
    pump.seat(3)
    pump.run(31)
    pump.seat_all(1, 2)
    pump.run_until(lambda: pump.seats[3].joined, 20)
    pump.fill(pump.seats[3], "new", "b2")
    pump.run(3)
    assert not pump.seats[1].joined
    pump.heal()
    pump.await_joined(1, 2, 3)
    assert [number for number, disk in pump.disks.items() if disk.aside] == [1, 2]
    pump.run(15)
    assert not pump.missing_entries(pump.seats[1], "new", "b2")


def test_a_foreign_cluster_does_not_end_a_recovery() -> None:
    """Somebody founded a cluster of the same name behind a cut: it is no reason to give our files
    up, and neither gives way before ours runs.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    pump.part_of[pump.address_of(4)] = 1
    pump.seat(4)
    pump.run_until(lambda: pump.seats[4].joined, 10)
    pump.seat_all(1, 2)
    pump.run(5)
    pump.heal()
    pump.run(30)
    assert pump.seats[1].alive and pump.seats[2].alive and pump.seats[4].alive
    assert pump.seats[4].joined and not pump.seats[1].joined


# -- when the rows are in force -----------------------------------------------------------


def hold_in_starting(pump: RecoveryPump) -> None:
    """Let nobody know that the rows are in force everywhere."""

    def watch(source: Node, target: Node, message: object) -> bool:
        return isinstance(message, m.RecoveryTold) and bool(order_of(source))

    pump.watch = watch


def order_of(node: Node) -> str:
    """The order whose rows are in force by a member's list."""
    recovery = node.engine.member.ctx.members.recovery
    return "" if recovery is None else recovery.order


def test_nobody_comes_in_once_the_rows_are_in_force() -> None:
    """Who dies then is one that died after the recovery: its files are stale, and the others go on
    without it. Nothing of what was loaded is merged as if it had been served.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    pump.crash(*nodes)
    hold_in_starting(pump)
    pump.seat_all(1, 2, 3)
    pump.await_phase(1, "starting")
    pump.kill(pump.seats[3])
    pump.seat(3)
    pump.run(12)
    assert [order_of(pump.seats[number]) != "" for number in (1, 2, 3)] == [True, True, False]
    expelled = pump.seats[2].engine.member
    assert any(partition.fragments for partition in expelled.dataplane.partitions)
    pump.watch = lambda _source, _target, _message: False
    pump.await_joined(1, 2, 3)
    assert [number for number, disk in pump.disks.items() if disk.aside] == [3]
    pump.run(15)
    assert not pump.missing_entries(pump.seats[3])


def test_what_is_loaded_is_not_left_to_merge() -> None:
    """Who is expelled in a recovery begins anew with its files; nobody was served from it."""
    pump = RecoveryPump()
    pump.respawns = False
    nodes = pump.found_cluster(2)
    pump.fill(nodes[0])
    pump.crash(*nodes)
    hold_in_starting(pump)
    pump.seat_all(1, 2)
    pump.await_phase(1, "starting")
    member = pump.seats[2].engine.member
    member.begin(pump.now_us, pump.wall_ms)
    member.membership.is_split = True
    member.membership.expel("a test")
    assert member.is_expelled and member.split_data is None


def test_who_died_in_a_recovery_and_came_back_has_its_data() -> None:
    """The list of a recovery is PASSIVE, and keeps no seat for who leaves it: in FROZEN, too, a
    member that is whole again is not taken for one that came back with empty hands.
    """
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0], name="b0")
    set_state(pump, nodes[0], ClusterState.FROZEN)
    pump.crash(*nodes)
    for number in (1, 2, 3):
        pump.disks[number].load_us = 4_000_000
        pump.seat(number)
    pump.await_phase(3, "loading")
    pump.kill(pump.seats[3])
    pump.run(2)
    pump.seat(3)
    pump.await_joined(1, 2, 3)
    assert pump.seats[1].engine.member.ctx.members.missing == ()
    assert not pump.missing_entries(pump.seats[3], name="b0")


def test_seats_of_who_is_missing_are_given_away_at_once() -> None:
    """Whoever takes part in no recovery has no data, however soon it comes: the master notes it
    with the list that ends the recovery.
    """
    pump = RecoveryPump(RECENT)
    nodes = pump.found_cluster(3)
    pump.fill(nodes[0])
    pump.run(2)
    pump.crash(*nodes)
    held = [pid for pid, (_, row) in enumerate(pump.rows(1)) if member_id(3) in row]
    pump.doomed = [m.StateAnswered]
    pump.seat_all(1, 2)
    pump.run(3)
    assert not ask(pump.seats[1], "recovery.partial_start").error
    pump.run_until(lambda: not pump.doomed, 10)
    master = pump.seats[1].engine.member
    assert master.is_joined and master.migrations.loop.recovery.running
    owed = master.migrations.loop.repair.owed
    assert [pid for pid, members in sorted(owed.items()) if member_id(3) in members] == held


def test_bad_words_change_nothing() -> None:
    """What no member of ours says of its files costs its sender the connection."""
    pump = RecoveryPump()
    nodes = pump.found_cluster(3)
    pump.crash(*nodes)
    pump.seat_all(1, 2)
    pump.run(3)
    master = pump.seats[1]
    members = master.engine.member.ctx.members
    image = m.TableImage((), (0,), (4,), b"\0" * 13)
    nameless = msgspec.structs.replace(members.members[0], id="nobody")
    strange = m.RegistryEntry("no such kind", "x", 1, member_id(1), True)
    for files in (
        m.FilesTold(members, image, ()),
        m.FilesTold(msgspec.structs.replace(members, members=(nameless,)), EMPTY, ()),
        m.FilesTold(members, EMPTY, (strange,)),
    ):
        told = m.RecoveryTold(files)
        pump.kill(pump.seats[2]) if pump.seats[2].alive else None
        pump.run(1)
        pump.seat(2)
        pump.watch = lambda _s, _t, message: isinstance(message, m.RecoveryTold)
        pump.run(2)
        with pytest.raises(ProtocolError):
            master.handle(received(pump.seats[2], told))
        assert pump.recovery(1)["members_here"] == 1  # type: ignore[index]
