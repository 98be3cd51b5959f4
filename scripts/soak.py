"""Run fresh simulator seeds over all profiles for a while, two at a time; print what fails.

Usage: ``python scripts/soak.py SECONDS [FIRST_SEED]``. Without a first seed the minute decides, so
that every soak looks at histories nobody has seen. Exit status 1 when a rule was broken; each
failure is printed with the command that repeats it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

WHIMBREL = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "whimbrel"
PROFILES = ("swarm", "kill", "move", "leave", "pause", "network", "reset", "split", "over")
PARALLEL = 2
RUN_TIMEOUT_S = 300


def run_one(seed: int) -> tuple[int, str, dict[str, Any] | None, str]:
    """One seed in a process of its own: (seed, profile, report or None, what went wrong)."""
    profile = PROFILES[seed % len(PROFILES)]
    command = [str(WHIMBREL), "sim", "--seed", str(seed), "--profile", profile, "--json"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )
        report: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as problem:
        return seed, profile, None, repr(problem)
    return seed, profile, report, ""


def main() -> int:
    """Run until the time is up; print a line per failure and a summary."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    first = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time()) // 60 * 1000
    deadline = time.monotonic() + seconds
    seeds, lock = count(first), Lock()
    ran: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    simulated_s = 0.0

    def work() -> None:
        nonlocal simulated_s
        while time.monotonic() < deadline:
            with lock:
                seed = next(seeds)
            seed, profile, report, problem = run_one(seed)
            with lock:
                ran[profile] += 1
                simulated_s += report["simulated_s"] if report else 0.0
                broken = [v["rule"] for v in report["violations"]] if report else [problem]
                for rule in broken:
                    rules[rule] += 1
                    print(f"whimbrel sim --seed {seed} --profile {profile}   # {rule}", flush=True)

    with ThreadPoolExecutor(PARALLEL) as pool:
        for worker in [pool.submit(work) for _ in range(PARALLEL)]:
            worker.result()
    hours = simulated_s / 3600
    print(f"{sum(ran.values())} seeds from {first}, {hours:.1f} cluster-hours: {dict(ran)}")
    print(f"broken rules: {dict(rules)}" if rules else "no rule was broken")
    return 1 if rules else 0


if __name__ == "__main__":
    sys.exit(main())
