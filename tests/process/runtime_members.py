"""Real member processes for the tests of the shell: started, signalled, read, ended by pid."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("member_script.py")
WHOLE = ("-m", "whimbrel")
PATIENCE_S = 20.0


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on at the moment."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


class MemberProcess:
    """One ``whimbrel start``."""

    def __init__(
        self, folder: Path, *arguments: str, is_whole: bool = False, **environment: str
    ) -> None:
        """Start it; ``is_whole`` with the real admin server, else with one that only lives."""
        self.log = folder / f"member-{len(list(folder.iterdir()))}.log"
        paths = [str(ROOT / "src"), str(ROOT)]
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, *(WHOLE if is_whole else [str(SCRIPT)]), "start", *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
            )

    def ready(self) -> dict[str, Any]:
        """Wait for the first line on stdout."""
        if self.process.stdout is None:
            raise AssertionError("stdout is not read")
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"no ready line:\n{self.log.read_text()[-4000:]}")
        event: dict[str, Any] = json.loads(line)
        return event

    def rest(self) -> bytes:
        """What else it printed, once it has ended."""
        if self.process.stdout is None:
            raise AssertionError("stdout is not read")
        with self.process.stdout as stdout:
            return stdout.read()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit status."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs:\n{self.log.read_text()[-4000:]}") from None

    def notes(self) -> list[dict[str, Any]]:
        """Its log so far."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def destroy(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, bounded."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain: {what}")
        time.sleep(0.02)
