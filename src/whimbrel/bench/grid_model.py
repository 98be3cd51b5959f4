"""The production migration rooms on modelled links: large clusters with terabytes nobody holds.

Everything that decides is the code of a real member: control loop, planner, dispatch, commit,
publication. Two things are modelled. *Data*: a partition's fragments have sizes and no bytes.
*Links*: each member has one network card, out and in of the same bandwidth, which two lanes share:
the bulk and the control connections of its links (``messages.DATA_CHANNEL``). A lane is first in,
first out; a message passes both cards at once where both lanes are free (cut through) and then
takes the latency. A control message does not wait behind bulk data, because a card sends packets
of its connections in turn; what it takes of the card comes off the bulk lane. Membership is played
by the caller: lists change everywhere at the same moment, so finding a failure costs no time here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Self

import msgspec

from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.effects import ArmTimer, Send
from whimbrel.core.ids import NO_INDEX, Address, MemberId, Namespace, PartitionId, Row
from whimbrel.core.messages import (
    DATA_CHANNEL,
    NOTHING_COMPARED,
    CopyBase,
    FragmentPart,
    Message,
    Progress,
    TransferAnswered,
    TransferSent,
    Vector,
)
from whimbrel.core.migration import Migrations
from whimbrel.core.model import MemberInfo, MemberList, MigrationInfo
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import OperationError
from whimbrel.wire.links import encode_message

SECOND_US = 1_000_000
SOME_CAUSE = "00000000-1000000001234"
"""Stands for the cause that travels with each message."""
FRAME_HEAD_BYTES = 5
"""Length and kind before each message between members."""
PACKET_BYTES = 78
"""Headers of the packet that a small message is sent in: Ethernet, IP, TCP with time stamps."""
FRAGMENT_HEAD_BYTES = 210
"""A TransferSent beside its data: its cause, the migration's name, a namespace, a vector."""
ANSWER_BYTES = 120
"""A TransferAnswered."""
JUMBO_BYTES = 8_900
"""Data in one packet between the paper's machines."""
EVENTS_MAX = 400_000_000
"""Events of one change; reaching it means that the model runs for ever."""
_VECTOR = Vector(0, (0,) * 6)


class Extent(bytes):
    """Data that are only a length: ``len`` tells the modelled bytes, and there are none."""

    size: int

    def __new__(cls, size: int) -> Self:
        """``size`` modelled bytes."""
        made = super().__new__(cls)
        made.size = size
        return made

    def __len__(self) -> int:
        return self.size


class GridModelSettings(msgspec.Struct, frozen=True):
    """What is modelled. Rates in bytes per second, both directions alike."""

    partition_bytes: int
    """Of one replica, all maps together."""
    maps: int = 1
    backup_count: int = 1
    link_bytes_per_s: float = 2.5e9
    latency_us: int = 50
    """One way, from the end of a message's last byte to its handling."""
    message_cpu_us: float = 0.0
    """Time of one member's loop for a message sent or taken; 0 in the ideal of links alone."""
    export_us_per_mib: float = 0.0
    """Time of the sender's loop for data."""
    ingest_us_per_mib: float = 0.0
    """Time of the receiver's loop for data."""


class _Sizes:
    """A cursor over fragments that are only sizes; implements ``ports.Export``."""

    def __init__(self, fragments: Sequence[int]) -> None:
        self._left = list(fragments)
        self._number = 0
        self._is_first = True

    def answered(self, answer: TransferAnswered) -> None:
        """Nothing is compared."""

    def next_parts(self, bytes_max: int) -> tuple[tuple[FragmentPart, ...], bool]:
        """Parts of about ``bytes_max`` bytes together, and whether they are the last."""
        parts: list[FragmentPart] = []
        budget = bytes_max
        while budget > 0 and self._number < len(self._left):
            count = min(budget, self._left[self._number])
            self._left[self._number] -= count
            budget -= count
            is_last = self._left[self._number] == 0
            name = Namespace(f"map/{self._number}")
            part = FragmentPart(name, Extent(count), _VECTOR, (1, 0), self._is_first, is_last)
            parts.append(part)
            self._is_first = is_last
            self._number += is_last
        return tuple(parts), self._number == len(self._left)


