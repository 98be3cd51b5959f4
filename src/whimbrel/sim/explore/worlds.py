"""The tiny worlds that are explored: a migration or two, and what may go wrong in them."""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import EMPTY_ROW, MemberId, PartitionId, Row
from whimbrel.core.model import MigrationKind
from whimbrel.core.settings import CoreSettings, PersistenceSettings
from whimbrel.errors import UsageError
from whimbrel.structures.map.settings import MapSettings

FOREVER_US = 1_000_000_000_000
"""Periods of things that only repeat what is known: never due in a tiny world."""
MEMBERS = "abcd"
"""Names of members, oldest first: ``a`` is the first master."""
REBORN = "z"
"""Name of a member that comes up on the address of a dead one."""
DEEPER = "deeper"
"""A map that worlds may have besides the one with entries."""
BEFORE, AFTER = "before", "after"
"""Where all orders are looked at: until power is lost, or from then on."""
PERSISTENCE = PersistenceSettings(
    enabled=True, fsync="always", fsync_interval_us=400_000, segment_bytes=600
)
"""Of members that keep files; their log is in a few small ones."""


class TinyWorld(msgspec.Struct, frozen=True):
    """What one exploration begins with.

    Rows are written ``BA-``: who is at index 0, 1, 2; those of two partitions ``BA/CA``.
    """

    name: str
    kinds: tuple[MigrationKind, ...]
    """Kinds of migration that its plan has."""
    before: str
    after: str
    members: int = 3
    backup_count: int = 1
    crashes: int = 0
    """Members that may be killed."""
    mishaps: int = 0
    """Messages that may come twice, and connections that may break, together."""
    writes: int = 0
    """Entries that may be written while things move."""
    dead: str = ""
    """Who is killed before anything is explored: the others have not heard of it."""
    restarts: int = 0
    """Dead members in whose place, on the same address, a new process may come up."""
    parallel_max: int = 10
    """Migrations that a member may take part in at once."""
    victims: str = ""
    """Who may be killed; empty for anybody."""
    is_deeper: bool = False
    """Whether a second map has a backup more, so that rows are deeper than ours needs."""
    disks: bool = False
    """Whether members keep files."""
    powers: int = 0
    """How often power may be lost: that of all at once, or of one of the ``victims``."""
    free: str = ""
    """Where all orders are looked at, ``BEFORE`` or ``AFTER`` a loss of power; empty: everywhere.
    Elsewhere it is one of them, and whatever else may happen is looked at in it."""
    stable_without: str = ""
    """Who died in a stable cluster, one after the other, and is about to return with its files;
    what ``before`` says is the stable table, and what ``after`` says how it is without them."""
    is_long: bool = False
    """Whether it is left out of the default worlds although it has one kind of harm only."""

    @property
    def is_deep(self) -> bool:
        """Whether it takes many minutes: two kinds of harm at once, or many members."""
        harms = self.crashes, self.mishaps, self.powers or self.writes
        kinds = sum(count > 0 for count in harms)
        return self.is_long or kinds > 1

    @property
    def rows_before(self) -> tuple[Row, ...]:
        """The table that it begins with."""
        return tuple(row_of(text) for text in self.before.split("/"))

    @property
    def rows_after(self) -> tuple[Row, ...]:
        """The table that is wished for."""
        return tuple(row_of(text) for text in self.after.split("/"))

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self.rows_before)

    def partition_of(self, number: int) -> PartitionId:
        """Where an entry belongs."""
        return PartitionId(number % self.partitions)

    @property
    def settings(self) -> CoreSettings:
        """The product's defaults, with few partitions, and nothing periodic."""
        return CoreSettings(
            partition_count=self.partitions,
            migration_max_parallel=self.parallel_max,
            heartbeat_interval_us=FOREVER_US,
            heartbeat_timeout_us=10 * FOREVER_US,
            member_list_publish_interval_us=FOREVER_US,
            table_send_interval_us=FOREVER_US,
            backup_sync_interval_us=FOREVER_US,
            join_window_us=1_000,
            persistence=PERSISTENCE if self.disks else PersistenceSettings(),
            structures=(
                MapSettings("default", self.backup_count),
                MapSettings(DEEPER, self.backup_count + 1),
            ),
        )


