"""``whimbrel losses``: what the cluster has lost, and that an operator has seen it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from whimbrel.cli.http import DEFAULT_URL, Admin, AdminUrl, AsJson, print_json

MS_PER_S = 1_000


def losses(
    seen: Annotated[
        bool,
        typer.Option("--seen", help="Acknowledge what is shown: it is not told any more"),
    ] = False,
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Data that are gone and that nobody has acknowledged, structure by structure.

    Every member keeps them until --seen, whatever members die meanwhile. Entries are those that
    the lost primary counted last, ? where it had not told them. What is lost after it was shown
    is never acknowledged with it: then the command fails and nothing has changed.

    Examples: whimbrel losses; whimbrel losses --seen --admin 127.0.0.1:8701
    """
    port = Admin(admin)
    found: dict[str, Any] = port.get("losses")
    if seen and found["name"]:
        port.post("losses", {"seen": found["name"]})
    if as_json:
        print_json({**found, "seen": seen})
    else:
        _print(found, seen)


def _print(found: dict[str, Any], seen: bool) -> None:
    from whimbrel.cli.render import print_rows, safe, table

    if not found["partitions"]:
        sys.stdout.write("nothing is lost\n")
        return
    rows = [
        (
            safe(row["kind"]),
            safe(row["name"]),
            str(row["partitions"]),
            "?" if row["entries"] is None else str(row["entries"]),
            _moment(row["as_of_ms"]),
        )
        for row in found["structures"]
    ]
    made = table("kind", "structure", ">partitions", ">entries, about", "counted at")
    print_rows(made, rows, "no structure is known to be concerned")
    word = "acknowledged" if seen else "whimbrel losses --seen acknowledges it"
    whole = f"{found['whole']} of them every replica"
    sys.stdout.write(f"{found['partitions']} partitions lost data, {whole}; {word}\n")


def _moment(moment_ms: int | None) -> str:
    if moment_ms is None:
        return "-"
    return datetime.fromtimestamp(moment_ms / MS_PER_S, UTC).isoformat(timespec="seconds")
