"""Maps with a bound in the simulator: what is evicted is not lost, and is judged by D14."""

from __future__ import annotations

import pytest

from whimbrel.sim.entropy import Entropy
from whimbrel.sim.profile import draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.run import simulate
from whimbrel.sim.structures.configured import BOUNDED_MAP
from whimbrel.sim.structures.map.model import EVICTS, SET_MAP, MapModel
from whimbrel.sim.structures.map.rules import EVICTS as EVICTED
from whimbrel.structures.map.merging import make_chunk
from whimbrel.structures.map.store import MapStore


def store_with(**values: str) -> MapStore:
    """A replica with these entries."""
    store = MapStore()
    for key, value in values.items():
        store.put(key.encode(), value.encode(), 1)
    return store


def test_a_full_map_evicts_under_harm() -> None:
    """Goal: runs of the profile do what it is for. Method: one seed, three members."""
    report = simulate(4, "full")
    assert report.violations == (), report.story[-20:]
    assert report.seen[EVICTED] > 100


@pytest.mark.parametrize(
    ("now", "is_right"),
    [
        ({"a": "1", "b": "2"}, True),
        ({"b": "2"}, True),
        ({}, True),
        ({"a": "1", "b": "3"}, False),
    ],
)
def test_a_merge_may_evict_and_not_invent(now: dict[str, str], is_right: bool) -> None:
    """D10: of a map that evicts any entry may be gone after a merge, but none may be made up."""
    settings = draw_plan(Entropy(1), profile_named("full")).settings
    assert MapModel.merge_policy(settings, BOUNDED_MAP) == EVICTS
    assert MapModel.merge_policy(settings, SET_MAP) == "PutIfAbsent"
    small = store_with(a="1", b="2")
    chunk, _ = make_chunk(small, small.open_cursor(), 1_000)
    before = MapModel.content(store_with(c="9"))
    problem = MapModel.merge_problem(EVICTS, True, before, store_with(**now), chunk)
    assert (problem == "") == is_right
