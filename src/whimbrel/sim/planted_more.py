"""More bugs put in on purpose: of tables, calls, clients, listeners, expiry and liveness.

See ``planted``, which lists them with its own.
"""

from __future__ import annotations

from typing import Any

from whimbrel.core.ids import Address, MemberId, Row
from whimbrel.core.model import RowState
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace

CAP_FACTOR = 10
LIFE_FACTOR = 50


def equal_version_taken(engine: Engine) -> None:
    """A row is taken once more although its version is the one that is held."""
    keeper = engine.member.migrations._keeper
    apply_row = keeper.apply_row

    def take(state: RowState) -> bool:
        if state.version == keeper.table.version(state.partition_id) > 0:
            keeper.change(state.partition_id, state.row, state.version)
            return True
        return apply_row(state)

    replace(keeper, "apply_row", take)


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


def events_dropped(engine: Engine) -> None:
    """Listeners hear of nothing."""
    replace(engine.server.listeners, "publish", lambda _event: None)


def lives_too_long(engine: Engine) -> None:
    """A time to live counts many times over."""
    maps = engine.member.maps
    set_value = maps.set

    def late(
        partition: PartitionReplica, name: str, key: Any, value: Any, reply: Any, ttl_ms: int = -1
    ) -> None:
        longer_ms = ttl_ms * LIFE_FACTOR if ttl_ms > 0 else ttl_ms
        set_value(partition, name, key, value, reply, longer_ms)

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


def cap_ignored(engine: Engine) -> None:
    """A member takes part in ten times as many migrations as it may."""
    execution = engine.member.migrations._loop.execution
    limit = execution._parallel_max

    def raised() -> int:
        return limit() * CAP_FACTOR

    replace(execution, "_parallel_max", raised)


def repair_before_the_table(engine: Engine) -> None:
    """A new master promotes while parts of the table it begins with have not gone out."""
    loop = engine.member.migrations._loop
    replace(loop, "_may_repair", lambda: engine.member.ctx.state.promotion_allowed)


def cyclic_target(engine: Engine) -> None:
    """The assignment wants primary and first backup of a partition to change places."""
    loop = engine.member.migrations._loop
    targets_of = loop._targets

    def swapped() -> list[Row]:
        targets = targets_of()
        for pid, row in enumerate(loop._keeper.table.rows):
            if row[0] is not None and row[1] is not None:
                targets[pid] = (row[1], row[0], *row[2:])
                break
        return targets

    replace(loop, "_targets", swapped)


def nobody_may_leave(engine: Engine) -> None:
    """The master never answers a member that wants to leave."""
    replace(engine.member.migrations._loop, "may_leave", lambda _member: False)


def silence_unnoticed(engine: Engine) -> None:
    """Nobody is suspected because its heartbeats stay away."""
    replace(engine.member.membership.detector, "expire", lambda: None)


def heard_forgotten(engine: Engine) -> None:
    """Who gives way to a part of the cluster does not tell its next incarnation where that is."""
    membership = engine.member.membership
    on_started = membership.on_started

    def start(join_addresses: tuple[Address, ...], heard: tuple[Address, ...] = ()) -> None:
        on_started(join_addresses)

    replace(membership, "on_started", start)


MORE_BUGS: tuple[Bug, ...] = (
    Bug(equal_version_taken, "tables of equal version are taken", "kill", ("P1", "X2", "L1")),
    Bug(
        call_run_twice,
        "a repeated call runs twice",
        "reset",
        ("C4", "D2", "D4", "D1", "D3", "D13", "C5"),
    ),
    Bug(clients_not_told, "clients keep an old table", "kill", ("L1", "C2", "C1")),
    Bug(events_dropped, "listeners hear nothing", "kill", ("C3",)),
    Bug(lives_too_long, "entries outlive their time", "kill", ("D3",)),
    Bug(another_value, "a read returns another key's value", "kill", ("D2",)),
    Bug(old_value, "a read returns an old value", "kill", ("D4",)),
    Bug(cap_ignored, "too many migrations at once", "swarm", ("P8", "X1")),
    Bug(repair_before_the_table, "promotions before the table", "sliced", ("M3",)),
    Bug(cyclic_target, "a cycle is wanted", "kill", ("P10", "L1")),
    Bug(nobody_may_leave, "leaving never ends", "leave", ("L2", "L1")),
    Bug(silence_unnoticed, "silence is not noticed", "over", ("L1", "L2", "L5", "C1")),
    Bug(heard_forgotten, "who gives way founds anew", "lists", ("L1",)),
)
