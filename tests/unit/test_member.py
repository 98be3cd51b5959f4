"""The member: routing of stimuli, the callbacks between rooms, the end of an incarnation."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.engine_pump import member_id, quick_settings

from whimbrel.core.effects import ArmTimer, Effect, Expelled, Joined, Note, Send, SendTo
from whimbrel.core.ids import Address, Namespace, PartitionId
from whimbrel.core.invariants import check_member
from whimbrel.core.member import Member
from whimbrel.core.messages import (
    ANY_MESSAGE,
    Census,
    GoodbyeTold,
    Heartbeat,
    ProbeRequested,
    QuestionAsked,
    RegistryAnswered,
    RegistryTold,
    SuspicionTold,
    TableRequested,
)
from whimbrel.core.model import ClusterState, MemberInfo, MemberList, members_came, members_left
from whimbrel.core.registry import backups_value
from whimbrel.core.stimuli import Received, Started, Stimulus, TimerFired
from whimbrel.errors import InvariantViolation
from whimbrel.structures.kinds import KINDS

STRANGER = member_id(9)
SOMEWHERE = Address("127.0.0.1", 5709)


def make(**settings: object) -> Member:
    info = MemberInfo(member_id(1), Address("127.0.0.1", 5701))
    return Member(info, quick_settings(**settings), KINDS)


def formed(**settings: object) -> Member:
    member = make(**settings)
    member.handle(Started(()), 0, 0)
    return member


def kinds(effects: list[Effect]) -> list[str]:
    return [effect.kind for effect in effects if isinstance(effect, Note)]


def test_a_member_alone_joins_at_once_and_owns_everything() -> None:
    """Goal: ADL-01 for one member: it forms the cluster and arranges the first table."""
    member = make()
    effects = member.handle(Started(()), 0, 0)
    assert any(isinstance(effect, Joined) for effect in effects)
    assert member.is_joined
    assert member.migrations.table.primary_count(member.ctx.id) == 7
    check_member(member)


def test_every_message_has_a_room() -> None:
    """Goal: no message of the protocol is without a taker."""
    member = make()
    membership = {kind: None for takers in member.membership._takers.values() for kind in takers}
    known = [*member._routes, *membership]
    assert sorted(kind.__name__ for kind in known) == sorted(
        kind.__name__ for kind in ANY_MESSAGE.__args__
    )


def test_strangers_are_not_listened_to() -> None:
    """Goal: only membership news are taken from somebody who is not on the list, and before there
    is one the registry's (a seed: what an expelled member destroyed was known to one member).
    """
    told = Received(STRANGER, SOMEWHERE, RegistryTold(5, ()))
    early = make()
    effects = early.handle(told, 1, 0)
    assert any(isinstance(effect, Send) and effect.to == STRANGER for effect in effects)
    member = formed()
    for message in (TableRequested(0), RegistryTold(5, ())):
        before = member.strangers_total
        assert member.handle(Received(STRANGER, SOMEWHERE, message), 1, 0) == []
        assert member.strangers_total == before + 1
    before = member.strangers_total
    member.handle(Received(STRANGER, SOMEWHERE, Heartbeat(1, None)), 1, 0)
    assert member.strangers_total == before


def test_a_late_word_of_an_earlier_process_is_not_the_present_ones() -> None:
    """Goal: M4, M5 (found by a seed: a paused master read, after it had let a restarted member in,
    what the process before it had said, and removed it). Method: a member that kept its identity is
    listed; the process before it suspects, says goodbye and answers; a seeker's words are its own.
    """
    member = formed()
    other = MemberInfo(STRANGER, SOMEWHERE, started_us=7)
    member.membership.install(member.ctx.members.with_members((member.ctx.me, other)))
    follows = SuspicionTold(9, STRANGER, (STRANGER, member.ctx.id), member.ctx.id)
    for late in (follows, GoodbyeTold(STRANGER), RegistryAnswered(1), Heartbeat(9, STRANGER)):
        dropped = member.strangers_total
        member.handle(Received(STRANGER, SOMEWHERE, late, started_us=6), 1, 0)
        assert member.strangers_total == dropped + 1
        assert member.ctx.is_member(STRANGER)
        assert not member.is_expelled
    probe = ProbeRequested(member.ctx.settings.cluster_name, other)
    effects = member.handle(Received(STRANGER, SOMEWHERE, probe, started_us=6), 1, 0)
    assert any(isinstance(effect, SendTo) for effect in effects)
    member.handle(Received(STRANGER, SOMEWHERE, GoodbyeTold(STRANGER), started_us=7), 1, 0)
    assert not member.ctx.is_member(STRANGER)


def test_whoever_speaks_is_not_silent() -> None:
    """Goal: M5 (found by a seed: breaks of one link took each heartbeat, and a member that answered
    the master all the time was removed). Method: messages for other rooms, no heartbeat.
    """
    member = formed()
    other = MemberInfo(STRANGER, SOMEWHERE)
    membership = member.membership
    membership.install(member.ctx.members.with_members((member.ctx.me, other)))
    timeout_us = member.ctx.settings.heartbeat_timeout_us
    for step in range(1, 9):
        now_us = step * timeout_us // 2
        member.handle(Received(STRANGER, SOMEWHERE, RegistryAnswered(1)), now_us, 0)
        membership.detector.expire()
        assert not membership.detector.is_suspected(STRANGER)
    member.ctx.now_us += timeout_us + 1
    membership.detector.expire()
    assert membership.detector.is_suspected(STRANGER)
    member.handle(Received(STRANGER, SOMEWHERE, RegistryAnswered(1)), member.ctx.now_us + 1, 0)
    assert membership.detector.is_suspected(STRANGER), "only membership messages clear it"


def test_a_heartbeat_brings_the_master_a_count_of_entries() -> None:
    """Goal: what a primary tells of its entries in a heartbeat is what the master knows of them
    when the partition is lost. Method: a member is on the list and in a row, and sends one.
    """
    member = formed()
    other = MemberInfo(STRANGER, SOMEWHERE)
    member.membership.install(member.ctx.members.with_members((member.ctx.me, other)))
    pid, name = PartitionId(3), Namespace("map/m")
    partition = member.dataplane.partitions[pid]
    partition.row = (STRANGER, *partition.row[1:])
    beat = Heartbeat(member.ctx.members.version, member.ctx.id, Census((name,), {pid: {0: 7}}))
    member.handle(Received(STRANGER, SOMEWHERE, beat), 1, 1_000)
    assert member.entry_counts.last_told(pid, name) == (7, 1_000)


def test_stale_timers_are_ignored() -> None:
    """Goal: a firing of an older generation does nothing."""
    member = formed()
    assert not [effect for effect in member.take_effects() if isinstance(effect, ArmTimer)]
    assert member.handle(TimerFired("membership.heartbeat", 999), 5, 0) == []


def test_an_expelled_member_takes_nothing_more() -> None:
    """Goal: M5: the end is told once, and nothing is answered any more."""
    member = formed()
    member.membership.on_expelled("told so")
    effects = member.take_effects()
    assert [one.reason for one in effects if isinstance(one, Expelled)] == ["told so"]
    told = Received(STRANGER, SOMEWHERE, SuspicionTold(9, STRANGER))
    assert member.handle(told, 1, 0) == []
    assert not member.is_joined


def test_depth_follows_the_registry_after_the_step() -> None:
    """Goal: a deeper structure changes the depth when the step that made it is over."""
    member = formed()
    assert member.migrations.loop.replica_depth == 2
    member.registry.announce([("map", "deep", True, backups_value(3, 1))])
    assert member.migrations.loop.replica_depth == 2
    member.take_effects()
    assert member.migrations.loop.replica_depth == 5


def test_deep_plans_have_all_slots() -> None:
    """Goal: with ``plan_depth`` deep rows have all seven replicas."""
    assert formed(plan_depth="deep").migrations.loop.replica_depth == 7


def test_questions_go_to_the_layer_above() -> None:
    """Goal: the member hands questions on; without a taker they are dropped."""
    member = formed()
    asked = QuestionAsked(1, "x")
    member.handle(Received(member.ctx.id, SOMEWHERE, asked), 1, 0)
    seen: list[object] = []
    member.on_question = lambda sender, message: seen.append(message)
    member.handle(Received(member.ctx.id, SOMEWHERE, asked), 1, 0)
    assert seen == [asked]


def test_an_unknown_stimulus_is_our_bug() -> None:
    """Goal: nothing is silently ignored."""
    with pytest.raises(TypeError, match="Stimulus"):
        formed().handle(Stimulus(), 0, 0)


def test_invariants_notice_damage() -> None:
    """Goal: the checks across rooms are able to fail."""
    member = formed()
    member.dataplane.partitions[2].is_primary = False
    with pytest.raises(InvariantViolation, match="primary"):
        check_member(member)
    member = formed()
    member.dataplane.partitions[2].set_migrating(True)
    with pytest.raises(InvariantViolation, match="migrating flag"):
        check_member(member)
    member = formed()
    member.migrations.table._stamp = 12
    with pytest.raises(InvariantViolation, match="stamp"):
        check_member(member)


def test_a_restarted_member_left_and_came() -> None:
    """Goal: M4: identity is the process: the same id with a later start is another member."""
    first, second = (
        MemberInfo(member_id(number), Address("127.0.0.1", 5700 + number), started_us=1)
        for number in (1, 2)
    )
    again = MemberInfo(first.id, first.address, started_us=2)
    old, new = MemberList(1, (first, second)), MemberList(3, (second, again))
    assert members_left(old, new) == [first.id]
    assert members_came(old, new) == [first.id]
    assert members_left(new, new) == members_came(new, new) == []


def test_a_change_of_state_is_told_once_and_nothing_else_as_one() -> None:
    """GCM-01: whoever listens hears the old and the new state. Method: the first list, one with
    another member, one with another state, and once more one with another member.
    """
    member, told = make(), list[tuple[ClusterState, ClusterState]]()
    member.on_state_changed = lambda old, new: told.append((old, new))
    member.handle(Started(()), 0, 0)
    other, membership = MemberInfo(STRANGER, SOMEWHERE), member.membership
    membership.install(member.ctx.members.with_members((member.ctx.me, other)))
    assert told == []
    members = member.ctx.members
    membership.install(
        msgspec.structs.replace(members, version=members.version + 1, state=ClusterState.FROZEN)
    )
    membership.install(member.ctx.members.with_members((member.ctx.me,)))
    assert told == [(ClusterState.ACTIVE, ClusterState.FROZEN)]
