"""Counters and gauges of one member by name, for the metrics page. Knows names, not formats."""

from __future__ import annotations

from whimbrel.core.messages import MergeCounts
from whimbrel.serving.losses import summary_of
from whimbrel.serving.questions import Questions
from whimbrel.serving.server import Server


def metrics_of(server: Server, questions: Questions) -> dict[str, float]:
    """All figures of a member; counters end in ``_total``."""
    figures: dict[str, float] = {}
    for name in sorted(server.counters):
        figures[f"{name}_total"] = server.counters[name]
    for operation in server.operations.in_partition.values():
        if operation.count:
            method = operation.name.partition(".")[2]
            figures[f"requests_{operation.kind}_{method}_total"] = operation.count
    for name in sorted(server.figures):
        figures[name] = server.figures[name]()
    member = server.member
    figures["clients"] = sum(
        1 for connection in server.intake.connections.values() if connection.client_id is not None
    )
    figures["client_connections"] = len(server.intake.connections)
    figures["listeners"] = server.listeners.count
    figures["parked_requests"] = server.parking.count
    figures["parked_bytes"] = server.parking.bytes
    figures["parked_requests_total"] = server.parking.parked_total
    figures["waiting_calls"] = server.waits.count
    figures["waiting_call_hints"] = server.waits.queues.hint_count
    figures["calls_waiting"] = server.calls.waiting_count()
    figures["calls_held"] = server.calls.held_count()
    figures["whole_map_calls"] = server.scatter.count
    figures["questions_waiting"] = questions.waiting_count
    gap_us = member.membership.heartbeats.gap_longest_us
    figures["heartbeat_gap_longest_seconds"] = gap_us / 1_000_000
    figures["entries_to_free"] = member.dataplane.holdings.deferred.entries
    figures["members"] = len(server.ctx.members.members)
    figures["structures"] = len(member.registry.structures())
    figures["schemas"] = len(member.registry.schemas())
    figures["registry_announcements"] = member.registry.announcing_count()
    lost = summary_of(member.migrations.losses.unseen())
    figures["partitions_lost"], figures["partitions_lost_whole"] = lost["partitions"], lost["whole"]
    figures["partitions_lost_total"] = member.migrations.reporter.partitions_lost
    figures["messages_from_strangers_total"] = member.strangers_total
    figures["partitions_owned"] = server.table.primary_count(server.ctx.id)
    merged = member.merging.totals.values()
    for name in MergeCounts.__struct_fields__:
        figures[f"split_brain_entries_{name}_total"] = sum(getattr(c, name) for c in merged)
    figures["split_brain_entries_lost_total"] = member.merging.lost
    figures["split_brain_entries_waiting"] = member.merging.remaining
    figures["split_brain_protection_refusing"] = int(server.admission.protection.is_refusing)
    figures["survives"] = member.safety.survives()
    stable = member.safety.stable_word()
    if stable is not None:
        figures["stable_slots_differing"] = stable.slots_differing
    figures["degraded"] = int(bool(member.safety.degraded_because()))
    figures["replicas_missing"] = member.safety.missing_replicas()
    shortage = member.dataplane.shortage
    figures["writes_short_of_backups_total"] = shortage.total
    figures["partitions_short_of_min_in_sync"] = len(shortage.lacking)
    figures["replicas_held"] = server.table.replica_count(server.ctx.id)
    figures |= member.audits.figures()
    return figures | member.persistence.figures() | member.backups.figures()
