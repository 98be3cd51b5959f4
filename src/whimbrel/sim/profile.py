"""What a run looks like: a profile says what may vary, a plan is one draw from it (``profiles``).

Every run draws its own parameters, some of them extreme, some of them switched off: a fixed
average mix would leave whole regions of behaviour unvisited.
"""

from __future__ import annotations

import random

import msgspec

from whimbrel.core.settings import ComparisonBounds, CoreSettings
from whimbrel.sim.entropy import Entropy, coin, log_uniform, pick
from whimbrel.sim.network import NetworkProfile
from whimbrel.sim.persisted import ALWAYS, ENCRYPTED_SHARE, draw_persistence
from whimbrel.sim.structures.configured import MAPS_ONLY, configured
from whimbrel.structures.map.settings import MapSettings

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US

USUAL_FAMILIES = (
    *("crash", "silent", "pause", "cut", "clog", "reset", "slow", "leave", "join"),
    *("swizzle", "halves", "deaf", "shape", "flap", "reader", "narrow", "apart", "double"),
    *("ambush", "early", "rolling", "grey", "clock", "crowd", "exodus", "unsteady"),
    *("destroy", "flood", "stall"),
)
"""Kinds of harm. ``silent`` is a crash of the machine: no refusal, no reset. ``faults.families``
says what the others are."""
OPERATOR_FAMILIES = ("states", "roles", "upgrade")
"""Not in ``USUAL_FAMILIES``, whose draws are to stay what they were."""
LEAVE_TIMEOUT_US = 24 * 3600 * SECOND_US
"""Longer than any copy: with tiny chunks over a slow network a drain takes longer than the ten
minutes that operators give it. A drain that hangs breaks L1."""
ALL_KINDS_SHARE = 0.5
"""How often a run uses every kind of structure; the others use maps alone, and more of them."""
FAMILY_PROBABILITY = 0.22
"""How often a run has a family on; with so many of them most runs meet four or five."""


MERGE_POLICIES = ("PutIfAbsent", "LatestUpdate", "HigherHits", "Discard", "PassThrough")
OPERATIONS = ("put", "set", "get", "remove", "delete", "put_if_absent", "replace")
LATER_OPERATIONS = ("mortal", "keys")
"""Of the workload: ``mortal`` writes entries with a time to live, ``keys`` asks for a whole map."""


