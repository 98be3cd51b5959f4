"""The house rules that no linter knows: sizes, docstrings, words, determinism."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from vulture import Vulture

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MODULE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|for now\b|simplified version", re.IGNORECASE)
BUG = r"\d{1,2}[a-c]?"
CITED = (
    (r"\bFN-\d+\b", "field-notes.md", r"^\*\*FN-(\d+) "),
    (rf"\b[Bb]ugs? {BUG}\b(?:(?:, | and | to ){BUG}\b)*", "field-notes.md", rf"^\| ({BUG}) \|"),
    (r"\bbad input \d+(?:(?:, | and |-)\d+)*", "bad-input.md", r"^\| (\d+) \|"),
)
"""How numbers are cited, and where and how they stand."""
FOREIGN = re.compile(
    r"\bfacts(?:/|,? section|,? performance| \d)|\bfact sheet|\bfile 00\d", re.IGNORECASE
)
"""A document that readers of this repository do not have."""
CIRCLE_MAX = 2
"""Modules that may import each other: one thing told in two files."""
MAP_TEXT = re.compile(r"maps?(/.*)?")
MAP_NAME = re.compile(r"_?maps|MAPS?_.*|Map[A-Z].*|map_kind")
"""How a map would be named where no kind of structure has a special place."""
FORBIDDEN_LOADERS = re.compile(r"\b(pickle|marshal|shelve)\b\.|\beval\(|\bexec\(|yaml\.load")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_sizes_and_words(path: Path) -> None:
    """Goal: modules and functions stay small, nothing is left unfinished. Method: parse each."""
    text = path.read_text()
    assert len(text.splitlines()) <= MODULE_LINES_MAX
    tree = ast.parse(text)
    long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1})"
        for node in functions(tree)
        if node.end_lineno and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long, f"functions over {FUNCTION_LINES_MAX} lines: {long}"
    if path.name != "test_house.py":
        assert not UNFINISHED.search(text), UNFINISHED.search(text)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_sources_are_documented_and_safe(path: Path) -> None:
    """Goal: every module says what it knows; no source loads objects that can run code; no bare
    assert. Method: parse each.
    """
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "module without a docstring"
    assert not FORBIDDEN_LOADERS.search(text)
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]


@pytest.mark.parametrize(
    "path",
    [p for p in SOURCES if p.parts[-2:] != ("whimbrel", "x") and "core" in p.parts],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_no_decision_depends_on_set_order(path: Path) -> None:
    """Goal: the core is deterministic. Method: no ``for`` and no comprehension iterates a set
    display, a ``set(...)`` call or a set comprehension directly.
    """
    bad = []
    for node in ast.walk(ast.parse(path.read_text())):
        source = node.iter if isinstance(node, ast.For | ast.comprehension) else None
        is_set_call = (
            isinstance(source, ast.Call)
            and isinstance(source.func, ast.Name)
            and source.func.id in ("set", "frozenset")
        )
        if isinstance(source, ast.Set | ast.SetComp) or is_set_call:
            bad.append(source.lineno if source is not None else 0)
    assert not bad, f"iteration over a set on lines {bad}"


def imports_of(path: Path) -> set[Path]:
    """The modules of ours that a module names in its imports, those for types only included."""
    named: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            named.add(node.module)
            named |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
    files = {ROOT / "src" / f"{name.replace('.', '/')}.py" for name in named}
    return files & set(SOURCES)


def reached(start: Path, imports: dict[Path, set[Path]]) -> set[Path]:
    """The modules that a module imports, and those that they import, and so on."""
    found: set[Path] = set()
    left = [start]
    while left:
        fresh = imports.get(left.pop(), set()) - found
        found |= fresh
        left += fresh
    return found


def test_modules_do_not_import_in_circles() -> None:
    """Goal: a module of the core or of serving can be read, and tested, after those it imports.
    Method: the modules that reach each other; a circle that is gone is taken off the list.
    """
    packages = [ROOT / "src" / "whimbrel" / name for name in ("core", "serving")]
    rooms = [path for path in SOURCES if any(one in path.parents for one in packages)]
    imports = {path: imports_of(path) for path in rooms}
    reach = {path: reached(path, imports) for path in rooms}
    circles = {
        frozenset(other.stem for other in reach[path] if path in reach.get(other, set()))
        for path in rooms
    }
    assert not [circle for circle in circles if len(circle) > CIRCLE_MAX]


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in SOURCES
        if {"core", "wire", "serving"} & set(path.parts) and path.name != "protocol_table.py"
    ],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_no_kind_of_structure_has_a_special_place(path: Path) -> None:
    """Goal: the map is one kind of several. Method: no text and no name of the core, the wire or
    serving means it; the table of the protocol does, and documentation may.
    """
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        name = ""
        if isinstance(node, ast.Name):
            name = node.id
        elif isinstance(node, ast.Attribute):
            name = node.attr
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and MAP_TEXT.fullmatch(text):
            found.append(text)
        if MAP_NAME.fullmatch(name):
            found.append(name)
    assert not found


def test_nothing_generated_is_committed() -> None:
    """Goal: the repository holds sources only. Method: ask git for tracked build products."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not [n for n in names if n.endswith((".pyc", ".so", ".jar", ".whl")) or "/build/" in n]


def test_no_excuse_outlives_what_it_excuses() -> None:
    """Goal: a name excused from being unreferenced in ``src`` is there and is unreferenced.
    Method: look for such names as ``make check`` does, without the excuses.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["vulture"]
    finder = Vulture(ignore_decorators=settings["ignore_decorators"])
    finder.scavenge([str(ROOT / path) for path in settings["paths"]], exclude=settings["exclude"])
    found = {item.name for item in finder.get_unused_code(settings["min_confidence"])}
    excuses = settings["ignore_names"]
    assert not [name for name in excuses if not any(fnmatchcase(one, name) for one in found)]


def test_what_is_cited_can_be_read() -> None:
    """Goal: a number cited anywhere stands in a document of ours, and no document is cited that
    readers do not have. Method: all tracked text against the field notes and the bad inputs.
    """
    names = subprocess.run(
        ["git", "ls-files", "src", "tests", "scripts", "benchmarks", "docs", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    texts = {
        name: re.sub(r"\s+(?:# )?", " ", (ROOT / name).read_text(errors="replace"))
        for name in names
        if name.endswith((".py", ".md", ".txt", ".json")) and not name.endswith("test_house.py")
    }
    foreign = [name for name, text in texts.items() if FOREIGN.search(text)]
    assert not [name for name in foreign if not name.startswith("docs/")]
    for pattern, document, entry in CITED:
        known = re.findall(entry, (ROOT / "docs" / document).read_text(), re.MULTILINE)
        runs = [run for text in texts.values() for run in re.findall(pattern, text)]
        cited = {number for run in runs for number in re.findall(BUG, run)}
        assert cited, pattern
        assert sorted(cited - set(known)) == [], document
