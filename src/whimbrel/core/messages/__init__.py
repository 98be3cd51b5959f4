"""The member protocol's control messages, one frozen struct each.

Names are past tense for news and ``...Requested`` / ``...Answered`` for pairs. Every request is
repeated by its sender until it is answered or the peer has left the member list, so every
receiver must treat a second copy as the same request. ``DATA_CHANNEL`` messages travel on the
link's bulk connection so that they never delay a heartbeat; all others on the control
connection. Each connection keeps its order; a reset loses an unknown tail.
"""

from __future__ import annotations

from typing import Any, Union

from whimbrel.core.messages.audit import (
    AuditEnded,
    PartitionAuditAnswered,
    PartitionAuditRequested,
    ReplicaAnswered,
    ReplicaAsked,
)
from whimbrel.core.messages.backups import BackupAnswered, BackupAsked, BackupGivenUp
from whimbrel.core.messages.base import (
    AuditMessage,
    BackupMessage,
    MembershipMessage,
    MergingMessage,
    Message,
    MigrationMessage,
    QuestionMessage,
    RecoveryMessage,
    RegistryMessage,
    ReplicationMessage,
    TransferMessage,
)
from whimbrel.core.messages.membership import (
    Census,
    ClaimAnswered,
    ClaimRequested,
    GoodbyeTold,
    Heartbeat,
    JoinersNoted,
    JoinersTold,
    JoinRefused,
    JoinRequested,
    LeaveAllowed,
    LeaveOrdered,
    LeaveRequested,
    MembersPublished,
    ProbeAnswered,
    ProbeRequested,
    RoleChangeAnswered,
    RoleChangeRequested,
    StateConfirmAnswered,
    StateConfirmRequested,
    StateLockAnswered,
    StateLockRequested,
    StateUnlockAnswered,
    StateUnlockRequested,
    SuspicionTold,
)
from whimbrel.core.messages.merging import (
    MergeAnswered,
    MergeCounts,
    MergeRequested,
)
from whimbrel.core.messages.migration import (
    LegacyTableAnswered,
    LegacyTablePublished,
    LegacyTableRequested,
    LegacyVersionPublished,
    LossesNoted,
    LossesTold,
    MigrationCommitAnswered,
    MigrationCommitRequested,
    MigrationDataAnswered,
    MigrationOpened,
    MigrationRequested,
    PromotionAnswered,
    PromotionRequested,
    PublicationAnswered,
    StableTableRequested,
    StableTableTold,
    StampPublished,
    StateAnswered,
    StateRequested,
    TableImage,
    TablePublished,
    TableRequested,
)
from whimbrel.core.messages.recovery import (
    FilesTold,
    RecoveryFailed,
    RecoveryNoted,
    RecoveryOrdered,
    RecoveryTold,
)
from whimbrel.core.messages.registry import (
    QuestionAnswered,
    QuestionAsked,
    RegistryAnswered,
    RegistryEntry,
    RegistryTold,
)
from whimbrel.core.messages.replication import (
    DiskTold,
    RefillRefused,
    RefillRequested,
    ReplicaVersions,
    StandingAnswered,
    StandingRequested,
    SyncRefused,
    SyncRequested,
    VersionsTold,
)
from whimbrel.core.messages.transfer import (
    NOTHING_COMPARED,
    CopyBase,
    FragmentPart,
    Progress,
    Purpose,
    TransferAnswered,
    TransferSent,
    Vector,
)

__all__ = [
    "ADDRESSED",
    "ANY_MESSAGE",
    "AuditEnded",
    "AuditMessage",
    "BackupAnswered",
    "BackupAsked",
    "BackupGivenUp",
    "BackupMessage",
    "Census",
    "ClaimAnswered",
    "ClaimRequested",
    "CopyBase",
    "DATA_CHANNEL",
    "DiskTold",
    "FilesTold",
    "FragmentPart",
    "GoodbyeTold",
    "Heartbeat",
    "JoinRefused",
    "JoinRequested",
    "JoinersNoted",
    "JoinersTold",
    "LeaveAllowed",
    "LeaveOrdered",
    "LeaveRequested",
    "LegacyTableAnswered",
    "LegacyTablePublished",
    "LegacyTableRequested",
    "LegacyVersionPublished",
    "LossesNoted",
    "LossesTold",
    "MembersPublished",
    "MembershipMessage",
    "MergeAnswered",
    "MergeCounts",
    "MergeRequested",
    "MergingMessage",
    "Message",
    "MigrationCommitAnswered",
    "MigrationCommitRequested",
    "MigrationDataAnswered",
    "MigrationMessage",
    "MigrationOpened",
    "MigrationRequested",
    "NOTHING_COMPARED",
    "ProbeAnswered",
    "ProbeRequested",
    "PartitionAuditAnswered",
    "PartitionAuditRequested",
    "Progress",
    "PromotionAnswered",
    "PromotionRequested",
    "PublicationAnswered",
    "Purpose",
    "QuestionAnswered",
    "QuestionAsked",
    "QuestionMessage",
    "RecoveryFailed",
    "RecoveryMessage",
    "RecoveryNoted",
    "RecoveryOrdered",
    "RecoveryTold",
    "RefillRefused",
    "RefillRequested",
    "RegistryAnswered",
    "RegistryEntry",
    "RegistryMessage",
    "RegistryTold",
    "ReplicaAnswered",
    "ReplicaAsked",
    "ReplicaVersions",
    "ReplicationMessage",
    "RoleChangeAnswered",
    "RoleChangeRequested",
    "StableTableRequested",
    "StableTableTold",
    "StampPublished",
    "StandingAnswered",
    "StandingRequested",
    "StateAnswered",
    "StateConfirmAnswered",
    "StateConfirmRequested",
    "StateLockAnswered",
    "StateLockRequested",
    "StateRequested",
    "StateUnlockAnswered",
    "StateUnlockRequested",
    "SuspicionTold",
    "SyncRefused",
    "SyncRequested",
    "TableImage",
    "TablePublished",
    "TableRequested",
    "TransferAnswered",
    "TransferMessage",
    "TransferSent",
    "Vector",
    "VersionsTold",
]

ANY_MESSAGE: Any = Union[  # noqa: UP007
    tuple(kind for room in Message.__subclasses__() for kind in room.__subclasses__())
]
"""The union the decoder is built from."""

DATA_CHANNEL: tuple[type[Message], ...] = (
    MigrationOpened, TransferSent, MergeRequested, BackupAsked, BackupAnswered, BackupGivenUp,
    ReplicaAsked, ReplicaAnswered,
)  # fmt: skip
"""Messages that travel on the bulk connection."""

ADDRESSED: tuple[type[Message], ...] = (
    ProbeRequested, ProbeAnswered, JoinRequested, JoinRefused, SuspicionTold, RoleChangeAnswered,
)  # fmt: skip
"""Messages a member may send to or take from somebody who is not on its member list."""
