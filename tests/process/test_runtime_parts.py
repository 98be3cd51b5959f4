"""The parts of a real member's shell one by one: ports, identity, timers, logs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from whimbrel.config import RuntimeSettings
from whimbrel.core.effects import ArmTimer, Note
from whimbrel.errors import ConfigError
from whimbrel.runtime import timers as timers_module
from whimbrel.runtime.clock import now_us, wall_ms
from whimbrel.runtime.identity import open_identity
from whimbrel.runtime.logs import adopt_library_logs, log_note, make_logger
from whimbrel.runtime.sockets import open_ports
from whimbrel.runtime.timers import Timers


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def test_a_port_asked_for_is_taken_or_refused(taken: int) -> None:
    """Goal: an explicit port is never silently changed; nothing stays open after a refusal."""
    with pytest.raises(ConfigError, match=f"data port {taken} is in use"):
        open_ports(RuntimeSettings(port=taken, admin_port=0))
    ports = open_ports(RuntimeSettings(port=0, admin_port=0))
    data = ports.data_port
    ports.close()
    for settings in (
        RuntimeSettings(port=data, admin_port=taken),
        RuntimeSettings(admin_port=taken),
    ):
        with pytest.raises(ConfigError, match=f"admin port {taken} is in use"):
            open_ports(settings)
    again = open_ports(RuntimeSettings(port=data, admin_port=0))
    assert again.data_port == data
    again.close()


def test_default_ports_count_upward() -> None:
    """Goal: without a port each member takes the next pair that is free, 3000 apart."""
    first = open_ports(RuntimeSettings())
    second = open_ports(RuntimeSettings())
    alone = open_ports(RuntimeSettings(), with_admin=False)
    assert 5701 <= first.data_port < second.data_port < alone.data_port
    assert first.admin_port - first.data_port == second.admin_port - second.data_port == 3000
    assert alone.admin is None
    assert alone.admin_port == 0
    for ports in (first, second, alone):
        ports.close()


@pytest.mark.parametrize(
    ("host", "words"),
    [("203.0.113.7", "no address of this machine"), ("no.such.host.invalid", "unknown")],
)
def test_hosts_that_cannot_be_bound(host: str, words: str) -> None:
    """Goal: the sentence says what to mend."""
    with pytest.raises(ConfigError, match=words):
        open_ports(RuntimeSettings(host=host, port=0))


def test_identity_is_kept_locked_and_renewed(tmp_path: Path) -> None:
    """Goal: one directory is one identity, used by one process; without it each start is new."""
    folder = str(tmp_path / "a" / "b")
    first = open_identity(folder, "dev")
    with pytest.raises(ConfigError, match=f"in use by another member .process {os.getpid()}"):
        open_identity(folder, "dev")
    kept = first.member
    first.release()
    second = open_identity(folder, "dev")
    assert second.member == kept
    renewed = second.renew()
    second.release()
    assert renewed != kept
    third = open_identity(folder, "dev")
    assert third.member == renewed
    third.release()
    with pytest.raises(ConfigError, match="belongs to cluster 'dev', not to 'other'"):
        open_identity(folder, "other")
    assert open_identity("", "dev").member != open_identity("", "dev").member


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "damaged"),
        ("{}", "damaged"),
        ('{"format": 1, "uuid": "me", "cluster": "dev"}', "damaged"),
        ('{"format": 9, "uuid": "%s", "cluster": "dev"}' % ("0" * 32), "format 9"),
    ],
)
def test_damaged_identity_is_refused_and_left_alone(tmp_path: Path, text: str, words: str) -> None:
    """Goal: what cannot be read is never rewritten, and the lock is given back."""
    (tmp_path / "member.json").write_text(text)
    for _ in range(2):
        with pytest.raises(ConfigError, match=words):
            open_identity(str(tmp_path), "dev")
    assert (tmp_path / "member.json").read_text() == text


def test_data_directory_that_is_a_file(tmp_path: Path) -> None:
    """Goal: a clear sentence instead of a traceback."""
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(ConfigError, match="data directory"):
        open_identity(str(file), "dev")


def test_timers_replace_and_never_come_early() -> None:
    """Goal: one pending call per key, the latest generation, not before its time."""
    fired: list[tuple[str, int, int]] = []

    async def scenario() -> None:
        done = asyncio.Event()

        def fire(key: str, generation: int) -> None:
            fired.append((key, generation, now_us()))
            if key == "b":
                done.set()

        timers = Timers(asyncio.get_running_loop(), fire)
        start = now_us()
        timers.arm(ArmTimer("a", 1, start + 1_000))
        timers.arm(ArmTimer("a", 2, start + 5_000))
        timers.arm(ArmTimer("b", 1, start + 20_000))
        timers.arm(ArmTimer("past", 1, start - 1_000))
        timers.arm(ArmTimer("never", 1, start + 10_000))
        timers._handles.pop("never").cancel()
        await asyncio.wait_for(done.wait(), 5)
        timers.arm(ArmTimer("cleared", 1, now_us()))
        timers.clear()
        await asyncio.sleep(0)
        assert [(key, generation) for key, generation, _ in fired] == [
            ("past", 1),
            ("a", 2),
            ("b", 1),
        ]
        assert fired[1][2] >= start + 5_000
        assert fired[2][2] >= start + 20_000

    asyncio.run(scenario())


def test_a_timer_of_a_process_that_stood_still_lets_others_speak_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: after SIGSTOP bytes that wait are read before a time-out is believed.

    Method: a timer that is a second late fires only after the catch-up pause, and once.
    """
    monkeypatch.setattr(timers_module, "CATCH_UP_S", 0.001)
    order: list[str] = []

    async def scenario() -> None:
        done = asyncio.Event()

        def fire(key: str, generation: int) -> None:
            order.append(key)
            done.set()

        timers = Timers(asyncio.get_running_loop(), fire)
        timers._due(ArmTimer("late", 1, now_us() - 1_000_000), False)
        asyncio.get_running_loop().call_soon(order.append, "bytes")
        await asyncio.wait_for(done.wait(), 5)

    asyncio.run(scenario())
    assert order == ["bytes", "late"]


