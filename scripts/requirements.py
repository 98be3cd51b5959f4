"""Write ``docs/requirements.md``: which tests show which rows of the design papers.

Rows and titles are in ``docs/requirement-rows.txt``; the tests are found by the row ids in their
docstrings, in the headers of scenario files and in the planner's cases. A row is *done* when such a
test killed a mutant of its rule (``docs/row-kills.txt``, made by ``scripts/mutants.py rows``) and
nothing is said to be missing; *shown weakly* when tests name it and none of them is known to fail
without the rule; *partly* when something is missing, *open* when no test names it. A kill counts as
long as the text it changed stands in its function and its test names the row.

Usage: ``python scripts/requirements.py`` writes the file, ``--check`` only compares. A row that was
done may not lose its last test unnoticed: then nothing is written and the exit status is 1;
``--drop`` writes all the same.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "whimbrel"
BUILD = ROOT / "build"
KILLS = ROOT / "docs" / "row-kills.txt"
KILLS_HEAD = """\
# Made by `scripts/mutants.py rows`: a mutant of each row's rule, and the test naming the row that
# fails with it. ROW | file | function | old => new | test
"""
ROWS = ROOT / "docs" / "requirement-rows.txt"
DOCUMENT = ROOT / "docs" / "requirements.md"
TESTS = ROOT / "tests"
FOLDERS = ("unit", "property", "scenario", "sim", "process", "spark")
ID = r"(ADL|AE|APR|GCM|PIM)-(\d+)"
SPAN = re.compile(rf"\b{ID}(?:\s+to\s+{ID})?")
NAMES_SHOWN = 6
HEADINGS = "| row | | state | mutant and the test that it fails | tests |"
HEAD = """# Requirements and the tests that show them

Made by `scripts/requirements.py` from the row ids in the tests and from the mutants that they
killed (`scripts/mutants.py rows`); do not edit. A row is *done* when a test that names it fails
with a mutant of its rule: that mutant and that test are named. It is *shown weakly* when tests name
it and none is known to fail without the rule, *partly* when something is missing, *open* when no
test names it, *later* when it belongs to something that does not exist yet.
"""


@dataclass(frozen=True)
class Row:
    """A row of a paper."""

    id: str
    title: str
    missing: str
    """What is missing or comes later; empty when nothing."""


@dataclass(frozen=True)
class Kill:
    """A mutant of a row's rule and the test that fails with it."""

    row: str
    file: str
    """Below ``src/whimbrel``."""
    function: str
    change: str
    """``old => new``, runs of blanks as one."""
    test: str

    @property
    def line(self) -> str:
        """As in ``docs/row-kills.txt``."""
        return " | ".join((self.row, self.file, self.function, self.change, self.test))

    @property
    def old(self) -> str:
        """The text that the mutant changes."""
        return self.change.partition(" => ")[0]


def kill_in(line: str) -> Kill:
    """The kill that a line tells of; exits with a message when it is malformed."""
    parts = line.split(" | ", 3)
    change, mark, test = parts[-1].rpartition(" | ")
    if len(parts) != 4 or not mark or " => " not in change:
        sys.exit(f"{KILLS.name}: not 'ROW | file | function | old => new | test': {line}")
    return Kill(parts[0], parts[1], parts[2], change, test)


def kills() -> dict[str, Kill]:
    """The kept kill of each row."""
    lines = KILLS.read_text().splitlines()
    found = [kill_in(line) for line in lines if line.strip() and not line.startswith("#")]
    return {kill.row: kill for kill in found}


def span_of(text: str, name: str) -> tuple[int, int] | None:
    """Where a function or class begins and ends, in bytes; ``(module)`` is all of the text."""
    data = text.encode()
    if name == "(module)":
        return 0, len(data)
    node: ast.AST | None = ast.parse(text)
    for part in name.split("."):
        below = ast.walk(node) if node is not None else ()
        node = next((one for one in below if getattr(one, "name", "") == part), None)
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.end_lineno is None:
        return None
    lines = data.splitlines(keepends=True)
    begin = sum(map(len, lines[: node.lineno - 1]))
    return begin, begin + sum(map(len, lines[node.lineno - 1 : node.end_lineno]))


def counts(kill: Kill, tests: list[str]) -> bool:
    """Whether a kept kill still says something: its text stands, and its test names the row."""
    path = PACKAGE / kill.file
    if not path.exists():
        return False
    text = path.read_text()
    span = span_of(text, kill.function)
    if span is None or kill.old not in " ".join(text.encode()[slice(*span)].decode().split()):
        return False
    module = kill.test.partition(": ")[0]
    names = (kill.test, module) if module != CASES.partition(": ")[0] else (kill.test, CASES)
    return any(name in tests for name in names)


