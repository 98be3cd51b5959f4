"""The plot of the demonstration, from the first member to the verdict.

Three members start while Spark does; a probe client begins. Spark loads the tables; a fourth
member joins meanwhile. Then the master is killed, and later another member leaves. Spark reads
everything back, compares and asks a question. Whatever happens, no process is left behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from whimbrel.demo.cluster import Change, Director, ProbeProcess
from whimbrel.demo.data import AIRLINES, FLIGHTS, TABLES, Table, path_of, write_tables
from whimbrel.demo.later import Later, Worker, begin
from whimbrel.demo.narrate import Narrator
from whimbrel.demo.report import quantile, stall_between, write_report
from whimbrel.demo.verify import Comparison, compare
from whimbrel.errors import OperationError
from whimbrel.testing import LocalCluster

CLUSTER: Final = "whimbrel-demo"
MEMBERS: Final = 3
SLICES: Final = 4
"""Writes in which the flights are loaded; the last one waits until the fourth member is in, so
that the join falls into the load for certain."""
JOIN_START_S: Final = 60.0
"""Longest wait for that."""
CALM_S: Final = 4.0
"""Pause before a member is killed or leaves, so that the probe's latency in calm times is seen
beside what the change does to it."""
PROBE_START_S: Final = 30.0
LATE_MIN: Final = 15
"""From this delay on, a flight counts as late in the query."""
SPARK_END_S: Final = 20.0
"""Longest time Spark may take to stop."""


class Load(msgspec.Struct):
    """How the load went."""

    rows: int
    """Rows of all tables."""
    seconds: float
    """From the first write to the last acknowledgement, Spark's warming up included."""
    flights_rows_per_s: float
    """Rows of the flights by the time of their writes alone."""
    joined_meanwhile: bool
    """Whether the fourth member was in before the load ended."""


