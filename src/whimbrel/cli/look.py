"""Commands that look: members, partitions, structures, migrations, events."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.http import DEFAULT_URL, Admin, AdminUrl, AsJson, print_json
from whimbrel.errors import OperationError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
MAP_COLUMNS = 64
FOLLOW_S = 0.25

Json = dict[str, Any]


def members(as_json: AsJson = False, admin: AdminUrl = DEFAULT_URL) -> None:
    """The member list as the asked member has it, oldest first; the oldest is the master."""
    found: list[Json] = Admin(admin).get("members")
    if as_json:
        print_json(found)
        return
    from whimbrel.cli.render import print_rows, safe, table

    rows = [
        (
            safe(row["address"]),
            safe(row["uuid"]),
            "master" if row["master"] else "",
            "lite" if row["lite"] else "data",
            safe(row["version"]),
            safe(row.get("admin_port") or "-"),
        )
        for row in found
    ]
    made = table("address", "uuid", "", "kind", "version", ">admin port")
    print_rows(made, rows, "no members")


def partitions(
    rows: Annotated[bool, typer.Option("--rows", help="Show every partition's row")] = False,
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Who holds which partition, as the asked member knows it."""
    member = Admin(admin)
    found: Json = member.get("partitions")
    if as_json:
        print_json(found)
        return
    names = {row["uuid"]: row["address"] for row in member.get("members")}
    if rows:
        _print_table_rows(found, names)
    else:
        _print_table_map(found, names)


def _print_table_rows(found: Json, names: dict[str, str]) -> None:
    from whimbrel.cli.render import print_rows, safe, table

    lines = [
        (
            str(pid),
            str(row["version"]),
            *(safe(names.get(holder, holder) or "-") for holder in _padded(row["replicas"])),
        )
        for pid, row in enumerate(found["rows"])
    ]
    depth = max((len(line) for line in lines), default=2) - 2
    lines = [line + ("-",) * (depth + 2 - len(line)) for line in lines]
    columns = [">partition", ">version", "primary", *(f"backup {n}" for n in range(1, depth))]
    print_rows(table(*columns), lines, "no partitions")


def _padded(replicas: Sequence[str | None]) -> list[str]:
    return [holder or "" for holder in replicas]


def _print_table_map(found: Json, names: dict[str, str]) -> None:
    """Counts by member, then one letter a partition: whose it is."""
    from whimbrel.cli.render import console, safe, table

    held: dict[str, list[int]] = {member: [0, 0] for member in names}
    for row in found["rows"]:
        for index, holder in enumerate(row["replicas"]):
            if holder is not None:
                held.setdefault(holder, [0, 0])[index > 0] += 1
    letters = {
        member: LETTERS[place] if place < len(LETTERS) else "?" for place, member in enumerate(held)
    }
    out = console()
    made = table("", "address", "uuid", ">primaries", ">backups")
    for member, (primaries, backups) in held.items():
        address = safe(names.get(member, "not on the list"))
        made.add_row(letters[member], address, safe(member), str(primaries), str(backups))
    out.print(made)
    owners = [row["replicas"][0] if row["replicas"] else None for row in found["rows"]]
    text = "".join(letters[owner] if owner is not None else "." for owner in owners)
    out.print(f"primaries of {found['count']} partitions (. has none), table {found['stamp']}")
    for start in range(0, len(text), MAP_COLUMNS):
        out.print(f"{start:>6}  {text[start : start + MAP_COLUMNS]}")


def structures(as_json: AsJson = False, admin: AdminUrl = DEFAULT_URL) -> None:
    """Structures with their entries, backups and bytes, over the whole cluster.

    On disk: whether they are persistent, and come back after all members have died. Survives: how
    many members (or groups) may die at once now without a loss.
    """
    found: list[Json] = Admin(admin).get("structures")
    if as_json:
        print_json(found)
        return
    from whimbrel.cli.render import number, print_rows, safe, size, table

    rows = [
        (
            safe(row["name"]),
            safe(row["kind"]),
            number(row["entries"]),
            str(row["backups"]),
            size(row.get("bytes", 0)),
            "yes" if row.get("persistent") else "no",
            "" if row.get("survives") is None else str(row["survives"]),
        )
        for row in found
    ]
    made = table("name", "kind", ">entries", ">backups", ">size", "on disk", ">survives")
    print_rows(made, rows, "no structures")


