"""The master's side: what makes up a job, as a sequence of rounds in which all members take part.

    create     LookAt, Begin (all stand still), Cut, Gather (all move again), Conclude
    list       LookAt
    verify     LookAt, Check
    delete     LookAt, Revoke, Delete by one member after the other
    restore    LookAt, Load (nothing has changed so far), Offer

A round ends when every member that was asked has answered. One that refuses, or leaves, ends the
job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from whimbrel.core.backups.catalogue import Backup, Catalogue
from whimbrel.core.backups.flow import Wait, Work
from whimbrel.core.backups.manifest import SCHEDULED_PREFIX, Manifest, encode_manifest, fresh_id
from whimbrel.core.backups.moments import iso_of
from whimbrel.core.backups.participant import NotNowError
from whimbrel.core.backups.pattern import fits
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, Namespace, PartitionId, namespace_of, split_namespace
from whimbrel.core.membership.cluster_state import Table
from whimbrel.core.messages import backups as b
from whimbrel.core.model import ClusterState
from whimbrel.core.partition.table import PartitionTable
from whimbrel.core.registry import Registry
from whimbrel.errors import GridError, OperationError

PATIENCE_US: Final = 60_000_000
"""How long a backup waits until nothing moves."""
PAUSE_US: Final = 200_000

Json = dict[str, Any]


class Rounds(Protocol):
    """How a job asks members."""

    def ask(self, orders: Mapping[MemberId, b.Order]) -> Wait:
        """Ask these members; resumes with their answers, by member."""

    def pause(self, pause_us: int) -> Wait:
        """Resumes after some time."""

    def release(self) -> None:
        """Have all members forget what they did for this job so far, and move again."""

    def announced(self) -> Wait:
        """Resumes when every member knows what was announced here."""

    def phase(self, name: str) -> None:
        """Say what it is at."""


class Wish(msgspec.Struct, frozen=True):
    """What an operator, or the schedule, wants done.

    Attributes:
        what: ``create``, ``list``, ``verify``, ``delete`` or ``restore``.
        place: Where backups lie, see ``manifest.place_of``.
        id: Of the backup; empty for a new name, or the youngest one.
        is_scheduled, keep: Of a backup that the schedule makes: how many such ones stay.
        pattern: Of the structures that are restored; empty for all.
        at_ms: The moment that is restored; None for that of the backup.
        may_replace: Whether what is there goes.
    """

    what: str
    place: str
    id: str = ""
    is_incremental: bool = False
    is_scheduled: bool = False
    keep: int = 0
    pattern: str = ""
    at_ms: int | None = None
    may_replace: bool = False


class Jobs:
    """What each job does."""

    def __init__(
        self, ctx: Context, migrations: Table, table: PartitionTable, registry: Registry
    ) -> None:
        self._ctx = ctx
        self._migrations = migrations
        self._table = table
        self._registry = registry

    def work(self, wish: Wish, rounds: Rounds) -> Work[object]:
        """The work of a wish; its result is a document."""
        works = {
            "create": self._create,
            "list": self._list,
            "verify": self._verify,
            "delete": self._delete,
            "restore": self._restore,
        }
        return works[wish.what](wish, rounds)

    def _all(self, order: b.Order) -> dict[MemberId, b.Order]:
        return dict.fromkeys(self._asked(), order)

    def _asked(self) -> list[MemberId]:
        """Who holds data, and the master, which moves nothing while it stands still."""
        members = self._ctx.members
        return [info.id for info in members.members if not info.lite or info.id == members.master]

    def _look(self, place: str, rounds: Rounds) -> Work[Catalogue]:
        rounds.phase("looking")
        answers = yield rounds.ask(self._all(b.LookAt(place)))
        return Catalogue(place, answers)

    # -- looking ------------------------------------------------------------------------------

    def _list(self, wish: Wish, rounds: Rounds) -> Work[object]:
        catalogue = yield from self._look(wish.place, rounds)
        return [_row(backup) for backup in catalogue.listed()]

    def _verify(self, wish: Wish, rounds: Rounds) -> Work[object]:
        catalogue = yield from self._look(wish.place, rounds)
        backup, manifest = catalogue.whole(wish.id)
        rounds.phase("reading")
        readers = catalogue.readers(backup, manifest)
        yield rounds.ask(
            {
                member: b.Check(wish.place, wish.id, tuple(parts))
                for member, parts in readers.items()
            }
        )
        return {"id": wish.id, "bytes": manifest.bytes, "entries": manifest.entry_count}

    # -- making one ---------------------------------------------------------------------------

    def _create(self, wish: Wish, rounds: Rounds) -> Work[object]:
        started_us = self._ctx.now_us
        catalogue = yield from self._look(wish.place, rounds)
        prefix = SCHEDULED_PREFIX if wish.is_scheduled else ""
        name = wish.id or fresh_id(self._ctx.wall_ms, list(catalogue.backups), prefix)
        if name in catalogue.backups:
            raise OperationError(f"there is a backup {name} in {wish.place} already")
        youngest = catalogue.youngest() if wish.is_incremental else None
        base = None if youngest is None else catalogue.whole(youngest.id)[1]
        try:
            manifest = yield from self._make(name, wish.place, base, rounds)
        except GridError:
            yield from self._clean_up(wish.place, name, rounds)
            raise
        if wish.keep:
            yield from self._retire(wish, rounds)
        size, count = manifest.bytes, manifest.entry_count
        self._ctx.note("backup_made", id=name, bytes=size, entries=count, base=manifest.base)
        return {
            "id": name,
            "bytes": manifest.bytes,
            "entries": manifest.entry_count,
            "members": len(manifest.parts),
            "incremental_of": manifest.base,
            "elapsed_s": (self._ctx.now_us - started_us) / 1_000_000,
        }

    def _make(self, name: str, place: str, base: Manifest | None, rounds: Rounds) -> Work[Manifest]:
        version, mark = yield from self._stand_still(name, place, rounds)
        rounds.phase("cutting")
        cuts = yield rounds.ask(self._all(b.Cut()))
        if (version, mark) != (self._ctx.members.version, self._migrations.table_mark()):
            raise OperationError("the members or their partitions changed meanwhile; try again")
        row = self._table.row
        holders = [row(PartitionId(pid))[0] for pid in range(self._table.partition_count)]
        rounds.phase("copying")
        orders: dict[MemberId, b.Order] = {
            member: b.Gather(None) if base is None else b.Gather(base.part_of(member), base.id)
            for member in self._asked()
        }
        answers = yield rounds.ask(orders)
        members = [member for member, answer in answers.items() if answer.part.log_id]
        entries = {
            namespace_of(one.kind, one.key): 0
            for one in self._registry.structures()
            if self._ctx.settings.is_persistent(namespace_of(one.kind, one.key))
        }
        for cut in cuts.values():
            for namespace, count in cut.entries.items():
                entries[namespace] = entries.get(namespace, 0) + count
        places = {member: position for position, member in enumerate(members)}
        manifest = Manifest(
            id=name,
            from_ms=min(cut.at_ms for cut in cuts.values()),
            at_ms=max(cut.at_ms for cut in cuts.values()),
            cluster_name=self._ctx.settings.cluster_name,
            cluster_id=self._ctx.members.cluster_id,
            partition_count=self._table.partition_count,
            base=None if base is None else base.id,
            parts=tuple(answers[member].part for member in members),
            primaries=tuple(-1 if one is None else places[one] for one in holders),
            entries=entries,
        )
        rounds.phase("concluding")
        yield rounds.ask(self._all(b.Conclude(encode_manifest(manifest))))
        return manifest

    def _stand_still(self, name: str, place: str, rounds: Rounds) -> Work[tuple[int, int]]:
        """Have all members stand still on one list and one table; which ones that are.

        Nothing moves while the logs are cut: so each partition's state is in one log, that of its
        primary, and none is missed or there twice.
        """
        rounds.phase("waiting")
        until_us = self._ctx.now_us + PATIENCE_US
        while True:
            problem = self._migrations.pending_work()
            if not problem and not self._migrations.is_published():
                problem = "not every member has the newest table yet"
            away = self._away()
            if not problem and away:
                raise OperationError(
                    f"{away} partitions are of members that are away; a backup would lack them"
                )
            if not problem:
                version, mark = self._ctx.members.version, self._migrations.table_mark()
                lease_us = self._ctx.settings.state_lock_lease_us
                try:
                    yield rounds.ask(self._all(b.Begin(place, name, version, mark, lease_us)))
                except NotNowError as refusal:
                    rounds.release()
                    problem = str(refusal)
                else:
                    return version, mark
            if self._ctx.now_us >= until_us:
                raise OperationError(f"the cluster does not come to rest: {problem}")
            yield rounds.pause(PAUSE_US)

    def _away(self) -> int:
        """Partitions whose primary is not here."""
        pids = map(PartitionId, range(self._table.partition_count))
        primaries = [self._table.row(pid)[0] for pid in pids]
        return sum(one is not None and not self._ctx.is_member(one) for one in primaries)

    def _clean_up(self, place: str, name: str, rounds: Rounds) -> Work[None]:
        """Leave nothing of what did not become whole, where that is possible."""
        try:
            yield from self._delete_all(place, (name,), rounds)
        except GridError as problem:
            self._ctx.note("backup_left", "warning", id=name, reason=str(problem))

    def _retire(self, wish: Wish, rounds: Rounds) -> Work[None]:
        """Delete scheduled backups beyond those that are kept, and what was interrupted of them."""
        catalogue = yield from self._look(wish.place, rounds)
        ours = [one for one in catalogue.listed() if one.id.startswith(SCHEDULED_PREFIX)]
        whole = [one.id for one in ours if one.is_complete]
        old = whole[: max(0, len(whole) - wish.keep)]
        old += [one.id for one in ours if one.manifest is None and not one.damage]
        gone = tuple(one for one in old if not catalogue.needed_by(one))
        if gone:
            yield from self._delete_all(wish.place, gone, rounds)
            self._ctx.note("backups_retired", ids=", ".join(gone))

    def _delete(self, wish: Wish, rounds: Rounds) -> Work[object]:
        catalogue = yield from self._look(wish.place, rounds)
        catalogue.get(wish.id)
        later = catalogue.needed_by(wish.id)
        if later:
            raise OperationError(f"backup {wish.id} is still needed by {', '.join(later)}")
        yield from self._delete_all(wish.place, (wish.id,), rounds)
        self._ctx.note("backup_deleted", id=wish.id)
        return {"id": wish.id}

    def _delete_all(self, place: str, names: tuple[str, ...], rounds: Rounds) -> Work[None]:
        """Nowhere may anything go before it is said everywhere that these are not whole.

        One member after the other, because a place may be one that all share.
        """
        rounds.phase("deleting")
        for order in (b.Revoke(place, names), b.Delete(place, names)):
            for member in self._asked():
                yield rounds.ask({member: order})

    # -- restoring ----------------------------------------------------------------------------

    def _restore(self, wish: Wish, rounds: Rounds) -> Work[object]:
        started_us = self._ctx.now_us
        if self._ctx.members.state is ClusterState.PASSIVE:
            raise OperationError("the cluster state is PASSIVE and allows reads only")
        catalogue = yield from self._look(wish.place, rounds)
        backup, manifest = self._chosen(catalogue, wish)
        rounds.phase("reading")
        loaded = yield rounds.ask(self._loads(catalogue, backup, manifest, wish))
        structures = [one for one in manifest.entries if fits(one, wish.pattern)]
        if wish.at_ms is not None:
            structures = yield from self._choose_fragments(manifest, loaded, rounds)
        if not structures:
            which = f" that fits {wish.pattern}" if wish.pattern else ""
            raise OperationError(f"backup {backup.id} has no structure{which}")
        self._refuse_to_replace(structures, loaded, wish)
        if wish.may_replace:
            rounds.phase("replacing")
            yield from self._empty(structures, rounds)
        rounds.phase("restoring")
        answers = yield rounds.ask(self._all(b.Offer()))
        entries = sum(answer.entries for answer in answers.values())
        self._ctx.note("backup_restored", id=backup.id, structures=len(structures), entries=entries)
        return {
            "id": backup.id,
            "structures": len(structures),
            "entries": entries,
            "elapsed_s": (self._ctx.now_us - started_us) / 1_000_000,
        }

    def _chosen(self, catalogue: Catalogue, wish: Wish) -> tuple[Backup, Manifest]:
        if wish.at_ms is not None:
            return catalogue.around(wish.at_ms, wish.id)
        if wish.id:
            return catalogue.whole(wish.id)
        youngest = catalogue.youngest()
        if youngest is None:
            raise OperationError(f"there is no complete backup in {wish.place}")
        return catalogue.whole(youngest.id)

    def _loads(
        self, catalogue: Catalogue, backup: Backup, manifest: Manifest, wish: Wish
    ) -> dict[MemberId, b.Order]:
        """Every member is asked: who reads nothing tells what is there now."""
        readers = catalogue.readers(backup, manifest)
        if wish.at_ms is not None:
            every = tuple(map(PartitionId, range(manifest.partition_count)))
            readers = {
                member: [msgspec.structs.replace(part, primary_of=every) for part in parts]
                for member, parts in readers.items()
            }
        return {
            member: b.Load(
                wish.place, backup.id, tuple(readers.get(member, ())), wish.pattern, wish.at_ms
            )
            for member in self._asked()
        }

    def _choose_fragments(
        self, manifest: Manifest, loaded: Mapping[MemberId, b.Loaded], rounds: Rounds
    ) -> Work[list[Namespace]]:
        """Of what several parts had at a moment one counts: that of the primary, if it had it.

        Between two backups a partition may have moved. Whoever was its primary at the later one
        had it, or had it not yet; then any other holder had what it had acknowledged.
        """
        places = {part.member: position for position, part in enumerate(manifest.parts)}
        best: dict[tuple[PartitionId, Namespace], tuple[bool, int, MemberId]] = {}
        for answer in loaded.values():
            for source, pid, namespace, _ in answer.found:
                is_other = manifest.primaries[pid] != places[source]
                rank = (is_other, places[source], source)
                best[pid, namespace] = min(rank, best.get((pid, namespace), rank))
        kept = tuple((rank[2], *where) for where, rank in best.items())
        yield rounds.ask(self._all(b.Choose(kept)))
        return sorted({namespace for _, namespace in best})

    def _refuse_to_replace(
        self, structures: Iterable[Namespace], loaded: Mapping[MemberId, b.Loaded], wish: Wish
    ) -> None:
        if wish.may_replace:
            return
        present: dict[Namespace, int] = {}
        for answer in loaded.values():
            for namespace, count in answer.present.items():
                present[namespace] = present.get(namespace, 0) + count
        full = [
            " ".join((*split_namespace(one), f"({present[one]:,} entries)"))
            for one in structures
            if present.get(one)
        ]
        if full:
            raise OperationError(
                f"there are entries in {', '.join(full)}; --replace gives them up for what the "
                "backup has"
            )

    def _empty(self, structures: Iterable[Namespace], rounds: Rounds) -> Work[None]:
        """Destroy what is there, everywhere, and begin it anew under the same name."""
        facts = []
        for namespace in structures:
            known = self._registry.get(*split_namespace(namespace))
            if known is not None:
                facts.append((known.kind, known.key, known.value))
        for alive in (False, True):
            if facts:
                self._registry.announce([(kind, key, alive, value) for kind, key, value in facts])
            yield rounds.announced()


def _row(backup: Backup) -> Json:
    manifest = backup.manifest
    if manifest is None:
        return {
            "id": backup.id,
            "at": "",
            "bytes": backup.bytes,
            "entries": 0,
            "complete": False,
            "incremental_of": None,
        }
    return {
        "id": backup.id,
        "at": iso_of(manifest.at_ms),
        "bytes": manifest.bytes,
        "entries": manifest.entry_count,
        "complete": backup.is_complete,
        "incremental_of": manifest.base,
    }
