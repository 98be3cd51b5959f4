"""Backups of running clusters, on simulated disks: made, restored, interrupted anywhere (0020)."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.unit.backup_net import BackupPump, DiskNode, forked
from tests.unit.persistence_rig import Rig
from tests.unit.split_pump import data

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.model import BackupSchedule
from whimbrel.core.partition.hashing import partition_of_name
from whimbrel.core.persistence import retired
from whimbrel.core.persistence.commands import List, Read, Remove, Replace
from whimbrel.core.persistence.format import HEADER_BYTES, FragmentState, segment_file
from whimbrel.core.persistence.loading import Loading
from whimbrel.core.persistence.log import Seal
from whimbrel.core.persistence.metadata import LogFiles
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.settings import PersistenceSettings
from whimbrel.errors import IllegalStateError
from whimbrel.structures.map.store import MapStore


def values(text: str, count: int = 12) -> list[str]:
    return [f"{text}{number}" for number in range(count)]


@pytest.fixture
def pump() -> BackupPump:
    made = BackupPump()
    made.begin()
    made.fill("old")
    return made


def ids(pump: BackupPump) -> dict[str, bool]:
    """Every backup, and whether it is complete."""
    return {row["id"]: row["complete"] for row in pump.done("list")}


def test_a_backup_is_restored_as_it_was(pump: BackupPump) -> None:
    """APR-26: what was written later is not in it, and what it has comes back exactly."""
    made = pump.done("create", "first")
    assert (made["id"], made["entries"], made["members"]) == ("first", 12, 2)
    pump.fill("new")
    client = pump.client(pump.master)
    pump.put(client, "m", "more", "x")
    assert "--replace" in pump.done("restore", "first")
    assert pump.shown() == values("new")
    done = pump.done("restore", "first", may_replace=True)
    assert (done["structures"], done["entries"]) == (1, 12)
    assert pump.shown() == values("old") and pump.get(client, "m", "more") is None
    pump.run(2)
    pump.crash()
    pump.begin()
    assert pump.shown() == values("old")


def test_words_for_what_cannot_be_done(pump: BackupPump) -> None:
    """APR-30: used and unknown ids, a second order while one is under way."""
    pump.done("create", "first")
    assert "first" in pump.done("create", "first")
    for what in ("verify", "delete", "restore"):
        assert pump.done(what, "nobody") == "there is no backup nobody in backups"
    pump.order("create", "second")
    with pytest.raises(IllegalStateError, match="under way"):
        pump.order("create", "third")
    pump.run(5)
    assert ids(pump) == {"first": True, "second": True}
    assert pump.done("delete", "first") == {"id": "first"}
    assert ids(pump) == {"second": True}
    assert pump.done("verify", "second")["entries"] == 12


def test_an_increment_needs_what_it_builds_on(pump: BackupPump) -> None:
    """APR-29: it adds only what is new, both are restored, and the first one cannot go."""
    full = pump.done("create", "full")
    client = pump.client(pump.master)
    pump.put(client, "m", "k0", "changed")
    more = pump.done("create", "more", is_incremental=True)
    assert (full["incremental_of"], more["incremental_of"]) == (None, "full")
    homes = [file.file for file in listed(pump, 1) if "/more/" in file.file and "log/" in file.file]
    assert len(homes) == 1 and "changes" in homes[0]
    assert pump.done("restore", "full", may_replace=True)["entries"] == 12
    assert pump.shown() == values("old")
    assert pump.done("restore", "more", may_replace=True)["entries"] == 12
    assert pump.shown() == ["changed", *values("old")[1:]]
    assert "more" in pump.done("delete", "full")
    for number in (1, 2):  # as an operator might
        for file in [one.file for one in listed(pump, number) if "/full/" in one.file]:
            pump.disks[number].execute((Remove(file),))
    assert "builds on full" in pump.done("verify", "more")


def listed(pump: BackupPump, number: int) -> tuple[Any, ...]:
    """What lies in the place of one member."""
    (found,) = pump.disks[number].execute((List("backups", is_deep=True),))
    assert isinstance(found, tuple)
    return found


def test_damage_is_found_before_anything_is_replaced(pump: BackupPump) -> None:
    """One bit of a closed segment: verify and restore name the file, and nothing has changed."""
    pump.done("create", "first")
    pump.fill("new")
    victim = next(one for one in listed(pump, 2) if "/log/changes" in one.file)
    pump.disks[2].rot(victim.file, HEADER_BYTES + 40)
    assert victim.file in pump.done("verify", "first")
    assert victim.file in pump.done("restore", "first", may_replace=True)
    assert pump.shown() == values("new")


def test_what_is_sealed_stays_until_it_is_let_go_of() -> None:
    """APR-26: all of one moment is in closed segments, and compaction takes none of them away.
    Method: seal, then overwrite until nothing of it is needed; a load of them gives that moment.
    """
    rig = Rig()
    rig.begin()
    for number in range(40):
        rig.put(b"k%d" % (number % 9), b"%d" % number * 100)
    rig.settle()
    log, before = rig.files.log, rig.content()
    assert log is not None
    sealed: list[LogFiles] = []
    rig.put(b"last", b"gathered")
    log.seal(Seal(sealed.append, lambda: None))
    rig.put(b"last", b"with it")
    rig.settle()
    files = sealed[0]
    assert all(one.end > HEADER_BYTES for one in files.segments)
    for number in range(400):
        rig.put(b"k%d" % (number % 9), b"%d" % number * 100)
    rig.carry_on()
    needed = {segment_file(one.stream, one.number) for one in files.segments}
    there = {one.file for one in rig.disk.list_folder("log")}
    assert needed <= there and not needed & {segment_file(*one) for one in log.segments.named()}
    assert content_of(rig, files) == before | {b"last": b"with it"}
    log.release()
    rig.carry_on()
    assert not needed & {one.file for one in rig.disk.list_folder("log")}


def content_of(rig: Rig, files: LogFiles) -> dict[bytes, bytes]:
    """What these segments have."""

    def make(pid: PartitionId, namespace: Namespace, _state: FragmentState) -> Fragment:
        return rig.plane.holdings.make_as(pid, namespace, (0, 0), 0)

    named = {segment_file(one.stream, one.number) for one in files.segments}
    there = [one for one in rig.disk.list_folder("log") if one.file in named]
    loading = Loading(files, there, lambda _pid, _name: True, make)
    while commands := loading.next_commands():
        loading.take(rig.disk.execute(commands))
    stores = [cast("MapStore", fragment.store) for fragment in loading.fragments]
    return {key[8:]: value for store in stores for key, value in store.entries(0)}


class Death:
    """Lets the process at a seat die before one command of its disk."""

    def __init__(self, seat: int, position: int) -> None:
        self.seat, self.left = seat, position

    def __call__(self, node: DiskNode) -> bool:
        if node.number != self.seat:
            return False
        self.left -= 1
        return self.left == -1


@pytest.mark.parametrize("seat", [1, 2])
def test_an_interrupted_deletion_leaves_nothing_that_looks_whole(seat: int) -> None:
    """Goal: a death at any command of a deletion leaves a backup that is whole, or says that it is
    not. Method: as above, several times, because a folder may go in part.
    """
    first = BackupPump()
    first.begin()
    first.fill("old")
    first.done("create", "gone")
    first.run(2)
    first.crash()
    for seed in range(16):
        pump = forked(first, seed)
        pump.dies = Death(seat, 2 + seed % 5)
        pump.order("delete", "gone")
        pump.run(3)
        pump.dies = lambda _node: False
        pump.crash()
        pump.begin()
        found = ids(pump).get("gone")
        verified = pump.done("verify", "gone")
        assert isinstance(verified, dict) is (found is True), (seed, found, verified)


@pytest.mark.parametrize("seat", [1, 2])
def test_an_interrupted_backup_harms_nothing(seat: int) -> None:
    """Goal: kill -9 of a member at any command of its disk leaves former backups whole, and what
    was interrupted is complete or cannot be restored. Method: one is made, then another with a
    death at each command in turn; all begin anew, from the same disks each time.
    """
    first = BackupPump()
    first.begin()
    first.fill("old")
    first.done("create", "whole")
    first.fill("new")
    first.run(2)
    first.crash()
    position, outcomes = 0, set()
    while True:
        pump = forked(first, position)
        death = Death(seat, position)
        pump.dies = death
        pump.order("create", "cut")
        pump.run(3)
        if death.left >= 0:
            break
        pump.dies = lambda _node: False
        pump.crash()
        pump.begin()
        found = ids(pump)
        assert found["whole"] and pump.done("verify", "whole")["entries"] == 12
        outcomes.add(found.get("cut"))
        if not found.get("cut", True):
            assert "not complete" in pump.done("restore", "cut", may_replace=True)
            assert pump.done("delete", "cut") == {"id": "cut"}
        elif found.get("cut"):
            assert pump.done("verify", "cut")["entries"] == 12
        position += 1
    assert position >= 8 and False in outcomes, (position, outcomes)


def test_any_moment_between_two_backups(pump: BackupPump) -> None:
    """APR-27: between a full backup and an increment each moment shows what was written before it,
    though compaction has rewritten all of it meanwhile; moments outside are refused.
    """
    pump.done("create", "full")
    moments: list[tuple[int, list[str]]] = []
    for round_ in range(12):
        text = f"{round_}" * 200
        pump.fill(text)
        pump.run(2)
        moments.append((pump.wall_ms, values(text)))
        pump.run(2)
    log = pump.master.engine.member.persistence.log
    assert log is not None and log.retired.history.segments, "compaction has given nothing up"
    pump.done("create", "more", is_incremental=True)
    assert not log.retired.history.segments
    for moment, shown in [moments[0], moments[5], moments[-1]]:
        done = pump.done("restore", at_ms=moment, may_replace=True)
        assert done["entries"] == 12, done
        assert pump.shown() == shown
    for outside in (moments[0][0] - 3_600_000, pump.wall_ms + 3_600_000):
        assert "reach over that moment" in pump.done("restore", at_ms=outside, may_replace=True)


def test_a_history_that_grows_too_large_is_given_up(
    pump: BackupPump, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound only whole backups count until the next one; moments are refused by name."""
    monkeypatch.setattr(retired, "HISTORY_SEGMENTS_MAX", 1)
    pump.crash()
    pump.begin()
    pump.done("create", "full")
    for round_ in range(12):
        pump.fill(f"{round_}" * 200)
        pump.run(2)
    moment = pump.wall_ms
    pump.run(2)
    assert pump.done("create", "more", is_incremental=True)["incremental_of"] == "full"
    refusal = pump.done("restore", at_ms=moment, may_replace=True)
    assert "full" in refusal and "more" in refusal and "kept" in refusal
    assert pump.done("restore", "more", may_replace=True)["entries"] == 12
    assert any(note.kind == "backup_history_ended" for note in pump.master.notes)