def migrations(
    follow: Annotated[
        bool, typer.Option("--follow", help="Show progress until the cluster is safe")
    ] = False,
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """The migration process under way and the finished ones, oldest first."""
    if follow and as_json:
        raise UsageError("--follow draws for people; without it --json prints one document")
    member = Admin(admin)
    if follow:
        _follow(member)
        return
    found: Json = member.get("migrations")
    if as_json:
        print_json(found)
        return
    from whimbrel.cli.render import console

    console().print(_history(found))


def _history(found: Json) -> RenderableType:
    """All processes as a table, the one under way last."""
    from whimbrel.cli.render import safe, seconds, size, table

    processes = [*found["history"], *([found["current"]] if found["current"] else [])]
    if not processes:
        return "nothing has been migrated since the present master took over"
    made = table(
        ">id", "reason", ">done", ">failed", ">copies", ">promotions", ">size", ">took", ">left"
    )
    for process in processes:
        is_current = process is found["current"]
        made.add_row(
            str(process["id"]),
            safe(process["reason"]),
            f"{process['completed']}/{process['planned']}",
            str(process["failed"]),
            str(process["copies"]),
            str(process["promotions"]),
            size(process["bytes"]),
            seconds(process["elapsed_s"]),
            seconds(process["eta_s"]) if is_current else "",
            style="bold yellow" if is_current else None,
        )
    return made


def _follow(member: Admin) -> None:
    """Draw the process under way until nothing is due any more."""
    from rich.console import Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar

    from whimbrel.cli.render import console, safe, seconds, size

    out = console()
    with Live(console=out, auto_refresh=False, transient=False) as live:
        while True:
            status: Json = member.get("cluster")
            found: Json = member.get("migrations")
            current: Json | None = found["current"]
            if status["safe"] and current is None:
                live.update(Group(_history(found), "[bold green]safe[/]"), refresh=True)
                return
            parts: list[RenderableType] = [f"not safe: {safe(status['reason'])}"]
            if current is not None:
                bar = ProgressBar(max(1, current["planned"]), current["completed"], width=60)
                parts = [
                    f"[bold]{safe(current['reason'])}[/]: {current['completed']} of "
                    f"{current['planned']}, {size(current['bytes'])}, "
                    f"{seconds(current['elapsed_s'])} so far, {seconds(current['eta_s'])} left",
                    bar,
                ]
            live.update(Group(*parts), refresh=True)
            time.sleep(FOLLOW_S)


def events(
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1_000, help="The newest so many, for people")
    ] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print what happens from now on, until Ctrl-C")
    ] = False,
    story: Annotated[
        str, typer.Option("--story", metavar="ID", help="Only what follows from this cause")
    ] = "",
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """What happened lately on the members that answer, oldest first.

    With --follow: migrations, lost partitions, members and states as they happen, one a line.
    With --story: all of one cause, as its id stands in log lines and in the last column.
    """
    member = Admin(admin)
    if follow:
        if story:
            raise UsageError("--follow prints what is to come, --story what has been")
        _follow_events(member, as_json)
        return
    found: list[Json] = member.get("events", cause=story) if story else member.get("events")
    if story and not found:
        raise OperationError(f"no member that answers has kept anything with the cause {story}")
    if as_json:
        print_json(found)
        return
    from whimbrel.cli.render import print_rows, safe, table

    names = {row["uuid"]: row["address"] for row in member.get("members")}
    rows = [
        (
            safe(event["at"]),
            safe(names.get(event.get("member", ""), event.get("member", ""))),
            safe(event.get("level", "")),
            safe(event["kind"]),
            safe(_details(event)),
            *([] if story else [safe(event.get("cause", ""))]),
        )
        for event in (found if story else found[-limit:])
    ]
    columns = ("at", "member", "level", "kind", "details", *([] if story else ["cause"]))
    print_rows(table(*columns), rows, "no events")


def _follow_events(member: Admin, as_json: bool) -> None:
    """Print the stream; a reader that was too slow for it fails."""
    for event in member.follow("events/stream"):
        text = json.dumps(event) if as_json else f"{event['kind']} {_details(event)}"
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        if event["kind"] == "lost":
            raise OperationError(f"too slow: {event['events']} events were missed")


def _details(event: Json) -> str:
    shown = ("at", "kind", "level", "member", "cause")
    return " ".join(f"{name}={value}" for name, value in event.items() if name not in shown)
