"""Bugs of the member list, of who is master, of coming and going."""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import Address, MemberId
from whimbrel.core.model import MemberList
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace


def reused_identity(engine: Engine) -> None:
    """A restarted process takes the identity that its address had before."""


def impatient_master(engine: Engine) -> None:
    """A new master decides with what it knows itself, without hearing the others."""
    replace(engine.member.migrations.loop.recovery, "unanswered", list)


def left_with_data(engine: Engine) -> None:
    """The master lets a leaving member go before its data are elsewhere."""
    loop = engine.member.migrations.loop
    may_leave, ctx = loop.may_leave, engine.member.ctx

    def allow(member: MemberId) -> bool:
        return may_leave(member) or member in ctx.leaving

    replace(loop, "may_leave", allow)


def own_pause_unnoticed(engine: Engine) -> None:
    """A member that was stopped takes the others' silence for their death."""
    replace(engine.member.membership.heartbeats, "notice_pause", lambda: None)


def repair_before_the_table(engine: Engine) -> None:
    """A new master promotes while parts of the table it begins with have not gone out."""
    loop = engine.member.migrations.loop
    replace(loop, "_may_repair", lambda: engine.member.ctx.state.promotion_allowed)


def nobody_may_leave(engine: Engine) -> None:
    """The master never answers a member that wants to leave."""
    replace(engine.member.migrations.loop, "may_leave", lambda _member: False)


def silence_unnoticed(engine: Engine) -> None:
    """Nobody is suspected because its heartbeats stay away."""
    replace(engine.member.membership.detector, "expire", lambda: None)


def heard_forgotten(engine: Engine) -> None:
    """Who gives way to a part of the cluster does not tell its next incarnation where that is."""
    membership = engine.member.membership
    on_started = membership.on_started

    def start(join_addresses: tuple[Address, ...], heard: tuple[Address, ...] = ()) -> None:
        on_started(join_addresses)

    replace(membership, "on_started", start)


def silent_kept(engine: Engine) -> None:
    """The master removes only whom nothing can be sent to, not who is silent."""
    membership = engine.member.membership
    detector = membership.detector

    def remove() -> None:
        suspected = [one for one in detector.suspected() if one not in detector._silent]
        members = membership.ctx.members
        kept = tuple(info for info in members.members if info.id not in suspected)
        if suspected:
            membership.install(members.with_members(kept))

    replace(membership, "_remove_suspected", remove)


def former_master_kept(engine: Engine) -> None:
    """Whoever claims mastership leaves the suspected master on its list, as the youngest."""
    membership = engine.member.membership
    ctx, install = membership.ctx, membership.install

    def keep(new: MemberList) -> None:
        master = ctx.members.master
        former = None if master is None else ctx.members.get(master)
        if new.master == ctx.id and former is not None and new.get(former.id) is None:
            new = msgspec.structs.replace(new, members=(*new.members, former))
        install(new)

    replace(membership, "install", keep)


def numbers_begin_anew(engine: Engine) -> None:
    """A new master gives numbers out as if it had founded the cluster."""
    ctx, numbers = engine.member.ctx, engine.member.membership.numbers
    list_installed = numbers.list_installed

    def begin(old: MemberList) -> None:
        if ctx.is_master and old.master != ctx.id:
            numbers.found()
        list_installed(old)

    replace(numbers, "list_installed", begin)


BUGS: tuple[Bug, ...] = (
    Bug(reused_identity, "kill", ("M4", "M1", "X2", "L1", "D1"), keeps_identity=True),
    Bug(impatient_master, "kill", ("M3",)),
    Bug(left_with_data, "leave", ("P12", "D6", "D7", "D1", "L1")),
    Bug(own_pause_unnoticed, "pause", ("M4", "M5", "L1")),
    Bug(repair_before_the_table, "sliced", ("M3",)),
    Bug(nobody_may_leave, "leave", ("L2", "L1")),
    Bug(silence_unnoticed, "over", ("L1", "L2", "L5", "C1")),
    Bug(heard_forgotten, "lists", ("L1",)),
    Bug(silent_kept, "oneway", ("L5",)),
    Bug(former_master_kept, "pause", ("M2",)),
    Bug(numbers_begin_anew, "kill", ("M7",)),
)
