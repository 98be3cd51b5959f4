"""What a rule is, and the points at which rules are asked.

A rule's docstring says in parentheses where it comes from (a requirement, a design, the promise
table of ``docs/guarantees.md``) and when it is asked: *E* at an event of a member, *T* at a change
of a table, list or path, *S* every quarter of a second, *Q* at rest, *H* when clients know
something. A rule overrides the points that it needs and costs nothing at the others.
"""

from __future__ import annotations

from typing import Any, ClassVar

from whimbrel.core.effects import Note
from whimbrel.core.ids import MemberId, PartitionId, Row
from whimbrel.core.messages import Message
from whimbrel.core.model import MemberList
from whimbrel.core.replication.fragments import Fragment
from whimbrel.sim.history import Operation, Reply
from whimbrel.sim.host import Host
from whimbrel.sim.world import ClientProcess, World


class Rule:
    """One rule. Overrides of the methods below are called, the others cost nothing."""

    rule: ClassVar[str] = ""
    sentence: ClassVar[str] = ""
    messages: ClassVar[tuple[type[Message], ...]] = ()
    """Messages for which ``received`` and ``step`` are called."""

    def __init__(self, world: World) -> None:
        self.world = world

    def fail(self, detail: str, who: str = "") -> None:
        """The rule is broken."""
        self.world.violation(self.rule, f"{self.sentence}: {detail}", who)

    def started(self, host: Host) -> None:
        """A process has started."""

    def ending(self, host: Host, reason: str) -> None:
        """A process is about to be gone; its engine can still be looked at."""

    def ended(self, host: Host, reason: str) -> None:
        """A process is gone; its engine too."""

    def outage(self, power: bool) -> None:
        """E: everybody is about to die at once, by a loss of power or by kills."""

    def rotten(self, host: Host, file: str) -> None:
        """E: a bit of a file that a member is to come back with has changed."""

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E: a member is about to handle one of ``messages``."""

    def step(self, host: Host) -> None:
        """E: a member has handled one of ``messages``."""

    def sample(self) -> None:
        """Every quarter of a simulated second."""

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T: a row changed in a member's table; its data have not followed yet."""

    def row_settled(
        self, host: Host, pid: PartitionId, before: Row, after: Row, version: int
    ) -> None:
        """T: the member's data have followed a changed row."""

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T: a member installed a member list."""

    def became_master(self, host: Host) -> None:
        """T: a member took charge."""

    def planned(self, host: Host) -> None:
        """T: the master has made a plan and is about to carry it out."""

    def accepted(self, host: Host, pid: PartitionId) -> None:
        """E: a member took a write as primary of a partition."""

    def out_of_step(
        self, host: Host, fragment: Fragment, before: int, entries: int, counter: int
    ) -> None:
        """E: a backup got an operation that was not the next one of a clean replica.

        ``before`` and ``entries`` are the replica's version and size before, ``counter`` is the
        operation's version.
        """

    def note(self, host: Host, note: Note) -> None:
        """E: a member emitted a note."""

    def expelled(self, host: Host) -> None:
        """A member was removed although the nemesis had not silenced it for long."""

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H: a client knows the outcome of an operation."""

    def denied(self, operation: Operation, error: str) -> None:
        """H: an error tells a client that nothing has happened; it may make the call again."""

    def one_way(self, host: Host, span_us: int) -> None:
        """T: from now on a member hears and is not heard, or the reverse, for a span."""

    def listened(self, client: ClientProcess, key: int, number: int) -> None:
        """H: a client's listener was told of a change: operation number, 0 for a removal."""

    def hangs(self, operation: Operation, host: Host | None) -> None:
        """H: a request was not answered for long."""

    def quiet(self) -> None:
        """Q: the cluster is safe and nothing harms it."""

    def final(self) -> None:
        """H: the run is over and the cluster is quiet."""


class Sightings(Rule):
    """Breaks no rule: writes down which rare situations of its subject have come about."""

    situations: ClassVar[tuple[str, ...]] = ()
    """Everything that a soak must have met."""
    notes: ClassVar[dict[str, str]] = {}
    """Notes that say by themselves what has come about, and what."""

    def saw(self, name: str) -> None:
        """A situation has come about."""
        self.world.sometimes(name)

    def note(self, host: Host, note: Note) -> None:
        """E."""
        if note.kind in self.notes:
            self.saw(self.notes[note.kind])


ASKED_BY_MESSAGE = ("received", "step")
"""Points at which a rule is asked about its own ``messages`` only."""
POINTS = tuple(
    name
    for name in vars(Rule)
    if not (name.startswith("_") or name in ("rule", "sentence", "messages", "fail"))
)
"""All of them, by the names of the methods."""
