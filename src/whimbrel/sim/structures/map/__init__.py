"""The map."""

from whimbrel.sim.structures.map.guards import GUARDS
from whimbrel.sim.structures.map.model import MapModel
from whimbrel.sim.structures.map.planted import BUGS
from whimbrel.sim.structures.map.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, guards=GUARDS, bugs=BUGS, model=MapModel)
