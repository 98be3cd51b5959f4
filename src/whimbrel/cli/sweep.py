"""``whimbrel sim --sweep`` and ``--cuts``: a death at every event, and at every write."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from whimbrel.sim.cuts import Cut
    from whimbrel.sim.sweep import Case


def sweep(kind: str, role: str, as_json: bool) -> None:
    """A kill at every event of a small rebalance; ends with 1 when a rule was broken.

    Raises:
        UsageError: There is no such kind or role.
    """
    from whimbrel.sim.sweep import sweep as sweep_cases

    _play(sweep_cases(kind, role), as_json)


def cuts(history: str, as_json: bool) -> None:
    """Everybody dies at every write of small histories; ends with 1 when a rule was broken.

    Raises:
        UsageError: There is no such history.
    """
    from whimbrel.sim.cuts import cuts as all_cuts

    _play(all_cuts(history), as_json)


def _play(cases: Iterable[Case | Cut], as_json: bool) -> None:
    """Play them and tell what broke."""
    began_s = time.monotonic()
    runs = 0
    failed = []
    for case in cases:
        runs += 1
        if case.violations:
            failed.append(case)
            if not as_json:
                sys.stdout.write(case.text + "\n")
    seconds = time.monotonic() - began_s
    if as_json:
        document = {
            "runs": runs,
            "violations": [case.text for case in failed],
            "seconds": round(seconds, 1),
        }
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write(f"{runs} runs in {seconds:.0f} s, {len(failed)} broke a rule\n")
    if failed:
        raise typer.Exit(1)
