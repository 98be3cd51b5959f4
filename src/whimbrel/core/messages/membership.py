"""Messages of the membership room: joining, heartbeats, leaving, cluster state and roles."""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import Address, MemberId, Name, Namespace, PartitionId
from whimbrel.core.messages.base import MembershipMessage
from whimbrel.core.model import MemberInfo, MemberList, NumbersAsked, NumbersTold


class ProbeRequested(MembershipMessage, frozen=True):
    """Discovery: who are you, and whom do you take for master? Sent to an address."""

    cluster_name: str
    sender: MemberInfo
    asked: Address | None = None
    """The address that was dialled; it may be an alias of the receiver's own."""
    files: Name = ""
    """Id of the cluster that the sender has files of, while it seeks; empty for none."""


class ProbeAnswered(MembershipMessage, frozen=True):
    """Answer to a probe. ``master`` is None while the answerer has not joined a cluster."""

    cluster_name: str
    sender: MemberInfo
    master: MemberInfo | None
    asked: Address | None = None
    """Copied from the probe, so that the prober knows which dialled address this is."""
    files: Name = ""
    """As in ``ProbeRequested``, of the answerer."""


class JoinRequested(MembershipMessage, frozen=True):
    """A joiner asks the master to be put on the list. Sent to an address, repeated."""

    cluster_name: str
    partition_count: int
    joiner: MemberInfo
    claim: int = 0
    """Number of the claim that this answers: the joiner was asked and is not joined yet."""
    files: Name = ""
    """Id of the cluster that the joiner has files of; empty for none."""
    files_version: int = 0
    """Version of the member list in them."""
    has_loaded: bool = False
    """Whether it has brought back what lies in them, and so can be given what has changed."""


class JoinersTold(MembershipMessage, frozen=True):
    """These may be on the master's next lists: a claimant without such a list asks them, too.

    Answered with ``JoinersNoted``; repeated until then, and nobody is admitted before.
    """

    joiners: tuple[MemberInfo, ...]


class JoinersNoted(MembershipMessage, frozen=True):
    """The sender knows of these joiners."""

    joiners: tuple[MemberInfo, ...]


class JoinRefused(MembershipMessage, frozen=True):
    """The master will not take the joiner; ``final`` tells the joiner not to ask again."""

    reason: str
    final: bool
    joiner: MemberId | None = None
    """Whom it is meant for; another process may listen at that address by now."""
    is_stale: bool = False
    """The cluster has gone on without the joiner: it may come without its files."""
    is_recovering: bool = False
    """The cluster recovers: the joiner may come later, however long that takes."""
    is_awaited: bool = False
    """The joiner may return with its files once it has loaded them (APR-39)."""


class MembersPublished(MembershipMessage, frozen=True):
    """The master's member list; installed if newer and if it contains the receiver."""

    list: MemberList
    numbers: NumbersAsked | None = None


class Census(msgspec.Struct, frozen=True, array_like=True):
    """How many entries a primary holds of each structure, in some of its partitions."""

    namespaces: tuple[Namespace, ...]
    entries: dict[PartitionId, dict[int, int]]
    """By partition: position in ``namespaces`` to entries, for those that are not empty."""


class Heartbeat(MembershipMessage, frozen=True):
    """I live; this is the version of my member list, and whom I take for master."""

    list_version: int
    master: MemberId | None
    census: Census | None = None
    """To the master only: what would be lost with the sender (docs/design/0014)."""
    asked: NumbersAsked | None = None
    """From the master only."""
    told: NumbersTold | None = None
    """To the master only."""


