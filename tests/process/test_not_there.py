"""What is not built, as the official client meets it: quick refusals, and words to be found."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hazelcast.errors import HazelcastError
from hazelcast.predicate import sql

from whimbrel.testing import local_cluster

SETTINGS = {"partition.count": 7}
PROMPT_S = 5.0


def words_of(problem: BaseException | None) -> str:
    """What an exception and all that led to it say."""
    text = ""
    while problem is not None:
        text, problem = f"{text}\n{problem}", problem.__context__
    return text


def test_refusals_name_what_is_missing() -> None:
    """Goal: lists, locks of multimaps, SQL, listeners with a predicate and near caches are refused
    at once; the sentence says what is missing, at least in what the client hides and in the
    member's events. Method: the official client; the map still works afterwards.
    """
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "lists": lambda client, _: client.get_list("l").blocking().add(1),
        "sets": lambda client, _: client.get_set("s").blocking().add(1),
        "SQL": lambda client, _: list(client.sql.execute("select 1").result()),
        "transactions": lambda client, _: client.new_transaction().begin(),
        "locks of multimaps": lambda client, _: client.get_multi_map("m").blocking().lock("a"),
        "queries and predicates": lambda _, numbers: numbers.values(sql("n > 5")),
        "listeners with a predicate": lambda _, numbers: numbers.add_entry_listener(
            predicate=sql("n > 5"), added_func=print
        ),
        "near caches": lambda client, _: client.get_map("near").blocking().get("a"),
    }
    with local_cluster(1, settings=SETTINGS) as cluster:
        client = cluster.client(near_caches={"near": {}})
        numbers = client.get_map("numbers").blocking()
        for missing, call in calls.items():
            begin_s = time.monotonic()
            with pytest.raises(HazelcastError) as caught:
                call(client, numbers)
            assert f"it has no {missing}" in words_of(caught.value), missing
            assert time.monotonic() - begin_s < PROMPT_S, missing
        numbers.put("a", 1)
        assert numbers.get("a") == 1
        told = [e for e in cluster.get("/api/v1/events") if e["kind"] == "unsupported_request"]
        assert {event["missing"] for event in told} == set(calls)
