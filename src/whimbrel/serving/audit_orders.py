"""Orders of operators about audits, as JSON documents that the member which drives one is asked."""

from __future__ import annotations

import msgspec

from whimbrel.core.audit.job import Wish
from whimbrel.core.member import Member
from whimbrel.errors import IllegalStateError, UsageError
from whimbrel.serving.questions import decoded

PATTERN_LENGTH_MAX = 1_000


class AuditOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An audit.

    Attributes:
        pattern: ``KIND/NAME`` with ``*`` and ``?``; empty for all structures.
        repair: Whether backups that differ are made as their primary.
    """

    pattern: str = ""
    repair: bool = False


class AuditQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names an audit."""

    audit: str


def audit_of(order: AuditOrder) -> Wish:
    """What an order wishes for.

    Raises:
        UsageError: It makes no sense.
    """
    if len(order.pattern) > PATTERN_LENGTH_MAX:
        raise UsageError(f"a pattern has at most {PATTERN_LENGTH_MAX} characters")
    kind, _, name = order.pattern.partition("/")
    if order.pattern and not (kind and name):
        raise UsageError(f"{order.pattern!r} is no pattern such as map/flights*")
    return Wish(order.pattern, order.repair)


class AuditOrders:
    """What a member does for operators about audits."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def start(self, arguments: bytes) -> object:
        """Begin an audit that this member drives; its name, or why it is refused.

        Raises:
            UsageError: The order makes no sense.
        """
        wish = audit_of(decoded(arguments, AuditOrder, "an order for an audit"))
        try:
            return {"audit": self._member.audits.start(wish), "refusal": ""}
        except IllegalStateError as problem:
            return {"audit": None, "refusal": str(problem)}

    def job(self, arguments: bytes) -> object:
        """How an audit of this member stands; null for one that is not known (any more)."""
        return self._member.audits.job(decoded(arguments, AuditQuestion).audit)

    def cancel(self, arguments: bytes) -> object:
        """End an audit of this member; whether it was under way."""
        name = decoded(arguments, AuditQuestion).audit
        return {"cancelled": self._member.audits.cancel(name)}
