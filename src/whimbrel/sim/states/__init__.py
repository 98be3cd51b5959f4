"""Cluster states and the cluster version."""

from whimbrel.sim.states.guards import GUARDS
from whimbrel.sim.states.planted import BUGS
from whimbrel.sim.states.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, guards=GUARDS, bugs=BUGS)
