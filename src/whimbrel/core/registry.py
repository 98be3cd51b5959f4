"""Which structures exist and which Compact schemas are known, on every member alike.

Knows a small set of facts, each with a Lamport number: for one (kind, key) the entry with the
greater (clock, origin) wins, so members agree whatever the order of arrival. The number of a
structure's latest destruction travels beside the fact and wins by itself (design 0004). A change is
announced to all other members and is *done* when each has answered or left; only then is a client
answered. Newcomers are told everything by the master, and every running announcement by its
author. What a member that died had announced is told again by everybody who knows it, because
nobody can know how far the dead one came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId
from whimbrel.core.kinds import StructureKind
from whimbrel.core.messages import Message, RegistryAnswered, RegistryEntry, RegistryTold
from whimbrel.core.model import MemberList, members_came, members_left
from whimbrel.errors import OverloadedError

SCHEMA_KIND = "schema"
"""Of entries that are no structures. Every other kind is one of structures."""

ENTRIES_MAX = 100_000
"""Most entries, destroyed structures included; they stay as marks that later news must beat."""
VALUE_BYTES_MAX = 1024 * 1024
"""Longest value of an entry (a Compact schema)."""
ENTRIES_PER_MESSAGE = 200
"""Entries in one RegistryTold; a control message stays small."""
ANNOUNCEMENTS_MAX = 10_000
"""Announcements under way; more are refused as overload."""

RETRY_TIMER = "registry.retry"

Fact = tuple[str, str, bool, bytes]
"""(kind, key, whether it is true or destroyed, value)"""

RegistryHook = Callable[[RegistryEntry, RegistryEntry | None], None]
"""Called after an entry changed here, with the entry it replaced."""

_encode = msgspec.msgpack.Encoder().encode
_decode_backups = msgspec.msgpack.Decoder(tuple[int, int]).decode


@dataclass(slots=True, eq=False)
class _Batch:
    """Announcements that were asked for together, and the token that waits for all of them."""

    token: object | None
    remaining: int = 0


@dataclass(slots=True, eq=False)
class _Announcement:
    """Entries on their way and the members that have not answered."""

    entries: tuple[RegistryEntry, ...]
    waiting: dict[MemberId, None]
    batch: _Batch
    cause: str
    is_overtaken: bool = False
    """Whether somebody knew of a later destruction before it heard of one of these."""


def backups_value(backup_count: int, async_backup_count: int) -> bytes:
    """The value of a structure's entry."""
    return _encode((backup_count, async_backup_count))


def backups_of(entry: RegistryEntry) -> tuple[int, int]:
    """Sync and async backup counts of a structure's entry."""
    return _decode_backups(entry.value)


def is_structure(entry: RegistryEntry) -> bool:
    """Whether an entry is that of a structure, of whatever kind."""
    return entry.kind != SCHEMA_KIND


