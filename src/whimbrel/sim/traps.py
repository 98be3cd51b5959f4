"""Traps: a member dies exactly before or after the next message of one kind (faults 22 to 25).

A crash at a random moment rarely hits the few microseconds between two messages of a migration.
A trap waits for them: it is set for one member and one kind of message, and springs once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from whimbrel.wire.links import ACKS, BACKUPS, FORWARD, FORWARD_REPLY

if TYPE_CHECKING:
    from whimbrel.sim.host import Host
    from whimbrel.sim.world import World

TRAPS: tuple[type[Message] | int, ...] = (
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
"""What a trap may wait for: control messages by type, data frames by kind."""


class Traps:
    """The traps that are set, one for a member."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set: dict[str, tuple[type[Message] | int, bool, int]] = {}
        self._is_shared = False
        self.code = 0
        """Of the trap that everybody has; 0 before there was one."""
        self.turns = 0
        """How often that one was set again since it is this kind."""
        self.has_sprung = False
        """Whether somebody died in the one that was set last."""

    def set(self, host: Host, code: int) -> None:
        """Set a trap.

        Args:
            host: Whom it kills.
            code: From 1: twice the place in ``TRAPS``, odd for before and even for after.
        """
        place, is_after = divmod((code - 1) % (2 * len(TRAPS)), 2)
        self._set[host.name] = (TRAPS[place], bool(is_after), host.incarnation)

    def set_everywhere(self, hosts: list[Host], code: int) -> None:
        """Set the same trap for all of them; it springs once, the others are taken away then."""
        self.clear()
        self._is_shared, self.has_sprung = True, False
        for host in hosts:
            self.set(host, code)

    def springs(self, host: Host, what: type[Message] | int, *, after: bool) -> bool:
        """Whether the member dies now; called before and after it handles something.

        After a message it dies before what it wants to send is sent.
        """
        if not self._set:
            return False
        trap = self._set.get(host.name)
        if trap is None or trap != (what, after, host.incarnation):
            return False
        del self._set[host.name]
        self.has_sprung = True
        if self._is_shared:
            self.clear()
        world = self._world
        if world.nemesis.script is None and not world.nemesis.may_lose(host):
            return False
        name = what.__name__ if isinstance(what, type) else f"frame kind {what}"
        world.trace.mark(
            world.now_us, host.name, "trap", f"{'after' if after else 'before'} {name}"
        )
        world.disturbed()
        world.last_fault_us = world.now_us
        world.sometimes(f"killed {'after' if after else 'before'} {name}")
        world.lose_by_crash(host)
        return True

    def clear(self) -> None:
        """Take all traps away."""
        self._set.clear()
        self._is_shared = False
