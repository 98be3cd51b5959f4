"""The multimap."""

from whimbrel.sim.structures.multimap.model import MultiMapModel
from whimbrel.sim.structures.multimap.planted import BUGS
from whimbrel.sim.structures.multimap.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, bugs=BUGS, model=MultiMapModel)
