"""Finds the command, loads its module alone, turns errors into exit codes.

Exit codes: 0 done, 1 the operation failed, 2 wrong usage or configuration, 3 cluster unreachable,
4 waited in vain. What went wrong is on stderr; a traceback only with ``WHIMBREL_DEBUG`` set.

A command's module is named in ``COMMANDS``. It has an attribute called like the command (``-``
written ``_``): a function with Typer annotations, or a ``typer.Typer`` with sub-commands. So
``whimbrel start`` never pays for what ``whimbrel demo`` imports. It ends with another exit code
than 0 by raising ``typer.Exit(code)`` or one of our errors.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from whimbrel.errors import ConfigError, GridError, UsageError

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
DEBUG_VARIABLE = "WHIMBREL_DEBUG"
HELP_FLAGS = ("--help", "-h", "help")


class Command(NamedTuple):
    """One line of the table of commands."""

    name: str
    module: str
    """Module below ``whimbrel.cli``."""
    help: str


COMMANDS: tuple[Command, ...] = (
    Command("start", "start", "Run one member in the foreground"),
    Command("dev", "dev", "Run a local cluster until Ctrl-C"),
    Command("demo", "demo", "Spark and a cluster that changes meanwhile: nothing is lost"),
    Command("status", "status", "State and safety of the cluster"),
    Command("members", "look", "The member list"),
    Command("partitions", "look", "The partition table"),
    Command("structures", "look", "Maps and what is in them"),
    Command("migrations", "look", "Migrations under way and past ones"),
    Command("events", "look", "What happened lately"),
    Command("losses", "losses", "Data that are gone, until they are acknowledged"),
    Command("plan", "plan", "What a join, leave or crash would move"),
    Command("state", "state", "Read or set the cluster state"),
    Command("promote", "role", "Make a lite member a data member"),
    Command("demote", "role", "Make a data member a lite member"),
    Command("files", "files", "What a data directory holds, and what in it is damaged"),
    Command("recovery", "recovery", "A cluster that comes back from its files: look, or go on"),
    Command("shutdown", "shutdown", "Make a member leave gracefully"),
    Command("upgrade", "upgrade", "Raise the version of the cluster"),
    Command("repair", "act", "Compare and mend backups now"),
    Command("balance", "act", "Plan again now"),
    Command("backup", "backup", "Backups of the running cluster: make, check, delete, schedule"),
    Command("restore", "backup", "Bring back what a backup has, into the running cluster"),
    Command("reshard", "pipeline", "Copy maps to a cluster of another partition count"),
    Command("audit", "audit", "Compare the copies of every entry, and mend them"),
    Command("config", "config", "Check and explain configurations"),
    Command("sim", "sim", "One simulated cluster with its time line"),
    Command("bench", "bench", "Run a benchmark"),
)
"""In the order of the help; a command whose module is not installed is left out."""


def entry() -> None:
    """The program ``whimbrel``."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command line.

    Args:
        arguments: What follows the program's name.

    Returns:
        The exit code; nothing is raised.
    """
    try:
        return _flushed(_dispatch(list(arguments)))
    except SystemExit as end:
        return _flushed(_code_of(end))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return EXIT_FAILED
    except ConfigError as problem:
        return _say(problem.problems, EXIT_USAGE)
    except UsageError as problem:
        return _say([str(problem)], EXIT_USAGE)
    except GridError as problem:
        return _say([str(problem)], EXIT_FAILED)
    except Exception as problem:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        text = f"internal error: {type(problem).__name__}: {problem}"
        return _say([text, f"(set {DEBUG_VARIABLE}=1 to see where)"], EXIT_FAILED)


def available() -> list[Command]:
    """The commands whose modules are there."""
    found: dict[str, bool] = {}
    for command in COMMANDS:
        if command.module not in found:
            spec = importlib.util.find_spec(f"whimbrel.cli.{command.module}")
            found[command.module] = spec is not None
    return [command for command in COMMANDS if found[command.module]]


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in HELP_FLAGS:
        _print(_help_text())
        return EXIT_DONE if arguments else EXIT_USAGE
    name, rest = arguments[0], arguments[1:]
    if name == "--version":
        _print(f"whimbrel {_version()}")
        return EXIT_DONE
    for command in COMMANDS:
        if command.name == name and command in available():
            return _run_typer(command, rest)
    known = [command.name for command in available()]
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    word = "option" if name.startswith("-") else "command"
    raise UsageError(f"there is no {word} {name!r}{hint} (see whimbrel --help)")


def _run_typer(command: Command, arguments: list[str]) -> int:
    """Load one command and run it; it ends with SystemExit, wrong usage with exit code 2."""
    import typer

    module = importlib.import_module(f"whimbrel.cli.{command.module}")
    found: Any = getattr(module, command.name.replace("-", "_"))
    app = found if isinstance(found, typer.Typer) else _wrapped(command, found)
    typer.main.get_command(app)(args=arguments, prog_name=f"whimbrel {command.name}")
    return EXIT_DONE


def _wrapped(command: Command, function: Callable[..., Any]) -> Any:
    """A Typer application of one command."""
    import typer

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name=command.name, help=function.__doc__ or command.help)(function)
    return app


def _help_text() -> str:
    lines = [
        "Usage: whimbrel COMMAND [ARGUMENTS]...",
        "",
        "An elastic in-memory data grid that official Hazelcast clients can use.",
        "",
        "Commands:",
        *(f"  {command.name:<12} {command.help}" for command in available()),
        "",
        "whimbrel COMMAND --help explains a command; whimbrel --version tells the version.",
        "Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 cluster unreachable,",
        "4 waited in vain.",
    ]
    return "\n".join(lines)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("whimbrel")
    except metadata.PackageNotFoundError:
        return "0 (not installed)"


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def _say(lines: Sequence[str], code: int) -> int:
    """Tell what went wrong on stderr."""
    try:
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
    except (OSError, ValueError):
        _forget_output()
    return code


def _code_of(end: SystemExit) -> int:
    if isinstance(end.code, str):
        return _say([end.code], EXIT_FAILED)
    return EXIT_DONE if end.code is None else int(end.code)


def _flushed(code: int) -> int:
    """Flush now, while a closed pipe can still be handled without a word."""
    try:
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        _forget_output()
    return code


def _forget_output() -> None:
    """Point stdout nowhere, so that the interpreter's own flush at the end stays silent."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        return
