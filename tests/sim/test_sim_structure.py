"""How the simulator is put together: no circles, one registry, and when each rule is asked."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

import whimbrel.sim
from whimbrel.sim.registry import BUGS, GUARDS, RULES, SUBJECTS
from whimbrel.sim.rule import POINTS, Rule, Sightings

ROOT = Path(whimbrel.sim.__file__).parent
CIRCLE_MAX = 2
ASKED = """\
D1 NothingLost quiet
D1 ValuesWhole operation
D1 WholeMapOnce operation
D2 NothingInvented operation
D2 ValuesPut operation
D3 ExpiryHolds operation
D3 NoResurrection quiet
D4 FreshReads started
D4 Linearizable operation
D5 ReadersServed operation
D5 SequencesHold operation
D5 TakenOnce operation
D5 WaitersServed operation
D6 CopyRemains ended received row_settled step
D7 LossIsTold note quiet row started
D8 NothingIsLeft quiet
D8 NothingLeaks quiet
D9 ReplicasEqual quiet
D10 MergesAccounted ended final note quiet received started step
D11 NothingReturns quiet
D12 GoneIsTold ending quiet sample
D13 SafeIsSafe ending operation quiet sample
D14 BoundKept quiet started
C1 EveryCallEnds final hangs
C2 ClientsAgree quiet
C3 EventsArrive listened operation sample
C4 RunsOnce operation
C5 FailedIsWithoutEffect denied operation quiet
L4 NoPingPong row view
L5 OneWayEnds one_way sample
M1 ViewOrder view
M2 OneMaster quiet view
M3 PatientMaster became_master received row started view
M4 FreshIdentity view
M5 NoFalseExpulsion expelled
M7 NumbersOnce note started view
O1 StateObeyed operation planned row sample view
O2 StableRestored note sample view
P1 RisingVersions row started
P2 EqualVersions row
P3 OnePrimary accepted
P4 MasterDecides row
P5 CopiesKept planned row started
P6 CommitOrder row
P7 OneVerdict quiet received
P8 OneMigration received
P9 CleanRows row
P10 BalancedPlans quiet
P11 EqualStamps quiet
P12 LeavesWithNothing ending
P13 HookOrder quiet row started
P14 ProcessesTold quiet started
R1 InOrder out_of_step
R2 PrimarySpeaks received step
R3 PermitsKept quiet step
R5 AuditsAreRight note
R4 AnsweredAfterBackups operation
S1 AnsweredAfterSync operation
S4 DamageIsTold note rotten
S7 DiskIsMemory ended quiet sample
X1 Bounded sample
X1 ChunksBounded received
X1 InvariantsHold quiet sample
X2 QuietNotes note
"""
"""When each rule is asked. A rule that is asked more seldom still leaves every trace as it was."""
SOURCE = re.compile(r"^([A-Z]\d+) \([^;)]+; (E?T?S?Q?H?)\): ")


def modules() -> dict[str, Path]:
    names = {path: [*path.relative_to(ROOT).with_suffix("").parts] for path in ROOT.rglob("*.py")}
    return {
        ".".join(["whimbrel", "sim", *parts]).removesuffix(".__init__"): path
        for path, parts in names.items()
    }


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of the simulator that one imports, also for its types only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield whole if whole in known else node.module


def test_modules_stand_in_no_circle() -> None:
    """Goal: a reader can begin anywhere. Method: the graph of imports, types included; a host and
    its world may know each other, nothing else.
    """
    known = modules()
    graph = networkx.DiGraph(
        (name, other)
        for name, path in known.items()
        for other in imported(path, known)
        if other in known and other != name
    )
    circles = [sorted(one) for one in networkx.strongly_connected_components(graph)]
    assert [one for one in circles if len(one) > CIRCLE_MAX] == []


def test_each_rule_is_asked_when_it_always_was() -> None:
    """Goal: no rule is asked more seldom by mistake. Method: the points that each overrides."""
    asked = [
        " ".join((kind.rule, kind.__name__, *points_of(kind)))
        for kind in RULES
        if not issubclass(kind, Sightings)
    ]
    assert sorted(asked) == sorted(ASKED.splitlines())


def points_of(kind: type[Rule]) -> list[str]:
    return sorted(one for one in POINTS if getattr(kind, one) is not getattr(Rule, one))


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_each_rule_says_where_it_comes_from(kind: type[Rule]) -> None:
    """Goal: a rule names its source and when it is asked. Method: the first line of its text."""
    if issubclass(kind, Sightings):
        assert kind.situations and not kind.rule
        return
    found = SOURCE.match(kind.__doc__ or "")
    assert found is not None, kind.__doc__
    assert found[1] == kind.rule
    assert ("Q" in found[2]) == ("quiet" in points_of(kind))
    assert ("S" in found[2]) == ("sample" in points_of(kind))
    assert bool(kind.messages) == bool({"received", "step"} & {*points_of(kind)})


def test_whatever_is_told_is_a_point() -> None:
    """Goal: no rule waits in vain for a misspelt point. Method: the words of all tellings."""
    texts = [path.read_text() for path in ROOT.rglob("*.py")]
    told = {word for text in texts for word in re.findall(r"\.tell\(\s*\"(\w+)\"", text)}
    assert told <= {*POINTS, "stimulus", "stepped"}
    assert {"started", "operation", "quiet", "one_way"} <= told


def test_each_bug_and_protection_has_one_name() -> None:
    """Goal: a scenario file names one thing. Method: count the names over all subjects."""
    bugs = [bug.name for subject in SUBJECTS for bug in subject.bugs]
    guards = [guard.name for subject in SUBJECTS for guard in subject.guards]
    assert sorted(GUARDS) == sorted([*bugs, *guards])
    assert sorted(BUGS) == sorted(bugs)
