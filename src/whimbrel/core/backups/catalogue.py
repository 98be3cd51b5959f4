"""What backups there are in a place, put together from what each member sees of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from whimbrel.core.backups.checks import check_manifest
from whimbrel.core.backups.manifest import MANIFEST_FILE, Manifest, decode_manifest
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages.backups import Part, PartToRead, Seen
from whimbrel.core.persistence.format import DamageError
from whimbrel.errors import OperationError


@dataclass(slots=True, eq=False)
class Backup:
    """One backup of a place.

    Attributes:
        manifest: None while it is not whole, or that is damaged.
        damage: What of the manifest is damaged, or why nobody can read it; empty for nothing.
        seen_by: By member whose part it is, the members that see the part.
        bytes: Of all files that are seen, where nothing better is known.
    """

    id: str
    manifest: Manifest | None = None
    damage: str = ""
    seen_by: dict[MemberId, list[MemberId]] = field(default_factory=dict)
    bytes: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether it is whole, and all of its parts are seen."""
        return self.manifest is not None and all(
            part.member in self.seen_by for part in self.manifest.parts
        )


class Catalogue:
    """The backups of one place, by id."""

    def __init__(self, place: str, seen: Mapping[MemberId, Seen]) -> None:
        """Put together what members have answered."""
        self.place = place
        self.backups: dict[str, Backup] = {}
        for member, answer in seen.items():
            for one in answer.backups:
                found = self.backups.setdefault(one.id, Backup(one.id))
                for source in one.parts:
                    found.seen_by.setdefault(source, []).append(member)
                found.bytes = max(found.bytes, one.size)
                found.damage = found.damage or one.problem
                if not one.manifest or found.manifest is not None:
                    continue
                try:
                    file = f"{place}/{one.id}/*/{MANIFEST_FILE}"
                    found.manifest = check_manifest(decode_manifest(one.manifest, file), file)
                    found.damage = ""
                except DamageError as problem:
                    found.damage = str(problem)

    def listed(self) -> list[Backup]:
        """All of them, oldest first; those that are not whole come last, by id."""
        return sorted(self.backups.values(), key=_age)

    def youngest(self) -> Backup | None:
        """The youngest one that is complete."""
        complete = [one for one in self.listed() if one.is_complete]
        return complete[-1] if complete else None

    def get(self, name: str) -> Backup:
        """The one with this id.

        Raises:
            OperationError: There is none.
        """
        found = self.backups.get(name)
        if found is None:
            raise OperationError(f"there is no backup {name} in {self.place}")
        return found

    def whole(self, name: str) -> tuple[Backup, Manifest]:
        """The same, if it and all that it builds on is there.

        Raises:
            OperationError: It is not; what is missing is named.
        """
        found = self.get(name)
        if found.damage:
            raise OperationError(found.damage)
        manifest = found.manifest
        if manifest is None:
            raise OperationError(
                f"backup {name} is not complete: it was interrupted, and can only be deleted"
            )
        for home in manifest.homes:
            if home not in self.backups:
                raise OperationError(
                    f"backup {name} builds on {home}, which is not in {self.place}"
                )
        for part in manifest.parts:
            if part.member not in found.seen_by:
                raise OperationError(
                    f"the part of member {part.member} in backup {name} is not in {self.place}"
                )
        return found, manifest

    def needed_by(self, name: str) -> list[str]:
        """The later backups that cannot do without this one."""
        return [
            one.id
            for one in self.listed()
            if one.manifest is not None and name in one.manifest.homes
        ]

    def readers(self, backup: Backup, manifest: Manifest) -> dict[MemberId, list[PartToRead]]:
        """Who reads which parts: its own as far as they are seen, the rest by turns.

        ``manifest`` says what is to be read; fragments count of partitions of which a part has the
        primary.
        """
        owned: dict[int, list[PartitionId]] = {}
        for pid, position in enumerate(manifest.primaries):
            owned.setdefault(position, []).append(PartitionId(pid))
        found: dict[MemberId, list[PartToRead]] = {}
        for position, part in enumerate(manifest.parts):
            seers = backup.seen_by[part.member]
            reader = seers[position % len(seers)]
            if part.member in seers:
                reader = part.member
            wanted = tuple(owned.get(position, ()))
            read = PartToRead(part.member, part.log_id, part.files, wanted)
            found.setdefault(reader, []).append(read)
        return found

    # -- moments ----------------------------------------------------------------------------------

    def around(self, at_ms: int, name: str = "") -> tuple[Backup, Manifest]:
        """The backup of that moment; or the first increment after it, with all its chain has.

        The manifest of the latter is as if nothing had been compacted since the one before.

        Args:
            at_ms: The moment.
            name: The youngest backup of the chain; empty for any.

        Raises:
            OperationError: No chain reaches over that moment, or one that does is not whole.
        """
        chain = self._chain(name) if name else list(self.backups)
        for backup in self.listed():
            manifest = backup.manifest
            if manifest is None or backup.id not in chain:
                continue
            if manifest.from_ms <= at_ms <= manifest.at_ms:
                return self.whole(backup.id)
            if at_ms < manifest.from_ms and manifest.base is not None:
                self.whole(backup.id)
                _, before = self.whole(manifest.base)
                if before.at_ms < at_ms:
                    return backup, _with_history(manifest, before)
        raise OperationError(f"no backup in {self.place} and its increments reach over that moment")

    def _chain(self, name: str) -> list[str]:
        """A backup and all that it builds on."""
        found = [name]
        while (base := self.whole(found[-1])[1].base) is not None:
            found.append(base)
        return found


def _with_history(manifest: Manifest, before: Manifest) -> Manifest:
    """An increment with all the segments that there were since the backup that it builds on.

    Raises:
        OperationError: Of some member they were not all kept.
    """
    parts: list[Part] = []
    for part in manifest.parts:
        older = before.part_of(part.member)
        files = {(one.stream, one.number): one for one in part.files}
        if older is not None and older.log_id == part.log_id:
            if part.since != before.id:
                raise OperationError(
                    f"of member {part.member} not all that went between {before.id} and "
                    f"{manifest.id} was kept; only the moments of these two can be restored"
                )
            more = {(one.stream, one.number): one for one in (*older.files, *part.history)}
            files = more | files
        listed = tuple(files[key] for key in sorted(files))
        parts.append(msgspec.structs.replace(part, files=listed))
    return msgspec.structs.replace(manifest, parts=tuple(parts))


def _age(backup: Backup) -> tuple[bool, int, str]:
    manifest = backup.manifest
    return manifest is None, 0 if manifest is None else manifest.at_ms, backup.id
