"""What may be wrong with a Spark job of ours, as errors whose text names the culprit.

All derive from the errors of ``whimbrel.errors``; Spark shows their text inside its own exception.
"""

from __future__ import annotations

from collections.abc import Iterable

from whimbrel.errors import SerializationError, UsageError


class OptionError(UsageError):
    """An option of ``format("whimbrel")`` is missing, unknown or makes no sense."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"option {option!r}: {problem}")
        self.option = option


class ColumnError(UsageError):
    """A column of a frame cannot be written or read as it is."""

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(f"column {column!r}: {problem}")
        self.column = column


class RowError(SerializationError):
    """A row cannot be written. Rows are counted from 0 in each Spark partition."""

    def __init__(self, row: int, spark_partition: int, problem: str) -> None:
        super().__init__(f"row {row} of Spark partition {spark_partition}: {problem}")
        self.row = row


class JavaError(UsageError):
    """There is no Java that Spark can use."""


def listed(names: Iterable[str]) -> str:
    """Names for the end of a sentence."""
    return ", ".join(repr(name) for name in names)
