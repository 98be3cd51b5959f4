"""The tiny worlds that are explored: one migration of each kind, and what may go wrong in it."""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import EMPTY_ROW, MemberId, Row
from whimbrel.core.model import MigrationKind
from whimbrel.core.settings import CoreSettings, MapSettings
from whimbrel.errors import UsageError

FOREVER_US = 1_000_000_000_000
"""Periods of things that only repeat what is known: never due in a tiny world."""
MEMBERS = "abcd"
"""Names of members, oldest first: ``a`` is the first master."""


class TinyWorld(msgspec.Struct, frozen=True):
    """What one exploration begins with. Rows are written ``BA-``: who is at index 0, 1, 2."""

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

    @property
    def is_deep(self) -> bool:
        """Whether it takes many minutes: two kinds of harm at once."""
        return (self.crashes > 0) + (self.mishaps > 0) + (self.writes > 0) > 1

    @property
    def settings(self) -> CoreSettings:
        """The product's defaults, with one partition, and nothing periodic."""
        return CoreSettings(
            partition_count=1,
            heartbeat_interval_us=FOREVER_US,
            heartbeat_timeout_us=10 * FOREVER_US,
            member_list_publish_interval_us=FOREVER_US,
            table_send_interval_us=FOREVER_US,
            backup_sync_interval_us=FOREVER_US,
            join_window_us=1_000,
            maps=(MapSettings("default", self.backup_count),),
        )


def slots_of(text: str) -> tuple[str | None, ...]:
    """The names in a written row, None for a hole."""
    return tuple(None if letter == "-" else letter.lower() for letter in text)


def row_of(text: str) -> Row:
    """A written row; in a tiny world a member's name is its identity."""
    slots = [None if name is None else MemberId(name) for name in slots_of(text)]
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


def _worlds() -> list[TinyWorld]:
    found: list[TinyWorld] = []
    for kind, before, after, backups in _KINDS:
        name = kind.value.lower().replace("_", "-")
        plain = TinyWorld(name, (kind,), before, after, backup_count=backups)
        found += [
            plain,
            msgspec.structs.replace(plain, name=f"{name}-crash", crashes=1),
            msgspec.structs.replace(plain, name=f"{name}-mishap", mishaps=1),
            msgspec.structs.replace(plain, name=f"{name}-both", crashes=1, mishaps=1),
        ]
    found += [
        TinyWorld("promotion", (MigrationKind.PROMOTION,), "BCA", "BCA", backup_count=2, dead="b"),
        TinyWorld("promotion-crash", (MigrationKind.PROMOTION,), "BCA", "BCA", 3, 2, 1, dead="b"),
        TinyWorld(
            "promotion-mishap", (MigrationKind.PROMOTION,), "BCA", "BCA", 3, 2, 0, 1, dead="b"
        ),
        TinyWorld("move-write", (MigrationKind.MOVE,), "BA", "CA", writes=1),
        TinyWorld("move-write-crash", (MigrationKind.MOVE,), "BA", "CA", crashes=1, writes=1),
    ]
    return found


WORLDS: dict[str, TinyWorld] = {world.name: world for world in _worlds()}
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