def test_a_history_outlives_its_process(pump: BackupPump) -> None:
    """What compaction gave up before all members died is there for the increment after it."""
    pump.done("create", "full")
    for round_ in range(12):
        pump.fill(f"{round_}" * 200)
        pump.run(1)
    moment = pump.wall_ms
    pump.run(1)
    pump.crash()
    pump.begin()
    pump.fill("later")
    pump.run(1)
    pump.done("create", "more", is_incremental=True)
    assert pump.done("restore", at_ms=moment, may_replace=True)["entries"] == 12
    assert pump.shown() == values("11" * 200)


def test_a_schedule_makes_backups_and_keeps_the_last(pump: BackupPump) -> None:
    """APR-28: at its times, the old ones go, none of an operator's; a new master goes on."""
    pump.done("create", "mine")
    member = pump.master.engine.member
    member.begin(pump.now_us, pump.wall_ms)
    member.backups.set_schedule(BackupSchedule("*/2 * * * *", 2))
    pump.master.carry_out()
    pump.run(9 * 60)
    first = ids(pump)
    assert len(first) == 3 and first["mine"] and all(first.values())
    assert member.backups.counters["backups_made"] == 1 + 5
    pump.crash()
    pump.begin()
    pump.run(5 * 60)
    assert len(ids(pump)) == 3 and not set(first) & set(ids(pump)) - {"mine"}
    member = pump.master.engine.member
    member.begin(pump.now_us, pump.wall_ms)
    member.backups.set_schedule(None)
    pump.master.carry_out()
    last = ids(pump)
    pump.run(5 * 60)
    assert ids(pump) == last and member.backups.schedule() == {"cron": None, "keep": None}


