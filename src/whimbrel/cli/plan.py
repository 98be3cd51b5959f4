"""``whimbrel plan``: what a join, a leave or a crash would move; nothing is changed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from whimbrel.cli.http import DEFAULT_URL, Admin, AdminUrl, AsJson, print_json
from whimbrel.errors import UsageError


def plan(
    join: Annotated[
        int | None, typer.Option("--join", metavar="N", min=1, max=1_000, help="N members join")
    ] = None,
    leave: Annotated[
        list[str] | None,
        typer.Option("--leave", metavar="MEMBER", help="A member leaves; may be repeated"),
    ] = None,
    crash: Annotated[
        list[str] | None,
        typer.Option("--crash", metavar="MEMBER", help="A member dies; may be repeated"),
    ] = None,
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Dry run: what members that join, leave or crash would make the cluster move.

    A MEMBER is a uuid or host:port. Several at once are one change.
    """
    if join is None and not leave and not crash:
        raise UsageError("say what to plan: --join N, --leave MEMBER or --crash MEMBER")
    query: dict[str, object] = {"leave": leave or [], "crash": crash or []}
    if join is not None:
        query["join"] = join
    found: dict[str, Any] = Admin(admin).get("plan", **query)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    from whimbrel.cli.render import console, safe, seconds, size, table

    out = console()
    figures = table("", "")
    figures.show_header = False
    for name, value in (
        ("copies", f"{found['copies']} (no plan can do with less than "
         f"{found['lower_bound_copies']})"),
        ("bytes to send", size(found["bytes"])),
        ("promotions", str(found["promotions"])),
        ("role changes", str(found["role_changes"])),
        ("partitions lost", str(found.get("partitions_lost", 0))),
        ("estimated time", seconds(found.get("estimate_s"))),
    ):  # fmt: skip
        figures.add_row(name, value)
    out.print(figures)
    shares = table("member", ">primaries", ">replicas", ">copies to receive")
    for row in found.get("shares", ()):
        shares.add_row(
            safe(row["address"] or row["member"]),
            f"{row['primaries_before']} \N{RIGHTWARDS ARROW} {row['primaries_after']}",
            f"{row['replicas_before']} \N{RIGHTWARDS ARROW} {row['replicas_after']}",
            str(row["copies_received"]),
        )
    out.print(shares)
