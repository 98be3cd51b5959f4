"""``whimbrel state``: what the cluster may do now, and changing it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from whimbrel.cli.http import DEFAULT_URL, Admin, AdminUrl, AsJson, print_json
from whimbrel.core.model import ClusterState
from whimbrel.errors import UsageError

CHOICES = tuple(item.value for item in ClusterState if item is not ClusterState.IN_TRANSITION)

state = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="""Read or set the cluster state.

    ACTIVE allows everything. NO_MIGRATION lets members in and promotes backups, but moves and
    copies nothing. FROZEN admits nobody and keeps every seat, also of members that are missing.
    PASSIVE is FROZEN with reads only. STABLE_CLUSTER, entered from ACTIVE, lets members return
    that have left since, and gives them back the very replicas that they had; nobody else may come.
    """,
)


@state.command("get")
def get(as_json: AsJson = False, admin: AdminUrl = DEFAULT_URL) -> None:
    """Print the cluster state.

    Example: whimbrel state get --admin 127.0.0.1:8701
    """
    found: dict[str, Any] = Admin(admin).get("cluster")
    if as_json:
        print_json({"state": found["state"]})
    else:
        sys.stdout.write(f"{found['state']}\n")


@state.command("set")
def set_(
    wanted: Annotated[str, typer.Argument(metavar="STATE", help=", ".join(CHOICES))],
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Change the cluster state; returns when every member is in the new one.

    Refused, and nothing has changed, while migrations are active or queued: wait with
    whimbrel status --wait-safe 60, then ask again. The state that the cluster is in already
    is fine.

    Example: whimbrel state set FROZEN
    """
    name = wanted.upper().replace("-", "_")
    if name not in CHOICES:
        raise UsageError(f"there is no cluster state {wanted!r}; it is one of {', '.join(CHOICES)}")
    found: dict[str, Any] = Admin(admin).post("state", {"state": name})
    if as_json:
        print_json(found)
    else:
        sys.stdout.write(f"the cluster is {found['state']}\n")
