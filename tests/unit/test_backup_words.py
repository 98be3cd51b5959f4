"""What backups are described by: the calendar, schedules, manifests, places and what lies there."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.unit.engine_pump import member_id

from whimbrel.core.backups.catalogue import Catalogue
from whimbrel.core.backups.checks import check_manifest
from whimbrel.core.backups.manifest import (
    Manifest,
    decode_manifest,
    encode_manifest,
    fresh_id,
    place_of,
)
from whimbrel.core.backups.moments import Cron, iso_of, moment_of
from whimbrel.core.ids import Namespace
from whimbrel.core.messages.backups import Part, PartFile, Seen, SeenBackup
from whimbrel.core.partition.hashing import partition_hash, partition_of, partition_of_name
from whimbrel.core.persistence.format import DamageError
from whimbrel.errors import OperationError, UsageError
from whimbrel.serialization.data import to_data

ME, OTHER = member_id(1), member_id(2)
LOG = "ab" * 16


def test_the_calendar_is_that_of_everybody_else() -> None:
    """Method: against the standard library, at random and at the ends of months and years."""
    generator = random.Random(1)
    days = [
        datetime(year, month, 1, tzinfo=UTC)
        for year in (1970, 2000, 2024, 2100)
        for month in range(1, 13)
    ]
    moments = [int(day.timestamp() * 1000) + shift for day in days for shift in (-1, 0, 1)]
    moments += [generator.randrange(4_102_444_800_000) for _ in range(2_000)]
    for wall_ms in moments:
        found, right = moment_of(wall_ms), datetime.fromtimestamp(wall_ms // 1000, UTC)
        assert found[:6] == right.timetuple()[:6] and found.weekday == right.isoweekday() % 7
        assert datetime.fromisoformat(iso_of(wall_ms)) == right + timedelta(
            milliseconds=wall_ms % 1000
        )


@pytest.mark.parametrize(
    ("text", "due", "not_due"),
    [
        ("* * * * *", ["2026-01-02T03:04", "2026-12-31T23:59"], []),
        (
            "*/15 3 * * *",
            ["2026-01-02T03:15", "2026-01-02T03:00"],
            ["2026-01-02T03:20", "2026-01-02T04:15"],
        ),
        ("0,30 1-3/2 * * *", ["2026-01-02T01:30", "2026-01-02T03:00"], ["2026-01-02T02:30"]),
        ("0 0 1 jan *", ["2026-01-01T00:00"], ["2026-02-01T00:00", "2026-01-02T00:00"]),
        ("0 0 * * mon-fri", ["2026-01-02T00:00"], ["2026-01-03T00:00", "2026-01-04T00:00"]),
        ("0 0 * * 7", ["2026-01-04T00:00"], ["2026-01-05T00:00"]),
        ("0 0 * * 0", ["2026-01-04T00:00"], ["2026-01-05T00:00"]),
        ("0 0 13 * fri", ["2026-01-13T00:00", "2026-01-16T00:00"], ["2026-01-15T00:00"]),
        ("5/20 * * * *", ["2026-01-02T03:05", "2026-01-02T03:45"], ["2026-01-02T03:00"]),
        ("@daily", ["2026-01-02T00:00"], ["2026-01-02T00:01"]),
    ],
)
def test_a_schedule_is_due_at_its_minutes(text: str, due: list[str], not_due: list[str]) -> None:
    """APR-28: as crontab(5) has it; with both fields of days one of them is enough."""
    cron = Cron(text)
    for at, expected in [*((one, True) for one in due), *((one, False) for one in not_due)]:
        wall_ms = int(datetime.fromisoformat(at + "+00:00").timestamp() * 1000)
        assert cron.is_due(moment_of(wall_ms)) is expected, at


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not 0"),
        ("now and then", "not 3"),
        ("* * * * * *", "not 6"),
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of the month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day of the week"),
        ("* * * * funday", "day of the week"),
        ("5-1 * * * *", "names no minute"),
        ("*/0 * * * *", "names no minute"),
        ("1,,2 * * * *", "minute"),
        ("-1 * * * *", "minute"),
        ("0 0 31 2,4 *", "no day that there is"),
    ],
)
def test_what_is_no_schedule_is_refused_by_field(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        Cron(text)


def manifest(name: str, at_ms: int, onto: Manifest | None = None, **changes: Any) -> Manifest:
    """Of one member; an increment has one segment more."""
    before = () if onto is None else onto.parts[0].files
    files = (*before, PartFile(1, len(before) + 1, len(before) + 1, 100, name))
    since = "" if onto is None else onto.id
    made = Manifest(
        id=name, from_ms=at_ms, at_ms=at_ms + 5, cluster_name="dev", cluster_id="c",
        partition_count=2, base=None if onto is None else onto.id,
        parts=(Part(ME, LOG, files, 100, since),), primaries=(0, -1),
        entries={Namespace("map/m"): 3},
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def place_with(*found: Manifest, more: tuple[SeenBackup, ...] = ()) -> Catalogue:
    rows = tuple(SeenBackup(one.id, (ME,), encode_manifest(one), 100) for one in found)
    return Catalogue("/place", {ME: Seen((*rows, *more)), OTHER: Seen(rows)})


def test_a_manifest_is_whole_or_damaged() -> None:
    """Method: what is written is read; cut or changed at any byte it is damage."""
    made = manifest("one", 1_000)
    data = encode_manifest(made)
    assert decode_manifest(data, "m") == made == check_manifest(made, "m")
    for position in range(len(data)):
        for wrong in (
            data[:position],
            data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :],
        ):
            with pytest.raises(DamageError):
                decode_manifest(wrong, "m")
    later = data.replace(b"whimbrel-backup 1 ", b"whimbrel-backup 2 ")
    with pytest.raises(DamageError, match="format 2"):
        decode_manifest(later, "m")


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "../x"},
        {"base": "a/b"},
        {"primaries": (0,)},
        {"primaries": (0, 1)},
        {"parts": (Part(member_id(1), "zz", (), 0),), "primaries": (0, 0)},
        {"parts": (Part(ME, LOG, (PartFile(7, 1, 1, 1, "x"),), 0),)},
    ],
)
def test_a_manifest_that_is_not_ours_is_damage(changes: dict[str, Any]) -> None:
    with pytest.raises(DamageError):
        check_manifest(manifest("one", 1_000, **changes), "m")


def test_names_and_places() -> None:
    """A place says the whole way, an id says when, and no id is given twice."""
    assert place_of("") == "backups" and place_of("/a//b/./c/") == "/a/b/c"
    for wrong in ("a", "./a", "/", "/a/../b", "/a\0b"):
        with pytest.raises(UsageError):
            place_of(wrong)
    first = fresh_id(1_767_323_045_678, [])
    assert first == "20260102-030405"
    assert fresh_id(1_767_323_045_678, [first, f"{first}-2"]) == f"{first}-3"


def test_what_there_is_in_a_place() -> None:
    """APR-29, APR-30: order, what builds on what, what is missing, who reads what."""
    full = manifest("full", 1_000)
    more = manifest("more", 2_000, full)
    broken = SeenBackup("broken", (ME, OTHER), b"", 7)
    damaged = SeenBackup("damaged", (ME,), b"x", 7)
    place = place_with(more, full, more=(broken, damaged))
    assert [one.id for one in place.listed()] == ["full", "more", "broken", "damaged"]
    youngest = place.youngest()
    assert youngest is not None and youngest.id == "more"
    assert place.needed_by("full") == ["more"] and not place.needed_by("more")
    for name, word in [
        ("none", "no backup none"),
        ("broken", "not complete"),
        ("damaged", "no manifest"),
    ]:
        with pytest.raises(OperationError, match=word):
            place.whole(name)
    with pytest.raises(OperationError, match="builds on full"):
        place_with(more).whole("more")
    unseen = manifest("unseen", 1, parts=(Part(OTHER, LOG, (), 0),))
    with pytest.raises(OperationError, match="part of member"):
        place_with(unseen).whole("unseen")
    readers = place.readers(*place.whole("more"))
    assert list(readers) == [ME] and readers[ME][0].primary_of == (0,)


def test_moments_and_the_backups_around_them() -> None:
    """APR-27: the increment after a moment with all since its base; refused outside, and where
    not everything was kept.
    """
    full = manifest("full", 1_000)
    more = manifest("more", 2_000, full)
    kept = PartFile(1, 9, 9, 9, "last")
    last = manifest("last", 3_000, more)
    last = msgspec.structs.replace(
        last,
        parts=(
            msgspec.structs.replace(last.parts[0], files=last.parts[0].files[1:], history=(kept,)),
        ),
    )
    place = place_with(full, more, last)
    for at_ms, name, count in [
        (1_000, "full", 1),
        (1_500, "more", 2),
        (2_500, "last", 4),
        (3_005, "last", 2),
    ]:
        backup, found = place.around(at_ms)
        assert (backup.id, len(found.parts[0].files)) == (name, count), at_ms
    for at_ms in (999, 3_006):
        with pytest.raises(OperationError, match="reach over that moment"):
            place.around(at_ms)
    with pytest.raises(OperationError, match="reach over that moment"):
        place.around(2_500, "more")
    part = msgspec.structs.replace(more.parts[0], since="")
    torn = msgspec.structs.replace(more, parts=(part,))
    with pytest.raises(OperationError, match="between full and more"):
        place_with(full, torn).around(1_500)


@pytest.mark.parametrize("count", [1, 271, 1_009])
def test_a_structure_lies_where_clients_look_for_it(count: int) -> None:
    """The partition of a name is that of its serialized text, behind an @ if it has one."""
    for name, key in [("tasks", "tasks"), ("tasks@berlin", "berlin"), ("ü@ß@x", "ß@x")]:
        assert partition_of_name(name, count) == partition_of(partition_hash(to_data(key)), count)
