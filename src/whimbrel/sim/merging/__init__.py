"""What becomes of the data of a part that yields."""

from whimbrel.sim.merging.planted import BUGS
from whimbrel.sim.merging.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, bugs=BUGS)
