"""Whole-structure calls: asked of every primary, gathered until each partition has answered once.

The asking member names the partitions it means explicitly and each answer names those it covers;
partitions that moved meanwhile are asked again at their new primary, so each counts exactly once
(docs/design/0001, decision 8). Writes among these calls (clear, evict all) are repeatable, and are
answered only when the backups of the partitions have them.

The same channel carries notes between serving layers (``tell``): what listeners want to hear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from whimbrel.core.ids import MemberId, Namespace, split_namespace
from whimbrel.errors import OverloadedError, ProtocolError
from whimbrel.serving.bodies import read_body
from whimbrel.serving.calls import Call
from whimbrel.serving.hub import Hub
from whimbrel.serving.operations import Operation, Operations, RunShare, Share
from whimbrel.serving.shares import Asked, Shares
from whimbrel.wire import errors as codes
from whimbrel.wire.links import SCATTER, SCATTER_REPLY

GATHERS_MAX = 1_000
"""Whole-structure calls of one member under way; more are refused as overload."""
GATHER_TIMEOUT_US = 30_000_000
"""A whole-structure call that some partition has not answered by then fails as timed out."""
GATHER_BYTES_MAX = 512 * 1024 * 1024
"""Most bytes of keys and values one whole-structure call may return."""
SHARE_BYTES_MAX = 128 * 1024 * 1024
"""Most bytes of one member's answer; it must fit into a link frame."""
TELL = "tell:"
"""Prefix of notes, which concern no partition and no structure."""
NO_STRUCTURE = Namespace("")


_encode = msgspec.msgpack.Encoder().encode
_decode_asked = msgspec.msgpack.Decoder(Asked).decode
_decode_share = msgspec.msgpack.Decoder(Share).decode

Finished = Callable[["Gather"], None]


@dataclass(slots=True, eq=False)
class Gather:
    """A whole-structure call under way."""

    operation: Operation[RunShare]
    namespace: Namespace
    argument: bytes
    missing: dict[int, None]
    """Partitions that nobody has answered for and nobody is asked about."""
    finished: Finished
    deadline_us: int
    out: int = 0
    """Members that are asked and have not answered."""
    count: int = 0
    items: list[bytes] = field(default_factory=list)
    item_bytes: int = 0
    error: str = ""
    code: int = codes.GENERIC
    """Error code of the client protocol that goes with ``error``."""
    has_acted: bool = False
    """Whether a write may have changed something already, so that it cannot fail any more."""

    def asked(self, partitions: list[int]) -> Asked:
        """What whoever has these partitions is asked."""
        return Asked(self.operation.name, self.namespace, self.argument, partitions)

    def wait_for(self, partitions: list[int]) -> None:
        """Somebody is asked about these partitions."""
        for pid in partitions:
            del self.missing[pid]
        self.out += 1

    def failure(self) -> tuple[int, str]:
        """(error code, text) of a call that has ended with ``error``.

        A write that some member has carried out, or may still, has not failed: its outcome is
        unknown (docs/design/0013).
        """
        if self.operation.is_write and (self.has_acted or self.out):
            return codes.INDETERMINATE, f"some partitions may be done: {self.error}"
        return self.code, self.error


@dataclass(slots=True, eq=False)
class _Asking:
    """One member's part of a gather, as the token of its call."""

    gather: Gather
    partitions: list[int]


@dataclass(slots=True, eq=False)
class _Telling:
    """A note to several members, as the token of its calls."""

    waiting: int
    then: Callable[[], None] | None


