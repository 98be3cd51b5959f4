"""Merging file, environment and flags into one checked configuration.

Precedence: default < file < environment < flags. Every value that is given is checked, also one
that a stronger source overrides, and all problems are told at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from whimbrel.config.keys import (
    ADMIN_OFFSET,
    BY_ALIAS,
    BY_NAME,
    KEYS,
    PORT_MAX,
    SECTIONS,
    SETTINGS_TYPES,
    STRUCTURE_KEYS,
    Key,
    Kind,
)
from whimbrel.config.settings import Config, Entry, RuntimeSettings, Value
from whimbrel.config.tomlfile import FileProblemError, read_file
from whimbrel.config.values import (
    from_native,
    from_text,
    is_loopback,
    is_wildcard,
    parse_address,
    shown,
)
from whimbrel.core.partition.groups import parse_patterns
from whimbrel.core.settings import (
    DEFAULT_PATTERN,
    CoreSettings,
    PersistenceSettings,
    StructureSettings,
)
from whimbrel.errors import ConfigError, UsageError

ENVIRONMENT_PREFIX = "WHIMBREL_"
PATTERNS_MAX = 1_000
"""Patterns of a kind; every first use of a structure compares its name with all of them."""
PATTERN_LENGTH_MAX = 255
NEAR = 0.6
"""How alike (0 to 1) a known name must be to be suggested."""


class Flag(msgspec.Struct, frozen=True):
    """A value from the command line or from a program.

    ``shown`` is the flag as typed (``--port``); text values are parsed, others are only checked.
    """

    key: str
    value: object
    shown: str


class _Given(msgspec.Struct, frozen=True):
    """One value somebody gave, before it is understood."""

    name: str
    value: object
    where: str
    """Prefix of messages about it."""
    source: str
    """What ``config explain`` says about it."""
    is_text: bool = False
    is_property: bool = False
    problem: str = ""
    """Set when it is known from its place alone that it cannot be understood."""


class _Taken(msgspec.Struct, frozen=True):
    """A value that was understood."""

    value: Value
    where: str
    source: str


class _Work:
    """What one load has found so far."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.taken: dict[str, _Taken] = {}
        self.patterns: dict[tuple[str, str], None] = {}
        """Kind and pattern of the structures that somebody gave something for."""
        self.broken: dict[str, None] = {}
        """Keys with a wrong value; rules that need them are not checked."""

    def value(self, name: str) -> Value:
        """The effective value of a key, its default when nobody gave one."""
        if name in self.taken:
            return self.taken[name].value
        shared = self._shared(name)
        if shared in self.taken or shared in BY_NAME:
            return self.value(shared)
        return _key_named(name).default

    def _shared(self, name: str) -> str:
        """The key whose value holds where this one is not given; empty when there is none.

        What a pattern leaves open is as for all others of its kind, then as for the cluster, so
        that a pattern that only sets a lifetime does not silently lower the number of backups.
        """
        key = _key_named(name)
        if name not in BY_NAME:
            of_default = f"{key.section}.{DEFAULT_PATTERN}.{key.name}"
            if of_default in self.taken:
                return of_default
        return key.shared

    def source(self, name: str) -> str:
        """Where the effective value comes from."""
        if name in self.taken:
            return self.taken[name].source
        shared = self._shared(name)
        return f"as {shared}" if shared in self.taken else "default"

    def sound(self, *names: str) -> bool:
        """Whether all these keys have values worth comparing."""
        return not any(name in self.broken for name in names)

    def blame(self, *names: str) -> str:
        """Where the first of these keys that was given stands."""
        for name in names:
            if name in self.taken:
                return self.taken[name].where
        return names[0]


def _key_named(name: str) -> Key:
    """The key of a full name that was resolved."""
    return BY_NAME.get(name) or STRUCTURE_KEYS[name.split(".")[0]][name.rpartition(".")[2]]


def load(
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Sequence[Flag] = (),
    settings: Sequence[str] = (),
) -> Config:
    """Read, merge and check a configuration.

    Args:
        file: Path of a TOML file, or None.
        environment: Environment variables; those that begin with ``WHIMBREL_`` and contain
            ``__`` are keys.
        flags: Strongest values; the last one of a key wins.
        settings: Texts ``key=value`` of ``--set``; stronger than the environment.

    Returns:
        The settings, and every key with its value and source.

    Raises:
        ConfigError: One sentence per problem, each with its place (``FILE:LINE:``).
    """
    work = _Work()
    for given in (
        *_file_values(file, work),
        *_environment_values(environment or {}, work),
        *_flag_values([*_setting_flags(settings, work), *flags]),
    ):
        _take(given, work)
    _check_together(work)
    if work.problems:
        raise ConfigError(work.problems)
    return _build(work)


