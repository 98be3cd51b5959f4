"""Scenario files: every fixed bug, and some hard moments, written down as verbs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from whimbrel.errors import UsageError
from whimbrel.sim.registry import BUGS, GUARDS
from whimbrel.sim.scenario import Scenario, parse_scenario

FILES = sorted(Path(__file__).parent.glob("*.txt"))
SEEDS_TRIED = 15
SITUATIONS = Path(__file__).parents[2] / "docs" / "scenario-gaps.txt"
BUG = r"[1-9]\d?[a-c]?"
SITUATION = r"UP-\d(?:\.\d+)+"
GUARDED = [path for path in FILES if parse_scenario(path.read_text()).guard]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    """Goal: what the file expects. Method: play its events on its plan."""
    scenario = parse_scenario(path.read_text())
    report = scenario.play()
    assert scenario.is_as_expected(report), (report.violations[:2], report.story[-20:])


@pytest.mark.parametrize("path", GUARDED, ids=lambda path: path.stem)
def test_scenario_needs_its_protection(path: Path) -> None:
    """Goal: a scenario shows something (ADL-32). Method: play it with the protection that its
    header names switched off: it fails by one of the rules that it lists.
    """
    scenario = parse_scenario(path.read_text())
    seen = []
    for seed in range(scenario.seed, scenario.seed + SEEDS_TRIED):
        report = scenario.with_seed(seed).play_unguarded()
        if scenario.is_caught(report):
            assert not scenario.is_as_expected(report)
            return
        seen.append([violation.rule for violation in report.violations])
    pytest.fail(f"the scenario passes without its protection: {seen}")


def test_every_scenario_names_its_protection() -> None:
    """Goal: no scenario that would pass anyway. Method: each has a guard or a planted bug."""
    for path in FILES:
        scenario = parse_scenario(path.read_text())
        assert scenario.guard or scenario.bug, path.name
        assert bool(scenario.guard_rules or scenario.never) == bool(scenario.guard), path.name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_text_is_the_scenario(path: Path) -> None:
    """Goal: what is written is what was read. Method: parse, print, parse."""
    scenario = parse_scenario(path.read_text())
    assert parse_scenario(scenario.text) == scenario


def test_every_guard_has_a_scenario() -> None:
    """Goal: no guard that nothing needs. Method: those that are no planted bugs of their own."""
    used = {parse_scenario(path.read_text()).guard for path in FILES}
    assert sorted(set(GUARDS) - set(BUGS) - used) == []


def test_a_guard_must_be_known() -> None:
    """Goal: a clear error for a guard that does not exist, and for none. Method: both."""
    with pytest.raises(UsageError, match="line 1"):
        parse_scenario("guard luck D1")
    with pytest.raises(UsageError, match="names no protection"):
        Scenario(1, "kill", {}, ()).play_unguarded()


def test_there_are_scenarios() -> None:
    """Goal: the folder is not forgotten. Method: count."""
    assert len(FILES) >= 70


def header_of(path: Path) -> str:
    """The comment at the top of a file, as one line."""
    lines = [line[1:].strip() for line in path.read_text().splitlines() if line.startswith("#")]
    return " ".join(lines)


def bugs_in(header: str) -> set[str]:
    """The numbers of the bugs that a header names."""
    runs = re.findall(rf"\bbugs? ({BUG}(?:(?:, | and ){BUG})*)", header)
    return {number for run in runs for number in re.findall(BUG, run)}


def situations_in(header: str) -> set[str]:
    """The ids of the situations that a header names, those of ``A to B`` included."""
    found = set(re.findall(SITUATION, header))
    for first, last in re.findall(rf"({SITUATION}) to ({SITUATION})", header):
        section, _, low = first.rpartition(".")
        found |= {f"{section}.{number}" for number in range(int(low), int(last.split(".")[-1]))}
    return found


def test_every_bug_and_situation_has_a_file_or_a_reason() -> None:
    """Goal: no upstream bug and no upstream situation is forgotten. Method: the lists of
    ``docs/scenario-gaps.txt`` against the headers of the files and its table of gaps.
    """
    _, bugs, situations, gaps = re.split(r"^## .*$", SITUATIONS.read_text(), flags=re.MULTILINE)
    headers = [header_of(path) for path in FILES]
    reasons = [line.split("|")[1] for line in gaps.splitlines() if line.startswith("| ")]
    wanted_bugs = set(re.findall(BUG, bugs))
    wanted_ids = set(re.findall(SITUATION, situations))
    named_bugs = set().union(*map(bugs_in, headers))
    named_ids = set().union(*map(situations_in, headers))
    excused_bugs = {
        number for reason in reasons for number in re.findall(BUG, re.sub(SITUATION, "", reason))
    }
    excused_ids = set().union(*map(situations_in, reasons))
    assert len(wanted_bugs) > 40 and len(wanted_ids) > 70
    assert sorted(wanted_bugs - named_bugs - excused_bugs) == []
    assert sorted(wanted_ids - named_ids - excused_ids) == []
    assert sorted((named_ids | excused_ids) - wanted_ids) == []
    assert sorted((named_bugs | excused_bugs) - wanted_bugs) == []
    assert sorted(named_ids & excused_ids) == []
