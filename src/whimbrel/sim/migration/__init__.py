"""Migrations: order of commits, limits, what services and listeners hear."""

from whimbrel.sim.migration.guards import GUARDS
from whimbrel.sim.migration.planted import BUGS
from whimbrel.sim.migration.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, guards=GUARDS, bugs=BUGS)
