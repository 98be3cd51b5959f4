"""What of a backup may be believed: names that become those of files, and segments that can be."""

from __future__ import annotations

from collections.abc import Iterable

from whimbrel.core.backups.manifest import DEFAULT_PLACE, Manifest, check_id, place_of
from whimbrel.core.messages import backups as b
from whimbrel.core.persistence.format import (
    KEY_ID_BYTES,
    LOG_ID_BYTES,
    SALT_BYTES,
    DamageError,
    Stream,
)
from whimbrel.errors import ProtocolError, UsageError
from whimbrel.serialization.uuids import uuid_bytes


def check_order(order: b.Order) -> None:
    """Refuse an order that no master of ours would give.

    Raises:
        UsageError: A name leads elsewhere, or a segment cannot be.
    """
    place = getattr(order, "place", DEFAULT_PLACE)
    if place != DEFAULT_PLACE and place_of(place) != place:
        raise UsageError("a place that is none")
    for name in (*getattr(order, "ids", ()), *_present(getattr(order, "id", ""))):
        check_id(name)
    if isinstance(order, b.Gather):
        for name in _present(order.base_id):
            check_id(name)
        if order.base is not None:
            _check_part(order.base)
    for part in getattr(order, "parts", ()):
        _check_source(part.source)
        _check_log(part.log_id, part.files)


def check_manifest(manifest: Manifest, file: str) -> Manifest:
    """The same manifest.

    Raises:
        DamageError: It is whole, but nothing that we have written.
    """
    try:
        for name in (manifest.id, *manifest.homes):
            check_id(name)
        for part in manifest.parts:
            _check_part(part)
        if len(manifest.primaries) != manifest.partition_count or not all(
            -1 <= position < len(manifest.parts) for position in manifest.primaries
        ):
            raise UsageError("its partitions are not its own")
    except UsageError as problem:
        raise DamageError(file, 0, str(problem)) from None
    return manifest


def _present(name: str) -> Iterable[str]:
    return (name,) if name else ()


def _check_part(part: b.Part) -> None:
    _check_source(part.member)
    _check_log(part.log_id, (*part.files, *part.history))


def _check_source(member: str) -> None:
    try:
        uuid_bytes(member)
    except ProtocolError:
        raise UsageError(f"{member!r} is no member") from None


def _check_log(log_id: str, files: Iterable[b.PartFile]) -> None:
    if len(log_id) != 2 * LOG_ID_BYTES or log_id.strip("0123456789abcdef"):
        raise UsageError("an id of a log that is none")
    for one in files:
        check_id(one.home)
        if one.stream not in list(Stream) or min(one.number, one.first_block, one.end) <= 0:
            raise UsageError("a segment that cannot be")
        if (len(one.key_id), len(one.salt)) not in ((0, 0), (KEY_ID_BYTES, SALT_BYTES)):
            raise UsageError("a key that cannot be")
