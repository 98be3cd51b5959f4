"""What a run looks like: a profile says what may vary, a plan is one draw from it.

Every run draws its own parameters, some of them extreme, some of them switched off: a fixed
average mix would leave whole regions of behaviour unvisited (facts/reliability section 6.6).
"""

from __future__ import annotations

import random

import msgspec

from whimbrel.core.settings import CoreSettings, MapSettings
from whimbrel.errors import UsageError
from whimbrel.sim.entropy import Entropy, coin, log_uniform, pick
from whimbrel.sim.network import NetworkProfile

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US

FAMILIES = (
    *("crash", "silent", "pause", "cut", "clog", "reset", "slow", "leave", "join"),
    *("swizzle", "halves", "deaf", "shape", "flap", "reader", "narrow", "apart", "double"),
    *("ambush", "early", "rolling", "grey", "clock", "crowd", "exodus", "unsteady"),
    *("destroy", "flood", "stall"),
)
"""Kinds of harm. ``silent`` is a crash of the machine: no refusal, no reset. ``families`` says
what the others are."""
FAMILY_PROBABILITY = 0.22
"""How often a run has a family on; with so many of them most runs meet four or five."""


OPERATIONS = ("put", "set", "get", "remove", "delete", "put_if_absent", "replace")
LATER_OPERATIONS = ("mortal", "keys")
"""Of the workload: ``mortal`` writes entries with a time to live, ``keys`` asks for a whole map."""


class Profile(msgspec.Struct, frozen=True):
    """What the runs of a profile have in common."""

    name: str
    sentence: str
    families: tuple[str, ...] = FAMILIES
    members: tuple[int, ...] = (1, 2, 3, 3, 4, 4, 5, 5, 6, 7, 8, 9)
    partitions: tuple[int, ...] = (1, 2, 3, 3, 7, 7, 31, 31, 31, 271)
    backups: tuple[int, ...] = (0, 1, 1, 1, 2, 2, 3)
    is_extreme: bool = True
    """Whether settings are drawn from the extreme set, too."""
    always_harm: bool = False
    """Every family of the profile is on; otherwise a coin decides family by family."""
    over_budget: bool = False
    """More copies may be at risk than the configuration promises to survive."""
    slow_moves: bool = False
    """Migrations are slowed down, so that most faults find some under way."""
    machine_sizes: tuple[int, ...] = (1,)
    """Members on one machine; with more than one, replicas are spread over machines."""
    split: bool = False
    """Cuts may last longer than the heartbeat timeout, so that two clusters exist for a while."""
    operations_per_s: tuple[int, int] = (5, 40)
    harm_us: int = 14 * SECOND_US
    rounds: int = 2
    quick_us: int = 60 * SECOND_US
    """Least simulated length of a run."""
    fault_gap_us: tuple[int, int] = (700_000, 12 * SECOND_US)
    """Least and greatest mean pause between two faults of one family."""
    cluster_version: str = "4.1"
    """Ways of the cluster that the members found."""


