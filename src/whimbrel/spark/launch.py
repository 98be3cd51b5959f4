"""A Spark session that works on a bare machine.

Finds Java, makes workers use this Python, keeps everything on the loopback interface, and sets
what the connector likes: Arrow batches of a good size, pushdown of filters, no console, no noise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from whimbrel.spark.java import ensure_java

LOOPBACK: Final = "127.0.0.1"
MASTER_DEFAULT: Final = "local[2]"
DEFAULTS: Final = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "8388608",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings of a session, each of which may be given another value."""


def session(
    master: str = MASTER_DEFAULT,
    app: str = "whimbrel",
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Any:
    """A Spark session, or the one that runs already.

    Args:
        master: Spark's master.
        app: Name of the application.
        settings: Settings of Spark that go before ``DEFAULTS``.
        log: File for what the JVM and the workers print; their stderr is ours when None.

    Raises:
        JavaError: There is no Java that Spark can use.
    """
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app).master(master)
    for name, value in {**DEFAULTS, **(settings or {})}.items():
        builder = builder.config(name, value)
    with _stderr_to(log):
        return builder.getOrCreate()


@contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Let processes that are started meanwhile print their stderr into a file."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
