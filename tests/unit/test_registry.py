"""The registry: facts replicated to every member, done when each has answered or left."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.registry_net import Net

from whimbrel.core.effects import Send
from whimbrel.core.ids import MemberId
from whimbrel.core.messages import Message, RegistryAnswered, RegistryTold
from whimbrel.core.registry import (
    RETRY_TIMER,
    SCHEMA_KIND,
    backups_of,
    backups_value,
)
from whimbrel.errors import OverloadedError


def map_fact(name: str, backups: int = 1, *, alive: bool = True) -> tuple[str, str, bool, bytes]:
    return "map", name, alive, backups_value(backups, 0)


def test_a_fact_is_done_when_everybody_has_it() -> None:
    """Goal: the token appears only after every member merged the fact. Method: one member is deaf
    at first; the repeat reaches it.
    """
    net = Net(3)
    net.view(0, 1, 2)
    net.deaf = [2]
    net.registries[0].announce([map_fact("a")], "token")
    net.deliver()
    assert net.structures(1) == ["a"]
    assert net.registries[0].completed == []
    net.deaf = []
    net.registries[0].on_timer(RETRY_TIMER)
    net.deliver()
    assert net.structures(2) == ["a"]
    assert net.registries[0].completed == ["token"]
    assert net.registries[0].announcing_count() == 0
    assert not net.contexts[0].is_armed(RETRY_TIMER), "there is nothing to repeat"


def test_alone_a_fact_is_done_at_once() -> None:
    """Goal: nobody to tell means done."""
    net = Net(1)
    net.view(0)
    net.registries[0].announce([map_fact("a")], "token")
    assert net.registries[0].completed == ["token"]


def test_a_departed_member_is_not_waited_for() -> None:
    """Goal: an announcement ends when the one missing member leaves."""
    net = Net(3)
    net.view(0, 1, 2)
    net.deaf = [2]
    net.registries[0].announce([map_fact("a")], "token")
    net.deliver()
    net.view(0, 1)
    assert net.registries[0].completed == ["token"]


def test_many_facts_are_done_together() -> None:
    """Goal: a token waits for all pieces of a large announcement, not for the last one alone.
    Method: 450 facts travel in three messages, the answer to the first is held back.
    """
    net = Net(2)
    net.view(0, 1)
    registry = net.registries[0]
    registry.announce([map_fact(f"n{number:03}") for number in range(450)], "token")
    told = [
        effect.message
        for effect in net.contexts[0].effects
        if isinstance(effect, Send) and isinstance(effect.message, RegistryTold)
    ]
    assert len(told) == 3
    registry.on_message(net.infos[1].id, RegistryAnswered(told[2].call))
    registry.on_message(net.infos[1].id, RegistryAnswered(told[1].call))
    assert registry.completed == []
    registry.on_message(net.infos[1].id, RegistryAnswered(told[0].call))
    assert registry.completed == ["token"]


def test_a_newcomer_gets_everything() -> None:
    """Goal: the master brings a newcomer up to date, and a running announcement includes it."""
    net = Net(4)
    net.view(0, 1, 2)
    net.registries[1].announce([map_fact("a"), (SCHEMA_KIND, "7", True, b"x")], None)
    net.deliver()
    net.deaf = [2]
    net.registries[1].announce([map_fact("b")], "token")
    net.deliver()
    net.view(0, 1, 2, 3)
    assert net.structures(3) == ["a", "b"]
    assert [entry.key for entry in net.registries[3].schemas()] == ["7"]
    assert net.registries[1].completed == []


def test_later_news_win_in_any_order() -> None:
    """Goal: members agree on concurrent changes whatever the order of arrival."""
    net = Net(3)
    net.view(0, 1, 2)
    net.registries[0].announce([map_fact("a")], None)
    net.deliver()
    net.registries[1].announce([map_fact("a", alive=False)], None)
    net.registries[2].announce([map_fact("a", 3)], None)
    net.deliver()
    found = [net.structures(number) for number in range(3)]
    assert found[0] == found[1] == found[2] == ["a"]
    assert all(registry.depth() == 4 for registry in net.registries)


def test_what_a_dead_member_had_begun_reaches_all() -> None:
    """Goal: a half-told fact does not stay half-told. Method: the author reaches one of two
    members and dies; after the view change both agree.
    """
    net = Net(3)
    net.view(0, 1, 2)
    net.deaf = [2]
    net.registries[0].announce([map_fact("a")], None)
    net.deliver()
    net.deaf = []
    assert net.structures(2) == []
    net.view(1, 2)
    assert net.structures(1) == net.structures(2) == ["a"]


def test_depth_follows_live_structures() -> None:
    """Goal: rows are at least two deep and as deep as the deepest live map."""
    net = Net(1)
    net.view(0)
    registry = net.registries[0]
    assert registry.depth() == 2
    registry.announce([map_fact("a", 0)], None)
    assert registry.depth() == 2
    registry.announce([map_fact("b", 4)], None)
    assert registry.depth() == 5
    registry.announce([map_fact("b", 4, alive=False)], None)
    assert registry.depth() == 2
    entry = registry.get("map", "a")
    assert entry is not None and backups_of(entry) == (0, 0)


def test_changes_are_told_with_what_they_replaced() -> None:
    """Goal: the callback sees create, repeat and destroy."""
    net = Net(1)
    net.view(0)
    seen: list[tuple[bool, bool | None]] = []
    net.registries[0].on_changed = lambda entry, before: seen.append(
        (entry.alive, None if before is None else before.alive)
    )
    net.registries[0].announce([map_fact("a")], None)
    net.registries[0].announce([map_fact("a", alive=False)], None)
    assert seen == [(True, None), (False, True)]


def test_limits_refuse_before_anything_changes() -> None:
    """Goal: a value above its limit is an overload error and leaves nothing behind."""
    net = Net(1)
    net.view(0)
    with pytest.raises(OverloadedError, match="1048576"):
        net.registries[0].announce(
            [map_fact("a"), (SCHEMA_KIND, "1", True, bytes(1048577))], "token"
        )
    assert net.structures(0) == []
    assert net.registries[0].completed == []


def test_a_destruction_counts_whichever_fact_wins() -> None:
    """Goal: a map made anew by a member that had not heard of its destruction loses what it held,
    on every member alike (D11). Method: destroyed and made anew at the same time; the news arrive
    in both orders, and a newcomer is told once.
    """
    orders: list[list[int]] = [[0, 1], [1, 0]]
    for order in orders:
        net = Net(4)
        net.view(0, 1, 2)
        net.registries[0].announce([map_fact("a")], None)
        net.deliver()
        news: list[RegistryTold] = []
        for number, alive in ((0, False), (1, True)):
            net.registries[number].announce([map_fact("a", alive=alive)], None)
            sent = [one.message for one in net.contexts[number].effects if isinstance(one, Send)]
            news += [one for one in sent[:1] if isinstance(one, RegistryTold)]
        net.registries[1].announce([map_fact("a")], None)
        for which in order:
            net.registries[2].on_message(MemberId(f"m{which}"), news[which])
        net.deliver()
        net.view(0, 1, 2, 3)
        found = [registry.get("map", "a") for registry in net.registries]
        assert found[0] is not None and found[0].destroyed == 2
        assert all(entry == found[0] for entry in found)


def test_a_smaller_parts_destruction_is_not_adopted() -> None:
    """Goal: what the bigger part kept stays. Method: adopt a map that the smaller part had
    destroyed and made again.
    """
    net = Net(2)
    net.view(0, 1)
    net.registries[0].announce([map_fact("a")], None)
    net.deliver()
    held = net.registries[0].get("map", "a")
    assert held is not None
    theirs = MemberId("x")
    other = msgspec.structs.replace(held, clock=9, origin=theirs, destroyed=8, destroyer=theirs)
    assert net.registries[0].adopt([other])
    net.deliver()
    for registry in net.registries:
        entry = registry.get("map", "a")
        assert entry is not None and (entry.clock, entry.destroyed) == (9, 0)


def destroyed(net: Net, number: int) -> int:
    """The number of the latest destruction of map a that a member knows, also of a dead map."""
    return net.registries[number]._entries["map", "a"].destroyed


def test_a_destruction_exceeds_those_it_had_not_heard_of() -> None:
    """Goal: what is destroyed covers all that was written before it was asked for (D11). Method: a
    member that has heard of nothing destroys a map that the others have destroyed and made anew
    meanwhile, so that its first number is too small; it is told so, and is done after the second.
    """
    net = Net(3)
    net.view(0, 1, 2)
    net.deaf = [2]
    for alive in (True, False, True, False, True):
        net.registries[0].announce([map_fact("a", alive=alive)], None)
    net.deliver()
    before = destroyed(net, 1)
    net.deaf = []
    net.registries[2].announce([map_fact("a", alive=False)], "done")
    sent = [one.message for one in net.contexts[2].effects if isinstance(one, Send)]
    told = next(one for one in sent if isinstance(one, RegistryTold))
    assert told.entries[0].destroyed <= before
    net.deliver()
    assert net.registries[2].completed == ["done"]
    assert all(destroyed(net, number) > before for number in range(3))
    assert net.registries[2].announcing_count() == 0


def test_a_dead_members_destruction_reaches_all_though_another_fact_won() -> None:
    """Goal: as for facts: what is half told does not stay half told. Method: a map is destroyed by
    one member and made anew by another at the same time; the first reaches one of two and dies.
    """
    net = Net(3)
    net.view(0, 1, 2)
    net.registries[0].announce([map_fact("a")], None)
    net.deliver()
    net.deaf = [2]
    net.registries[0].announce([map_fact("a", alive=False)], None)
    net.registries[1].announce([map_fact("a")], None)
    net.registries[1].announce([map_fact("a")], None)
    net.deliver()
    net.deaf = []
    before = destroyed(net, 1)
    assert before > destroyed(net, 2) == 0
    net.view(1, 2)
    assert destroyed(net, 1) == destroyed(net, 2) == before
    assert net.registries[1].get("map", "a") == net.registries[2].get("map", "a")


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("begun_again", [False, True])
def test_destructions_at_the_same_time_come_to_an_end(count: int, begun_again: bool) -> None:
    """Goal: members that destroy a map at once do not overtake each other for ever (found by a
    seed: two members told each other of ever later destructions, thousands a second, D11, L1).
    Method: all destroy it before anybody hears of it, and once it is written meanwhile.
    """
    net = Net(count)
    net.view(*range(count))
    net.registries[0].announce([map_fact("a")], "made")
    net.deliver()
    told = 0

    def listen(number: int) -> None:
        registry = net.registries[number]
        on_message = registry.on_message

        def counted(sender: MemberId, message: Message) -> None:
            nonlocal told
            told += 1
            assert told < 100, "they go on for ever"
            on_message(sender, message)

        vars(registry)["on_message"] = counted

    for number in range(count):
        listen(number)
        net.registries[number].announce([map_fact("a", alive=False)], f"destroyed {number}")
    if begun_again:
        net.registries[0].announce([map_fact("a")], "made again")
    net.deliver()
    assert [net.registries[number].announcing_count() for number in range(count)] == [0] * count
    for number in range(count):
        assert f"destroyed {number}" in net.registries[number].completed
    assert len({tuple(net.structures(number)) for number in range(count)}) == 1
