"""The simulator's own parts: time, entropy, network, trace, budget, scenario files."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from whimbrel.core.effects import LinkUnwanted, LinkWanted
from whimbrel.errors import UsageError
from whimbrel.sim.coverage import OUT_OF_REACH, SITUATIONS, report_lines
from whimbrel.sim.entropy import Entropy, log_uniform
from whimbrel.sim.faults.actions import ACTIONS
from whimbrel.sim.faults.budget import FailureBudget
from whimbrel.sim.faults.event import FaultEvent
from whimbrel.sim.faults.families import FAMILIES
from whimbrel.sim.losses.rules import LOST
from whimbrel.sim.network import Network, NetworkProfile
from whimbrel.sim.profile import USUAL_FAMILIES, draw_plan
from whimbrel.sim.profiles import PROFILES, profile_named
from whimbrel.sim.run import Run
from whimbrel.sim.scenario import Scenario, parse_scenario
from whimbrel.sim.scheduler import Scheduler
from whimbrel.sim.shrink import Shrinker
from whimbrel.sim.structures.map.model import MapModel, key_data, value_data, value_origin
from whimbrel.sim.trace import Trace
from whimbrel.sim.world import World


def make_network(profile: NetworkProfile | None = None, seed: int = 1) -> tuple[Scheduler, Network]:
    scheduler = Scheduler(random.Random(seed))
    return scheduler, Network(scheduler, random.Random(seed), profile or NetworkProfile())


def test_concerns_do_not_disturb_each_other() -> None:
    """Goal: a number drawn for one concern changes no other. Method: draw from one in between."""
    one, two = Entropy(7), Entropy(7)
    one.of("network").random()
    assert one.of("workload").random() == two.of("workload").random()
    assert Entropy(7).uuid() == two.uuid() != Entropy(8).uuid()
    assert len(two.uuid()) == 36


def test_log_uniform_stays_inside() -> None:
    """Goal: magnitudes are drawn within their bounds. Method: many draws."""
    generator = random.Random(1)
    drawn = [log_uniform(generator, 10, 100_000) for _ in range(500)]
    assert min(drawn) >= 10 and max(drawn) <= 100_000
    assert sum(value < 1_000 for value in drawn) > 150


def test_time_moves_only_forward_and_ties_are_seeded() -> None:
    """Goal: order by time, ties by seed. Method: equal times under several seeds."""

    def order(seed: int) -> list[int]:
        scheduler = Scheduler(random.Random(seed))
        seen: list[int] = []
        for number in range(8):
            scheduler.at(5, seen.append, number)
        scheduler.at(4, seen.append, -1)
        scheduler.run_until(10)
        assert scheduler.now_us == 10
        return seen

    assert order(1) == order(1)
    assert order(1)[0] == -1
    assert len({tuple(order(seed)) for seed in range(10)}) > 5


def test_a_pipe_keeps_order_under_spikes() -> None:
    """Goal: TCP semantics. Method: 200 items over a path with wild delays."""
    profile = NetworkProfile(delay_us=10, tail_us=5_000, spike_probability=0.2, spike_us=50_000)
    scheduler, network = make_network(profile)
    got: list[int] = []
    pipe = network.open_pipe("m1", "m2", got.append)
    for number in range(200):
        scheduler.after(number, pipe.send, number)
    scheduler.run_until(60_000_000)
    assert got == list(range(200))


def test_a_cut_holds_back_and_a_heal_lets_go() -> None:
    """Goal: a cut delays, in one direction only. Method: cut m1 to m2, send both ways, heal."""
    scheduler, network = make_network()
    there: list[Any] = []
    back: list[Any] = []
    to, fro = (
        network.open_pipe("m1", "m2", there.append),
        network.open_pipe("m2", "m1", back.append),
    )
    network.cut("m1", "m2")
    to.send(1)
    to.send(2)
    fro.send(3)
    scheduler.run_until(1_000_000)
    assert (there, back) == ([], [3])
    network.heal("m1", "m2")
    scheduler.run_until(2_000_000)
    assert there == [1, 2]


def test_a_clog_ends_by_itself() -> None:
    """Goal: a clog is a delay. Method: clog for a second, look before and after."""
    scheduler, network = make_network()
    got: list[int] = []
    network.clog("m1", "m2", 1_000_000)
    network.open_pipe("m1", "m2", got.append).send(1)
    scheduler.run_until(999_999)
    assert got == []
    scheduler.run_until(1_100_000)
    assert got == [1]


def test_a_reset_loses_a_suffix() -> None:
    """Goal: after a reset a prefix arrives, nothing else, never out of order. Method: many
    seeds; some must lose something, some must deliver something.
    """
    lengths = []
    for seed in range(40):
        scheduler, network = make_network(seed=seed)
        got: list[int] = []
        pipe = network.open_pipe("m1", "m2", got.append)
        for number in range(5):
            pipe.send(number)
        network.reset(pipe)
        pipe.send(99)
        scheduler.run_until(1_000_000)
        assert got == list(range(len(got)))
        lengths.append(len(got))
    assert 0 in lengths and 5 in lengths


def test_equal_lines_give_equal_hashes() -> None:
    """Goal: the trace hash is the history's. Method: equal, then different lines; story filter."""
    one, two = Trace(), Trace()
    for trace in (one, two):
        trace.add(1, "m1", "timer", "membership.heartbeat")
        trace.mark(2, "m2", "crash", "p7 gone")
    assert one.digest == two.digest
    two.add(3, "m1", "timer", "x")
    assert one.digest != two.digest
    assert [line.split()[1] for line in two.story([" p7 "])] == ["m2"]
    assert len(two.story()) == 3


