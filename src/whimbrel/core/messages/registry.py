"""Messages about what structures there are, and questions of one member to another."""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.core.messages.base import QuestionMessage, RegistryMessage


class RegistryEntry(msgspec.Struct, frozen=True, array_like=True):
    """One replicated fact: a structure exists, or a Compact schema is known.

    ``clock`` is a Lamport number; for one (kind, key) the entry with the greater
    (clock, origin) wins. ``alive`` False marks a destroyed structure. ``destroyed`` is the clock
    of its latest destruction, 0 for none, by ``destroyer``; the greater one counts, whichever
    entry wins.
    """

    kind: str
    key: str
    clock: int
    origin: MemberId
    alive: bool
    value: bytes = b""
    destroyed: int = 0
    destroyer: MemberId | None = None


class RegistryTold(RegistryMessage, frozen=True):
    """Entries to merge; answered with ``RegistryAnswered`` when ``call`` is not 0."""

    call: int
    entries: tuple[RegistryEntry, ...]


class RegistryAnswered(RegistryMessage, frozen=True):
    """The entries of that call are merged here.

    ``overtaken`` is not 0 when a later destruction than one among them was known here: the
    sender's clock, which a destruction must exceed to reach what was begun after that one.
    """

    call: int
    overtaken: int = 0


class QuestionAsked(QuestionMessage, frozen=True):
    """Ask a member for a JSON document (status, safety, structures, ...)."""

    call: int
    what: str
    arguments: bytes = b"{}"


class QuestionAnswered(QuestionMessage, frozen=True):
    """The document, or an error sentence in ``error``."""

    call: int
    document: bytes
    error: str = ""