_CASCADE = Profile(
    "cascade",
    "thirty members, ten on a machine; all of one machine stall for longer than a time-out",
    ("stall", "join"),
    members=(30,),
    partitions=(31,),
    backups=(1,),
    is_extreme=False,
    always_harm=True,
    machine_sizes=(10,),
    operations_per_s=(20, 20),
    rounds=1,
    harm_us=16 * SECOND_US,
    quick_us=30 * SECOND_US,
    fault_gap_us=(2 * SECOND_US, 3 * SECOND_US),
)

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            "swarm",
            "everything may vary; the harm stays within the promise",
            machine_sizes=(1, 1, 1, 2),
        ),
        Profile(
            "serial",
            "as swarm, in a cluster of version 4.0: one table version, one migration at a time",
            cluster_version="4.0",
        ),
        Profile(
            "serial-move",
            "as move, in a cluster of version 4.0",
            ("crash", "join"),
            members=(3, 4, 5),
            partitions=(7, 31),
            backups=(1, 1, 2),
            is_extreme=False,
            always_harm=True,
            slow_moves=True,
            operations_per_s=(20, 60),
            fault_gap_us=(500_000, 2 * SECOND_US),
            cluster_version="4.0",
        ),
        Profile(
            "upgrade",
            "kills and joins around the upgrade from 4.0 to 4.1, which is ordered again and again",
            ("crash", "join", "upgrade"),
            members=(3, 4, 5),
            partitions=(7, 31),
            backups=(1, 1, 2),
            is_extreme=False,
            always_harm=True,
            slow_moves=True,
            operations_per_s=(20, 60),
            rounds=3,
            fault_gap_us=(500_000, 3 * SECOND_US),
            cluster_version="4.0",
        ),
        _CASCADE,
        msgspec.structs.replace(
            _CASCADE,
            name="cascade_100",
            sentence="the same with a hundred members; one stall, up to a minute of CPU",
            members=(100,),
            partitions=(271,),
            quick_us=20 * SECOND_US,
        ),
        Profile("crash", "kills and restarts only", ("crash", "silent", "join"), always_harm=True),
        Profile(
            "kill",
            "three to five members, one or two backups, frequent kills and joins",
            ("crash", "join"),
            members=(3, 4, 5),
            partitions=(3, 7, 31),
            backups=(1, 1, 2),
            is_extreme=False,
            always_harm=True,
            operations_per_s=(20, 60),
            rounds=3,
            fault_gap_us=(600_000, 2 * SECOND_US),
        ),
        Profile(
            "move",
            "kills and joins while migrations crawl: most faults hit one under way",
            ("crash", "join"),
            members=(3, 4, 5),
            partitions=(7, 31),
            backups=(1, 1, 2),
            is_extreme=False,
            always_harm=True,
            slow_moves=True,
            operations_per_s=(20, 60),
            fault_gap_us=(500_000, 2 * SECOND_US),
        ),
        Profile(
            "leave",
            "joins and graceful leaves without any backup",
            ("leave", "join"),
            members=(2, 3, 4, 5),
            backups=(0,),
            always_harm=True,
            fault_gap_us=(600_000, 3 * SECOND_US),
        ),
        Profile(
            "pause",
            "members stop and go on, some of them after they were removed",
            ("pause", "join", "clog"),
            members=(3, 4, 5),
            backups=(1, 2),
            always_harm=True,
        ),
        Profile(
            "network",
            "clogs, resets, slow paths, short one-way cuts",
            ("cut", "clog", "reset", "slow", "join"),
            members=(2, 3, 4, 5),
            always_harm=True,
            fault_gap_us=(300_000, 3 * SECOND_US),
        ),
        Profile(
            "reset",
            "many writes over clogged connections that break",
            ("clog", "reset"),
            members=(2, 3, 4),
            partitions=(1, 3, 7),
            backups=(1, 2),
            always_harm=True,
            operations_per_s=(60, 150),
            harm_us=8 * SECOND_US,
            fault_gap_us=(200_000, 600_000),
        ),
        Profile(
            "split",
            "cuts that outlast the heartbeat timeout; data rules are not judged",
            ("cut", "pause", "reset", "crash", "halves", "deaf", "shape"),
            members=(3, 4, 5),
            always_harm=True,
            over_budget=True,
            split=True,
        ),
        Profile(
            "over",
            "more kills than the backups can bear; losses must be told",
            ("crash", "silent", "join", "blackout"),
            members=(2, 3, 4, 5),
            always_harm=True,
            over_budget=True,
            fault_gap_us=(500_000, 4 * SECOND_US),
        ),
        Profile(
            "ambush",
            "members die right before or after a message of a migration, a claim or a backup",
            ("ambush", "join", "early"),
            members=(3, 4, 5),
            partitions=(3, 7, 31),
            backups=(1, 1, 2),
            always_harm=True,
            operations_per_s=(20, 60),
            fault_gap_us=(300_000, 2 * SECOND_US),
        ),
        Profile(
            "topology",
            "partial partitions, swizzled and flapping links, messages twice",
            ("swizzle", "halves", "deaf", "shape", "flap", "narrow", "double", "join"),
            members=(3, 4, 5, 6),
            always_harm=True,
            fault_gap_us=(1 * SECOND_US, 8 * SECOND_US),
        ),
        Profile(
            "operator",
            "rolling restarts, crowds, mass leaves, unsteady members, floods, destroyed maps",
            ("rolling", "crowd", "exodus", "unsteady", "early", "destroy", "flood", "join"),
            members=(1, 2, 3, 4, 5),
            partitions=(1, 3, 7, 7, 31),
            always_harm=True,
            fault_gap_us=(4 * SECOND_US, 15 * SECOND_US),
        ),
        Profile(
            "clients",
            "clients cut from some members, clients that do not read, wall clocks that jump",
            ("reader", "apart", "clock", "flood", "reset", "grey", "leave", "join"),
            members=(2, 3, 4),
            always_harm=True,
            fault_gap_us=(500_000, 4 * SECOND_US),
        ),
        Profile(
            "busy",
            "five members, 271 partitions, 20 writes a second, a fault now and then",
            ("crash", "reset", "clog", "join"),
            members=(5,),
            partitions=(271,),
            backups=(1,),
            is_extreme=False,
            always_harm=True,
            operations_per_s=(25, 25),
            harm_us=120 * SECOND_US,
            fault_gap_us=(60 * SECOND_US, 120 * SECOND_US),
        ),
        Profile(
            "calm",
            "five members, 271 partitions, five writes a second, no fault",
            (),
            members=(5,),
            partitions=(271,),
            backups=(1,),
            is_extreme=False,
            operations_per_s=(6, 6),
        ),
    )
}