def test_the_budget_counts_between_safe_points() -> None:
    """Goal: never more losses than the backups bear. Method: losses, a leave, safe points."""
    budget = FailureBudget(2, Trace())
    assert not budget.may_lose(5)
    budget.safe_point(5)
    assert budget.may_lose(5)
    budget.lose(1, "m1")
    budget.shrunk(2, ["m2", "m3"])
    assert budget.may_lose(2)
    budget.lose(3, "m2")
    assert not budget.may_lose(1)
    assert (budget.losses, budget.overdrawn) == (2, False)
    budget.lose(4, "m3")
    assert (budget.losses, budget.overdrawn) == (3, True)
    alone = FailureBudget(3, Trace())
    alone.safe_point(1)
    assert not alone.may_lose(1)


def test_who_leaves_must_not_take_the_last_sound_copy_along() -> None:
    """Goal: a leave beside a loss stays within the promise (found by a seed: of two places one was
    silent for too long when the other left). Method: two places and three, one of them lost.
    """
    two, three = FailureBudget(1, Trace()), FailureBudget(1, Trace())
    two.safe_point(2)
    three.safe_point(3)
    for budget in (two, three):
        budget.lose(1, "m1")
    assert not two.may_shrink(["m1"])
    assert three.may_shrink(["m2"])
    two.shrunk(2, ["m1"])
    three.shrunk(2, ["m2"])
    assert (two.overdrawn, three.overdrawn) == (True, False)


def test_a_leave_is_booked_before_the_member_acts() -> None:
    """Goal: what the master gives up in the very step is judged by the smaller promise (found by
    seed 1500175 of swarm: of two places one was silent, the other was asked to leave). Method: two
    members of which one is lost; the other looks at the budget when it is asked.
    """
    plan = msgspec.structs.replace(draw_plan(Entropy(1), profile_named("calm")), members=2)
    run = Run(plan, Entropy(1))
    budget = run.world.budget
    assert run._start()
    assert run._rest("start")
    leaver = run.world.hosts[1]
    budget.safe_point(2)
    budget.lose(run.world.now_us, run.world.hosts[0].name)
    seen: list[bool] = []
    leaver.leave = lambda: seen.append(budget.overdrawn)  # type: ignore[method-assign]
    run.nemesis.perform(FaultEvent(run.world.now_us, "leave", (leaver.name,)))
    assert seen == [True]


def test_values_say_where_they_come_from() -> None:
    """Goal: a wrong read names its operation. Method: encode, decode, damage."""
    value = value_data(42, 7, 3, 10)
    assert value_origin(value) == (42, 7, 3)
    assert value_origin(value[:-1]) is None
    assert value_origin(b"") is None
    maps = MapModel(World(draw_plan(Entropy(42), profile_named("calm")), Entropy(42)))
    assert maps.key("m", 7).data == key_data(7)
    assert maps.key("m", 7) is maps.key("m", 7)


def test_plans_are_drawn_within_their_profiles() -> None:
    """Goal: every profile gives valid, varied plans. Method: 50 seeds each."""
    for profile in PROFILES.values():
        plans = [draw_plan(Entropy(seed), profile) for seed in range(50)]
        assert all(plan.members in profile.members for plan in plans)
        assert all(plan.backup_count in profile.backups for plan in plans)
        assert all(set(plan.fault_gap_us) <= set(profile.families) for plan in plans)
        assert draw_plan(Entropy(3), profile) == plans[3]
    with pytest.raises(UsageError, match="swarm"):
        profile_named("nonsense")


