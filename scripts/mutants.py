"""Switch small things of the core off, one at a time, and see whether a test notices.

Usage::

    python scripts/mutants.py                     400 mutants of the core; writes docs/mutants.md
    python scripts/mutants.py --only core/registry.py --count 50     of one file or folder
    python scripts/mutants.py --show ID           what a mutant changes, and its result
    python scripts/mutants.py report              the last run's survivors, and docs/mutants.md
    python scripts/mutants.py rows [ROW ...]      which test kills a mutant of each paper's row

``--seed`` and ``--count`` say which sample, ``--workers`` how many at a time, ``--resume`` keeps
the results that ``build/mutants.jsonl`` has already, ``--again`` those of killed mutants only (for
new tests), and ``--old-map`` the map of lines and tests although sources have changed since, which
is good enough after an edit. How it works is in ``scripts/mutation/``.

mutmut and cosmic-ray were looked at: the first rewrites every function of a copy, so that sizes and
hot paths are not ours any more, the second starts a process for each mutant and test run; neither
draws a sample, selects tests by line or knows simulator seeds.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence

from mutation import report, rows
from mutation.campaign import RESULTS, Result, forget_survivors, read_results, run, spare
from mutation.cover import taken_map
from mutation.places import PACKAGE, Mutant, core_files, drawn, mutants_of
from mutation.trial import BUILD, prepare

COUNT = 400
SEED = 1


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", default="run", choices=("run", "report", "rows"))
    parser.add_argument("row", nargs="*", help="rows to look at; all without")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--only", default="", help="a file or folder below src/whimbrel")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--again", action="store_true", help="resume, and try survivors again")
    parser.add_argument("--explained", action="store_true", help="try those with a reason, too")
    parser.add_argument("--old-map", action="store_true", help="keep the map of other sources")
    parser.add_argument("--show", default="", metavar="ID")
    return parser.parse_intermixed_args(words)


def show(mutants: Sequence[Mutant], mutant_id: str) -> int:
    """Print a mutant as a difference, with its result when there is one."""
    found = [one for one in mutants if one.id.startswith(mutant_id)]
    if not found:
        print(f"no mutant of today's core has the id {mutant_id}")
        return 1
    results = read_results()
    for mutant in found:
        path = PACKAGE / mutant.file
        before, after = path.read_text().splitlines(), mutant.source().decode().splitlines()
        name = f"src/whimbrel/{mutant.file}"
        print("\n".join(difflib.unified_diff(before, after, name, name, lineterm="")))
        result = results.get(mutant.id)
        if result is not None:
            fate = f"killed by {result.by}" if result.stage else "survived"
            print(f"{mutant.id}: {fate}; {result.met} tests and runs meet its lines")
    return 0


def results_of(sample: Sequence[Mutant]) -> list[Result]:
    """The kept results of a sample that were tried to their ends, in its order."""
    results = read_results()
    found = [results[one.id] for one in sample if one.id in results]
    return [one for one in found if one.is_decided]


def main(words: Sequence[str]) -> int:
    """Run what is asked for; returns the exit status."""
    given = arguments(words)
    prepare()
    if given.command == "rows":
        return rows.main(given.row, given.seed, given.workers)
    files = [file for file in core_files() if file.startswith(given.only)]
    mutants = [mutant for file in files for mutant in mutants_of(file)]
    if not mutants:
        print(f"nothing to change below {PACKAGE / given.only}")
        return 1
    if given.show:
        return show(mutants, given.show)
    sample = drawn(mutants, given.seed, given.count)
    if given.command == "run":
        BUILD.mkdir(exist_ok=True)
        covered = taken_map(given.workers, given.old_map)
        if given.again:
            forget_survivors()
        elif not given.resume:
            RESULTS.unlink(missing_ok=True)
        if not given.explained:
            known, why = read_results(), report.reasons()
            spare([one for one in sample if one.name in why and one.id not in known])
        run(sample, covered, given.workers)
    results = results_of(sample)
    print(report.summary(results))
    print(f"{len(sample) - len(results)} of {len(sample)} have not met all their tests")
    if not given.only and results:
        report.DOCUMENT.write_text(report.document(results, given.seed, len(sample), len(mutants)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
