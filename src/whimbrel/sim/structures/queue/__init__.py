"""The queue."""

from whimbrel.sim.structures.queue.guards import GUARDS
from whimbrel.sim.structures.queue.model import QueueModel
from whimbrel.sim.structures.queue.planted import BUGS
from whimbrel.sim.structures.queue.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, guards=GUARDS, bugs=BUGS, model=QueueModel)
