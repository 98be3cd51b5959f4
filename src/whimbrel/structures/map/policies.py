"""Merge policies by name: which of two values of a key survives the healing of a split.

A policy is a pure function of the entry that is there (None when there is none) and the one that
comes from the smaller part. It returns the value's Data to keep, or None to leave everything as it
is. It is asked at the primary of the key, once for each entry; asking again after a lost answer
must give the same result, so it may look at nothing but its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from whimbrel.errors import UsageError
from whimbrel.structures.map.record import EntryView

MergePolicy = Callable[[EntryView | None, EntryView], bytes | None]

PUT_IF_ABSENT: Final = "PutIfAbsent"
LATEST_UPDATE: Final = "LatestUpdate"
HIGHER_HITS: Final = "HigherHits"
DISCARD: Final = "Discard"
PASS_THROUGH: Final = "PassThrough"  # noqa: S105

FIELD_PACKAGE: Final = "com.hazelcast.spi.merge."
FIELD_SUFFIX: Final = "MergePolicy"
NAME_LENGTH_MAX: Final = 255


def put_if_absent(existing: EntryView | None, merging: EntryView) -> bytes | None:
    """Keep what is there; take what is missing."""
    return merging.value if existing is None else None


def latest_update(existing: EntryView | None, merging: EntryView) -> bytes | None:
    """Keep the value written last, in wall clock milliseconds of the two writers; a tie stays."""
    if existing is None or merging.updated_ms > existing.updated_ms:
        return merging.value
    return None


def higher_hits(existing: EntryView | None, merging: EntryView) -> bytes | None:
    """Keep the value read more often through its present primary; a tie stays."""
    if existing is None or merging.hits > existing.hits:
        return merging.value
    return None


def discard(existing: EntryView | None, merging: EntryView) -> bytes | None:
    """Take nothing from the smaller part."""
    return None


def pass_through(existing: EntryView | None, merging: EntryView) -> bytes | None:
    """Take everything from the smaller part."""
    return merging.value


_BUILT_IN: Final[dict[str, MergePolicy]] = {
    PUT_IF_ABSENT: put_if_absent,
    LATEST_UPDATE: latest_update,
    HIGHER_HITS: higher_hits,
    DISCARD: discard,
    PASS_THROUGH: pass_through,
}
_registered: dict[str, MergePolicy] = {}


def register_merge_policy(name: str, function: MergePolicy) -> None:
    """Make a policy of the program's own known; before members start, and on every member.

    Args:
        name: What ``map.PATTERN.merge_policy`` calls it.
        function: Takes the entry that is there, or None, and the merging one; returns the value's
            Data to keep, or None to leave everything as it is.

    Raises:
        UsageError: The name is empty, too long, or that of another policy.
    """
    if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise UsageError(f"a merge policy's name has 1 to {NAME_LENGTH_MAX} printable characters")
    known = _BUILT_IN.get(short_name(name)) or _registered.get(name)
    if known is not None and known is not function:
        raise UsageError(f"there is a merge policy {name!r} already")
    _registered[name] = function


def short_name(name: str) -> str:
    """The name without the package and the ending that it has in the field."""
    short = name.removeprefix(FIELD_PACKAGE)
    bare = short.removesuffix(FIELD_SUFFIX)
    return bare if bare in _BUILT_IN else short


def known_names() -> tuple[str, ...]:
    """Names of all policies, built in and registered."""
    return (*_BUILT_IN, *sorted(_registered))


def resolve(name: str) -> str:
    """The name under which a policy is known here.

    Raises:
        UsageError: There is no such policy; the text names those there are.
    """
    short = short_name(name)
    if short in _BUILT_IN:
        return short
    if name in _registered:
        return name
    raise UsageError(
        f"there is no merge policy {name!r}; known are {', '.join(known_names())}; one of your own "
        "is registered with whimbrel.register_merge_policy before the member starts"
    )


def policy_of(name: str) -> MergePolicy:
    """The function of a policy.

    Raises:
        UsageError: There is no such policy.
    """
    known = resolve(name)
    return _BUILT_IN.get(known) or _registered[known]
