"""Requests between members are repeated until they are answered: one rule for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId


class Asking(Protocol):
    """Who asks other members something.

    A request is whatever it keeps of one: it has ``asked``, whose answer is due, and ``sent_us``,
    when it was last sent.
    """

    def unanswered(self) -> Iterable[Any]:
        """The requests whose answer is due."""

    def ask(self, request: Any) -> None:
        """Send a request, the first time or again, under the cause that it was made by."""


def ask_again(ctx: Context, all_asking: Iterable[Asking], restored: MemberId | None = None) -> None:
    """Repeat what may be lost.

    Args:
        ctx: Tells the time.
        all_asking: Whose requests.
        restored: The member the link to which was broken and stands again; without one, whatever
            was not answered within the call time-out is repeated.
    """
    timeout_us = ctx.settings.call_timeout_us
    for asking in all_asking:
        for request in list(asking.unanswered()):
            is_late = ctx.now_us - request.sent_us >= timeout_us
            if is_late if restored is None else request.asked == restored:
                asking.ask(request)
