"""``whimbrel promote`` and ``whimbrel demote``: a member changes between lite and data."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from whimbrel.cli.http import DEFAULT_URL, EXIT_IN_VAIN, Admin, AdminUrl, AsJson, print_json

POLL_S = 0.2
WAIT_S = 60.0

MemberName = Annotated[str, typer.Argument(metavar="MEMBER", help="A uuid or host:port")]
Wait = Annotated[
    float, typer.Option("--wait", metavar="S", min=0, help="Wait up to S seconds; else exit 4")
]


def promote(
    member: MemberName,
    wait: Wait = WAIT_S,
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Make a lite member a data member; its share of the partitions then moves to it.

    Refused when it holds data already, or when the cluster state forbids migrations.
    """
    _change("promote", member, wait, as_json, admin)


def demote(
    member: MemberName,
    wait: Wait = WAIT_S,
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Make a data member lite, once the others hold all it held.

    Refused when no data member would be left, or when the cluster state forbids migrations.
    """
    _change("demote", member, wait, as_json, admin)


def _change(order: str, member: str, wait_s: float, as_json: bool, admin: str) -> None:
    """Give the order, then ask for its outcome until there is one."""
    port = Admin(admin)
    end_s = time.monotonic() + wait_s
    found: dict[str, Any] = port.post(order, {"member": member})
    while not found["done"] and (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(POLL_S, left_s))
        found = port.post(order, {"member": found["member"], "number": found["number"]})
    if as_json:
        print_json(found)
    else:
        kind = "lite" if found["lite"] else "data"
        word = f"is a {kind} member now" if found["done"] else f"is becoming a {kind} member"
        sys.stdout.write(f"member {found['address']} ({found['member']}) {word}\n")
    if not found["done"]:
        raise typer.Exit(EXIT_IN_VAIN)
