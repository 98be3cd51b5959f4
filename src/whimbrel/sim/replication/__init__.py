"""Replicas: backups, anti-entropy, what may be held where."""

from whimbrel.sim.replication.guards import GUARDS
from whimbrel.sim.replication.planted import BUGS
from whimbrel.sim.replication.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, guards=GUARDS, bugs=BUGS)
