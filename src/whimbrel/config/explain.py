"""The configuration as ``config explain`` and the documentation show it."""

from __future__ import annotations

from whimbrel.config.keys import KEYS, STRUCTURE_KEYS, Key, Kind
from whimbrel.config.settings import Config


def explain(config: Config) -> list[dict[str, object]]:
    """Every key with its effective value and its origin.

    Returns:
        ``[{"key": str, "value": JSON value, "source": str}, ...]`` in table order, structures last.
        The source names the file and line, the environment variable, the flag, or ``default``.
    """
    return [
        {
            "key": entry.key,
            "value": list(entry.value) if isinstance(entry.value, tuple) else entry.value,
            "source": entry.source,
        }
        for entry in config.entries
    ]


def describe() -> list[dict[str, str]]:
    """Every key as documentation lists it: ``key``, ``kind``, ``default``, ``range``, ``doc``,
    ``property`` (the old name, or empty). Structures stand as ``KIND.PATTERN.…``.
    """
    rows = [_described(key.name, key) for key in KEYS]
    for kind, keys in STRUCTURE_KEYS.items():
        rows += [_described(f"{kind}.PATTERN.{key.name}", key) for key in keys.values()]
    return rows


def _described(name: str, key: Key) -> dict[str, str]:
    allowed = ""
    if key.kind in (Kind.INTEGER, Kind.SECONDS):
        allowed = f"{key.minimum:.15g} to {key.maximum:.15g}"
    elif key.kind is Kind.CHOICE:
        allowed = ", ".join(key.choices)
    default = key.default
    if isinstance(default, bool):
        text = "true" if default else "false"
    elif isinstance(default, tuple):
        text = ", ".join(default)
    else:
        text = "unset" if default is None else str(default)
    return {
        "key": name,
        "kind": str(key.kind),
        "default": text,
        "range": allowed,
        "doc": key.doc,
        "property": key.alias,
    }
