"""``whimbrel dev``: a local cluster of child processes until Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.http import AsJson
from whimbrel.config import load
from whimbrel.errors import GridError, UsageError

if TYPE_CHECKING:
    from whimbrel.testing.cluster import LocalCluster

DATA_DIR = "member.data_dir"
LOOK_S = 0.5
STOP_TIMEOUT_S = 60.0


def dev(
    members: Annotated[
        int, typer.Option("--members", min=1, max=20, help="Members to start with")
    ] = 3,
    name: Annotated[str, typer.Option("--cluster-name", metavar="NAME")] = "dev",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="As for start; for every member"),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Keeps the data of all members, in DIR/1, DIR/2, ..., for the next start",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="S", min=0, help="Stop by itself after S seconds"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a local cluster of member processes until Ctrl-C, then let all members leave.

    Data ports count upward from 5701 where they are free, admin ports are 3000 above. With
    --data-dir the cluster has its data again at the next start, and at least as many members.
    """
    given = dict(text.partition("=")[::2] for text in settings or ())
    if DATA_DIR in given:
        raise UsageError(f"{DATA_DIR} cannot be the same for all members: give --data-dir DIR")
    # wrong settings are told before anything starts
    load(None, {}, (), [*(settings or ()), *([f"{DATA_DIR}={data_dir}"] if data_dir else [])])
    from whimbrel.testing.cluster import LocalCluster

    cluster = LocalCluster(members, name, given, None, count_ports=True, data_dir=data_dir)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        cluster.start()
        _tell(cluster, as_json)
        _watch(cluster, seconds, as_json)
    except KeyboardInterrupt:
        pass
    finally:
        _stop(cluster)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _tell(cluster: LocalCluster, as_json: bool) -> None:
    rows = [
        {
            "address": member.address,
            "admin": member.admin_url,
            "uuid": member.uuid,
            "pid": member.process.pid,
        }
        for member in cluster.members
    ]
    if as_json:
        _line({"event": "ready", "cluster": cluster.name, "members": rows})
        return
    from whimbrel.cli.render import console, safe, table

    made = table("member", "admin", "uuid", ">pid", title=f"cluster {safe(cluster.name)}")
    for row in rows:
        made.add_row(*(safe(value) for value in row.values()))
    out = console()
    out.print(made)
    out.print(f"look at it:  whimbrel status --admin {rows[0]['admin']}")
    out.print(f"logs:        {safe(cluster.folder)}")
    out.print("Ctrl-C ends it")


def _watch(cluster: LocalCluster, seconds: float | None, as_json: bool) -> None:
    """Tell which members end, until there is none or the time is over."""
    end_s = None if seconds is None else time.monotonic() + seconds
    told: dict[int, None] = {}
    while cluster.running() and (end_s is None or time.monotonic() < end_s):
        for member in cluster.members:
            if not member.is_running and member.index not in told:
                told[member.index] = None
                status = member.exit_status
                if as_json:
                    _line({"event": "ended", "uuid": member.uuid, "exit_status": status})
                else:
                    sys.stdout.write(f"member {member.address} ended with {status}\n")
                    sys.stdout.flush()
        time.sleep(LOOK_S if end_s is None else min(LOOK_S, max(0.0, end_s - time.monotonic())))


def _stop(cluster: LocalCluster) -> None:
    try:
        cluster.stop(STOP_TIMEOUT_S)
    except (GridError, KeyboardInterrupt) as problem:
        sys.stderr.write(f"{str(problem) or 'interrupted'}: ending the members at once\n")
    finally:
        cluster.close()


def _line(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