def profile_named(name: str) -> Profile:
    """The profile of that name.

    Raises:
        UsageError: There is none; the text lists all.
    """
    profile = PROFILES.get(name)
    if profile is None:
        raise UsageError(f"no profile {name!r}; there are {', '.join(sorted(PROFILES))}")
    return profile


class Plan(msgspec.Struct, frozen=True):
    """One draw: everything about a run that is not an event. All spans in microseconds."""

    seed: int
    profile: Profile
    settings: CoreSettings
    network: NetworkProfile
    members: int
    hosts: int
    """Addresses; those beyond ``members`` are for joins."""
    lite_hosts: int
    machine_size: int
    """Members on one machine."""
    backup_count: int
    async_backup_count: int
    smart_clients: int
    single_clients: int
    """Clients that talk to one member only (unisocket)."""
    operations_per_s: int
    register_keys: int
    value_bytes_max: int
    weights: dict[str, int]
    """Operation of the register workload to weight; absent is off."""
    fault_gap_us: dict[str, int]
    """Family to mean pause; absent is off."""
    encoded: bool
    """Messages cross the network as bytes, not as objects."""
    flush_delay_us: int
    timer_late_us: int
    tick_us: int
    clock_skew_ms: int
    clock_drift_ppm: int
    """Members' clocks run this much faster or slower, in millionths."""
    harm_us: int
    rounds: int

    @property
    def round_trip_us(self) -> int:
        """A question and its answer on a busy connection, where each waits for the one before."""
        network = self.network
        spike_us = network.spike_probability * network.spike_us
        one_way_us = network.delay_us + 3 * network.tail_us + int(3 * spike_us)
        return 2 * (one_way_us + self.flush_delay_us)

    @property
    def safe_wait_us(self) -> int:
        """How long a cluster may take to become safe once nothing harms it (L1), without data.

        What its data take on top of this is ``stores.copy_wait_us``.
        """
        settings = self.settings
        copies = settings.partition_count * (1 + self.backup_count + self.async_backup_count)
        migration_us = copies * 2 * (settings.migration_interval_us + 20_000)
        return (
            2 * settings.heartbeat_timeout_us
            + settings.claim_timeout_us
            + settings.join_timeout_us // 4
            + 2 * settings.backup_sync_interval_us
            + 4 * settings.migration_retry_us
            + 2 * settings.table_send_interval_us
            + 10 * settings.call_timeout_us
            + migration_us
        )


def draw_plan(entropy: Entropy, profile: Profile) -> Plan:
    """Draw the plan of a run."""
    generator = entropy.of("plan")
    partitions = pick(generator, profile.partitions)
    members = pick(generator, profile.members)
    backups = pick(generator, profile.backups)
    asynchronous = 1 if profile.is_extreme and backups < 3 and coin(generator, 0.15) else 0
    settings = _draw_settings(generator, profile, partitions, backups, asynchronous)
    later = entropy.of("plan-later")  # so that older draws stay what they were
    machine_size = pick(later, profile.machine_sizes)
    if machine_size > 1:
        settings = msgspec.structs.replace(settings, member_group="host")
    gaps = {
        family: log_uniform(generator, *profile.fault_gap_us)
        for family in profile.families
        if coin(generator, FAMILY_PROBABILITY) or profile.always_harm
    }
    low, high = profile.operations_per_s
    extreme = profile.is_extreme
    return Plan(
        seed=entropy.seed,
        profile=profile,
        settings=settings,
        network=_draw_network(generator, profile),
        members=members,
        hosts=members + (pick(generator, (0, 1, 1, 2, 3)) if profile.families else 0),
        machine_size=machine_size,
        lite_hosts=1 if extreme and members > 2 and coin(generator, 0.15) else 0,
        backup_count=backups,
        async_backup_count=asynchronous,
        smart_clients=pick(generator, (1, 2, 3)),
        single_clients=pick(generator, (0, 1, 1, 2)),
        operations_per_s=log_uniform(generator, low, high),
        register_keys=pick(generator, (1, 3, 10, 40)),
        value_bytes_max=pick(generator, (8, 8, 200, 2_000)) if extreme else 100,
        weights=_draw_weights(generator, later),
        fault_gap_us=gaps,
        encoded=coin(generator, 0.5),
        flush_delay_us=pick(generator, (0, 0, 50, 500)) if extreme else 0,
        timer_late_us=pick(generator, (0, 1_000, 20_000, 500_000)) if extreme else 1_000,
        tick_us=pick(generator, (50_000, 100_000, 200_000)) if extreme else 500_000,
        clock_skew_ms=pick(generator, (0, 50, 5_000)),
        clock_drift_ppm=pick(later, (0, 100, 20_000)) if extreme else 0,
        harm_us=profile.harm_us,
        rounds=profile.rounds,
    )


