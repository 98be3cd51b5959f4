"""Kinds of harm: what a family draws when it is its turn.

Each function is a family of faults of one name; the numbers in its docstring are those of the
checklist in ``docs/simulator.md``. A family draws from the nemesis's generator only, asks the
budget before it puts a copy at risk, and acts through verbs that a scenario file can hold
(``faults.actions``).
"""

from whimbrel.sim.faults.families.aimed import AIMED_FAMILIES
from whimbrel.sim.faults.families.load import LOAD_FAMILIES
from whimbrel.sim.faults.families.network import NETWORK_FAMILIES
from whimbrel.sim.faults.families.operator import OPERATOR_FAMILIES
from whimbrel.sim.faults.families.processes import PROCESS_FAMILIES
from whimbrel.sim.faults.nemesis import Family

FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (
        *PROCESS_FAMILIES,
        *NETWORK_FAMILIES,
        *LOAD_FAMILIES,
        *AIMED_FAMILIES,
        *OPERATOR_FAMILIES,
    )
}
"""By name."""