class SuspicionTold(MembershipMessage, frozen=True):
    """You are not on my list of this version: treat yourself as expelled (M5).

    Also the answer to a list from somebody the sender does not take for master; then the
    receiver may be among ``members``, the ids of the sender's list, oldest first.
    """

    list_version: int
    master: MemberId | None
    members: tuple[MemberId, ...] = ()
    to: MemberId | None = None
    """Whom it is meant for; another process may listen at that address by now."""
    data_members: int = 0
    """Data members on the sender's list: the weight of its part of the cluster (M6)."""
    addresses: tuple[Address, ...] = ()
    """Where its members listen, the master first, not all of a large list: who gives way looks for
    the cluster there. The first decides between parts of equal weight."""
    partition_count: int = 0
    """Of the sender's cluster; 0 is unknown. A part with another one would refuse us for good."""
    cluster_id: str = ""
    is_recovering: bool = False
    """Whether the sender's part comes back from its files: it has served nobody."""


class ClaimRequested(MembershipMessage, frozen=True):
    """The claimant suspects every member older than itself and asks for agreement."""

    list_version: int
    call: int = 0
    """Number of the claim; an answer to an abandoned claim counts for nothing."""


class ClaimAnswered(MembershipMessage, frozen=True):
    """``accepted`` is False while the answerer still trusts a member older than the claimant."""

    accepted: bool
    list: MemberList
    call: int = 0


class LeaveRequested(MembershipMessage, frozen=True):
    """A member asks the master to move its data away; repeated every second."""

    member: MemberId
    call: int = 0
    """Not 0 when it goes as soon as this very request is answered; nobody is admitted before."""
    is_end: bool = False
    """Whether it has been told that all data members leave."""


class LeaveAllowed(MembershipMessage, frozen=True):
    """The member is in no row any more (P12); names the incarnation it is meant for."""

    member: MemberId
    call: int = 0
    """Of the last request."""
    is_end: bool = False
    """All data members leave: nobody keeps what they hold."""


class LeaveOrdered(MembershipMessage, frozen=True):
    """An operator asked, through another member, that the receiver leaves gracefully."""

    member: MemberId


class GoodbyeTold(MembershipMessage, frozen=True):
    """The sender ends now; it holds no replica, or nobody is left to take it over."""

    member: MemberId
    is_end: bool = False
    """All data members leave, and the sender has said what ends with it."""
    numbers: NumbersTold | None = None
    """The sender's last word on the numbers of members."""


class StateLockRequested(MembershipMessage, frozen=True):
    """The master is about to change what the whole cluster agreed on: stand still (PIM-31).

    The lock holds for ``lease_us`` at most, and for the member list of this version only.
    """

    transaction: str
    list_version: int
    mark: int
    """What both tables are compared by: the stamp (PIM-31), or the global version (PIM-32)."""
    lease_us: int


class StateLockAnswered(MembershipMessage, frozen=True):
    """``reason`` is empty when the lock is held, else why it is refused."""

    transaction: str
    reason: str
    without_data: tuple[PartitionId, ...] = ()
    """Partitions in whose rows the sender stands without having got its data back."""
    is_passing: bool = False
    """Whether the reason is about to pass by itself: news are on their way."""


class StateUnlockRequested(MembershipMessage, frozen=True):
    """The change is off: give this transaction's lock back, no other one's."""

    transaction: str


class StateUnlockAnswered(MembershipMessage, frozen=True):
    """This transaction holds no lock here."""

    transaction: str


class StateConfirmRequested(MembershipMessage, frozen=True):
    """The change is in the list of this version, which was sent before: do you have it?"""

    transaction: str
    list_version: int


class StateConfirmAnswered(MembershipMessage, frozen=True):
    """The sender has installed that list, or a later one."""

    transaction: str


class RoleChangeRequested(MembershipMessage, frozen=True):
    """A member asks the master to make it a data member (``lite`` False) or lite; repeated."""

    call: int
    member: MemberId
    lite: bool


class RoleChangeAnswered(MembershipMessage, frozen=True):
    """The list that says so (GCM-23), or a ``problem`` with its ``reason`` in words."""

    call: int
    problem: str
    reason: str
    list: MemberList | None = None
