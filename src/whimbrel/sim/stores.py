"""What members truly hold: reads of their stores and tables from outside, for the checkers.

The core knows nothing of this; nothing here changes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whimbrel.core import safety
from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.model import MemberInfo
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.settings import CoreSettings
from whimbrel.core.structures.map_store import MapStore
from whimbrel.core.structures.record import RECORD_BYTES
from whimbrel.sim.watch import member_of
from whimbrel.sim.workload import ABSENT, KeyHistory, value_origin

if TYPE_CHECKING:
    from whimbrel.core.member import Member
    from whimbrel.sim.host import Host
    from whimbrel.sim.world import World


def replica_of(host: Host, pid: int) -> PartitionReplica:
    """What a member holds of a partition."""
    return member_of(host).dataplane.partitions[pid]


def store_of(fragment: Fragment) -> MapStore:
    """The map store of a fragment.

    Raises:
        TypeError: It is another structure's.
    """
    store = fragment.store
    if not isinstance(store, MapStore):
        raise TypeError(f"{fragment.namespace} is no map")
    return store


def number_at(host: Host, history: KeyHistory) -> int:
    """Operation number of the value a member holds for a key, ABSENT when it holds none."""
    fragment = replica_of(host, history.partition_id).fragments.get(history.namespace)
    if fragment is None:
        return ABSENT
    return number_in(store_of(fragment).records, history)


def number_in(records: dict[bytes, bytes], history: KeyHistory) -> int:
    """Operation number of a key's value among these records; -1 for a foreign value."""
    record = records.get(history.stored)
    if record is None:
        return ABSENT
    origin = value_origin(record[RECORD_BYTES:])
    return -1 if origin is None else origin[2]


ENTRY_BYTES = 60
"""What a key and its record take beside the value, about."""


QUESTIONS = 3
"""Of a copy besides its chunks: the master's to the source, the probe, the commit."""


