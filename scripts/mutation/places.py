"""Where a source can be changed so that it still parses and says something else.

A mutant is one small change of the syntax tree, made in the text so that the rest of the file
keeps its lines. It is named by what a reader sees: file, function, the old lines and the new ones.

Left out, because a change there is no change of behaviour or none that a rule is about: docstrings
and other text, annotations, decorators, the shape of classes, ``__repr__``, what ``raise``, a note
or a second argument of ``check`` say, the dropping of a ``check`` (no run without a bug meets it),
and numbers that only bound or tune: constants in capitals and the settings' defaults.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGE = SOURCE / "whimbrel"
SETTINGS = "core/settings.py"
ID_DIGITS = 8
FLIPPED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
SIGNS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*"),
    ast.BitOr: ("|", "&"), ast.BitAnd: ("&", "|"),
}  # fmt: skip
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
OPPOSED_BY_NEGATION = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
SILENT_CALLS = ("check", "note")
UNTOUCHED_FUNCTIONS = ("__repr__", "__str__")


@dataclass(frozen=True)
class Mutant:
    """One small change."""

    file: str
    """Below ``src/whimbrel``, as ``core/check.py``."""
    function: str
    """As ``Class.method``; the class, or ``(module)``, when it stands outside of functions."""
    kind: str
    line: int
    lines: tuple[int, ...]
    """The lines of the statement, or of its head."""
    start: int
    """Where the replaced bytes begin."""
    end: int
    text: str
    """What takes their place."""
    old: str
    """The lines before, runs of blanks as one."""
    new: str
    twin: int = 1
    """Which one of those that read alike within the function."""

    @property
    def name(self) -> str:
        """What tells it from every other one, and survives changes elsewhere."""
        twin = f" #{self.twin}" if self.twin > 1 else ""
        return f"{self.file} | {self.function} | {self.old} => {self.new}{twin}"

    @property
    def id(self) -> str:
        """A short form of the name."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:ID_DIGITS]

    @property
    def module(self) -> str:
        """The dotted name of its module."""
        parts = ("whimbrel", *Path(self.file).with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def source(self) -> bytes:
        """The whole file with the change."""
        data = (PACKAGE / self.file).read_bytes()
        return data[: self.start] + self.text.encode() + data[self.end :]


def mutants_of(file: str) -> list[Mutant]:
    """All mutants of a file below ``src/whimbrel``, in the order of the text."""
    data = (PACKAGE / file).read_bytes()
    finder = _Finder(file, data)
    finder.walk(ast.parse(data), "(module)", None)
    found: dict[tuple[int, int, str], Mutant] = {}
    for mutant in finder.found:
        found.setdefault((mutant.start, mutant.end, mutant.text), mutant)
    ordered = sorted(found.values(), key=lambda one: (one.start, one.end, one.text))
    seen: dict[str, int] = {}
    named = []
    for mutant in ordered:
        seen[mutant.name] = seen.get(mutant.name, 0) + 1
        named.append(replace(mutant, twin=seen[mutant.name]))
    return named


def core_files() -> list[str]:
    """The files of the core, and of structures what knows no clients, sorted."""
    structures = [
        path
        for path in (PACKAGE / "structures").rglob("*.py")
        if "whimbrel.serving" not in path.read_text()
    ]
    found = [*(PACKAGE / "core").rglob("*.py"), *structures]
    return sorted(str(path.relative_to(PACKAGE)) for path in found)


def drawn(mutants: list[Mutant], seed: int, count: int) -> list[Mutant]:
    """A sample that stays what it is where the code stays what it is: the lowest hashes."""

    def lot(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed}:{mutant.name}".encode()).hexdigest()

    return sorted(mutants, key=lot)[:count]


def one_line(text: str) -> str:
    """A text with every run of blanks as one."""
    return " ".join(text.split())


class _Finder:
    """Walks a tree and notes what can be changed."""

    def __init__(self, file: str, data: bytes) -> None:
        self.file = file
        self.data = data
        self.found: list[Mutant] = []
        self._begins = [0]
        for line in data.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))

    # -- walking --------------------------------------------------------------------------

    def walk(self, node: ast.AST, scope: str, statement: ast.stmt | None) -> None:
        """Note the node's mutants, then those below it."""
        if isinstance(node, ast.stmt):
            statement = node
            if _is_untouched(node):
                return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            scope = node.name if scope == "(module)" else f"{scope}.{node.name}"
        if statement is not None:
            for kind, start, end, text in self._changes(node, statement):
                self._note(kind, scope, statement, (start, end, text))
        for child in _children(node, self.file):
            self.walk(child, scope, statement)

    def _note(
        self, kind: str, scope: str, statement: ast.stmt, change: tuple[int, int, str]
    ) -> None:
        start, end, text = change
        first = self.data.rfind(b"\n", 0, start) + 1
        last = self.data.find(b"\n", end)
        last = len(self.data) if last < 0 else last
        old = self.data[first:last].decode()
        new = (self.data[first:start] + text.encode() + self.data[end:last]).decode()
        self.found.append(
            Mutant(
                file=self.file,
                function=scope,
                kind=kind,
                line=self.data.count(b"\n", 0, start) + 1,
                lines=_head_lines(statement),
                start=start,
                end=end,
                text=text,
                old=one_line(old),
                new=one_line(new),
            )
        )

    # -- what can be changed ----------------------------------------------------------------

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        begin = self._begins[node.lineno - 1] + node.col_offset
        end = self._begins[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return begin, end

    def _text(self, node: ast.expr) -> str:
        begin, end = self._span(node)
        return self.data[begin:end].decode()

    def _changes(self, node: ast.AST, statement: ast.stmt) -> Iterator[tuple[str, int, int, str]]:
        """Kind, begin, end and new text of every change of this very node."""
        if isinstance(node, ast.stmt):
            yield from self._changes_of_statement(node)
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield from self._changes_of_condition(node.test, isinstance(node, ast.If))
        elif isinstance(node, ast.comprehension):
            for condition in node.ifs:
                yield from self._changes_of_condition(condition, True)
        elif isinstance(node, ast.BoolOp):
            yield from self._changes_of_bool(node)
        elif isinstance(node, ast.Compare):
            yield from self._changes_of_compare(node)
        elif isinstance(node, ast.BinOp):
            yield from self._changes_of_sign(node, statement)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield ("not", *self._span(node), f"({self._text(node.operand)})")
        elif isinstance(node, ast.Constant):
            yield from self._changes_of_constant(node)
        elif isinstance(node, ast.Name) and node.id in OPPOSITES:
            yield ("opposite", *self._span(node), OPPOSITES[node.id])

    def _changes_of_statement(self, node: ast.stmt) -> Iterator[tuple[str, int, int, str]]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if _called(node.value) not in SILENT_CALLS:
                yield ("drop call", *self._span(node), "pass")
        elif isinstance(node, ast.Assign):
            if not any(isinstance(target, ast.Name | ast.Tuple) for target in node.targets):
                yield ("drop assignment", *self._span(node), "pass")
        elif isinstance(node, ast.AugAssign):
            yield ("drop assignment", *self._span(node), "pass")
            sign = SIGNS.get(type(node.op))
            if sign is not None:
                begin, end = self._between(node.target, node.value, sign[0] + "=")
                yield ("sign", begin, end, sign[1] + "=")
        elif isinstance(node, ast.Delete):
            yield ("drop deletion", *self._span(node), "pass")
        elif isinstance(node, ast.Continue | ast.Break) or (
            isinstance(node, ast.Return) and node.value is None
        ):
            yield ("drop jump", *self._span(node), "pass")
        elif isinstance(node, ast.For):
            yield ("no loop", *self._span(node.iter), "()")

    def _changes_of_condition(
        self, test: ast.expr, both: bool
    ) -> Iterator[tuple[str, int, int, str]]:
        opposed = (
            isinstance(test, ast.Compare)
            and len(test.ops) == 1
            and isinstance(test.ops[0], OPPOSED_BY_NEGATION)
        ) or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))
        if not opposed:
            yield ("negate", *self._span(test), f"(not ({self._text(test)}))")
        if both:
            yield ("always", *self._span(test), "True")
            yield ("never", *self._span(test), "False")

    def _changes_of_bool(self, node: ast.BoolOp) -> Iterator[tuple[str, int, int, str]]:
        word, other = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
        parts = [f"({self._text(value)})" for value in node.values]
        yield ("and or", *self._span(node), f"({other.join(parts)})")
        for index in range(len(parts)):
            rest = [*parts[:index], *parts[index + 1 :]]
            yield ("drop condition", *self._span(node), f"({word.join(rest)})")

    def _changes_of_compare(self, node: ast.Compare) -> Iterator[tuple[str, int, int, str]]:
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            begin, end = self._span(left)[1], self._span(right)[0]
            middle = self.data[begin:end].decode()
            closing = middle[: len(middle) - len(middle.lstrip(") \n"))]
            opening = middle[len(middle.rstrip("( \n")) :]
            yield ("compare", begin, end, f"{closing or ' '}{FLIPPED[type(op)]}{opening or ' '}")
            left = right

    def _changes_of_sign(
        self, node: ast.BinOp, statement: ast.stmt
    ) -> Iterator[tuple[str, int, int, str]]:
        sign = SIGNS.get(type(node.op))
        names_types = sign is not None and sign[0] == "|" and _is_of_types(node, statement)
        if sign is not None and not names_types:
            begin, end = self._between(node.left, node.right, sign[0])
            yield ("sign", begin, end, sign[1])

    def _between(self, left: ast.expr, right: ast.expr, sign: str) -> tuple[int, int]:
        """Where the sign between two operands stands."""
        begin = self.data.index(sign.encode(), self._span(left)[1], self._span(right)[0])
        return begin, begin + len(sign)

    def _changes_of_constant(self, node: ast.Constant) -> Iterator[tuple[str, int, int, str]]:
        if isinstance(node.value, bool):
            yield ("constant", *self._span(node), str(not node.value))
        elif isinstance(node.value, int):
            yield ("constant", *self._span(node), f"({node.value + 1})")
            yield ("constant", *self._span(node), f"({node.value - 1})")


