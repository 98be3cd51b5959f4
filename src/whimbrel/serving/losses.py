"""What this member's table says is lost and nobody has seen, as documents (docs/design/0014)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import asdict

from whimbrel.core.ids import LOST_ALL
from whimbrel.core.model import Loss

Json = dict[str, Any]


def summary_of(marks: Iterable[Loss]) -> Json:
    """The figures that ``status`` shows.

    ``partitions`` counts those that lost anything, ``whole`` those of which no replica was left.
    The entries of a structure are null when some partition's are not known; ``as_of_ms`` is the
    oldest of the moments at which they were counted.
    """
    partitions = whole = 0
    structures: dict[tuple[str, str], Json] = {}
    for mark in marks:
        partitions += 1
        whole += mark.lost_backup_count == LOST_ALL
        for one in mark.structures:
            empty: Json = {"partitions": 0, "entries": 0, "as_of_ms": None}
            found = structures.setdefault((one.kind, one.name), empty)
            found["partitions"] += 1
            known = found["entries"] is not None and one.entries is not None
            found["entries"] = found["entries"] + one.entries if known else None
            moments = [ms for ms in (found["as_of_ms"], one.as_of_ms) if ms is not None]
            found["as_of_ms"] = min(moments, default=None)
    rows = [{"kind": kind, "name": name, **structures[kind, name]} for kind, name in structures]
    rows.sort(key=lambda row: (row["kind"], row["name"]))
    return {"partitions": partitions, "whole": whole, "structures": rows}


def document_of(name: str, marks: Iterable[Loss]) -> Json:
    """Everything about the unseen marks; ``name`` is what they are acknowledged by."""
    listed = list(marks)
    return {
        "name": name,
        **summary_of(listed),
        "marks": [
            {
                "partition": mark.partition_id,
                "version": mark.version,
                "lost_backup_count": mark.lost_backup_count,
                "at_ms": mark.at_ms,
                "structures": [asdict(one) for one in mark.structures],
                "unnamed": mark.unnamed,
            }
            for mark in listed
        ],
    }