class Demo:
    """One run."""

    def __init__(self, rows: int, out: Path, narrator: Narrator) -> None:
        self._rows = rows
        self._out = out
        self._tell = narrator
        self._began_s = time.monotonic()
        self._worker = Worker()
        """Everything about Spark happens in its thread."""
        self._spark: Any = None
        self._counts: dict[str, int] = {}

    def run(self) -> dict[str, Any]:
        """Play everything and write the report; the document.

        Raises:
            GridError: A member, the probe or Spark failed.
        """
        logs = self._out / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        cluster = LocalCluster(MEMBERS, CLUSTER, {"map.default.backup_count": 1}, logs)
        with ExitStack() as stack:
            stack.enter_context(self._tell)
            stack.callback(cluster.close)
            self._begin(cluster, logs)
            probe = stack.enter_context(ProbeProcess(cluster.name, cluster.addresses()))
            probe.await_start(PROBE_START_S)
            director = Director(cluster)
            load = self._load_and_join(cluster, director)
            self._kill_and_leave(director)
            tables = self._worker.do(lambda: self._verify(cluster))
            query = self._worker.do(lambda: self._query(cluster))
            self._tell.title("The probe checks its ledger")
            ledger = probe.finish()
            # Only in the end: after Ctrl-C a job may run that nobody wants to wait for.
            self._end_spark()
        return self._finish(load, director.changes, tables, query, ledger)

    # -- acts -----------------------------------------------------------------------------

    def _begin(self, cluster: LocalCluster, logs: Path) -> None:
        """Members, Spark and the tables, at the same time."""
        self._tell.title("Three members, a probe client and Spark start")
        spark = self._worker.begin(lambda: _start_spark(logs / "spark.log"))
        tables = begin(lambda: write_tables(self._out / "tables", self._rows))
        cluster.start()
        names = ", ".join(member.address for member in cluster.running())
        self._tell.say(f"three members serve, every partition has one backup: {names}")
        self._counts = tables.outcome()
        self._tell.say(f"tables: {', '.join(f'{n} {c:,}' for n, c in self._counts.items())} rows")
        self._spark = spark.outcome()
        self._tell.say(f"Spark {self._spark.version} is there")

    def _load_and_join(self, cluster: LocalCluster, director: Director) -> Load:
        self._tell.title("Spark loads; a fourth member joins meanwhile")
        addresses = cluster.addresses()
        bar = self._tell.bar("load flights", self._counts[FLIGHTS.name], "rows")
        began_s = time.monotonic()
        small = self._worker.begin(lambda: self._write_small(addresses))
        load = self._worker.begin(lambda: self._write_flights(addresses, bar.to, director))
        small.outcome()
        join: Later[Change] = begin(director.join)
        writing_s = load.outcome()
        bar.finish()
        change = join.outcome()
        seconds = load.ended_s - began_s
        rows = sum(self._counts.values())
        pace = self._counts[FLIGHTS.name] / max(writing_s, 0.001)
        found = Load(rows, round(seconds, 3), round(pace, 1), change.done_s < load.ended_s)
        self._tell.say(f"{rows:,} rows in {seconds:.1f} s; flights at {pace:,.0f} rows/s")
        self._tell.change(_change_document(change, self._began_s))
        return found

    def _kill_and_leave(self, director: Director) -> None:
        time.sleep(CALM_S)
        self._tell.title("The master is killed (SIGKILL)")
        self._tell.change(_change_document(director.kill(0), self._began_s))
        time.sleep(CALM_S)
        self._tell.title("Another member leaves (SIGTERM)")
        self._tell.change(_change_document(director.leave(2), self._began_s))

    def _verify(self, cluster: LocalCluster) -> list[Comparison]:
        self._tell.title("Spark reads everything back and compares")
        results = []
        for table in TABLES:
            count = self._counts[table.name]
            bar = self._tell.bar(f"compare {table.name}", count, "rows")
            source = self._source(table)
            found = compare(
                table.name, table.key, count, source, self._read(cluster.addresses(), table)
            )
            bar.to(found.same)
            results.append(found)
            if not found.is_good:
                self._tell.say(
                    f"{table.name}: {found.missing} missing, {found.different} different, "
                    f"{found.extra} extra",
                    "red",
                )
                for kind, examples in found.examples.items():
                    for example in examples:
                        self._tell.say(f"{kind}: {example}", "red")
        return results

    def _query(self, cluster: LocalCluster) -> list[dict[str, Any]]:
        """Arrival delay by carrier, joined with the airlines, asked of the maps."""
        from pyspark.sql import functions as fn

        flights = self._read(cluster.addresses(), FLIGHTS)
        airlines = self._read(cluster.addresses(), AIRLINES)
        late = fn.when(fn.col("arr_delay") > LATE_MIN, 100.0).otherwise(0.0)
        found = (
            flights.where("arr_delay is not null")
            .groupBy("carrier")
            .agg(
                fn.count("*").alias("flights"),
                fn.round(fn.avg("arr_delay"), 1).alias("mean_delay_min"),
                fn.round(fn.avg(late), 1).alias("late_percent"),
            )
            .join(airlines, "carrier")
            .orderBy(fn.desc("mean_delay_min"), "carrier")
        )
        names = ["carrier", "name", "flights", "mean_delay_min", "late_percent"]
        rows = [row.asDict() for row in found.select(*names).collect()]
        self._tell.table("Arrival delay by carrier", names, [list(row.values()) for row in rows])
        return rows

    # -- Spark ----------------------------------------------------------------------------

    def _options(self, addresses: Sequence[str], table: Table) -> dict[str, str]:
        return {
            "address": ",".join(addresses),
            "cluster": CLUSTER,
            "map": table.name,
            "key": table.key,
        }

    def _source(self, table: Table) -> Any:
        return self._spark.read.parquet(str(path_of(self._out / "tables", table)))

    def _read(self, addresses: Sequence[str], table: Table) -> Any:
        options = self._options(addresses, table)
        reader = self._spark.read.format("whimbrel").schema(table.columns)
        return reader.options(**options).load()

    def _write(self, addresses: Sequence[str], table: Table, condition: str | None) -> None:
        frame = self._source(table)
        if condition is not None:
            frame = frame.where(condition)
        options = self._options(addresses, table)
        frame.write.format("whimbrel").options(**options).mode("append").save()

    def _write_small(self, addresses: Sequence[str]) -> None:
        """Write all tables but the flights."""
        for table in TABLES:
            if table is not FLIGHTS:
                self._write(addresses, table, None)

    def _write_flights(
        self, addresses: Sequence[str], progress: Callable[[int], None], director: Director
    ) -> float:
        """Write the flights, slice by slice; seconds that the writes took."""
        count = self._counts[FLIGHTS.name]
        step = -(-count // SLICES)
        writing_s = 0.0
        for start in range(0, count, step):
            if start + step >= count:
                director.has_joined.wait(JOIN_START_S)
            condition = f"{FLIGHTS.key} >= {start} and {FLIGHTS.key} < {start + step}"
            began_s = time.monotonic()
            self._write(addresses, FLIGHTS, condition)
            writing_s += time.monotonic() - began_s
            progress(start + step)
        return writing_s

    def _end_spark(self) -> None:
        """Stop Spark; where that does not succeed, it ends together with us."""
        with suppress(OperationError):
            self._worker.begin(self._spark.stop).outcome(SPARK_END_S)

    # -- the end --------------------------------------------------------------------------

    def _finish(
        self,
        load: Load,
        changes: Sequence[Change],
        tables: Sequence[Comparison],
        query: list[dict[str, Any]],
        ledger: dict[str, Any],
    ) -> dict[str, Any]:
        """Put the report together, write it, say the verdict."""
        calls = [(begin, took) for begin, took, _ in ledger["samples"]]
        for change in changes:
            change.longest_stall_s = stall_between(calls, change.at_s, change.safe_s)
        flights = next(found for found in tables if found.table == FLIGHTS.name)
        took = sorted(duration for _, duration in calls)
        report = {
            "rows_loaded": self._counts[FLIGHTS.name],
            "rows_verified": flights.same,
            "rows_missing": sum(found.missing for found in tables),
            "rows_different": sum(found.different for found in tables),
            "rows_extra": sum(found.extra for found in tables),
            "acknowledged_writes": ledger["acknowledged"],
            "lost_writes": ledger["lost"],
            "spark_version": str(self._spark.version),
            "partitions_read": flights.partitions_read,
            "events": [_change_document(change, self._began_s) for change in changes],
            "tables": [msgspec.to_builtins(found) for found in tables],
            "load": msgspec.to_builtins(load),
            "probe": {
                "unknown": ledger["unknown"],
                "wrong_reads": ledger["wrong_reads"],
                "failed_reads": ledger["failed_reads"],
                "first_lost": ledger["first_lost"],
                "errors": ledger["errors"],
                "median_ms": round(quantile(took, 0.5) * 1000, 3),
                "p99_ms": round(quantile(took, 0.99) * 1000, 3),
                "longest_ms": round(quantile(took, 1.0) * 1000, 3),
            },
            "query": query,
            "seconds": round(time.monotonic() - self._began_s, 1),
        }
        report["verdict"] = verdict(report)
        calls_here = [(begin - self._began_s, duration) for begin, duration in calls]
        write_report(self._out, report, calls_here)
        self._tell.verdict(report["verdict"]["good"], report["verdict"]["text"])
        return report


def verdict(report: dict[str, Any]) -> dict[str, Any]:
    """Whether everything is as it must be, and a sentence that says so."""
    wrong = [
        f"{report[name]:,} {words}"
        for name, words in (
            ("rows_missing", "rows are missing"),
            ("rows_different", "rows are different"),
            ("rows_extra", "rows are extra"),
            ("lost_writes", "acknowledged writes of the probe are lost"),
        )
        if report[name]
    ]
    if report["rows_verified"] != report["rows_loaded"]:
        wrong.append(f"{report['rows_verified']:,} of {report['rows_loaded']:,} flights are equal")
    if report["probe"]["wrong_reads"]:
        wrong.append(f"{report['probe']['wrong_reads']:,} reads of the probe were stale")
    if wrong:
        return {"good": False, "text": f"Something is wrong: {'; '.join(wrong)}."}
    return {
        "good": True,
        "text": (
            f"Nothing is missing, nothing is different: {report['rows_verified']:,} flights read "
            f"back equal, {report['acknowledged_writes']:,} acknowledged writes all there, while "
            "one member joined, one was killed and one left."
        ),
    }


def _start_spark(log: Path) -> Any:
    try:
        from whimbrel.spark import session
    except ImportError as problem:
        raise OperationError(f"{problem}: pip install 'whimbrel[spark]'") from problem
    return session(app="whimbrel demo", log=log)


def _change_document(change: Change, began_s: float) -> dict[str, Any]:
    """A change as it stands in the report; times count from the start of the demonstration."""
    return {
        "kind": change.kind,
        "member": change.member,
        "at_s": round(change.at_s - began_s, 3),
        "time_to_safe_s": round(change.time_to_safe_s, 3),
        "copies": change.copies,
        "least_copies": change.least_copies,
        "promotions": change.promotions,
        "longest_stall_s": round(change.longest_stall_s, 4),
        "exit_status": change.exit_status,
    }
