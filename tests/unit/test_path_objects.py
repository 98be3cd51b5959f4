"""What every request goes through is laid out as the interpreter reads it fastest."""

from __future__ import annotations

from typing import Final

from whimbrel.bench import hot_path
from whimbrel.bench.engines import BenchCluster
from whimbrel.core.settings import CoreSettings
from whimbrel.structures.map.settings import MapSettings

INLINE_MAX: Final = 30
"""CPython keeps the attributes of an object in a row while they are no more (PEP 412,
``SHARED_KEYS_MAX_SIZE``); with one more every one of them is looked up by hash, which made a put
7 % and a get 11 % dearer."""


def test_objects_on_the_path_keep_their_attributes_in_a_row() -> None:
    """Goal: no object that every request goes through has more attributes than CPython keeps in
    a row. Method: count them after puts with a backup.
    """
    cluster = BenchCluster(
        3, CoreSettings(partition_count=hot_path.PARTITIONS, structures=(MapSettings("b1"),))
    )
    for member, data in hot_path._chunks(cluster, "put", "b1", 1)[:30]:
        cluster.request(member, data)
    cluster.settle()
    engine = cluster.members[0].engine
    server, plane = engine.server, engine.member.dataplane
    on_path = [engine, server, engine.member, engine.member.ctx, engine.handlers["map"]]
    on_path += [engine.member.services["map"], plane, plane.holdings]
    on_path += [plane.incoming, plane.outgoing, server.intake, server.turn_end, server.admission]
    counts = {type(one).__name__: len(vars(one)) for one in on_path}
    assert max(counts.values()) <= INLINE_MAX, counts
