"""Calls that end, pictures of the cluster that follow it."""

from whimbrel.sim.clients.planted import BUGS
from whimbrel.sim.clients.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, bugs=BUGS)
