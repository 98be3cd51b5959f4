"""Sends heartbeats, times silence, and notices that this very member was paused.

A member that we do not hear must in the end not hear us either, so that a one-way broken link
ends with a removal (L5). So a suspected member gets heartbeats too rarely to trust us by them; but
it gets some, because two that suspect each other would otherwise stay silent for ever.
"""

from __future__ import annotations

from whimbrel.core.ids import MemberId
from whimbrel.core.membership.membership_state import MembershipState
from whimbrel.core.messages import Heartbeat

HEARTBEAT_TIMER = "membership.heartbeat"
WOKEN_TIMEOUTS = 2
"""For this many heartbeat time-outs after a pause our list may name members long dead."""
SUSPECTED_TIMEOUTS = 2
"""A suspected member gets a heartbeat once in this many heartbeat time-outs."""


class Heartbeats:
    """The periodic part of failure detection."""

    def __init__(self, membership: MembershipState) -> None:
        """Begin with ``beat``."""
        self._membership = membership
        self._ctx = membership.ctx
        self._due_us: int | None = None
        self._woken_us: int | None = None
        self._sent_us: dict[MemberId, int] = {}
        self._beat_us: int | None = None
        self.gap_longest_us = 0
        """Longest time between two rounds of heartbeats."""

    def notice_pause(self) -> bool:
        """Compare the clock with our own timer; called before anything else of a step.

        A timer that is late by more than an interval means that this process did not run. What
        others sent meanwhile is still unread, so their silence is moved forward by the pause.

        Returns:
            Whether we have just woken from a pause in which we may have been removed.
        """
        if self._due_us is None:
            return False
        late_us = self._ctx.now_us - self._due_us
        if late_us <= self._ctx.settings.heartbeat_interval_us:
            return False
        self._membership.detector.shift(late_us)
        self._due_us = self._ctx.now_us
        # Half the time-out: the others may by now have gone on without us.
        is_long = 2 * late_us >= self._ctx.settings.heartbeat_timeout_us
        if is_long:
            self._woken_us = self._ctx.now_us
        self._ctx.note("was_paused", "warning", pause_ms=late_us // 1000)
        return is_long

    def was_paused(self) -> bool:
        """Whether we lately woke from a pause long enough to have been removed meanwhile."""
        if self._woken_us is None:
            return False
        span_us = WOKEN_TIMEOUTS * self._ctx.settings.heartbeat_timeout_us
        return self._ctx.now_us - self._woken_us < span_us

    def on_timer(self) -> None:
        """Judge the others' silence, then say that we live."""
        self._membership.detector.expire()
        self.beat()

    def beat(self) -> None:
        """Send heartbeats and arm the timer for the next ones; begun by the first list."""
        ctx = self._ctx
        interval_us = ctx.settings.heartbeat_interval_us
        pause_us = SUSPECTED_TIMEOUTS * ctx.settings.heartbeat_timeout_us
        if self._beat_us is not None:
            self.gap_longest_us = max(self.gap_longest_us, ctx.now_us - self._beat_us)
        self._beat_us = ctx.now_us
        version, master = ctx.members.version, self._membership.taken_master
        numbers = self._membership.numbers
        message = Heartbeat(version, master, asked=numbers.word() if ctx.is_master else None)
        others = ctx.others()
        self._sent_us = {member: self._sent_us.get(member, ctx.now_us) for member in others}
        for member in others:
            is_suspected = self._membership.detector.is_suspected(member)
            if not is_suspected or ctx.now_us - self._sent_us[member] >= pause_us:
                self._sent_us[member] = ctx.now_us
                if member == master:
                    census = self._membership.make_census()
                    ctx.send(member, Heartbeat(version, master, census, told=numbers.take_word()))
                else:
                    ctx.send(member, message)
        self._due_us = ctx.now_us + interval_us
        ctx.arm(HEARTBEAT_TIMER, interval_us)
