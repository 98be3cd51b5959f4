"""The configuration loader: precedence, aliases, and every kind of mistake told with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from whimbrel.config import Config, Flag, explain, load, split_setting
from whimbrel.config.settings import RuntimeSettings
from whimbrel.core.ids import Address, Namespace
from whimbrel.core.settings import CoreSettings, PersistenceSettings
from whimbrel.errors import ConfigError
from whimbrel.structures.kinds import KINDS
from whimbrel.structures.map.settings import UNLIMITED, MapSettings
from whimbrel.structures.multimap.settings import MultiMapSettings


def sets(*texts: str) -> list[Flag]:
    return [split_setting(text) for text in texts]


def problems(
    file: str | None = None, environment: dict[str, str] | None = None, *texts: str
) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(file, environment, sets(*texts))
    return refused.value.problems


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "grid.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def sources(config: Config) -> dict[str, tuple[object, str]]:
    return {str(row["key"]): (row["value"], str(row["source"])) for row in explain(config)}


def test_nothing_given_is_the_defaults() -> None:
    """Goal: the defaults live in the settings structs only. Method: an empty load."""
    config = load()
    assert config.core == CoreSettings()
    assert config.runtime == RuntimeSettings()
    assert {source for _, source in sources(config).values()} == {"default"}


def test_file_environment_and_flags_in_rising_order(tmp_path: Path) -> None:
    """Goal: file < environment < flags, and the winner's source is told (PIM-24)."""
    file = write(
        tmp_path,
        "[partition]\ncount = 31\n[membership]\nheartbeat_timeout_s = 20\n"
        "heartbeat_interval_s = 2\n"
        '[properties]\n"hazelcast.partition.max.parallel.migrations" = 5\n',
    )
    config = load(
        file,
        {"WHIMBREL_MEMBERSHIP__HEARTBEAT_TIMEOUT_S": "9", "WHIMBREL_MIGRATION__INTERVAL_S": "1"},
        [*sets("migration.interval_s=0.05"), Flag("network.port", 7000, "--port")],
    )
    assert config.core.partition_count == 31
    assert config.core.heartbeat_timeout_us == 9_000_000
    assert config.core.heartbeat_interval_us == 2_000_000
    assert config.core.migration_interval_us == 50_000
    assert config.core.migration_max_parallel == 5
    assert config.runtime.port == 7000
    told = sources(config)
    assert told["partition.count"] == (31, f"file {file}:2")
    assert told["migration.max_parallel"] == (5, f"file {file}:7")
    assert told["membership.heartbeat_timeout_s"] == (
        9,
        "environment WHIMBREL_MEMBERSHIP__HEARTBEAT_TIMEOUT_S",
    )
    assert told["migration.interval_s"] == (0.05, "flag --set migration.interval_s")
    assert told["network.port"] == (7000, "flag --port")


def test_the_longest_pattern_wins_and_of_equal_ones_the_first() -> None:
    """Goal: which entry a map gets does not depend on the order of its patterns, and one that is
    there twice counts once, with a star as without.
    """
    twice = (MapSettings("ab*", 2), MapSettings("ab*", 3), MapSettings("x", 2), MapSettings("x", 3))
    for maps in ((MapSettings("a*", 1), *twice), (*twice, MapSettings("a*", 1))):
        core = CoreSettings(structures=maps)
        assert core.structure(MapSettings, "abc").backup_count == 2
        assert core.structure(MapSettings, "ac").backup_count == 1
        assert core.structure(MapSettings, "x").backup_count == 2