class Profile(msgspec.Struct, frozen=True):
    """What the runs of a profile have in common."""

    name: str
    sentence: str
    families: tuple[str, ...] = USUAL_FAMILIES
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
    """Version of the cluster that the members found."""
    step_rows_max: int = 512
    compares_all: bool = False
    """Copies begin with a comparison however small they are, and in small steps."""
    """Rows of the table in one step; most tables here are smaller."""
    serial_share: float = 0.0
    """How often a cluster is founded with the version 4.0 instead."""
    merge_policies: tuple[str, ...] = ("PutIfAbsent",)
    """Of the maps, one a run."""
    bounded_share: float = 0.0
    """How many of the calls on maps are on the one that has a bound."""
    partial_joins: bool = False
    """Each member is configured with some of the others only, or with nobody; together their lists
    connect all."""
    flush_delays_us: tuple[int, ...] = (0, 0, 50, 500)
    """How long a member gathers before it sends; the first where nothing is extreme."""
    keeps_identity: bool = False
    """A process that starts again is who it was, as with a data directory."""
    disks: bool = False
    """Members keep what they hold on disk, and come back with it (``persisted``)."""


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
    kinds: tuple[str, ...]
    """Kinds of structures that clients use; none named is every kind there is."""
    fault_gap_us: dict[str, int]
    """Family to mean pause; absent is off."""
    encoded: bool
    """Messages cross the network as bytes, not as objects."""
    flush_delay_us: int
    timer_late_us: int
    tick_us: int
    encrypted: bool
    """Members encrypt their files, each process with another key than the one before, maybe."""
    clock_skew_ms: int
    clock_drift_ppm: int
    """Members' clocks run this much faster or slower, in millionths."""
    harm_us: int
    rounds: int

    @property
    def one_way_bound_us(self) -> int:
        """How long who is heard in one direction only may stay on a list (L5).

        A member whose timers are late forgives the others as much silence as it was late.
        """
        settings = self.settings
        silence_us = settings.heartbeat_timeout_us + 3 * settings.heartbeat_interval_us
        forgiven_us = silence_us * self.timer_late_us // settings.heartbeat_interval_us
        return silence_us + forgiven_us + settings.claim_timeout_us + 2 * settings.call_timeout_us

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

        What its data take on top of this is ``bounds.waits.copy_wait_us``.
        """
        settings = self.settings
        copies = settings.partition_count * (1 + self.backup_count + self.async_backup_count)
        migration_us = copies * 2 * (settings.migration_interval_us + 20_000)
        disks = settings.persistence
        files_us = 2 * disks.validation_timeout_us + disks.data_load_timeout_us
        return (files_us if disks.enabled else 0) + (
            2 * settings.heartbeat_timeout_us
            + settings.claim_timeout_us
            + settings.join_timeout_us // 4
            + 2 * settings.backup_sync_interval_us
            + 4 * settings.migration_retry_us
            + 2 * settings.table_send_interval_us
            + 10 * settings.call_timeout_us
            + migration_us
        )


def _draw_comparison(generator: random.Random) -> ComparisonBounds:
    """Bounds of comparisons: so small that a few entries take a tree of some levels and steps."""
    return ComparisonBounds(
        few_entries=0,
        leaf_entries=pick(generator, (0, 1, 4)),
        work_max=pick(generator, (1, 5, 40)),
        audit_max=pick(generator, (1, 5, 40)),
    )


def draw_plan(entropy: Entropy, profile: Profile) -> Plan:
    """Draw the plan of a run."""
    generator = entropy.of("plan")
    partitions = pick(generator, profile.partitions)
    members = pick(generator, profile.members)
    backups = pick(generator, profile.backups)
    asynchronous = 1 if profile.is_extreme and backups < 3 and coin(generator, 0.15) else 0
    settings = _draw_settings(generator, profile, partitions, backups, asynchronous)
    if len(profile.merge_policies) > 1:
        policy = pick(entropy.of("plan-merge"), profile.merge_policies)
        structures = tuple(
            msgspec.structs.replace(one, merge_policy=policy)
            if isinstance(one, MapSettings)
            else one
            for one in settings.structures
        )
        settings = msgspec.structs.replace(settings, structures=structures)
    if profile.serial_share and coin(entropy.of("plan-version"), profile.serial_share):
        settings = msgspec.structs.replace(settings, cluster_version="4.0")
    later = entropy.of("plan-later")  # so that older draws stay what they were
    acks_told = coin(entropy.of("plan-acks"), 0.5)
    settings = msgspec.structs.replace(settings, backup_acks_to_client=acks_told)
    if profile.is_extreme:
        turns = pick(entropy.of("plan-turns"), (settings.migration_copy_bytes_max, 2_000, 1))
        settings = msgspec.structs.replace(settings, migration_copy_bytes_max=turns)
    if profile.compares_all:
        bounds = _draw_comparison(entropy.of("plan-comparison"))
        settings = msgspec.structs.replace(settings, comparison=bounds)
    if profile.disks:
        persistence = draw_persistence(entropy.of("plan-disks"))
        settings = msgspec.structs.replace(settings, persistence=persistence)
    machine_size = pick(later, profile.machine_sizes)
    if machine_size > 1:
        settings = msgspec.structs.replace(settings, member_group="host")
    gaps = {
        family: log_uniform(generator, *profile.fault_gap_us)
        for family in profile.families
        if coin(generator, FAMILY_PROBABILITY) or profile.always_harm
    }
    (low, high), delays_us = profile.operations_per_s, profile.flush_delays_us
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
        kinds=_draw_kinds(entropy, settings),
        fault_gap_us=gaps,
        encoded=coin(generator, 0.5),
        flush_delay_us=pick(generator, delays_us) if extreme else delays_us[0],
        timer_late_us=pick(generator, (0, 1_000, 20_000, 500_000)) if extreme else 1_000,
        tick_us=pick(generator, (50_000, 100_000, 200_000)) if extreme else 500_000,
        encrypted=profile.disks and coin(entropy.of("plan-keys"), ENCRYPTED_SHARE),
        clock_skew_ms=pick(generator, (0, 50, 5_000)),
        clock_drift_ppm=pick(later, (0, 100, 20_000)) if extreme else 0,
        harm_us=profile.harm_us,
        rounds=profile.rounds,
    )


def _draw_kinds(entropy: Entropy, settings: CoreSettings) -> tuple[str, ...]:
    """Maps alone, or all; of what may be lost with everybody only ledgers of keys can be told."""
    is_all = coin(entropy.of("plan-kinds"), ALL_KINDS_SHARE)
    persistence = settings.persistence
    loses = persistence.enabled and persistence.fsync != ALWAYS
    return MAPS_ONLY if loses or not is_all else ()


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
        leave_timeout_us=LEAVE_TIMEOUT_US,
        member_list_publish_interval_us=either(10 * SECOND_US, 1 * SECOND_US),
        migration_max_parallel=either(10, 1, 2),
        migration_interval_us=20_000 if profile.slow_moves else interval_us,
        migration_timeout_us=either(20 * SECOND_US, 8 * SECOND_US),
        migration_retry_us=either(3 * SECOND_US, 500_000),
        migration_chunk_bytes_max=200 if profile.slow_moves else chunk_bytes,
        migration_fragments_enabled=not extreme or coin(generator, 0.8),
        stale_read_disabled=coin(generator, 0.5),
        step_rows_max=profile.step_rows_max,
        completed_batch_max=either(1_000, 1, 3) if partitions < 100 else 1_000,
        table_send_interval_us=either(15 * SECOND_US, 1 * SECOND_US),
        backup_sync_interval_us=either(10 * SECOND_US, 2 * SECOND_US),
        replication_max_parallel=either(10, 1, 2),
        unacknowledged_backups_max=either(200_000, 3, 50),
        backup_timeout_us=either(10 * SECOND_US, 4 * SECOND_US),
        structures=configured(backups, asynchronous),
    )
