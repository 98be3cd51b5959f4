"""Writing a frame into a map: what a task does with its batches.

A task encodes whole batches, splits them by partition and streams ``putAll`` messages to the
owners, with a bounded number in flight. Putting the same row again changes nothing, so calls and
whole tasks may be repeated; there is nothing to undo after a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from whimbrel.client.bulk import BulkClient
from whimbrel.spark.columns import Encoder
from whimbrel.spark.options import Options

SPLIT_ROWS: Final = 50_000
SPLIT_BYTES: Final = 8 * 1024 * 1024
"""Batches are put together up to about so many rows or bytes before they are split, so that the
messages to the partitions do not become too small."""


class Written(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not checked
    """What a task tells when it is done."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class Writer(DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is not checked
    """Writes frames. Travels to the tasks, so it holds plain data only."""

    def __init__(self, options: Options, schema: Any) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> Written:
        """Put all rows of a Spark partition; they are acknowledged when it returns.

        Raises:
            RowError: A key is null or a value too long; rows before it may have been put.
            OperationError: A partition could not be written within the time-out.
        """
        options = self._options
        encoder = Encoder(options, self._schema)
        context = TaskContext.get()
        spark_partition = 0 if context is None else context.partitionId()
        with BulkClient(
            options.addresses, options.cluster, options.timeout_s, "whimbrel-spark"
        ) as client:
            groups = split(iterator, encoder, client, spark_partition)
            return Written(client.put_stream(options.map, groups))

    def commit(self, messages: list[Any]) -> None:
        """Nothing is left to do: rows are in the map as soon as they are acknowledged."""

    def abort(self, messages: list[Any]) -> None:
        """Rows that were put stay: a repetition of the job replaces them."""


def split(
    batches: Iterator[Any], encoder: Encoder, client: BulkClient, spark_partition: int
) -> Iterator[dict[int, list[tuple[bytes, bytes]]]]:
    """Entries of the batches by partition, in groups of bounded size."""
    row = 0
    for table in gathered(batches):
        keys, values = encoder.encode(table, row, spark_partition)
        row += table.num_rows
        yield client.by_partition(zip(keys.to_pylist(), values.to_pylist(), strict=True))


def gathered(batches: Iterator[Any]) -> Iterator[Any]:
    """Record batches put together to tables of a good size."""
    group: list[Any] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        group.append(batch)
        rows += batch.num_rows
        size += batch.get_total_buffer_size()
        if rows >= SPLIT_ROWS or size >= SPLIT_BYTES:
            yield pa.Table.from_batches(group)
            group, rows, size = [], 0, 0
    if group:
        yield pa.Table.from_batches(group)
