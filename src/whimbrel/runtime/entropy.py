"""Everything in a real member that comes from chance: fresh identities, and salts."""

from __future__ import annotations

import os
import uuid
from typing import Final

from whimbrel.core.ids import MemberId

SALT_ENTROPY_BYTES: Final = 32


def new_member_id() -> MemberId:
    """A uuid nobody had before; every incarnation of a member gets one (safety rule 4)."""
    return MemberId(str(uuid.uuid4()))


def salt_entropy() -> bytes:
    """Bytes that no other process has, from which the salts of encrypted files are made."""
    return os.urandom(SALT_ENTROPY_BYTES)
