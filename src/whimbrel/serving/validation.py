"""What a member's message must satisfy beyond the types of its fields, before a room sees it.

A room trusts that partitions exist, that members have uuids and that a list names each once: for
our own messages that always holds. Bytes from elsewhere are held against it here, so a message
that breaks it costs its sender the connection and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from whimbrel.core import messages as m
from whimbrel.core.backups.checks import check_order
from whimbrel.core.ids import BACKUP_COUNT_MAX, split_namespace
from whimbrel.core.messages import Message
from whimbrel.core.model import (
    NO_NUMBER,
    NUMBERS_END,
    ClusterState,
    MemberInfo,
    MemberList,
    MigrationInfo,
    Numbering,
    NumberProposal,
    NumbersAsked,
    NumbersTold,
)
from whimbrel.core.registry import SCHEMA_KIND, VALUE_BYTES_MAX, backups_of
from whimbrel.errors import ProtocolError, UsageError
from whimbrel.serialization.uuids import uuid_bytes

MEMBERS_MAX = 65_000
"""Members of one list; a table image numbers them with 16 bits."""
CLOCK_MAX = 2**62
"""Greatest number of a registry entry that is believed; later ones must still fit."""
KEY_LENGTH_MAX = 1_000
"""Longest key of a registry entry, in characters."""

_decode_schema = msgspec.msgpack.Decoder(tuple[str, list[tuple[str, int]]]).decode


def validate(message: Message, partition_count: int, kinds: Collection[str]) -> None:
    """Refuse a message that no member of ours would send.

    Args:
        message: What came.
        partition_count: Of this cluster.
        kinds: The kinds of structures that there may be.

    Raises:
        ProtocolError: It names a partition that does not exist, a member without a uuid or twice,
            or a registry entry that means nothing. Its ``reason`` says which.
    """
    if isinstance(message, m.RegistryTold):
        _check_entries(message.entries, kinds)
        return
    if isinstance(message, m.RecoveryTold):
        _check_files(message.files, kinds)
        return
    check = _CHECKS.get(type(message))
    if check is not None:
        check(message, partition_count)


def _demand(condition: bool, sentence: str, reason: str) -> None:
    if not condition:
        raise ProtocolError(sentence, reason=reason)


def _check_member(info: MemberInfo) -> None:
    try:
        uuid_bytes(info.id)
    except ProtocolError as error:
        raise ProtocolError(f"a member's id: {error}", reason="member_id") from None


def _check_join(message: m.JoinRequested, _: int) -> None:
    _check_member(message.joiner)
    _demand(message.joiner.address.port > 0, "a joiner without a port", "member_address")


def _check_joiners(message: m.JoinersTold | m.JoinersNoted, _: int) -> None:
    _demand(len(message.joiners) <= MEMBERS_MAX, "too many joiners", "member_list")
    for info in message.joiners:
        _check_member(info)


def _check_list(members: MemberList) -> None:
    expected = () if members.recovery is None else members.recovery.expected
    for infos in (members.members, members.missing, expected):
        _demand(len(infos) <= MEMBERS_MAX, "too many members in a list", "member_list")
        ids = dict.fromkeys(info.id for info in infos)
        _demand(len(ids) == len(infos), "a list names a member twice", "member_list")
        for info in infos:
            _check_member(info)
    is_state = members.state is not ClusterState.IN_TRANSITION
    _demand(is_state, "a list in the state IN_TRANSITION", "member_list")
    for cluster in (members.cluster_id, members.given_up):
        if cluster:
            uuid_bytes(cluster)


def _check_numbering(numbering: Numbering) -> None:
    is_in_range = 0 <= numbering.free <= NUMBERS_END and numbering.decision >= 0
    _demand(is_in_range, "impossible numbers of members", "member_numbers")
    _demand(len(numbering.voters) <= MEMBERS_MAX, "too many voters", "member_numbers")
    voters = dict.fromkeys(voter.id for voter in numbering.voters)
    _demand(len(voters) == len(numbering.voters), "a voter stands twice", "member_numbers")


def _check_proposal(before: Numbering, proposal: NumberProposal | None) -> None:
    if proposal is not None:
        after = proposal.numbering
        _check_numbering(after)
        is_next = after.decision == before.decision + 1 and after.free >= before.free
        _demand(is_next, "a decision that does not follow", "member_numbers")


def _check_asked(asked: NumbersAsked | None) -> None:
    if asked is None:
        return
    _check_numbering(asked.numbering)
    _check_proposal(asked.numbering, asked.proposal)
    _demand(len(asked.grants) <= MEMBERS_MAX, "too many numbers", "member_numbers")
    for grant in asked.grants:
        is_in_range = 0 <= grant.number < grant.end <= NUMBERS_END
        _demand(is_in_range, "a number that no member has", "member_numbers")


def _check_told(told: NumbersTold | None) -> None:
    if told is None:
        return
    _demand(NO_NUMBER <= told.number < NUMBERS_END, "no member's number", "member_numbers")
    if told.numbering is not None:
        _check_numbering(told.numbering)
        _check_proposal(told.numbering, told.accepted)


def _check_published(message: m.MembersPublished, _: int) -> None:
    _check_list(message.list)
    _check_asked(message.numbers)


def _check_beat(message: m.Heartbeat, _: int) -> None:
    _check_asked(message.asked)
    _check_told(message.told)


def _check_role_answer(message: m.RoleChangeAnswered, _: int) -> None:
    if message.list is not None:
        _check_list(message.list)


def _check_migrations(migrations: Iterable[MigrationInfo], partition_count: int) -> None:
    _check_partitions((migration.partition_id for migration in migrations), partition_count)


def _check_with_completed(
    message: m.MigrationRequested | m.MigrationCommitRequested | m.MigrationOpened,
    partition_count: int,
) -> None:
    _check_migrations((message.migration, *message.completed), partition_count)


def _check_partitions(partitions: Iterable[int], partition_count: int) -> None:
    for pid in partitions:
        _demand(0 <= pid < partition_count, f"there is no partition {pid}", "partition_id")


def _check_files(files: m.FilesTold | None, kinds: Collection[str]) -> None:
    if files is None:
        return
    _check_list(files.list)
    _check_entries(files.registry, kinds)
    if files.numbering is not None:
        _check_numbering(files.numbering)


def _check_entries(entries: Iterable[m.RegistryEntry], kinds: Collection[str]) -> None:
    for entry in entries:
        _demand(0 <= entry.clock <= CLOCK_MAX, "an impossible registry clock", "registry_entry")
        _demand(0 < len(entry.key) <= KEY_LENGTH_MAX, "a registry key's length", "registry_entry")
        _demand(len(entry.value) <= VALUE_BYTES_MAX, "a registry value's length", "registry_entry")
        try:
            if entry.kind == SCHEMA_KIND:
                _decode_schema(entry.value)
            elif entry.kind in kinds:
                counts = backups_of(entry)
                good = min(counts) >= 0 and sum(counts) <= BACKUP_COUNT_MAX
                _demand(good, f"a {entry.kind} with {counts} backups", "registry_entry")
            else:
                raise ProtocolError("a registry entry of unknown kind", reason="registry_entry")
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise ProtocolError("a registry value of no form", reason="registry_entry") from None


def _check_merge(message: m.MergeRequested, partition_count: int) -> None:
    _check_partitions((message.partition_id,), partition_count)
    kind, name = split_namespace(message.namespace)
    is_name = bool(kind) and 0 < len(name) <= KEY_LENGTH_MAX
    _demand(is_name, "the length of a structure's name", "name")
    _demand(message.entries >= 0, "a chunk of fewer than no entries", "entries")


def _check_backup(message: m.BackupAsked, _: int) -> None:
    try:
        check_order(message.order)
    except UsageError as problem:
        raise ProtocolError(str(problem), reason="backup") from None


_CHECKS: dict[type[Message], Callable[[Any, int], None]] = {
    m.JoinRequested: _check_join,
    m.JoinersTold: _check_joiners,
    m.JoinersNoted: _check_joiners,
    m.MembersPublished: _check_published,
    m.Heartbeat: _check_beat,
    m.GoodbyeTold: lambda message, _: _check_told(message.numbers),
    m.ClaimAnswered: lambda message, _: _check_list(message.list),
    m.RoleChangeAnswered: _check_role_answer,
    m.MergeRequested: _check_merge,
    m.BackupAsked: _check_backup,
    m.PartitionAuditRequested: lambda message, n: _check_partitions((message.partition_id,), n),
    m.ReplicaAsked: lambda message, n: _check_partitions((message.partition_id,), n),
    m.TablePublished: lambda message, n: _check_migrations(message.completed, n),
    m.StateAnswered: lambda message, n: _check_migrations((*message.completed, *message.active), n),
    m.MigrationRequested: _check_with_completed,
    m.MigrationCommitRequested: _check_with_completed,
    m.MigrationOpened: _check_with_completed,
    m.StateLockAnswered: lambda message, n: _check_partitions(message.without_data, n),
    m.PromotionRequested: lambda message, n: _check_migrations(message.migrations, n),
}