def test_maps_by_pattern(tmp_path: Path) -> None:
    """Goal: patterns from every source, names with dots and blanks, what is open is inherited."""
    file = write(
        tmp_path,
        '[map.default]\nbackup_count = 2\n[map."a.b"]\ntime_to_live_s = 60\n'
        '[map."b1 *"]\nbackup_count = 0\n',
    )
    config = load(
        file,
        {"WHIMBREL_MAP__FLIGHTS__BACKUP_COUNT": "3", "WHIMBREL_MAP__A__B__MAX_IDLE_S": "4"},
        sets("map.b3*.backup_count=3", "map.b3*.async_backup_count=2"),
    )
    core = config.core
    assert core.structure(MapSettings, "other").backup_count == 2
    assert core.structure(MapSettings, "a.b").time_to_live_s == 60
    assert core.structure(MapSettings, "a.b").backup_count == 2
    assert core.structure(MapSettings, "b1 x").backup_count == 0
    assert core.structure(MapSettings, "flights").backup_count == 3
    assert core.structure(MapSettings, "a__b").max_idle_s == 4
    assert core.structure(MapSettings, "b3 y").async_backup_count == 2
    assert sources(config)["map.a.b.backup_count"] == (2, "as map.default.backup_count")


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    """Goal: one run shows all mistakes of all sources with line and nearest name, in file order.

    Method: misspelt keys, wrong types, wrong ranges, an unknown table, and rules over two keys.
    """
    file = write(
        tmp_path,
        "[membership]\nheartbeat_timout_s = 5\n[partition]\ncount = -3\n[nonsense]\nx = 1\ny = 2\n"
        '[map.default]\nbackup_count = 7\n[migration]\ninterval_s = "3"\n[network]\nport = true\n'
        "join = 5\n",
    )
    told = problems(
        file,
        {"WHIMBREL_PARTITION_COUNT": "5", "WHIMBREL_MAP__X__BACKUP_CUONT": "1", "OTHER": "1"},
        "partition.cuont=271",
        "membership.heartbeat_timeout_s=soon",
        "network.host=10.0.0.1",
    )
    assert told == [
        "WHIMBREL_PARTITION_COUNT: write WHIMBREL_PARTITION__COUNT for partition.count",
        f"{file}:2: unknown key 'membership.heartbeat_timout_s'; "
        "did you mean membership.heartbeat_timeout_s?",
        f"{file}:4: partition.count must be between 1 and 65536, not -3",
        f"{file}:5: unknown table [nonsense]; known are cluster, network, admin, member, log, "
        "membership, partition, migration, replication, split_brain_protection, persistence, "
        + ", ".join(kind.name for kind in KINDS),
        f"{file}:9: map.default.backup_count must be between 0 and 6, not 7",
        f"{file}:11: migration.interval_s must be a number of seconds, not the text '3'",
        f"{file}:13: network.port must be a whole number, not the switch True",
        f'{file}:14: network.join must be a list like ["host:port"], not 5',
        "WHIMBREL_MAP__X__BACKUP_CUONT: unknown key 'map.x.backup_cuont'; did you mean "
        "map.x.backup_count?; a map has backup_count, async_backup_count, min_in_sync, "
        "time_to_live_s, max_idle_s, merge_policy, max_size, comparison, eviction_policy, "
        "split_brain_minimum_size, split_brain_protects, persistent, fsync",
        "--set partition.cuont: unknown key 'partition.cuont'; did you mean partition.count?",
        "--set membership.heartbeat_timeout_s: membership.heartbeat_timeout_s must be a number of "
        "seconds, not 'soon'",
        "--set network.host: '10.0.0.1' is not loopback and the port has neither encryption nor "
        "passwords; set network.insecure = true if the network is trusted",
    ]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("partition.count=", "whole number"),
        ("partition.count=1_0", "whole number"),
        ("partition.count=1e3", "whole number"),
        ("partition.count=99999999999999999999", "whole number"),
        ("membership.heartbeat_interval_s=nan", "between"),
        ("membership.heartbeat_interval_s=inf", "between"),
        ("membership.heartbeat_interval_s=-1", "between"),
        ("membership.heartbeat_timeout_s=1.5", "twice"),
        ("membership.join_window_s=2", "must not be above"),
        ("network.port=70000", "65535"),
        ("network.port=65000", "admin port"),
        ("network.join=here", "host:port"),
        ("network.join=::1:5701", "brackets"),
        ("network.join=a:0", "1 to 65535"),
        ("network.advertise=a b", "host:port"),
        ("member.lite=maybe", "true or false"),
        ("partition.group=rack", "member, host, zone"),
        ("cluster.name=", "empty"),
        ("cluster.name=a\nb", "printed"),
        ("map.backup_count=1", "map.PATTERN.backup_count"),
        ("map.a*b.backup_count=1", "only at its end"),
        ("map.x.async_backup_count=6", "7 backups"),
        ("map.x.max_size=-1", "between 0 and 2147483647"),
        ("map.x.max_size=5", "set map.x.eviction_policy to LRU, LFU or RANDOM, or map.x.max_size"),
        ("map.x.eviction_policy=LRU", "set map.x.max_size to the entries that a member may hold"),
        ("map.x.eviction_policy=OLDEST", "LFU, LRU, NONE, RANDOM"),
        ("partition=1", "is a table"),
        ("port=1", "network.port"),
        ("hazelcast.partition.cuont=1", "unknown key"),
        ("properties.hazelcast.partition.cuont=1", "hazelcast.partition.count"),
    ],
)
def test_one_wrong_setting(setting: str, words: str) -> None:
    """Goal: each rule speaks, names the flag and what would be right."""
    (told,) = problems(None, None, setting)
    assert told.startswith("--set ")
    assert words in told


