"""States of a tiny world, and the next one while it is made: numbers of a lab."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from whimbrel.sim.explore.image import DIGEST_BYTES
from whimbrel.sim.explore.lab import CONTROL, DATA, StepResult

Key = tuple[str, str, str]
"""(sender, receiver, channel); news have no sender"""
Queue = tuple[int, ...]
Transition = tuple[str, ...]


class State(msgspec.Struct, frozen=True, array_like=True):
    """A whole world at one moment, in numbers of its lab."""

    now_us: int
    members: tuple[int, ...]
    """Snapshot of each member, GONE when it has ended."""
    links: tuple[tuple[Key, Queue], ...]
    """What is on its way, by connection, in order of the keys; never empty ones."""
    down: tuple[tuple[str, str], ...] = ()
    """Connections that broke and do not stand again yet."""
    crashes: int = 0
    mishaps: int = 0
    writes: int = 0
    killed: int = 0
    """Members killed so far."""
    acked: tuple[int, ...] = ()
    """Entries whose writers were told that they are kept."""
    firings: int = 0
    restarts: int = 0
    """New processes that may come up on the address of a dead member."""
    reborn: str = ""
    """On whose address the member ``REBORN`` runs; empty when it has not come up."""
    disks: tuple[int, ...] = ()
    """What lies on the disk of each place; empty where members keep no files."""
    works: tuple[Queue, ...] = ()
    """What each member has asked of its disk and that has not done it."""
    powers: int = 0
    """Losses of power that may come."""
    away: tuple[str, ...] = ()
    """Members that come back with what lies on their disks."""
    is_dark: bool = False
    """Whether everybody has lost its power and not all serve again: no copy in memory counts."""

    def digest(self) -> bytes:
        """What tells two states apart. How often time has passed does not."""
        written = msgspec.msgpack.encode(
            (self.now_us, self.members, self.links, self.down, self.crashes, self.mishaps,
             self.writes, self.killed, self.acked, self.restarts, self.reborn,
             self.disks, self.works, self.powers, self.away, self.is_dark)
        )  # fmt: skip
        return blake2b(written, digest_size=DIGEST_BYTES).digest()


class Move(msgspec.Struct, frozen=True):
    """A transition that was taken."""

    transition: Transition
    state: State
    who: str = ""
    """Whose step it was, if any."""
    item: int = -1
    """What it handled."""
    outcome: StepResult | None = None


class Draft:
    """The next state while it is made."""

    def __init__(self, state: State) -> None:
        """Begin as the state before."""
        self.members = list(state.members)
        self.links: dict[Key, Queue] = dict(state.links)
        self.down = list(state.down)
        self.acked = state.acked
        self.disks = list(state.disks)
        self.works = list(state.works)

    def push(self, key: Key, item: int) -> None:
        """Something more is on its way."""
        self.links[key] = (*self.links.get(key, ()), item)

    def pop(self, key: Key) -> int:
        """What is first on a connection is on its way no more."""
        first, *rest = self.links[key]
        if rest:
            self.links[key] = tuple(rest)
        else:
            del self.links[key]
        return first

    def clear(self, sender: str, receiver: str) -> None:
        """What one has sent to the other is lost."""
        for channel in (CONTROL, DATA):
            self.links.pop((sender, receiver, channel), None)

    def finish(self, state: State, **changes: int) -> State:
        """The state that has become of the one before."""
        return msgspec.structs.replace(
            state,
            members=tuple(self.members),
            links=tuple(sorted(self.links.items())),
            down=tuple(sorted(self.down)),
            acked=self.acked,
            disks=tuple(self.disks),
            works=tuple(self.works),
            **changes,
        )
