"""``whimbrel backup`` and ``whimbrel restore``: backups of the running cluster, and back again."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from whimbrel.cli.http import DEFAULT_URL, Admin, AdminUrl, AsJson, print_json
from whimbrel.cli.jobs import Json, await_job
from whimbrel.core.backups.manifest import check_id
from whimbrel.core.backups.moments import Cron
from whimbrel.errors import OperationError, UsageError

PATIENCE_S = 30.0
"""How long a job is asked for while nobody who knows it answers."""

Place = Annotated[
    Path | None,
    typer.Option("--from", metavar="DIR", help="Where backups lie; else DATA_DIR/backups of each"),
]
BackupId = Annotated[str, typer.Argument(metavar="ID", help="As whimbrel backup list shows it")]

backup = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="""Backups of a running cluster with persistence.

    A backup has the state of each partition at one moment; writes go on meanwhile. By default
    every member puts its part into DATA_DIR/backups of its own; with --to all put theirs into one
    directory that each of them can write. Closed files are linked where that is possible, so a
    backup on the same file system takes next to no time and room.
    """,
)
schedule = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make full backups at set times, in the default place, and keep the last ones.",
)
backup.add_typer(schedule, name="schedule")


@backup.command("create")
def create(
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="A directory that every member can write"),
    ] = None,
    incremental: Annotated[
        bool,
        typer.Option("--incremental", help="Only what the youngest complete one there has not"),
    ] = False,
    name: Annotated[str, typer.Option("--id", metavar="ID", help="Its name; else the time")] = "",
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Make a backup; returns when it is whole.

    Waits up to a minute until no migration is under way. Fails, and leaves nothing that could be
    restored, when a member leaves meanwhile, the id is used, or a directory cannot be written.

    Examples: whimbrel backup create; whimbrel backup create --to /mnt/backups --incremental
    """
    order = {"what": "create", "place": _text(to), "id": _id(name), "incremental": incremental}
    found = _done(Admin(admin), order, "backup", as_json=as_json)
    if as_json:
        print_json(found)
        return
    from whimbrel.cli.render import number, seconds, size

    base = f", builds on {found['incremental_of']}" if found["incremental_of"] else ""
    sys.stdout.write(
        f"backup {found['id']}: {number(found['entries'])} entries, {size(found['bytes'])} of "
        f"{found['members']} members in {seconds(found['elapsed_s'])}{base}\n"
    )


@backup.command("list")
def list_(place: Place = None, as_json: AsJson = False, admin: AdminUrl = DEFAULT_URL) -> None:
    """List backups, oldest first; one that was interrupted is not complete.

    Example: whimbrel backup list --from /mnt/backups
    """
    rows: list[Json] = Admin(admin).get("backups", **{"from": _text(place)})
    if as_json:
        print_json(rows)
        return
    from whimbrel.cli.render import number, print_rows, safe, size, table

    lines = [
        (
            safe(row["id"]),
            safe(row["at"] or "-"),
            number(row["entries"]),
            size(row["bytes"]),
            "complete" if row["complete"] else "[red]not complete[/]",
            safe(row["incremental_of"] or ""),
        )
        for row in rows
    ]
    made = table("backup", "at", ">entries", ">size", "", "builds on")
    print_rows(made, lines, "there are no backups")


@backup.command("verify")
def verify(
    name: BackupId, place: Place = None, as_json: AsJson = False, admin: AdminUrl = DEFAULT_URL
) -> None:
    """Read a backup, and what it builds on, to the end; 1 and the file's name when it is damaged.

    Example: whimbrel backup verify 20260102-030405 --from /mnt/backups
    """
    order = {"what": "verify", "place": _text(place), "id": _id(name)}
    found = _done(Admin(admin), order, "verify", as_json=as_json)
    if as_json:
        print_json(found)
    else:
        sys.stdout.write(f"backup {found['id']} is whole: {found['entries']} entries\n")


@backup.command("delete")
def delete(
    name: BackupId, place: Place = None, as_json: AsJson = False, admin: AdminUrl = DEFAULT_URL
) -> None:
    """Delete a backup; refused while a later increment needs it, which is named.

    Example: whimbrel backup delete 20260102-030405
    """
    order = {"what": "delete", "place": _text(place), "id": _id(name)}
    found = _done(Admin(admin), order, "delete", as_json=as_json)
    if as_json:
        print_json(found)
    else:
        sys.stdout.write(f"backup {found['id']} is deleted\n")


