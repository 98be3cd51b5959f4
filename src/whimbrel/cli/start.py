"""``whimbrel start``: one member in the foreground."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.config.keys import PORT_MAX
from whimbrel.config.loader import Flag, load

if TYPE_CHECKING:
    from whimbrel.runtime.node import Node


def start(
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="TOML file to start from")
    ] = None,
    cluster_name: Annotated[
        str | None, typer.Option("--cluster-name", metavar="NAME", help="Name of the cluster")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on [default: 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=PORT_MAX,
            help="Data port [default: the first free one from 5701 up]",
        ),
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option("--join", metavar="H:P,...", help="Where other members may be"),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option("--admin-port", min=0, max=PORT_MAX, help="Default: data port + 3000"),
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Keeps the identity over restarts, and the data with persistence.enabled=true",
        ),
    ] = None,
    lite: Annotated[bool, typer.Option("--lite", help="Hold no data")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key, strongest; may be repeated"),
    ] = None,
) -> None:
    """Run one member in the foreground.

    Prints one JSON line with event "ready" when it serves; logs go to stderr. SIGTERM or Ctrl-C
    hands over all data and leaves; a second one stops at once. A member that finds the files of
    its cluster prints "recovering" first, and is ready when the cluster is whole again.
    """
    given: list[tuple[str, str, Any]] = [
        ("--cluster-name", "cluster.name", cluster_name),
        ("--host", "network.host", host),
        ("--port", "network.port", port),
        ("--join", "network.join", ",".join(join) if join else None),
        ("--admin-port", "admin.port", admin_port),
        ("--data-dir", "member.data_dir", data_dir),
        ("--lite", "member.lite", True if lite else None),
    ]
    loaded = load(config, os.environ, _flags(given), settings or ())

    from whimbrel.runtime.process import run_member  # after the checks: refusals stay quick

    raise typer.Exit(run_member(loaded, start_admin))


def _flags(given: list[tuple[str, str, Any]]) -> list[Flag]:
    return [Flag(key, value, shown) for shown, key, value in given if value is not None]


async def start_admin(node: Node) -> Callable[[], Awaitable[None]]:
    """Start the admin server on the port that is already open.

    It is imported in a thread, so that the member goes on joining and serving meanwhile.
    """
    import importlib

    module = await node.loop.run_in_executor(None, importlib.import_module, "whimbrel.admin.server")
    server = await module.start(node, node.settings.host, node.ports.admin_port)
    stop: Callable[[], Awaitable[None]] = server.stop
    return stop
