"""Reading a map: which task reads which partitions, and what a task does.

Partitions are grouped by owner, and each task connects straight to its owner. A partition that
moves, or whose owner dies, is read on from where it was at the next owner: cursors mean the same
at every replica, so no entry is missed or given twice. A task holds a few chunks at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, EqualTo, In, InputPartition

from whimbrel.client.bulk import BulkClient
from whimbrel.serialization.data_columns import encode_data
from whimbrel.spark.columns import arrow_schema
from whimbrel.spark.entries import KEY, PLAIN_ARROW, decoder_for
from whimbrel.spark.options import Options

BATCH_ROWS: Final = 20_000
BATCH_BYTES: Final = 4 * 1024 * 1024
"""A batch for Spark is closed when it has so many rows or about so many bytes."""
PUSHED_KEYS_MAX: Final = 1_000
"""Most keys that are looked up instead of reading the map."""
CLIENT_NAME: Final = "whimbrel-spark"


class Slice(InputPartition):  # type: ignore[misc]  # pyspark is not checked
    """What one task reads: partitions of one owner."""

    def __init__(self, partitions: tuple[int, ...], addresses: tuple[str, ...]) -> None:
        self.partitions = partitions
        self.addresses = addresses
        """Where the cluster may be reached, the owner first."""


class Reader(DataSourceReader):  # type: ignore[misc]  # pyspark is not checked
    """Reads whole maps. Travels to the tasks, so it holds plain data only."""

    def __init__(self, options: Options, schema: Any) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[Any]:
        """A slice per task, owners taking turns; asks the cluster once for its table."""
        options = self._options
        with BulkClient(
            options.addresses, options.cluster, options.timeout_s, CLIENT_NAME
        ) as client:
            places = {member.uuid: str(member.address) for member in client.members()}
            owners = client.owners()
        return slices(owners, places, options)

    def read(self, partition: Any) -> Iterator[Any]:
        """Record batches of a slice."""
        options = self._options
        with BulkClient(
            partition.addresses, options.cluster, options.timeout_s, CLIENT_NAME
        ) as client:
            decoder = decoder_for(options, self._schema, client.fetch_schema)
            for chunks in grouped(client.scan(options.map, partition.partitions)):
                yield from decoder.decode(*columns_of(chunks))


class PushingReader(Reader):
    """A reader that looks single keys up.

    A class of its own, because Spark refuses every read of a reader that takes filters unless
    ``spark.sql.python.filterPushdown.enabled`` is set (FN-24).
    """

    def __init__(self, options: Options, schema: Any) -> None:
        super().__init__(options, schema)
        self._keys: list[Any] | None = None
        """Values of the key column to look up; None for all."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Take note of the keys asked for; Spark still applies every filter itself."""
        column = self._options.key or KEY
        for found in filters:
            if getattr(found, "attribute", None) != (column,):
                continue
            if isinstance(found, EqualTo):
                self._keys = [found.value]
            elif isinstance(found, In) and len(found.value) <= PUSHED_KEYS_MAX:
                self._keys = list(found.value) if self._keys is None else self._keys
        return filters

    def partitions(self) -> list[Any]:
        """One slice for keys, or those of the whole map."""
        if self._keys is None:
            return super().partitions()
        return [Slice((), self._options.addresses)]

    def read(self, partition: Any) -> Iterator[Any]:
        """Record batches of the keys, or of a slice."""
        if self._keys is None:
            yield from super().read(partition)
            return
        options = self._options
        with BulkClient(
            partition.addresses, options.cluster, options.timeout_s, CLIENT_NAME
        ) as client:
            decoder = decoder_for(options, self._schema, client.fetch_schema)
            entries = list(client.get_all(options.map, self._key_data()).items())
            if entries:
                yield from decoder.decode(*columns_of([(-1, entries)]))

    def _key_data(self) -> list[bytes]:
        """The keys as Data; those that are null are left out, no entry has them."""
        options = self._options
        if options.key_type is not None:
            wanted = PLAIN_ARROW[options.key_type]
        else:
            wanted = arrow_schema(self._schema).field(options.key).type
        keys = [key for key in dict.fromkeys(self._keys or ()) if key is not None]
        found: list[bytes] = encode_data(pa.array(keys, wanted)).to_pylist()
        return found


Chunk = tuple[int, list[tuple[bytes, bytes]]]
"""A partition and some of its entries."""


def slices(owners: list[bytes | None], places: dict[bytes, str], options: Options) -> list[Slice]:
    """Slices of all partitions, members taking turns.

    Args:
        owners: Uuid of the owner per partition; None where nobody is known.
        places: Address per uuid.
        options: For the number of tasks and the addresses to fall back on.
    """
    by_owner: dict[str, list[int]] = {}
    for pid, owner in enumerate(owners):
        place = places.get(owner, "") if owner is not None else ""
        by_owner.setdefault(place, []).append(pid)
    known = list(dict.fromkeys([*places.values(), *options.addresses]))
    columns = []
    for place, pids in by_owner.items():
        first = [place] if place else []
        addresses = (*first, *(address for address in known if address != place))
        tasks = min(options.tasks_per_member, len(pids))
        columns.append([Slice(tuple(pids[at::tasks]), addresses) for at in range(tasks)])
    return [found for row in zip_longest(*columns) for found in row if found is not None]


def grouped(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Chunks in groups that make a batch of a good size."""
    group: list[Chunk] = []
    rows = size = 0
    for chunk in chunks:
        group.append(chunk)
        entries = chunk[1]
        rows += len(entries)
        size += sum([len(value) for _, value in entries])
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def columns_of(chunks: list[Chunk]) -> tuple[Any, Any, Any]:
    """Partitions, keys and values of some chunks as Arrow arrays."""
    counts = [len(entries) for _, entries in chunks]
    pids = np.repeat(np.array([pid for pid, _ in chunks], np.int32), counts)
    keys = [key for _, entries in chunks for key, _ in entries]
    values = [value for _, entries in chunks for _, value in entries]
    return pa.array(pids), pa.array(keys, pa.binary()), pa.array(values, pa.binary())
