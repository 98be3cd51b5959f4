"""What every room of the core shares: who we are, the time of this step, and where effects go."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from whimbrel.core.check import check
from whimbrel.core.effects import ArmTimer, Effect, Note, Send, SendTo
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.messages import Message
from whimbrel.core.model import ClusterState, MemberInfo, MemberList
from whimbrel.core.settings import CoreSettings

CAUSE_MEMBER_LENGTH = 8
"""Characters of the member's id in the id of a cause."""


class Context:
    """Shared by the rooms of one member; not a place for decisions.

    ``now_us`` is the monotonic time of the current step and ``wall_ms`` the wall clock (for expiry
    and fresh names only); both are set by the member before a room runs. Rooms append effects
    through the methods below; the member hands them to the shell at the end of the step.
    """

    def __init__(self, me: MemberInfo, settings: CoreSettings, started_us: int = 0) -> None:
        self.me = me
        self.id: MemberId = me.id
        self.settings = settings
        self.started_us = started_us
        self.now_us = started_us
        self.wall_ms = 0
        self.members = MemberList(version=0, members=())
        """The installed member list; only the membership room replaces it."""
        self.leaving: tuple[MemberId, ...] = ()
        """Members that asked the master to leave (kept by the master)."""
        self.transition_until_us = 0
        """Until when a change of the cluster state is under way; only its room sets it."""
        self.effects: list[Effect] = []
        self._generations: dict[str, int] = {}
        self._armed: dict[str, int] = {}
        self._sequence = 0
        self.known_cause: str | None = None
        """What this step follows from, once anybody knows; ``None`` begins a step."""
        self._causes = started_us
        self._timer_causes: dict[str, str | None] = {}
        self._firing: str | None = None

    # -- who ------------------------------------------------------------------------------

    @property
    def master(self) -> MemberId | None:
        """The oldest member of the installed list."""
        return self.members.master

    @property
    def is_master(self) -> bool:
        """Whether this member is the master of its own list."""
        return self.members.master == self.id

    @property
    def state(self) -> ClusterState:
        """What the cluster may do now; IN_TRANSITION while a change of it is under way here."""
        if self.now_us < self.transition_until_us:
            return ClusterState.IN_TRANSITION
        return self.members.state

    def is_member(self, member: MemberId) -> bool:
        """Whether the id stands in the installed list."""
        return self.members.get(member) is not None

    def others(self) -> list[MemberId]:
        """All other members in list order."""
        return [member for member in self.members.ids() if member != self.id]

    def data_members(self) -> list[MemberInfo]:
        """Members that may hold replicas, leaving ones included, in list order."""
        return [member for member in self.members.members if not member.lite]

    def staying(self) -> list[MemberInfo]:
        """Data members that have not asked to leave, in list order."""
        return [member for member in self.data_members() if member.id not in self.leaving]

    # -- causes (docs/design/0016) --------------------------------------------------------

    @property
    def cause(self) -> str:
        """What the effects of this step follow from; made when it is first asked for."""
        if self.known_cause is None:
            self.known_cause = self.new_cause()
        return self.known_cause

    def new_cause(self) -> str:
        """An id that no process of this identity has used or will use."""
        self._causes += 1
        return f"{self.id[:CAUSE_MEMBER_LENGTH]}-{self._causes}"

    def resume(self, cause: str) -> None:
        """Go on with what that cause began: all further effects of this step follow from it."""
        self.known_cause = cause

    # -- effects --------------------------------------------------------------------------

    def emit(self, effect: Effect) -> None:
        """Add any effect."""
        self.effects.append(msgspec.structs.replace(effect, cause=self.cause))

    def send(self, to: MemberId, message: Message) -> None:
        """Send to a member; never to ourselves."""
        check(to != self.id, "a member sends no message to itself")
        self.effects.append(Send(to, message, cause=self.cause))

    def send_to(self, address: Address, message: Message) -> None:
        """Send to an address whose owner is not known yet."""
        self.effects.append(SendTo(address, message, cause=self.cause))

    def broadcast(self, message: Message, to: Sequence[MemberId] | None = None) -> None:
        """Send to all other members, or to the given ones except ourselves."""
        for member in self.others() if to is None else to:
            if member != self.id:
                self.effects.append(Send(member, message, cause=self.cause))

    def note(self, kind: str, level: str = "info", **fields: str | float | bool | None) -> None:
        """Record an event for logs and operators."""
        self.effects.append(Note(level, kind, fields, cause=self.cause))

    # -- timers ---------------------------------------------------------------------------

    def arm(self, key: str, delay_us: int) -> None:
        """Arm or re-arm the timer ``key``; keys start with their room's name and a dot.

        It will fire under the present cause; when its own firing arms it, for a later time, under
        a new one: then it is periodic.
        """
        generation = self._generations.get(key, 0) + 1
        self._generations[key] = generation
        self._armed[key] = generation
        self._timer_causes[key] = None if key == self._firing and delay_us > 0 else self.cause
        at_us = self.now_us + max(0, delay_us)
        self.effects.append(ArmTimer(key, generation, at_us, cause=self.cause))

    def disarm(self, key: str) -> None:
        """Forget the timer; a firing that is already on its way is ignored."""
        self._armed.pop(key, None)

    def is_armed(self, key: str) -> bool:
        """Whether the timer is waiting to fire."""
        return key in self._armed

    def take_timer(self, key: str, generation: int) -> bool:
        """Whether a firing is current; it then counts as fired, and this step has its cause."""
        if self._armed.get(key) != generation:
            return False
        self.known_cause = self.cause_of_timer(key, generation) or self.known_cause
        del self._armed[key]
        self._firing = key
        return True

    def timer_done(self) -> None:
        """What a firing does is done."""
        self._firing = None

    def cause_of_timer(self, key: str, generation: int) -> str | None:
        """What a firing follows from; None when it is not current, or begins a story."""
        return self._timer_causes[key] if self._armed.get(key) == generation else None

    # -- names ----------------------------------------------------------------------------

    def next_number(self) -> int:
        """A number this member has not used before (calls, migrations, publications)."""
        self._sequence += 1
        return self._sequence

    def next_name(self, kind: str) -> str:
        """A name nobody else makes: kind, this member, its start and a number."""
        return f"{kind}:{self.id}:{self.started_us}:{self.next_number()}"