class Registry:
    """The replicated set of entries of one member."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._entries: dict[tuple[str, str], RegistryEntry] = {}
        self._clock = 0
        self._announcements: dict[int, _Announcement] = {}
        self.completed: list[object] = []
        """Tokens of announcements that every member has; drained by the serving layer."""
        self.on_changed: RegistryHook = lambda _entry, _before: None
        self.when_durable: Callable[[Callable[[], None]], None] = lambda then: then()
        """Calls back once all that has happened so far is on our disk; at once without one."""

    # -- looking --------------------------------------------------------------------------

    def get(self, kind: str, key: str) -> RegistryEntry | None:
        """The live entry, None when there is none or it is destroyed."""
        entry = self._entries.get((kind, key))
        return entry if entry is not None and entry.alive else None

    def structures(self) -> list[RegistryEntry]:
        """Live structures of all kinds, by kind and name."""
        found = [entry for entry in self._entries.values() if entry.alive and is_structure(entry)]
        return sorted(found, key=lambda entry: (entry.kind, entry.key))

    def is_empty(self) -> bool:
        """Whether this member knows of no live structure."""
        return not any(entry.alive and is_structure(entry) for entry in self._entries.values())

    def schemas(self) -> list[RegistryEntry]:
        """Known Compact schemas, by key."""
        return [entry for entry in self.alive() if not is_structure(entry)]

    def depth(self) -> int:
        """Replicas a row needs: one more than the deepest total backup count, at least two."""
        return 1 + max([1, *(sum(backups_of(entry)) for entry in self.structures())])

    def announcing_count(self) -> int:
        """Announcements that some member has not answered."""
        return len(self._announcements)

    # -- changing -------------------------------------------------------------------------

    def structure_fact(self, kind: StructureKind, name: str, *, alive: bool) -> Fact:
        """That a structure exists with its configured backups, or does not."""
        counts = kind.backup_counts(self._ctx.settings, name)
        return kind.name, name, alive, backups_value(*counts)

    def ensure(self, kind: StructureKind, name: str) -> None:
        """See to it that every member knows a structure that is used without being created."""
        if self.get(kind.name, name) is None:
            self.announce([self.structure_fact(kind, name, alive=True)])

    def announce(self, facts: Sequence[Fact], token: object | None = None) -> None:
        """Make facts true on every member.

        They are true here at once. ``token`` appears in ``completed`` when every member has
        them, at the earliest before this call returns (a member alone).

        Raises:
            OverloadedError: A limit of this module is reached; nothing has changed.
        """
        new = sum(1 for kind, key, _, _ in facts if (kind, key) not in self._entries)
        if len(self._entries) + new > ENTRIES_MAX:
            raise OverloadedError(f"the registry holds at most {ENTRIES_MAX} entries")
        if len(self._announcements) >= ANNOUNCEMENTS_MAX:
            raise OverloadedError(f"at most {ANNOUNCEMENTS_MAX} registry changes run at once")
        for _, _, _, value in facts:
            if len(value) > VALUE_BYTES_MAX:
                raise OverloadedError(f"a registry value has at most {VALUE_BYTES_MAX} bytes")
        entries: list[RegistryEntry] = []
        for kind, key, alive, value in facts:
            self._clock += 1
            clock, mine = self._clock, self._ctx.id
            entry = RegistryEntry(kind, key, clock, mine, alive, value, clock, mine)
            if alive:
                entry = _destroyed_as(entry, self._entries.get((kind, key)))
            self._merge(entry)
            entries.append(entry)
        self._tell(entries, self._ctx.others(), token)

    def adopt(self, entries: Sequence[RegistryEntry]) -> bool:
        """Merge entries known from before a split and tell those that are news.

        They keep their numbers, so what the cluster has destroyed since under a greater number
        stays destroyed. Of marks of destroyed structures nothing is adopted: the smaller part's
        destruction, like its removals, does not reach what the bigger part kept.

        Returns:
            Whether there was news, which is now on its way (``announcing_count``).
        """
        news: list[RegistryEntry] = []
        for entry in entries:
            ours = _destroyed_as(entry, self._entries.get((entry.kind, entry.key)))
            if entry.alive and self._merge(ours):
                news.append(ours)
        self._tell(news, self._ctx.others(), None)
        return bool(news)

    def restore(self, entries: Sequence[RegistryEntry]) -> None:
        """Take what files of members know, marks of what was destroyed included; tell everybody."""
        for entry in entries:
            self._merge(entry)
        self._tell(self._sorted(), self._ctx.others(), None)

    def alive(self) -> list[RegistryEntry]:
        """All live entries, by kind and key."""
        return [entry for entry in self._sorted() if entry.alive]

    def _destroy_again(self, announcement: _Announcement) -> None:
        """Destroy once more, under a greater number, what somebody may have begun anew meanwhile.

        Whoever asked for the destruction may have been told before that of what was begun.
        """
        again: list[RegistryEntry] = []
        for entry in announcement.entries:
            if not entry.alive:
                self._clock += 1
                clock, mine = self._clock, self._ctx.id
                renewed = msgspec.structs.replace(
                    entry, clock=clock, origin=mine, destroyed=clock, destroyer=mine
                )
                self._merge(renewed)
                again.append(renewed)
        self._announce(again, self._ctx.others(), announcement.batch)

    def _tell(
        self, entries: Sequence[RegistryEntry], to: Sequence[MemberId], token: object | None
    ) -> None:
        """Announce in pieces; the token is done when all pieces are."""
        if not to or not entries:
            if token is not None:
                self._complete(entries, token)
            return
        self._announce(entries, to, _Batch(token))

    def _announce(
        self, entries: Sequence[RegistryEntry], to: Sequence[MemberId], batch: _Batch
    ) -> None:
        if not to:
            return
        for start in range(0, len(entries), ENTRIES_PER_MESSAGE):
            piece = tuple(entries[start : start + ENTRIES_PER_MESSAGE])
            call = self._ctx.next_number()
            batch.remaining += 1
            self._announcements[call] = _Announcement(
                piece, dict.fromkeys(to), batch, self._ctx.cause
            )
            self._ctx.broadcast(RegistryTold(call, piece), to)
        if not self._ctx.is_armed(RETRY_TIMER):
            self._ctx.arm(RETRY_TIMER, self._ctx.settings.call_timeout_us)

    def _complete(self, entries: Sequence[RegistryEntry], token: object) -> None:
        self._once_kept(entries, lambda: self.completed.append(token))

    def _once_kept(self, entries: Sequence[RegistryEntry], then: Callable[[], None]) -> None:
        """Go on once our disk has what somebody waits for: destructions, and Compact schemas.

        That a structure exists is known again by what is in it. What is told in a recovery comes
        from files, which stay as they are until it is over; nothing is written before.
        """
        is_known_again = all(entry.alive and is_structure(entry) for entry in entries)
        if is_known_again or self._ctx.members.recovery is not None:
            then()
            return
        cause = self._ctx.cause

        def go_on() -> None:
            self._ctx.resume(cause)
            then()

        self.when_durable(go_on)

    def _merge(self, entry: RegistryEntry) -> bool:
        """Take what is newer: of the fact and, by itself, of the destruction.

        A structure that was made anew by a member that had not heard of its destruction exists,
        but without what it held before, on every member alike.
        """
        key = (entry.kind, entry.key)
        before = self._entries.get(key)
        self._clock = max(self._clock, entry.clock)
        if before is not None:
            is_later = _destruction(entry) > _destruction(before)
            if (before.clock, before.origin) >= (entry.clock, entry.origin):
                if not is_later:
                    return False
                entry = _destroyed_as(before, entry)
            elif not is_later:
                entry = _destroyed_as(entry, before)
        self._entries[key] = entry
        self.on_changed(entry, before)
        return True

    # -- events ---------------------------------------------------------------------------

    def on_message(self, sender: MemberId, message: Message) -> None:
        """Take RegistryTold or RegistryAnswered."""
        if isinstance(message, RegistryTold):
            is_overtaken = any(map(self._is_overtaken, message.entries))
            for entry in message.entries:
                self._merge(entry)
            if message.call:
                clock = self._clock if is_overtaken else 0
                answer = RegistryAnswered(message.call, clock)
                self._once_kept(message.entries, lambda: self._ctx.send(sender, answer))
        elif isinstance(message, RegistryAnswered):
            self._clock = max(self._clock, message.overtaken)
            self._answered(message.call, sender, is_overtaken=message.overtaken > 0)

    def on_timer(self, key: str) -> None:
        """Repeat what has not been answered."""
        if key == RETRY_TIMER and self._announcements:
            for call, announcement in self._announcements.items():
                self._ctx.resume(announcement.cause)
                told = RegistryTold(call, announcement.entries)
                self._ctx.broadcast(told, list(announcement.waiting))
            self._ctx.arm(RETRY_TIMER, self._ctx.settings.call_timeout_us)

    def view_changed(self, old: MemberList, new: MemberList) -> None:
        """Stop waiting for members that left; bring newcomers up to date."""
        left = members_left(old, new)
        came = [member for member in members_came(old, new) if member != self._ctx.id]
        for call in list(self._announcements):
            for member in left:
                self._answered(call, member)
        if came:
            for call, announcement in self._announcements.items():
                announcement.waiting.update(dict.fromkeys(came))
                self._ctx.broadcast(RegistryTold(call, announcement.entries), came)
            if self._ctx.is_master:
                self._tell(self._sorted(), came, None)
        if left:
            gone = dict.fromkeys(left)
            orphans = [
                entry for entry in self._sorted() if entry.origin in gone or entry.destroyer in gone
            ]
            self._tell(orphans, self._ctx.others(), None)

    def became_master(self) -> None:
        """The old master may have died before it told a newcomer everything: tell all."""
        self._tell(self._sorted(), self._ctx.others(), None)

    def entries(self) -> tuple[RegistryEntry, ...]:
        """All that is known, what was destroyed as well, by kind and key."""
        return tuple(self._sorted())

    def _sorted(self) -> list[RegistryEntry]:
        return [self._entries[key] for key in sorted(self._entries)]

    def _is_overtaken(self, entry: RegistryEntry) -> bool:
        """Whether a destruction comes later than one after which the structure was begun anew.

        A later destruction alone is none of that: it takes with it what this one should. Members
        that destroy a structure at once would overtake each other for ever.
        """
        known = self._entries.get((entry.kind, entry.key))
        if entry.alive or known is None or not known.alive:
            return False
        return known.destroyed >= entry.destroyed

    def _answered(self, call: int, member: MemberId, *, is_overtaken: bool = False) -> None:
        announcement = self._announcements.get(call)
        if announcement is None or member not in announcement.waiting:
            return
        del announcement.waiting[member]
        announcement.is_overtaken |= is_overtaken
        if announcement.waiting:
            return
        del self._announcements[call]
        batch = announcement.batch
        if announcement.is_overtaken and batch.token is not None:
            self._destroy_again(announcement)
        batch.remaining -= 1
        if batch.token is not None and not batch.remaining:
            self._complete(announcement.entries, batch.token)
        if not self._announcements:
            self._ctx.disarm(RETRY_TIMER)


def _destruction(entry: RegistryEntry) -> tuple[int, str]:
    """What the destructions of an entry are ordered by."""
    return entry.destroyed, entry.destroyer or ""


def _destroyed_as(entry: RegistryEntry, other: RegistryEntry | None) -> RegistryEntry:
    """The entry with the latest destruction that the other one knows; None knows of none."""
    destroyed = 0 if other is None else other.destroyed
    destroyer = None if other is None else other.destroyer
    return msgspec.structs.replace(entry, destroyed=destroyed, destroyer=destroyer)
