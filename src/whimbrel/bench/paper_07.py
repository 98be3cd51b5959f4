"""The tables of paper 07 at the paper's own sizes, on modelled links (PIM-46 to PIM-56).

Ten members with 20,000 partitions, 135 million entries of 16 KiB and one backup: one member leaves,
comes back, is killed. Each change runs to the moment at which the cluster is safe again, on the
production rooms (``grid_model``), and stands beside what the paper measured and beside the least
time in which the links can carry the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from whimbrel.bench.copy_cost import measure as measure_copy_cost
from whimbrel.bench.grid_model import GridModel, GridModelSettings
from whimbrel.core.settings import CoreSettings


class Size(msgspec.Struct, frozen=True):
    """What is modelled; the defaults are the paper's."""

    partitions: int = 20_000
    serial_partitions: int = 1_000
    """Serial runs move the same bytes in fewer, larger partitions: the old way sends whole tables
    after each migration, and to model that for 20,000 rows takes an hour of this program's time."""
    members: int = 10
    entries: int = 135_000_000
    value_bytes: int = 16_384
    link_bytes_per_s: float = 2.5e9
    latency_us: int = 50
    chunk_bytes: int = 4_194_304

    @property
    def partition_bytes(self) -> int:
        """Of one replica."""
        return self.entries * self.value_bytes // self.partitions


EVENTS = ("leave", "join", "crash")
RUNS = (("serial", 1), ("serial", 10), ("5", 1), ("20", 1), ("20", 10))
"""Migrations a member takes part in at once, and maps; the paper's five runs."""
RUNS_WITH_CPU = (("5", 1), ("20", 1))
"""Those that are also run on members as fast as this machine's."""
PAPER_S = {
    ("serial", 1): (2_134, 2_056, 2_018),
    ("5", 1): (285, 439, 137),
    ("20", 1): (202, 324, 97),
    ("serial", 10): (2_450, 2_301, 2_375),
    ("20", 10): (107, 244, 51),
}
"""Seconds of leave, join and crash (PIM-47 to PIM-52)."""
PAPER_MIGRATIONS = {"leave": 14_000, "join": 14_000, "crash": 26_150}
"""Of rows seven deep (PIM-30)."""
PAPER_SHUTDOWN_S = {("serial", 1): 2_145, ("5", 1): 299, ("20", 1): 215, ("serial", 10): 2_456}
"""Until the leaving member ended (PIM-53); the paper's fifth figure contradicts its own table."""

Figures = dict[str, Any]


def run(
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    chunk_kib: int = 4_096,
    size: Size | None = None,
) -> Figures:
    """All runs on members that only the links slow down, then some on members like this machine.

    Args:
        progress: Told how many of all changes are done.
        chunk_kib: Data of one message; smaller ones take longer to model.
        size: What is modelled instead of the paper's sizes.
    """
    size = msgspec.structs.replace(size or Size(), chunk_bytes=chunk_kib * 1024)
    cost = measure_copy_cost()
    ideal = GridModelSettings(
        0,
        link_bytes_per_s=size.link_bytes_per_s,
        latency_us=size.latency_us,
    )
    slow = msgspec.structs.replace(
        ideal,
        message_cpu_us=cost["message_us"],
        export_us_per_mib=cost["export_us_per_mib"],
        ingest_us_per_mib=cost["ingest_us_per_mib"],
    )
    work = [(mode, maps, "links", ideal) for mode, maps in RUNS]
    work += [(mode, maps, "links and CPU", slow) for mode, maps in RUNS_WITH_CPU]
    rows: list[Figures] = []
    for mode, maps, bound_by, model in work:
        for row in flow(size, msgspec.structs.replace(model, maps=maps), mode):
            event = row["event"]
            paper = {
                "maps": maps,
                "modelled": bound_by,
                "paper_s": PAPER_S[mode, maps][EVENTS.index(event)],
                "paper_migrations": PAPER_MIGRATIONS[event],
                "paper_shutdown_s": PAPER_SHUTDOWN_S.get((mode, maps))
                if event == "leave"
                else None,
            }
            rows.append(row | paper)
            progress(len(rows), len(work) * len(EVENTS))
    return {"model": msgspec.to_builtins(size), "copy_cost": cost, "rows": rows}


