"""Uuids in both their forms: 16 big-endian bytes, or the 36-character text.

The core names members by text (``core.ids.MemberId``) and clients by 16 bytes
(``core.ids.ClientId``); this module knows how one becomes the other.
"""

from __future__ import annotations

from functools import lru_cache

from whimbrel.errors import ProtocolError

UUID_BYTES = 16
NIL_UUID = bytes(UUID_BYTES)
"""The uuid of all zeros."""


@lru_cache(maxsize=4096)
def uuid_bytes(text: str) -> bytes:
    """The 16 bytes of a uuid in its 36-character form (hyphens may be left out).

    Raises:
        ProtocolError: The text is no uuid.
    """
    digits = text.replace("-", "")
    if len(digits) != 2 * UUID_BYTES:
        raise ProtocolError(f"a uuid has 32 hexadecimal digits, this text has {len(digits)}")
    try:
        return bytes.fromhex(digits)
    except ValueError as error:
        raise ProtocolError("a uuid has hexadecimal digits only") from error


@lru_cache(maxsize=4096)
def uuid_text(raw: bytes) -> str:
    """The 36-character lower-case form of 16 bytes.

    Raises:
        ProtocolError: ``raw`` is not 16 bytes long.
    """
    if len(raw) != UUID_BYTES:
        raise ProtocolError(f"a uuid is {UUID_BYTES} bytes, not {len(raw)}")
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
