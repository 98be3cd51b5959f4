"""What a member makes of the files that it finds, before it looks for others (0017)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.unit.keys import encryption_now
from tests.unit.persistence_rig import LIST, Rig

from whimbrel.core.ids import MemberId
from whimbrel.core.persistence.commands import Read, Remove, Replace
from whimbrel.core.persistence.metadata import (
    CLUSTER_FILE,
    ClusterFile,
    LogFiles,
    decode_cluster_file,
    encode_cluster_file,
)
from whimbrel.core.stimuli import DiskDone

pytestmark = pytest.mark.usefixtures("either")
FULL, PARTIAL = "FULL_RECOVERY_ONLY", "PARTIAL_RECOVERY_MOST_RECENT"
OTHER = MemberId("00000002-0000-4000-8000-000000000002")


def written(policy: str = FULL) -> Rig:
    """A member that has written, died, and starts again."""
    rig = Rig(recovery_policy=policy)
    rig.begin()
    rig.put(b"a", b"1")
    rig.carry_on()
    rig.die(power=True)
    return rig


def content_of(rig: Rig, file: str) -> bytes:
    """All bytes of a file."""
    (data,) = rig.disk.execute((Read(file, 0, 1 << 20),))
    assert isinstance(data, bytes)
    return data


def everything(rig: Rig) -> dict[str, bytes]:
    """All files, by name."""
    names = [one.file for folder in ("", "log") for one in rig.disk.list_folder(folder)]
    return {name: content_of(rig, name) for name in names}


def decoded(data: bytes) -> ClusterFile:
    """What a cluster file says."""
    return decode_cluster_file(encryption_now().decrypt_file(CLUSTER_FILE, CLUSTER_FILE, data))


def rewrite(rig: Rig, change: Callable[[ClusterFile], ClusterFile]) -> None:
    """Have the files be of something else."""
    file = change(decoded(content_of(rig, CLUSTER_FILE)))
    data = encryption_now().encrypt_file(CLUSTER_FILE, encode_cluster_file(file))
    rig.disk.execute((Replace(CLUSTER_FILE, data),))


def start(rig: Rig) -> list[bool]:
    """Begin, as far as to know what the files are of; whether the member goes on."""
    went_on: list[bool] = []
    rig.files.begin(lambda: went_on.append(True))
    rig.settle()
    return went_on


def test_an_empty_directory_and_one_with_files() -> None:
    """APR-06: with nothing there a member seeks as ever; else it knows what cluster it was in."""
    rig = Rig()
    assert start(rig) == [True] and rig.files.found is None
    rig = written()
    assert start(rig) == [True]
    assert rig.files.found is not None and rig.files.found.members.cluster_id == "home"


def test_who_has_left_knows_with_which_list() -> None:
    """D1: it has nothing to bring back, and can tell who was there to the end."""
    rig = written()
    rig.begin()
    rig.discard_all()
    rig.files.end()
    rig.settle()
    rig.die(power=True)
    assert start(rig) == [True]
    assert rig.files.found is None and rig.files.left == LIST


def test_who_died_while_it_made_its_first_files_begins_anew() -> None:
    """APR-06: a half-written directory, after any part of the first work: it holds nothing yet."""
    steps = 0
    while True:
        rig = Rig()
        rig.files.begin(lambda: None)
        rig.settle()
        rig.files.began()
        rig.turn()
        while not rig.works:
            assert rig.fire()
        first = rig.works[0].commands
        rig.disk.execute(first[:steps])
        rig.die(power=False)
        rig.begin()
        assert not rig.stopped and not rig.problems
        rig.put(b"a", b"1")
        rig.settle()
        assert rig.acknowledged == [(b"a", b"1")]
        steps += 1
        if steps > len(first):
            break
    assert steps > 3


def other_name(file: ClusterFile) -> ClusterFile:
    return msgspec.structs.replace(file, cluster_name="elsewhere")


def other_member(file: ClusterFile) -> ClusterFile:
    return msgspec.structs.replace(file, member=OTHER)


def fewer_partitions(file: ClusterFile) -> ClusterFile:
    return msgspec.structs.replace(file, partition_count=2, rows=file.rows[:2])


@pytest.mark.parametrize("policy", [FULL, PARTIAL])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_name, ("'elsewhere'", "'dev'")),
        (other_member, (OTHER, "member.json says")),
        (fewer_partitions, ("2 partitions, not 3",)),
    ],
)
def test_files_of_something_else_end_the_start(
    change: Callable[[ClusterFile], ClusterFile], words: tuple[str, ...], policy: str
) -> None:
    """APR-06, APR-07, APR-08: another name, member or number of partitions: both are told, and
    nothing is touched, whatever the policy; thread counts are no matter, there are none in it.
    """
    rig = written(policy)
    rewrite(rig, change)
    before = everything(rig)
    assert start(rig) == []
    (reason,) = rig.stopped
    assert all(word in reason for word in words) and CLUSTER_FILE in reason
    assert everything(rig) == before and rig.files.found is None


def flip(rig: Rig) -> None:
    data = bytearray(content_of(rig, CLUSTER_FILE))
    data[len(data) // 2] ^= 1
    rig.disk.execute((Replace(CLUSTER_FILE, bytes(data)),))


def remove(rig: Rig) -> None:
    rig.disk.execute((Remove(CLUSTER_FILE),))


@pytest.mark.parametrize(("harm", "words"), [(flip, "checksum"), (remove, "it is gone")])
def test_damaged_metadata_end_the_start_or_are_set_aside(
    harm: Callable[[Rig], None], words: str
) -> None:
    """APR-08, APR-09, S4: the policy says which; what is set aside is told, and is all there."""
    rig = written()
    harm(rig)
    before = everything(rig)
    assert start(rig) == []
    assert words in rig.stopped[0] and everything(rig) == before
    rig = written(PARTIAL)
    harm(rig)
    before = everything(rig)
    assert start(rig) == [True] and not rig.stopped and rig.files.found is None
    assert everything(rig) == {}
    kept = {name.split("/", 2)[2] for name in rig.disk._files if name.startswith("aside/")}
    assert kept == set(before)
    rig.die(power=False)
    rig.begin()
    assert rig.content() == {} and not rig.stopped


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("commands", [1, 3, 4, 5])
def test_a_death_while_files_are_set_aside_is_gone_on_from(commands: int, *, power: bool) -> None:
    """APR-14, S6: whatever of it was carried out, the next start has all of it in one folder, and
    begins without files. Method: a work stops behind so many commands; then the member dies.
    """
    rig = written()
    before = everything(rig)
    rig.files.begin(lambda: None)
    rig.settle()
    rig.files.set_aside(lambda: None)
    rig.turn()
    asked = rig.works.popleft()
    answers = rig.disk.execute(asked.commands[: min(commands, 3)])
    if commands > 3:
        rig.files.on_disk(DiskDone(asked.number, answers))
        rig.turn()
        rig.disk.execute(rig.works.popleft().commands[: commands - 3])
    rig.die(power=power)
    assert start(rig) == [True] and not rig.stopped and rig.files.found is None
    assert everything(rig) == {}
    aside = [name for name in rig.disk._files if name.startswith("aside/")]
    assert {name.split("/", 2)[2] for name in aside} == set(before)
    assert len({name.split("/")[1] for name in aside}) == 1
    rig.die(power=False)
    rig.begin()
    assert rig.content() == {} and not rig.stopped


def test_a_mark_that_names_no_folder_ends_the_start() -> None:
    """What lies where it cannot be from us is told, and nothing is touched."""
    rig = written()
    rig.disk.execute((Replace("aside.mark", b"../\xff"),))
    before = everything(rig)
    assert start(rig) == []
    assert "aside.mark" in rig.stopped[0] and everything(rig) == before


def test_a_version_of_the_cluster_decides_the_next_file() -> None:
    """PIM-35: after an upgrade the table is written in the new format, though no row changed; who
    dies before that reads the old one.
    """
    rig = Rig()
    rig.begin()
    describe, version = rig.files.describe, "4.0"
    assert describe is not None

    def of_version(log: LogFiles, has_left: bool) -> ClusterFile:
        file = describe(log, has_left)
        members = msgspec.structs.replace(file.members, cluster_version=version)
        return msgspec.structs.replace(file, members=members)

    rig.files.describe = of_version
    rig.files.note_cluster()
    rig.carry_on()
    old = content_of(rig, CLUSTER_FILE)
    version = "4.1"
    rig.carry_on()
    assert content_of(rig, CLUSTER_FILE) == old
    assert decoded(old).members.cluster_version == "4.0"
    rig.files.note_cluster()
    rig.carry_on()
    new = content_of(rig, CLUSTER_FILE)
    assert decoded(new).members.cluster_version == "4.1"
    assert decoded(new).rows == decoded(old).rows
    assert len(new) > len(old), "each row has a version of its own"
