"""Who is a member, who is master, who comes and goes."""

from whimbrel.sim.membership.guards import GUARDS
from whimbrel.sim.membership.planted import BUGS
from whimbrel.sim.membership.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, guards=GUARDS, bugs=BUGS)
