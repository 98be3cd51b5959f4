"""A member as an operating system process: signals, the ready line, exit status, start-up cost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self

from msgspec.structs import asdict

from whimbrel.config import Config
from whimbrel.core.effects import Note, Stopped
from whimbrel.runtime.logs import adopt_library_logs, make_logger
from whimbrel.runtime.node import EXIT_CRASHED, AdminStarter, Node

GC_THRESHOLDS = (50_000, 20, 100)
"""Records are bytes, which the collector never looks at; the default thresholds would walk
everything else far too often."""
ENDING = (signal.SIGTERM, signal.SIGINT)
FILES_WANTED = 65_536
"""Open files asked of the system: connections, and the loop's own."""


def announce(node: Node) -> None:
    """Print the ready line."""
    _print_member_line(node, "ready")


def announce_recovery(node: Node) -> None:
    """Print the line of a member that has found files and waits for its cluster to recover."""
    _print_member_line(node, "recovering")


def _print_member_line(node: Node, event: str) -> None:
    line: dict[str, object] = {
        "event": event,
        "uuid": node.member_id,
        "port": node.ports.data_port,
        "admin": node.ports.admin_port,
        "address": str(node.address),
        "cluster": node.cluster_name,
    }
    _print_line(node, line)


def _print_line(node: Node, line: dict[str, object]) -> None:
    """One JSON line on stdout; nobody may read it."""
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except (OSError, ValueError):
        node.note(Note("warning", f"{line['event']}_line_unread", {}))
        _forget_stdout()


def run_member(
    config: Config, admin: AdminStarter | None, on_ready: Callable[[Node], None] = announce
) -> int:
    """Run one member in the foreground until it has left or was stopped.

    By default prints one JSON line when the member serves and has its replicas, and one before
    that when it has found files from which its cluster is to recover. The first SIGTERM or SIGINT
    hands over all data and leaves, a second one stops at once.

    Args:
        config: The configuration.
        admin: Starts the admin server; it is called at once, and again when it failed.
        on_ready: Called once, when the member serves and has its replicas, or has waited for
            them for ``member.ready_wait_s``.

    Returns:
        The exit status: 0 after a graceful leave, 70 after a broken invariant, else 1.

    Raises:
        ConfigError: A port or the data directory cannot be used; nothing was printed.
        DataDirectoryError: What lies in the data directory cannot; nothing was printed.
    """
    _raise_file_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        status = runner.run(_run(config, admin, on_ready))
        if status == EXIT_CRASHED:
            # no clean-up by code that may be what broke; everything has been said
            sys.stderr.flush()
            os._exit(EXIT_CRASHED)
        return status


async def _run(config: Config, admin: AdminStarter | None, on_ready: Callable[[Node], None]) -> int:
    logger = make_logger(config.runtime)
    adopt_library_logs(logger)

    def ready(node: Node) -> None:
        on_ready(node)
        node.loop.call_soon(_settle)

    node = Node(config, admin=admin, logger=logger, on_ready=ready, on_recovering=announce_recovery)
    with _Signals(node) as signals:
        await node.start()
        signals.started()
        try:
            stopped: Stopped = await node.stopped
            if node.crash_report:
                _write_report(node)
                return EXIT_CRASHED
            gone = [asdict(one) for one in stopped.discarded]
            if gone:
                _print_line(node, {"event": "discarded", "structures": gone})
            return stopped.exit_status
        finally:
            await node.close()


class _Signals:
    """The first signal leaves, the second one stops at once, later ones change nothing."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._names: list[str] = []
        self._has_started = False

    def __enter__(self) -> Self:
        """Listen to signals, before there is a port that somebody could take for a member."""
        self._loop = asyncio.get_running_loop()
        for number in ENDING:
            self._loop.add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(self, *_: object) -> None:
        """The exit status is decided: one more signal must not change it."""
        for number in ENDING:
            self._loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    def started(self) -> None:
        """The node can be told now."""
        self._has_started = True
        if self._names:
            self._leave()

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        self._names.append(name)
        if not self._has_started:
            return
        if len(self._names) == 1:
            self._leave()
        else:
            self._node.stop_now(f"second signal ({name}): stopped without handing over data")

    def _leave(self) -> None:
        cause = self._node.new_cause()
        self._node.note(Note("info", "leaving", {"signal": self._names[0]}, cause=cause))
        self._node.leave(cause)


def _settle() -> None:
    """Put everything made so far out of the collector's sight."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _forget_stdout() -> None:
    """Nobody reads it: keep the interpreter from complaining at its end."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _write_report(node: Node) -> None:
    """Leave a readable account of what broke, in the data directory or the temporary one."""
    folder = node.settings.data_dir or tempfile.gettempdir()
    path = Path(folder) / f"whimbrel-crash-{node.ports.data_port}-{os.getpid()}.txt"
    last = "\n".join(json.dumps(event, default=str) for event in list(node.events)[-100:])
    try:
        path.write_text(f"{node.crash_report}\nlast events\n{last}\n", encoding="utf-8")
        where = str(path)
    except OSError as problem:
        where = f"not written: {problem.strerror}"
    node.logger.critical("crashed", report=where, text=node.crash_report)


def _raise_file_limit() -> None:
    """Use as many open files as the system allows this process."""
    with contextlib.suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster loop where it is installed; None is the standard one."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
