"""Orders to one member to become a data member or lite, and what became of them.

An order is answered at once with its number; whoever gave it asks for a report by that number.
So a demotion, which takes as long as its data need to move, holds no question open.
"""

from __future__ import annotations

import msgspec

from whimbrel.core.member import Member
from whimbrel.core.membership.role_change import problem_of
from whimbrel.errors import GridError, UsageError
from whimbrel.serving.questions import MemberOrder, decoded

REPORTS_MAX = 100
"""Reports that are kept; the oldest are forgotten."""


class RoleQuestion(msgspec.Struct, frozen=True):
    """Asks for the report on an order by its number."""

    number: int


class OrderReport(msgspec.Struct):
    """What became of an order; ``problem`` is "" when it is done or under way."""

    number: int
    lite: bool
    """What the order wants."""
    done: bool = False
    problem: str = ""
    """``illegal_state``, ``illegal_argument`` or ``unsupported``."""
    reason: str = ""


class RoleOrders:
    """The orders that this member was given."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._reports: dict[int, OrderReport] = {}

    def promote(self, arguments: bytes) -> OrderReport:
        """Order this very member to become a data member (GCM-27).

        Raises:
            UsageError: The order names another member.
        """
        return self._order(arguments, lite=False)

    def demote(self, arguments: bytes) -> OrderReport:
        """Order this very member to become lite.

        Raises:
            UsageError: The order names another member.
        """
        return self._order(arguments, lite=True)

    def role(self, arguments: bytes) -> OrderReport:
        """The report on an order.

        Raises:
            UsageError: No such order is remembered.
        """
        question = decoded(arguments, RoleQuestion, "a question about an order")
        report = self._reports.get(question.number)
        if report is None:
            raise UsageError(f"this member remembers no order {question.number}")
        return report

    def _order(self, arguments: bytes, lite: bool) -> OrderReport:
        order = decoded(arguments, MemberOrder, "an order this member understands")
        if order.member != self._member.ctx.id:
            raise UsageError(f"this is not member {order.member}")
        report = OrderReport(self._member.ctx.next_number(), lite)
        self._reports[report.number] = report
        while len(self._reports) > REPORTS_MAX:
            del self._reports[next(iter(self._reports))]

        def ended(error: GridError | None) -> None:
            report.done = True
            if error is not None:
                report.problem, report.reason = problem_of(error), str(error)

        self._member.membership.want_role(lite, ended)
        return report
