"""``whimbrel status``: state and safety of the cluster, and waiting until it is safe."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.http import DEFAULT_URL, EXIT_IN_VAIN, Admin, AdminUrl, AsJson, print_json

if TYPE_CHECKING:
    from rich.console import Console

POLL_S = 0.2
WAIT_MAX_S = 1e6


def status(
    wait_safe: Annotated[
        float | None,
        typer.Option(
            "--wait-safe",
            metavar="S",
            min=0,
            max=WAIT_MAX_S,
            help="Wait up to S seconds until the cluster is safe; exit code 4 when it is not",
        ),
    ] = None,
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """State and safety of the cluster, and the migrations under way.

    Safe means: no migration is active, queued or due, and every replica that should exist does
    and is in step with its primary, so that any b members may die at once and nothing acknowledged
    is lost (b: synchronous backups of a map, as far as members and groups allow).
    """
    member = Admin(admin)
    found: dict[str, Any] = member.get("cluster")
    if wait_safe is not None:
        end_s = time.monotonic() + wait_safe
        while not found["safe"] and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left_s))
            found = member.get("cluster")
    if as_json:
        print_json(found)
    else:
        _print(found)
    if wait_safe is not None and not found["safe"]:
        raise typer.Exit(EXIT_IN_VAIN)


def _print(found: dict[str, Any]) -> None:
    from whimbrel.cli.render import console, safe

    out = console()
    word = "[bold green]safe[/]" if found["safe"] else "[bold red]not safe[/]"
    why = "" if found["safe"] else f": {safe(found['reason'])}"
    out.print(f"cluster     {safe(found.get('cluster', ''))}")
    out.print(f"state       {safe(found['state'])}")
    out.print(f"safety      {word}{why}")
    if found.get("recovery"):
        from whimbrel.cli.recovery import lines_of

        for line in lines_of(found["recovery"]):
            out.print(line)
    out.print(f"survives    {_survives(found.get('survives', 0))}")
    _print_stable(out, found.get("stable"))
    if found.get("degraded"):
        out.print(f"[bold yellow]degraded    {safe(found['degraded'])}[/]")
    if found.get("writes_short_of_backups"):
        out.print(f"short       {found['writes_short_of_backups']} changes had too few backups")
    out.print(f"members     {found['members']}")
    if found.get("missing"):
        out.print(f"missing     {safe(', '.join(found['missing']))}")
    if found.get("without_number"):
        names = ", ".join(found["without_number"])
        out.print(f"no number   {safe(names)}: others make its flake ids")
    if found["partitions_lost"]:
        _print_losses(out, found)
    protection = found.get("split_brain_protection")
    if protection:
        out.print(
            f"protection  {_protection(protection)}; "
            f"data members here: {protection['data_members']}"
        )
        for rules in protection.values():  # of each kind those that differ
            for pattern, rule in rules.items() if isinstance(rules, dict) else ():
                out.print(f"            {safe(pattern)}: {_protection(rule)}")
    if found.get("backups"):
        out.print(f"backup      {safe(_backups(found['backups']))}")
    _print_migrations(out, found["migrations"])


def _print_migrations(out: Console, moves: dict[str, int]) -> None:
    if any(moves.values()):
        out.print(
            f"migrations  {moves['completed']} of {moves['planned']} done, "
            f"{moves['active']} active, {moves['queued']} queued, {moves['failed']} failed"
        )
    else:
        out.print("migrations  none")


def _print_losses(out: Console, found: dict[str, Any]) -> None:
    from whimbrel.cli.render import safe

    out.print(f"[bold red]lost        {found['partitions_lost']} partitions lost data[/]")
    for row in found.get("losses", {}).get("structures", []):
        entries = "?" if row["entries"] is None else f"about {row['entries']}"
        out.print(
            f"            {safe(row['kind'])} {safe(row['name'])}: {entries} entries "
            f"in {row['partitions']} partitions"
        )


def _print_stable(out: Console, found: dict[str, Any] | None) -> None:
    """Which table is in use in STABLE_CLUSTER, and how far it is from the stable one."""
    if found:
        differing = found["slots_differing"]
        more = f", {differing} slots differ from the stable one" if differing else ""
        out.print(f"table       {found['in_use']}{more}")


def _backups(told: dict[str, Any]) -> str:
    """What is under way, or what came of the last one."""
    job = told["running"] or told["last"]
    if job is None:
        return "none since the master began"
    what = "backup" if job["what"] == "create" else job["what"]
    if not job["over"]:
        return f"{what} under way: {job['phase']}"
    name = job["id"] or (job["document"] or {}).get("id", "")
    return f"{what} {name} failed: {job['problem']}" if job["problem"] else f"{what} {name} done"


def _survives(failures: int) -> str:
    """How many failures the cluster bears now, in words."""
    return "no failure" if not failures else f"{failures} failure{'s' * (failures > 1)} at once"


def _protection(rule: dict[str, Any]) -> str:
    """Whether a rule of split-brain protection refuses, and what."""
    from whimbrel.cli.render import safe

    if not rule["minimum_size"]:
        return "none"
    word = "[bold red]refusing[/]" if rule["refusing"] else "serving"
    return f"{word}: {safe(rule['protects'])} needs {rule['minimum_size']}"
