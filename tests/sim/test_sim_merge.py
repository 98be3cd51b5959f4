"""D10 at the end of a run: merges are waited for, and one that does not end is a broken rule."""

from __future__ import annotations

import msgspec
import pytest

from whimbrel.core.ids import EMPTY_ROW, PartitionId, namespace_of
from whimbrel.core.merging.leftovers import Leftover, SplitData
from whimbrel.core.merging.target import MergeTarget
from whimbrel.core.messages import MergeRequested
from whimbrel.core.replication.fragments import Fragment
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.profile import draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.run import Run
from whimbrel.sim.scenario import parse_scenario
from whimbrel.sim.structures.map.model import SET_MAP
from whimbrel.structures.map.store import MapStore

FOREVER_US = 1 << 60
SPLIT = """
profile split
set members 5
set hosts 5
set lite_hosts 0
set partitions 7
set backups 1
set rounds 1
set operations_per_s 150
set smart_clients 4
set heartbeat_timeout_us 3000000
"""


def merging_run(refused_us: int, monkeypatch: pytest.MonkeyPatch) -> Run:
    """One member with two entries of an earlier incarnation, whose merge is refused for a while."""
    plan = msgspec.structs.replace(
        draw_plan(Entropy(1), profile_named("calm")), members=1, hosts=1, smart_clients=0
    )
    run = Run(plan, Entropy(1))
    world = run.world

    def refusal(target: MergeTarget, message: MergeRequested) -> str:
        return "not now" if world.now_us < refused_us else ""

    monkeypatch.setattr(MergeTarget, "_refusal", refusal)
    host = world.hosts[0]
    store = MapStore()
    for key in (b"one", b"two"):
        store.put(key, b"\0" * 12, 0)
    fragment = Fragment(PartitionId(0), namespace_of("map", SET_MAP), store, 0, 0)
    data = SplitData([Leftover(fragment, EMPTY_ROW)], ())
    host.start(world.addresses(), data)
    world.scheduler.run_until(1_000_000)
    assert host.joined
    return run


@pytest.mark.parametrize("refused_us", [4_000_000, FOREVER_US])
def test_a_run_waits_for_merges_and_no_longer_than_a_while(
    refused_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: merges end. A run does not judge one that makes headway, and blames one that does not.

    Method: the primary refuses every chunk until some moment, or for ever. A run that ends without
    waiting finds entries that still wait, though the merge is in order.
    """
    run = merging_run(refused_us, monkeypatch)
    world = run.world
    assert run._someone_merges()
    assert run._merges_end()
    if refused_us < FOREVER_US:
        assert world.now_us < refused_us + 1_000_000
    else:
        assert world.now_us <= 2_000_000 + world.plan.safe_wait_us
    world.tell("final")
    rules = [violation.rule for violation in world.violations]
    assert rules == ([] if refused_us < FOREVER_US else ["D10"])


@pytest.mark.parametrize("seed", [9, 13, 17, 18, 19])
def test_a_list_that_arrives_late_drops_nothing(seed: int) -> None:
    """M6, D10: what the weaker part took in a split is merged, none of it dropped.

    Method: a cut of three members from two. The master removes the two one after the other, and the
    list that still has one of them is the first that the other one gets once the cut has healed.
    """
    cuts = [f"{one} {other}" for one in ("m1", "m2", "m3") for other in ("m4", "m5")]
    lines = [f"seed {seed}", SPLIT, "never expelled.dropped"]
    for second, verb in ((12, "cut"), (32, "heal")):
        for pair in cuts:
            there, back = pair.split()
            lines += [f"at {second} {verb} {there} {back}", f"at {second} {verb} {back} {there}"]
    scenario = parse_scenario("\n".join([*lines, "at 45 calm"]))
    report = scenario.play()
    assert scenario.is_as_expected(report), (report.violations, report.notes)
    assert report.notes["expelled"] >= 2