def tables(figures: Figures) -> list[tuple[str, list[str], list[list[str]]]]:
    """For people: title, columns, rows."""
    columns = ["modelled", ">maps", ">parallel", ">partitions", "change", ">to safe s", ">bound s",
               ">of bound", ">paper s", ">paper of bound", ">migrations", ">paper", ">at once",
               ">sent GB"]  # fmt: skip
    rows = [
        [
            row["modelled"],
            str(row["maps"]),
            row["parallel"],
            str(row["partitions"]),
            row["event"],
            f"{row['seconds']:.1f}",
            f"{row['bound_s']:.1f}",
            f"{row['of_bound']:.2f}",
            str(row["paper_s"]),
            f"{row['paper_s'] / row['bound_s']:.2f}",
            str(row["migrations"]),
            str(row["paper_migrations"]),
            str(row["at_once"]),
            f"{row['sent_bytes'] / 1e9:.1f}",
        ]
        for row in figures["rows"]
    ]
    model = figures["model"]
    title = (
        f"{model['partitions']} partitions, {model['members']} members, {model['entries']} entries "
        f"of {model['value_bytes']} bytes, {model['link_bytes_per_s'] / 1.25e8:g} Gbit/s"
    )
    return [(title, columns, rows)]


def flow(size: Size, model: GridModelSettings, mode: str) -> Iterator[Figures]:
    """Leave, join and crash of one member of a settled cluster, one row of figures each."""
    serial = mode == "serial"
    if serial:
        size = msgspec.structs.replace(size, partitions=size.serial_partitions)
    model = msgspec.structs.replace(model, partition_bytes=size.partition_bytes)
    settings = CoreSettings(
        partition_count=size.partitions,
        migration_max_parallel=1 if serial else int(mode),
        migration_chunk_bytes_max=size.chunk_bytes,
        cluster_version="4.0" if serial else "4.1",
    )
    grid = GridModel(size.members, settings, model, settings.cluster_version)
    for event in EVENTS:
        yield _change(grid, size, model, mode, event)


def _change(
    grid: GridModel, size: Size, model: GridModelSettings, mode: str, event: str
) -> Figures:
    """One change from its cause to safe."""
    begin_us, grid.at_once_max = grid.now_us, 0
    before = {member.info.id: member.bytes_sent for member in grid.members}
    ended_us: float | None = None
    newest = grid.members[-1]
    primaries = sum(row[0] == newest.info.id for row in grid.master.room.table.rows)
    held_before = _held_bytes(grid, model)
    if event == "leave":
        grid.ask_to_leave(newest)
        grid.run(until_leave_of=newest)
        ended_us = grid.now_us
        grid.install(grid.members[:-1])
    elif event == "join":
        grid.install([*grid.members, grid.make()])
    else:
        grid.install(grid.members[:-1])
    grid.run()
    process = [entry for entry in grid.master.room.reporter.finished if entry["copies"]]
    migrations, copies = (int(str(process[-1][name])) for name in ("completed", "copies"))
    bound_s = _bound_s(size, model, mode, event, copies, primaries)
    seconds = (grid.now_us - begin_us) / 1e6
    return {
        "parallel": "1 each" if mode == "serial" and grid.at_once_max > 1 else mode,
        "event": event,
        "partitions": size.partitions,
        "seconds": round(seconds, 2),
        "bound_s": round(bound_s, 2),
        "of_bound": round(seconds / bound_s, 3),
        "shutdown_s": None if ended_us is None else round((ended_us - begin_us) / 1e6, 2),
        "migrations": migrations,
        "copies": copies,
        "at_once": grid.at_once_max,
        "sent_bytes": sum(
            member.bytes_sent - before.get(member.info.id, 0) for member in grid.members
        )
        + (newest.bytes_sent - before[newest.info.id] if newest not in grid.members else 0),
        "member_bytes_before": held_before,
        "member_bytes_after": _held_bytes(grid, model),
    }


def _held_bytes(grid: GridModel, model: GridModelSettings) -> int:
    """Bytes of the member with the most (PIM-56)."""
    table = grid.master.room.table
    counts = [table.replica_count(member.info.id) for member in grid.members]
    return max(counts) * model.partition_bytes


def _bound_s(
    size: Size, model: GridModelSettings, mode: str, event: str, copies: int, primaries: int
) -> float:
    """The least time in which the busiest link can carry its part (FN-17).

    Serially one copy after the other. Else a join is bound by what the newcomer takes, a leave by
    the primaries that only the leaver sends, a crash by an even share of what each survivor takes.
    """
    if mode == "serial" or event == "join":
        count = float(copies)
    elif event == "leave":
        count = float(primaries)
    else:
        count = copies / (size.members - 1)
    return count * model.partition_bytes / size.link_bytes_per_s
