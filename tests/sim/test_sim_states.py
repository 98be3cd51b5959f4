"""Changes of the cluster state in simulated clusters: they take place, and break no rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from whimbrel.core.effects import Note
from whimbrel.sim.host import Host
from whimbrel.sim.run import simulate
from whimbrel.sim.scenario import parse_scenario
from whimbrel.sim.world import World

FOLDER = Path(__file__).parent.parent / "scenario"


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Note]]:
    """Every note of the run that follows, with the name of its member."""
    found: list[tuple[str, Note]] = []
    noted = World.noted

    def keep(world: World, host: Host, note: Note) -> None:
        found.append((host.name, note))
        noted(world, host, note)

    monkeypatch.setattr(World, "noted", keep)
    return found


def changes_of(notes: list[tuple[str, Note]], member: str) -> list[object]:
    return [
        note.fields["state"]
        for name, note in notes
        if name == member and note.kind == "cluster_state_changed"
    ]


def test_states_keep_and_release_seats(notes: list[tuple[str, Note]]) -> None:
    """GCM-03 to GCM-06, GCM-08, GCM-09, GCM-13: the scenario with a death in FROZEN and one in
    NO_MIGRATION: every member follows each change, and the end is safe with all data.
    """
    text = (FOLDER / "states-keep-and-release-seats.txt").read_text()
    report = parse_scenario(text).play()
    assert report.violations == ()
    assert changes_of(notes, "m1") == ["FROZEN", "ACTIVE", "NO_MIGRATION", "ACTIVE"]
    assert changes_of(notes, "m4") == ["FROZEN", "ACTIVE", "NO_MIGRATION", "ACTIVE"]
    kinds = {note.kind for _, note in notes}
    assert "migration.postponed" in kinds


def test_a_master_that_dies_while_changing_leaves_one_state(
    notes: list[tuple[str, Note]],
) -> None:
    """PIM-31, PIM-44, bug 54: a master dies before its commit (the old state stands), another when
    only one member has the new list (the claim brings it to all): one state, and all data.
    """
    text = (Path(__file__).parent / "master-dies-while-the-state-changes.txt").read_text()
    report = parse_scenario(text).play()
    assert report.violations == ()
    begun = [note.fields["state"] for _, note in notes if note.kind == "state_change_begun"]
    assert begun == ["FROZEN", "PASSIVE", "ACTIVE", "NO_MIGRATION", "ACTIVE"]
    assert changes_of(notes, "m2") == ["PASSIVE", "ACTIVE", "NO_MIGRATION", "ACTIVE"]
    assert changes_of(notes, "m3") == ["PASSIVE", "ACTIVE"], "it dies in the third change"


def test_a_restarted_member_is_not_taken_for_the_copy_it_was() -> None:
    """Goal: P5 counts copies, not names in a row. Method: a seed in which a row still names a
    member that comes back as an empty process, because its last migration ended in between.
    """
    assert simulate(1010064, "states").violations == ()
