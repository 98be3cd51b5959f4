"""``whimbrel shutdown``: makes a member, or all of them, leave gracefully."""

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
        bool, typer.Option("--cluster", help="All members at once, instead of one")
    ] = False,
    discard: Annotated[
        bool,
        typer.Option("--discard", help="Data may be lost: no data member stays to take them over"),
    ] = False,
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Make a member hand over its data and leave, as on SIGTERM.

    Returns when the member is on its way out, which it then tries until it can leave; with
    --wait when it is off the list of the others. The last data member, and the whole cluster,
    take their data with them: while there are entries this is refused without --discard.

    With persistence they leave what is persistent on their disks, and only entries of other
    structures need --discard, for the last data member; --cluster is never refused then.

    Examples: whimbrel shutdown 127.0.0.1:5702 --wait 60; whimbrel shutdown --cluster --discard
    """
    if cluster and member is not None:
        raise UsageError("say one member, or --cluster for all of them, not both")
    if member is None and not cluster:
        raise UsageError("say which member: a uuid or host:port (see whimbrel members)")
    port = Admin(admin)
    watchers = _watchers(port) if wait is not None else []
    order: dict[str, object] = {"cluster": True} if cluster else {"member": member}
    found: dict[str, Any] = port.post("shutdown", {**order, "discard": True} if discard else order)
    has_left = wait is not None and _await_left(watchers, found.get("member", ""), wait)
    if as_json:
        print_json({**found, "left": has_left})
    else:
        who = f"member {found['address']} ({found['member']})" if member else "the whole cluster"
        sys.stdout.write(f"{who} {'has left' if has_left else 'is leaving'}\n")
        for row in found.get("discarded", []):
            sys.stdout.write(f"discarded: {row['kind']} {row['name']}, {row['entries']} entries\n")
    if wait is not None and not has_left:
        raise typer.Exit(EXIT_IN_VAIN)


def _watchers(port: Admin) -> list[tuple[str, Admin]]:
    """Every member with its admin port, because the one that is asked may be the one to leave."""
    from whimbrel.config import parse_address
    from whimbrel.core.ids import Address

    found: list[tuple[str, Admin]] = []
    for row in port.get("members"):
        if row.get("admin_port"):
            place = Address(parse_address(row["address"]).host, row["admin_port"])
            admin = Admin(str(place), is_quiet=True)
            found.append((row["uuid"], admin))
    return found or [("", port)]


def _await_left(watchers: list[tuple[str, Admin]], member: str, wait_s: float) -> bool:
    """Whether the member is off the list of the others within so many seconds.

    The last member of a cluster has left when its admin port is closed; so have all of them, for
    which ``member`` is "".
    """
    others = [port for uuid, port in watchers if uuid != member] if member else []
    end_s = time.monotonic() + wait_s
    while True:
        asked = others or [port for _, port in watchers]
        lists = [found for port in asked if (found := _list_of(port))]
        are_off = all(row["uuid"] != member for found in lists for row in found)
        if (are_off and (lists or not others)) if member else not lists:
            return True
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(POLL_S, left_s))


def _list_of(port: Admin) -> list[dict[str, Any]]:
    """The list of a member; empty when it does not answer."""
    try:
        found: list[dict[str, Any]] = port.get("members")
    except typer.Exit:
        return []
    return found