def split_setting(text: str) -> Flag:
    """The flag ``--set key=value``.

    Raises:
        ConfigError: There is no ``=``.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError([f"--set {shown(text)}: must be written key=value"])
    return Flag(name.strip(), value, f"--set {name.strip()}")


# -- sources ------------------------------------------------------------------------------


def _file_values(file: str | None, work: _Work) -> list[_Given]:
    """The values of a file; problems of the file as a whole go to ``work``."""
    if file is None:
        return []
    try:
        content = read_file(file)
    except FileProblemError as problem:
        work.problems.append(f"{_place(file, problem.line)} {problem.text}")
        return []
    unknown = [name for name in content.tables if name not in (*SECTIONS, "properties")]
    found: list[tuple[int, _Given]] = []
    for entry in content.values:
        first = entry.path[0]
        if first in unknown and len(entry.path) > 1:
            continue  # told once, below, for the whole table
        if first in unknown:
            unknown.remove(first)
        is_property = first == "properties"
        place = _place(file, entry.line)
        given = _Given(
            ".".join(entry.path[1:] if is_property else entry.path),
            entry.value,
            place,
            f"file {place.rstrip(':')}",
            is_text=is_property and isinstance(entry.value, str),
            is_property=is_property,
        )
        found.append((entry.line, given))
    for table in unknown:
        line = content.tables[table]
        text = f"unknown table [{table}]{_near(table, SECTIONS)}; known are {', '.join(SECTIONS)}"
        found.append((line, _Given(table, None, _place(file, line), "", problem=text)))
    return [given for _, given in sorted(found, key=lambda pair: pair[0])]


def _place(file: str, line: int) -> str:
    return f"{file}:{line}:" if line else f"{file}:"


def _environment_values(environment: Mapping[str, str], work: _Work) -> list[_Given]:
    """Keys from variables, sorted by variable so that messages have a stable order."""
    found: list[_Given] = []
    flat = {name.replace(".", "_").upper(): name for name in BY_NAME}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        rest = variable.removeprefix(ENVIRONMENT_PREFIX)
        if "__" not in rest:
            if rest in flat:  # a single underscore: surely meant as a key
                right = ENVIRONMENT_PREFIX + flat[rest].replace(".", "__").upper()
                work.problems.append(f"{variable}: write {right} for {flat[rest]}")
            continue
        parts = rest.lower().split("__")
        if parts[0] in STRUCTURE_KEYS and len(parts) > 3:  # a name may hold the separator
            parts = [parts[0], "__".join(parts[1:-1]), parts[-1]]
        found.append(
            _Given(
                ".".join(parts),
                environment[variable],
                f"{variable}:",
                f"environment {variable}",
                is_text=True,
            )
        )
    return found


def _setting_flags(texts: Sequence[str], work: _Work) -> list[Flag]:
    found: list[Flag] = []
    for text in texts:
        try:
            found.append(split_setting(text))
        except ConfigError as problem:
            work.problems += problem.problems
    return found


def _flag_values(flags: Sequence[Flag]) -> list[_Given]:
    return [
        _Given(
            flag.key,
            flag.value,
            f"{flag.shown}:",
            f"flag {flag.shown}",
            is_text=isinstance(flag.value, str),
        )
        for flag in flags
    ]


# -- understanding ------------------------------------------------------------------------


def _take(given: _Given, work: _Work) -> None:
    """Understand one value; it replaces a weaker one of the same key."""
    if given.problem:
        work.problems.append(f"{given.where} {given.problem}")
        return
    try:
        name, key, scale = _resolve(given)
    except LookupError as problem:
        work.problems.append(f"{given.where} {problem.args[0]}")
        return
    try:
        if given.is_text:
            value = from_text(key, str(given.value), scale)
        else:
            value = from_native(key, given.value, scale)
    except ValueError as problem:
        work.problems.append(f"{given.where} {name} {problem}")
        work.broken[name] = None
        return
    before = work.taken.get(name)
    if before is not None and before.where != given.where and _same_file(before, given):
        work.problems.append(f"{given.where} {name} is already set at {before.where.rstrip(':')}")
    if key.section in STRUCTURE_KEYS:
        work.patterns.setdefault((key.section, name.split(".", 1)[1].rpartition(".")[0]))
    work.taken[name] = _Taken(value, given.where, given.source)


def _same_file(before: _Taken, given: _Given) -> bool:
    """Whether both stand in the file: the key and its alias, or one key under two spellings."""
    return before.source.startswith("file ") and given.source.startswith("file ")


def _resolve(given: _Given) -> tuple[str, Key, float]:
    """The full name, the key and the unit factor of what was given.

    Raises:
        LookupError: There is no such key; the sentence names the nearest one.
    """
    name = given.name
    if given.is_property or name.startswith("properties."):
        name = name.removeprefix("properties.")
        if name not in BY_ALIAS:
            raise LookupError(f"unknown property {shown(name)}{_near(name, list(BY_ALIAS))}")
        return BY_ALIAS[name].name, BY_ALIAS[name], BY_ALIAS[name].alias_scale
    if name in BY_ALIAS:
        return BY_ALIAS[name].name, BY_ALIAS[name], BY_ALIAS[name].alias_scale
    if name in BY_NAME:
        return name, BY_NAME[name], 1
    if name in SECTIONS:
        raise LookupError(f"{name} is a table: write keys such as {_example(name)}")
    if name.split(".")[0] in STRUCTURE_KEYS:
        return _resolve_structure(name)
    raise LookupError(f"unknown key {shown(name)}{_near_key(name)}")


def _resolve_structure(name: str) -> tuple[str, Key, float]:
    """A key of ``KIND.PATTERN``; the pattern may hold dots, the key is what follows the last."""
    kind, _, rest = name.partition(".")
    pattern, _, leaf = rest.rpartition(".")
    keys = STRUCTURE_KEYS[kind]
    if not pattern:
        key = leaf or next(iter(keys))
        raise LookupError(f"unknown key {shown(name)}: write {kind}.PATTERN.{key}")
    if leaf not in keys:
        near = difflib.get_close_matches(leaf, list(keys), 1, NEAR)
        hint = f"; did you mean {kind}.{pattern}.{near[0]}?" if near else ""
        known = ", ".join(keys)
        raise LookupError(f"unknown key {shown(name)}{hint}; a {kind} has {known}")
    if "*" in pattern[:-1] or len(pattern) > PATTERN_LENGTH_MAX or not pattern.isprintable():
        raise LookupError(
            f"{shown(pattern)} is no {kind} pattern: a printable name of at most "
            f"{PATTERN_LENGTH_MAX} characters, with * only at its end"
        )
    return name, keys[leaf], 1


def _near(name: str, known: Sequence[str]) -> str:
    """``; did you mean ...?`` for the nearest known name, or nothing."""
    found = difflib.get_close_matches(name, known, 1, NEAR)
    return f"; did you mean {found[0]}?" if found else ""


def _near_key(name: str) -> str:
    """The nearest key: by its last word first, for keys put into the wrong table or none."""
    leaf = name.rpartition(".")[2]
    same_leaf = [known for known in BY_NAME if known.rpartition(".")[2] == leaf]
    if same_leaf:
        return f"; did you mean {' or '.join(same_leaf)}?"
    return _near(name, list(BY_NAME))


def _example(section: str) -> str:
    if section in STRUCTURE_KEYS:
        return f"{section}.{DEFAULT_PATTERN}.{next(iter(STRUCTURE_KEYS[section]))}"
    return next(name for name in BY_NAME if name.startswith(f"{section}."))


# -- rules that join several keys ---------------------------------------------------------


def _check_together(work: _Work) -> None:
    """Rules that no single value can break."""
    say = work.problems.append
    interval, timeout = "membership.heartbeat_interval_s", "membership.heartbeat_timeout_s"
    if work.sound(interval, timeout) and _number(work, timeout) < 2 * _number(work, interval):
        say(
            f"{work.blame(timeout, interval)} {timeout} ({work.value(timeout)}) must be at least "
            f"twice {interval} ({work.value(interval)})"
        )
    window, longest = "membership.join_window_s", "membership.join_window_max_s"
    if work.sound(window, longest) and _number(work, window) > _number(work, longest):
        say(
            f"{work.blame(window, longest)} {window} ({work.value(window)}) must not be above "
            f"{longest} ({work.value(longest)})"
        )
    for settings in _structures(work):
        where = f"{settings.kind}.{settings.pattern}"
        for fields, text in settings.problems():
            names = [f"{where}.{field}" for field in fields]
            if work.sound(*names):
                say(f"{work.blame(*names)} {text}")
    for kind in STRUCTURE_KEYS:
        count = sum(1 for of_kind, _ in work.patterns if of_kind == kind)
        if count > PATTERNS_MAX:
            say(f"{kind}: {count} patterns; at most {PATTERNS_MAX} are allowed")
    _check_network(work)
    _check_groups(work)
    _check_persistence(work)


def _number(work: _Work, name: str) -> float:
    value = work.value(name)
    return value if isinstance(value, int | float) else 0


def _check_groups(work: _Work) -> None:
    """Custom groups need patterns that make sense."""
    if work.value("partition.group") == "custom" and work.sound("partition.groups"):
        try:
            parse_patterns(str(work.value("partition.groups")))
        except UsageError as problem:
            work.problems.append(f"{work.blame('partition.groups')} {problem}")


def _check_persistence(work: _Work) -> None:
    """Data on disk need a place, and keys come from one."""
    is_sound = work.sound("persistence.enabled", "member.data_dir")
    if is_sound and work.value("persistence.enabled") and not work.value("member.data_dir"):
        work.problems.append(
            f"{work.blame('persistence.enabled')} persistence.enabled needs a directory for the "
            "files: give --data-dir DIR, or set member.data_dir"
        )
    encryption = "persistence.encryption"
    file, command, plain = (
        f"{encryption}.{leaf}" for leaf in ("key_file", "key_command", "plain_files")
    )
    if not work.sound(file, command, plain):
        return
    if work.value(file) and work.value(command):
        work.problems.append(f"{work.blame(command)} {file} is given as well; keys come from one")
    if work.value(plain) != "refuse" and not (work.value(file) or work.value(command)):
        work.problems.append(
            f"{work.blame(plain)} {plain} = {work.value(plain)} needs {file} or {command}: "
            "without a key nothing is encrypted"
        )


def _check_network(work: _Work) -> None:
    """Loopback unless told otherwise; addresses that others can use; ports that exist."""
    say = work.problems.append
    host = str(work.value("network.host"))
    trusted = work.value("network.insecure") or not work.sound("network.insecure")
    if not is_loopback(host) and not trusted:
        say(
            f"{work.blame('network.host')} {shown(host)} is not loopback and the port has neither "
            "encryption nor passwords; set network.insecure = true if the network is trusted"
        )
    advertise = str(work.value("network.advertise"))
    if is_wildcard(host) and not advertise and work.sound("network.advertise"):
        say(
            f"{work.blame('network.host')} {shown(host)} is no address that others can connect to; "
            "set network.advertise to this member's own address"
        )
    if advertise:
        try:
            parse_address(advertise, 1)
        except ValueError as problem:
            say(f"{work.blame('network.advertise')} {problem}")
    port, admin = work.value("network.port"), work.value("admin.port")
    too_high = isinstance(port, int) and port + ADMIN_OFFSET > PORT_MAX
    if too_high and admin is None and work.sound("admin.port"):
        say(
            f"{work.blame('network.port')} network.port {port} leaves no room for the admin port "
            f"(+ {ADMIN_OFFSET}); set admin.port"
        )
    if isinstance(port, int) and port and port == admin:
        say(f"{work.blame('admin.port')} admin.port and network.port are both {port}")


# -- building -----------------------------------------------------------------------------


def _build(work: _Work) -> Config:
    """The settings structs and the list for ``config explain``."""
    fields: dict[str, dict[str, Any]] = {"core": {}, "persistence": {}, "runtime": {}}
    entries: list[Entry] = []
    for key in KEYS:
        entries.append(Entry(key.name, work.value(key.name), work.source(key.name)))
        if key.name in work.taken or key.shared in work.taken:
            fields[key.section][key.field] = _field_value(key, work.value(key.name))
    structures = _structures(work)
    for settings in structures:
        for key in STRUCTURE_KEYS[settings.kind].values():
            name = f"{settings.kind}.{settings.pattern}.{key.name}"
            entries.append(Entry(name, work.value(name), work.source(name)))
    given = [one.normal() for one in structures if (one.kind, one.pattern) in work.patterns]
    core = CoreSettings(
        **fields["core"],
        persistence=PersistenceSettings(**fields["persistence"]),
        structures=tuple(given),
    )
    return Config(core, RuntimeSettings(**fields["runtime"]), tuple(entries))


def _structures(work: _Work) -> list[StructureSettings]:
    """The settings of every kind, those of all other structures first, with what was given."""
    found: list[StructureSettings] = []
    for settings in SETTINGS_TYPES:
        given = (pattern for kind, pattern in work.patterns if kind == settings.kind)
        for pattern in dict.fromkeys((DEFAULT_PATTERN, *given)):
            values: dict[str, Any] = {}
            for key in STRUCTURE_KEYS[settings.kind].values():
                name = f"{settings.kind}.{pattern}.{key.name}"
                is_open = bool(key.shared) and name not in work.taken
                values[key.field] = None if is_open else work.value(name)
            found.append(settings(pattern, **values))
    return found


def _field_value(key: Key, value: Value) -> Any:
    """A key's value in the unit and type of its field."""
    if key.kind is Kind.ADDRESSES and isinstance(value, tuple):
        return tuple(parse_address(part) for part in value)
    if key.scale != 1 and isinstance(value, int | float):
        return round(value * key.scale)
    return value
