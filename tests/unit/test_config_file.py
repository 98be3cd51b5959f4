"""Files that are no configuration, and the line numbers of those that are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whimbrel.config import describe, load
from whimbrel.config.keys import KEYS, STRUCTURE_KEYS
from whimbrel.config.tomlfile import FILE_BYTES_MAX, FileProblemError, key_lines, read_file
from whimbrel.errors import ConfigError


def refusal(path: Path | str) -> str:
    with pytest.raises(FileProblemError) as refused:
        read_file(str(path))
    return f"{refused.value.line} {refused.value.text}"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Goal: each odd thing at the path gets its own sentence, at once and without reading it."""
    assert "does not exist" in refusal(tmp_path / "missing.toml")
    assert "is a directory" in refusal(tmp_path)
    link = tmp_path / "link.toml"
    link.symlink_to(tmp_path / "gone.toml")
    assert f"link to {tmp_path / 'gone.toml'}" in refusal(link)
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    assert "not a regular file" in refusal(pipe)
    huge = tmp_path / "huge.toml"
    with huge.open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    assert str(FILE_BYTES_MAX) in refusal(huge)
    assert "not a possible file name" in refusal("a\0b")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a = 1\nb = \xff\n", "2 holds bytes that are not UTF-8"),
        ("a = 1".encode("utf-16"), "1 is UTF-16"),
        (b"a = 1\na = 2\n", "2 not TOML: Cannot overwrite a value"),
        (b"a = 1\nb = \n", "2 not TOML: Invalid value"),
        (b"a = 1\rb = 2", "1 not TOML"),
        (b"\x7fELF\0\0\0", "1 not TOML"),
        (b"a = " + b"[" * 5000, "0 values are nested too deeply"),
        (b"a = " + b"9" * 5000, "0 is not TOML"),
        (b"a = [", "0 "),
    ],
)
def test_files_that_are_not_toml(tmp_path: Path, data: bytes, words: str) -> None:
    """Goal: the line is told where the parser knows it, and nothing else than refusal happens."""
    file = tmp_path / "bad.toml"
    file.write_bytes(data)
    assert words in refusal(file)


def test_files_that_are_odd_but_fine(tmp_path: Path) -> None:
    """Goal: empty files, byte-order mark, CRLF and tabs are no mistakes."""
    file = tmp_path / "odd.toml"
    for data in (b"", b"\xef\xbb\xbf", b"# only a remark\r\n"):
        file.write_bytes(data)
        assert read_file(str(file)).values == ()
    file.write_bytes(b"\xef\xbb\xbf[partition]\r\n\tcount\t=\t7\r\n")
    assert load(str(file)).core.partition_count == 7


def test_problem_of_a_whole_file_comes_with_the_others(tmp_path: Path) -> None:
    """Goal: a broken file does not hide mistakes of the environment."""
    file = tmp_path / "broken.toml"
    file.write_text("[partition\n")
    with pytest.raises(ConfigError) as refused:
        load(str(file), {"WHIMBREL_PARTITION__COUNT": "x"})
    first, second = refused.value.problems
    assert first.startswith(f"{file}:1: not TOML")
    assert second.startswith("WHIMBREL_PARTITION__COUNT: ")


def test_lines_of_keys() -> None:
    """Goal: lines are right for headers, dotted and quoted keys, strings that look like keys."""
    lines = key_lines(
        'top = 1\n[a]\nx = """\ny = 2\n[b]\n"""\n["a"."b c"]\nz.w = 1\n[[list]]\nq = { r = 1 }\n'
        "[d]\nl = [\n  1,\n]\nm = '''one'''\nn = 3\n"
    )
    assert lines[("top",)] == 1
    assert lines[("a",)] == 2
    assert ("a", "y") not in lines
    assert ("b",) not in lines
    assert lines[("a", "b c")] == 7
    assert lines[("a", "b c", "z", "w")] == 8
    assert lines[("list", "q")] == 10
    assert lines[("d", "l")] == 12
    assert lines[("d", "n")] == 16


def test_every_key_is_described_and_within_its_own_limits() -> None:
    """Goal: the table has no slip: unique names and aliases, defaults allowed, a meaning each."""
    rows = describe()
    assert (
        len({row["key"] for row in rows})
        == len(rows)
        == len(KEYS) + sum(map(len, STRUCTURE_KEYS.values()))
    )
    aliases = [key.alias for key in KEYS if key.alias]
    assert len(set(aliases)) == len(aliases)
    for key in (*KEYS, *(key for keys in STRUCTURE_KEYS.values() for key in keys.values())):
        assert key.doc
        assert not key.doc.endswith(".")
        if isinstance(key.default, int | float) and not isinstance(key.default, bool):
            assert key.minimum <= key.default <= key.maximum, key.name
