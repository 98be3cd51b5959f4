"""The comparison of a map with its source, by Spark: every row and every column.

One full outer join by key tells rows that are missing in the map, rows that only the map has, and
rows that differ in some column. Null equals null, and a key that the map gave twice counts as
extra.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Any, Final

import msgspec

SHOWN_MAX: Final = 10
"""Rows of each kind that are shown."""
_STATES: Final = ("same", "different", "missing", "extra")


class Comparison(msgspec.Struct):
    """What a comparison found, in rows."""

    table: str
    rows: int
    """Rows of the source."""
    same: int = 0
    different: int = 0
    missing: int = 0
    extra: int = 0
    partitions_read: int = 0
    """Spark partitions in which the map was read."""
    examples: dict[str, list[str]] = {}
    """By kind, the first rows that were wrong: as the source and as the map has them."""

    @property
    def is_good(self) -> bool:
        """Whether the map is what the source is."""
        return self.same == self.rows and not (self.different or self.missing or self.extra)


def compare(name: str, key: str, rows: int, source: Any, found: Any) -> Comparison:
    """Compare two frames of the same columns.

    Args:
        name: Name of the table.
        key: The column whose values are unique in the source.
        rows: Rows of the source.
        source: The frame that was written.
        found: The frame that was read.
    """
    from pyspark.sql import functions as fn

    columns = source.columns
    left = source.select(fn.struct(*columns).alias("s"), fn.col(key).alias("k"))
    right = found.select(fn.struct(*columns).alias("f"), fn.col(key).alias("k"))
    equal = reduce(and_, [fn.col(f"s.{c}").eqNullSafe(fn.col(f"f.{c}")) for c in columns])
    joined = left.join(right, "k", "full_outer").select(
        "k",
        "s",
        "f",
        fn.when(fn.col("f").isNull(), "missing")
        .when(fn.col("s").isNull(), "extra")
        .when(equal, "same")
        .otherwise("different")
        .alias("state"),
    )
    result = Comparison(name, rows, partitions_read=found.rdd.getNumPartitions(), examples={})
    for state, count in joined.groupBy("state").count().collect():
        setattr(result, state, count)
    # Each row of the source is in the join once, unless the map gave its key several times.
    doubled = result.same + result.different + result.missing - rows
    result.same -= doubled
    result.extra += doubled
    for state in _STATES[1:]:
        if getattr(result, state):
            wrong = joined.where(fn.col("state") == state).orderBy("k").limit(SHOWN_MAX)
            result.examples[state] = [
                f"source {row.s}, map {row.f}" for row in wrong.select("s", "f").collect()
            ]
    return result
