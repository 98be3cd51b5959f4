"""The table of operations: its document, its indexes, and what it does not let through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.engine_pump import Pump

from whimbrel.errors import InvariantViolation
from whimbrel.serialization.data import to_data
from whimbrel.serving.operations import Effect, Operation, Operations, Scope
from whimbrel.wire.protocol_table import SHAPES

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
HEAD = [
    "| operation | structure | where it runs | effect | may run twice |",
    "| --- | --- | --- | --- | --- |",
]


@pytest.fixture
def operations() -> Operations:
    pump = Pump()
    pump.form(1)
    return pump.nodes[0].engine.server.operations


def line(row: Operation[Any]) -> str:
    """The row as the document shows it."""
    name = f"share `{row.name}`" if row.scope is Scope.SHARE else f"`{row.name}`"
    repeats = "yes" if row.is_retryable else "recognised" if row.recognise else "no"
    return f"| {name} | {row.kind or '-'} | {row.scope.value} | {row.effect.value} | {repeats} |"


def test_the_document_is_the_table(operations: Operations) -> None:
    """Goal: docs/operations.md says what members do. Method: make its table again and compare."""
    shown = [one for one in DOCUMENT.read_text().splitlines() if one.startswith("|")]
    assert shown == HEAD + sorted(line(row) for row in operations.rows())


def test_every_row_stands_where_it_is_looked_for(operations: Operations) -> None:
    """Goal: each index holds the scopes that it is asked for, and nothing is guarded by itself."""
    scopes = {
        Scope.PARTITION: operations.in_partition.values(),
        Scope.SHARE: operations.shares.values(),
    }
    for scope, rows in scopes.items():
        assert {row.scope for row in rows} == {scope}
    others = {row.scope for row in operations.others.values()}
    assert others == {Scope.ALL_PARTITIONS, Scope.CONNECTION, Scope.ANYWHERE}
    for kind, row in {**operations.in_partition, **operations.others}.items():
        assert SHAPES[row.name].type == kind
    assert not any(row.is_guarded for row in operations.rows())


def test_nothing_is_asked_while_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: admission costs an ordinary cluster nothing. Method: it must not be entered."""
    pump = Pump()
    (node,) = pump.form(1)
    client = pump.client(node)
    for name in ("admit", "admit_named"):
        monkeypatch.setattr(node.engine.server.admission, name, lambda *_: pytest.fail("asked"))
    entry = {"name": "m", "key": to_data("k"), "thread_id": 1}
    client.call("Map.put", 0, value=to_data("v"), ttl=-1, **entry)
    assert client.call("Map.get", 0, **entry) == to_data("v")
    assert client.call("Map.size", name="m") == 1
    client.call("Map.clear", name="m")
    client.call("Client.ping")


def test_a_request_has_one_row(operations: Operations) -> None:
    """Goal: no handler takes the place of another unseen."""
    again = Operation("Map.get", "map", Scope.PARTITION, Effect.READ, lambda *_: None)
    with pytest.raises(InvariantViolation, match=r"Map\.get has one row"):
        operations.add([again])


def test_only_reads_and_what_the_protocol_repeats_may_run_twice() -> None:
    """D1: what a lost member may have done is repeated for reads and for the protocol's own
    retryable requests; a share is asked for again whatever it does.
    """

    def may(name: str, scope: Scope, effect: Effect) -> bool:
        return Operation(name, "map", scope, effect, lambda *_: None).is_retryable

    assert may("Map.get", Scope.PARTITION, Effect.READ)
    assert may("Map.getAll", Scope.PARTITION, Effect.READ)
    assert not may("Map.put", Scope.PARTITION, Effect.WRITE)
    assert may("Client.removePartitionLostListener", Scope.CONNECTION, Effect.WRITE)
    assert may("clear", Scope.SHARE, Effect.WRITE)
