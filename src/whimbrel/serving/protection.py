"""Split-brain protection: a part of the cluster that is too small refuses to serve maps.

While the member list has fewer data members than a map's minimum size, its protected requests are
answered at once with the protocol's split-brain protection error. The minimum size of a map is
``map.PATTERN.split_brain_minimum_size`` or else ``split_brain_protection.minimum_size``. Until a
cut-off member is off the list (a heartbeat time-out) both parts serve; docs/guarantees.md says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whimbrel.core.context import Context
from whimbrel.core.registry import MAP_KIND
from whimbrel.core.settings import CoreSettings, ProtectedSettings
from whimbrel.core.structures.map_settings import MapSettings
from whimbrel.errors import SplitBrainProtectionError
from whimbrel.serving.operations import Effect, Operation

NAMES_CACHED_MAX = 10_000
"""Map names whose rule is remembered while requests are refused; then the memory starts again."""
DEFAULT = "default"
"""Pattern of the maps that no other pattern fits."""


@dataclass(slots=True, eq=False)
class Rule:
    """What holds for the maps of one pattern."""

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
    """For which maps this member refuses."""

    def __init__(self, ctx: Context) -> None:
        """Begin unprotected; ``members_changed`` decides with the first list."""
        self._ctx = ctx
        self._rules = _rules(ctx.settings)
        """The rule of all other maps first, then those of the patterns."""
        self._by_pattern = {rule.pattern: rule for rule in self._rules}
        self._by_name: dict[bytes, Rule] = {}
        self._refused: tuple[Effect, ...] = ()
        """Effects that some rule refuses."""

    @property
    def size(self) -> int:
        """Data members on our list."""
        return len(self._ctx.data_members())

    @property
    def is_refusing(self) -> bool:
        """Whether some maps are refused."""
        return any(rule.is_refusing for rule in self._rules)

    def members_changed(self) -> None:
        """A member list is installed: refuse or serve from now on."""
        size = self.size
        for rule in self._rules:
            if rule.is_refusing != (size < rule.minimum_size):
                rule.is_refusing = not rule.is_refusing
                self._note(rule)
        self._refused = tuple(
            effect for effect in Effect if any(rule.refuses(effect) for rule in self._rules)
        )
        self._by_name.clear()

    def _note(self, rule: Rule) -> None:
        """Tell operators that a rule begins or ends to refuse."""
        refuses = rule.is_refusing
        self._ctx.note(
            "split_brain_protection.refusing" if refuses else "split_brain_protection.serving",
            "warning" if refuses else "info",
            maps=rule.pattern,
            members=self.size,
            minimum_size=rule.minimum_size,
            protects=rule.protects,
        )

    def _special(self) -> list[Rule]:
        """The rules of patterns for which something else holds than for the other maps."""
        default = self._rules[0]
        mine = (default.minimum_size, default.protects)
        return [rule for rule in self._rules if (rule.minimum_size, rule.protects) != mine]

    def document(self) -> dict[str, object] | None:
        """What operators see; None when nothing is configured."""
        if not any(rule.minimum_size for rule in self._rules):
            return None
        special = {rule.pattern: rule.document() for rule in self._special()}
        found = {**self._rules[0].document(), "data_members": self.size}
        return {**found, "maps": special} if special else found

    # -- requests -------------------------------------------------------------------------

    def may_refuse(self, operation: Operation[Any]) -> bool:
        """Whether an operation is refused for some map."""
        return operation.effect in self._refused and operation.kind == MAP_KIND

    def admit(self, operation: Operation[Any], name: bytes) -> None:
        """Let an operation on a map pass or refuse it; a name that is none is its handler's.

        Raises:
            SplitBrainProtectionError: It is protected, and this part is too small for it.
        """
        rule = self._rule_of(name)
        if rule is None or not rule.refuses(operation.effect):
            return
        what = {"write": "writes", "read": "reads"}.get(rule.protects, "reads and writes")
        raise SplitBrainProtectionError(
            f"{what} are refused: this part of the cluster has {self.size} data members, "
            f"{rule.key} asks for {rule.minimum_size}; "
            "try again when more members are back"
        )

    def _rule_of(self, name: bytes) -> Rule | None:
        rule = self._by_name.get(name)
        if rule is None:
            try:
                pattern = self._ctx.settings.structure(MapSettings, name.decode()).pattern
            except UnicodeDecodeError:
                return None
            if len(self._by_name) >= NAMES_CACHED_MAX:
                self._by_name.clear()
            rule = self._by_name[name] = self._by_pattern[pattern]
        return rule


def _rules(settings: CoreSettings) -> list[Rule]:
    """The rules of all map patterns; what a pattern leaves open is as for all other maps."""
    protected = [entry for entry in settings.structures if isinstance(entry, ProtectedSettings)]
    default = ProtectedSettings(DEFAULT)
    for entry in protected:
        if entry.pattern == DEFAULT:
            default = entry
    shared = _rule(
        default,
        settings.split_brain_minimum_size,
        "split_brain_protection.minimum_size",
        settings.split_brain_protects,
    )
    others = [entry for entry in protected if entry.pattern != DEFAULT]
    return [
        shared,
        *(_rule(entry, shared.minimum_size, shared.key, shared.protects) for entry in others),
    ]


def _rule(entry: ProtectedSettings, size: int, key: str, protects: str) -> Rule:
    """The rule of one pattern, given what holds for maps that say nothing."""
    if entry.split_brain_minimum_size is not None:
        size = entry.split_brain_minimum_size
        key = f"map.{entry.pattern}.split_brain_minimum_size"
    return Rule(entry.pattern, size, key, entry.split_brain_protects or protects)
