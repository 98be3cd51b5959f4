"""Bounds of queues and rates, invariants, errors that nothing explains."""

from whimbrel.sim.bounds.planted import BUGS
from whimbrel.sim.bounds.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, bugs=BUGS)
