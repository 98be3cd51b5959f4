"""whimbrel: an elastic in-memory data grid in Python.

``Member`` runs a member inside an asyncio program, ``local_cluster`` starts real processes for
tests and trials. Both are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whimbrel.runtime.embedded import Member as Member
    from whimbrel.structures.map.policies import register_merge_policy as register_merge_policy

__all__ = ["Member", "local_cluster", "register_merge_policy"]

_PLACES = {
    "Member": "whimbrel.runtime.embedded",
    "local_cluster": "whimbrel.testing",
    "register_merge_policy": "whimbrel.structures.map.policies",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
