"""``whimbrel config``: checks and explains configurations."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from whimbrel.cli.http import AsJson, print_json
from whimbrel.config import describe, explain, load

config = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Check and explain configurations.",
)


@config.command("check")
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A TOML file")],
    as_json: AsJson = False,
) -> None:
    """Tell every problem of a configuration file, with its line; exit code 2 when there is one.

    The environment is left out: the file alone is checked.
    """
    found = load(file)
    count = sum(1 for entry in found.entries if entry.source != "default")
    if as_json:
        print_json({"file": file, "problems": [], "keys_set": count})
    else:
        sys.stdout.write(f"{file}: no problems, {count} keys set\n")


@config.command("explain")
def explain_command(
    file: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A TOML file")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for start")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Every key with its value and where the value came from."""
    rows = explain(load(file, os.environ, (), settings or ()))
    if as_json:
        print_json(rows)
        return
    from whimbrel.cli.render import print_rows, safe, table

    docs = {row["key"]: row["doc"] for row in describe()}
    lines = [
        (safe(row["key"]), safe(_shown(row["value"])), safe(row["source"]), _doc(docs, row["key"]))
        for row in rows
    ]
    print_rows(table("key", "value", "source", "meaning"), lines, "no keys")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value in (None, "") else str(value)


def _doc(docs: dict[str, str], key: object) -> str:
    """The meaning of a key; keys of maps stand in the list with the word PATTERN."""
    from whimbrel.cli.render import safe

    name = str(key)
    leaf = name.rpartition(".")[2]
    return safe(docs.get(name) or docs.get(f"map.PATTERN.{leaf}", ""))
