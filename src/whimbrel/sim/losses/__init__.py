"""Data that are gone, and who says so."""

from whimbrel.sim.losses.planted import BUGS
from whimbrel.sim.losses.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, bugs=BUGS)
