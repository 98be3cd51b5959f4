"""The one request to flake id generators. A member without a number has another one answer it."""

from __future__ import annotations

from typing import Any

from whimbrel.core.ids import Namespace
from whimbrel.core.kinds import StructureKind
from whimbrel.core.model import NUMBERS_END
from whimbrel.serving.handlers_client import answer
from whimbrel.serving.operations import Effect, Operation, Scope
from whimbrel.serving.server import Server
from whimbrel.serving.session import ForwardOrigin, Origin
from whimbrel.serving.structure_handlers import StructureHandlers
from whimbrel.structures.flake_id_generator.service import INCREMENT, FlakeIds
from whimbrel.structures.flake_id_generator.settings import NAME
from whimbrel.wire import errors as codes
from whimbrel.wire.codec import decode_request
from whimbrel.wire.frames import RawMessage

MEMBERS_ASKED_MAX = 5
"""Of the oldest members so many are tried; those without a number are the youngest."""


class FlakeIdHandlers(StructureHandlers):
    """The flake id generator service's request, as clients see it."""

    def __init__(self, server: Server, kind: StructureKind) -> None:
        """Begin with no generator in use."""
        super().__init__(server, kind)
        self._ids = FlakeIds(server.ctx)

    def operations(self) -> list[Operation[Any]]:
        """See ``StructureHandlers.operations``."""
        name = "FlakeIdGenerator.newIdBatch"
        return [Operation(name, NAME, Scope.ANYWHERE, Effect.NEUTRAL, self._new_batch)]

    def forget(self, namespace: Namespace) -> None:
        """See ``StructureHandlers.forget``."""
        super().forget(namespace)
        self._ids.destroyed(namespace)

    def _new_batch(self, origin: Origin, message: RawMessage) -> None:
        number = self._server.member.membership.numbers.number
        if not 0 <= number < NUMBERS_END:
            self._pass_on(origin, message)
            return
        _, fields = decode_request(message)
        namespace, size = self._named(fields["name"]), fields["batch_size"]
        base = self._ids.batch(namespace, size, number)
        self._use(namespace)
        found = answer(message, base=base, increment=INCREMENT, batch_size=size)
        self._server.deliver(origin, found)

    def _pass_on(self, origin: Origin, message: RawMessage) -> None:
        """Have another member answer: the oldest that was not asked before."""
        members = self._server.ctx.members.ids()[:MEMBERS_ASKED_MAX]
        asked = origin.hops if isinstance(origin, ForwardOrigin) else 0
        for position in range(asked, len(members)):
            if members[position] != self._server.ctx.id:
                self._server.forwarding.send(origin, message, members[position], position)
                return
        text = "no member that was asked has a number for flake ids; restart the cluster"
        self._server.fail(origin, message[5], codes.NODE_ID_OUT_OF_RANGE, text)
