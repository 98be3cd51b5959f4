"""Acknowledged data, whatever their structure."""

from whimbrel.sim.data.guards import GUARDS
from whimbrel.sim.data.planted import BUGS
from whimbrel.sim.data.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, guards=GUARDS, bugs=BUGS)
