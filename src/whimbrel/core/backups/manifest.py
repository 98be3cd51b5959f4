"""What a backup consists of: a file of text beside the part of each member.

    whimbrel-backup 1 CRC32 LENGTH       checksum (8 hexadecimal digits) and bytes of the rest
    {...}                                ``Manifest`` as JSON

It is written when all parts are there and durable, so a backup with a manifest, wherever one lies,
is whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgspec

from whimbrel.core.backups.moments import Moment, moment_of
from whimbrel.core.ids import MemberId, Namespace
from whimbrel.core.messages.backups import Part
from whimbrel.core.persistence.format import DamageError
from whimbrel.errors import UsageError

MANIFEST_FILE: Final = "manifest"
FORMAT: Final = 1
"""Manifests of a later format are refused."""
DEFAULT_PLACE: Final = "backups"
"""From the data directory on."""
SCHEDULED_PREFIX: Final = "scheduled-"

_HEAD = re.compile(rb"whimbrel-backup (\d+) ([0-9a-f]{8}) (\d+)\n")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_encode = msgspec.json.Encoder().encode


class Manifest(msgspec.Struct, frozen=True):
    """A backup that is whole.

    Attributes:
        from_ms, at_ms: Wall clocks of the first and the latest cut of a member.
        base: The backup that it builds on; None for a full one.
        primaries: Of partition 0, 1, ...: whose part counts, as a position in ``parts``; -1 where
            nobody held the partition.
        entries: By structure, replicas counted once; structures that are kept on disk only.
    """

    id: str
    from_ms: int
    at_ms: int
    cluster_name: str
    cluster_id: str
    partition_count: int
    base: str | None
    parts: tuple[Part, ...]
    primaries: tuple[int, ...]
    entries: dict[Namespace, int]

    @property
    def bytes(self) -> int:
        """What it has added to its place."""
        return sum(part.bytes for part in self.parts)

    @property
    def entry_count(self) -> int:
        """Entries of all structures."""
        return sum(self.entries.values())

    @property
    def homes(self) -> tuple[str, ...]:
        """The backups that it needs besides itself, in no order that means anything."""
        homes = dict.fromkeys(
            file.home for part in self.parts for file in (*part.files, *part.history)
        )
        if self.base is not None:
            homes[self.base] = None
        homes.pop(self.id, None)
        return tuple(homes)

    def part_of(self, member: MemberId) -> Part | None:
        """What it has of a member."""
        return next((part for part in self.parts if part.member == member), None)


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of the file."""
    body = _encode(manifest) + b"\n"
    return f"whimbrel-backup {FORMAT} {crc32(body):08x} {len(body)}\n".encode() + body


def decode_manifest(data: bytes, file: str) -> Manifest:
    """What the bytes of a file say.

    Raises:
        DamageError: They are not what was written, or of a later format.
    """
    head = _HEAD.match(data)
    if head is None:
        raise DamageError(file, 0, "it is no manifest of a backup")
    body = data[head.end() :]
    if int(head[1]) != FORMAT:
        raise DamageError(file, 0, f"it has format {int(head[1])}; this version reads {FORMAT}")
    if len(body) != int(head[3]) or f"{crc32(body):08x}".encode() != head[2]:
        raise DamageError(file, 0, "its checksum is another one")
    try:
        return msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as problem:
        raise DamageError(file, 0, str(problem)) from None


def check_id(text: str) -> str:
    """The id, which becomes the name of a folder.

    Raises:
        UsageError: It cannot be one.
    """
    if not _ID.fullmatch(text):
        raise UsageError(
            f"{text!r} cannot be the id of a backup: letters, digits, '.', '_' and '-', 100 at most"
        )
    return text


def place_of(text: str) -> str:
    """The place that an operator has named, the default one for an empty text.

    Raises:
        UsageError: It does not say the whole way.
    """
    if not text:
        return DEFAULT_PLACE
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not text.startswith("/") or not parts or ".." in parts or "\0" in text:
        raise UsageError(f"the place of backups must be an absolute path, not {text!r}")
    return "/" + "/".join(parts)


def fresh_id(wall_ms: int, used: Sequence[str], prefix: str = "") -> str:
    """An id that says when: ``20260102-030405``, with a number behind it where that is used."""
    moment: Moment = moment_of(wall_ms)
    stem = (
        f"{prefix}{moment.year:04}{moment.month:02}{moment.day:02}"
        f"-{moment.hour:02}{moment.minute:02}{moment.second:02}"
    )
    found, number = stem, 1
    while found in used:
        number += 1
        found = f"{stem}-{number}"
    return found
