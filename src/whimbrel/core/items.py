"""How large items may be, and answers of many, in structures that lie in one partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from whimbrel.errors import UsageError
from whimbrel.serialization.data import DATA_HEADER_BYTES

ITEM_BYTES_MAX: Final = 64 * 1024 * 1024
"""One item, a whole Data; larger ones would stall a member's other partitions."""
ANSWER_BYTES_MAX: Final = 128 * 1024 * 1024
"""Items of one answer together, which must fit into a frame between members. What stands around
each there is shorter than what a store keeps beside it (its id, its time), which is counted."""


def check_items(values: Sequence[bytes]) -> None:
    """See whether these can be items.

    Raises:
        UsageError: One is too large or no serialized object.
    """
    for value in values:
        if not DATA_HEADER_BYTES <= len(value) <= ITEM_BYTES_MAX:
            raise UsageError(f"{len(value)} bytes are no serialized object, or too large")
