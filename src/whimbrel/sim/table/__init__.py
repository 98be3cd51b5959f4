"""The partition table: versions, rows, plans, promotions."""

from whimbrel.sim.subject import Subject
from whimbrel.sim.table.guards import GUARDS
from whimbrel.sim.table.planted import BUGS
from whimbrel.sim.table.rules import RULES

SUBJECT = Subject(rules=RULES, guards=GUARDS, bugs=BUGS)
