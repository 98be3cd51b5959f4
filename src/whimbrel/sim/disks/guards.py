"""Protections of what comes back from files."""

from __future__ import annotations

from typing import Any

from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace


def tables_merged(engine: Engine) -> None:
    """Members whose files have different tables come back all the same (PIM-40)."""
    recovery = engine.member.recovery
    follow_master = recovery._follow_master

    def follow_and_compare(*arguments: Any) -> None:
        follow_master(*arguments)
        gathering = recovery._gathering
        if gathering is None or "decide" in vars(gathering):
            return
        decide = gathering.decide

        def decide_on_one() -> bool:
            tables = {one.rows: None for one in gathering._tellers.values() if one.files}
            return len(tables) < 2 and decide()

        replace(gathering, "decide", decide_on_one)

    replace(recovery, "_follow_master", follow_and_compare)


GUARDS: tuple[Bug, ...] = (Bug(tables_merged, "disks", ("X2", "L1")),)