def test_maps_with_a_bound() -> None:
    """Goal: a bound and what goes when it is reached are taken together, or not at all. Method: by
    pattern, and a pattern that lifts what it would inherit.
    """
    bounded = ["map.default.max_size=2000", "map.default.eviction_policy=LRU"]
    lifted = ["map.big.max_size=0", "map.big.eviction_policy=NONE", "map.big.time_to_live_s=3"]
    core = load(settings=[*bounded, *lifted, "map.s*.max_size=5"]).core
    assert core.structure(MapSettings, "other").limits() == (0, 0, 2000, "LRU")
    assert core.structure(MapSettings, "small").limits() == (0, 0, 5, "LRU")
    assert core.structure(MapSettings, "big").limits() == (3_000, 0, 0, "NONE")
    assert load().core.structure(MapSettings, "other").limits() is UNLIMITED


def test_multimaps_are_configured_like_maps() -> None:
    """Goal: a kind's own keys, by pattern; what is no type of collection is refused."""
    core = load(
        settings=["multimap.l*.value_collection_type=LIST", "multimap.default.backup_count=2"]
    ).core
    assert core.structure(MultiMapSettings, "lines").value_collection_type == "LIST"
    assert core.structure(MultiMapSettings, "lines").backup_count == 2
    assert core.structure(MultiMapSettings, "other").value_collection_type == "SET"
    assert core.structure(MapSettings, "other").backup_count == 1
    (told,) = problems(None, None, "multimap.x.value_collection_type=BAG")
    assert "SET" in told and "LIST" in told


def test_more_than_six_backups_are_refused() -> None:
    """AE-02: k > 6 is refused, however it comes together."""
    load(settings=["map.x.backup_count=4", "map.x.async_backup_count=2"])
    with pytest.raises(ConfigError, match="asks for 7 backups"):
        load(settings=["map.x.backup_count=4", "map.x.async_backup_count=3"])


def test_setting_without_equals() -> None:
    """Goal: ``--set`` with no value is wrong usage, not an empty value."""
    with pytest.raises(ConfigError, match="key=value"):
        split_setting("partition.count")
    with pytest.raises(ConfigError) as refused:
        load(settings=["partition.count", "partition.count=0", "member.lite=true"])
    assert len(refused.value.problems) == 2


def test_loopback_and_insecure() -> None:
    """Goal: an open port needs a clear word, and an address that others can use."""
    for host in ("127.0.0.1", "127.8.9.1", "localhost", "::1"):
        assert load(flags=sets(f"network.host={host}")).runtime.host == host
    opened = sets("network.host=10.0.0.1", "network.insecure=true")
    assert load(flags=opened).runtime.insecure
    everywhere = sets("network.host=0.0.0.0", "network.insecure=true")
    with pytest.raises(ConfigError, match="advertise"):
        load(flags=everywhere)
    assert load(flags=[*everywhere, *sets("network.advertise=grid-1")]).runtime.advertise


