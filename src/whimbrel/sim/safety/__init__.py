"""What the product calls safe."""

from whimbrel.sim.safety.planted import BUGS
from whimbrel.sim.safety.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, bugs=BUGS)
