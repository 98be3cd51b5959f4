"""Where rows go in STABLE_CLUSTER: back to the stable table, as far as its members are there.

Pure, like ``assignment``, whose place it takes there. Seats are given by the stable row and not by
load, so that a table that was left is found again slot by slot (APR-36); only what its members
leave open is spread. Nothing is levelled: what is uneven meanwhile is so until they are back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from whimbrel.core.ids import EMPTY_ROW, REPLICA_SLOTS, MemberId, Row
from whimbrel.core.jobs import Job
from whimbrel.core.partition.planner import remove_cycles

ROWS_AIMED = 512
"""Rows that are looked at in one piece, about 2 us each."""


def restoring(
    rows: Sequence[Row],
    stable: Sequence[Row],
    groups: Sequence[Sequence[MemberId]],
    depth: int,
    missing_max: int = 0,
) -> Job[list[Row]]:
    """The target rows, in pieces.

    A row whose stable members are all there is the stable row, and deeper where ``depth`` asks for
    it. In any other they stand in their stable order, those that are away left out; behind them
    stay the holders that took their places; and what is open then goes to whoever holds least. So
    interim holders are moved no more often than the stable ones make it necessary.

    Args:
        rows: The rows as table repair left them.
        stable: The stable table.
        groups: The members that may hold replicas, by place; no row gets two of one group.
        depth: Replicas per row, before it is capped by the number of groups.
        missing_max: k-safety: a row that lacks so many stable replicas or fewer is not filled, as
            long as it has one (APR-66); 0 fills all.

    Returns:
        One full-length row per given row. Without any member to aim at, the rows unchanged.
    """
    place_of = {member: place for place, group in enumerate(groups) for member in group}
    if not place_of:
        return list(rows)
    wanted = min(depth, len(groups), REPLICA_SLOTS)
    kept: list[list[MemberId]] = []
    loads = dict.fromkeys(place_of, 0)
    for number, (row, aim) in enumerate(zip(rows, stable, strict=True), 1):
        seats = _kept_seats(row, aim, place_of, wanted)
        kept.append(seats)
        for member in seats:
            loads[member] += 1
        if not number % ROWS_AIMED:
            yield
    targets: list[Row] = []
    for number, (row, aim, seats) in enumerate(zip(rows, stable, kept, strict=True), 1):
        away = sum(member is not None and member not in place_of for member in aim)
        filled_to = min(1, wanted) if 0 < away <= missing_max else wanted
        while len(seats) < filled_to:
            fitting = _fitting(seats, place_of)
            if not fitting:
                break
            chosen = min(fitting, key=loads.__getitem__)  # of equals the first of the groups
            loads[chosen] += 1
            seats.append(chosen)
        target = (*seats, *EMPTY_ROW[len(seats) :])
        # A change of places among themselves is not worth a copy before all are back (ADL-51).
        targets.append(remove_cycles(row, target) if away else target)
        if not number % ROWS_AIMED:
            yield
    return targets


def slots_differing(rows: Sequence[Row], stable: Sequence[Row], depth: int) -> int:
    """Slots that are not as in the stable table (APR-73).

    A replica where the stable row has none counts if nothing asks for one so deep.
    """
    return sum(
        held is not aimed and held != aimed and (aimed is not None or index >= depth)
        for row, aim in zip(rows, stable, strict=True)
        if row != aim
        for index, (held, aimed) in enumerate(zip(row, aim, strict=True))
    )


def _kept_seats(
    row: Row, aim: Row, place_of: Mapping[MemberId, int], wanted: int
) -> list[MemberId]:
    """The stable members that are there, in their order, and behind them who holds meanwhile."""
    seats = [member for member in aim if member is not None and member in place_of]
    places = {place_of[member]: None for member in seats}
    for member in row:
        if len(seats) >= wanted:
            break
        place = None if member is None else place_of.get(member)
        if member is not None and place is not None and place not in places:
            places[place] = None
            seats.append(member)
    return seats


def _fitting(seats: Collection[MemberId], place_of: Mapping[MemberId, int]) -> list[MemberId]:
    """Who may hold a further replica of a row."""
    places = {place_of[member]: None for member in seats}
    return [member for member, place in place_of.items() if place not in places]
