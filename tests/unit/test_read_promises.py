"""Goal: what a read may return that is not the newest acknowledged write, and until when.

These are the rows of docs/guarantees.md that promise little: reads during planned moves, reads at a
former primary that has woken, reads of values that no backup has yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.engine_pump import Error, Node, Pump, quick_settings
from tests.unit.test_serving_cluster import COUNT, get, key_of, owner, put

from whimbrel.core.ids import MemberId
from whimbrel.core.messages import TablePublished
from whimbrel.core.stimuli import TimerFired
from whimbrel.serialization.data import to_data
from whimbrel.wire import errors as codes
from whimbrel.wire.links import BACKUPS, MESSAGE

Frame = tuple[Node, Any, int, Any]
Held = Callable[[Node, Any, int, Any], bool]


class Keeper:
    """Keeps frames back that a test wants to come late, or never."""

    def __init__(self, pump: Pump, patch: pytest.MonkeyPatch) -> None:
        self.pump = pump
        self.keeps: Held = lambda *_: False
        self.kept: list[Frame] = []
        self._deliver = pump._deliver
        patch.setattr(pump, "_deliver", self._filtered)

    def _filtered(self, sender: Node, to: Any, kind: int, payload: Any) -> None:
        if self.keeps(sender, to, kind, payload):
            self.kept.append((sender, to, kind, payload))
        else:
            self._deliver(sender, to, kind, payload)

    def release(self) -> None:
        """What was kept arrives now, in its order."""
        self.keeps = lambda *_: False
        for frame in self.kept:
            self._deliver(*frame)
        self.kept.clear()


def formed(patch: pytest.MonkeyPatch, count: int, **changes: Any) -> tuple[Pump, Keeper]:
    """Some members, each the primary of some partitions."""
    pump = Pump(quick_settings(**changes))
    pump.form(count)
    return pump, Keeper(pump, patch)


def seconds_until(pump: Pump, condition: Callable[[], bool], limit_s: float) -> float:
    """How long it takes until something is so."""
    began_us = pump.now_us
    pump.run_until(condition, limit_s)
    return (pump.now_us - began_us) / 1e6


# -- planned moves ------------------------------------------------------------------------


def moved_without_telling(pump: Pump, keeper: Keeper) -> tuple[Node, Node, int]:
    """A third member takes a partition over, and the former primary does not hear the verdict.

    Returns:
        The former primary, the new one, and the partition.
    """
    former = {node.id: node for node in pump.nodes[1:]}  # the master hears its own verdict
    before = {pid: owner(pump, pid) for pid in range(COUNT)}
    keeper.keeps = lambda _sender, to, kind, payload: (
        to in former and kind == MESSAGE and isinstance(payload, TablePublished)
    )
    joiner = pump.start()

    def moved() -> list[int]:
        plane = joiner.engine.member.dataplane
        return [
            p for p in range(COUNT) if plane.partitions[p].is_primary and before[p].id in former
        ]

    pump.run_until(moved, 30)
    return before[moved()[0]], joiner, moved()[0]


def test_a_read_at_the_source_of_a_move_is_old_until_the_verdict_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ADL-20, GCM-32, bug 40: between the commit of the destination and the source's learning of it
    a read at the source returns what was there when its writes began to wait. A lost verdict is
    told again after a call time-out; from then on reads there are sent on to the new primary.
    """
    pump, keeper = formed(monkeypatch, 2)
    client = pump.client(pump.nodes[0])
    for number in range(COUNT):
        put(client, number, "old")
    source, joiner, pid = moved_without_telling(pump, keeper)
    new, stale = pump.client(joiner, number=2), pump.client(source, number=3)
    put(new, pid, "new")
    assert get(new, pid) == to_data("new")
    assert get(stale, pid) == to_data("old"), "the window"
    write = stale.ask(
        "Map.put", pid, name="b1", **key_of(pid), value=to_data("newer"), ttl=-1
    )  # waits for the verdict, so nothing is taken under the old row
    keeper.keeps = lambda *_: False  # what was kept is lost
    fresh_s = seconds_until(pump, lambda: get(stale, pid) != to_data("old"), 30)
    assert fresh_s <= 1.6 * pump.settings.call_timeout_us / 1e6
    assert stale.answer(write) == to_data("new")
    assert get(stale, pid) == get(new, pid) == to_data("newer")


