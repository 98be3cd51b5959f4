"""Words that arrive late: a dead master's name, a leaver's old request; both found by seeds."""

from __future__ import annotations

from tests.unit.membership_net import NoTable

from whimbrel.core.context import Context
from whimbrel.core.effects import Effect, SendTo
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.membership.service import Membership
from whimbrel.core.messages import GoodbyeTold, Heartbeat, JoinRequested, ProbeAnswered
from whimbrel.core.model import MemberInfo
from whimbrel.core.settings import CoreSettings

SETTINGS = CoreSettings(join_window_us=1_000, join_window_max_us=1_000)


def info_of(number: int, port: int, started_us: int = 5) -> MemberInfo:
    return MemberInfo(MemberId(f"id-{number}"), Address("10.0.0.1", port), started_us=started_us)


def take(ctx: Context) -> list[Effect]:
    effects, ctx.effects = ctx.effects, []
    return effects


def fire(room: Membership, ctx: Context, key: str, after_us: int) -> None:
    ctx.now_us += after_us
    assert ctx.is_armed(key)
    ctx.disarm(key)
    room.on_timer(key)


def test_a_master_whose_address_seeks_is_no_master() -> None:
    """Goal: a seeker does not ask a dead master for ever (found: three members that expelled one
    another waited 60 s for each other and ended). Method: somebody names a master; then the process
    at that address answers that it seeks, too; no further join request goes there.
    """
    ctx = Context(info_of(1, 5701), SETTINGS, 1)
    room = Membership(ctx, NoTable())
    other, third = Address("10.0.0.1", 5702), Address("10.0.0.1", 5703)
    room.on_started((other, third))
    dead, fresh = info_of(2, 5702), info_of(4, 5702)
    name = SETTINGS.cluster_name
    witness = info_of(3, 5703)
    room.on_message(witness.id, third, ProbeAnswered(name, witness, dead))
    sent = [one for one in take(ctx) if isinstance(one, SendTo)]
    assert any(isinstance(one.message, JoinRequested) for one in sent)
    for _ in range(4):
        room.on_message(fresh.id, other, ProbeAnswered(name, fresh, None))
        room.on_message(witness.id, third, ProbeAnswered(name, witness, None))
        take(ctx)
        fire(room, ctx, "membership.discovery", SETTINGS.discovery_interval_us)
        if ctx.is_master:
            break
        sent = [one for one in take(ctx) if isinstance(one, SendTo)]
        assert not any(isinstance(one.message, JoinRequested) for one in sent)
    assert ctx.is_master


def test_a_leavers_late_request_does_not_bring_it_back() -> None:
    """Goal: M4. Method: a member joins, says goodbye, and a request it had sent before arrives."""
    ctx = Context(info_of(1, 5701), SETTINGS, 1)
    room = Membership(ctx, NoTable())
    room.on_started(())
    joiner = info_of(2, 5702)
    request = JoinRequested(SETTINGS.cluster_name, SETTINGS.partition_count, joiner)
    room.on_message(joiner.id, joiner.address, request)
    fire(room, ctx, "membership.join", 2_000)
    assert ctx.is_member(joiner.id)
    room.on_message(joiner.id, joiner.address, GoodbyeTold(joiner.id))
    assert not ctx.is_member(joiner.id)
    room.on_message(joiner.id, joiner.address, request)
    assert not ctx.is_armed("membership.join")
    again = JoinRequested(
        SETTINGS.cluster_name, SETTINGS.partition_count, info_of(2, 5702, started_us=6)
    )
    room.on_message(joiner.id, joiner.address, again)
    fire(room, ctx, "membership.join", 2_000)
    assert ctx.is_member(joiner.id)


def test_a_late_request_of_a_replaced_process_does_not_bring_it_back() -> None:
    """Goal: M4. Method: a member dies unheard, another process starts at its address and takes its
    place, and a request that the dead one had sent before arrives.
    """
    ctx = Context(info_of(1, 5701), SETTINGS, 1)
    room = Membership(ctx, NoTable())
    room.on_started(())
    name, count = SETTINGS.cluster_name, SETTINGS.partition_count
    dead, fresh = info_of(2, 5702), info_of(3, 5702, started_us=6)
    request = JoinRequested(name, count, dead)
    room.on_message(dead.id, dead.address, request)
    fire(room, ctx, "membership.join", 2_000)
    assert ctx.is_member(dead.id)
    room.on_message(fresh.id, fresh.address, JoinRequested(name, count, fresh))
    assert not ctx.is_member(dead.id)
    room.on_message(dead.id, dead.address, request)
    fire(room, ctx, "membership.join", 2_000)
    assert ctx.is_member(fresh.id) and not ctx.is_member(dead.id)


def _removed(ctx: Context, room: Membership, *, is_seated: bool) -> JoinRequested:
    """A member came in, showed that it knew it or not, and was removed for a failed link."""
    joiner = info_of(2, 5702)
    request = JoinRequested(SETTINGS.cluster_name, SETTINGS.partition_count, joiner)
    room.on_started(())
    room.on_message(joiner.id, joiner.address, request)
    fire(room, ctx, "membership.join", 2_000)
    assert ctx.is_member(joiner.id)
    shown = ctx.members.version if is_seated else ctx.members.version - 1
    room.on_message(joiner.id, joiner.address, Heartbeat(shown, ctx.id))
    room.on_link_failed(joiner.id)
    assert not ctx.is_member(joiner.id)
    return request


def test_a_dead_members_late_request_does_not_bring_it_back() -> None:
    """Goal: M4. Method: a member that knew it had come in is removed because its link failed, and a
    request of its own, sent before, arrives (found by a seed: it came in again and was dead).
    """
    ctx = Context(info_of(1, 5701), SETTINGS, 1)
    room = Membership(ctx, NoTable())
    request = _removed(ctx, room, is_seated=True)
    room.on_message(request.joiner.id, request.joiner.address, request)
    assert not ctx.is_armed("membership.join")


def test_who_was_removed_before_it_knew_of_its_seat_may_ask_again() -> None:
    """Goal: a joiner whose link broke before the list had reached it is not shut out for ever: it
    seeks on under its identity. A heartbeat of an earlier process shows an older list.
    """
    ctx = Context(info_of(1, 5701), SETTINGS, 1)
    room = Membership(ctx, NoTable())
    request = _removed(ctx, room, is_seated=False)
    room.on_message(request.joiner.id, request.joiner.address, request)
    fire(room, ctx, "membership.join", 2_000)
    assert ctx.is_member(request.joiner.id)
