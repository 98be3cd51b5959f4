"""Members that keep files, and come back with them."""

from whimbrel.sim.disks.guards import GUARDS
from whimbrel.sim.disks.planted import BUGS
from whimbrel.sim.disks.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, guards=GUARDS, bugs=BUGS)
