"""Causes in a random storm: everything said has one, and nobody makes up another's."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.property.test_serving_storm import Storm
from tests.unit import engine_pump
from tests.unit.engine_pump import Node

from whimbrel.core.effects import Effect, Note
from whimbrel.core.stimuli import Received, Stimulus
from whimbrel.serving.outputs import ToAddress, ToPeer
from whimbrel.wire.links import CAUSE_PATTERN

ROUNDS = 25


class MigrationHistory:
    """What was said and heard, by member.

    A member may go on only with what it has heard of or has begun itself.
    """

    def __init__(self) -> None:
        self.heard: dict[str, set[str]] = {}
        self.said: dict[int, str] = {}
        """Message (by identity) to the cause that its sender said with it."""
        self.kept: list[object] = []
        """The messages themselves, so that no identity comes again."""
        self.count = 0

    def says(self, node: Node, output: object) -> None:
        """An output: note, message or other effect of a member."""
        if isinstance(output, ToPeer) and isinstance(output.payload, bytes):
            return
        if not isinstance(output, ToPeer | ToAddress | Effect):
            return
        cause = output.cause
        assert re.search(CAUSE_PATTERN, cause), (output, cause)
        is_own = cause.startswith(f"{node.id[:8]}-")
        assert is_own or cause in self.heard.get(node.id, ()), (node.id, output)
        self.count += isinstance(output, Note | ToPeer | ToAddress)
        if isinstance(output, ToPeer):
            self._keep(output.payload, cause)
        elif isinstance(output, ToAddress):
            self._keep(output.message, cause)

    def _keep(self, message: object, cause: str) -> None:
        # One object may go to several members, but under one cause at a time.
        self.said[id(message)] = cause
        self.kept.append(message)

    def hears(self, node: Node, received: Received, encoded: bool) -> None:
        """A message arrives: with the cause it was sent with, on both ends of the link."""
        assert received.cause is not None
        self.heard.setdefault(node.id, set()).add(received.cause)
        if not encoded:
            assert received.cause == self.said[id(received.message)], received


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> MigrationHistory:
    found = MigrationHistory()
    handle, build = Node.handle, Node.__init__

    def listen(self: Node, stimulus: Stimulus) -> None:
        if isinstance(stimulus, Received):
            found.hears(self, stimulus, self.pump.encoded)
        handle(self, stimulus)

    def watched(self: Node, *arguments: Any) -> None:
        build(self, *arguments)
        take = self.engine.take_outputs

        def taken() -> list[Any]:
            outputs = take()
            for output in outputs:
                found.says(self, output)
            return outputs

        self.engine.take_outputs = taken  # type: ignore[method-assign]

    monkeypatch.setattr(engine_pump.Node, "handle", listen)
    monkeypatch.setattr(engine_pump.Node, "__init__", watched)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_everything_said_in_a_storm_has_a_cause(history: MigrationHistory, seed: int) -> None:
    """Goal: no note and no message without the id of what it follows from, and the same id on both
    ends of a link. Method: clients' work while members join, leave and die; each output checked.
    """
    storm = Storm(seed)
    for _ in range(ROUNDS):
        storm.shake()
        for _ in range(storm.rng.randint(1, 5)):
            storm.work()
    storm.judge()
    assert history.count > 50
    assert history.heard
