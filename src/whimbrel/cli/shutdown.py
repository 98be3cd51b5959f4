"""``whimbrel shutdown``: makes a member leave gracefully."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from whimbrel.cli.http import DEFAULT_URL, EXIT_IN_VAIN, Admin, AdminUrl, AsJson, print_json
from whimbrel.errors import UsageError

POLL_S = 0.2


def shutdown(
    member: Annotated[
        str | None, typer.Argument(metavar="MEMBER", help="A uuid or host:port")
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", metavar="S", min=0, help="Wait up to S seconds until it has left; else 4"
        ),
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="All members at once; not offered yet")
    ] = False,
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Make a member hand over its data and leave, as on SIGTERM.

    Returns when the member is on its way out, which it then tries until it can leave; with
    --wait when it is off the list. The member that is asked must not be the one that leaves
    for --wait to see the end.
    """
    if cluster:
        raise UsageError(
            "shutdown --cluster is not offered; stop members one by one, or send SIGTERM to all"
        )
    if member is None:
        raise UsageError("say which member: a uuid or host:port (see whimbrel members)")
    port = Admin(admin)
    found: dict[str, Any] = port.post("shutdown", {"member": member})
    has_left = wait is not None and _await_left(port, found["member"], wait)
    if as_json:
        print_json({**found, "left": has_left})
    else:
        word = "has left" if has_left else "is leaving"
        sys.stdout.write(f"member {found['address']} ({found['member']}) {word}\n")
    if wait is not None and not has_left:
        raise typer.Exit(EXIT_IN_VAIN)


def _await_left(port: Admin, member: str, wait_s: float) -> bool:
    """Whether the member is off the list within so many seconds."""
    end_s = time.monotonic() + wait_s
    while True:
        if all(row["uuid"] != member for row in port.get("members")):
            return True
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(POLL_S, left_s))
