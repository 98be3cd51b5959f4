"""Rows per second that Spark writes into and reads from three members, all on this machine.

Prints one JSON document: for each round the rate in and out, for rows of a bigint key and a text
of 100 characters. Every read counts rows and characters, so a wrong scan cannot look fast.

    python benchmarks/spark_rows.py [ROWS]
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import whimbrel
from whimbrel.spark import session

ROWS = 500_000
TEXT_LENGTH = 100
ROUNDS = 3


def main() -> int:
    """Measure; exit status 1 when a read did not see every row."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    found: list[dict[str, Any]] = []
    with whimbrel.local_cluster(members=3) as cluster:
        spark = session()
        text = f"concat(lpad(cast(id as string), 10, '0'), repeat('x', {TEXT_LENGTH - 10})) as text"
        frame = spark.range(rows).selectExpr("id", text).cache()
        frame.count()
        where = {"address": ",".join(cluster.addresses()), "cluster": cluster.name, "key": "id"}
        for _ in range(ROUNDS):
            options = {**where, "map": "rows"}
            begin_s = time.perf_counter()
            frame.write.format("whimbrel").options(**options).mode("append").save()
            in_s = time.perf_counter() - begin_s
            begin_s = time.perf_counter()
            back = spark.read.format("whimbrel").options(**options).schema("id bigint, text string")
            seen = back.load().selectExpr("count(*) as n", "sum(length(text)) as c").collect()[0]
            out_s = time.perf_counter() - begin_s
            if (seen.n, seen.c) != (rows, rows * TEXT_LENGTH):
                print(f"read {seen.n} rows of {seen.c} characters", file=sys.stderr)
                return 1
            found.append({"in_rows_s": round(rows / in_s), "out_rows_s": round(rows / out_s)})
        spark.stop()
    print(json.dumps({"rows": rows, "text_length": TEXT_LENGTH, "rounds": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
