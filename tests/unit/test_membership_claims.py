"""Claims step by step: one room, and what it says to each answer, silence and pause."""

from __future__ import annotations

import pytest
from tests.unit.membership_net import SECOND, SETTINGS, NoTable, address_of

from whimbrel.core.context import Context
from whimbrel.core.effects import Effect, Note, Send, Stopped
from whimbrel.core.ids import MemberId
from whimbrel.core.membership.claim import CLAIM_TIMER
from whimbrel.core.membership.discovery import CLAIMANTS_MAX
from whimbrel.core.membership.heartbeats import HEARTBEAT_TIMER
from whimbrel.core.membership.service import Membership
from whimbrel.core.messages import (
    ClaimAnswered,
    ClaimRequested,
    Heartbeat,
    MembersPublished,
    Message,
)
from whimbrel.core.model import MemberInfo, MemberList


class One:
    """The room of one member, whose messages, timers and clock the test makes."""

    def __init__(self, number: int) -> None:
        self.ctx = Context(self.info(number), SETTINGS, SECOND)
        self.room = Membership(self.ctx, NoTable())
        self.room.on_started((address_of(1),))

    @staticmethod
    def info(number: int) -> MemberInfo:
        return MemberInfo(MemberId(f"m{number}"), address_of(number), started_us=5)

    def list_of(self, *numbers: int) -> MemberList:
        infos = map(self.info, numbers)
        return MemberList(5, tuple(self.ctx.me if one.id == self.ctx.id else one for one in infos))

    def hears(self, number: int, message: Message) -> None:
        self.room.on_message(self.info(number).id, address_of(number), message)

    def fire(self, key: str) -> None:
        assert self.ctx.is_armed(key)
        self.ctx.disarm(key)
        self.room.on_timer(key)

    def claims(self) -> bool:
        return self.room.is_claiming

    def take(self) -> list[Effect]:
        effects, self.ctx.effects = self.ctx.effects, []
        return effects


def joined(number: int, count: int) -> One:
    """A member of a list of that many, the first of which is the master."""
    one = One(number)
    one.hears(1, MembersPublished(one.list_of(*range(1, count + 1))))
    assert one.ctx.master == "m1" and len(one.ctx.members.members) == count
    one.take()
    return one


def asked(effects: list[Effect]) -> dict[MemberId, int]:
    """Who was asked for agreement, with the number of the claim."""
    return {
        effect.to: effect.message.call
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, ClaimRequested)
    }


def answers(effects: list[Effect]) -> list[bool]:
    return [
        effect.message.accepted
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, ClaimAnswered)
    ]


def kinds(effects: list[Effect]) -> list[str]:
    return [effect.kind for effect in effects if isinstance(effect, Note)]


def lose(one: One, number: int) -> dict[MemberId, int]:
    """The link to a member fails; returns whom we ask for agreement then."""
    one.room.on_link_failed(one.info(number).id)
    return asked(one.take())


def test_who_refused_a_claim_agrees_once() -> None:
    """Goal: a refusal is taken back in one answer, not with every message from then on. Method: a
    claim comes while the master is trusted; the master's link fails; heartbeats follow.
    """
    one = joined(3, 3)
    one.hears(2, ClaimRequested(5, 7))
    assert answers(one.take()) == [False]
    one.room.on_link_failed(one.info(1).id)
    assert answers(one.take()) == [True]
    for _ in range(3):
        one.hears(2, Heartbeat(5, one.info(2).id))
    assert answers(one.take()) == []


def test_a_claim_is_not_won_by_answers_to_an_earlier_one() -> None:
    """Goal: who agreed to an abandoned claim may follow its old master again, so it is asked anew.
    Method: one of two agrees, the master is reached again and fails again, the other one agrees.
    """
    one = joined(2, 4)
    first = lose(one, 1)
    assert sorted(first) == ["m3", "m4"]
    one.hears(3, ClaimAnswered(True, one.ctx.members, first[one.info(3).id]))
    one.room.on_link_restored(one.info(1).id)
    assert not one.claims()
    second = lose(one, 1)
    assert sorted(second) == ["m3", "m4"] and set(second.values()).isdisjoint(first.values())
    one.hears(4, ClaimAnswered(True, one.ctx.members, second[one.info(4).id]))
    assert one.claims() and not one.ctx.is_master
    one.hears(3, ClaimAnswered(True, one.ctx.members, second[one.info(3).id]))
    assert one.ctx.members.ids() == ("m2", "m3", "m4")


def test_who_lives_and_never_answers_is_dropped_and_who_refuses_is_not() -> None:
    """Goal: a claim ends in bounded time though nobody is silent, and takes no member from those
    that said no. Method: both others send heartbeats; one refuses, the other does not answer at
    all; after the claim time-out the first is asked on alone, and its agreement is enough.
    """
    one = joined(2, 4)
    call = lose(one, 1)[one.info(3).id]
    one.hears(3, ClaimAnswered(False, one.ctx.members, call))
    rounds = SETTINGS.claim_timeout_us // SETTINGS.call_timeout_us
    for number in range(rounds):
        one.ctx.now_us += SECOND
        one.fire(HEARTBEAT_TIMER)
        one.hears(3, Heartbeat(5, one.info(1).id))
        one.hears(4, Heartbeat(5, one.info(1).id))
        one.take()
        one.fire(CLAIM_TIMER)
        assert sorted(asked(one.take())) == (["m3", "m4"] if number < rounds - 1 else ["m3"])
    assert one.claims()
    one.hears(3, ClaimAnswered(True, one.ctx.members, call))
    assert one.ctx.is_master and one.ctx.members.ids() == ("m2", "m3")


@pytest.mark.parametrize("short_us", [0, 1])
def test_a_pause_of_half_the_time_out_begins_a_claim_anew(short_us: int) -> None:
    """Goal: from half the heartbeat time-out on the others may have gone on without us, so answers
    from before count no more. Method: a claimant wakes so late, or a microsecond earlier.
    """
    one = joined(2, 3)
    lose(one, 1)
    one.ctx.now_us += SETTINGS.heartbeat_interval_us + SETTINGS.heartbeat_timeout_us // 2 - short_us
    one.hears(3, Heartbeat(5, one.info(1).id))
    noted = kinds(one.take())
    assert "was_paused" in noted
    assert ("claim_abandoned" in noted) == ("mastership_claimed" in noted) == (not short_us)
    assert one.claims()


@pytest.mark.parametrize("more", [0, 1])
def test_a_seeker_remembers_so_many_claimants(more: int) -> None:
    """Goal: what a seeker told a claimant is kept for exactly ``CLAIMANTS_MAX`` of them. Method: so
    many ask, or one more; then a list arrives that the first of them is about to replace.
    """
    one = One(9)
    for number in range(2, CLAIMANTS_MAX + 2 + more):
        one.hears(number + 100 * (number > 2), ClaimRequested(5, 7))
    one.hears(1, MembersPublished(one.list_of(1, 2, 9)))
    assert one.ctx.is_member(one.ctx.id) == bool(more)


def test_who_ends_as_it_becomes_master_says_nothing_more() -> None:
    """Goal: nothing is done after the end. Method: a leaver asks its master, which dies; as the
    leaver becomes master the layer above ends it, before it would ask the new master: itself.
    """
    one = joined(2, 2)
    one.room.want_leave()
    one.room.on_became_master = lambda: one.room.stop("the disk is full", 1)
    one.room.on_link_failed(one.info(1).id)
    effects = one.take()
    assert one.ctx.is_master and isinstance(effects[-1], Stopped)
    assert not one.ctx.leaving
