"""Everything in a real member that comes from chance: fresh identities."""

from __future__ import annotations

import uuid

from whimbrel.core.ids import MemberId


def new_member_id() -> MemberId:
    """A uuid nobody had before; every incarnation of a member gets one (safety rule 4)."""
    return MemberId(str(uuid.uuid4()))
