"""Crash points: a member dies exactly before or after the next message of a kind (22 to 25).

A crash at a random moment rarely hits the few microseconds between two messages of a migration.
A crash point waits for them: it is set for one member and one kind of message, and counts once.
Scenario files call one an ``ambush``; the same one for everybody is a ``snare``.
"""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.core.messages import (
    ClaimAnswered,
    ClaimRequested,
    LeaveRequested,
    MembersPublished,
    Message,
    MigrationCommitAnswered,
    MigrationCommitRequested,
    MigrationDataAnswered,
    MigrationOpened,
    MigrationRequested,
    PromotionAnswered,
    PromotionRequested,
    PublicationAnswered,
    StateAnswered,
    StateRequested,
    TablePublished,
    TransferAnswered,
    TransferSent,
)
from whimbrel.sim.host import HAS, Delivery, Host
from whimbrel.sim.rule import Sightings
from whimbrel.sim.world import World
from whimbrel.wire.links import ACKS, BACKUPS, FORWARD, FORWARD_REPLY

CRASH_POINTS: tuple[type[Message] | int, ...] = (
    MigrationRequested,
    MigrationOpened,
    TransferSent,
    TransferAnswered,
    MigrationDataAnswered,
    MigrationCommitRequested,
    MigrationCommitAnswered,
    TablePublished,
    PublicationAnswered,
    PromotionRequested,
    PromotionAnswered,
    StateRequested,
    StateAnswered,
    MembersPublished,
    ClaimRequested,
    ClaimAnswered,
    LeaveRequested,
    BACKUPS,
    ACKS,
    FORWARD,
    FORWARD_REPLY,
)
"""What one may wait for: control messages by type, data frames by kind."""


def sighting_of(what: type[Message] | int, is_after: bool) -> str:
    """What the coverage calls a death there."""
    name = what.__name__ if isinstance(what, type) else f"frame kind {what}"
    return f"killed {'after' if is_after else 'before'} {name}"


class CrashSightings(Sightings):
    """A death on both sides of each message that a crash point knows."""

    situations = tuple(
        sighting_of(kind, is_after) for kind in CRASH_POINTS for is_after in (False, True)
    )


class CrashPoints:
    """The crash points that are set, one for a member."""

    def __init__(self, world: World, may_kill: Callable[[Host], bool]) -> None:
        self._world = world
        self._may_kill = may_kill
        self._set: dict[str, tuple[type[Message] | int, bool, int]] = {}
        self._is_shared = False
        self.code = 0
        """Of the one that everybody has; 0 before there was one."""
        self.turns = 0
        """How often that one was set again since it is this kind."""
        self.was_met = False
        """Whether somebody came to the one that was set last."""

    @property
    def is_idle(self) -> bool:
        """Whether none is set."""
        return not self._set

    def set(self, host: Host, code: int) -> None:
        """Set one.

        Args:
            host: Whom it kills.
            code: From 1: twice the place in ``CRASH_POINTS``, odd for before and even for after.
        """
        place, is_after = divmod((code - 1) % (2 * len(CRASH_POINTS)), 2)
        self._set[host.name] = (CRASH_POINTS[place], bool(is_after), host.incarnation)

    def set_everywhere(self, hosts: list[Host], code: int) -> None:
        """Set the same one for all of them; the first who comes to it takes it from the others."""
        self.clear()
        self._is_shared, self.was_met = True, False
        for host in hosts:
            self.set(host, code)

    def stops(self, delivery: Delivery, side: str) -> bool:
        """Whether the member dies now; called before and after it handles something.

        After a message it dies before what it wants to send is sent.
        """
        host, what, is_after = delivery.here, delivery.what, side == HAS
        if self._set.get(host.name) != (what, is_after, host.incarnation):
            return False
        del self._set[host.name]
        self.was_met = True
        if self._is_shared:
            self.clear()
        if not self._may_kill(host):
            return False
        world = self._world
        sighting = sighting_of(what, is_after)
        world.trace.mark(world.now_us, host.name, "trap", sighting.removeprefix("killed "))
        world.harmed()
        world.sometimes(sighting)
        world.lose_by_crash(host)
        return True

    def clear(self) -> None:
        """Take all away."""
        self._set.clear()
        self._is_shared = False
