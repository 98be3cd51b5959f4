"""Goal: reads while a partition migrates, with stale reads allowed and disabled (GCM-32)."""

from __future__ import annotations

import pytest
from tests.unit.engine_pump import Error, Pump, quick_settings
from tests.unit.test_serving_cluster import COUNT, get, key_of, owner, put

from whimbrel.core.stimuli import TimerFired
from whimbrel.serialization.data import to_data
from whimbrel.wire import errors as codes


def formed(disabled: bool) -> Pump:
    """Three members."""
    pump = Pump(quick_settings(stale_read_disabled=disabled))
    pump.form(3)
    return pump


def test_reads_wait_where_stale_reads_are_disabled() -> None:
    """GCM-32, bug 40: reads of the partition wait, also those sent on and those of whole maps; they
    run when the flag is off, and see what was written meanwhile. Other partitions are read.
    """
    pump = formed(disabled=True)
    home = owner(pump, 3)
    other = next(node for node in pump.nodes if node is not home)
    client, far = pump.client(home), pump.client(other, number=2)
    for number in range(COUNT):
        put(client, number, f"before {number}")
    plane = home.engine.member.dataplane
    plane.partitions[3].set_migrating(True)
    assert not plane.partitions[3].readable
    near = client.ask("Map.get", 3, name="b1", **key_of(3))
    sent_on = far.ask("Map.get", 3, name="b1", **key_of(3))
    size = far.ask("Map.size", name="b1")
    pump.run(1)
    assert [call for call in (near,) if call in client.messages] == []
    assert [call for call in (sent_on, size) if call in far.messages] == []
    for number in (*range(3), *range(4, COUNT)):
        assert get(client, number) == to_data(f"before {number}")
    plane.roles.end_source(plane.partitions[3].pid)
    home.engine.handle(TimerFired("any", 0), pump.now_us, pump.wall_ms)
    home.carry_out()
    pump.run(1)
    assert client.answer(near) == far.answer(sent_on) == to_data("before 3")
    assert far.answer(size) == COUNT


def test_a_read_that_waits_too_long_is_refused_as_retryable() -> None:
    """GCM-32: with stale reads disabled a read is refused with the error that clients repeat."""
    pump = formed(disabled=True)
    home = owner(pump, 3)
    client = pump.client(home)
    home.engine.member.dataplane.partitions[3].set_migrating(True)
    read = client.ask("Map.get", 3, name="b1", **key_of(3))
    pump.run(11)
    with pytest.raises(Error) as caught:
        client.answer(read)
    assert caught.value.code == codes.PARTITION_MIGRATING


def test_reads_go_on_where_stale_reads_are_allowed() -> None:
    """GCM-32: the default: reads of a migrating partition are answered at once."""
    pump = formed(disabled=False)
    home = owner(pump, 3)
    client = pump.client(home)
    put(client, 3, "before")
    home.engine.member.dataplane.partitions[3].set_migrating(True)
    assert get(client, 3) == to_data("before")
    assert client.call("Map.size", name="b1") == 1
