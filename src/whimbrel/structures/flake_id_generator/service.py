"""How ids are made: a moment, a sequence within it, and the member's number, in 63 bits.

An id is ``moment << 22 | sequence << 16 | number``: 41 bits of milliseconds since 2018, 6 bits of
sequence, 16 bits of the number that no other process of the cluster ever has (design 0002). What is
above the number is a *slot*, 64 in each millisecond; a batch is a run of slots, so a client counts
on by ``INCREMENT``. A member gives out each slot of a generator once. Ids of one member rise, those
of different members are ordered as well as their clocks agree.
"""

from __future__ import annotations

from typing import Final

from whimbrel.core.context import Context
from whimbrel.core.ids import Namespace
from whimbrel.errors import IllegalStateError, RetryableError, UsageError
from whimbrel.structures.flake_id_generator.settings import settings_of

EPOCH_MS: Final = 1_514_764_800_000
"""2018-01-01, 0:00 UTC."""
NUMBER_BITS: Final = 16
SEQUENCE_BITS: Final = 6
MOMENT_BITS: Final = 41
INCREMENT: Final = 1 << NUMBER_BITS
"""From one id of a batch to the next."""
SLOTS_END: Final = 1 << MOMENT_BITS + SEQUENCE_BITS
"""In September 2087."""
BATCH_MAX: Final = 100_000
"""Ids in one batch, as clients allow it."""


class FlakeIds:
    """All generators of one member. Lives as long as the member's number does."""

    def __init__(self, ctx: Context) -> None:
        """Begin without any id made.

        Args:
            ctx: Gives the time; nothing here asks a clock.
        """
        self._ctx = ctx
        self._next_slots: dict[Namespace, int] = {}
        """Of each generator in use: its first slot that was not given out."""
        self._floor = 0
        """Slots below may have been given out by a generator that was destroyed; one of its name
        goes on above."""
        self._wall_ms = 0
        self._wall_at_us = 0

    def batch(self, namespace: Namespace, size: int, number: int) -> int:
        """Make ids.

        Args:
            namespace: The generator.
            size: How many.
            number: This member's.

        Returns:
            The first; the others follow it by ``INCREMENT`` each.

        Raises:
            UsageError: No batch has that size.
            RetryableError: Ids run as far ahead of the clock as is allowed; later, or elsewhere,
                there will be more.
            IllegalStateError: The clock shows a time that ids have no bits for.
        """
        if not 0 < size <= BATCH_MAX:
            raise UsageError(f"a batch has 1 to {BATCH_MAX} ids, not {size}")
        now = self._moment_ms() << SEQUENCE_BITS
        first = max(now, self._next_slots.get(namespace, self._floor))
        after = first + size
        if now < 0 or after > SLOTS_END:
            raise IllegalStateError("this member's clock shows no time between 2018 and 2087")
        ahead_ms = (after - now) >> SEQUENCE_BITS
        allowed_ms = settings_of(self._ctx.settings, namespace).allowed_future_ms
        if ahead_ms > allowed_ms:
            raise RetryableError(f"ids would be {ahead_ms} ms ahead of the clock; try again later")
        self._next_slots[namespace] = after
        return first << NUMBER_BITS | number

    def destroyed(self, namespace: Namespace) -> None:
        """The generator is no more; what it made stays made."""
        self._floor = max(self._floor, self._next_slots.pop(namespace, 0))

    def _moment_ms(self) -> int:
        """Milliseconds since the epoch, never less than before.

        A wall clock that is set back would stop all generators for as long. So time goes on from
        where it was, by the monotonic clock, until the wall clock has caught up. A process that
        starts again has a new number, so it may begin with an earlier moment.
        """
        ctx = self._ctx
        gone_on_ms = self._wall_ms + (ctx.now_us - self._wall_at_us) // 1_000
        if ctx.wall_ms >= gone_on_ms or not self._wall_ms:
            self._wall_ms, self._wall_at_us = ctx.wall_ms, ctx.now_us
            gone_on_ms = ctx.wall_ms
        return gone_on_ms - EPOCH_MS
