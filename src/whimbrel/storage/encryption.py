"""AES-256-GCM for the files of a member, under keys that are derived with HKDF-SHA256 (0021).

The primitives are those of ``cryptography``; it is imported by who was given a key.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from whimbrel.core.persistence.encryption import KEY_BYTES
from whimbrel.core.persistence.format import KEY_ID_BYTES
from whimbrel.errors import UsageError

NONCE_BYTES: Final = 12
_NAMING: Final = b"whimbrel key id"


class AesKey:
    """A key of KEY_BYTES. Implements ``core.persistence.encryption.Key``."""

    def __init__(self, secret: bytes) -> None:
        """Use this secret.

        Raises:
            UsageError: It has another length.
        """
        if len(secret) != KEY_BYTES:
            raise UsageError(f"a key has {KEY_BYTES} bytes, not {len(secret)}")
        self._secret = secret
        self._id = blake2b(secret, digest_size=KEY_ID_BYTES, person=_NAMING).digest()

    def __repr__(self) -> str:
        return f"AesKey({self._id.hex()})"

    @property
    def id(self) -> bytes:
        """See ``Key``."""
        return self._id

    def cipher(self, salt: bytes, purpose: bytes) -> AesCipher:
        """See ``Key``."""
        return AesCipher(HKDF(SHA256(), KEY_BYTES, salt, purpose).derive(self._secret))


class AesCipher:
    """Under one derived key. Implements ``core.persistence.format.Cipher``."""

    __slots__ = ("_aead",)

    def __init__(self, secret: bytes) -> None:
        self._aead = AESGCM(secret)

    def encrypt(self, number: int, facts: bytes, body: bytes) -> bytes:
        """The nonce is the number."""
        return self._aead.encrypt(number.to_bytes(NONCE_BYTES, "little"), body, facts)

    def decrypt(self, number: int, facts: bytes, body: bytes) -> bytes | None:
        """None when its tag is another one."""
        try:
            return self._aead.decrypt(number.to_bytes(NONCE_BYTES, "little"), body, facts)
        except (InvalidTag, ValueError):  # the latter when it is shorter than a tag
            return None