def copy_wait_us(world: World) -> int:
    """How long a cluster may take to copy what it holds, twice (a plan may be dropped half-way).

    A fragment has one chunk in flight, and small chunks over a slow network are what makes a copy
    long. Migrations run side by side unless they take turns, but a partition is copied in one go.
    """
    settings = world.plan.settings
    entries = [0] * settings.partition_count
    for host in world.up_hosts():
        for pid in range(settings.partition_count):
            entries[pid] = max(entries[pid], entry_count(host, pid))
    a_chunk = max(
        1, settings.migration_chunk_bytes_max // (ENTRY_BYTES + world.plan.value_bytes_max)
    )
    parallel = min(settings.migration_max_parallel, settings.replication_max_parallel)
    if settings.migration_copy_bytes_max < CoreSettings().migration_copy_bytes_max:
        parallel = 1
    in_a_row = max(max(entries), sum(entries) // parallel)
    depth = 1 + world.plan.backup_count + world.plan.async_backup_count
    questions = in_a_row // a_chunk + QUESTIONS * settings.partition_count // parallel
    return 2 * depth * questions * world.plan.round_trip_us


def entry_count(host: Host, pid: int) -> int:
    """Entries a member holds of a partition, all structures together."""
    return sum(len(fragment.store) for fragment in replica_of(host, pid).fragments.values())


def records_of(hosts: list[Host], pid: int, namespace: Namespace) -> list[dict[bytes, bytes]]:
    """The records of a namespace in a partition, one dictionary for each member that has any."""
    found = []
    for host in hosts:
        fragment = replica_of(host, pid).fragments.get(namespace)
        if fragment is not None and len(fragment.store):
            found.append(store_of(fragment).records)
    return found


def holders_of(world: World, history: KeyHistory, number: int) -> list[str]:
    """Members that hold this write of a key or a later one."""
    return [host.name for host in world.up_hosts() if number_at(host, history) >= number]


def primary_of(world: World, pid: int) -> Host | None:
    """The running primary of a partition in the master's table."""
    for host in world.up_hosts():
        if member_of(host).ctx.is_master:
            return world.watch.host_of(member_of(host).migrations.table.rows[pid][0])
    return None


def stored_number(world: World, history: KeyHistory) -> int:
    """Operation number of what the primary holds for a key."""
    primary = primary_of(world, history.partition_id)
    return ABSENT if primary is None else number_at(primary, history)


def unsafe_because(world: World) -> str:
    """Why the cluster is not safe in the product's own words; empty when it is.

    What ``status`` would say if every member were asked, and answered, at this moment.
    """
    word = safety_words(world)
    return "there is no master" if word is None else safety.unsafe_because(*word)


def survived_failures(world: World) -> int:
    """How many failures the product says that it survives now."""
    word = safety_words(world)
    return 0 if word is None else safety.survived_failures(*word)


def safety_words(world: World) -> tuple[safety.MasterWord, list[safety.Answer]] | None:
    """The words of the master and of whom it lists; None when nobody is in charge."""
    master = acting_master(world)
    if master is None:
        return None
    word = master.safety.master_word()
    return word, [_answer(world, info, word.settled) for info in master.ctx.members.members]


def acting_master(world: World) -> Member | None:
    """The first member that is in charge and awake."""
    for host in world.up_hosts():
        member = member_of(host)
        if host.joined and not host.is_paused and member.migrations.is_in_charge:
            return member
    return None


def _answer(world: World, info: MemberInfo, is_settled: bool) -> safety.Answer:
    host = world.watch.host_of(info.id)
    if host is None or host.is_paused or not host.joined:
        return info, f"member {info.address} does not answer"
    return info, member_of(host).safety.member_word(is_settled)


def restless_because(world: World) -> str:
    """Why a run waits although the cluster may be safe: somebody comes, goes, sleeps, changes."""
    hosts = world.up_hosts()
    if not hosts:
        return "nobody runs"
    ids = sorted(host.info.id for host in hosts)
    for host in hosts:
        if host.is_paused or not host.joined or host.is_leaving:
            return f"{host.name} is paused, joining or leaving"
        member = member_of(host)
        if member.membership.roles.wish is not None:
            return f"{host.name} waits to become lite, or a data member"
        if sorted(member.ctx.members.ids()) != ids:
            listed = member.ctx.members
            return f"{host.name} has list {listed.version} of {len(listed.members)} members"
    return ""


def replica_difference(primary: PartitionReplica, backup: PartitionReplica, index: int) -> str:
    """How a backup differs from its primary, in a few words; empty when it does not (D9)."""
    if primary.migrating or backup.migrating:
        return "the migrating flag is on"
    for namespace, fragment in primary.fragments.items():
        if index > fragment.backup_count:
            continue
        mine = store_of(fragment).records
        other = backup.fragments.get(namespace)
        if other is None:
            if mine:
                return f"{namespace} is missing ({len(mine)} entries)"
            continue
        if other.is_dirty:
            return f"{namespace} is dirty"
        if store_of(other).records != mine:
            return f"{namespace} has other entries"
        slot = max(index - 1, 0)
        if mine and other.counters()[slot:] != fragment.counters()[slot:]:
            return f"{namespace} has other versions"
    return ""


def leaks_of(host: Host) -> list[str]:
    """Fragments that a member holds and should not (D8)."""
    found: list[str] = []
    for replica in member_of(host).dataplane.partitions:
        for namespace, fragment in replica.fragments.items():
            if not 0 <= replica.index <= fragment.backup_count:
                found.append(f"p{replica.pid} {namespace} at index {replica.index}")
    return found


def vectors_of(host: Host, pid: PartitionId) -> dict[str, tuple[int, tuple[int, ...], int]]:
    """Lineage, counters and entries of each namespace, to see whether anything changed."""
    return {
        namespace: (fragment.lineage, fragment.counters(), len(fragment.store))
        for namespace, fragment in replica_of(host, pid).fragments.items()
    }
