"""Bugs of maps: of values, of times to live, of bounds, of listeners."""

from __future__ import annotations

from typing import Any

from whimbrel.core.ids import Namespace
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, nothing, replace
from whimbrel.sim.structures.map.model import store_of
from whimbrel.structures.map.service import MapService
from whimbrel.structures.map.settings import RANDOM

LIFE_FACTOR = 50


def events_dropped(engine: Engine) -> None:
    """Listeners hear of nothing."""
    replace(engine.server.listeners, "publish", lambda _event: None)


def lives_too_long(engine: Engine) -> None:
    """A time to live counts many times over."""
    maps = engine.member.service(MapService)
    set_value = maps.set

    def late(
        partition: PartitionReplica, namespace: Namespace, *given: Any, **named: Any
    ) -> bytes | None:
        key, value, reply, *spans = given
        longer_ms = [span * LIFE_FACTOR if span > 0 else span for span in spans[:1]]
        spans = [*longer_ms, *spans[1:]]
        return set_value(partition, namespace, key, value, reply, *spans, **named)

    replace(maps, "set", late)


def another_value(engine: Engine) -> None:
    """A read of a key returns what another key holds."""
    maps = engine.member.service(MapService)
    get = maps.get
    known: dict[bytes, bytes] = {}

    def read(partition: PartitionReplica, namespace: Namespace, key: Any) -> bytes | None:
        value = get(partition, namespace, key)
        others = [held for one, held in known.items() if one != bytes(key)]
        if value is not None:
            known[bytes(key)] = value
        return others[0] if value is not None and others else value

    replace(maps, "get", read)


def old_value(engine: Engine) -> None:
    """A read of a key returns what the first read of it returned."""
    maps = engine.member.service(MapService)
    get = maps.get
    first: dict[tuple[Namespace, bytes], bytes | None] = {}

    def read(partition: PartitionReplica, namespace: Namespace, key: Any) -> bytes | None:
        return first.setdefault((namespace, bytes(key)), get(partition, namespace, key))

    replace(maps, "get", read)


def evicted_at_the_primary_alone(engine: Engine) -> None:
    """Backups do not hear of what is evicted."""
    replace(engine.member.service(MapService).evictor, "_tell", nothing)


def bound_forgotten(engine: Engine) -> None:
    """A map that is full takes more."""
    replace(engine.member.service(MapService).evictor, "evict", nothing)


def newest_evicted(engine: Engine) -> None:
    """The oldest entry stays, whatever comes; the one that has just come may go."""
    evictor = engine.member.service(MapService).evictor
    evict = evictor.evict

    def evict_newer(
        partition: PartitionReplica, fragment: Fragment, policy: str, spared: bytes, count: int
    ) -> None:
        oldest = next(iter(store_of(fragment.store).records))
        evict(partition, fragment, RANDOM, oldest, count)

    replace(evictor, "evict", evict_newer)


BUGS: tuple[Bug, ...] = (
    Bug(events_dropped, "kill", ("C3",)),
    Bug(lives_too_long, "kill", ("D3",)),
    Bug(another_value, "kill", ("D2",)),
    Bug(old_value, "kill", ("D4",)),
    Bug(evicted_at_the_primary_alone, "full", ("D9",), range(2, 202)),
    Bug(bound_forgotten, "full", ("D14",)),
    Bug(newest_evicted, "full", ("D14",)),
)
