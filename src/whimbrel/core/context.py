"""What every room of the core shares: who we are, the time of this step, and where effects go."""

from __future__ import annotations

from collections.abc import Sequence

from whimbrel.core.check import check
from whimbrel.core.effects import ArmTimer, Effect, Note, Send, SendTo
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.messages import Message
from whimbrel.core.model import ClusterState, MemberInfo, MemberList
from whimbrel.core.settings import CoreSettings


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

    # -- effects --------------------------------------------------------------------------

    def emit(self, effect: Effect) -> None:
        """Add any effect."""
        self.effects.append(effect)

    def send(self, to: MemberId, message: Message) -> None:
        """Send to a member; never to ourselves."""
        check(to != self.id, "a member sends no message to itself")
        self.effects.append(Send(to, message))

    def send_to(self, address: Address, message: Message) -> None:
        """Send to an address whose owner is not known yet."""
        self.effects.append(SendTo(address, message))

    def broadcast(self, message: Message, to: Sequence[MemberId] | None = None) -> None:
        """Send to all other members, or to the given ones except ourselves."""
        for member in self.others() if to is None else to:
            if member != self.id:
                self.effects.append(Send(member, message))

    def note(self, kind: str, level: str = "info", **fields: str | float | bool | None) -> None:
        """Record an event for logs and operators."""
        self.effects.append(Note(level, kind, fields))

    # -- timers ---------------------------------------------------------------------------

    def arm(self, key: str, delay_us: int) -> None:
        """Arm or re-arm the timer ``key``; keys start with their room's name and a dot."""
        generation = self._generations.get(key, 0) + 1
        self._generations[key] = generation
        self._armed[key] = generation
        self.effects.append(ArmTimer(key, generation, self.now_us + max(0, delay_us)))

    def disarm(self, key: str) -> None:
        """Forget the timer; a firing that is already on its way is ignored."""
        self._armed.pop(key, None)

    def is_armed(self, key: str) -> bool:
        """Whether the timer is waiting to fire."""
        return key in self._armed

    def take_timer(self, key: str, generation: int) -> bool:
        """Whether a firing is current; it then counts as fired."""
        if self._armed.get(key) != generation:
            return False
        del self._armed[key]
        return True

    # -- names ----------------------------------------------------------------------------

    def next_number(self) -> int:
        """A number this member has not used before (calls, migrations, publications)."""
        self._sequence += 1
        return self._sequence

    def next_name(self, kind: str) -> str:
        """A name nobody else makes: kind, this member, its start and a number."""
        return f"{kind}:{self.id}:{self.started_us}:{self.next_number()}"