def test_no_read_at_the_source_of_a_move_is_old_where_that_is_disabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GCM-32: with ``migration.stale_read_disabled`` that read waits, and sees the new value."""
    pump, keeper = formed(monkeypatch, 2, stale_read_disabled=True)
    client = pump.client(pump.nodes[0])
    for number in range(COUNT):
        put(client, number, "old")
    source, joiner, pid = moved_without_telling(pump, keeper)
    new, stale = pump.client(joiner, number=2), pump.client(source, number=3)
    put(new, pid, "new")
    read = stale.ask("Map.get", pid, name="b1", **key_of(pid))
    assert read not in stale.messages
    keeper.keeps = lambda *_: False
    assert stale.answer(read) == to_data("new")


# -- a former primary that wakes ----------------------------------------------------------


class Pause:
    """A member that does not run: nothing reaches it, its timers are late."""

    def __init__(self, keeper: Keeper, node: Node) -> None:
        self._keeper, self._node = keeper, node
        self._timers: list[TimerFired] = []
        self._handle = node.handle
        keeper.keeps = lambda _sender, to, _kind, _payload: to in (node.id, node.address)
        node.handle = self._late  # type: ignore[method-assign]

    def _late(self, stimulus: Any) -> None:
        if isinstance(stimulus, TimerFired):
            self._timers.append(stimulus)

    def end(self) -> None:
        """It runs again; its timers and what was sent to it are still to come."""
        self._node.handle = self._handle  # type: ignore[method-assign]

    def catch_up(self) -> None:
        """Its overdue timers fire, then it reads what is in its sockets."""
        for timer in self._timers:
            self._node.handle(timer)
        self._keeper.release()


def test_a_former_primary_that_wakes_answers_old_until_it_has_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P3, M4: a member sleeps for longer than the time-out and is replaced. What it is asked before
    it has heard, it answers from what it holds: reads are old, a write without backups is
    acknowledged and lost, one that needs a backup is not acknowledged. It has heard within a
    heartbeat interval of waking, and ends.
    """
    pump, keeper = formed(monkeypatch, 3)
    sleeper = pump.nodes[2]
    client = pump.client(pump.nodes[0])
    pid = next(p for p in range(COUNT) if owner(pump, p) is sleeper)
    put(client, pid, "old")
    stale = pump.client(sleeper, number=3)
    pause = Pause(keeper, sleeper)
    pump.run(pump.settings.heartbeat_timeout_us / 1e6 + 5)
    awake = [node for node in pump.nodes if node is not sleeper]
    assert all(not node.engine.member.ctx.is_member(sleeper.id) for node in awake)
    put(client, pid, "new")
    pause.end()
    assert get(stale, pid) == to_data("old"), "the window"
    assert put(stale, pid, "lost", name="b0 x") is None
    with_backup = stale.ask(
        "Map.put", pid, name="b1", **key_of(pid), value=to_data("stale"), ttl=-1
    )
    woken_us = pump.now_us
    pause.catch_up()
    pump.run_until(lambda: not sleeper.alive, pump.settings.heartbeat_interval_us / 1e6)
    assert pump.now_us - woken_us <= pump.settings.heartbeat_interval_us
    with pytest.raises((Error, EOFError)) as ended:
        stale.answer(with_backup)
    assert not isinstance(ended.value, Error) or ended.value.code == codes.INDETERMINATE
    assert get(client, pid) == to_data("new")
    assert get(client, pid, name="b0 x") is None


# -- values that no backup has yet --------------------------------------------------------


def test_a_read_may_see_a_value_that_no_backup_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """D2, D4, R4: a value is read at the primary before its write is acknowledged; the primary dies
    with it, the write was never acknowledged, and a later read returns the value before.
    """
    pump, keeper = formed(monkeypatch, 3)
    writer = pump.client(pump.nodes[0])
    pid = next(p for p in range(COUNT) if owner(pump, p) is pump.nodes[2])
    put(writer, pid, "old")
    home = owner(pump, pid)
    reader = pump.client(home, number=2)
    keeper.keeps = lambda sender, _to, kind, _payload: sender is home and kind == BACKUPS
    write = reader.ask("Map.put", pid, name="b1", **key_of(pid), value=to_data("new"), ttl=-1)
    pump.settle()
    assert write not in reader.messages
    assert get(reader, pid) == to_data("new"), "seen, and not acknowledged"
    pump.kill(home)
    keeper.kept.clear()
    pump.run_until(lambda: any(owner_of(pump, pid)), 30)
    assert write not in reader.messages
    assert get(writer, pid) == to_data("old")


def owner_of(pump: Pump, pid: int) -> list[MemberId]:
    """Living members that take themselves for the primary."""
    return [n.id for n in pump.living() if n.engine.member.dataplane.partitions[pid].is_primary]