def rows() -> list[Row]:
    """The rows in the order of the file; exits with a message when a line is malformed."""
    found: list[Row] = []
    for number, line in enumerate(ROWS.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 3 or not re.fullmatch(ID, parts[0]) or not parts[1]:
            sys.exit(f"{ROWS.name}:{number}: a row is 'ID | title | what is missing'")
        found.append(Row(*parts))
    return found


def ids_in(text: str) -> list[str]:
    """The row ids a text names; ``AE-06 to AE-09`` names four."""
    found: dict[str, None] = {}
    for group, first, last_group, last in SPAN.findall(text):
        end = int(last) if last and last_group == group else int(first)
        for number in range(int(first), end + 1):
            found[f"{group}-{number:02}"] = None
    return list(found)


def tests_by_id() -> dict[str, list[str]]:
    """The tests that name each row, as ``unit/test_x.py: test_y``."""
    found: dict[str, list[str]] = {}

    def note(text: str, where: str) -> None:
        for row in ids_in(text):
            if where not in found.setdefault(row, []):
                found[row].append(where)

    for folder in FOLDERS:
        for path in sorted((TESTS / folder).rglob("test_*.py")):
            where = str(path.relative_to(TESTS))
            tree = ast.parse(path.read_text())
            note(ast.get_docstring(tree) or "", where)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    note(ast.get_docstring(node) or "", f"{where}: {node.name}")
        for path in sorted((TESTS / folder).rglob("*.txt")):
            header = [line for line in path.read_text().splitlines() if line.startswith("#")]
            note(" ".join(header), str(path.relative_to(TESTS)))
    note(json.dumps(json.loads((TESTS / "data" / "planner-cases.json").read_text())), CASES)
    return found


CASES = "unit/test_partition_planner.py: the case of this id in data/planner-cases.json"


def state_of(row: Row, tests: list[str], kill: Kill | None) -> str:
    """The state of a row in one line."""
    if not tests:
        return f"later: {row.missing}" if row.missing else "open"
    if row.missing:
        return f"partly: {row.missing}"
    return "done" if kill is not None else "shown weakly"


def told(kill: Kill | None) -> str:
    """A kill as the document tells it; empty when there is none."""
    if kill is None:
        return ""
    old, _, new = kill.change.replace("`", "'").replace("|", "\\|").partition(" => ")
    return f"`{kill.file}`, `{kill.function}`: `{old}` becomes `{new}`; {kill.test}"


def document() -> str:
    """The text of ``docs/requirements.md``."""
    found, killed = tests_by_id(), kills()
    lines = [HEAD]
    group = ""
    for row in rows():
        if row.id.split("-")[0] != group:
            group = row.id.split("-")[0]
            lines += [f"\n## {group}\n", HEADINGS, "| --- | --- | --- | --- | --- |"]
        tests = found.get(row.id, [])
        shown = "; ".join(tests[:NAMES_SHOWN])
        if len(tests) > NAMES_SHOWN:
            shown += f"; and {len(tests) - NAMES_SHOWN} more"
        kill = killed.get(row.id)
        if kill is not None and not counts(kill, tests):
            kill = None
        state = state_of(row, tests, kill)
        lines.append(f"| {row.id} | {row.title} | {state} | {told(kill)} | {shown} |")
    return "\n".join(lines) + "\n" + missing_scenarios()


def missing_scenarios() -> str:
    """The section that says which logged bugs have no scenario file and where they are tested."""
    text = (ROOT / "docs" / "scenario-gaps.txt").read_text()
    return "\n## Bugs of the papers' successors without a scenario file\n\n" + text


def done_in(text: str) -> list[str]:
    """The rows that a document lists as done."""
    pattern = rf"^\| ({ID}) \|[^|]*\| done \|"
    return [match.group(1) for match in re.finditer(pattern, text, re.MULTILINE)]


def lost(text: str) -> list[str]:
    """The rows that a document lists as done and no test names."""
    found = tests_by_id()
    return [row for row in done_in(text) if row not in found]


def main(words: list[str]) -> int:
    """Write or compare; returns the exit status."""
    new, old = document(), DOCUMENT.read_text() if DOCUMENT.exists() else ""
    gone = lost(old)
    if gone and "--drop" not in words:
        print(f"no test names these rows any more, which were done: {', '.join(gone)}")
        return 1
    if "--check" in words:
        print("up to date" if new == old else f"stale: run python scripts/{Path(__file__).name}")
        return int(new != old)
    DOCUMENT.write_text(new)
    states = re.findall(
        rf"^\| {ID} \|[^|]*\| (done|shown weakly|partly|open|later)", new, re.MULTILINE
    )
    counts = {state: sum(found[2] == state for found in states) for state in
              ("done", "shown weakly", "partly", "open", "later")}  # fmt: skip
    print(", ".join(f"{state} {count}" for state, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
