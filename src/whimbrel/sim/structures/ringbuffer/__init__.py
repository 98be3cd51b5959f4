"""The ring buffer."""

from whimbrel.sim.structures.ringbuffer.model import RingbufferModel
from whimbrel.sim.structures.ringbuffer.planted import BUGS
from whimbrel.sim.structures.ringbuffer.rules import RULES
from whimbrel.sim.subject import Subject

SUBJECT = Subject(rules=RULES, bugs=BUGS, model=RingbufferModel)
