"""Reading a TOML file into flat keys with line numbers.

The standard parser tells no lines, so a small scanner of our own finds where each key stands. It
only serves messages: what a file means is the parser's word alone.
"""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

FILE_BYTES_MAX = 1_048_576
"""A configuration of more than 1 MiB is a mistake (a log, an image), not a configuration."""

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_PATH = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*\[\[?[ \t]*({_PATH})[ \t]*\]")
_ASSIGNMENT = re.compile(rf"[ \t]*({_PATH})[ \t]*=[ \t]*(.*)")
_SYNTAX_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")

Path_ = tuple[str, ...]


class FileProblemError(Exception):
    """The file cannot be read at all. ``line`` is 0 when no line is to blame."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


class FileValue(msgspec.Struct, frozen=True):
    """One value of a file: where it stands and what the parser made of it."""

    path: Path_
    value: object
    line: int


class FileContent(msgspec.Struct, frozen=True):
    """Everything a file says: its values, and the top-level names with their lines."""

    values: tuple[FileValue, ...]
    tables: dict[str, int]


def read_file(name: str) -> FileContent:
    """Read and parse a configuration file.

    Args:
        name: Path as the operator wrote it.

    Raises:
        FileProblemError: Missing, not a regular file, unreadable, too big, not UTF-8, not TOML.
    """
    text = _decode(_read_bytes(Path(name)))
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise FileProblemError(0, "values are nested too deeply") from None
    except ValueError as problem:
        raise _syntax_problem(str(problem)) from None
    lines = key_lines(text)
    values = tuple(
        FileValue(path, value, line_of(lines, path)) for path, value in _leaves(document, ())
    )
    return FileContent(values, {table: line_of(lines, (table,)) for table in document})


def _read_bytes(path: Path) -> bytes:
    try:
        if path.is_symlink() and not path.exists():
            raise FileProblemError(0, f"is a link to {path.readlink()}, which does not exist")
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise FileProblemError(0, "is a directory; a TOML file is needed")
        if not stat.S_ISREG(status.st_mode):
            raise FileProblemError(0, "is not a regular file")
        if status.st_size > FILE_BYTES_MAX:
            raise FileProblemError(
                0, f"has {status.st_size} bytes; at most {FILE_BYTES_MAX} are read"
            )
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        raise FileProblemError(0, "does not exist") from None
    except OSError as problem:
        raise FileProblemError(0, f"cannot be read: {problem.strerror}") from None
    except ValueError:
        raise FileProblemError(0, "is not a possible file name") from None


def _decode(data: bytes) -> str:
    """UTF-8 text; a leading byte-order mark is dropped, other encodings are refused."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FileProblemError(1, "is UTF-16 text; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise FileProblemError(line, "holds bytes that are not UTF-8 text") from None


def _syntax_problem(text: str) -> FileProblemError:
    """The parser's complaint with its line taken out of the sentence."""
    found = _SYNTAX_PLACE.search(text)
    if found is None:
        return FileProblemError(0, f"is not TOML: {text}")
    place = f"not TOML: {text[: found.start()]} (column {found[2]})"
    return FileProblemError(int(found[1]), place)


def _leaves(node: dict[str, object], path: Path_) -> Iterator[tuple[Path_, object]]:
    """Every value that is no table, with its path, in file order."""
    for name, value in node.items():
        here = (*path, name)
        if isinstance(value, dict):
            yield from _leaves(value, here)
        else:
            yield here, value


def key_lines(text: str) -> dict[Path_, int]:
    """Line number (from 1) of the first mention of each header and key."""
    found: dict[Path_, int] = {}
    prefix: Path_ = ()
    closing = ""
    for number, line in enumerate(text.split("\n"), 1):
        if closing:
            if closing in line:
                closing = ""
            continue
        if header := _HEADER.match(line):
            prefix = _parts(header[1])
            _remember(found, (), prefix, number)
        elif assignment := _ASSIGNMENT.match(line):
            _remember(found, prefix, _parts(assignment[1]), number)
            closing = _opened(assignment[2])
    return found


def line_of(lines: dict[Path_, int], path: Path_) -> int:
    """Line of a path; of the nearest table around it for keys of inline tables; 0 if unknown."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 0


def _remember(found: dict[Path_, int], prefix: Path_, path: Path_, number: int) -> None:
    """Note a path and the tables it implies."""
    for length in range(1, len(path) + 1):
        found.setdefault(prefix + path[:length], number)


def _parts(path: str) -> Path_:
    """The names of a dotted path, unquoted by the real parser."""
    try:
        node: object = tomllib.loads(f"{path} = 0")
    except ValueError:
        return (path,)
    parts: list[str] = []
    while isinstance(node, dict):
        name, node = next(iter(node.items()))
        parts.append(name)
    return tuple(parts)


def _opened(value: str) -> str:
    """The closing quotes of a multi-line string that begins and does not end on this line."""
    for quotes in ('"""', "'''"):
        if value.startswith(quotes) and quotes not in value[3:]:
            return quotes
    return ""