def identity_of(name: str) -> MemberId:
    """The identity of a member, as they stand in its files."""
    return MemberId(f"{name}0000000-0000-4000-8000-000000000000")


def name_of(member: MemberId) -> str:
    """The name of an identity."""
    return member[0]


def row_of(text: str) -> Row:
    """A written row."""
    slots = [None if letter == "-" else identity_of(letter.lower()) for letter in text]
    return (*slots, *EMPTY_ROW[len(slots) :])


_KINDS: tuple[tuple[MigrationKind, str, str, int], ...] = (
    (MigrationKind.MOVE, "BA", "CA", 1),
    (MigrationKind.COPY, "B-", "BC", 1),
    (MigrationKind.SHIFT_UP, "B-C", "BC", 2),
    (MigrationKind.SHIFT_DOWN, "B-", "CB", 1),
    (MigrationKind.SHIFT_UP_SHIFT_DOWN, "B-C", "CB", 2),
    (MigrationKind.CLEAR, "BAC", "BA", 2),
    (MigrationKind.STEP_DOWN, "BC", "B-C", 2),
)


_FOUR: tuple[tuple[MigrationKind, str, str, int], ...] = (
    (MigrationKind.MOVE, "BC", "BD", 1),
    (MigrationKind.COPY, "BC", "BCD", 2),
    (MigrationKind.SHIFT_UP, "B-C", "BC", 2),
    (MigrationKind.SHIFT_DOWN, "B-C", "DBC", 2),
    (MigrationKind.SHIFT_UP_SHIFT_DOWN, "B-C", "CB", 2),
    (MigrationKind.CLEAR, "BCD", "BC", 2),
    (MigrationKind.STEP_DOWN, "BC", "B-C", 2),
)
"""With a fourth member the master needs no replica: source, destination and master are three, and
somebody takes no part at all."""


def _harmed(plain: TinyWorld, victims: str = "", is_long: bool = False) -> list[TinyWorld]:
    """A world, the same with a crash, and the same with a mishap.

    Args:
        plain: The world without harm.
        victims: Who may be killed; empty for anybody.
        is_long: Whether the world with a crash is none of the default ones.
    """
    name, replace = plain.name, msgspec.structs.replace
    return [
        plain,
        replace(plain, name=f"{name}-crash", crashes=1, victims=victims, is_long=is_long),
        replace(plain, name=f"{name}-mishap", mishaps=1),
    ]


def _three_members() -> list[TinyWorld]:
    """One migration of each kind; with two kinds of harm; and with a client that writes."""
    found: list[TinyWorld] = []
    for kind, before, after, backups in _KINDS:
        plain = TinyWorld(_name_of(kind), (kind,), before, after, backup_count=backups)
        found += _harmed(plain)
        found.append(msgspec.structs.replace(found[-1], name=f"{plain.name}-both", crashes=1))
    kinds = (MigrationKind.PROMOTION,)
    found += _harmed(TinyWorld("promotion", kinds, "BCA", "BCA", backup_count=2, dead="b"))
    move = TinyWorld("move-write", (MigrationKind.MOVE,), "BA", "CA", writes=1)
    return [*found, move, msgspec.structs.replace(move, name="move-write-crash", crashes=1)]


def _four_members() -> list[TinyWorld]:
    """A bystander that has no part in it; the master dies in worlds of their own."""
    found: list[TinyWorld] = []
    worlds = [
        TinyWorld(f"{_name_of(kind)}-four", (kind,), before, after, 4, backups)
        for kind, before, after, backups in _FOUR
    ]
    worlds.append(TinyWorld("move-spare", (MigrationKind.MOVE,), "BA", "CA", 4))
    kinds = (MigrationKind.PROMOTION,)
    worlds.append(TinyWorld("promotion-four", kinds, "BCD", "BCD", 4, 2, dead="b"))
    for plain in worlds:
        # The largest of them: a quarter of a million states.
        is_long = MigrationKind.SHIFT_DOWN in plain.kinds
        found += _harmed(plain, victims="bcd", is_long=is_long)
        found.append(
            msgspec.structs.replace(
                plain, name=f"{plain.name}-master", crashes=1, victims="a", is_long=True
            )
        )
    return found


