"""What clients may ask for in the cluster state PASSIVE (GCM-07): whatever changes no data.

FROZEN allows what ACTIVE allows; PASSIVE is for a cluster whose data must stand still. Reads,
views, listeners and what a client needs to connect and read go on; what the table of operations
calls a write is refused at once. What members say to each other is not concerned: backups under
way, anti-entropy, membership and shutdown go on.
"""

from __future__ import annotations

from typing import Any

from whimbrel.errors import StateForbidsError
from whimbrel.serving.operations import Operation


def refuses(operation: Operation[Any]) -> bool:
    """Whether PASSIVE refuses an operation."""
    return operation.is_write


def refusal(operation: Operation[Any]) -> StateForbidsError:
    """The error for an operation: it names the state, and nothing has happened."""
    return StateForbidsError(
        f"{operation.name} is refused: the cluster state is PASSIVE and allows reads only"
    )
