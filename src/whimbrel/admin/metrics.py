"""The Prometheus page of one member: our figures under ``whimbrel_`` names. Knows the format.

The registry is our own, so a program that embeds a member keeps its page to itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from whimbrel.core.model import ClusterState
from whimbrel.core.registry import backups_of
from whimbrel.runtime.node import Node
from whimbrel.serving.losses import summary_of

CONTENT_TYPE = CONTENT_TYPE_LATEST
PREFIX = "whimbrel_"
COUNTER_END = "_total"
LOSS_LABELS = ("kind", "structure")
HELP = {
    "members": "Members on this member's list",
    "clients": "Authenticated clients",
    "partitions_owned": "Partitions of which this member is the primary",
    "replicas_held": "Replicas in this member's rows, primaries included",
    "partitions_lost": "Partitions that lost data, until an operator has seen it",
    "partitions_lost_whole": "Those of them of which no replica was left",
    "unsettled_replicas": "What keeps the replicas here from being known to be in step",
    "survives": "Members (or groups) that may die at once, by this member's list and table",
    "degraded": "1 while members or groups are fewer than the replicas that maps ask for",
    "replicas_missing": "Replicas asked for that no present member holds, by this member's table",
    "writes_short_of_backups": "Changes made with fewer backups than min(b, data members - 1)",
    "partitions_short_of_min_in_sync": "Partitions here with fewer backups than some map demands",
    "cluster_state": "0 ACTIVE, 1 NO_MIGRATION, 2 FROZEN, 3 PASSIVE, 4 a change is under way, "
    "5 STABLE_CLUSTER",
    "stable_slots_differing": "Slots of this member's table that are not as in the stable one",
    "members_missing": "Members that are away while the cluster state keeps their seats",
    "migrations_active": "Migrations this member takes part in",
    "map_entries_evicted": "Entries of maps that went because a map had reached its max_size",
    "copies_whole": "Fragments given to a member as a whole",
    "copies_by_difference": "Fragments given to a member that had an older copy: what differs",
    "copies_by_log": "Fragments given to a member that had been away: the keys changed since",
    "copies_same": "Fragments that a member had already, by their versions: nothing was sent",
    "copy_entries_sent": "Entries sent with copies of fragments, whichever way",
    "copy_removals_sent": "Keys sent with copies by log that had been removed",
    "copy_sum_bytes_sent": "Bytes of sums of hash trees sent to find what differs",
    "key_logs": "Fragments whose changed keys are logged because somebody is away",
    "key_log_keys": "Changed keys in these logs",
    "key_log_bytes": "Bytes of memory that they take, about",
    "key_logs_dropped": "Logs of changed keys given up because they had grown too large",
    "fragments_kept": "Fragments that are no replica, kept for copies that may come",
    "bytes_kept": "Bytes of their entries",
    "audits": "Audits that this member has driven to their end",
    "audit_entries_compared": "Entries of primaries that they compared with backups",
    "audit_entries_differing": "Entries of backups that were not as their primary's",
    "audit_entries_repaired": "Of these, entries that were made so",
    "disk_works": "Batches of commands that went to the disk",
    "disk_syncs": "Syncs of files of the log",
    "disk_bytes_written": "Bytes appended to the log: changes, and images that compaction made",
    "disk_change_bytes": "Of these, changes; the quotient of the two is the write amplification",
    "disk_images": "Images of fragments that were made",
    "disk_refusals": "Works that a full or read-only disk refused",
    "disk_log_bytes": "Bytes of all files of the log",
    "disk_waiting_bytes": "Bytes that wait for the disk",
    "backups_made": "Backups that were made while this member was the master",
    "backups_failed": "Those that were not",
    "backups_skipped": "Times of the schedule at which none could be made",
    "disk_other_keys_bytes": "Bytes of the log that are not encrypted with the key that is written "
    "with; 0 without encryption",
    "disk_history_bytes": "Bytes of segments that are kept for the next increment of a backup",
    "disk_refuses": "1 while the disk takes nothing and writes are refused",
    "heartbeat_gap_longest_seconds": "Longest time between two heartbeats sent since the start",
    "loop_step_longest_seconds": "Longest time the control plane occupied the loop at once",
    "loop_late_longest_seconds": "Longest delay of the loop's regular look at its time-outs",
}
"""Help texts where the name does not say it all."""


class Metrics(Collector):
    """Collects the figures of a member when the page is asked for."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(namespace="whimbrel", registry=self._registry)

    def page(self) -> bytes:
        """The page in the text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """No names in advance: they depend on what has happened."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One family a figure, in the order of the names."""
        figures = self.figures()
        for name in sorted(figures):
            yield _family(name, figures[name])
        yield from self._losses()
        yield self._survives()

    def _survives(self) -> Metric:
        """What each structure that lies in partitions bears now, by this member's table."""
        text = "Members (or groups) that may die at once without a loss of this structure"
        found = GaugeMetricFamily(PREFIX + "structure_survives", text, labels=LOSS_LABELS)
        member = self._node.engine.member
        for entry in member.registry.structures():
            if entry.kind in member.services:
                survives = member.safety.survives_of(backups_of(entry)[0])
                found.add_metric([entry.kind, entry.key], survives)
        return found

    def _losses(self) -> Iterable[Metric]:
        """What each structure has lost, until an operator has seen it."""
        text = "Partitions in which a structure lost data that no operator has seen"
        partitions = GaugeMetricFamily(
            PREFIX + "structure_partitions_lost", text, labels=LOSS_LABELS
        )
        text = "About how many entries went with them; absent where nobody knows"
        entries = GaugeMetricFamily(PREFIX + "structure_entries_lost", text, labels=LOSS_LABELS)
        marks = self._node.engine.member.migrations.losses.unseen()
        for row in summary_of(marks)["structures"]:
            labels = [row["kind"], row["name"]]
            partitions.add_metric(labels, row["partitions"])
            if row["entries"] is not None:
                entries.add_metric(labels, row["entries"])
        yield partitions
        yield entries

    def figures(self) -> dict[str, float]:
        """Name without prefix to value."""
        member = self._node.engine.member
        plane = member.dataplane
        key_logs = plane.holdings.key_logs
        owned = [part for part in plane.partitions if part.is_primary]
        stores = [fragment.store for part in owned for fragment in part.fragments.values()]
        return {
            **self._node.metrics(),
            "entries_owned": sum(len(store) for store in stores),
            "bytes_owned": sum(store.bytes_used for store in stores),
            "unsettled_replicas": plane.unsettled(),
            "migrations_active": len(member.migrations.active_migrations()),
            "is_master": float(member.ctx.is_master),
            "cluster_state": float(list(ClusterState).index(member.ctx.state)),
            "members_missing": sum(
                member.ctx.members.get(info.id) is None for info in member.ctx.members.missing
            ),
            **{f"{name}{COUNTER_END}": value for name, value in plane.counters.items()},
            **{f"{name}{COUNTER_END}": value for name, value in plane.holdings.copies.items()},
            **{f"{name}{COUNTER_END}": value for name, value in key_logs.counters.items()},
            "key_logs": len(key_logs),
            "key_log_keys": key_logs.keys,
            "key_log_bytes": key_logs.bytes_used,
            "fragments_kept": len(plane.holdings.kept),
            "bytes_kept": plane.holdings.kept.bytes_used,
        }


def _family(name: str, value: float) -> Metric:
    """A counter when the name says so, else a gauge."""
    plain = name.removesuffix(COUNTER_END).replace(".", "_").replace("-", "_")
    text = HELP.get(plain, plain.replace("_", " ").capitalize())
    if name.endswith(COUNTER_END):
        return CounterMetricFamily(PREFIX + plain, text, value=value)
    return GaugeMetricFamily(PREFIX + plain, text, value=value)
