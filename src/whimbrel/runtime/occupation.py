"""How long the loop of a member was occupied by one thing, and how late it came to another."""

from __future__ import annotations

from whimbrel.runtime.clock import now_us

US_PER_S = 1_000_000


class Occupation:
    """The longest step since the start, and the greatest delay of the engine's regular look.

    A step is one callback that ran the engine's control plane or carried out what it said. Both
    are wall clock: they also show that the process did not get the processor.
    """

    __slots__ = ("late_us", "step_us")

    def __init__(self) -> None:
        self.step_us = 0
        """Microseconds of the longest step."""
        self.late_us = 0
        """Microseconds by which a tick was late."""

    def stepped(self, begun_us: int) -> None:
        """A step that began at that moment has ended."""
        spent_us = now_us() - begun_us
        if spent_us > self.step_us:
            self.step_us = spent_us

    def ticked(self, late_us: int) -> None:
        """A tick came so late."""
        if late_us > self.late_us:
            self.late_us = late_us

    def gauges(self) -> dict[str, float]:
        """By name, in seconds."""
        return {
            "loop_step_longest_seconds": self.step_us / US_PER_S,
            "loop_late_longest_seconds": self.late_us / US_PER_S,
        }
