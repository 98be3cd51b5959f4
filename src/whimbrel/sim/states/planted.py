"""Bugs of cluster states."""

from __future__ import annotations

from typing import cast

from whimbrel.core.ids import Row
from whimbrel.core.migration.stable import StableTable
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, nothing, replace


def passive_takes_writes(engine: Engine) -> None:
    """Writes are taken in PASSIVE as in any other state."""
    admission = engine.server.admission
    guard = admission.guard

    def take() -> None:
        admission.is_passive = False
        guard()

    replace(admission, "guard", take)


def anybody_may_join(engine: Engine) -> None:
    """Newcomers are admitted whatever the cluster state says."""
    replace(engine.member.membership.joining, "_may_join", lambda *_: True)


def anybody_may_return(engine: Engine) -> None:
    """Whoever comes is admitted, as if it had left in this state (APR-32)."""
    replace(engine.member.membership.joining, "_state_admits", lambda _joiner: True)


def stable_table_is_the_masters(engine: Engine) -> None:
    """A new master does not know the stable table, and asks nobody."""
    stable = engine.member.migrations.stable
    keep = stable._keep

    def keep_as_master(rows: tuple[Row, ...]) -> None:
        if engine.member.ctx.is_master:
            keep(rows)

    replace(stable, "_keep", keep_as_master)
    replace(stable, "ask", nothing)
    engine.member.migrations.loop._stable = cast("StableTable", _Decided(stable))
    replace(engine.member.migrations, "knows_stable_table", lambda: True)


class _Decided:
    """A stable table that nobody waits for."""

    is_decided = True

    def __init__(self, stable: StableTable) -> None:
        self._stable = stable

    @property
    def rows(self) -> tuple[Row, ...] | None:
        return self._stable.rows

    @property
    def fewest_backups(self) -> int:
        return self._stable.fewest_backups


def fewest_moves_in_stable(engine: Engine) -> None:
    """In STABLE_CLUSTER rows go where it costs least, as in any other state."""
    engine.member.migrations.loop._stable = cast("StableTable", _Unknown())


class _Unknown:
    """What the control loop sees where there is no stable table."""

    is_decided = True
    rows = None


BUGS: tuple[Bug, ...] = (
    Bug(stable_table_is_the_masters, "stable", ("O2",)),
    Bug(fewest_moves_in_stable, "stable", ("O2",)),
    Bug(anybody_may_return, "stable", ("O1",)),
    Bug(passive_takes_writes, "states", ("O1",)),
    Bug(anybody_may_join, "mixed", ("O1",)),
)