def _called(call: ast.Call) -> str:
    """The last name of what is called."""
    func = call.func
    return func.id if isinstance(func, ast.Name) else getattr(func, "attr", "")


def _is_of_types(node: ast.BinOp, statement: ast.stmt) -> bool:
    """Whether ``A | B`` joins types: names in capitals, or an alias of the module."""
    names = [one for one in (node.left, node.right) if isinstance(one, ast.Name | ast.Attribute)]
    words = [one.id if isinstance(one, ast.Name) else one.attr for one in names]
    return any(word[:1].isupper() and not word.isupper() for word in words) or (
        statement.col_offset == 0 and isinstance(statement, ast.Assign | ast.AnnAssign)
    )


def _is_untouched(node: ast.stmt) -> bool:
    """Whether nothing in a statement is changed."""
    if isinstance(node, ast.FunctionDef):
        return node.name in UNTOUCHED_FUNCTIONS
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(one, ast.Name) and one.id.isupper() for one in targets)
    is_note = (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and _called(node.value) == "note"
    )
    return is_note or isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.Pass)


def _children(node: ast.AST, file: str) -> Iterator[ast.AST]:
    """What is below a node and may be changed."""
    if isinstance(node, ast.AnnAssign):
        is_default = file == SETTINGS and isinstance(node.value, ast.Constant)
        if node.value is not None and not is_default:
            yield node.value
    elif isinstance(node, ast.arguments):
        yield from node.defaults
        yield from (default for default in node.kw_defaults if default is not None)
    elif isinstance(node, ast.FunctionDef):
        yield node.args
        yield from node.body
    elif isinstance(node, ast.ClassDef):
        yield from node.body
    elif isinstance(node, ast.Call) and _called(node) == "check":
        yield from node.args[:1]
    elif not isinstance(node, ast.JoinedStr):
        yield from ast.iter_child_nodes(node)


def _head_lines(node: ast.stmt) -> tuple[int, ...]:
    """The lines of a statement without those of the statements in it."""
    last = node.end_lineno or node.lineno
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
        last = max(node.lineno, body[0].lineno - 1)
    return tuple(range(node.lineno, last + 1))
