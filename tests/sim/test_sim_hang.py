"""A call that hung: its answer was dropped because the executing member did not know the caller."""

from __future__ import annotations

import msgspec

from whimbrel.sim.client import SILENCE_US
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.history import Operation, Outcome
from whimbrel.sim.host import Host
from whimbrel.sim.profile import draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.run import Run, simulate
from whimbrel.sim.structures.map.model import SET_MAP, MapModel
from whimbrel.sim.world import World

STEP_US = 50
PATIENCE_US = 10_000_000


def three_places() -> Run:
    """Three places and one client that is not smart; nobody runs."""
    plan = draw_plan(Entropy(1), profile_named("calm"))
    settings = msgspec.structs.replace(plan.settings, partition_count=7)
    plan = msgspec.structs.replace(
        plan, settings=settings, members=2, hosts=3, smart_clients=0, single_clients=1
    )
    return Run(plan, Entropy(1))


def run_until_listed(world: World, by: Host, whom: Host) -> None:
    """Let time pass until one member has another on its list."""
    for _ in range(PATIENCE_US // STEP_US):
        if by.member.ctx.is_member(whom.info.id):
            return
        world.scheduler.run_until(world.now_us + STEP_US)
    raise AssertionError(f"{by.name} never heard of {whom.name}")


def test_a_newcomers_call_is_answered_though_the_list_came_late() -> None:
    """C1: a newcomer forwards a request to a primary that has not got the list with it yet. The
    primary has no link back, so the answer goes nowhere; it must be said again when the list is
    there. Method: the list to the primary is held back for a second; without the repetition the
    client waits until it gives its connection up.
    """
    run = three_places()
    world, maps = run.world, run.workload.models["map"]
    assert isinstance(maps, MapModel)
    one, two, newcomer = world.hosts
    for host in (one, two):
        host.start(world.addresses())
    world.scheduler.run_until(4_000_000)
    newcomer.start(world.addresses())
    run_until_listed(world, one, newcomer)
    world.network.clog(one.name, two.name, 1_000_000)
    run_until_listed(world, newcomer, one)
    client = run.clients[0]
    client._connect(newcomer.address)
    world.scheduler.run_until(world.now_us + 100_000)
    assert not two.member.ctx.is_member(newcomer.info.id)

    operations: list[Operation] = []
    rows = newcomer.member.migrations.table.rows
    for key in range(1, 40):
        ledger = maps.key(SET_MAP, key)
        if rows[ledger.partition_id][0] == two.info.id:
            run.workload._begin_extra(client, maps, ledger)
            operations += ledger.changes
    assert operations
    world.scheduler.run_until(world.now_us + PATIENCE_US)
    assert [operation.outcome for operation in operations] == [Outcome.OK] * len(operations)


def test_a_whole_map_call_ends_before_its_client_loses_patience() -> None:
    """C1: a whole-map call to a member that never answers ends as timed out, and the checker waits
    for that. Method: one of two members takes no calls; the other is asked for the keys of a map.
    """
    run = three_places()
    world, maps = run.world, run.workload.models["map"]
    assert isinstance(maps, MapModel)
    one, two, _ = world.hosts
    for host in (one, two):
        host.start(world.addresses())
    world.scheduler.run_until(4_000_000)
    assert two.engine is not None
    two.engine.server.calls.take_request = lambda peer, payload: None  # type: ignore[method-assign]
    client = run.clients[0]
    client._connect(one.address)
    world.scheduler.run_until(world.now_us + 1_000_000)
    operation = maps.scan(client)
    operation.is_extra = True
    run.workload.extra_count += 1
    run.workload.begin(client, operation)
    world.scheduler.run_until(world.now_us + SILENCE_US - STEP_US)
    assert operation.outcome is Outcome.FAILED
    assert world.error_counts == {38: 1}
    assert not world.violations


def test_a_call_to_a_member_that_came_back_under_its_identity_ends() -> None:
    """C1: the seed in which a restarted process took new calls for ones it had heard before its
    list was known.
    """
    assert simulate(29931100190, "states").violations == ()