def test_logs_are_one_json_object_a_line() -> None:
    """Goal: notes of the core and records of libraries become JSON lines at the right level."""
    stream = io.StringIO()
    logger = make_logger(RuntimeSettings(log_format="json", log_level="info"), stream)
    log_note(logger, Note("debug", "hidden", {}))
    log_note(logger, Note("warning", "link_lost", {"member": "m\n1", "event": 3}))
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    try:
        adopt_library_logs(logger)
        logging.getLogger("some.library").warning("value %d", 5)
        logging.getLogger("some.library").info("not told")
    finally:
        root.handlers[:], root.level = before
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["link_lost", "library"]
    assert lines[0]["member"] == "m\n1"
    assert lines[0]["event_"] == 3
    assert lines[0]["level"] == "warning"
    assert lines[1]["text"] == "value 5"


def test_logs_for_people_and_for_nobody() -> None:
    """Goal: the pretty format is no JSON; a closed reader costs lines, not the member."""
    stream = io.StringIO()
    logger = make_logger(RuntimeSettings(log_format="pretty"), stream)
    logger.info("hello", port=1)
    assert "hello" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
    stream.close()
    logger.info("lost")


def test_clocks_are_whole_numbers() -> None:
    """Goal: microseconds that never go back, milliseconds of this century."""
    assert isinstance(now_us(), int)
    assert now_us() <= now_us()
    assert wall_ms() > 1_600_000_000_000


def test_importing_the_package_loads_nothing_heavy() -> None:
    """Goal: ``import whimbrel`` and the command line's main module stay cheap."""
    code = (
        "import sys, whimbrel, whimbrel.cli.main\n"
        "print([n for n in ('asyncio', 'structlog', 'typer', 'starlette') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_start_loads_no_web_server() -> None:
    """Goal: a member without an admin port pays for none. Method: everything that a start imports,
    and its logger.
    """
    code = (
        "import sys\n"
        "from whimbrel.config import RuntimeSettings\n"
        "from whimbrel.runtime import process\n"
        "process.make_logger(RuntimeSettings(log_format='json')).info('hello')\n"
        "print([n for n in ('starlette', 'uvicorn', 'typer', 'pyarrow') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert json.loads(done.stderr)["event"] == "hello"
