"""Bugs of calls and of what clients are told."""

from __future__ import annotations

from whimbrel.core.ids import MemberId
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace


def call_run_twice(engine: Engine) -> None:
    """A forwarded request that arrives again is carried out again."""
    calls = engine.server.calls
    take_request = calls.take_request

    def forgetful(peer: MemberId, payload: bytes) -> tuple[int, bytes] | None:
        incoming = calls._incoming.get(peer)
        number = int.from_bytes(payload[4:12], "little")
        if incoming is not None and number in incoming.answers:
            incoming.forget(number)
        return take_request(peer, payload)

    replace(calls, "take_request", forgetful)


def clients_not_told(engine: Engine) -> None:
    """Clients never hear that rows have changed."""
    replace(engine.server.views, "table_changed", lambda: None)


def lists_not_told(engine: Engine) -> None:
    """Clients never hear that a member has come or gone."""
    replace(engine.server.views, "members_changed", lambda: None)


BUGS: tuple[Bug, ...] = (
    Bug(call_run_twice, "reset", ("C4", "D2", "D4", "D1", "D3", "D13", "C5")),
    Bug(clients_not_told, "kill", ("L1", "C2", "C1")),
    Bug(lists_not_told, "kill", ("C2",)),
)