def _two_partitions() -> list[TinyWorld]:
    """Two migrations that share their members, side by side or, by the cap, one at a time."""
    moves = TinyWorld("moves", (MigrationKind.MOVE,), "BA/BA", "CA/CA")
    kinds = (MigrationKind.MOVE, MigrationKind.COPY)
    mixed = TinyWorld("move-copy", kinds, "BA/C-", "CA/CB")
    replace = msgspec.structs.replace
    return [
        *_harmed(moves, is_long=True),
        *_harmed(mixed, is_long=True),
        *_harmed(replace(moves, name="moves-capped", parallel_max=1), is_long=True),
        *_harmed(replace(mixed, name="move-copy-capped", parallel_max=1)),
    ]


def _restarts() -> list[TinyWorld]:
    """A new process comes up in the place of one that died, whenever that may be."""
    move = TinyWorld("move-restart", (MigrationKind.MOVE,), "BA", "CA", crashes=1, restarts=1)
    copy = TinyWorld("copy-restart", (MigrationKind.COPY,), "B-", "BC", crashes=1, restarts=1)
    replace = msgspec.structs.replace
    return [
        replace(one, name=f"{one.name}-{role}", victims=victim, is_long=victim == "a")
        for one in (move, copy)
        for role, victim in (("source", "b"), ("destination", "c"), ("master", "a"))
    ]


def _files() -> list[TinyWorld]:
    """Members that keep files: power is lost once, or one returns to a stable cluster."""
    replace = msgspec.structs.replace
    move = TinyWorld("move-power", (MigrationKind.MOVE,), "BA", "CA", disks=True, powers=1)
    put = TinyWorld("put-power", (), "BA", "BA", 2, writes=1, disks=True, powers=1)
    promotion = TinyWorld(
        "promotion-power", (MigrationKind.PROMOTION,), "BCA", "BCA", backup_count=2, dead="b",
        disks=True, powers=1, free=BEFORE,
    )  # fmt: skip
    one = replace(move, victims="b", is_long=True)
    stable = TinyWorld("stable", (), "CA", "AB", disks=True, stable_without="c")
    return [
        replace(move, free=BEFORE),
        replace(put, free=BEFORE),
        replace(put, name="put-power-return", free=AFTER, is_long=True),
        promotion,
        replace(one, name="move-power-source"),
        replace(one, name="move-power-destination", victims="c"),
        replace(one, name="move-power-master", victims="a"),
        replace(put, name="put-power-primary", victims="b", free=""),
        replace(put, name="put-power-master", victims="a", free=""),
        stable,
        replace(stable, name="stable-backup", before="AC"),
        replace(stable, name="stable-deep", before="CAB", backup_count=2),
        replace(stable, name="stable-mixed", before="CAB", is_deeper=True),
        replace(
            stable,
            name="stable-two",
            before="CDA",
            members=4,
            backup_count=2,
            stable_without="cd",
            is_long=True,
        ),
        replace(stable, name="stable-crash", crashes=1, is_long=True),
    ]


def _name_of(kind: MigrationKind) -> str:
    return kind.value.lower().replace("_", "-")


WORLDS: dict[str, TinyWorld] = {
    world.name: world
    for world in (
        *(*_three_members(), *_four_members(), *_two_partitions(), *_restarts()),
        *_files(),
    )
}
"""By name."""


def worlds_named(name: str) -> list[TinyWorld]:
    """The worlds to explore.

    Raises:
        UsageError: There is none of that name.
    """
    if name == "all":
        return list(WORLDS.values())
    if name == "default":
        return [world for world in WORLDS.values() if not world.is_deep]
    if name not in WORLDS:
        raise UsageError(
            f"no world is called {name!r}; there are: {', '.join(WORLDS)}, default, all"
        )
    return [WORLDS[name]]
