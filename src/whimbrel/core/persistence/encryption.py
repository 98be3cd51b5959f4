"""What a member encrypts its files with: the keys it was given, and how each file uses one (0021).

Pure: what a key does with bytes comes from the shell (``Key``), and so does the chance from which
salts are made. A segment is encrypted block by block (``format``), any other file as a whole:

    magic, format, cipher, key id, salt, length, checksum      64 bytes
    the file as it would be, encrypted                         and its tag

All numbers are little-endian. The checksum is that of everything else, so damage is told without
the key, and what has been changed on purpose is told by the tag.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, Literal, Protocol
from zlib import crc32

from whimbrel.core.check import check
from whimbrel.core.persistence.format import (
    AES_256_GCM,
    CLUSTER_HASH_BYTES,
    ENCRYPTED_HEADER_BYTES,
    HEADER_BYTES,
    KEY_ID_BYTES,
    SALT_BYTES,
    Cipher,
    DamageError,
    Header,
    KeyUse,
    decode_header,
    encode_header,
)
from whimbrel.errors import OperationError

KEY_BYTES: Final = 32
"""Of a secret, and of what is derived from one."""
TAG_BYTES: Final = 16
"""By so much what is encrypted is longer."""
FILE_MAGIC: Final = b"WHIMBENC"
FILE_FORMAT: Final = 1
KEY_SETTINGS: Final = "persistence.encryption.key_file or key_command"
PLAIN_SETTING: Final = "persistence.encryption.plain_files"
PlainFiles = Literal["refuse", "read", "write"]
"""What becomes of files that are not encrypted: refused; read, and written anew as encrypted ones;
or everything is written so from now on, and the keys are for reading alone."""

_HEAD: Final = struct.Struct(f"<8sHBx{KEY_ID_BYTES}s{SALT_BYTES}sQ")
_CHECKSUM: Final = struct.Struct("<I")
_HEAD_BYTES: Final = _HEAD.size + _CHECKSUM.size
_SEGMENT: Final = b"whimbrel segment "
_FILE: Final = b"whimbrel file "


class Key(Protocol):
    """A secret, and what can be done with it."""

    @property
    def id(self) -> bytes:
        """KEY_ID_BYTES that tell it from others, and nothing about it."""
        ...

    def cipher(self, salt: bytes, purpose: bytes) -> Cipher:
        """Encryption under a key that is derived from this one, for this salt and purpose alone."""
        ...


class KeyProblemError(OperationError):
    """A file can be read with none of the keys that were given, or without them and must not be.

    It is not damaged: with the right key, or setting, it is as it was.
    """


class Encryption:
    """The keys of one process.

    Attributes:
        current_id: Of the key under which everything is written; empty where it is written plain.
        reads_plain: Whether files that are not encrypted are read.
    """

    def __init__(
        self, keys: Sequence[Key] = (), entropy: bytes = b"", *, plain: PlainFiles = "refuse"
    ) -> None:
        """Know these keys; without any, nothing is encrypted.

        Args:
            keys: The first one is written with, all are read with.
            entropy: Bytes that no other process has, from which salts are made.
            plain: See ``PlainFiles``.
        """
        self._keys = {key.id: key for key in keys}
        self._current = keys[0] if keys and plain != "write" else None
        if keys:
            check(len(self._keys) == len(keys), "no key is given twice")
            check(plain == "write" or len(entropy) >= SALT_BYTES, "salts are made from chance")
        self.current_id = b"" if self._current is None else self._current.id
        self.reads_plain = not keys or plain != "refuse"
        self._entropy = entropy
        self._salts = 0

    @property
    def key_ids(self) -> tuple[bytes, ...]:
        """Of all keys that were given, in their order."""
        return tuple(self._keys)

    def check_readable(self, file: str, key_id: bytes) -> None:
        """See that a file can be read; ``key_id`` is that of its key, empty where it has none.

        Raises:
            KeyProblemError: It cannot, or must not; the sentence says what to do.
        """
        if not key_id:
            if not self.reads_plain:
                raise KeyProblemError(
                    f"{file} is not encrypted, and files that are not are refused where there is a "
                    f'key; to have what is here encrypted, start with {PLAIN_SETTING} = "read" '
                    "until all of it is"
                )
        elif key_id not in self._keys:
            given = ", ".join(one.hex() for one in self._keys)
            have = f"not among the keys that are given ({given})" if given else "not given"
            raise KeyProblemError(
                f"{file} is encrypted with key {key_id.hex()}, which is {have}; add it to what "
                f"{KEY_SETTINGS} gives, in a line of its own"
            )

    @property
    def header_bytes(self) -> int:
        """Of a segment that is begun now."""
        return ENCRYPTED_HEADER_BYTES if self.current_id else HEADER_BYTES

    # -- segments -------------------------------------------------------------------------

    def fresh_use(self, cluster_id: str) -> KeyUse | None:
        """How a segment that is begun now uses the current key; None where it is plain."""
        if self._current is None:
            return None
        return KeyUse(self.current_id, cluster_hash(cluster_id), self._fresh_salt())

    def cipher_of(self, header: Header) -> Cipher | None:
        """What encrypts the segment that begins so; None where nothing does.

        All that the header says goes into the key, so its blocks can be decrypted in their segment
        and nowhere else.

        Raises:
            KeyProblemError: Its key was not given.
        """
        use = header.use
        if use is None:
            return None
        self.check_readable(f"segment {header.number}", use.key_id)
        return self._keys[use.key_id].cipher(use.salt, _SEGMENT + encode_header(*header))

    def _fresh_salt(self) -> bytes:
        """Never the same twice: within a process it is counted, between two chance sees to it."""
        self._salts += 1
        made = self._entropy + self._salts.to_bytes(8, "little")
        return blake2b(made, digest_size=SALT_BYTES).digest()

    # -- whole files ----------------------------------------------------------------------

    def encrypt_file(self, kind: str, data: bytes) -> bytes:
        """The bytes of a file of that kind as they go to the disk."""
        if self._current is None:
            return data
        salt = self._fresh_salt()
        cipher = self._current.cipher(salt, _FILE + kind.encode())
        size = len(data) + TAG_BYTES
        head = _HEAD.pack(FILE_MAGIC, FILE_FORMAT, AES_256_GCM, self.current_id, salt, size)
        body = cipher.encrypt(0, head, data)
        return head + _CHECKSUM.pack(crc32(body, crc32(head))) + body

    def decrypt_file(self, kind: str, file: str, data: bytes) -> bytes:
        """What was given to ``encrypt_file``; of a file that is not encrypted all of it.

        Args:
            kind: As it was given then.
            file: Its name, for words.
            data: All its bytes.

        Raises:
            DamageError: They are not what was written, or of a later format.
            KeyProblemError: See ``check_readable``.
        """
        key_id = key_id_of(file, data)
        self.check_readable(file, key_id)
        if not key_id:
            return data
        salt = _HEAD.unpack_from(data)[4]
        cipher = self._keys[key_id].cipher(salt, _FILE + kind.encode())
        found = cipher.decrypt(0, data[: _HEAD.size], data[_HEAD_BYTES:])
        if found is None:
            raise DamageError(file, 0, "it is whole, and was not written by who has the key")
        return found


PLAIN: Final = Encryption()
"""Without a key."""


def cluster_hash(cluster_id: str) -> bytes:
    """What stands for the id of a cluster in the headers of its segments."""
    return blake2b(cluster_id.encode(), digest_size=CLUSTER_HASH_BYTES).digest()


def key_id_of(file: str, data: bytes) -> bytes:
    """The id of the key with which a whole file is encrypted, empty when it is not.

    Raises:
        DamageError: It says that it is encrypted, and is not what was written.
    """
    if not data.startswith(FILE_MAGIC):
        return b""
    if len(data) < _HEAD_BYTES:
        raise DamageError(file, 0, "it ends within its head")
    _, version, cipher, key_id, _, length = _HEAD.unpack_from(data)
    if (version, cipher) != (FILE_FORMAT, AES_256_GCM):
        why = (
            f"it is encrypted in format {version} with cipher {cipher}; this version reads 1 and 1"
        )
        raise DamageError(file, 0, why)
    if len(data) != _HEAD_BYTES + length:
        raise DamageError(file, 0, f"it has {len(data)} bytes instead of {_HEAD_BYTES + length}")
    body = memoryview(data)[_HEAD_BYTES:]
    (checksum,) = _CHECKSUM.unpack_from(data, _HEAD.size)
    if crc32(body, crc32(data[: _HEAD.size])) != checksum:
        raise DamageError(file, 0, "its checksum is another one")
    return bytes(key_id)


def key_id_in(beginning: bytes) -> bytes | None:
    """What the first ENCRYPTED_HEADER_BYTES of a file say of its key, empty for none.

    None where there is nothing yet that could be encrypted.
    """
    if beginning.startswith(FILE_MAGIC) and len(beginning) >= _HEAD_BYTES:
        return bytes(_HEAD.unpack_from(beginning)[3])
    header = decode_header(beginning)
    if header is not None and header.use is not None:
        return header.use.key_id
    return b"" if beginning else None
