"""Goal: a walk over keys that come and go misses none that stays."""

from __future__ import annotations

import pytest

from whimbrel.core.replication import walk
from whimbrel.core.replication.walk import Walk


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ten keys be many."""
    monkeypatch.setattr(walk, "KEYS_TAKEN", 10)


def name(number: int) -> bytes:
    return b"%06d" % number


@pytest.mark.parametrize("comes", [0, 1, 3])
def test_keys_that_stay_are_all_met(comes: int) -> None:
    """GCM-34: also when as many come as go, which a dictionary's own iterator does not notice.
    Method: dictionaries of every size, so that some of them grow just then; three keys go after
    each step.
    """
    for size in range(1, 400):
        keys = {name(number): b"" for number in range(size)}
        stays, met, changes = dict(keys), dict[bytes, None](), 0
        going = Walk(changes, keys)
        while going.keys:
            met.update(dict.fromkeys(going.keys))
            for number in range(changes, changes + 3):
                if keys.pop(name(number), None) is not None:
                    del stays[name(number)]
            for number in range(changes, changes + comes):
                keys[name(1_000 + number)] = b""
            changes += 3
            going.go_on(changes)
        assert not stays.keys() - met.keys(), size


def test_what_is_listed_whole_is_listed_once() -> None:
    """Changes after the last key was taken do not make a walk begin again: while a small store is
    written, as during every sync, its copy is sent once.
    """
    keys = {name(number): b"" for number in range(7)}
    going = Walk(0, keys)
    met = list(going.keys)
    keys[name(8)] = b""
    going.go_on(1)
    assert going.keys == [] and len(met) == 7


def test_a_walk_that_begins_again_does_so_once() -> None:
    """It comes to an end however long changes go on, over several dictionaries in their order."""
    one, other = {name(1): b""}, {name(number): b"" for number in range(2, 30)}
    going, steps = Walk(0, one, other), 0
    while going.keys:
        steps += 1
        one[name(100 + steps)] = b""
        going.go_on(steps)
    assert steps == 4
