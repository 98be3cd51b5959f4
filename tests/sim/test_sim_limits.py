"""Limits that rules measure against: derived from the plan, and crossed when they are crossed."""

from __future__ import annotations

import random

import msgspec
import pytest

from whimbrel.sim.bounds.rules import EVENTS_PER_S_MAX, Bounded, events_per_s_max
from whimbrel.sim.bounds.waits import copy_wait_us
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.membership.rules import LeavesWithNothing
from whimbrel.sim.network import DELAY_US_MAX, Network, NetworkProfile
from whimbrel.sim.profile import Plan, draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.run import Run, simulate
from whimbrel.sim.scheduler import Scheduler
from whimbrel.sim.world import World


def plan_of(profile: str, seed: int = 1) -> Plan:
    return draw_plan(Entropy(seed), profile_named(profile))


def test_the_limit_of_events_grows_with_the_cluster() -> None:
    """X1: five members may do hardly more than clients and data need, a hundred what their
    discovery, heartbeats and table news are; and a storm above it is a violation.
    """
    small, large = plan_of("busy"), plan_of("cascade_100")
    assert EVENTS_PER_S_MAX < events_per_s_max(small) < 1.3 * EVENTS_PER_S_MAX
    # All members at once: 150,000 events in the second in which the table is filled.
    assert 180_000 < events_per_s_max(large) < 400_000
    for beyond in (0, 1):
        world = World(small, Entropy(1))
        rule = Bounded(world)
        world.scheduler.events = events_per_s_max(small) + beyond
        world.scheduler.now_us = 1_000_000
        rule.sample()
        assert [violation.rule for violation in world.violations] == ["X1"] * beyond


def test_the_wait_for_safety_counts_the_data() -> None:
    """L1: one record a chunk over a slow network takes its time; whole maps in a chunk take no more
    than the questions of each copy, of which there are many when copies take turns.
    """
    plan = plan_of("calm")
    slow = msgspec.structs.replace(
        plan, settings=msgspec.structs.replace(plan.settings, migration_chunk_bytes_max=1)
    )
    in_turn = msgspec.structs.replace(
        plan, settings=msgspec.structs.replace(plan.settings, migration_copy_bytes_max=1)
    )
    waits, questions = [], []
    for one in (plan, slow, in_turn):
        run = Run(one, Entropy(1))
        world = run.world
        questions.append(copy_wait_us(world))  # nobody holds anything
        run.workload.start()
        for host in world.hosts:
            host.start(world.addresses())
        for client in run.clients:
            client.start()
        world.scheduler.run_until(30_000_000)
        waits.append(copy_wait_us(world))
    assert waits[0] == questions[0] == questions[1] < questions[2]
    assert waits[1] > questions[1]
    assert waits[2] >= questions[2]


def test_who_leaves_is_judged_by_masters_that_are_up_to_date() -> None:
    """P12: who goes while it is in a row breaks the rule, for a master whose list is not older."""
    plan = plan_of("calm")
    world = World(plan, Entropy(1))
    for host in world.hosts[: plan.members]:
        host.start(world.addresses())
    world.scheduler.run_until(10_000_000)
    master = next(host for host in world.hosts if host.is_master)
    leaver = next(host for host in world.hosts if host is not master)
    rule = LeavesWithNothing(world)
    rule.ending(leaver, "crash")
    ctx = leaver.member.ctx
    present = ctx.members
    ctx.members = msgspec.structs.replace(present, version=present.version + 1)
    rule.ending(leaver, "left")
    assert world.violations == []
    ctx.members = present
    rule.ending(leaver, "left")
    assert [(one.rule, one.who) for one in world.violations] == [("P12", master.name)]


@pytest.mark.parametrize("slow_factor", [1, 10])
def test_no_delay_silences_a_member(slow_factor: int) -> None:
    """Delays end well below a heartbeat timeout: longer silence is for the faults."""
    profile = NetworkProfile(spike_probability=0.5, spike_us=300_000, tail_us=20_000)
    network = Network(Scheduler(random.Random(1)), random.Random(1), profile)
    path = network.path("m1", "m2")
    path.slow_factor = slow_factor
    assert max(network.draw_delay_us(path) for _ in range(50_000)) == DELAY_US_MAX
    plan = plan_of("swarm")
    between_us = plan.settings.heartbeat_interval_us + DELAY_US_MAX
    assert between_us < plan.settings.heartbeat_timeout_us


@pytest.mark.parametrize(
    ("seed", "profile"),
    [
        (29930799015, "swarm"),
        (29930799041, "swarm"),
        (29930799019, "pause"),
        (40000093, "nap"),
    ],
)
def test_seeds_that_a_wrong_limit_called_broken(seed: int, profile: str) -> None:
    """P12: a paused master that others took over from judges nobody. L1: a leave takes as long as
    its copy. X1: a member drops finished migrations one by one, as its master does. D6: a write of
    unknown outcome takes effect after a later one was acknowledged.
    """
    report = simulate(seed, profile)
    assert report.violations == (), report.story[-20:]
    assert report.phase == "done"
