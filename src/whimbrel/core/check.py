"""The always-on assertion of the core (safety rule 8)."""

from __future__ import annotations

from whimbrel.errors import InvariantViolation


def check(condition: object, fact: str) -> None:
    """Stop the member when a fact that must hold does not.

    Args:
        condition: Truthy when the fact holds.
        fact: One sentence that says what must be true.

    Raises:
        InvariantViolation: The condition is falsy. It is a bug, never a situation to handle.
    """
    if not condition:
        raise InvariantViolation(fact)
