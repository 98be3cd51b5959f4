"""Bugs of maps: of values, of times to live, of listeners."""

from __future__ import annotations

from typing import Any

from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace

LIFE_FACTOR = 50


def events_dropped(engine: Engine) -> None:
    """Listeners hear of nothing."""
    replace(engine.server.listeners, "publish", lambda _event: None)


def lives_too_long(engine: Engine) -> None:
    """A time to live counts many times over."""
    maps = engine.member.maps
    set_value = maps.set

    def late(partition: PartitionReplica, name: str, *given: Any) -> bytes | None:
        key, value, reply, *spans = given
        longer_ms = [span * LIFE_FACTOR if span > 0 else span for span in spans[:1]]
        return set_value(partition, name, key, value, reply, *longer_ms, *spans[1:])

    replace(maps, "set", late)


def another_value(engine: Engine) -> None:
    """A read of a key returns what another key holds."""
    maps = engine.member.maps
    get = maps.get
    known: dict[bytes, bytes] = {}

    def read(partition: PartitionReplica, name: str, key: Any) -> bytes | None:
        value = get(partition, name, key)
        others = [held for one, held in known.items() if one != bytes(key)]
        if value is not None:
            known[bytes(key)] = value
        return others[0] if value is not None and others else value

    replace(maps, "get", read)


def old_value(engine: Engine) -> None:
    """A read of a key returns what the first read of it returned."""
    maps = engine.member.maps
    get = maps.get
    first: dict[tuple[str, bytes], bytes | None] = {}

    def read(partition: PartitionReplica, name: str, key: Any) -> bytes | None:
        return first.setdefault((name, bytes(key)), get(partition, name, key))

    replace(maps, "get", read)


BUGS: tuple[Bug, ...] = (
    Bug(events_dropped, "kill", ("C3",)),
    Bug(lives_too_long, "kill", ("D3",)),
    Bug(another_value, "kill", ("D2",)),
    Bug(old_value, "kill", ("D4",)),
)
