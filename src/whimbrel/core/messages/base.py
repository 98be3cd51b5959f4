"""What all messages have in common, and which room takes one."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of everything that members say to each other in msgpack.

    The bases below it say which room takes a message.
    """


class MembershipMessage(Message, frozen=True):
    """Of the membership room; some of them are taken from who is on no list."""


class MigrationMessage(Message, frozen=True):
    """Of the migration room."""


class TransferMessage(Message, frozen=True):
    """Of the room whose copy it is, as its purpose says."""


class ReplicationMessage(Message, frozen=True):
    """Of the replication room."""


class MergingMessage(Message, frozen=True):
    """Of the merging room."""


class RecoveryMessage(Message, frozen=True):
    """Of the recovery room; none is told once the cluster runs."""


class BackupMessage(Message, frozen=True):
    """Of the room of backups."""


class AuditMessage(Message, frozen=True):
    """Of the room of audits."""


class RegistryMessage(Message, frozen=True):
    """Of the registry."""


class QuestionMessage(Message, frozen=True):
    """Of the layer that knows documents."""