class Scatter:
    """Whole-structure calls of one member, asking and answering."""

    def __init__(self, hub: Hub, operations: Operations, shares: Shares) -> None:
        self._hub = hub
        self._operations = operations.shares
        self._shares = shares
        self.notes: dict[str, Callable[[MemberId, bytes], None]] = {}
        """Takers of notes by name."""
        self._gathers: list[Gather] = []

    @property
    def count(self) -> int:
        """Whole-structure calls under way."""
        return len(self._gathers)

    # -- asking ---------------------------------------------------------------------------

    def gather(self, share: str, namespace: Namespace, argument: bytes, finished: Finished) -> None:
        """Ask for a structure's share of all partitions; ``finished`` gets the sum, or ``error``.

        Raises:
            OverloadedError: Too many whole-structure calls are under way.
        """
        if len(self._gathers) >= GATHERS_MAX:
            raise OverloadedError(f"at most {GATHERS_MAX} whole-structure calls run at once")
        ctx = self._hub.ctx
        missing = dict.fromkeys(range(ctx.settings.partition_count))
        deadline_us = ctx.now_us + GATHER_TIMEOUT_US
        operation = self._operations[split_namespace(namespace)[0], share]
        gather = Gather(operation, namespace, argument, missing, finished, deadline_us)
        self._gathers.append(gather)
        self._ask(gather)
        self._maybe_finish(gather)

    def _ask(self, gather: Gather) -> None:
        """Ask the primaries of all missing partitions that are known."""
        hub = self._hub
        mine: list[int] = []
        others: dict[MemberId | None, list[int]] = {}
        partitions, rows = hub.dataplane.partitions, hub.table.rows
        for pid in gather.missing:
            if partitions[pid].readable:
                mine.append(pid)
            elif not partitions[pid].is_primary:
                others.setdefault(rows[pid][0], []).append(pid)
        for member, pids in others.items():
            if member is not None and hub.primary_to_ask(pids[0]) == member:
                self._ask_member(gather, member, pids)
        if mine and not gather.error:
            gather.wait_for(mine)
            take = partial(self._take_share, _Asking(gather, mine))
            self._shares.execute(None, gather.asked(mine), take)

    def _ask_member(self, gather: Gather, member: MemberId, pids: list[int]) -> None:
        try:
            body = _encode(gather.asked(pids))
            self._hub.calls.start(member, SCATTER, body, _Asking(gather, pids))
        except OverloadedError as error:
            gather.error, gather.code = str(error), codes.OVERLOAD
        else:
            gather.wait_for(pids)

    def _take_share(self, asking: _Asking, share: Share) -> None:
        """A member has answered, or will not any more."""
        self._add_share(asking, share)
        self._maybe_finish(asking.gather)

    def _add_share(self, asking: _Asking, share: Share) -> None:
        gather = asking.gather
        gather.out -= 1
        gather.has_acted |= share.has_acted
        covered = dict.fromkeys(share.partitions)
        for pid in asking.partitions:
            if pid not in covered:
                gather.missing[pid] = None
        gather.count += share.count
        gather.items.extend(share.items)
        gather.item_bytes += sum(map(len, share.items))
        if share.error:
            gather.error, gather.code = share.error, share.code
        elif gather.item_bytes > GATHER_BYTES_MAX:
            gather.error = f"the result has more than {GATHER_BYTES_MAX} bytes"
            gather.code = codes.MESSAGE_TOO_BIG

    def _maybe_finish(self, gather: Gather) -> None:
        """End a call that is done or cannot be.

        A write that cannot be done waits for those who are asked still, as long as there is time:
        only what they have done tells whether it has failed.
        """
        is_over = not gather.out
        if not gather.error:
            is_over = is_over and not gather.missing
        elif not gather.operation.is_write or self._hub.ctx.now_us >= gather.deadline_us:
            is_over = True
        if is_over and gather in self._gathers:
            self._gathers.remove(gather)
            gather.finished(gather)

    def ask_again(self) -> None:
        """Rows changed or time passed: ask about what nobody has answered, end what is late."""
        ctx = self._hub.ctx
        for gather in list(self._gathers):
            if gather.error:
                pass
            elif ctx.now_us >= gather.deadline_us:
                gather.code = codes.OPERATION_TIMEOUT
                gather.error = (
                    f"not all partitions answered in {GATHER_TIMEOUT_US // 1_000_000} s: "
                    f"{len(gather.missing)} have no known primary, {gather.out} members are silent"
                )
            elif gather.missing and not ctx.data_members():
                gather.error = "no member of the cluster holds data"
                gather.code = codes.NO_DATA_MEMBER
            elif gather.missing:
                self._ask(gather)
            self._maybe_finish(gather)

    # -- notes ----------------------------------------------------------------------------

    def tell(
        self,
        members: Sequence[MemberId],
        what: str,
        body: bytes,
        then: Callable[[], None] | None,
    ) -> None:
        """Send a note to members; ``then`` is called when each has answered or left."""
        if not members:
            if then is not None:
                then()
            return
        telling = _Telling(len(members), then)
        payload = _encode(Asked(TELL + what, NO_STRUCTURE, body, []))
        for member in members:
            self._hub.calls.start(member, SCATTER, payload, telling, essential=True)

    def _told(self, telling: _Telling) -> None:
        telling.waiting -= 1
        if not telling.waiting and telling.then is not None:
            telling.then()

    # -- replies and losses ---------------------------------------------------------------

    def on_reply(self, token: object, body: bytes) -> None:
        """A member has answered.

        Raises:
            ProtocolError: The body is no share.
        """
        if isinstance(token, _Telling):
            self._told(token)
        elif isinstance(token, _Asking):
            share = read_body(_decode_share, body, "a share of a whole-structure call")
            self._take_share(token, share)

    def on_lost(self, call: Call, was_sent: bool) -> None:
        """A member left before it answered: its partitions are asked again elsewhere."""
        token = call.token
        if isinstance(token, _Telling):
            self._told(token)
        elif isinstance(token, _Asking):
            self._add_share(token, Share([], has_acted=was_sent))

    def on_overdue(self, call: Call) -> None:
        """A member that is on the list does not answer.

        Its gather has ended long ago. A note goes on waiting, because the member must have it in
        the end; but nobody waits for that: what it would tell us does not arrive either.
        """
        token, call.token = call.token, None
        if isinstance(token, _Telling):
            self._told(token)
            return
        was_sent = self._hub.calls.was_sent(call)
        self._hub.calls.give_up(call)
        if isinstance(token, _Asking):
            self._take_share(token, Share([], has_acted=was_sent))

    # -- answering ------------------------------------------------------------------------

    def on_call(self, sender: MemberId, number: int, body: bytes) -> None:
        """Another member asks for our share, or tells something.

        Raises:
            ProtocolError: The body is no question.
        """
        asked = read_body(_decode_asked, body, "a whole-structure call")
        calls = self._hub.calls

        def answer(share: Share) -> None:
            if sum(map(len, share.items)) > SHARE_BYTES_MAX:
                share = Share([], error=f"one member's share has more than {SHARE_BYTES_MAX} bytes")
            calls.answer(sender, number, SCATTER_REPLY, _encode(share))

        if asked.operation.startswith(TELL):
            take = self.notes.get(asked.operation.removeprefix(TELL))
            if take is None:
                raise ProtocolError(f"nobody takes a note {asked.operation!r}")
            take(sender, asked.argument)
            answer(Share([]))
            return
        count = self._hub.ctx.settings.partition_count
        pids = [pid for pid in asked.partitions if 0 <= pid < count]
        self._shares.execute(sender, msgspec.structs.replace(asked, partitions=pids), answer)
