"""One act of harm, as it is remembered, written down and played again."""

from __future__ import annotations

import msgspec


class FaultEvent(msgspec.Struct, frozen=True):
    """One act of harm or of its end."""

    at_us: int
    verb: str
    """A name in ``actions.ACTIONS``."""
    names: tuple[str, ...] = ()
    value: int = 0
    """Span in microseconds (clog), factor (slow) or whatever the verb's function says."""

    def text(self) -> str:
        """As a scenario file says it."""
        value = f" {self.value}" if self.value else ""
        return f"at {self.at_us / 1_000_000:.6f} {self.verb} {' '.join(self.names)}{value}"
