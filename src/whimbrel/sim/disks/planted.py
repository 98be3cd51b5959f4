"""Bugs of disks: what counts too early, what is not written, whose files are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whimbrel.core.ids import PartitionId, ReplicaIndex
from whimbrel.core.persistence.commands import Command, Failure, SyncFolder
from whimbrel.core.persistence.format import RecordKind
from whimbrel.core.persistence.images import ImageDone
from whimbrel.core.persistence.log import SYNC_TIMER, DiskLog
from whimbrel.core.stimuli import DiskFailed
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, nothing, replace


def _in_log(engine: Engine, plant: Callable[[DiskLog], None]) -> None:
    """Put a bug into the log of a member once it has one, and into the one that it has."""
    persistence = engine.member.persistence
    make = persistence._make_log
    if persistence.log is not None:
        plant(persistence.log)

    def made() -> DiskLog:
        log = make()
        plant(log)
        return log

    replace(persistence, "_make_log", made)


def _syncs_of(log: DiskLog, *, at_ends: bool) -> None:
    """Leave out the syncs at the ends of segments, or all others."""
    sync, begin = log._sync, log._begin
    is_end = [False]

    def begin_segment(*arguments: Any) -> None:
        is_end[0] = True
        begin(*arguments)
        is_end[0] = False

    def sync_some(commands: list[Command]) -> None:
        if is_end[0] != at_ends:
            sync(commands)
        elif at_ends:
            sync([])

    replace(log, "_begin", begin_segment)
    replace(log, "_sync", sync_some)


def acknowledged_before_sync(engine: Engine) -> None:
    """A write is acknowledged when the system has it, and the disk has not."""
    _in_log(engine, lambda log: _syncs_of(log, at_ends=False))


def closed_segment_not_synced(engine: Engine) -> None:
    """The cluster file says that all of a segment counts, and its end is not synced."""
    _in_log(engine, lambda log: _syncs_of(log, at_ends=True))


def backup_acknowledges_before_sync(engine: Engine) -> None:
    """A backup acknowledges what is on its way to its disk."""
    _in_log(engine, lambda log: replace(log, "hold_back", lambda _then: False))


def commit_answered_before_durable(engine: Engine) -> None:
    """A destination answers a commit when it has the copy in memory."""
    replace(engine.member.dataplane.roles, "when_durable", lambda then: then())


def failed_sync_counts(engine: Engine) -> None:
    """A sync that failed is taken for one that succeeded the second time."""

    def plant(log: DiskLog) -> None:
        failed = log._failed

        def go_on(problem: DiskFailed) -> None:
            if problem.failure is not Failure.SYNC:
                failed(problem)
            elif left := log._under_way[problem.position + 1 :]:
                log._send(left)
            else:
                log._done()

        replace(log, "_failed", go_on)

    _in_log(engine, plant)


def state_not_written(engine: Engine) -> None:
    """Lineage and doubt change, and the log does not say so."""
    _in_log(engine, lambda log: replace(log, "mark", nothing))


def dropped_not_written(engine: Engine) -> None:
    """A fragment is held no longer, and the log does not say so."""

    def plant(log: DiskLog) -> None:
        control = log._control

        def control_but_one(held: Any, kind: RecordKind, *arguments: Any) -> None:
            if kind is not RecordKind.DROPPED:
                control(held, kind, *arguments)

        replace(log, "_control", control_but_one)

    _in_log(engine, plant)


def image_counts_before_durable(engine: Engine) -> None:
    """The changes say that an image is whole before the images are synced."""

    def plant(log: DiskLog) -> None:
        take_done = log.images.take_done

        def take_unsynced() -> tuple[list[ImageDone], bool]:
            return take_done()[0], False

        replace(log.images, "take_done", take_unsynced)

    _in_log(engine, plant)


def stale_files_are_loaded(engine: Engine) -> None:
    """Files of a cluster that has gone on are loaded, and not set aside."""
    persistence = engine.member.persistence
    set_aside = persistence.set_aside

    def load_first(then: Callable[[], None]) -> None:
        found, on_loaded = persistence.found, persistence.on_loaded
        if found is None:
            set_aside(then)
            return

        def loaded() -> None:
            persistence.on_loaded, persistence.found = on_loaded, None
            then()

        persistence.on_loaded = loaded
        pids = map(PartitionId, range(found.partition_count))
        persistence.load(dict.fromkeys(pids, ReplicaIndex(0)))

    replace(persistence, "set_aside", load_first)


def recovery_without_all(engine: Engine) -> None:
    """A recovery goes on with the members that are here, whatever the policy is."""
    recovery = engine.member.recovery
    follow_master = recovery._follow_master

    def follow_impatient(*arguments: Any) -> None:
        follow_master(*arguments)
        if recovery._gathering is not None:
            replace(recovery._gathering, "missing", tuple)

    replace(recovery, "_follow_master", follow_impatient)


def folder_not_synced(engine: Engine) -> None:
    """What was taken away is not synced with its folder: after a loss of power it may be there."""
    persistence = engine.member.persistence
    submit = persistence.submit

    def submit_without(commands: tuple[Command, ...], *then: Any) -> None:
        submit(tuple(one for one in commands if not isinstance(one, SyncFolder)), *then)

    replace(persistence, "submit", submit_without)


def interval_without_syncs(engine: Engine) -> None:
    """The interval is over, and nothing is synced."""

    def plant(log: DiskLog) -> None:
        on_timer = log.on_timer

        def on_timer_but_one(key: str) -> None:
            if key != SYNC_TIMER:
                on_timer(key)

        replace(log, "on_timer", on_timer_but_one)

    _in_log(engine, plant)


def refused_counts(engine: Engine) -> None:
    """What a full or closed disk has refused is taken for written."""

    def plant(log: DiskLog) -> None:
        failed = log._failed

        def go_on(problem: DiskFailed) -> None:
            if problem.failure.may_pass:
                log._done()
            else:
                failed(problem)

        replace(log, "_failed", go_on)

    _in_log(engine, plant)


def damage_ends_the_log(engine: Engine) -> None:
    """A damaged file is taken for one that nobody has written to."""
    persistence = engine.member.persistence
    persistence.on_damaged = lambda _sentence: persistence.on_loaded()


def goodbye_does_not_close_files(engine: Engine) -> None:
    """All leave at once, and the last ones write down what is left of the cluster then."""
    replace(engine.member.persistence, "end_with_all", nothing)
    engine.member.membership.on_end_seen = nothing


LOSS = ("D1", "D4", "D6", "D7", "D13")
"""One of them is the first to see that data are not where they are said to be."""


def _bug(plant: Callable[[Engine], None], *rules: str, first: int = 1) -> Bug:
    return Bug(plant, "disks", rules, range(first, first + 200))


BUGS: tuple[Bug, ...] = (
    _bug(acknowledged_before_sync, "S1"),
    _bug(backup_acknowledges_before_sync, "S1"),
    _bug(commit_answered_before_durable, *LOSS),
    _bug(failed_sync_counts, "S1", "D1", "X2"),
    _bug(closed_segment_not_synced, "S7", "S1", "X2"),
    _bug(state_not_written, "S7"),
    _bug(dropped_not_written, "S7"),
    _bug(stale_files_are_loaded, "D9", "S1", "X1", "X2", first=36),
    _bug(recovery_without_all, "M7", "P2", *LOSS, first=44),
    _bug(interval_without_syncs, "S1"),
    _bug(folder_not_synced, "X2", "S7", *LOSS, first=2),
    _bug(refused_counts, "S1", "S7", "X2", *LOSS),
    _bug(damage_ends_the_log, "S4", *LOSS),
    _bug(goodbye_does_not_close_files, *LOSS),
    _bug(image_counts_before_durable, "S7", "S1", "X2", *LOSS, first=69),
)
