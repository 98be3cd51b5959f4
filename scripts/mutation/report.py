"""``docs/mutants.md``: how many mutants were killed by what, and why the others do no harm.

The reasons are written by hand in ``docs/mutant-reasons.txt``: the name of a mutant on a line of
its own, below it the reason, indented.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from mutation.campaign import Result
from mutation.trial import ROOT

DOCUMENT = ROOT / "docs" / "mutants.md"
REASONS = ROOT / "docs" / "mutant-reasons.txt"
STAGES = ("import", "unit", "property", "scenario", "sim", "time")
NO_REASON = "**no reason given**"
HEAD = """# Mutants of the core

Made by `scripts/mutants.py`; do not edit. A mutant is one small change of `src/whimbrel/core`; it
is killed when a test that runs the changed lines fails (unit, property, scenario, then 40 simulator
seeds), when the module cannot be imported any more, or when a test does not end. The reasons of
the survivors are kept in [mutant-reasons.txt](mutant-reasons.txt); whoever wrote one tried its
mutant, which counts as a survivor from then on without being tried again (`--explained` does).
"""


def reasons() -> dict[str, str]:
    """The reason of each mutant that is known to do no harm, by its name."""
    found: dict[str, str] = {}
    name = ""
    for number, line in enumerate(REASONS.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line[0] != " ":
            name = line.strip()
            if name.count(" | ") < 2 or " => " not in name:
                sys.exit(f"{REASONS.name}:{number}: a name is 'file | function | old => new'")
            found[name] = ""
        elif not name:
            sys.exit(f"{REASONS.name}:{number}: a reason without a mutant")
        else:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def survivors(results: Sequence[Result]) -> list[Result]:
    """Those that nothing failed on."""
    return [one for one in results if not one.stage]


def document(results: Sequence[Result], seed: int, drawn: int, places: int) -> str:
    """The text of ``docs/mutants.md``.

    Args:
        results: Of the mutants that were tried to their ends.
        seed: Of the sample.
        drawn: Mutants in the sample.
        places: Mutants that could have been drawn.
    """
    left = survivors(results)
    killed = len(results) - len(left)
    share = 100 * killed / max(1, drawn)
    stages = Counter(one.stage for one in results)
    lines = [HEAD, f"Seed {seed}: {drawn} of {places:,} possible mutants; {killed} were killed "]
    lines[-1] += f"({share:.1f} %), {len(left)} survived."
    if len(results) < drawn:
        open_ones = drawn - len(results)
        lines.append(f"{open_ones} have met some of their tests only: the run was ended early.")
    lines += ["\n| killed by | mutants |", "| --- | --- |"]
    lines += [f"| {stage} | {stages[stage]} |" for stage in STAGES if stages[stage]]
    lines += ["\n| room | mutants | killed |", "| --- | --- | --- |"]
    rooms: dict[str, list[bool]] = {}
    for one in results:
        rooms.setdefault(room_of(one), []).append(bool(one.stage))
    lines += [f"| `{room}` | {len(all_)} | {sum(all_)} |" for room, all_ in sorted(rooms.items())]
    lines += ["\n## Survivors\n"]
    why = reasons()
    for one in sorted(left, key=lambda one: one.name):
        place, function, change = one.name.split(" | ", 2)
        old, _, new = change.partition(" => ")
        lines.append(f"* `{place}`, `{function}`: {_code(old)} becomes {_code(new)}")
        lines.append(f"  {why.get(one.name, NO_REASON)}")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"


def room_of(result: Result) -> str:
    """The room of the core that a mutant stands in."""
    parts = result.name.split(" | ")[0].split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def summary(results: Sequence[Result]) -> str:
    """What the terminal shows: percentages, and each survivor with its place."""
    left = survivors(results)
    killed = len(results) - len(left)
    why = reasons()
    lines = []
    for one in left:
        change = one.name.split(" | ", 2)[2]
        old, _, new = change.partition(" => ")
        known = f"harmless: {why[one.name]}" if one.name in why else "no reason given"
        lines += [f"{one.id} {one.where} ({one.kind}; met by {one.met})", f"  - {old}"]
        lines += [f"  + {new}", f"  {known}"]
    stages = Counter(one.stage for one in results if one.stage)
    lines.append(f"killed by: {', '.join(f'{stage} {count}' for stage, count in stages.items())}")
    cpu_s = sum(one.cpu_s for one in results)
    share = 100 * killed / max(1, len(results))
    lines.append(f"{killed} of {len(results)} killed ({share:.1f} %), {cpu_s:.0f} s of CPU")
    return "\n".join(lines)
