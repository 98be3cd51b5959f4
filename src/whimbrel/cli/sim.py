"""``whimbrel sim``: one simulated cluster with its time line, or the same as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from whimbrel.sim.report import Report

TIMELINE_ROWS_MAX = 120
"""Rows of the time line that are shown; the middle is left out when there are more."""
_COLOURS = {
    "crash": "red",
    "silent": "red",
    "pause": "yellow",
    "resume": "green",
    "start": "green",
    "joined": "bold green",
    "leave": "cyan",
    "stopped": "cyan",
    "expelled": "magenta",
    "view": "blue",
    "master": "bold blue",
    "safe": "bold green",
}

Story = Annotated[
    str,
    typer.Option(
        "--story",
        metavar="SUBJECT",
        help="Causal threads: partition=17, member=m2, or the id of a cause",
    ),
]
Replay = Annotated[
    Path | None, typer.Option("--replay", help="Play a path that --explore has written")
]
Cuts = Annotated[bool, typer.Option("--cuts", help="Everybody dies at every write of a history")]
Kind = Annotated[
    str, typer.Option("--kind", metavar="K", help="Rebalance to sweep, or history to cut; or all")
]


def sim(
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Decides the whole history")
    ] = None,
    hours: Annotated[
        float, typer.Option("--hours", min=0.0, help="Least simulated time [default: a minute]")
    ] = 0.0,
    profile: Annotated[
        str, typer.Option("--profile", metavar="P", help="What may happen; see --profiles")
    ] = "swarm",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document")] = False,
    profiles: Annotated[bool, typer.Option("--profiles", help="List the profiles")] = False,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Cut a failing run down to a scenario")
    ] = False,
    story: Story = "",
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Rare situations met, instead of the time line")
    ] = False,
    runs: Annotated[
        int, typer.Option("--runs", min=1, help="With --coverage: seeds from --seed on")
    ] = 1,
    explored: Annotated[
        bool, typer.Option("--explore", help="All interleavings of tiny worlds, no seed")
    ] = False,
    world: Annotated[
        str, typer.Option("--world", metavar="W", help="World to explore; default, or all")
    ] = "default",
    states_max: Annotated[
        int, typer.Option("--states-max", min=1, help="End a world after so many states")
    ] = 2_000_000,
    path: Replay = None,
    swept: Annotated[
        bool, typer.Option("--sweep", help="Kill a member at every event of a rebalance")
    ] = False,
    kind: Kind = "all",
    cut: Cuts = False,
    role: Annotated[
        str, typer.Option("--role", metavar="R", help="Who is killed in the sweep; or all")
    ] = "all",
) -> None:
    """Run one simulated cluster: real members, simulated time, network and faults.

    Ends with 1 when a rule was broken; the same seed always gives the same history.
    """
    if profiles:
        _print_profiles()
        return
    if cut:
        from whimbrel.cli.sweep import cuts

        cuts(kind, as_json)
        return
    if _looks_everywhere(explored, world, states_max, path, swept, kind, role, as_json):
        return
    if seed is None:
        raise UsageError("give --seed N for one run, or --explore, --sweep or --cuts")
    from whimbrel.sim.run import simulate

    if coverage:
        _print_coverage(seed, profile, hours, runs)
        return
    report = simulate(seed, profile, hours, story=story)
    _tell(report, story, as_json)
    if report.violations and shrink:
        from whimbrel.sim.shrink import shrink_run

        sys.stdout.write(shrink_run(report).text)
    if report.violations:
        raise typer.Exit(1)


def _tell(report: Report, story: str, as_json: bool) -> None:
    """Print what was asked for of a run."""
    if story:
        _print_threads(report, story, as_json)
    elif as_json:
        sys.stdout.write(json.dumps(report.document()) + "\n")
    else:
        _print_report(report)


def _print_threads(report: Report, story: str, as_json: bool) -> None:
    """The threads of a subject; exit code 1 when there are none."""
    if as_json:
        sys.stdout.write(json.dumps({"story": story, "lines": report.threads}) + "\n")
    elif report.threads:
        sys.stdout.write("\n".join(report.threads) + "\n")
    if not report.threads:
        sys.stderr.write(f"nothing in this run is about {story}\n")
        raise typer.Exit(1)


def _print_coverage(first: int, profile: str, hours: float, runs: int) -> None:
    """Run seeds and say which rare situations came about in them."""
    from whimbrel.sim.coverage import report_lines
    from whimbrel.sim.run import simulate

    seen: dict[str, int] = {}
    broken = 0
    for seed in range(first, first + runs):
        report = simulate(seed, profile, hours)
        for name, count in report.seen.items():
            seen[name] = seen.get(name, 0) + count
        for violation in report.violations[:1]:
            broken += 1
            sys.stdout.write(f"seed {seed}: {violation.rule}: {violation.sentence}\n")
    sys.stdout.write("\n".join(report_lines(seen)) + "\n")
    if broken:
        raise typer.Exit(1)


def _looks_everywhere(
    explored: bool,
    world: str,
    states_max: int,
    path: Path | None,
    swept: bool,
    kind: str,
    role: str,
    as_json: bool,
) -> bool:
    """Run what needs no seed; False when none of it was asked for."""
    if path is not None:
        from whimbrel.cli.explore import replay

        replay(path)
    elif explored:
        from whimbrel.cli.explore import explore

        explore(world, states_max, as_json)
    elif swept:
        from whimbrel.cli.sweep import sweep

        sweep(kind, role, as_json)
    return explored or swept or path is not None


def _print_profiles() -> None:
    from whimbrel.sim.profiles import PROFILES

    for name, profile in sorted(PROFILES.items()):
        sys.stdout.write(f"{name:<8} {profile.sentence}\n")


def _print_report(report: Report) -> None:
    """Settings, time line, figures; after a failure the story and the members, too."""
    from rich.console import Console

    console = Console(highlight=False)
    settings = ", ".join(f"{name} {value}" for name, value in report.settings.items())
    console.print(f"[bold]seed {report.seed}[/], profile {report.profile}: {settings}")
    _print_timeline(report, console)
    faults = ", ".join(f"{count} {name}" for name, count in report.faults.items()) or "none"
    console.print(
        f"\n{report.simulated_s:.0f} simulated seconds, {report.events} events, "
        f"{report.operations} operations ({report.acked_writes} acknowledged writes, "
        f"{report.unknown_writes} of unknown outcome), {report.safe_points} safe points, "
        f"slowest recovery {report.slowest_recovery_s:.1f} s"
    )
    console.print(f"faults: {faults}\ntrace {report.trace_hash}")
    if not report.violations:
        console.print("[bold green]no rule was broken[/]")
        return
    _print_failure(report, console)


def _print_timeline(report: Report, console: Console) -> None:
    rows = list(report.timeline)
    if len(rows) > TIMELINE_ROWS_MAX:
        half = TIMELINE_ROWS_MAX // 2
        left_out = (0, "", f"... {len(rows) - 2 * half} rows ...", "")
        rows = [*rows[:half], left_out, *rows[-half:]]
    for time_us, who, what, detail in rows:
        colour = "bold red" if what.startswith("VIOLATION") else _COLOURS.get(what, "white")
        moment = f"{time_us / 1_000_000:9.3f}" if who else " " * 9
        console.print(f"{moment} {who:<3} [{colour}]{what}[/] {detail}", markup=True)


def _print_failure(report: Report, console: Console) -> None:
    """What broke, how to see it again, the story and the members."""
    from rich.table import Table

    from whimbrel.sim.run import versions

    for violation in report.violations:
        console.print(
            f"[bold red]{violation.rule}[/] at {violation.at_us / 1e6:.3f} s "
            f"{violation.who}: {violation.sentence}",
            soft_wrap=True,
        )
    console.print(f"\nagain: whimbrel sim --seed {report.seed} --profile {report.profile}")
    console.print(f"with: {', '.join(f'{k} {v}' for k, v in versions().items())}")
    console.print("\n[bold]the story[/]")
    for line in report.story:
        console.print(line, markup=False, soft_wrap=True)
    table = Table(
        "member", "id", "state", "list", "master", "stamp", "primaries", "replicas", "open"
    )
    for row in report.members:
        table.add_row(
            row.name,
            row.identity,
            row.state,
            str(row.list_version),
            "yes" if row.is_master else "",
            str(row.stamp),
            str(row.primaries),
            str(row.replicas),
            str(row.open_migrations),
        )
    console.print(table)
