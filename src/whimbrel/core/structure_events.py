"""What happened in structures that somebody listens to, on its way from services to listeners.

A service tells its events here while it changes a fragment; the serving layer takes them out once a
turn, whatever their kind. Flags and what the fields mean are the kind's.
"""

from __future__ import annotations

from whimbrel.core.ids import Namespace

Event = tuple[Namespace, int, bytes | None, bytes | None, bytes | None]
"""(structure, flag, key Data, value, old value)."""


class StructureEvents:
    """The events of one member's structures; both attributes are the same objects for its life.

    Attributes:
        listened: How many listen to a structure, members that want to hear of it included; kept
            by the serving layer. Of those that are missing nothing is told.
        happened: What happened since the last take.
    """

    def __init__(self) -> None:
        self.listened: dict[Namespace, int] = {}
        self.happened: list[Event] = []

    def tell(self, event: Event) -> None:
        """Something happened; kept if somebody listens."""
        if self.listened.get(event[0]):
            self.happened.append(event)

    def take(self) -> list[Event]:
        """What happened since the last take, in order."""
        taken = self.happened[:]
        self.happened.clear()
        return taken
