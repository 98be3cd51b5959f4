"""Shares of whole-map calls in pieces: what comes in between, and what is counted once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.engine_pump import Client, Error, Node, Pump
from tests.unit.test_cluster_states import set_state

from whimbrel.core.model import ClusterState
from whimbrel.serialization.data import to_data
from whimbrel.serving import calls as calls_module
from whimbrel.serving import shares as shares_module
from whimbrel.wire import errors as codes

COUNT = 7
KEYS = [to_data(f"k{number}") for number in range(3 * COUNT)]
"""Three for each partition."""

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: Patch) -> None:
    """Each partition is a piece."""
    monkeypatch.setattr(shares_module, "PIECE_ENTRIES", 1)


def fill(client: Client, name: str) -> None:
    for number, key in enumerate(KEYS):
        fields = {"key": key, "thread_id": 1, "value": to_data("v"), "ttl": -1}
        client.call("Map.set", number % COUNT, name=name, **fields)


def get(client: Client, name: str) -> int:
    return client.ask("Map.get", 0, name=name, key=KEYS[0], thread_id=1)


def held_back(node: Node, patch: Patch) -> None:
    """From now on no share of a member goes on."""
    patch.setattr(node.engine.server.shares, "go_on", lambda: None)


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("size", {}, len(KEYS)),
        ("isEmpty", {}, False),
        ("containsValue", {"value": to_data("w")}, False),
        ("containsValue", {"value": to_data("v")}, True),
        ("keySet", {}, sorted(KEYS)),
        ("values", {}, [to_data("v")] * len(KEYS)),
        ("entrySet", {}, sorted((key, to_data("v")) for key in KEYS)),
        ("clear", {}, {}),
        ("evictAll", {}, {}),
    ],
)
def test_others_are_served_between_the_pieces(
    name: str, fields: dict[str, Any], expected: object
) -> None:
    """Goal: a whole-map call of many entries is not one long step (docs/design/0012). Method: a
    get that comes after it is answered before it, and each partition takes a turn of its own.
    """
    pump = Pump()
    (node,) = pump.form(1)
    client = pump.client(node)
    fill(client, "b1")
    whole = client.ask(f"Map.{name}", name="b1", **fields)
    one = get(client, "b1")
    assert one in client.messages and whole not in client.messages
    turns = 0
    fire = node.fire

    def counted(key: str, generation: int) -> None:
        nonlocal turns
        turns += key == shares_module.TIMER
        fire(key, generation)

    node.fire = counted  # type: ignore[method-assign]
    pump.run_until(lambda: whole in client.messages, 1)
    assert turns == COUNT - 1
    found = client.answer(whole)
    assert (sorted(found) if isinstance(found, list) else found) == expected
    assert client.call("Map.size", name="b1") == (0 if expected == {} else len(KEYS))


def test_a_partition_that_moves_in_between_counts_once(monkeypatch: Patch) -> None:
    """Goal: what a member loses before its share is done is asked for at the new primary. Method:
    two members, a share that stands still, and a third member that takes partitions over; the map
    has no backups, so that who was the primary holds nothing afterwards.
    """
    pump = Pump()
    asked, home = pump.form(2)
    client = pump.client(asked)
    fill(client, "b0")
    owned = home.engine.server.table.primary_count(home.id)
    with monkeypatch.context() as patch:
        held_back(home, patch)
        whole = client.ask("Map.keySet", name="b0")
        pump.start()
        pump.run(10)
        assert home.engine.server.table.primary_count(home.id) < owned
        assert whole not in client.messages
    assert sorted(client.answer(whole)) == sorted(KEYS)


def test_a_clear_stops_when_the_data_shall_stand_still(monkeypatch: Patch) -> None:
    """Goal: GCM-07 holds for what is half done, too, and the caller is not told that it is done.
    Method: the cluster becomes PASSIVE between two pieces.
    """
    pump = Pump()
    (node,) = pump.form(1)
    client = pump.client(node)
    fill(client, "b1")
    with monkeypatch.context() as patch:
        whole = client.ask("Map.clear", name="b1")
        held_back(node, patch)
        set_state(pump, ClusterState.PASSIVE)
    with pytest.raises(Error, match="PASSIVE") as caught:
        client.answer(whole)
    assert caught.value.code == codes.INDETERMINATE
    assert client.call("Map.size", name="b1") == len(KEYS) - len(KEYS) // COUNT


def test_who_does_not_confirm_answers_waits_for_further_shares(monkeypatch: Patch) -> None:
    """Goal: shares that were accepted together do not pile up their answers in memory. Method: a
    member asks for two at once and does not say that it has the first; others are served.
    """
    pump = Pump()
    asked, home = pump.form(2)
    client, other = pump.client(asked), pump.client(home, number=2)
    fill(client, "b0")
    with monkeypatch.context() as patch:
        patch.setattr(calls_module, "ANSWER_BYTES_MAX", 1)
        patch.setattr(asked.engine.server.calls, "tick", lambda: None)
        first, second = (client.ask("Map.keySet", name="b0") for _ in range(2))
        pump.run(1)
        assert first in client.messages and second not in client.messages
        assert other.call("Map.size", name="b0") == len(KEYS)
        assert second not in client.messages
    assert sorted(client.answer(second)) == sorted(KEYS)
