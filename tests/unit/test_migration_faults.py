"""Goal: whoever dies, and whatever message is lost or repeated, at any boundary: one verdict.

Method: a scenario with one migration of a known kind is run once undisturbed to count its
messages; then once per message and fault. After each run all members agree, nothing is lost,
leaked or left flagged (ADL-24, ADL-29 to ADL-31, bugs 3, 7, 8, 10, 11, 13, 19).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest
from tests.unit.migration_net import MS, SETTINGS, Net, wish

from whimbrel.core.messages import Message

SETTINGS_1 = msgspec.structs.replace(SETTINGS, partition_count=1)
ENTRIES = 4


@dataclass(frozen=True)
class Scenario:
    """A cluster up to the moment before a migration, and the wish that causes it.

    ``a`` is the primary before, so the data source; ``c`` joins and is the destination; ``m`` is
    a lite member, first in the list when it is in the scenario.
    """

    kind: str
    start: Sequence[str]
    before: Sequence[str]
    after: Sequence[str]

    def prepare(self, patch: pytest.MonkeyPatch) -> Net:
        wish(patch, {0: self.before})
        net = Net(SETTINGS_1, backup_count=1)
        net.add(*self.start, lite=["m"])
        net.settle()
        net.fill(ENTRIES)
        wish(patch, {0: self.after})
        return net


SCENARIOS = {
    "move, master apart": Scenario("MOVE", ["m", "a", "b"], ["a", "b"], ["c", "b", "a"]),
    "move, master is source": Scenario("MOVE", ["a", "b"], ["a", "b"], ["c", "b", "a"]),
    "move of a backup": Scenario("MOVE", ["m", "a", "b"], ["a", "b"], ["a", "c", "b"]),
    "shift down, master apart": Scenario("SHIFT_DOWN", ["m", "a"], ["a"], ["c", "a"]),
    "shift down": Scenario("SHIFT_DOWN", ["a"], ["a"], ["c", "a"]),
    "copy, master apart": Scenario("COPY", ["m", "a"], ["a"], ["a", "c"]),
    "copy": Scenario("COPY", ["a"], ["a"], ["a", "c"]),
}


@pytest.mark.parametrize("fault", ["drop", "twice"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_each_message_lost_or_repeated(name: str, fault: str) -> None:
    """ADL-18, ADL-24, bug 3: every single message dropped once, or delivered twice."""
    scenario = SCENARIOS[name]
    with pytest.MonkeyPatch.context() as patch:
        net = scenario.prepare(patch)
        start = len(net.trace)
        net.add("c")
        net.settle()
        net.check(ENTRIES)
        assert net.kinds() == [scenario.kind]
        count = len(net.trace) - start
    assert count > 8
    for position in range(count):
        with pytest.MonkeyPatch.context() as patch:
            net = scenario.prepare(patch)
            at = len(net.trace) + position

            def fate(_from: str, _to: str, _message: Message, net: Net = net, at: int = at) -> str:
                return fault if len(net.trace) - 1 == at else "deliver"

            net.on_send = fate
            net.add("c")
            net.settle()
            net.check(ENTRIES)


def crash_cases() -> list[tuple[str, str, str, bool]]:
    """Scenario, victim, who learns late of the death, and whether the victim's tail arrives."""
    cases: list[tuple[str, str, str, bool]] = []
    for name, scenario in SCENARIOS.items():
        members = [*scenario.start, "c"]
        for victim in members:
            cases += [(name, victim, "", True), (name, victim, "", False)]
            cases += [(name, victim, late, True) for late in members if late != victim]
    return cases


@pytest.mark.parametrize(("name", "victim", "late", "tail"), crash_cases())
def test_crash_at_each_message_boundary(name: str, victim: str, late: str, tail: bool) -> None:
    """ADL-29 to ADL-31, ADL-37, ADL-48: somebody dies right after the k-th message, for each k.

    With ``tail`` False the victim's messages under way are lost; member ``late`` learns of its
    death 5 ms after the others.
    """
    scenario = SCENARIOS[name]
    position, reached = 0, True
    while reached:
        with pytest.MonkeyPatch.context() as patch:
            net = scenario.prepare(patch)
            net.add("c")
            net.run_sending(position)
            reached = not net.master.room.is_settled()[0]
            net.crash(victim, tail, {late: 5 * MS})
            net.settle()
            net.check(ENTRIES)
        position += 1
    assert position > 5
    if "b" in scenario.start:
        assert not net.lost_everything()


@pytest.mark.parametrize("name", ["move, master apart", "shift down, master apart"])
@pytest.mark.parametrize("victims", [("m", "c"), ("m", "a"), ("a", "c")])
def test_two_crashes_one_after_the_other(name: str, victims: tuple[str, str]) -> None:
    """ADL-30, bug 13: a second member dies while the first death is being settled."""
    scenario = SCENARIOS[name]
    for position in range(0, 16, 3):
        for gap_ms in (0, 1, 2, 3, 5):
            with pytest.MonkeyPatch.context() as patch:
                net = scenario.prepare(patch)
                net.add("c", "d")
                net.run_sending(position)
                net.crash(victims[0])
                net.run_for(gap_ms / 1000)
                net.crash(victims[1])
                net.settle()
                if not net.lost_everything():
                    net.check(ENTRIES)
                    continue
                # Two data members dead can take the only copies along; never silently.
                assert "m" not in victims or scenario.kind == "SHIFT_DOWN"
