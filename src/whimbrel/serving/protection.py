"""Split-brain protection: a part of the cluster that is too small refuses to serve structures.

While the member list has fewer data members than a structure's minimum size, its protected requests
are answered at once with the protocol's split-brain protection error. The minimum size is
``KIND.PATTERN.split_brain_minimum_size`` or else ``split_brain_protection.minimum_size``. Until a
cut-off member is off the list (a heartbeat time-out) both parts serve; docs/guarantees.md says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from whimbrel.core.context import Context
from whimbrel.core.kinds import StructureKind
from whimbrel.core.settings import DEFAULT_PATTERN, CoreSettings, ProtectedSettings
from whimbrel.errors import SplitBrainProtectionError
from whimbrel.serving.operations import Effect, Operation

NAMES_CACHED_MAX = 10_000
"""Names whose rule is remembered while requests are refused; then the memory starts again."""


@dataclass(slots=True, eq=False)
class Rule:
    """What holds for the structures of one kind whose name fits a pattern."""

    kind: str
    pattern: str
    minimum_size: int
    """Data members below which requests are refused; 0 never."""
    key: str
    """The configuration key that says so."""
    protects: str
    is_refusing: bool = False

    def refuses(self, effect: Effect) -> bool:
        """Whether operations with this effect are refused now."""
        return self.is_refusing and self.protects in (effect.value, "read_write")

    def document(self) -> dict[str, object]:
        """What operators see."""
        return {
            "minimum_size": self.minimum_size,
            "protects": self.protects,
            "refusing": self.is_refusing,
        }


class Protection:
    """For which structures this member refuses."""

    def __init__(self, ctx: Context, kinds: Iterable[StructureKind]) -> None:
        """Begin unprotected; ``members_changed`` decides with the first list."""
        self._ctx = ctx
        self._kinds = {
            kind.name: kind for kind in kinds if issubclass(kind.settings_type, ProtectedSettings)
        }
        self._rules = [rule for kind in self._kinds.values() for rule in _rules(kind, ctx.settings)]
        """Of each kind that of the default pattern first."""
        self._by_pattern = {(rule.kind, rule.pattern): rule for rule in self._rules}
        self._by_name: dict[tuple[str, bytes], Rule] = {}
        self._refused: dict[tuple[str, Effect], None] = {}
        """Effects that some rule of a kind refuses."""

    @property
    def size(self) -> int:
        """Data members on our list."""
        return len(self._ctx.data_members())

    @property
    def is_refusing(self) -> bool:
        """Whether some structures are refused."""
        return bool(self._refused)

    def members_changed(self) -> None:
        """A member list is installed: refuse or serve from now on."""
        size = self.size
        for rule in self._rules:
            if rule.is_refusing != (size < rule.minimum_size):
                rule.is_refusing = not rule.is_refusing
                self._note(rule)
        self._refused = {
            (rule.kind, effect): None
            for rule in self._rules
            for effect in Effect
            if rule.refuses(effect)
        }
        self._by_name.clear()

    def _note(self, rule: Rule) -> None:
        """Tell operators that a rule begins or ends to refuse."""
        refuses = rule.is_refusing
        self._ctx.note(
            "split_brain_protection.refusing" if refuses else "split_brain_protection.serving",
            "warning" if refuses else "info",
            **{plural(rule.kind): rule.pattern},
            members=self.size,
            minimum_size=rule.minimum_size,
            protects=rule.protects,
        )

    def document(self) -> dict[str, object] | None:
        """What operators see; None when nothing is configured.

        The rule of a pattern is told where it differs from the one that is told first.
        """
        if not any(rule.minimum_size for rule in self._rules):
            return None
        first = self._rules[0]
        found = {**first.document(), "data_members": self.size}
        special: dict[str, dict[str, object]] = {}
        for rule in self._rules:
            if (rule.minimum_size, rule.protects) != (first.minimum_size, first.protects):
                special.setdefault(plural(rule.kind), {})[rule.pattern] = rule.document()
        return {**found, **special}

    # -- requests -------------------------------------------------------------------------

    def may_refuse(self, operation: Operation[Any]) -> bool:
        """Whether an operation is refused for some structure of its kind."""
        return (operation.kind, operation.effect) in self._refused

    def admit(self, kind: str, effect: Effect, name: bytes) -> None:
        """Let an operation on a structure pass or refuse it; what is no name is its handler's.

        Raises:
            SplitBrainProtectionError: It is protected, and this part is too small for it.
        """
        rule = self._rule_of(kind, name)
        if rule is None or not rule.refuses(effect):
            return
        what = {"write": "writes", "read": "reads"}.get(rule.protects, "reads and writes")
        raise SplitBrainProtectionError(
            f"{what} are refused: this part of the cluster has {self.size} data members, "
            f"{rule.key} asks for {rule.minimum_size}; "
            "try again when more members are back"
        )

    def _rule_of(self, kind: str, name: bytes) -> Rule | None:
        rule = self._by_name.get((kind, name))
        if rule is None:
            if kind not in self._kinds:
                return None
            try:
                settings_type = self._kinds[kind].settings_type
                pattern = self._ctx.settings.structure(settings_type, name.decode()).pattern
            except UnicodeDecodeError:
                return None
            if len(self._by_name) >= NAMES_CACHED_MAX:
                self._by_name.clear()
            rule = self._by_name[kind, name] = self._by_pattern[kind, pattern]
        return rule


def plural(kind: str) -> str:
    """What documents and notes call the structures of a kind: ``maps``."""
    return f"{kind}s"


def _rules(kind: StructureKind, settings: CoreSettings) -> list[Rule]:
    """The rules of all patterns of a kind; what a pattern leaves open is as for the default one."""
    entries = {
        entry.pattern: entry
        for entry in settings.structures
        if isinstance(entry, ProtectedSettings) and isinstance(entry, kind.settings_type)
    }
    default = entries.pop(DEFAULT_PATTERN, ProtectedSettings(DEFAULT_PATTERN))
    size, key = settings.split_brain_minimum_size, "split_brain_protection.minimum_size"
    shared = _rule(kind.name, default, size, key, settings.split_brain_protects)
    size, key, protects = shared.minimum_size, shared.key, shared.protects
    return [shared, *(_rule(kind.name, one, size, key, protects) for one in entries.values())]


def _rule(kind: str, entry: ProtectedSettings, size: int, key: str, protects: str) -> Rule:
    """The rule of one pattern, given what holds where it says nothing."""
    if entry.split_brain_minimum_size is not None:
        size = entry.split_brain_minimum_size
        key = f"{kind}.{entry.pattern}.split_brain_minimum_size"
    return Rule(kind, entry.pattern, size, key, entry.split_brain_protects or protects)
