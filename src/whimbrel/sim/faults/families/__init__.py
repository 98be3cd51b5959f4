"""Kinds of harm: what a family draws when it is its turn.

Each function is a family of faults of one name; the numbers in its docstring are those of the
checklist in ``docs/simulator.md``. A family draws from the nemesis's generator only, asks the
budget before it puts a copy at risk, and acts through verbs that a scenario file can hold
(``faults.actions``).
"""

from whimbrel.sim.faults.families.aimed import AIMED
from whimbrel.sim.faults.families.disks import DISKS
from whimbrel.sim.faults.families.load import LOAD
from whimbrel.sim.faults.families.network import NETWORK
from whimbrel.sim.faults.families.operator import OPERATOR
from whimbrel.sim.faults.families.processes import PROCESS
from whimbrel.sim.faults.nemesis import Family

FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (
        *PROCESS,
        *NETWORK,
        *LOAD,
        *AIMED,
        *OPERATOR,
        *DISKS,
    )
}
"""By name."""
