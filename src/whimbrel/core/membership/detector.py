"""Who is suspected of being dead, and why. Suspicions are local and never shared.

Knows three reasons: silence (no message for the heartbeat time-out), a link that cannot be made
again, and a member's own word that it goes or that it follows somebody else. Does not know what
follows from a suspicion.
"""

from __future__ import annotations

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId

LEFT = "left"
"""The reason of a member that said goodbye."""
ADDRESS_TAKEN = "a new process took its address"
IDENTITY_TAKEN = "a new process has its identity"
FOLLOWS_ANOTHER = "it follows another master"
"""The reason of a member that refused our list, or our master who lost us."""


class Detector:
    """The failure detector of one member; follows the installed list through ``sync``."""

    def __init__(self, ctx: Context) -> None:
        """Start with nobody watched; ``sync`` follows the installed list."""
        self._ctx = ctx
        self._heard_us: dict[MemberId, int] = {}
        self._silent: dict[MemberId, str] = {}
        self._unreachable: dict[MemberId, str] = {}
        self._gone: dict[MemberId, str] = {}

    # -- questions ------------------------------------------------------------------------

    def is_suspected(self, member: MemberId) -> bool:
        """Whether we take the member for dead, for any reason."""
        return member in self._gone or member in self._unreachable or member in self._silent

    def is_unreachable(self, member: MemberId) -> bool:
        """Whether nothing can be sent to the member."""
        return member in self._unreachable

    def has_left(self, member: MemberId) -> bool:
        """Whether the member said goodbye."""
        return self._gone.get(member) == LEFT

    def is_over(self, member: MemberId) -> bool:
        """Whether the process is known to be no more: it said goodbye, or another has its place."""
        return self._gone.get(member) in (LEFT, ADDRESS_TAKEN, IDENTITY_TAKEN)

    def why(self, member: MemberId) -> str:
        """The reason of the suspicion; empty when there is none."""
        for reasons in (self._gone, self._unreachable, self._silent):
            if member in reasons:
                return reasons[member]
        return ""

    def suspected(self) -> list[MemberId]:
        """Suspected members in list order."""
        return [member for member in self._ctx.others() if self.is_suspected(member)]

    def silence_us(self, member: MemberId) -> int:
        """Time since the member was heard or came on the list; 0 when it is not on it."""
        heard_us = self._heard_us.get(member)
        return 0 if heard_us is None else self._ctx.now_us - heard_us

    # -- news -----------------------------------------------------------------------------

    def heard(self, member: MemberId) -> None:
        """A message came from the member: it is not silent.

        A link that failed, and a member's own word, are not undone by this: a message may
        have been on its way for long.
        """
        if member in self._heard_us:
            self._heard_us[member] = self._ctx.now_us
            if self._silent.pop(member, None) is not None:
                self._ctx.note("suspicion_cleared", member=member)

    def spoke(self, member: MemberId) -> None:
        """A message for another room came from the member: it is not silent, either.

        Its heartbeats alone may get lost, one by one, in a link that breaks again and again. A
        suspicion is ended by membership messages only, which say whom the member follows.
        """
        if member in self._heard_us and member not in self._silent:
            self._heard_us[member] = self._ctx.now_us

    def link_failed(self, member: MemberId) -> None:
        """Nobody listens at the member's address any more: suspected at once."""
        if member in self._heard_us and member not in self._unreachable:
            self._suspect(self._unreachable, member, "its link failed")

    def link_restored(self, member: MemberId) -> None:
        """A connection stands again."""
        if self._unreachable.pop(member, None) is not None:
            self._ctx.note("suspicion_cleared", member=member)

    def gone(self, member: MemberId, why: str) -> None:
        """The member itself, or its successor, told that it is gone; no message undoes that.

        Only ``FOLLOWS_ANOTHER`` is forgotten with the next list, which says who follows whom.
        """
        if member in self._heard_us and member not in self._gone:
            self._suspect(self._gone, member, why)

    def expire(self) -> None:
        """Suspect whoever was not heard for longer than the heartbeat time-out."""
        for member in self._ctx.others():
            silence_us = self.silence_us(member)
            if silence_us > self._ctx.settings.heartbeat_timeout_us and member not in self._silent:
                self._suspect(self._silent, member, f"not heard for {silence_us // 1000} ms")

    def shift(self, pause_us: int) -> None:
        """We were paused ourselves, so nobody's silence during that span counts.

        Whoever was nearly overdue gets two more intervals: its messages may lie unread.
        """
        settings, now_us = self._ctx.settings, self._ctx.now_us
        floor_us = now_us - settings.heartbeat_timeout_us + 2 * settings.heartbeat_interval_us
        for member, heard_us in self._heard_us.items():
            self._heard_us[member] = min(now_us, max(heard_us + pause_us, floor_us))

    def sync(self) -> None:
        """Watch exactly the other members of the installed list."""
        now_us = self._ctx.now_us
        members = self._ctx.others()
        self._heard_us = {member: self._heard_us.get(member, now_us) for member in members}
        for reasons in (self._silent, self._unreachable, self._gone):
            for member in list(reasons):
                if member not in self._heard_us or reasons[member] == FOLLOWS_ANOTHER:
                    del reasons[member]

    def _suspect(self, reasons: dict[MemberId, str], member: MemberId, why: str) -> None:
        reasons[member] = why
        self._ctx.note("member_suspected", "warning", member=member, why=why)
