"""Protections of the member list, of who is master, of coming and going."""

from __future__ import annotations

from typing import Any

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.core.membership.expulsion import SEARCH_TIMER
from whimbrel.core.messages import PublicationAnswered, StateAnswered, TablePublished
from whimbrel.core.migration.recovery import Inquiry
from whimbrel.core.model import MemberInfo, MemberList
from whimbrel.core.stimuli import Received
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, nothing, replace


def strangers_unheard(engine: Engine) -> None:
    """A table is taken from whoever sends it, also before the first list (bugs 9 and 60)."""
    member = engine.member
    take, manager = member._on_message, member.migrations.manager

    def believe(received: Received) -> None:
        ctx, sender, message = member.ctx, received.sender, received.message
        if not isinstance(message, TablePublished) or sender in (ctx.master, ctx.id):
            take(received)
            return
        for migration in message.completed:
            manager.apply_completed(migration)
        for row in manager.table.take_image(message.image):
            manager.apply_row(row)
        member.migrations.conclude()
        ctx.send(sender, PublicationAnswered(message.publication, True, 0))

    replace(member, "_on_message", believe)


def fetch_repeated(engine: Engine) -> None:
    """A new master asks each member for its table once (ADL-13)."""
    recovery = engine.member.migrations.loop.recovery
    ask, asked = recovery.ask, dict[Any, None]()

    def once(inquiry: Inquiry) -> None:
        question = (recovery._round, inquiry.asked)
        if question not in asked:
            asked[question] = None
            ask(inquiry)

    replace(recovery, "ask", once)


def fetch_from_living(engine: Engine) -> None:
    """A new master waits for the table of a member that has left (ADL-12)."""
    replace(engine.member.migrations.loop.recovery, "members_changed", nothing)


def newest_rows_taken(engine: Engine) -> None:
    """A new master starts from its own table, whatever others know (bugs 11 and 13)."""
    member = engine.member
    recovery = member.migrations.loop.recovery
    answered = recovery.answered

    def ignore(sender: MemberId, message: StateAnswered) -> None:
        own = member.migrations.table.image()
        answered(sender, msgspec.structs.replace(message, image=own, completed=()))

    member.migrations._handlers[StateAnswered] = ignore


def copies_settled(engine: Engine) -> None:
    """A new master does not ask about migrations under way (bug 10)."""
    member = engine.member
    recovery = member.migrations.loop.recovery
    answered = recovery.answered

    def ignore(sender: MemberId, message: StateAnswered) -> None:
        answered(sender, msgspec.structs.replace(message, active=()))

    member.migrations._handlers[StateAnswered] = ignore


def leave_asked_again(engine: Engine) -> None:
    """A member that wants to leave asks once, whoever is master later (bug 22)."""
    leave = engine.member.membership.leave
    ask = leave._ask

    def once() -> None:
        if leave._asked is None:
            ask()

    replace(leave, "_ask", once)


def all_may_leave(engine: Engine) -> None:
    """When everybody leaves at once each waits for another one to take its data."""
    replace(engine.member.migrations.loop, "_all_leave", lambda: False)


def outlived_unheard(engine: Engine) -> None:
    """What an earlier process of an identity has said is taken for the present one's (M4)."""
    replace(engine.member, "is_outlived", lambda _received: False)


def wish_ends(engine: Engine) -> None:
    """Who waits for a promotion waits on when the master that it asked is gone (bug 49)."""
    roles = engine.member.membership.roles
    follow = roles.follow

    def wait() -> None:
        wish, membership = roles.wish, roles._membership
        if (
            wish is None
            or membership.ctx.me.lite == wish.lite
            or membership.taken_master == wish.master
        ):
            follow()

    replace(roles, "follow", wait)


def claims_need_suspicion(engine: Engine) -> None:
    """A member agrees to a claim although it hears the master well."""
    claim = engine.member.membership.claim
    replace(claim, "may_follow", lambda _claimant: True)


def suspicion_told(engine: Engine) -> None:
    """A member that is told that the cluster goes on without it goes on as before."""
    replace(engine.member.membership.expulsion, "on_told", nothing)


def followers_search(engine: Engine) -> None:
    """Only a master looks for other parts of the cluster."""
    membership = engine.member.membership
    expulsion, on_timer = membership.expulsion, membership.expulsion.on_timer

    def search() -> None:
        if membership.ctx.is_master:
            on_timer()
        else:
            expulsion.start()

    membership._timers[SEARCH_TIMER] = search


def all_removed_remembered(engine: Engine) -> None:
    """Of members removed in one view only the last is remembered (bug 62)."""
    membership = engine.member.membership
    install = membership.install

    def forget(new: MemberList) -> None:
        install(msgspec.structs.replace(new, missing=new.missing[-1:]))

    replace(membership, "install", forget)


def restart_recognised(engine: Engine) -> None:
    """A new process with the identity of a listed member is taken for that member (bug 64)."""
    membership = engine.member.membership
    displaced_by = membership.displaced_by

    def same(process: MemberInfo) -> MemberId | None:
        known = displaced_by(process)
        return None if known == process.id else known

    replace(membership, "displaced_by", same)
    replace(membership.joining, "_on_repetition", lambda joiner: membership.publish(joiner.id))


def numbers_by_majority(engine: Engine) -> None:
    """Whoever claims mastership gives the main numbers out, however few follow it."""
    replace(engine.member.membership.numbers, "_has_quorum", lambda _numbering, _attempt: True)


GUARDS: tuple[Bug, ...] = (
    Bug(strangers_unheard, "pause", ("P1", "P4", "X2", "P2")),
    Bug(fetch_repeated, "kill", ("L1",)),
    Bug(fetch_from_living, "kill", ("L1",)),
    Bug(newest_rows_taken, "kill", ("P2", "X2", "D6", "L1")),
    Bug(copies_settled, "kill", ("L1", "P7", "X2")),
    Bug(leave_asked_again, "leave", ("L1",)),
    Bug(all_may_leave, "leave", ("L1",)),
    Bug(outlived_unheard, "states", ("X2", "M5")),
    Bug(wish_ends, "swarm", ("L1",)),
    Bug(claims_need_suspicion, "split", ("M1", "M2", "M3", "L1")),
    Bug(suspicion_told, "pause", ("L1",)),
    Bug(followers_search, "lists", ("L1",)),
    Bug(all_removed_remembered, "states", ()),
    Bug(numbers_by_majority, "merge", ("M7",)),
    Bug(restart_recognised, "states", ("C1", "D6", "D1", "L1")),
)