def test_every_family_is_drawn_by_somebody_and_every_verb_is_known() -> None:
    """Goal: no fault is written and never used. Method: families of the profiles against those
    that can be drawn; every draw that needs nobody's name, and a verb that there is not.
    """
    named = {family for profile in PROFILES.values() for family in profile.families}
    assert named == set(FAMILIES)
    assert set(USUAL_FAMILIES) <= named
    nemesis = Run(draw_plan(Entropy(1), profile_named("calm")), Entropy(1)).nemesis
    for family in FAMILIES.values():
        family(nemesis)
    assert {event.verb for event in nemesis.events} <= set(ACTIONS)
    with pytest.raises(UsageError, match="no fault is called 'tease'"):
        nemesis.do("tease")
    assert FaultEvent(1, "back", ("m1",), 7).text() == "at 0.000001 back m1 7"


def test_a_narrow_path_spaces_items_out() -> None:
    """Goal: fault 17, less bandwidth. Method: ten items over a path with a gap of a millisecond."""
    scheduler, network = make_network(NetworkProfile(delay_us=10, tail_us=1))
    network.path("m1", "m2").gap_us = 1_000
    moments: list[int] = []
    pipe = network.open_pipe("m1", "m2", lambda _: moments.append(scheduler.now_us))
    for number in range(10):
        pipe.send(number)
    scheduler.run_until(1_000_000)
    assert len(moments) == 10
    assert moments[-1] - moments[0] >= 9_000
    network.heal_all()
    assert network.path("m1", "m2").gap_us == 1


def test_isolated_places_stay_cut() -> None:
    """Goal: who is left outside the core stays there (3.7). Method: cut two, heal all."""
    _, network = make_network()
    network.cut("m1", "m2")
    network.cut("m3", "m2")
    network.isolated["m3"] = None
    network.heal_all()
    assert not network.is_cut("m1", "m2")
    assert network.is_cut("m3", "m2")


def test_the_budget_counts_a_machine_once() -> None:
    """Goal: the members of one machine are one place. Method: ten losses of one machine."""
    budget = FailureBudget(1, Trace())
    budget.safe_point(3)
    for _ in range(10):
        budget.lose(1, "h1", once=True)
    assert (budget.losses, budget.overdrawn) == (1, False)
    budget.lose(1, "h2", once=True)
    assert budget.overdrawn


def test_coverage_names_every_situation() -> None:
    """Goal: the report lists every rare situation, also what is out of reach. Method: one
    situation met, the rest not.
    """
    lines = report_lines({LOST: 3})
    assert lines[0] == f"1 of {len(SITUATIONS)} situations were met"
    assert len(lines) == 1 + len(SITUATIONS) + len(OUT_OF_REACH)
    assert any(line.split() == ["3", *LOST.split()] for line in lines)
    assert len(set(SITUATIONS)) == len(SITUATIONS)


def test_an_unwanted_link_that_broke_is_made_anew() -> None:
    """Goal: a member that is wanted again gets a link although its old one broke while it
    lingered. Method: want, unwant, break, want; then a frame must arrive.
    """
    plan = draw_plan(Entropy(1), profile_named("calm"))
    world = World(plan, Entropy(1))
    one, two = world.hosts[:2]
    for host in (one, two):
        host.start(())
    one._link_wanted(LinkWanted(two.info.id, two.address))
    world.scheduler.run_until(world.now_us + 50_000)
    link = one.links[two.info.id]
    one._link_unwanted(LinkUnwanted(two.info.id))
    link.break_now(10)
    world.scheduler.run_until(world.now_us + 10_000)
    assert link.closing
    one._link_wanted(LinkWanted(two.info.id, two.address))
    world.scheduler.run_until(world.now_us + 50_000)
    assert one.links[two.info.id] is not link
    assert one.links[two.info.id].pipes is not None


def test_scenarios_are_read_and_written() -> None:
    """Goal: a scenario survives its file. Method: write, read; refuse what is no statement."""
    events = (
        FaultEvent(12_500_000, "crash", ("m2",)),
        FaultEvent(13_000_000, "clog", ("m1", "m3"), 50),
    )
    scenario = Scenario(5, "kill", {"members": 3, "partitions": 7}, events)
    assert parse_scenario(scenario.text) == scenario
    assert scenario.plan().settings.partition_count == 7
    assert parse_scenario("# nothing\nexpect broken D1\n").expectation == "D1"
    with pytest.raises(UsageError, match="line 2"):
        parse_scenario("seed 1\nexplode m1\n")


def test_shrinking_keeps_what_matters() -> None:
    """Goal: the smallest set of events that still breaks the rule. Method: a rule that needs two
    of 20 events.
    """
    events = tuple(FaultEvent(number, "crash", (f"m{number}",)) for number in range(20))

    class Fake(Scenario, frozen=True):
        def is_as_expected(self, report: object) -> bool:
            names = [event.names[0] for event in self.events]
            return "m3" in names and "m17" in names

    shrinker = Shrinker(Fake(1, "kill", {}, events, "D1"), play=lambda _: None)  # type: ignore[arg-type,return-value]
    shrinker.drop_events()
    assert [event.names[0] for event in shrinker.best.events] == ["m3", "m17"]
