"""Messages of a recovery: the whole cluster comes back from its files."""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.core.messages.base import RecoveryMessage
from whimbrel.core.messages.migration import TableImage
from whimbrel.core.messages.registry import RegistryEntry
from whimbrel.core.model import MemberList, Numbering, RecoveryWord


class FilesTold(msgspec.Struct, frozen=True, array_like=True):
    """What cluster a member's files are of, as they were when it began.

    Of a member that had left gracefully only the list, with which it left.
    """

    list: MemberList
    image: TableImage
    registry: tuple[RegistryEntry, ...]
    numbering: Numbering | None = None


class RecoveryTold(RecoveryMessage, frozen=True):
    """A member of the recovery to its master, again and again until the recovery is over."""

    files: FilesTold | None = None
    """Until they are noted."""
    list_version: int = 0
    """Of the sender's member list."""
    has_none: bool = False
    """The sender has no files, or no longer."""
    order: str = ""
    """Name of the order that it has got."""
    is_done: bool = False
    """Whether that is carried out: all is loaded, or the files are set aside."""
    damage: str = ""
    """What is wrong with its files, with file and offset: it cannot load them."""
    bytes_total: int = 0
    bytes_loaded: int = 0


class RecoveryNoted(RecoveryMessage, frozen=True):
    """The answer to each ``RecoveryTold``: whether the files are noted, and how things stand."""

    has_files: bool
    word: RecoveryWord


class RecoveryOrdered(RecoveryMessage, frozen=True):
    """Load what these rows give you; who is not chosen sets its files aside."""

    order: str
    chosen: tuple[MemberId, ...]
    """Whose files count."""
    image: TableImage


class RecoveryFailed(RecoveryMessage, frozen=True):
    """The recovery is given up: everybody ends, with its files as they were."""

    reason: str