def test_properties_carry_over(tmp_path: Path) -> None:
    """Goal: the papers' names work, bare, quoted or as text (AE-12, AE-14, GCM-28, PIM-57)."""
    file = write(
        tmp_path,
        '[properties]\nhazelcast.partition.count = "17"\n'
        '"hazelcast.partition.backup.sync.interval" = 10\n'
        '"hazelcast.partition.max.parallel.replications" = 0\n'
        '"hazelcast.partition.migration.fragments.enabled" = "false"\n'
        '"hazelcast.partition.migration.stale.read.disabled" = true\n'
        '"hazelcast.graceful.shutdown.max.wait" = 7200\n'
        '"hazelcast.operation.backup.timeout.millis" = 5000\n',
    )
    core = load(file).core
    assert core.partition_count == 17
    assert core.backup_sync_interval_us == 10_000_000
    assert core.replication_max_parallel == 0
    assert not core.migration_fragments_enabled
    assert core.stale_read_disabled
    assert core.leave_timeout_us == 7_200_000_000
    assert core.backup_timeout_us == 5_000_000


def test_repairs_are_as_many_as_migrations_unless_given(tmp_path: Path) -> None:
    """AE-14: the limit on syncs is that on migrations, wherever that was set and under whichever
    name; one of its own wins, 0 included; ``config explain`` says which it is.
    """
    name, shared = "replication.max_parallel", "migration.max_parallel"
    assert sources(load())[name] == (10, "default")
    alias = "hazelcast.partition.max.parallel.migrations"
    file = write(tmp_path, f'[properties]\n"{alias}" = 40\n')
    for config, limit in (
        (load(file), 40),
        (load(environment={"WHIMBREL_MIGRATION__MAX_PARALLEL": "1"}), 1),
        (load(settings=[f"{shared}=30"]), 30),
    ):
        assert config.core.replication_max_parallel == limit == config.core.migration_max_parallel
        assert sources(config)[name] == (limit, f"as {shared}")
    for own in (0, 5):
        config = load(file, settings=[f"{name}={own}"])
        assert config.core.replication_max_parallel == own
        assert config.core.migration_max_parallel == 40
        assert sources(config)[name] == (own, f"flag --set {name}")
    alone = load(settings=[f"{name}=7"]).core
    assert (alone.replication_max_parallel, alone.migration_max_parallel) == (7, 10)


@pytest.mark.parametrize("wrong", [0, -1])
def test_an_interval_of_nothing_is_refused(tmp_path: Path, wrong: int) -> None:
    """AE-12: an interval of zero or less is told, with the limits, and not taken for a second."""
    alias = "hazelcast.partition.backup.sync.interval"
    file = write(tmp_path, f'[properties]\n"{alias}" = {wrong}\n')
    with pytest.raises(ConfigError, match=r"sync_interval_s must be between 0\.1 and 86400"):
        load(file)
    assert (
        load(settings=["replication.sync_interval_s=5"]).core.backup_sync_interval_us == 5 * 10**6
    )


def test_key_and_its_alias_in_one_file(tmp_path: Path) -> None:
    """Goal: a file that says one thing twice is refused, not silently decided."""
    file = write(
        tmp_path, '[partition]\ncount = 3\n[properties]\n"hazelcast.partition.count" = 5\n'
    )
    assert problems(file) == [f"{file}:4: partition.count is already set at {file}:2"]


def test_join_addresses_lose_repetitions() -> None:
    """Goal: lists as text and as TOML arrays, order kept, IPv6 in brackets."""
    config = load(flags=sets("network.join=a:1, b:2,,a:1,[::1]:3"))
    assert config.runtime.join == (Address("a", 1), Address("b", 2), Address("::1", 3))


