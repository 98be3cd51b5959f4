"""The rules of data judge whatever keeps a ledger: here a kind of queue, which has no keys."""

from __future__ import annotations

from typing import Any

import pytest

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.sim.data.rules import CopyRemains, FailedIsWithoutEffect, NothingReturns
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.history import ABSENT, Ledger, Operation, Outcome
from whimbrel.sim.host import Host
from whimbrel.sim.profile import draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.world import World
from whimbrel.wire.frames import RawMessage

OK, UNKNOWN, FAILED = Outcome.OK, Outcome.UNKNOWN, Outcome.FAILED


class Call(Operation):
    """An offer, or a poll, which takes the oldest element."""

    def request(self, correlation: int, flags: int) -> bytes:
        return b""

    def decode(self, message: RawMessage) -> None:
        return None


class Line(Ledger):
    """A queue: an element that was offered is there, or somebody has taken it."""

    @property
    def is_settled(self) -> bool:
        return True

    @property
    def owes(self) -> bool:
        return bool(self._left())

    def _left(self) -> list[int]:
        """Elements that were offered for certain and that no answered poll has returned."""
        ended = [one for one in self.changes if one.outcome is OK]
        taken = [one.seen for one in ended if one.kind == "poll"]
        return [one.number for one in ended if one.kind == "offer" and one.number not in taken]

    def lacks(self, store: Any) -> bool:
        maybe = [one for one in self.changes if one.kind == "poll" and one.outcome is not OK]
        return sum(one not in (store or ()) for one in self._left()) > len(maybe)

    def is_right(self, store: Any) -> bool:
        return not self.lacks(store)

    def shows(self, store: Any, operation: Operation) -> bool:
        return operation.number in (store or ())

    def is_absent(self, store: Any) -> bool:
        return not store

    def shown(self, store: Any) -> str:
        return str(store)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Two members; what they hold is what ``holding`` says."""
    world = World(draw_plan(Entropy(1), profile_named("calm")), Entropy(1))
    monkeypatch.setattr(world, "up_hosts", lambda: world.hosts[:2])
    return world


def holding(world: World, monkeypatch: pytest.MonkeyPatch, *stores: list[int]) -> None:
    held = dict(zip(world.hosts, stores, strict=False))
    monkeypatch.setattr(Host, "store_at", lambda host, _pid, _namespace: held.get(host))


def called(world: World, line: Line, kind: str, outcome: Outcome, seen: int | None = None) -> Call:
    call = Call("c1", kind, line, len(line.changes) + 1, 0)
    call.outcome, call.seen = outcome, seen
    call.effect = call.number if kind == "offer" else ABSENT
    line.changes.append(call)
    world.history.book(call)
    return call


def line_of(world: World) -> Line:
    line = Line("orders", Namespace("queue/orders"), PartitionId(3), True)
    world.history.add(line)
    return line


def test_an_element_that_nobody_has_taken_is_held_by_somebody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: Method: two offers, one taken by a poll; then the other one is nowhere, which is allowed
    only while a poll of unknown outcome may have taken it.
    """
    line, rule = line_of(world), CopyRemains(world)
    called(world, line, "offer", OK)
    called(world, line, "offer", OK)
    called(world, line, "poll", OK, seen=1)
    holding(world, monkeypatch, [], [2])
    rule.ended(world.hosts[2], "crash")
    assert world.violations == []
    called(world, line, "poll", UNKNOWN)
    holding(world, monkeypatch, [9], [])
    rule.ended(world.hosts[2], "crash")
    assert world.violations == []
    line.changes.pop()
    rule.ended(world.hosts[2], "crash")
    assert [one.rule for one in world.violations] == ["D6"]


def test_a_failed_offer_and_a_destroyed_queue_leave_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5, D11: Method: an offer that was refused is held by a member all the same."""
    line = line_of(world)
    call = called(world, line, "offer", FAILED)
    holding(world, monkeypatch, [], [call.number])
    FailedIsWithoutEffect(world).denied(call, "refused")
    world.history.destroyed[line] = None
    NothingReturns(world).quiet()
    assert [(one.rule, one.who) for one in world.violations] == [("C5", "m2"), ("D11", "m2")]
