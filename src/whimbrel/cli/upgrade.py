"""``whimbrel upgrade``: raises the version of the cluster."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from whimbrel.cli.http import DEFAULT_URL, Admin, AdminUrl, AsJson, print_json


def upgrade(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The new version: 4.1")],
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Raise the cluster version, for good, under load.

    Refused while migrations run or a member has another table; then nothing has changed. There
    is no way back to a lower version.
    """
    found: dict[str, Any] = Admin(admin).post("upgrade", {"version": version})
    if as_json:
        print_json(found)
    else:
        sys.stdout.write(f"the cluster has version {found['cluster_version']}\n")
