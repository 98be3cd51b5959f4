"""The product's own words on safety: what ``status`` would say if everybody answered now."""

from __future__ import annotations

from whimbrel.core import safety
from whimbrel.core.member import Member
from whimbrel.core.model import MemberInfo
from whimbrel.sim.world import World


def unsafe_because(world: World) -> str:
    """Why the cluster is not safe in the product's own words; empty when it is.

    What ``status`` would say if every member were asked, and answered, at this moment.
    """
    word = safety_words(world)
    return "there is no master" if word is None else safety.unsafe_because(*word)


def survived_failures(world: World) -> int:
    """How many failures the product says that it survives now."""
    word = safety_words(world)
    return 0 if word is None else safety.survived_failures(*word)


def safety_words(world: World) -> tuple[safety.MasterWord, list[safety.Answer]] | None:
    """The words of the master and of whom it lists; None when nobody is in charge."""
    master = acting_master(world)
    if master is None:
        return None
    word = master.safety.master_word()
    return word, [_answer(world, info, word.settled) for info in master.ctx.members.members]


def acting_master(world: World) -> Member | None:
    """The first member that is in charge and awake."""
    for host in world.up_hosts():
        member = host.member
        if host.joined and not host.is_paused and member.migrations.loop.in_charge:
            return member
    return None


def _answer(world: World, info: MemberInfo, is_settled: bool) -> safety.Answer:
    host = world.host_of(info.id)
    if host is None or host.is_paused or not host.joined:
        return info, f"member {info.address} does not answer"
    return info, host.member.safety.member_word(is_settled)


def restless_because(world: World) -> str:
    """Why a run waits although the cluster may be safe: somebody comes, goes, sleeps, changes."""
    hosts = world.up_hosts()
    if not hosts:
        return "nobody runs"
    ids = sorted(host.info.id for host in hosts)
    for host in hosts:
        if host.is_paused or not host.joined or host.is_leaving:
            return f"{host.name} is paused, joining or leaving"
        member = host.member
        if member.membership.roles.wish is not None:
            return f"{host.name} waits to become lite, or a data member"
        if sorted(member.ctx.members.ids()) != ids:
            listed = member.ctx.members
            return f"{host.name} has list {listed.version} of {len(listed.members)} members"
    return ""
