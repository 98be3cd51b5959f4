"""A log that goes on after a death: at each step of its files, and with what else is held then."""

from __future__ import annotations

import pytest
from tests.unit.persistence_rig import MAP, PARTITIONS, ROW, Rig, expected

from whimbrel.core.ids import EMPTY_ROW, PartitionId, ReplicaIndex
from whimbrel.core.persistence import segments
from whimbrel.core.persistence.log import COMPACT_TIMER

pytestmark = pytest.mark.usefixtures("either")
EVERYTHING = {PartitionId(pid): ReplicaIndex(0) for pid in range(PARTITIONS)}


def work_or_die(rig: Rig, left: int, *, power: bool) -> int:
    """Carry works out, or die when so many commands are; how many are left, below 0 when dead."""
    while rig.works:
        commands = rig.works[0].commands
        if len(commands) > left:
            rig.disk.execute(commands[:left])
            rig.die(power=power)
            return -1
        left -= len(commands)
        rig.work()
    return left


def die_at(command: int) -> Rig | None:
    """A process that wrote over several segments and died before that command; None if it did not
    come so far.
    """
    rig = Rig(segment_bytes=2_000)
    rig.begin()
    left = command
    for number in range(30):
        rig.put(b"key %d" % number, b"v" * 60)
        rig.turn()
        left = work_or_die(rig, left, power=False)
        if left < 0:
            return rig
    return None


def test_a_death_between_any_two_commands() -> None:
    """S1, S2: also between the making of a segment and the note of it; and then once more."""
    command = 0
    while (rig := die_at(command)) is not None:
        command += 1
        rig.begin()
        assert expected(rig.acknowledged).items() <= rig.content().items()
        rig.put(b"after", b"the death")
        rig.settle()
        before = rig.content()
        rig.die(power=False)
        rig.begin()
        assert not rig.problems and not rig.stopped
        assert rig.content() == before
        assert before[b"after"] == b"the death"
    assert command > 60


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_copy_in_place_of_what_was_loaded(is_empty: bool) -> None:
    """S1: another fragment of the structure is held before the log goes on: that one is found."""
    rig = Rig()
    rig.begin()
    for number in range(30):
        rig.put(b"key %d" % number, b"loaded")
    rig.settle()
    rig.die(power=False)
    rig.files.begin(lambda: None)
    rig.settle()
    rig.files.load(EVERYTHING)
    rig.settle()
    holdings, partition = rig.plane.holdings, rig.plane.partitions[0]
    loaded = partition.fragments[MAP]
    copy = holdings.make(partition.pid, MAP)
    copy.install(loaded.vector(), 0)
    if not is_empty:
        copy.store.ingest(loaded.store.export(loaded.store.open_cursor(), 1 << 20)[0])
    holdings.hold(partition, copy)
    rig.files.began()
    for one in rig.plane.partitions:
        rig.plane.roles.row_changed(one.pid, EMPTY_ROW, ROW, 2)
    rig.put(b"key 30", b"written later")
    rig.put(b"key 33", b"written later")
    rig.carry_on()
    before = rig.content()
    assert len(before) == (20 if is_empty else 32)
    rig.die(power=False)
    rig.begin()
    assert rig.content() == before


def test_images_of_what_is_not_wanted_any_more_are_given_up() -> None:
    """APR-69: what is not loaded again holds no segment back."""
    rig = Rig(segment_bytes=2_000)
    rig.begin()
    for version in range(30):
        for number in range(30):
            rig.put(b"key %d" % number, b"version %d" % version)
        rig.settle()
    rig.carry_on()
    rig.die(power=False)
    rig.files.begin(lambda: None)
    rig.settle()
    rig.files.load({})
    rig.settle()
    rig.files.began()
    assert rig.files.log is not None
    assert all(not one.images for found in rig.files.log.segments.of.values() for one in found)


def compact_until(command: int) -> Rig | None:
    """A process whose log is made smaller all the time, and whose machine loses its power before
    that command; None if it did not come so far.
    """
    rig = Rig(command, segment_bytes=700)
    rig.begin()
    left = command
    for number in range(60):
        rig.put(b"key %d" % (number % 7), b"%d " % number * 40)
        rig.turn()
        if number % 4 == 3:
            rig.files.on_timer(COMPACT_TIMER)
            rig.fire()
        left = work_or_die(rig, left, power=True)
        if left < 0:
            return rig
    return None


def test_a_power_failure_at_any_command_of_a_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1, S7, APR-69: nothing goes before what makes it needless is durable."""
    monkeypatch.setattr(segments, "SLACK_RATIO", 1)
    monkeypatch.setattr(segments, "SLACK_SEGMENTS", 1)
    command, images = 0, 0
    while (rig := compact_until(command)) is not None:
        command += 1
        rig.begin()
        assert not rig.problems and not rig.stopped, command
        found = rig.content()
        for key, value in expected(rig.acknowledged).items():
            assert int(found[key].split()[0]) >= int(value.split()[0]), (command, key)
        if rig.files.found is not None:
            images += any(one.stream.name == "IMAGES" for one in rig.files.found.log.segments)
    assert command > 150 and images > 30
