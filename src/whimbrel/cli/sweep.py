"""``whimbrel sim --sweep``: a kill at every event of a small rebalance."""

from __future__ import annotations

import json
import sys
import time

import typer


def sweep(kind: str, role: str, as_json: bool) -> None:
    """Sweep and tell what broke; ends with 1 when anything did.

    Raises:
        UsageError: There is no such kind or role.
    """
    from whimbrel.sim.sweep import sweep as sweep_cases

    began_s = time.monotonic()
    runs = 0
    failed = []
    for case in sweep_cases(kind, role):
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