def restore(
    place: Place = None,
    name: Annotated[
        str, typer.Option("--id", metavar="ID", help="Which; else the youngest complete one")
    ] = "",
    at: Annotated[
        str,
        typer.Option("--at", metavar="ISO8601", help="A moment between two backups of a chain"),
    ] = "",
    pattern: Annotated[
        str, typer.Option("--map", metavar="PATTERN", help="Only maps of such names: * and ?")
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Give up what is in the structures that it has")
    ] = False,
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Bring back what a backup has, into the running cluster, whatever its members and partitions.

    All that is to be read is read and checked before anything changes. Structures that have
    entries are left alone, and nothing is restored, unless --replace says that they may go. A
    moment without a zone is local time. Without --from every member looks into DATA_DIR/backups.

    Examples: whimbrel restore --from /mnt/backups; whimbrel restore --from /mnt/backups
    --at 2026-01-02T03:04:05+00:00 --map 'flights*' --replace
    """
    order: Json = {
        "what": "restore",
        "place": _text(place),
        "id": _id(name),
        "at_ms": _moment_ms(at) if at else None,
        "pattern": f"map/{pattern}" if pattern else "",
        "replace": replace,
    }
    found = _done(Admin(admin), order, "restore", as_json=as_json)
    if as_json:
        print_json(found)
        return
    from whimbrel.cli.render import number, seconds

    sys.stdout.write(
        f"restored {number(found['entries'])} entries of {found['structures']} structures from "
        f"backup {found['id']} in {seconds(found['elapsed_s'])}\n"
    )


@schedule.command("show")
def show(as_json: AsJson = False, admin: AdminUrl = DEFAULT_URL) -> None:
    """Show the schedule.

    Example: whimbrel backup schedule show
    """
    _print_schedule(Admin(admin).get("backups/schedule"), as_json=as_json)


@schedule.command("set")
def set_(
    cron: Annotated[
        str,
        typer.Argument(
            metavar="CRON", help="minute, hour, day of month, month, day of week; in UTC"
        ),
    ],
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=1, help="So many of them stay")],
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Make a full backup at these times, in DATA_DIR/backups of each member, and keep the last N.

    A time at which another backup or restore is under way is skipped, and told. Only backups that
    the schedule has made are deleted by it.

    Example: whimbrel backup schedule set "0 3 * * *" --keep 7
    """
    Cron(cron)
    order: Json = {"cron": cron, "keep": keep}
    _print_schedule(Admin(admin).post("backups/schedule", order), as_json=as_json)


@schedule.command("off")
def off(as_json: AsJson = False, admin: AdminUrl = DEFAULT_URL) -> None:
    """Make no backups but those that are asked for; those that are there stay.

    Example: whimbrel backup schedule off
    """
    _print_schedule(Admin(admin).post("backups/schedule", {}), as_json=as_json)


def _print_schedule(found: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    elif found["cron"] is None:
        sys.stdout.write("no backups are scheduled\n")
    else:
        sys.stdout.write(f"backups at {found['cron']} (UTC); {found['keep']} are kept\n")


# -- jobs -----------------------------------------------------------------------------------


def _done(port: Admin, order: Json, words: str, *, as_json: bool) -> Json:
    """Give an order, and wait until it is carried out.

    Raises:
        OperationError: It was refused, or failed; or nobody knows any more.
    """
    job = port.post("backups", order)["job"]
    found = await_job(
        port,
        "backups/job",
        job,
        lambda told: f"{words}: {told['phase']}",
        patience_s=PATIENCE_S,
        words=words,
        is_watched=not as_json,
    )
    if found["problem"]:
        raise OperationError(f"{words} failed: {found['problem']}")
    document: Json = found["document"]
    return document


def _text(place: Path | None) -> str:
    return "" if place is None else str(place.absolute())


def _id(text: str) -> str:
    return check_id(text) if text else ""


def _moment_ms(text: str) -> int:
    """A moment in ms since 1970.

    Raises:
        UsageError: It is none.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no moment such as 2026-01-02T03:04:05+00:00") from None
    return int(found.astimezone(UTC).timestamp() * 1000)
