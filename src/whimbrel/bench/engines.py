"""Engines of several members in one thread, without sockets: what a request costs by itself.

Every member takes what has arrived for it and then carries out its outputs once, as the runtime
does in one turn of its loop; frames between members travel as the bytes that would be on the wire.
Time is virtual and passes only while members form a cluster.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from whimbrel.core import effects as e
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.model import MemberInfo
from whimbrel.core.settings import CoreSettings
from whimbrel.core.stimuli import AddressUnreachable, Received, Started, Stimulus, TimerFired
from whimbrel.errors import OperationError
from whimbrel.serving.engine import Engine
from whimbrel.serving.outputs import Output, ToAddress, ToClient, ToPeer
from whimbrel.structures.kinds import KINDS
from whimbrel.wire.codec import encode_request
from whimbrel.wire.frames import PRELUDE
from whimbrel.wire.links import (
    MESSAGE,
    FrameSplitter,
    decode_message,
    encode_frame,
    encode_message,
)

WALL_START_MS = 1_700_000_000_000
TICK_US = 50_000
FORM_LIMIT_US = 60_000_000
"""Virtual time in which members must become a settled cluster."""


class BenchMember:
    """One engine and what has arrived for it."""

    def __init__(self, number: int, settings: CoreSettings) -> None:
        self.id = MemberId(f"{number:08x}-0000-4000-8000-{number:012x}")
        self.address = Address("127.0.0.1", 5700 + number)
        self.engine = Engine(MemberInfo(self.id, self.address), settings, KINDS)
        self.has_started = False
        self.splitters: dict[MemberId, FrameSplitter] = {}
        """One for each sender: its bulk connection."""
        self.arrived: list[tuple[MemberId, bytes]] = []
        self.replies: list[bytes] = []
        """Bytes for the one client of this member since the last look."""

    def has_joined(self) -> bool:
        """Whether it is on the cluster's list."""
        return self.engine.member.is_joined


class BenchCluster:
    """Members that deliver to one another at once, and one client connection for each.

    Args:
        count: Members.
        settings: Of every member.
    """

    CONN = 1

    def __init__(self, count: int, settings: CoreSettings) -> None:
        self.now_us = 1_000_000
        self.members = [BenchMember(number, settings) for number in range(1, count + 1)]
        self._by_id = {member.id: member for member in self.members}
        self._stimuli: deque[tuple[BenchMember, Stimulus]] = deque()
        self._timers: list[tuple[int, int, BenchMember, str, int]] = []
        self._armed = 0
        addresses = tuple(member.address for member in self.members)
        for member in self.members:
            member.has_started = True
            self._stimuli.append((member, Started(addresses)))
            self._pass_until(member.has_joined)
        master = self.members[0].engine.member.migrations
        self._pass_until(lambda: master.is_settled()[0])
        for member in self.members:
            self._open_client(member)

    @property
    def wall_ms(self) -> int:
        """Virtual wall clock."""
        return WALL_START_MS + self.now_us // 1000

    def primary(self, partition_id: int) -> BenchMember:
        """The member that is primary of a partition.

        Raises:
            OperationError: Nobody is.
        """
        holder = self.members[0].engine.member.migrations.table.rows[partition_id][0]
        if holder is None:
            raise OperationError(f"partition {partition_id} has no primary")
        return self._by_id[holder]

    def request(self, member: BenchMember, data: bytes) -> None:
        """Bytes of the member's client have arrived."""
        member.engine.client_bytes(self.CONN, data, self.now_us, self.wall_ms)

    def turn(self) -> bool:
        """Let every member take what has arrived and carry out its outputs once.

        Returns:
            Whether anything is under way still.
        """
        for member in self.members:
            arrived, member.arrived = member.arrived, []
            for sender, data in arrived:
                self._take(member, sender, data)
        for member in self.members:
            outgoing: dict[MemberId, list[bytes]] = {}
            for output in member.engine.take_outputs():
                self._carry_out(member, output, outgoing)
            for peer, frames in outgoing.items():
                self._by_id[peer].arrived.append((member.id, b"".join(frames)))
        return any(member.arrived for member in self.members)

    def settle(self) -> None:
        """Turns until nothing is under way."""
        while self.turn() or self._stimuli:
            self._stimulate()

    # -- inside ---------------------------------------------------------------------------

    def _take(self, member: BenchMember, sender: MemberId, data: bytes) -> None:
        splitter = member.splitters.get(sender)
        if splitter is None:
            splitter = member.splitters[sender] = FrameSplitter()
        engine, now_us, wall_ms = member.engine, self.now_us, self.wall_ms
        for kind, payload in splitter.feed(data):
            if kind == MESSAGE:
                address = self._by_id[sender].address
                cause, message = decode_message(payload)
                received = Received(sender, address, message, cause=cause)
                engine.handle(received, now_us, wall_ms)
            else:
                engine.peer_frame(sender, kind, payload, now_us, wall_ms)

    def _carry_out(
        self, member: BenchMember, output: Output, outgoing: dict[MemberId, list[bytes]]
    ) -> None:
        match output:
            case ToClient():
                member.replies.append(output.data)
            case ToPeer():
                payload = output.payload
                if not isinstance(payload, bytes):
                    payload = encode_message(payload, output.cause)
                outgoing.setdefault(output.peer, []).append(encode_frame(output.kind, payload))
            case ToAddress():
                for other in self.members:
                    if other.address == output.address and other.has_started:
                        received = Received(
                            member.id, member.address, output.message, cause=output.cause
                        )
                        self._stimuli.append((other, received))
                        return
                self._stimuli.append((member, AddressUnreachable(output.address)))
            case e.ArmTimer():
                self._armed += 1
                timer = (output.at_us, self._armed, member, output.key, output.generation)
                heapq.heappush(self._timers, timer)
            case _:
                pass  # notes and links: there is no log here, and no link can break

    def _stimulate(self) -> None:
        while self._stimuli:
            member, stimulus = self._stimuli.popleft()
            member.engine.handle(stimulus, self.now_us, self.wall_ms)

    def _pass_until(self, condition: Callable[[], bool]) -> None:
        """Let virtual time pass until a condition holds."""
        end_us = self.now_us + FORM_LIMIT_US
        while True:
            self._stimulate()
            self.settle()
            if condition():
                return
            if self.now_us > end_us:
                raise OperationError("the members of the benchmark have not become a cluster")
            self.now_us += TICK_US
            while self._timers and self._timers[0][0] <= self.now_us:
                _, _, member, key, generation = heapq.heappop(self._timers)
                member.engine.handle(TimerFired(key, generation), self.now_us, self.wall_ms)
            for member in self.members:
                member.engine.tick(self.now_us, self.wall_ms)

    def _open_client(self, member: BenchMember) -> None:
        member.engine.client_opened(self.CONN, "bench")
        hello = encode_request(
            "Client.authentication",
            1,
            -1,
            0,
            cluster_name=member.engine.member.ctx.settings.cluster_name,
            username=None,
            password=None,
            uuid=self.members.index(member).to_bytes(16, "big"),
            client_type="PYH",
            serialization_version=1,
            client_version="5.7.0",
            client_name="bench",
            labels=[],
        )
        self.request(member, PRELUDE + hello)
        self.settle()
        member.replies.clear()
