"""Errors that a well-behaved client can get; the others answer bad requests and are unit tests."""

from __future__ import annotations

from collections.abc import Mapping

from whimbrel.sim.rule import Sightings
from whimbrel.wire import errors as codes

ERRORS = {
    codes.OVERLOAD: "error 20: overload",
    codes.PARTITION_MIGRATING: "error 39: a partition was busy for too long",
    codes.RETRYABLE: "error 46: try again",
    codes.INDETERMINATE: "error 80: indeterminate",
}


class ErrorSightings(Sightings):
    """Each error once; counted by the world."""

    situations = tuple(ERRORS.values())


def errors_met(counts: Mapping[int, int]) -> dict[str, int]:
    """Error codes to how often clients got them, as situations."""
    return {ERRORS[code]: count for code, count in counts.items() if code in ERRORS}
