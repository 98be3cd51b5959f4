"""Which structures of a backup are meant."""

from __future__ import annotations

from fnmatch import fnmatchcase

from whimbrel.core.ids import Namespace


def fits(namespace: Namespace, pattern: str) -> bool:
    """Whether a structure fits ``KIND/NAME`` with ``*`` and ``?``; everything fits an empty one."""
    return not pattern or fnmatchcase(namespace, pattern)