def test_minimum_size_of_maps_goes_from_pattern_to_default_to_cluster() -> None:
    """M6: what a map pattern leaves open about split-brain protection is as for all other maps,
    and what those leave open is as for the cluster; ``config explain`` says which it is.
    """
    name = "map.orders*.split_brain_minimum_size"
    shared = "split_brain_protection.minimum_size"
    config = load(settings=["map.orders*.backup_count=2"])
    assert sources(config)[name] == (0, "default")
    assert sources(config)["map.orders*.split_brain_protects"] == ("write", "default")
    assert config.core.structure(MapSettings, "orders").split_brain_minimum_size is None
    config = load(settings=["map.orders*.backup_count=2", f"{shared}=3"])
    assert sources(config)[name] == (3, f"as {shared}")
    of_default = "map.default.split_brain_minimum_size"
    config = load(settings=["map.orders*.backup_count=2", f"{shared}=3", f"{of_default}=4"])
    assert sources(config)[name] == (4, f"as {of_default}")
    config = load(settings=[f"{name}=5", f"{shared}=3", "map.orders*.split_brain_protects=read"])
    assert sources(config)[name] == (5, f"flag --set {name}")
    assert config.core.structure(MapSettings, "orders").split_brain_minimum_size == 5
    assert config.core.structure(MapSettings, "orders").split_brain_protects == "read"
    for wrong, words in (("-1", "between 0 and 65000"), ("few", "a whole number")):
        with pytest.raises(ConfigError, match=f"split_brain_minimum_size must be .*{words}"):
            load(settings=[f"{name}={wrong}"])
    with pytest.raises(ConfigError, match="must be one of read, read_write, write, not 'all'"):
        load(settings=["map.orders*.split_brain_protects=all"])


def test_min_in_sync_is_possible_or_refused() -> None:
    """Goal: backups that a map has not got cannot be demanded. Method: as many, one more, none."""
    name = "map.orders*.min_in_sync"
    config = load(settings=[f"{name}=2", "map.orders*.backup_count=2"])
    assert config.core.structure(MapSettings, "orders").min_in_sync == 2
    assert config.core.structure(MapSettings, "others").min_in_sync == 0
    with pytest.raises(ConfigError, match=r"min_in_sync \(2\) must not be above .*backup_count"):
        load(settings=[f"{name}=2"])
    with pytest.raises(ConfigError, match="between 0 and 6"):
        load(settings=[f"{name}=-1"])


def test_merge_policy_is_known_or_refused() -> None:
    """M6: a policy goes by its name in the field, too; an unknown one is refused by name."""
    field = "com.hazelcast.spi.merge.LatestUpdateMergePolicy"
    core = load(settings=[f"map.orders.merge_policy={field}"]).core
    assert core.structure(MapSettings, "orders").merge_policy == "LatestUpdate"
    assert core.structure(MapSettings, "others").merge_policy == "PutIfAbsent"
    with pytest.raises(ConfigError, match="'Newest'; known are PutIfAbsent, LatestUpdate"):
        load(settings=["map.orders.merge_policy=Newest"])


def test_custom_groups_need_patterns() -> None:
    """Goal: custom groups without patterns are refused at the start, not in a plan. Method: none,
    one that makes no sense, one that does; patterns are no matter for other groups.
    """
    assert any(
        "partition.groups" in text for text in problems(None, None, "partition.group=custom")
    )
    told = problems(None, None, "partition.group=custom", "partition.groups=10.0.1.*;")
    assert any("10.0.1.*;" in text for text in told)
    config = load(None, None, sets("partition.group=custom", "partition.groups=10.0.1.*; db-*"))
    assert config.core.member_group_patterns == "10.0.1.*; db-*"
    assert load(None, None, sets("partition.groups=;")).core.member_group == "member"


