"""What the admin side needs of a member, made of an engine in virtual time; no sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Coroutine, Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from tests.unit.engine_pump import Node as PumpNode
from tests.unit.engine_pump import Pump

from whimbrel.core.effects import Note
from whimbrel.core.ids import MemberId
from whimbrel.core.settings import PartitionedSettings, PersistenceSettings
from whimbrel.errors import OperationError
from whimbrel.runtime.node import Node
from whimbrel.runtime.subscriptions import Subscriptions

ADMIN_PORT = 8701


class FakeNode:
    """Asks through the engine; time stands still while an answer is on its way."""

    def __init__(self, pump: Pump, node: PumpNode) -> None:
        self.pump = pump
        self.node = node
        self.notes: list[Note] = []
        self.counters: dict[str, int] = {}
        self.events: list[dict[str, object]] = []
        self.subscriptions = Subscriptions(lambda _: None, lambda _: None)
        self.silent: dict[MemberId, None] = {}
        """Members whose answers do not come."""
        self.spoiled: dict[tuple[MemberId | None, str], Any] = {}
        """Answers that are put in place of the real ones."""
        self.asked: list[tuple[MemberId | None, str]] = []
        self.settings = SimpleNamespace(host="127.0.0.1", advertise="", machine="")
        self.cluster_name = pump.settings.cluster_name
        self.admin_socket: socket.socket | None = None
        self.admin_ends: list[str] = []
        """Why the admin server ended though nobody stopped it, each time."""
        node.engine.questions.documents["events"] = self.events_document

    @property
    def engine(self) -> Any:
        return self.node.engine

    @property
    def member_id(self) -> MemberId:
        return self.node.id

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = self.engine.metrics()
        return found

    def events_document(self, arguments: bytes) -> bytes:
        cause = json.loads(arguments or b"{}").get("cause")
        found = [event for event in self.events if cause in (None, event.get("cause"))]
        return json.dumps(found).encode()

    def new_cause(self) -> str:
        made: str = self.engine.member.ctx.new_cause()
        return made

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def admin_ended(self, why: str) -> None:
        self.admin_ends.append(why)

    def count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1

    def hint(self, kind: str, **fields: str | int) -> None:
        self.note(Note("warning", kind, dict(fields)))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    async def ask(
        self,
        member: MemberId | None,
        what: str,
        arguments: Mapping[str, object] | None = None,
        cause: str | None = None,
    ) -> Any:
        self.asked.append((member, what))
        target = self.engine.member.ctx.master if member is None else member
        if target in self.silent:
            await asyncio.Event().wait()  # for ever: whoever asks has a time-out
        if (member, what) in self.spoiled:
            return self.spoiled[member, what]
        body = json.dumps(dict(arguments or {})).encode()
        now_us, wall_ms = self.pump.now_us, self.pump.wall_ms
        call = self.engine.ask(member, what, body, now_us, wall_ms, cause)
        self.node.carry_out()
        self.pump.settle()
        answer = self.node.answers[call]
        if answer.error:
            raise OperationError(answer.error)
        return json.loads(answer.document)


def fakes(pump: Pump) -> list[FakeNode]:
    """One fake for each node of the pump."""
    return [FakeNode(pump, node) for node in pump.nodes]


RECOVERY = {
    "phase": "validating",
    "members_expected": 3,
    "members_here": 2,
    "missing": ["00000003-0000-4000-8000-000000000003"],
    "bytes_total": 4_000_000,
    "bytes_loaded": 1_000_000,
    "reason": "1 of 3 members is missing",
}
"""What a member says of a recovery that waits."""


def recovers(fake: FakeNode, *refusals: str) -> list[str]:
    """Let a member be the master of a recovery; the orders that reach it.

    Args:
        fake: The member.
        refusals: Orders that are refused, for the reason that FULL_RECOVERY_ONLY gives.
    """
    orders: list[str] = []

    def take(order: str) -> bytes:
        if order in refusals:
            raise OperationError("FULL_RECOVERY_ONLY waits for everybody, and 1 is missing")
        orders.append(order)
        return b"{}"

    documents = fake.engine.questions.documents
    documents["recovery"] = lambda _: json.dumps(RECOVERY).encode()
    for order in ("force_start", "partial_start"):
        documents[f"recovery.{order}"] = lambda _, order=order: take(order)
    return orders


def say_persistent(pump: Pump, *structures: PartitionedSettings) -> None:
    """Let members that run already, without a disk, speak as if persistence had been enabled."""
    for node in pump.nodes:
        ctx = node.engine.member.ctx
        ctx.settings = msgspec.structs.replace(
            ctx.settings,
            persistence=PersistenceSettings(enabled=True),
            structures=(*ctx.settings.structures, *structures),
        )


def as_node(fake: FakeNode) -> Node:
    """The fake under the type that the admin side asks for."""
    return cast("Node", fake)
