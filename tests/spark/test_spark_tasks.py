"""What Spark tasks do, without Spark: slices, batches, and a member that dies under a scan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st
from pyspark.sql.datasource import EqualTo, GreaterThan, In

from whimbrel.client.bulk import BulkClient
from whimbrel.serialization.data_columns import encode_data
from whimbrel.spark import reader as reading
from whimbrel.spark import writer as writing
from whimbrel.spark.columns import arrow_schema
from whimbrel.spark.options import Options
from whimbrel.testing import LocalCluster, local_cluster

SCHEMA = st.StructType(
    [st.StructField("id", st.LongType()), st.StructField("word", st.StringType())]
)
ROWS = 4_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(2, settings={"map.default.backup_count": 1}) as found:
        found.wait_until_safe()
        yield found


def options(cluster: LocalCluster, name: str, **more: Any) -> Options:
    return Options(tuple(cluster.addresses()), name, cluster.name, key="id", **more)


def frame(first: int, count: int) -> Any:
    arrow = arrow_schema(SCHEMA)
    ids = pa.array(range(first, first + count), pa.int64())
    words = pa.array([f"word {number}" for number in range(first, first + count)])
    return pa.RecordBatch.from_arrays([ids, words], schema=arrow)


def fill(cluster: LocalCluster, name: str, count: int = ROWS) -> Options:
    found = options(cluster, name)
    batches = iter([frame(start, 500) for start in range(0, count, 500)])
    assert writing.Writer(found, SCHEMA).write(batches).rows == count
    return found


def ids_of(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch.column("id").to_pylist()]


def test_slices_cover_each_partition_once() -> None:
    """Goal: every partition is in one slice, owners take turns, the owner's address comes first,
    and partitions without a known owner are read, too.
    """
    owners = [b"a", b"b", b"a", None, b"a", b"b", b"gone"]
    places = {b"a": "h:1", b"b": "h:2"}
    found = reading.slices(owners, places, Options(("h:9",), "m", tasks_per_member=2))
    assert sorted(pid for part in found for pid in part.partitions) == list(range(7))
    assert [part.addresses[0] for part in found[:3]] == ["h:1", "h:2", "h:1"]
    assert all(part.addresses[-1] == "h:9" for part in found)


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: batches for Spark close at a number of rows or bytes, nothing is left behind."""
    monkeypatch.setattr(reading, "BATCH_ROWS", 4)
    monkeypatch.setattr(reading, "BATCH_BYTES", 1_000)
    chunks = [(0, [(b"k", b"v")] * 3), (1, [(b"k", b"v")] * 3), (2, [(b"k", b"v" * 2_000)])]
    assert [len(group) for group in reading.grouped([*chunks, *chunks[:1]])] == [2, 1, 1]
    pids, keys, values = reading.columns_of(chunks)
    assert pids.to_pylist() == [0] * 3 + [1] * 3 + [2]
    assert len(keys) == len(values) == 7
    monkeypatch.setattr(writing, "SPLIT_ROWS", 700)
    tables = list(writing.gathered(iter([frame(0, 500), frame(500, 500), frame(0, 0)])))
    assert [table.num_rows for table in tables] == [1_000]


def test_what_was_written_is_read_by_all_slices(cluster: LocalCluster) -> None:
    """Goal: the tasks of a read give every row exactly once, each from its owner."""
    found = fill(cluster, "tasks")
    reader = reading.Reader(found, SCHEMA)
    parts = reader.partitions()
    assert len(parts) == 4
    read = [row for part in parts for row in ids_of(reader.read(part))]
    assert sorted(read) == list(range(ROWS))


def test_keys_are_looked_up(cluster: LocalCluster) -> None:
    """Goal: with pushdown, filters on the key become look-ups; others leave the read whole; Spark
    gets every filter back.
    """
    found = fill(cluster, "pushed")
    for filters, wanted in (
        ([EqualTo(("id",), 7), GreaterThan(("word",), "a")], [7]),
        ([In(("id",), (3, 5, None, 10**9))], [3, 5]),
    ):
        reader = reading.PushingReader(found, SCHEMA)
        assert list(reader.pushFilters(filters)) == filters
        (part,) = reader.partitions()
        assert sorted(ids_of(reader.read(part))) == wanted
    reader = reading.PushingReader(found, SCHEMA)
    reader.pushFilters([EqualTo(("word",), "x")])
    assert len(reader.partitions()) == 4
    assert ids_of(reader.read(reader.partitions()[0]))


def test_a_scan_survives_the_death_of_its_owner() -> None:
    """Goal: the owner of a slice is killed after the first rows have come; the slice goes on at
    the backups and misses and doubles nothing. Method: small chunks, so that most of the slice
    is unread at that moment.
    """
    with local_cluster(3, settings={"map.default.backup_count": 1}) as cluster:
        cluster.wait_until_safe()
        found = fill(cluster, "dying")
        with BulkClient(cluster.addresses(), cluster.name) as client:
            victim = cluster.members[1]
            uuids = {member.uuid: str(member.address) for member in client.members()}
            owned = [
                pid
                for pid, owner in enumerate(client.owners())
                if owner is not None and uuids[owner] == victim.address
            ]
            data = encode_data(pa.array(range(ROWS), pa.int64())).to_pylist()
            pids = client.partitions_of(data)
            wanted = [number for number, pid in enumerate(pids) if pid in owned]
        part = reading.Slice(tuple(owned), (victim.address, cluster.members[0].address))
        with BulkClient(part.addresses, cluster.name, 30.0) as client:
            read: list[bytes] = []
            for _, entries in client.scan(found.map, part.partitions, batch=5):
                if not read:
                    cluster.kill(1)
                read += [key for key, _ in entries]
        numbers = sorted(int.from_bytes(key[8:], "big") for key in read)
        assert numbers == wanted


def test_a_task_reads_on_when_its_owner_is_gone_already() -> None:
    """Goal: a slice whose owner died before the task began is read from the others."""
    with local_cluster(2, settings={"map.default.backup_count": 1}) as cluster:
        cluster.wait_until_safe()
        reader = reading.Reader(fill(cluster, "gone"), SCHEMA)
        parts = reader.partitions()
        cluster.kill(0)
        read = [row for part in parts for row in ids_of(reader.read(part))]
        assert sorted(read) == list(range(ROWS))
