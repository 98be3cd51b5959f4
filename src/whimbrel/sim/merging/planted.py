"""Bugs of merging."""

from __future__ import annotations

from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace
from whimbrel.structures.map.policies import latest_update
from whimbrel.structures.map.record import EntryView
from whimbrel.structures.map.service import MapService


def merged_by_wall_clock(engine: Engine) -> None:
    """A merge compares times, whatever the map's policy says."""

    def ask(
        policy: object, name: str, existing: EntryView | None, merging: EntryView
    ) -> bytes | None:
        return latest_update(existing, merging)

    replace(engine.member.service(MapService).merger, "_ask", ask)


def dropped_by_the_smaller_part(engine: Engine) -> None:
    """A part that yields forgets what it held and counts nothing."""
    replace(engine.member, "_keep_for_merge", lambda: None)


BUGS: tuple[Bug, ...] = (
    Bug(merged_by_wall_clock, "split", ("D10",)),
    Bug(dropped_by_the_smaller_part, "split", ("D10",)),
)