class SizedHost:
    """The data side of one member, sizes only; implements ``ports.FragmentHost``."""

    def __init__(self, model: GridModelSettings) -> None:
        share, rest = divmod(model.partition_bytes, model.maps)
        self._fragments = [share + (number < rest) for number in range(model.maps)]
        self._fragments = [size for size in self._fragments if size]
        self._backup_count = model.backup_count

    def copy_bytes(self, migration: MigrationInfo) -> int:
        """All fragments, if the destination lacks them."""
        return sum(self._missing(migration))

    def begin_source(self, migration: MigrationInfo) -> None:
        """Nothing waits for the flag here."""

    def end_source(self, partition_id: PartitionId) -> None:
        """Nothing waits for the flag here."""

    def open_export(self, migration: MigrationInfo) -> _Sizes:
        """A cursor over what is missing."""
        return _Sizes(self._missing(migration))

    def _missing(self, migration: MigrationInfo) -> Sequence[int]:
        """All fragments, if the destination is to hold data at its new index and has none yet."""
        step = migration.step
        has = NO_INDEX < step.destination_current <= self._backup_count
        needs = step.destination_new <= self._backup_count
        return self._fragments if needs and not has else ()

    def begin_destination(self, migration: MigrationInfo) -> None:
        """Sizes need no place."""

    def bases(self, migration: MigrationInfo) -> tuple[CopyBase, ...]:
        """Nobody has an older copy."""
        return ()

    def ingest(self, migration: MigrationInfo, parts: Sequence[FragmentPart]) -> Progress:
        """Sizes need no place."""
        return NOTHING_COMPARED

    def rollback_destination(self, migration: MigrationInfo) -> None:
        """Sizes need no place."""

    def when_durable(self, then: Callable[[], None]) -> None:
        """There is no disk."""
        then()

    def seats_without_data(self) -> tuple[PartitionId, ...]:
        """No modelled member comes back without its data."""
        return ()

    def row_changed(self, partition_id: PartitionId, before: Row, after: Row, version: int) -> None:
        """Roles follow from the table alone."""


class Card:
    """One direction of a network card: until when each of its lanes is busy, in microseconds."""

    __slots__ = ("bulk_free_us", "control_free_us")

    def __init__(self, now_us: float) -> None:
        self.bulk_free_us = now_us
        self.control_free_us = now_us

    def take_bulk(self, begin_us: float, span_us: float) -> float:
        """Pass bulk data that are there from a moment on; returns when it begins."""
        begin_us = max(begin_us, self.bulk_free_us)
        self.bulk_free_us = begin_us + span_us
        return begin_us

    def take_control(self, begin_us: float, span_us: float) -> float:
        """Pass a control message; bulk data take that much longer. Returns when it begins."""
        begin_us = max(begin_us, self.control_free_us)
        self.control_free_us = begin_us + span_us
        self.bulk_free_us = max(begin_us, self.bulk_free_us) + span_us
        return begin_us


class ModelMember:
    """One member: its room, its card, its loop."""

    def __init__(
        self, number: int, settings: CoreSettings, model: GridModelSettings, now_us: float
    ) -> None:
        name = MemberId(f"{number:08x}-0000-4000-8000-{number:012x}")
        self.info = MemberInfo(name, Address("10.0.0.1", 5700 + number), started_us=int(now_us))
        self.ctx = Context(self.info, settings, started_us=int(now_us))
        self.host = SizedHost(model)
        self.room = Migrations(self.ctx, self.host)
        self.room.depth_changed(model.backup_count + 1)
        self.is_alive = True
        self.card_out = Card(now_us)
        self.card_in = Card(now_us)
        self.loop_free_us = now_us
        self.bytes_sent = 0
        self.allowed: MemberId | None = None
        """At the master: the member that stands in no row any more."""
        self.room.on_may_leave = self._allow

    def _allow(self, member: MemberId) -> None:
        self.allowed = member


_Event = tuple[float, int, ModelMember, "ModelMember | None", Message | ArmTimer]
"""When, a number for order, whose, from whom (None: a timer), what."""