def test_a_time_at_which_none_can_be_made_is_told(pump: BackupPump) -> None:
    """APR-28: none overlap; what is left out is counted and noted."""
    member = pump.master.engine.member
    member.begin(pump.now_us, pump.wall_ms)
    member.backups.set_schedule(BackupSchedule("* * * * *", 1))
    pump.master.carry_out()
    pump.run(61)
    for disk in pump.disks.values():
        disk.bytes_max = disk.used_bytes  # the next one waits for its disk
    made = member.backups.counters["backups_made"]
    pump.order("create", "mine")
    pump.run(125)
    assert member.backups.counters["backups_made"] == made
    assert member.backups.counters["backups_skipped"] >= 1
    assert any(note.kind == "backup_skipped" for note in pump.master.notes)
    for disk in pump.disks.values():
        disk.bytes_max = None
    pump.run(125)
    assert member.backups.counters["backups_made"] > made


def test_a_backup_without_one_of_its_members_is_none(pump: BackupPump) -> None:
    """A member dies while logs are cut: the backup fails and says why, the next one works."""
    master, job = pump.order("create", "cut")
    victim = next(node for node in pump.seats.values() if node is not master)
    pump.disks[victim.number].kill()
    pump.kill(victim)
    pump.run(30)
    told = master.engine.member.backups.job(job)
    assert told is not None and told["over"] and told["problem"], told
    assert not pump.master.engine.member.membership.states.stands_still_for(job)
    assert pump.done("create", "next")["entries"] == 12


