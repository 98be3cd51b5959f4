"""The two clocks of a real member, as the whole numbers the core counts in."""

from __future__ import annotations

import time

_monotonic_ns = time.monotonic_ns
_time_ns = time.time_ns


def now_us() -> int:
    """Monotonic time in microseconds; only differences mean anything."""
    return _monotonic_ns() // 1_000


def wall_ms() -> int:
    """Wall clock in milliseconds since 1970, UTC; for expiry and fresh names only."""
    return _time_ns() // 1_000_000
