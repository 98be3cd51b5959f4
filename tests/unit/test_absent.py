"""What is not built is refused with what is missing, and the README lists exactly that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.engine_pump import Client, Error, Node, Pump

from whimbrel.serving.absent import _SERVICE_OF, ABSENT, feature_of
from whimbrel.wire.protocol_names import NAMES
from whimbrel.wire.protocol_table import BY_TYPE

README = Path(__file__).parents[2] / "README.md"
REQUESTS = {**NAMES, **{kind: shape.name for kind, shape in BY_TYPE.items()}}
"""Every request of the protocol by its type."""


@pytest.fixture
def node() -> Node:
    pump = Pump()
    pump.form(1)
    return pump.nodes[0]


@pytest.fixture
def client(node: Node) -> Client:
    client = Client(node)
    client.open()
    return client


def handled(node: Node) -> list[str]:
    """Names of the requests that have a handler."""
    operations = node.engine.server.operations
    return [REQUESTS[kind] for kind in (*operations.in_partition, *operations.others)]


def test_every_request_is_handled_or_missing(node: Node) -> None:
    """Goal: a call that is not built names what is missing, one that is built is not called so.
    Method: the whole table of the protocol against the handlers.
    """
    here = handled(node)
    assert len(here) > 50 and len(REQUESTS) > 300
    assert [name for name in here if feature_of(name)] == []
    silent = [name for name in REQUESTS.values() if name not in here and not feature_of(name)]
    assert silent == []


def test_every_word_of_the_table_is_one_of_the_protocol() -> None:
    """Goal: no row outlives what it is about, and none says a thing twice."""
    services = {name.partition(".")[0] for name in REQUESTS.values()}
    words = [word for _, named in ABSENT for word in named.split()]
    assert len(words) == len(set(words))
    assert [word for word in words if word not in {*services, *REQUESTS.values()}] == []
    features = [feature for feature, _ in ABSENT]
    assert len(features) == len(set(features))


def test_the_readme_lists_what_is_missing() -> None:
    """Goal: the README's list is the table, no more and no less."""
    section = README.read_text().partition("## What is not there yet")[2].partition("\n## ")[0]
    (listed,) = [part for part in section.split("\n\n") if " · " in part]
    named = [part.strip().rstrip(".") for part in re.sub(r"\s+", " ", listed).split(" · ")]
    assert named == [feature for feature, _ in ABSENT]


@pytest.mark.parametrize(
    ("name", "fields", "missing"),
    [
        (
            "Map.addEntryListenerWithPredicate",
            {"predicate": b"\0" * 12, "include_value": True, "listener_flags": 1},
            "listeners with a predicate",
        ),
        (
            "Map.addNearCacheInvalidationListener",
            {"listener_flags": 1},
            "near caches",
        ),
    ],
)
def test_a_listener_that_is_not_built_names_what_is_missing(
    client: Client, name: str, fields: dict[str, object], missing: str
) -> None:
    """Goal: the refusal of a listener says which kind is missing; the connection goes on, and the
    member notes each kind once, because the Python client does not show the refusal.
    """
    node = client.node
    for _ in range(3):
        with pytest.raises(Error, match=f"{name} is not offered .*: it has no {missing}") as caught:
            client.call(name, name="m", local_only=False, **fields)
        assert caught.value.code == 61
    node.carry_out()
    notes = [note.fields for note in node.notes if note.kind == "unsupported_request"]
    assert notes == [{"request": name, "missing": missing}]


@pytest.mark.parametrize(("service", "name"), _SERVICE_OF.items())
def test_a_structure_that_is_not_built_is_named(client: Client, service: str, name: str) -> None:
    """Goal: a client that makes or destroys a list, a set, ... learns that there are none."""
    feature = feature_of(name)
    assert feature
    for prefix in ("hz:impl:", "hz:service:"):
        with pytest.raises(Error, match=re.escape(feature.removeprefix("the "))):
            client.call("Client.createProxy", name="x", service_name=prefix + service)
        with pytest.raises(Error, match=re.escape(feature.removeprefix("the "))):
            client.call("Client.destroyProxy", name="x", service_name=prefix + service)


def test_an_unknown_service_is_refused_and_not_remembered(client: Client) -> None:
    """Goal: a stranger's words are quoted, and cost no memory and no line in the log."""
    for number in range(3):
        with pytest.raises(Error, match=f"'hz:impl:x{number}' is not offered by this cluster$"):
            client.call("Client.createProxy", name="x", service_name=f"hz:impl:x{number}")
    client.node.carry_out()
    assert [note for note in client.node.notes if note.kind == "unsupported_request"] == []
