"""Where keys come from, what is wrong with them in words, and what a member makes of them."""

from __future__ import annotations

import base64
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.keys import FIRST, SECOND

from whimbrel.config import Config, load
from whimbrel.errors import ConfigError
from whimbrel.runtime.encryption import open_encryption
from whimbrel.storage.keys import keys_from_command, keys_from_file, parse_keys

SECRET_1, SECRET_2 = bytes([1]) * 32, bytes([2]) * 32
LINE_1 = SECRET_1.hex().encode()
CHILD_S = 3
"""How long a child of a command sleeps before it shows that it lives."""
KEY_FILE = "persistence.encryption.key_file"
KEY_COMMAND = "persistence.encryption.key_command"
PLAIN_FILES = "persistence.encryption.plain_files"


@pytest.mark.parametrize(
    "text",
    [
        LINE_1,
        LINE_1.upper() + b"\r\n",
        b"\n  # the key of 2026\n\t" + LINE_1 + b"  \n\n",
        base64.b64encode(SECRET_1) + b"\n",
    ],
)
def test_ways_to_write_a_key(text: bytes) -> None:
    """As openssl and others print one."""
    assert [key.id for key in parse_keys(text, "it")] == [FIRST.id]


def test_the_first_one_is_written_with() -> None:
    """The order is that of the lines."""
    both = parse_keys(LINE_1 + b"\n" + base64.b64encode(SECRET_2), "it")
    assert [key.id for key in both] == [FIRST.id, SECOND.id]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "it has no key"),
        (b"\n# nothing\n", "it has no key"),
        (b"correct horse battery staple", "it: line 1 is no key; a key is 32 bytes"),
        (LINE_1 + b"\n" + LINE_1[:-1], "it: line 2 is no key"),
        (LINE_1 + b"00", "it: line 1 is no key"),
        (base64.b64encode(SECRET_1[:-1]), "it: line 1 is no key"),
        (SECRET_1, "it: line 1 is no key"),
        (LINE_1 + b"\n\n" + base64.b64encode(SECRET_1), "it: line 3 has a key that was given"),
        (b"#" * 70_000, "it has more than 65536 bytes"),
        (b"\xff" * 64, "line 1 is no key"),
    ],
)
def test_what_is_no_key(text: bytes, words: str) -> None:
    """Told with its line, and never printed."""
    with pytest.raises(ConfigError) as found:
        parse_keys(text, "it")
    (problem,) = found.value.problems
    assert words in problem and KEY_FILE in problem
    assert LINE_1.decode() not in problem and "horse" not in problem


def test_more_keys_than_anybody_has() -> None:
    """Somebody gave another file."""
    lines = b"\n".join((number.to_bytes(32, "big")).hex().encode() for number in range(101))
    with pytest.raises(ConfigError, match="101 keys"):
        parse_keys(lines, "it")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Each in the words of the system."""
    with pytest.raises(ConfigError, match="none: No such file"):
        keys_from_file(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="Is a directory"):
        keys_from_file(str(tmp_path))
    (tmp_path / "key").write_bytes(LINE_1)
    assert keys_from_file(str(tmp_path / "key"))[0].id == FIRST.id


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("exit 3", "ended with status 3"),
        ("echo first >&2; echo sealed >&2; exit 1", "ended with status 1: sealed"),
        ("nonesuch-command", "ended with status 127"),
        ("true", "has no key"),
        ("echo secret-that-is-none", "line 1 is no key"),
        ("cat", "has no key"),
        ("kill -9 $$", "ended with status -9"),
    ],
)
def test_commands_that_fail(command: str, words: str) -> None:
    """What it said last is told, and not what it printed; it gets no input."""
    with pytest.raises(ConfigError) as found:
        keys_from_command(command, 60)
    (problem,) = found.value.problems
    assert words in problem and problem.startswith(f"the key command {command!r}")
    assert "secret-that" not in problem.replace(command, "")


def test_the_output_of_a_command_is_the_key(tmp_path: Path) -> None:
    """Pipes and all, as a shell has it."""
    (tmp_path / "a").write_bytes(LINE_1 + b"\n")
    (tmp_path / "b").write_bytes(base64.b64encode(SECRET_2) + b"\n")
    found = keys_from_command(f"cd {tmp_path} && cat b a | tr -d ' '", 60)
    assert [key.id for key in found] == [SECOND.id, FIRST.id]


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """The start does not wait for it, and nothing of it stays."""
    mark = tmp_path / "mark"
    before_s = time.monotonic()
    with pytest.raises(ConfigError, match=r"took longer than 0\.3 s and was ended"):
        keys_from_command(f"(sleep {CHILD_S}; touch {mark}) & sleep 600; echo late", 0.3)
    assert time.monotonic() - before_s < 60
    time.sleep(max(0, before_s + CHILD_S + 1 - time.monotonic()))
    assert not mark.exists()


# -- the configuration --------------------------------------------------------------------


def configured(tmp_path: Path, *settings: str) -> Config:
    """With persistence and these."""
    basic = [f"member.data_dir={tmp_path / 'data'}", "persistence.enabled=true"]
    return load(None, {}, (), [*basic, *settings])


def test_without_a_key_nothing_is_encrypted(tmp_path: Path) -> None:
    """Nor is the library asked for; nor the key, without persistence."""
    assert open_encryption(configured(tmp_path)).key_ids == ()
    without = load(None, {}, (), [f"{KEY_FILE}={tmp_path / 'none'}"])
    assert open_encryption(without).key_ids == ()
    code = (
        "import sys, whimbrel.runtime.node; "
        "sys.exit(any(name.startswith('cryptography') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_key_from_a_file_and_from_a_command(tmp_path: Path) -> None:
    """With its setting, the environment included; the salts of two processes differ."""
    (tmp_path / "key").write_bytes(LINE_1)
    config = configured(tmp_path, f"{KEY_FILE}={tmp_path / 'key'}")
    first, second = open_encryption(config), open_encryption(config)
    assert first.current_id == FIRST.id and not first.reads_plain
    assert first.fresh_use("c") != second.fresh_use("c")
    variable = {"WHIMBREL_PERSISTENCE__ENCRYPTION__KEY_COMMAND": f"cat {tmp_path / 'key'}"}
    flags = [f"member.data_dir={tmp_path}", "persistence.enabled=true", f"{PLAIN_FILES}=write"]
    config = load(None, variable, (), [*flags, "persistence.encryption.key_timeout_s=60"])
    found = open_encryption(config)
    assert (found.key_ids, found.current_id, found.reads_plain) == ((FIRST.id,), b"", True)
    with pytest.raises(ConfigError, match="No such file"):
        open_encryption(configured(tmp_path, f"{KEY_FILE}={tmp_path / 'none'}"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            [f"{KEY_FILE}=a", f"{KEY_COMMAND}=b"],
            f"--set {KEY_COMMAND}: {KEY_FILE} is given as well",
        ),
        ([f"{PLAIN_FILES}=read"], f"--set {PLAIN_FILES}: {PLAIN_FILES} = read needs {KEY_FILE} or"),
        ([f"{KEY_FILE}=a", f"{PLAIN_FILES}=maybe"], "must be one of"),
        (["persistence.encryption.key=abc"], "unknown key"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, settings: list[str], words: str) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError) as found:
        configured(tmp_path, *settings)
    assert words in found.value.problems[0]
