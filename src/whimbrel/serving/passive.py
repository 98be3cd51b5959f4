"""What clients may ask for in the cluster state PASSIVE (GCM-07): a named list, nothing else.

FROZEN allows what ACTIVE allows; PASSIVE is for a cluster whose data must stand still. Reads,
views, listeners and what a client needs to connect and read go on; whatever changes data is
refused at once. What members say to each other is not concerned: backups under way, anti-entropy,
membership and shutdown go on.
"""

from __future__ import annotations

from typing import Final

from whimbrel.errors import StateForbidsError
from whimbrel.wire.protocol_table import message_name, message_type

ALLOWED: Final = frozenset(
    f"Client.{method}"
    for method in (
        "authentication", "authenticationCustom", "ping", "triggerPartitionAssignment",
        "addClusterViewListener", "localBackupListener", "createProxy", "createProxies",
        "getDistributedObjects", "addDistributedObjectListener",
        "removeDistributedObjectListener", "statistics", "sendSchema", "fetchSchema",
        "sendAllSchemas", "addMigrationListener", "removeMigrationListener",
        "addPartitionLostListener", "removePartitionLostListener",
    )
) | frozenset(
    f"Map.{method}"
    for method in (
        "get", "containsKey", "getAll", "getEntryView", "fetchKeys", "fetchEntries", "size",
        "isEmpty", "containsValue", "keySet", "values", "entrySet", "addEntryListener",
        "addEntryListenerToKey", "removeEntryListener", "addPartitionLostListener",
        "removePartitionLostListener",
    )
)  # fmt: skip
"""Requests that run in PASSIVE; the test that walks all requests keeps it complete."""

REFUSED: Final = frozenset(
    f"Map.{method}"
    for method in (
        "put", "set", "remove", "delete", "putIfAbsent", "putWithMaxIdle",
        "putIfAbsentWithMaxIdle", "tryPut", "tryRemove", "replace", "replaceIfSame",
        "removeIfSame", "setTtl", "evict", "putTransient", "setWithMaxIdle",
        "putTransientWithMaxIdle", "putAll", "clear", "evictAll", "flush",
    )
) | {"Client.destroyProxy"}  # fmt: skip
"""Requests that change something, named so that a new request is put on one of the two lists."""

REFUSED_TYPES: Final = frozenset(message_type(name) for name in REFUSED)


def refusal(kind: int) -> StateForbidsError:
    """The error for a request of this type: it names the state, and nothing has happened."""
    name = message_name(kind) or "the request"
    return StateForbidsError(
        f"{name} is refused: the cluster state is PASSIVE and allows reads only"
    )
