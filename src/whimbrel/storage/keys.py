"""Where keys come from: a file or the output of a command. One a line, to write with the first.

A key is 32 bytes, as 64 hexadecimal digits or as base64. Of what is wrong everything is said but
the key itself.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whimbrel.core.persistence.encryption import KEY_BYTES, KEY_SETTINGS
from whimbrel.errors import ConfigError

if TYPE_CHECKING:
    from whimbrel.storage.encryption import AesKey

SOURCE_BYTES_MAX: Final = 65_536
"""Of a file or an output; keys have 65 bytes a line."""
KEYS_MAX: Final = 100
COMPLAINT_CHARACTERS_MAX: Final = 200
"""Of what a command that failed said last."""
_HEXADECIMAL = re.compile(rb"[0-9A-Fa-f]{64}")


def keys_from_file(file: str) -> list[AesKey]:
    """The keys in a file.

    Raises:
        ConfigError: It cannot be read, or has none.
    """
    try:
        with Path(file).open("rb") as source:
            text = source.read(SOURCE_BYTES_MAX + 1)
    except OSError as problem:
        raise _refused(f"the key file {file}: {problem.strerror or problem}") from None
    return parse_keys(text, f"the key file {file}")


def keys_from_command(command: str, timeout_s: float) -> list[AesKey]:
    """The keys that a command prints. It gets no input, and is ended when it takes too long.

    Raises:
        ConfigError: It failed, took too long, or printed no keys.
    """
    what = f"the key command {command!r}"
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator's own command, by configuration
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that what it has begun ends with it
        )
    except OSError as problem:
        raise _refused(f"{what}: {problem.strerror or problem}") from None
    with process:
        try:
            text, complaint = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise _refused(f"{what} took longer than {timeout_s:g} s and was ended") from None
    if process.returncode:
        words = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2]
        said = f": {words[:COMPLAINT_CHARACTERS_MAX]}" if words.isprintable() and words else ""
        raise _refused(f"{what} ended with status {process.returncode}{said}")
    return parse_keys(text, what)


def parse_keys(text: bytes, what: str) -> list[AesKey]:
    """The keys in a text, in their order; lines that are empty or begin with # count for nothing.

    Args:
        text: Lines.
        what: Where they are from, for words.

    Raises:
        ConfigError: A line is no key, one comes twice, or there is none.
    """
    from whimbrel.storage.encryption import AesKey

    if len(text) > SOURCE_BYTES_MAX:
        raise _refused(f"{what} has more than {SOURCE_BYTES_MAX} bytes")
    found: dict[bytes, AesKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip()
        if not word or word.startswith(b"#"):
            continue
        secret = _secret_of(word)
        if secret is None:
            raise _refused(
                f"{what}: line {number} is no key; a key is 32 bytes as 64 hexadecimal digits or "
                "base64, as `openssl rand -hex 32` prints one"
            )
        key = AesKey(secret)
        if key.id in found:
            raise _refused(f"{what}: line {number} has a key that was given before")
        found[key.id] = key
    if not found:
        raise _refused(f"{what} has no key; `openssl rand -hex 32` makes one")
    if len(found) > KEYS_MAX:
        raise _refused(f"{what} has {len(found)} keys; at most {KEYS_MAX} are read")
    return list(found.values())


def _secret_of(word: bytes) -> bytes | None:
    """The bytes of a key; None when it is none."""
    if _HEXADECIMAL.fullmatch(word):
        return bytes.fromhex(word.decode())
    try:
        secret = base64.b64decode(word, validate=True)
    except binascii.Error:
        return None
    return secret if len(secret) == KEY_BYTES else None


def _refused(sentence: str) -> ConfigError:
    return ConfigError([f"{sentence} ({KEY_SETTINGS})"])
