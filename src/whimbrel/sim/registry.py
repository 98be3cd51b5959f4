"""Everything that a run is judged by, gathered from the subjects.

L1, L2 and L6 are the run's own affair, X3 is shown by running a seed twice.
"""

from __future__ import annotations

from whimbrel.sim import (
    bounds,
    clients,
    data,
    disks,
    losses,
    membership,
    merging,
    migration,
    replication,
    safety,
    states,
    table,
)
from whimbrel.sim.bug import Bug
from whimbrel.sim.faults.crash_points import CrashSightings
from whimbrel.sim.rule import Rule
from whimbrel.sim.structures.kinds import STRUCTURES
from whimbrel.sim.subject import Subject

SUBJECTS: tuple[Subject, ...] = (
    membership.SUBJECT,
    table.SUBJECT,
    migration.SUBJECT,
    losses.SUBJECT,
    replication.SUBJECT,
    data.SUBJECT,
    disks.SUBJECT,
    *STRUCTURES,
    clients.SUBJECT,
    merging.SUBJECT,
    states.SUBJECT,
    bounds.SUBJECT,
    safety.SUBJECT,
)
RULES: tuple[type[Rule], ...] = (
    *(rule for subject in SUBJECTS for rule in subject.rules),
    CrashSightings,
)
"""In the order in which they are asked at one point."""
BUGS: dict[str, Bug] = {bug.name: bug for subject in SUBJECTS for bug in subject.bugs}
"""Planted bugs by name."""
GUARDS: dict[str, Bug] = {
    **BUGS,
    **{guard.name: guard for subject in SUBJECTS for guard in subject.guards},
}
"""By the name that a scenario file gives: what is switched off, or put in."""


def rules() -> dict[str, str]:
    """Rule to sentence, for people."""
    known: dict[str, str] = {}
    for kind in RULES:
        if kind.rule:
            known.setdefault(kind.rule, kind.sentence)
    known["L1"] = "once nothing harms it, the cluster is safe within a stated span"
    known["L2"] = "once nothing harms it, joins and graceful leaves finish"
    known["X3"] = "one seed gives one history in any process"
    known["X2"] = "no exception escapes a member, no error is noted without a fault"
    return known