def _draw_weights(generator: random.Random, later: random.Random) -> dict[str, int]:
    """Wildly different weights, some operations off; writes and reads are never both off."""
    weights = {name: log_uniform(generator, 1, 60) for name in OPERATIONS if coin(generator, 0.7)}
    for name in LATER_OPERATIONS:
        if coin(later, 0.7):
            weights[name] = log_uniform(later, 1, 60)
    weights.setdefault("set", 10)
    weights.setdefault("get", 10)
    return weights


def _draw_network(generator: random.Random, profile: Profile) -> NetworkProfile:
    """Quick and even, or slow with spikes."""
    if profile.slow_moves:
        return NetworkProfile(delay_us=3_000, tail_us=10_000)
    extreme = profile.is_extreme
    return NetworkProfile(
        delay_us=log_uniform(generator, 20, 5_000) if extreme else 150,
        tail_us=log_uniform(generator, 20, 20_000) if extreme else 200,
        spike_probability=pick(generator, (0.0, 0.001, 0.02, 0.3)) if extreme else 0.0,
        spike_us=log_uniform(generator, 10_000, 300_000),
    )


def _draw_settings(
    generator: random.Random, profile: Profile, partitions: int, backups: int, asynchronous: int
) -> CoreSettings:
    """Realistic settings or, by a coin for each, extreme ones."""
    extreme = profile.is_extreme

    def either(realistic: int, *extremes: int) -> int:
        return pick(generator, (realistic, *extremes)) if extreme else realistic

    interval_us = either(0, 0, 10_000, 50_000) if partitions < 100 else 0
    chunk_bytes = either(262_144, 1, 100, 2_000)
    timeout_us = either(5 * SECOND_US, 3 * SECOND_US, 8 * SECOND_US)
    return CoreSettings(
        cluster_name="sim",
        partition_count=partitions,
        cluster_version=profile.cluster_version,
        plan_depth="deep" if extreme and coin(generator, 0.1) else "needed",
        heartbeat_interval_us=either(1_000_000, 300_000, 500_000),
        heartbeat_timeout_us=timeout_us,
        join_window_us=either(100_000, 1_000, 1_000_000),
        join_window_max_us=either(500_000, 2_000_000),
        discovery_interval_us=either(150_000, 50_000, 500_000),
        claim_timeout_us=either(5 * SECOND_US, 3 * SECOND_US),
        call_timeout_us=either(2_000_000, 300_000, 1_000_000),
        leave_retry_us=either(1_000_000, 200_000),
        member_list_publish_interval_us=either(10 * SECOND_US, 1 * SECOND_US),
        migration_max_parallel=either(10, 1, 2),
        migration_interval_us=20_000 if profile.slow_moves else interval_us,
        migration_timeout_us=either(20 * SECOND_US, 8 * SECOND_US),
        migration_retry_us=either(3 * SECOND_US, 500_000),
        migration_chunk_bytes_max=200 if profile.slow_moves else chunk_bytes,
        migration_fragments_enabled=not extreme or coin(generator, 0.8),
        stale_read_disabled=coin(generator, 0.5),
        completed_batch_max=either(1_000, 1, 3) if partitions < 100 else 1_000,
        table_send_interval_us=either(15 * SECOND_US, 1 * SECOND_US),
        backup_sync_interval_us=either(10 * SECOND_US, 2 * SECOND_US),
        replication_max_parallel=either(10, 1, 2),
        unacknowledged_backups_max=either(200_000, 3, 50),
        backup_timeout_us=either(10 * SECOND_US, 4 * SECOND_US),
        maps=(MapSettings("default", backups, asynchronous),),
    )
