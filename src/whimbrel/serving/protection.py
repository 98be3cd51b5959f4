"""Split-brain protection: a part of the cluster that is too small refuses to serve maps.

While the member list has fewer data members than a map's minimum size, its protected requests are
answered at once with the protocol's split-brain protection error. The minimum size of a map is
``map.PATTERN.split_brain_minimum_size`` or else ``split_brain_protection.minimum_size``. Guards are
put before the ordinary handlers when a list is installed that is too short for some maps, and taken
away afterwards, so an unprotected or healthy cluster pays nothing per request. Until a cut-off
member is off the list (a heartbeat time-out) both parts serve; docs/guarantees.md says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from whimbrel.core.ids import PartitionId
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.settings import CoreSettings, MapSettings
from whimbrel.errors import SplitBrainProtectionError
from whimbrel.serving import scatter
from whimbrel.serving.session import Connection, Origin
from whimbrel.wire.frames import RawMessage
from whimbrel.wire.protocol_table import message_type

if TYPE_CHECKING:
    from whimbrel.serving.scatter import Execute, Share
    from whimbrel.serving.server import (
        PartitionOperation,
        RunOnConnection,
        RunOnPartition,
        Server,
    )

K = TypeVar("K")
V = TypeVar("V")

WRITES = ("Map.clear", "Map.evictAll", "Client.destroyProxy")
"""Protected writes that belong to no partition."""
READS = ("Map.size", "Map.isEmpty", "Map.containsValue", "Map.keySet", "Map.values", "Map.entrySet")
"""Protected reads that belong to no partition."""
NAMES_CACHED_MAX = 10_000
"""Map names whose rule is remembered while requests are refused; then the memory starts again."""
DEFAULT = "default"
"""Pattern of the maps that no other pattern fits."""


class Rule:
    """What holds for the maps of one pattern."""

    __slots__ = ("is_refusing", "key", "minimum_size", "pattern", "protects")

    def __init__(self, pattern: str, minimum_size: int, key: str, protects: str) -> None:
        self.pattern = pattern
        self.minimum_size = minimum_size
        """Data members below which requests are refused; 0 never."""
        self.key = key
        """The configuration key that says so."""
        self.protects = protects
        self.is_refusing = False

    def refuses(self, *, write: bool) -> bool:
        """Whether such a request is refused now."""
        return self.is_refusing and self.protects in ("write" if write else "read", "read_write")

    def document(self) -> dict[str, object]:
        """What operators see."""
        return {
            "minimum_size": self.minimum_size,
            "protects": self.protects,
            "refusing": self.is_refusing,
        }


class Protection:
    """For which maps this member refuses, and the handlers that it has put aside meanwhile."""

    def __init__(self, server: Server) -> None:
        """Begin unprotected; ``members_changed`` decides with the first list."""
        self._server = server
        self._rules = _rules(server.ctx.settings)
        """The rule of all other maps first, then those of the patterns."""
        self._by_pattern = {rule.pattern: rule for rule in self._rules}
        self._by_name: dict[bytes, Rule] = {}
        self._put_aside: list[Callable[[], None]] = []

    @property
    def size(self) -> int:
        """Data members on our list."""
        return len(self._server.ctx.data_members())

    @property
    def is_refusing(self) -> bool:
        """Whether some maps are refused."""
        return any(rule.is_refusing for rule in self._rules)

    def members_changed(self) -> None:
        """A member list is installed: refuse or serve from now on."""
        size = self.size
        changed = [rule for rule in self._rules if rule.is_refusing != (size < rule.minimum_size)]
        for rule in changed:
            rule.is_refusing = not rule.is_refusing
        if not changed:
            return
        for put_back in self._put_aside:
            put_back()
        self._put_aside.clear()
        self._by_name.clear()
        if self.is_refusing:
            self._put_guards()
        for rule in changed:
            self._note(rule)

    def _note(self, rule: Rule) -> None:
        """Tell operators that a rule begins or ends to refuse."""
        refuses = rule.is_refusing
        self._server.ctx.note(
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

    def _check(self, rule: Rule | None, *, write: bool) -> None:
        """Let a request to a map pass or refuse it.

        Raises:
            SplitBrainProtectionError: It is protected, and this part is too small for it.
        """
        if rule is None or not rule.refuses(write=write):
            return
        what = {"write": "writes", "read": "reads"}.get(rule.protects, "reads and writes")
        raise SplitBrainProtectionError(
            f"{what} are refused: this part of the cluster has {self.size} data members, "
            f"{rule.key} asks for {rule.minimum_size}; "
            "try again when more members are back"
        )

    def _rule_of(self, message: RawMessage) -> Rule | None:
        """The rule of the map that a request names first; None for a name that is none."""
        frames = message[3]
        raw = bytes(message[0][frames[2] : frames[3]]) if len(frames) >= 4 else b""
        rule = self._by_name.get(raw)
        if rule is None:
            try:
                rule = self._rule_named(raw.decode())
            except UnicodeDecodeError:
                return None  # the handler refuses it, with the right words
            if len(self._by_name) >= NAMES_CACHED_MAX:
                self._by_name.clear()
            self._by_name[raw] = rule
        return rule

    def _rule_named(self, name: str) -> Rule:
        return self._by_pattern[self._server.ctx.settings.map_settings(name).pattern]

    # -- handlers -------------------------------------------------------------------------

    def _put_guards(self) -> None:
        """Put a check before every handler of a request that some map may refuse."""
        refusing = [rule for rule in self._rules if rule.is_refusing]
        writes = any(rule.refuses(write=True) for rule in refusing)
        reads = any(rule.refuses(write=False) for rule in refusing)
        server = self._server
        for operation in server.partition_operations.values():
            if writes if operation.write else reads:
                self._put_aside.append(_restorer(operation, operation.run))
                operation.run = self._guard_partition(operation.run, operation.write)
        others = server.connection_operations
        for name in (*(WRITES if writes else ()), *(READS if reads else ())):
            kind = message_type(name)
            run = others.get(kind)
            if run is not None:
                self._put_aside.append(_item_restorer(others, kind, run))
                others[kind] = self._guard_connection(run, name in WRITES)
        executors = server.scatter.executors
        for name in sorted(executors):
            is_write = name in scatter.WRITES
            if writes if is_write else reads:
                self._put_aside.append(_item_restorer(executors, name, executors[name]))
                executors[name] = self._guard_share(executors[name], is_write)

    def _guard_partition(self, run: RunOnPartition, write: bool) -> RunOnPartition:
        def guarded(origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
            self._check(self._rule_of(message), write=write)
            run(origin, partition, message)

        return guarded

    def _guard_connection(self, run: RunOnConnection, write: bool) -> RunOnConnection:
        def guarded(connection: Connection, message: RawMessage) -> None:
            self._check(self._rule_of(message), write=write)
            run(connection, message)

        return guarded

    def _guard_share(self, execute: Execute, write: bool) -> Execute:
        def guarded(
            name: str,
            argument: bytes,
            partitions: Sequence[PartitionId],
            done: Callable[[Share], None],
        ) -> None:
            self._check(self._rule_named(name), write=write)
            execute(name, argument, partitions, done)

        return guarded


def _rules(settings: CoreSettings) -> list[Rule]:
    """The rules of all map patterns; what a pattern leaves open is as for all other maps."""
    default = MapSettings(DEFAULT)
    for entry in settings.maps:
        if entry.pattern == DEFAULT:
            default = entry
    shared = _rule(
        default,
        settings.split_brain_minimum_size,
        "split_brain_protection.minimum_size",
        settings.split_brain_protects,
    )
    others = [entry for entry in settings.maps if entry.pattern != DEFAULT]
    return [
        shared,
        *(_rule(entry, shared.minimum_size, shared.key, shared.protects) for entry in others),
    ]


def _rule(entry: MapSettings, size: int, key: str, protects: str) -> Rule:
    """The rule of one pattern, given what holds for maps that say nothing."""
    if entry.split_brain_minimum_size is not None:
        size = entry.split_brain_minimum_size
        key = f"map.{entry.pattern}.split_brain_minimum_size"
    return Rule(entry.pattern, size, key, entry.split_brain_protects or protects)


def _restorer(operation: PartitionOperation, run: RunOnPartition) -> Callable[[], None]:
    def put_back() -> None:
        operation.run = run

    return put_back


def _item_restorer(table: dict[K, V], key: K, value: V) -> Callable[[], None]:
    def put_back() -> None:
        table[key] = value

    return put_back
