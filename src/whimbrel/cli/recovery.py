"""``whimbrel recovery``: a cluster that comes back from its files, and not waiting for the rest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from whimbrel.cli.http import DEFAULT_URL, Admin, AdminUrl, AsJson, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

BAR_COLUMNS = 40

recovery = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="""A cluster that comes back from its files, and going on without waiting for all.

    Members with files wait until all members of their cluster are there (validating), load what
    they hold (loading), and serve when everybody has loaded (starting). Until then no client is
    answered.
    """,
)


@recovery.command("show")
def show(as_json: AsJson = False, admin: AdminUrl = DEFAULT_URL) -> None:
    """Show the recovery under way.

    Its phase, who is here and who is missing, and what is loaded; with --json null when nothing
    recovers.

    Examples: whimbrel recovery show; whimbrel recovery show --json --admin 127.0.0.1:8702
    """
    found: dict[str, Any] | None = Admin(admin).get("recovery")
    if as_json:
        print_json(found)
        return
    if found is None:
        sys.stdout.write("nothing recovers\n")
        return
    from whimbrel.cli.render import console

    out = console()
    for line in lines_of(found):
        out.print(line)


@recovery.command("force-start")
def force_start(as_json: AsJson = False, admin: AdminUrl = DEFAULT_URL) -> None:
    """Give up the data of the files.

    Every member sets its files aside and begins empty. Nothing is deleted: they lie under
    DATA_DIR/aside of each member. Fails, and nothing has changed, when nothing recovers.

    Example: whimbrel recovery force-start --admin 127.0.0.1:8701
    """
    _order("force-start", "every member sets its files aside and begins empty", as_json, admin)


@recovery.command("partial-start")
def partial_start(as_json: AsJson = False, admin: AdminUrl = DEFAULT_URL) -> None:
    """Go on without those who are missing.

    Who is here goes on, as persistence.recovery_policy says, and does not wait longer. Members
    that come later, and those whose table is not the chosen one, count as stale
    (persistence.auto_remove_stale_data). Fails, and everybody waits on, when somebody is missing
    and the policy is FULL_RECOVERY_ONLY, and when nothing recovers.

    Example: whimbrel recovery partial-start --admin 127.0.0.1:8701
    """
    _order("partial-start", "the cluster goes on with the members that are here", as_json, admin)


def _order(what: str, words: str, as_json: bool, admin: str) -> None:
    found: Any = Admin(admin).post(f"recovery/{what}", {})
    if as_json:
        print_json(found)
    else:
        sys.stdout.write(f"{words}; whimbrel status --wait-safe 60 waits for it\n")


def lines_of(found: dict[str, Any]) -> list[RenderableType]:
    """A recovery for people: its phase, who is missing, and how far loading is."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    from whimbrel.cli.render import safe, size

    why = f": {safe(found['reason'])}" if found["reason"] else ""
    lines: list[RenderableType] = [
        f"recovery    [bold yellow]{safe(found['phase'])}[/]{why}",
        f"here        {found['members_here']} of {found['members_expected']} members",
    ]
    if found["missing"]:
        lines.append(f"missing     {safe(', '.join(found['missing']))}")
    total, loaded = found["bytes_total"], found["bytes_loaded"]
    if total:
        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(total, min(loaded, total), width=BAR_COLUMNS)
        row.add_row("loaded     ", bar, f"{size(loaded)} of {size(total)}")
        lines.append(row)
    return lines
