"""Clusters that keep files: everybody dies at once, disks are slow, full, lose what was not synced.

Planted bugs of disks are in ``test_planted``, as all others are.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from whimbrel.sim.bug import Bug
from whimbrel.sim.disks.rules import CAME_BACK, DAMAGED, DIED_LOADING, load_all
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.faults.event import FaultEvent
from whimbrel.sim.history import History, Outcome
from whimbrel.sim.persisted import ALWAYS, INTERVAL, OFF, RECENT
from whimbrel.sim.profile import draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.registry import BUGS
from whimbrel.sim.run import Run, simulate
from whimbrel.sim.structures.map.model import KeyLedger, MapOperation

SECOND = 1_000_000


@pytest.mark.parametrize("seed", [2, 6, 9, 12, 18, 19, 37, 42, 79])
def test_what_was_acknowledged_comes_back(seed: int) -> None:
    """Goal: no rule is broken, S1 and S7 among them, however often everybody dies. Method: fixed
    seeds that have found something once; each is long back before the end.
    """
    report = simulate(seed, "disks")
    assert report.violations == (), report.story[-20:]
    assert report.phase == "done"
    assert report.faults["outage"] > 1
    assert report.seen[CAME_BACK] and report.seen[DIED_LOADING]


def test_everybody_dies_once_and_returns() -> None:
    """Goal: the plainest case, and S7 looked at from outside. Method: a script without other harm;
    after the run what lies on each disk is loaded.
    """
    entropy = Entropy(3)
    plan = draw_plan(entropy, profile_named("disks"))
    run = Run(plan, entropy)
    names = [host.name for host in run.world.hosts[: plan.members]]
    run.nemesis.script = [
        FaultEvent(9 * SECOND, "outage", value=1),
        *(FaultEvent(10 * SECOND + at, "start", (name,)) for at, name in enumerate(names)),
    ]
    run.go()
    assert run.world.violations == []
    assert run.world.history.acked_writes > 20
    for host in run.world.up_hosts():
        held = host.member.dataplane.partitions
        loaded = load_all(host.disk.fork(random.Random(1)), host)
        assert {pid for pid, _ in loaded} == {one.pid for one in held if one.fragments}


def played(events: list[FaultEvent], bug: Bug | None = None, **persistence: object) -> Run:
    """A run of three members with a script, in which no rule was broken without a bug."""
    entropy = Entropy(3)
    plan = draw_plan(entropy, profile_named("disks"))
    settings = msgspec.structs.replace(
        plan.settings,
        persistence=msgspec.structs.replace(plan.settings.persistence, **persistence),
    )
    plan = msgspec.structs.replace(plan, settings=settings, members=3, lite_hosts=0)
    run = Run(plan, entropy, None if bug is None else bug.make_engine)
    run.nemesis.script = events
    run.go()
    assert bug is not None or run.world.violations == [], run.world.violations
    return run


def starts(at_us: int) -> list[FaultEvent]:
    return [FaultEvent(at_us, "start", (name,)) for name in ("m1", "m2", "m3")]


@pytest.mark.parametrize("fsync", [ALWAYS, INTERVAL, OFF])
def test_a_cluster_that_was_shut_down_comes_back(fsync: str) -> None:
    """Goal: whatever waits for the disk, nothing is lost. Method: all are asked to leave at once,
    and started when all have gone; D1 in the end.
    """
    run = played([FaultEvent(9 * SECOND, "shutdown"), *starts(12 * SECOND)], fsync=fsync)
    assert run.world.history.acked_writes > 20 and run.phase == "done"
    assert run.world.seen[CAME_BACK]


def test_a_flipped_bit_is_told_with_its_file() -> None:
    """Goal: S4 looks at something. Method: a bit of one member's files flips while all are dead; it
    begins without them, as a partial policy wants it. With the planted bug nobody says so.
    """
    events = [
        FaultEvent(9 * SECOND, "outage"),
        FaultEvent(10 * SECOND, "rot", ("m3",), 1),
        *starts(11 * SECOND),
    ]
    run = played(events, fsync=ALWAYS, recovery_policy=RECENT, segment_bytes=2_000)
    assert run.world.seen[DAMAGED] == 1
    bug = BUGS["damage_ends_the_log"]
    run = played(events, bug, fsync=ALWAYS, recovery_policy=RECENT, segment_bytes=2_000)
    assert [one.rule for one in run.world.violations][:1] == ["S4"]


def test_what_may_be_lost_is_as_if_nobody_had_heard() -> None:
    """Goal: a key may show what was acknowledged before, and what came later, and nothing else.
    Method: three writes, two of them in doubt.
    """
    history = History(1)
    ledger = KeyLedger("sim.register", 1, 1)
    history.add(ledger)
    for number in (1, 2, 3):
        write = MapOperation("c1", "set", ledger, number, number * SECOND)
        write.completed_us, write.outcome = number * SECOND, Outcome.OK
        ledger.changes.append(write)
        history.book(write)
    assert not ledger.is_allowed(1)
    history.doubt(2 * SECOND)
    assert ledger.acked is ledger.changes[0]
    assert [ledger.is_allowed(number) for number in (0, 1, 2, 3)] == [False, True, True, True]
    history.doubt(0)
    assert ledger.is_allowed(0) and not ledger.owes


def test_a_run_without_disks_makes_none() -> None:
    """Goal: other profiles pay nothing. Method: no member has asked for a work."""
    entropy = Entropy(1)
    run = Run(draw_plan(entropy, profile_named("kill")), entropy)
    run.go()
    assert all(host.works._disk is None for host in run.world.hosts)
