"""Goal: the storms go as well when every stage of the master's loop is cut into single rows.

Method: the same seeded storms on the same in-test cluster with the same checks at each settled
point. A step may deal with one or two rows; repair, planning, whole tables and the accounts of a
new master then come in many pieces, and messages, joins and crashes arrive between any two of them.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from tests.unit.migration_net import MS, Net
from tests.unit.test_migration_storm import Storm
from tests.unit.test_serial_storm import SerialStorm, SwitchStorm

from whimbrel.core.messages import Message, StateAnswered, TablePublished
from whimbrel.core.migration import control_loop, plan_queue, recovery, settlement
from whimbrel.core.partition import assignment, levelling

SLICES = ("migration.slice", "migration.account")
PIECES = (
    (control_loop, "ROWS_PLANNED"),
    (control_loop, "ROWS_LOOKED"),
    (plan_queue, "QUEUES_FILLED"),
    (recovery, "ROWS_COMPARED"),
    (settlement, "ROWS_COMPARED"),
    (assignment, "ROWS_TAKEN"),
    (assignment, "ROWS_CHANGED"),
    (assignment, "ROWS_MOVED"),
    (levelling, "ROWS_LOOKED"),
    (levelling, "CHAINS_TRIED"),
    (levelling, "RINGS_TRIED"),
)


def cut(storm: Storm, seen: Counter[str]) -> None:
    """Let a storm's cluster do one or two rows in a step, with time between two pieces."""
    before = storm.net
    rows = 1 + storm.rng.randrange(2)
    net = Net(msgspec.structs.replace(before.settings, step_rows_max=rows), storm.backups)
    net.on_send, net.delay_us = before.on_send, before.delay_us
    storm.net = net
    fate = net.on_send

    def late_us(key: str) -> int:
        # A piece that is due at once: what else arrives in a few milliseconds comes before it.
        if key not in SLICES:
            return 0
        seen["pieces"] += 1
        return storm.rng.randrange(4) * MS

    def on_send(sender: str, to: str, message: Message) -> str:
        if isinstance(message, (TablePublished, StateAnswered)) and message.more:
            seen[type(message).__name__] += 1
        return fate(sender, to, message)

    net.late_us, net.on_send = late_us, on_send


@pytest.mark.parametrize("kind", [Storm, SerialStorm, SwitchStorm])
@pytest.mark.parametrize("block", range(4))
def test_storms_in_pieces(kind: type[Storm], block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADL-37, ADL-46, ADL-50, ADL-11, PIM-05: see the module's goal."""
    for module, name in PIECES:
        monkeypatch.setattr(module, name, 1)
    seen: Counter[str] = Counter()
    for seed in range(block * 8, block * 8 + 8):
        try:
            storm = kind(seed)
            cut(storm, seen)
            storm.run()
        except BaseException as error:
            error.add_note(f"{kind.__name__} in pieces, seed {seed}")
            raise
    assert seen["pieces"] > 100, seen
    if kind is Storm:
        assert min(seen["TablePublished"], seen["StateAnswered"]) > 20, seen
