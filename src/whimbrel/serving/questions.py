"""Questions between members: a JSON document about one member, asked by another or by ourselves.

Knows how a question travels and that each gets an answer; what a document contains is registered
by name in ``documents``. Answers of members that left or stay silent are error sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.core.messages import Message, QuestionAnswered, QuestionAsked
from whimbrel.core.model import MemberList, members_left
from whimbrel.errors import GridError, UsageError
from whimbrel.serving.hub import Hub
from whimbrel.serving.outputs import Answered

QUESTION_TIMEOUT_US = 5_000_000
"""A question to another member that is not answered by then is answered with an error."""
QUESTIONS_MAX = 1_000
"""Questions to other members under way."""

Document = Callable[[bytes], bytes]
"""Makes a JSON document from JSON arguments; a GridError's text becomes the error sentence."""


T = TypeVar("T")


class MemberOrder(msgspec.Struct, frozen=True):
    """Names the member that an order is for, so that it never reaches a successor (P12)."""

    member: str


def decoded(arguments: bytes, kind: type[T], what: str = "a question this member understands") -> T:
    """The arguments of a question.

    Raises:
        UsageError: They are not ``what``.
    """
    try:
        return msgspec.json.decode(arguments or b"{}", type=kind)
    except msgspec.DecodeError as problem:
        raise UsageError(f"not {what}: {problem}") from None


@dataclass(slots=True, eq=False)
class _Waiting:
    """A question on its way."""

    member: MemberId
    message: QuestionAsked
    cause: str
    asked_us: int
    deadline_us: int


class Questions:
    """Questions of one member, in both directions."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.documents: dict[str, Document] = {}
        """What this member can tell, by name; the layers above add theirs."""
        self._waiting: dict[int, _Waiting] = {}

    @property
    def waiting_count(self) -> int:
        """Questions to other members that have no answer yet."""
        return len(self._waiting)

    def ask(self, member: MemberId | None, what: str, arguments: bytes) -> int:
        """Ask a member, the master when None; an ``Answered`` with the returned number comes."""
        ctx = self._hub.ctx
        call = ctx.next_number()
        target = ctx.master if member is None else member
        if target is None:
            self._finish(call, b"", "this member has not joined a cluster")
        elif target == ctx.id:
            self._finish(call, *self._make(what, arguments))
        elif not ctx.is_member(target):
            self._finish(call, b"", f"there is no member {target}")
        elif len(self._waiting) >= QUESTIONS_MAX:
            self._finish(call, b"", f"{QUESTIONS_MAX} questions wait for answers already")
        else:
            message = QuestionAsked(call, what, arguments)
            self._waiting[call] = _Waiting(
                target, message, ctx.cause, ctx.now_us, ctx.now_us + QUESTION_TIMEOUT_US
            )
            ctx.send(target, message)
        return call

    def on_message(self, sender: MemberId, message: Message) -> None:
        """Take QuestionAsked or QuestionAnswered."""
        if isinstance(message, QuestionAsked):
            answer = self._make(message.what, message.arguments)
            self._hub.ctx.send(sender, QuestionAnswered(message.call, *answer))
        elif isinstance(message, QuestionAnswered):
            waiting = self._waiting.pop(message.call, None)
            if waiting is not None:
                self._finish(message.call, message.document, message.error)

    def members_changed(self, old: MemberList, new: MemberList) -> None:
        """Questions to members that left will not be answered."""
        left = members_left(old, new)
        for call, waiting in list(self._waiting.items()):
            if waiting.member in left:
                del self._waiting[call]
                self._finish(call, b"", f"member {waiting.member} has left")

    def tick(self) -> None:
        """Repeat questions that may have been lost; give up those that are late."""
        ctx = self._hub.ctx
        for call, waiting in list(self._waiting.items()):
            if ctx.now_us >= waiting.deadline_us:
                del self._waiting[call]
                self._finish(call, b"", f"member {waiting.member} did not answer in time")
            elif ctx.now_us - waiting.asked_us >= ctx.settings.call_timeout_us:
                waiting.asked_us = ctx.now_us
                ctx.resume(waiting.cause)
                ctx.send(waiting.member, waiting.message)

    def _make(self, what: str, arguments: bytes) -> tuple[bytes, str]:
        make = self.documents.get(what)
        try:
            if make is None:
                raise UsageError(f"this member has no document {what!r}")
            return make(arguments), ""
        except GridError as error:
            return b"", str(error)

    def _finish(self, call: int, document: bytes, error: str) -> None:
        self._hub.outputs.append(Answered(call, document, error))