def test_persistence_is_off_unless_it_is_switched_on() -> None:
    """Goal: the papers' defaults; each key reaches its field in the core's unit, and what stays
    open keeps its default.
    """
    core = load().core
    assert core.persistence == PersistenceSettings()
    assert not core.persistence.enabled and not core.is_persistent(Namespace("map/m"))
    core = load(
        settings=[
            "persistence.enabled=true",
            "member.data_dir=/var/lib/grid",
            "persistence.fsync_interval_ms=250",
            "persistence.recovery_policy=PARTIAL_RECOVERY_MOST_RECENT",
            "persistence.validation_timeout_s=15",
            "persistence.data_load_timeout_s=1.5",
            "persistence.auto_remove_stale_data=false",
            "persistence.segment_bytes=4096",
        ]
    ).core
    assert core.persistence == PersistenceSettings(
        True,
        "interval",
        250_000,
        "PARTIAL_RECOVERY_MOST_RECENT",
        15_000_000,
        1_500_000,
        False,
        4096,
    )


def test_persistence_needs_a_directory() -> None:
    """Goal: without a place the promise could not be kept; the flag and the key are named."""
    file_key = "member.data_dir=/var/lib/grid"
    assert load(settings=["persistence.enabled=true", file_key]).core.persistence.enabled
    (told,) = problems(None, None, "persistence.enabled=true")
    assert told.startswith("--set persistence.enabled:") and "--data-dir" in told
    told = problems(None, {"WHIMBREL_PERSISTENCE__ENABLED": "yes"})[0]
    assert told.startswith("WHIMBREL_PERSISTENCE__ENABLED:")


def test_what_is_persistent_goes_by_pattern() -> None:
    """APR-68: memory only or on disk, structure by structure, whatever the kind; ``fsync``
    goes from pattern to default to cluster, and ``config explain`` says which it is.
    """
    on = ["persistence.enabled=true", "member.data_dir=/d"]
    config = load(
        settings=[*on, "map.cache*.persistent=false", "queue.default.persistent=no",
                  "queue.orders.persistent=yes", "map.gold.fsync=always", "persistence.fsync=off"]
    )  # fmt: skip
    core = config.core
    kept = ("map/m", "map/gold", "queue/orders", "multimap/m", "ringbuffer/r")
    assert all(core.is_persistent(Namespace(name)) for name in kept)
    assert not any(core.is_persistent(Namespace(name)) for name in ("map/cache 1", "queue/q"))
    assert core.fsync_of(Namespace("map/gold")) == "always"
    assert core.fsync_of(Namespace("map/cache")) == core.fsync_of(Namespace("queue/q")) == "off"
    told = sources(config)
    assert told["map.gold.fsync"] == ("always", "flag --set map.gold.fsync")
    assert told["map.cache*.fsync"] == ("off", "as persistence.fsync")
    config = load(settings=["map.default.fsync=always", "map.d*.backup_count=2"])
    assert sources(config)["map.d*.fsync"] == ("always", "as map.default.fsync")
    for name in ("map/d", "map/default", "map/other"):
        assert config.core.fsync_of(Namespace(name)) == "always"
    assert config.core.fsync_of(Namespace("queue/d")) == "interval"
    core = load(settings=["map.d*.fsync=off"]).core
    assert core.fsync_of(Namespace("map/other")) == "interval"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("persistence.fsync=sometimes", "one of always, interval, off"),
        ("persistence.fsync_interval_ms=0", "between 1 and 3600000"),
        ("persistence.segment_bytes=4095", "between 4096 and 1073741824"),
        ("persistence.recovery_policy=ANY", "FULL_RECOVERY_ONLY, PARTIAL_RECOVERY_MOST_RECENT"),
        ("persistence.validation_timeout_s=0", "between 1 and"),
        ("persistence.enabld=true", "did you mean persistence.enabled?"),
        ("map.m.persistnt=true", "did you mean map.m.persistent?"),
        ("map.m.fsync=1", "one of always, interval, off"),
        ("flake_id_generator.g.persistent=true", "unknown key"),
    ],
)
def test_wrong_words_about_persistence(setting: str, words: str) -> None:
    """Goal: each mistake is one sentence with what would be right; what lies in no partition has
    nothing to persist.
    """
    (told,) = problems(None, None, setting)
    assert words in told
