"""Runs in which operators and aimed faults are at work: they take place, and break no rule."""

from __future__ import annotations

import pytest

from whimbrel.core.model import ClusterState
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.faults.families.operator import RESTRICTED
from whimbrel.sim.membership.rules import DEMOTED, ONE_WAY, PROMOTED, RETURNED, ROLE_REFUSED
from whimbrel.sim.merging.rules import EQUAL_HALVES, POLICIES
from whimbrel.sim.profile import draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.replication.rules import BY_LOG, COMPARED, SAME, SYNC
from whimbrel.sim.report import Report
from whimbrel.sim.run import simulate
from whimbrel.sim.states.rules import DIED_FROZEN
from whimbrel.sim.states.rules import RETURNED as ROWS_RETURNED
from whimbrel.sim.table.rules import STALE_PRIMARY


def run_clean(seed: int, profile: str) -> Report:
    report = simulate(seed, profile)
    assert report.violations == (), report.story[-20:]
    assert report.phase == "done"
    return report


def seen_as(state: ClusterState) -> str:
    """The situation that the cluster is in this state."""
    return f"the cluster is {state.value}"


@pytest.mark.parametrize("seed", [2, 4])
def test_members_die_and_return_in_every_state(seed: int) -> None:
    """GCM-03 to GCM-09, GCM-13, fault list 77: states change at random moments while members die,
    pause and come back under their identity; in FROZEN and PASSIVE to the seats that are kept.
    """
    report = run_clean(seed, "states")
    assert report.faults["state"] > 3
    for situation in (*map(seen_as, RESTRICTED), DIED_FROZEN, RETURNED):
        assert report.seen.get(situation), situation


@pytest.mark.parametrize("seed", [7, 9, 11])
def test_members_return_to_a_stable_cluster(seed: int) -> None:
    """APR-31 to APR-36, S6: members die or leave and return with their files in any order; rows go
    back, and of what the files lack only the changed keys are copied (O2 looks at the rows).
    """
    report = run_clean(seed, "stable")
    for situation in (seen_as(ClusterState.STABLE_CLUSTER), ROWS_RETURNED, BY_LOG, SAME):
        assert report.seen.get(situation), situation


@pytest.mark.parametrize("seed", [1, 6])
def test_copies_begin_with_a_comparison(seed: int) -> None:
    """AE-20 to AE-24, APR-49: nothing is lost or stays wrong where backups get differences only."""
    assert run_clean(seed, "compared").seen.get(COMPARED)


def test_roles_change_under_load() -> None:
    """GCM-14 to GCM-26, fault list 68: members become lite and data members again while others
    come, go and die; the last data member is refused.
    """
    report = run_clean(1, "roles")
    for situation in (PROMOTED, DEMOTED, ROLE_REFUSED):
        assert report.seen.get(situation), situation


def test_half_of_the_mixed_clusters_begin_at_4_0() -> None:
    """PIM-41, PIM-43: the coin that founds a cluster at 4.0 has a stream of its own, so that the
    other draws are those of the swarm.
    """
    mixed, swarm = profile_named("mixed"), profile_named("swarm")
    versions = []
    for seed in range(1, 41):
        plan, other = draw_plan(Entropy(seed), mixed), draw_plan(Entropy(seed), swarm)
        versions.append(plan.settings.cluster_version)
        assert plan.settings.partition_count == other.settings.partition_count
        assert plan.members == other.members
    assert 10 < versions.count("4.0") < 30


@pytest.mark.parametrize("seed", [1, 4])
def test_everything_mixed(seed: int) -> None:
    """Fault list 68, 73, 77 beside all the others, in clusters of either version."""
    assert run_clean(seed, "mixed").faults


def test_one_way_links_end_outside_the_list() -> None:
    """L5: whoever is heard in one direction only, for long, is off the others' list in time."""
    assert run_clean(1, "oneway").seen[ONE_WAY]


def test_a_sleeping_primary_wakes_to_waiting_writes() -> None:
    """P3, fault list 29: what waited for a primary that was removed meanwhile does no harm."""
    assert run_clean(1, "nap").seen[STALE_PRIMARY]


def test_backups_differ_when_one_is_promoted() -> None:
    """AE-08, AE-20, fault list 24 and 26: what one backup lacks is made good afterwards."""
    assert run_clean(1, "uneven").seen[SYNC]


def test_a_member_dies_in_its_plan_with_another_leaving() -> None:
    """ADL-46, P5: how many copies a plan must leave is what those can hold who are left. A member
    dies while the master, which wants to leave, moves its copies there.
    """
    faults = run_clean(1, "snares").faults
    assert faults["crash"] and faults["leave"]


def test_halves_are_merged_by_each_policy() -> None:
    """D10, M6, fault list 69 and 70: two halves go on alone and are merged, seed by seed by
    another policy.
    """
    reports = [run_clean(seed, "merge") for seed in (1, 2, 3)]
    assert any(report.seen.get(EQUAL_HALVES) for report in reports)
    assert sum(any(report.seen.get(one) for report in reports) for one in POLICIES) > 1


def test_an_upgrade_while_passive_changes_versions_and_no_row() -> None:
    """O1, PIM-43: the seed in which the cluster got version 4.1 while it was PASSIVE."""
    assert run_clean(29931100429, "mixed").notes["migration.ways"]