class GridModel:
    """A cluster of migration rooms in modelled time.

    Args:
        count: Members at the start; the first arrangement is made and known to all.
        settings: Of every member.
        model: Data, links and processor.
        cluster_version: As in ``MemberList``: ``4.0`` migrates serially.
    """

    def __init__(
        self, count: int, settings: CoreSettings, model: GridModelSettings, cluster_version: str
    ) -> None:
        self.now_us: float = SECOND_US
        self._settings = settings
        self._model = model
        self._events: list[_Event] = []
        self._number = 0
        self._in_flight = 0
        self._made = 0
        self._by_id: dict[MemberId, ModelMember] = {}
        self.list = MemberList(0, (), cluster_version=cluster_version)
        self.leaving: tuple[MemberId, ...] = ()
        self.at_once_max = 0
        """Most migrations that ran at the same moment since the last look."""
        self.install([self.make() for _ in range(count)])
        self.run()

    # -- members --------------------------------------------------------------------------

    @property
    def members(self) -> list[ModelMember]:
        """The member list, oldest first."""
        return [self._by_id[info.id] for info in self.list.members]

    @property
    def master(self) -> ModelMember:
        """The oldest."""
        return self._by_id[self.list.members[0].id]

    def make(self) -> ModelMember:
        """A new member that is on no list yet."""
        self._made += 1
        member = ModelMember(self._made, self._settings, self._model, self.now_us)
        self._by_id[member.info.id] = member
        return member

    def install(self, members: Sequence[ModelMember]) -> None:
        """Give everybody a new list at once; who is not on it is dead from now on."""
        new = self.list.with_members(tuple(member.info for member in members))
        for member in self.members:
            member.is_alive = member in members
        self.list = new
        self.leaving = tuple(name for name in self.leaving if new.get(name) is not None)
        for member in members:
            old, member.ctx.members = member.ctx.members, new
            member.ctx.leaving = self.leaving
            self._begin(member)
            member.room.view_changed(old, new)
            if new.master == member.info.id and old.master != member.info.id:
                member.room.became_master()
            self._carry_out(member)

    def ask_to_leave(self, member: ModelMember) -> None:
        """A member asks the master to move its data away."""
        master = self.master
        self.leaving = (*self.leaving, member.info.id)
        master.ctx.leaving = self.leaving
        self._begin(master)
        master.room.leave_requested()
        self._carry_out(master)

    # -- time -----------------------------------------------------------------------------

    def run(self, until_leave_of: ModelMember | None = None) -> None:
        """Let time pass until the cluster is settled, or until a member may leave.

        Raises:
            OperationError: It does not come to that.
        """
        for _ in range(EVENTS_MAX):
            if until_leave_of is not None:
                if self.master.allowed == until_leave_of.info.id:
                    return
            elif not self._in_flight and self.master.room.is_settled()[0]:
                return
            if not self._events:
                break
            self._step()
        raise OperationError(f"the modelled cluster does not settle: {self._unsettled()}")

    def _unsettled(self) -> str:
        return self.master.room.is_settled()[1]

    def _step(self) -> None:
        self.now_us, _, member, sender, what = heapq.heappop(self._events)
        if sender is None:
            if member.is_alive and isinstance(what, ArmTimer):
                if not member.ctx.take_timer(what.key, what.generation):
                    return
                self._begin(member)
                member.room.on_timer(what.key)
                self._carry_out(member)
            return
        if isinstance(what, ArmTimer):  # only timers have no sender
            return
        if member.loop_free_us > self.now_us:
            # The loop is busy: the message is handled in its turn.
            self._push(member.loop_free_us, member, sender, what)
            return
        self._in_flight -= 1
        if member.is_alive and member.ctx.is_member(sender.info.id):
            self._begin(member)
            self._occupy(member, what, self._model.ingest_us_per_mib)
            check(member.room.on_message(sender.info.id, what), "a message of the migration room")
            self._carry_out(member)

    def _begin(self, member: ModelMember) -> None:
        member.ctx.now_us = int(self.now_us)
        member.loop_free_us = max(member.loop_free_us, self.now_us)

    def _occupy(self, member: ModelMember, message: Message, us_per_mib: float) -> None:
        """The loop is busy with a message."""
        member.loop_free_us += self._model.message_cpu_us
        if us_per_mib and isinstance(message, TransferSent):
            data = sum(len(part.data) for part in message.parts)
            member.loop_free_us += us_per_mib * data / (1 << 20)

    def _push(
        self,
        at_us: float,
        member: ModelMember,
        sender: ModelMember | None,
        what: Message | ArmTimer,
    ) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_us, self._number, member, sender, what))

    def _carry_out(self, member: ModelMember) -> None:
        """Send what a step has left, in order."""
        effects, member.ctx.effects = member.ctx.effects, []
        for effect in effects:
            if isinstance(effect, Send):
                self._send(member, self._by_id[effect.to], effect.message)
            elif isinstance(effect, ArmTimer):
                self._push(effect.at_us, member, None, effect)
        if member is self.master:
            running = len(member.room.running_migrations())
            self.at_once_max = max(self.at_once_max, running)

    def _send(self, member: ModelMember, to: ModelMember, message: Message) -> None:
        self._occupy(member, message, self._model.export_us_per_mib)
        size = wire_size(message)
        member.bytes_sent += size
        span_us = size / self._model.link_bytes_per_s * SECOND_US
        take = Card.take_bulk if isinstance(message, DATA_CHANNEL) else Card.take_control
        begin_us = take(member.card_out, member.loop_free_us, span_us)
        begin_us = take(to.card_in, begin_us, span_us)
        self._in_flight += 1
        self._push(begin_us + span_us + self._model.latency_us, to, member, message)


def wire_size(message: Message) -> int:
    """Bytes of a message on the link; modelled data count as if they were there."""
    if isinstance(message, TransferSent):
        data = sum(len(part.data) for part in message.parts)
        packets = 1 + data // JUMBO_BYTES
        return FRAGMENT_HEAD_BYTES + data + packets * PACKET_BYTES
    if isinstance(message, TransferAnswered):
        return ANSWER_BYTES + FRAME_HEAD_BYTES + PACKET_BYTES
    return len(encode_message(message, SOME_CAUSE)) + FRAME_HEAD_BYTES + PACKET_BYTES
