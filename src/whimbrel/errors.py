"""The errors whimbrel raises on purpose, as one tree.

GridError
    ConfigError             start-up refuses; every problem is listed
    DataDirectoryError      start-up refuses what lies in the data directory
    UsageError              the caller's mistake; a retry is pointless
    OperationError          an operation ended without success
        RetryableError      nothing has happened; the same call may be made again
        IndeterminateError  the caller cannot know whether it took effect everywhere
        PartitionLostError
        OverloadedError
        SplitBrainProtectionError
        UnsupportedError
        StateForbidsError   the cluster state does not allow it; nothing has happened
        IllegalStateError
        IllegalMonitorStateError  the caller does not hold the lock; nothing has happened
    ProtocolError           bytes that do not follow a protocol of ours
    SerializationError
    AuthenticationError

InvariantViolation is not a GridError: it is our bug, and the member stops.
"""

from __future__ import annotations


class GridError(Exception):
    """Everything whimbrel raises on purpose derives from this.

    ``reason`` is one or two words under which a refusal is counted (docs/bad-input.md); the text
    is for people.
    """

    reason = "failed"

    def __init__(self, *args: object, reason: str = "") -> None:
        super().__init__(*args)
        if reason:
            self.reason = reason


class ConfigError(GridError):
    """The configuration is refused. ``problems`` holds one sentence per problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class DataDirectoryError(GridError):
    """What lies in the data directory is damaged or another cluster's; nothing was changed."""


class UsageError(GridError):
    """The caller asked for something that makes no sense; a retry is pointless."""

    reason = "illegal_argument"


class OperationError(GridError):
    """An operation ended without success; see the subclasses for what may be done."""


class RetryableError(OperationError):
    """The operation has had no effect and may be repeated."""

    reason = "retryable"


class IndeterminateError(OperationError):
    """The operation may or may not have taken effect on every replica it should have."""

    reason = "indeterminate"


class PartitionLostError(OperationError):
    """The partition has no live replica."""


class OverloadedError(OperationError):
    """A named limit was reached; the operation has had no effect."""

    reason = "overload"


class SplitBrainProtectionError(OperationError):
    """This part of the cluster has too few data members to serve; nothing has happened."""

    reason = "split_brain_protection"


class UnsupportedError(OperationError):
    """The request names something that this member does not offer."""

    reason = "unsupported"


class StateForbidsError(OperationError):
    """The cluster state does not allow the operation; nothing has happened."""

    reason = "cluster_state"


class IllegalStateError(OperationError):
    """What was asked for is not possible as things stand; it may be later."""

    reason = "illegal_state"


class IllegalMonitorStateError(OperationError):
    """The caller does not hold the lock that it gives back; nothing has happened."""

    reason = "not_the_owner"


class StaleSequenceError(OperationError):
    """The item of a sequence was there, and is not any more; nothing has happened."""

    reason = "stale_sequence"


class ProtocolError(GridError):
    """Bytes from a peer do not follow the protocol; the connection is ended."""

    reason = "malformed"


class SerializationError(GridError):
    """A value cannot be read or written; names the type, never the value."""

    reason = "serialization"


class AuthenticationError(GridError):
    """The peer did not prove that it may connect."""


class InvariantViolation(BaseException):
    """A fact that must always hold does not. This is a bug of whimbrel; the member stops.

    Derives from BaseException so that no ``except Exception`` can swallow it.
    """
