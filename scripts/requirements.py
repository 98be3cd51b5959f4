"""Write ``docs/requirements.md``: which tests show which rows of the design papers.

Rows and titles are in ``docs/requirement-rows.txt``; the tests are found by the row ids in their
docstrings, in the headers of scenario files and in the planner's cases. A row is *done* when a
test names it and nothing is said to be missing, *partly* when both, *open* when no test names it.

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
ROWS = ROOT / "docs" / "requirement-rows.txt"
DOCUMENT = ROOT / "docs" / "requirements.md"
TESTS = ROOT / "tests"
FOLDERS = ("unit", "property", "scenario", "sim", "process", "spark")
ID = r"(ADL|AE|GCM|PIM)-(\d+)"
SPAN = re.compile(rf"\b{ID}(?:\s+to\s+{ID})?")
NAMES_SHOWN = 6
HEAD = """# Requirements and the tests that show them

Made by `scripts/requirements.py` from the row ids in the tests; do not edit. A row is *done* when a
test names it, *partly* when something is missing all the same, *open* when no test names it,
*later* when it belongs to something that does not exist yet.
"""


@dataclass(frozen=True)
class Row:
    """A row of a paper."""

    id: str
    title: str
    missing: str
    """What is missing or comes later; empty when nothing."""


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


def state_of(row: Row, tests: list[str]) -> str:
    """The state of a row in one line."""
    if not tests:
        return f"later: {row.missing}" if row.missing else "open"
    return f"partly: {row.missing}" if row.missing else "done"


def document() -> str:
    """The text of ``docs/requirements.md``."""
    found = tests_by_id()
    lines = [HEAD]
    group = ""
    for row in rows():
        if row.id.split("-")[0] != group:
            group = row.id.split("-")[0]
            lines += [f"\n## {group}\n", "| row | | state | tests |", "| --- | --- | --- | --- |"]
        tests = found.get(row.id, [])
        shown = "; ".join(tests[:NAMES_SHOWN])
        if len(tests) > NAMES_SHOWN:
            shown += f"; and {len(tests) - NAMES_SHOWN} more"
        lines.append(f"| {row.id} | {row.title} | {state_of(row, tests)} | {shown} |")
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
    states = re.findall(rf"^\| {ID} \|[^|]*\| (done|partly|open|later)", new, re.MULTILINE)
    counts = {state: sum(found[2] == state for found in states) for state in
              ("done", "partly", "open", "later")}  # fmt: skip
    print(", ".join(f"{state} {count}" for state, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
