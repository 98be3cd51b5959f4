"""Run fresh simulator seeds over all profiles for a while, one worker a core; say what was seen.

Usage: ``python scripts/soak.py SECONDS [FIRST_SEED] [WORKERS] [PROFILE,...]``. Without a first
seed the minute decides, so that every soak looks at histories nobody has seen.

Each broken rule is printed with the command that repeats it and the end of its story; failing seeds
are kept in ``build/soak-failures.jsonl`` and run first the next time, until they pass. At the end:
seeds and events a second, simulated cluster-hours, and which rare situations were met
(``whimbrel.sim.coverage``). Exit status 1 when a rule was broken.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice
from multiprocessing import Pool
from pathlib import Path
from types import FrameType
from typing import Any

from whimbrel.sim.coverage import report_lines
from whimbrel.sim.run import simulate

KEPT = Path(__file__).resolve().parent.parent / "build" / "soak-failures.jsonl"
PROFILES = (
    *("swarm", "kill", "move", "leave", "pause", "network", "reset", "split", "over"),
    *("ambush", "topology", "operator", "clients", "audited"),
    *("mixed", "states", "roles", "snares", "uneven", "nap", "oneway", "merge"),
    *("serial", "serial-move", "upgrade", "long"),
)
CASCADE = "cascade_100"
"""Run once at the beginning, because it takes about a minute of CPU."""
RUN_CPU_MAX_S = 300
"""Of one run; the machine may be busy with other things."""
STORY_LINES = 25
SEEDS_PER_LINE = 100
"""How often a line tells how far the soak is."""

Job = tuple[int, str]


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"the run took more than {RUN_CPU_MAX_S} s of CPU")


def run_one(job: Job) -> dict[str, Any]:
    """One run in this worker: the report's document, with the story of a failure."""
    seed, profile = job
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, RUN_CPU_MAX_S)
    try:
        report = simulate(seed, profile)
    except Exception as problem:  # a crash of the simulator is a finding, too
        violation = {"rule": "simulator", "sentence": repr(problem)}
        return {"seed": seed, "profile": profile, "violations": [violation]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    document = report.document()
    document["story"] = list(report.story[-STORY_LINES:])
    return document


def kept_failures() -> list[Job]:
    """Seeds that failed before and have not passed since."""
    if not KEPT.exists():
        return []
    lines = [json.loads(line) for line in KEPT.read_text().splitlines() if line.strip()]
    return [(line["seed"], line["profile"]) for line in lines]


class Soak:
    """What was seen so far."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.failures: list[dict[str, Any]] = []
        self.simulated_s = 0.0
        self.events = 0
        self.stale_window_s = 0.0

    def take(self, document: dict[str, Any]) -> None:
        """Book one run; print it when it broke a rule."""
        self.ran[document["profile"]] += 1
        self.simulated_s += document.get("simulated_s", 0.0)
        self.events += document.get("events", 0)
        self.seen.update(document.get("seen", {}))
        self.faults.update(document.get("faults", {}))
        self.stale_window_s = max(self.stale_window_s, document.get("stale_window_s", 0.0))
        if not self.ran.total() % SEEDS_PER_LINE:
            hours = self.simulated_s / 3600
            print(f"{self.ran.total()} seeds, {hours:.1f} cluster-hours", flush=True)
        if not document["violations"]:
            return
        first = document["violations"][0]
        self.rules[first["rule"]] += 1
        self.failures.append(
            {"rule": first["rule"], **{k: document[k] for k in ("seed", "profile")}}
        )
        print(f"\n{first['rule']}: {first['sentence']}")
        for line in document.get("story", []):
            print(f"    {line}")
        again = f"whimbrel sim --seed {document['seed']} --profile {document['profile']}"
        print(f"again: {again}", flush=True)

    def keep(self) -> None:
        """Write the failing seeds where the next soak finds them."""
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text("".join(json.dumps(failure) + "\n" for failure in self.failures))

    def print_summary(self, first: int, seconds: float) -> None:
        """Speed, coverage, and what was broken."""
        seeds = sum(self.ran.values())
        print(
            f"\n{seeds} seeds from {first} in {seconds:.0f} s: {seeds / seconds:.2f} seeds/s, "
            f"{self.events / seconds:.0f} events/s, {self.simulated_s / 3600:.1f} cluster-hours"
        )
        print(f"by profile: {dict(sorted(self.ran.items()))}")
        print(f"faults: {dict(sorted(self.faults.items()))}")
        print(f"longest window of a stale primary: {self.stale_window_s:.1f} s")
        print("\n".join(report_lines(self.seen)))
        print(f"broken rules: {dict(self.rules)}" if self.rules else "no rule was broken")


def main() -> int:
    """Run until the time is up."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    first = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time()) // 60 * 1000
    workers = int(sys.argv[3]) if len(sys.argv) > 3 else os.cpu_count() or 1
    profiles = sys.argv[4].split(",") if len(sys.argv) > 4 else PROFILES
    began = time.monotonic()

    def jobs() -> Iterator[Job]:
        yield from kept
        if len(sys.argv) <= 4:
            yield first, CASCADE
        for seed in count(first):
            if time.monotonic() - began >= seconds:
                return
            yield seed, profiles[seed % len(profiles)]

    soak = Soak()
    kept = kept_failures()
    supply = jobs()
    with Pool(workers) as pool:
        waiting = [pool.apply_async(run_one, (job,)) for job in islice(supply, workers)]
        while waiting:
            done = next((one for one in waiting if one.ready()), None)
            if done is None:
                waiting[0].wait(0.05)
                continue
            waiting.remove(done)
            soak.take(done.get())
            following = next(supply, None)
            if following is not None:
                waiting.append(pool.apply_async(run_one, (following,)))
    soak.keep()
    soak.print_summary(first, time.monotonic() - began)
    return 1 if soak.rules else 0


if __name__ == "__main__":
    sys.exit(main())