def test_a_lite_master_needs_no_disk() -> None:
    """Who holds no data has no part in a backup; as the master it stands still like all others."""
    pump = BackupPump(3)
    pump.lites = {1}
    pump.begin()
    pump.fill("old")
    master = pump.master
    assert master.number == 1 and not master.engine.member.persistence.is_enabled
    assert pump.done("create", "first")["members"] == 2
    pump.fill("new")
    assert pump.done("restore", "first", may_replace=True)["entries"] == 12
    assert pump.shown() == values("old")
    assert pump.done("verify", "first")["entries"] == 12


def test_a_member_without_a_disk_refuses_in_words() -> None:
    pump = BackupPump(persistence=PersistenceSettings())
    pump.begin()
    for what in ("create", "list", "verify"):
        assert "persistence.enabled" in pump.done(what, "x")


def test_what_is_deleted_meanwhile_is_not_complete(pump: BackupPump) -> None:
    """A list that is made while a backup is deleted tells what it found, and does not fail."""
    pump.done("create", "first")
    pump.order("delete", "first")
    seen = set()
    for _ in range(40):
        seen.add(tuple(ids(pump).values()))
        pump.run(0.001)
    assert seen <= {(True,), (False,), ()} and () in seen


@pytest.mark.parametrize("partitions", [1, 11])
def test_a_backup_fits_another_number_of_partitions(partitions: int) -> None:
    """APR-26, APR-19: every key is found where it belongs there, and every other structure."""
    pump = BackupPump()
    pump.begin()
    pump.fill("old")
    client = pump.client(pump.master)
    items = [data(f"item{number}") for number in range(5)]
    pid = partition_of_name("q", 3)
    for item in items:
        client.call("Queue.offer", pid, name="q", value=item, timeout_millis=0)
    for number in range(6):
        key = data(f"k{number % 2}")
        client.call(
            "MultiMap.put", pump.pid(f"k{number % 2}"), name="mm", key=key,
            value=data(f"v{number}"), thread_id=1,
        )  # fmt: skip
    made = pump.done("create", "first")
    assert made["entries"] == 12 + 5 + 6
    other = BackupPump(partition_count=partitions)
    other.begin()
    for number, disk in pump.disks.items():
        for one in listed(pump, number):
            (content,) = disk.execute((Read(one.file, 0, one.size),))
            assert isinstance(content, bytes)
            other.disks[number].execute((Replace(one.file, content),))
    done = other.done("restore")
    assert (done["structures"], done["entries"]) == (3, 23)
    assert other.shown() == values("old")
    client = other.client(other.master)
    found = [
        client.call("Queue.poll", partition_of_name("q", partitions), name="q", timeout_millis=0)
        for _ in items
    ]
    assert found == items
    for number in range(2):
        got = client.call(
            "MultiMap.get", other.pid(f"k{number}"), name="mm", key=data(f"k{number}"), thread_id=1
        )
        assert sorted(got) == sorted(data(f"v{one}") for one in range(number, 6, 2))
