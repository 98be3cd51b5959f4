"""How one partition's row becomes another without losing a copy on the way.

Paper 01 section 3.2: cycles are taken out of the target, then the slots are walked from hot to
cold, and the list is put in its final order. The module sees two rows at a time and nothing
else; which rows to aim at is the affair of ``assignment``.

The walk keeps the number of copies (ADL-46) for rows without holes and for the targets that
``assignment`` makes. For any other target its result is replayed, and where a copy would be lost
a slower, cautious planner takes over that fills holes first and leaves undone what cannot be
done safely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whimbrel.core.check import check
from whimbrel.core.ids import NO_INDEX, REPLICA_SLOTS, MemberId, ReplicaIndex, Row
from whimbrel.core.model import MigrationKind, Step

Slots = list[MemberId | None]
"""A row that is being worked on."""

STEPS_MAX = 4 * REPLICA_SLOTS
"""More steps than any plan can have; reaching it is a bug."""


def plan_row(current: Row, target: Row, smallest_backup_count: int = 1) -> tuple[Step, ...]:
    """Order the steps that turn one row into another (ADL-46 to ADL-70).

    No step touches a slot that is equal in both rows (ADL-56). For every prefix 0..k of the row
    the filled slots never fall below the smaller of current and target (ADL-46). CLEAR steps
    come last (ADL-53). What a cycle keeps from being reached stays as it is (ADL-51), and so do
    the few targets with inner holes that no safe step leads to: then the row after the last step
    is not the target (APR-38).

    STEP_DOWN moves a holder to a colder slot without giving its place to anybody. It is planned
    on two occasions: a target with holes between its replicas, and a returning member whose
    place is the start of a chain of such holders (APR-41).

    Args:
        current: The row as it is, without duplicates.
        target: The row wanted, without duplicates. Its slot 0 is filled if any replica exists.
        smallest_backup_count: The smallest backup count of any structure in the partition. A
            chain steps down only to slots where every structure keeps its data.

    Returns:
        Steps to be done one after the other; empty when there is nothing to do.
    """
    if current == target:
        return ()
    check(target[0] is not None or current[0] is None, "a plan never removes the last primary")
    wanted = remove_cycles(current, target)
    steps = _walk(current, wanted, smallest_backup_count)
    if steps is None or not _keeps_copies(current, wanted, steps):
        steps = _plan_cautiously(current, wanted)
    return _prioritised_if_safe(current, wanted, steps)


# -- cycles -------------------------------------------------------------------------------


def remove_cycles(current: Row, target: Row) -> Row:
    """The target with the slots of every cycle set back to what they hold now (ADL-51).

    A cycle is a set of slots whose holders only change places among themselves. No order of
    steps does that without giving up a copy for a while.
    """
    fixed = list(target)
    for start in range(REPLICA_SLOTS):
        if _starts_cycle(current, fixed, start):
            slot = start
            while slot >= 0:
                member = current[slot]
                following = _find(fixed, member)
                fixed[slot] = member
                slot = following
    return tuple(fixed)


def has_cycle(current: Row, target: Row) -> bool:
    """Whether the change holds a cycle, so that ``plan_row`` does not reach the target."""
    return remove_cycles(current, target) != target


def _starts_cycle(current: Row, target: Sequence[MemberId | None], start: int) -> bool:
    """Whether following holders to where they are wanted leads from a slot back to it."""
    if current[start] is None or target[start] is None or current[start] == target[start]:
        return False
    slot = start
    while True:
        following = _find(target, current[slot])
        if following in (NO_INDEX, slot):
            return False
        if following == start:
            return True
        slot = following


def _find(row: Sequence[MemberId | None], member: MemberId | None) -> int:
    """The slot of a member, NO_INDEX for none and for None itself."""
    if member is None or member not in row:
        return NO_INDEX
    return row.index(member)


# -- steps --------------------------------------------------------------------------------


def _copy(destination: MemberId, slot: int) -> Step:
    return Step(MigrationKind.COPY, None, destination, destination_new=ReplicaIndex(slot))


def _clear(source: MemberId, slot: int) -> Step:
    return Step(MigrationKind.CLEAR, source, None, source_current=ReplicaIndex(slot))


def _move(row: Sequence[MemberId | None], newcomer: MemberId, slot: int) -> Step:
    return _place(MigrationKind.MOVE, row, newcomer, slot)


def _shift_down(row: Sequence[MemberId | None], newcomer: MemberId, slot: int, colder: int) -> Step:
    return _place(MigrationKind.SHIFT_DOWN, row, newcomer, slot, colder)


def _shift_up(row: Sequence[MemberId | None], colder: int, slot: int) -> Step:
    """SHIFT UP into an empty slot, or onto its holder, who then is the source."""
    return _place(MigrationKind.SHIFT_UP, row, row[colder], slot)


def _step_down(row: Sequence[MemberId | None], hotter: int, slot: int) -> Step:
    """The holder of a hotter slot goes down, into an empty slot or onto its holder."""
    return _place(MigrationKind.STEP_DOWN, row, row[hotter], slot)


def _shift_up_down(row: Sequence[MemberId | None], colder: int, slot: int, empty: int) -> Step:
    return _place(MigrationKind.SHIFT_UP_SHIFT_DOWN, row, row[colder], slot, empty)


def _place(
    kind: MigrationKind,
    row: Sequence[MemberId | None],
    member: MemberId | None,
    slot: int,
    colder: int = NO_INDEX,
) -> Step:
    """A member comes to a slot, from its own if it has one; who stood there goes to a colder one
    if one is given.
    """
    return Step(
        kind,
        row[slot],
        member,
        source_current=NO_INDEX if row[slot] is None else ReplicaIndex(slot),
        source_new=ReplicaIndex(colder),
        destination_current=ReplicaIndex(_find(row, member)),
        destination_new=ReplicaIndex(slot),
    )


# -- the walk of the paper ----------------------------------------------------------------


def _walk(current: Row, target: Row, smallest_backup_count: int) -> list[Step] | None:
    """The plan of paper 01 section 3.2.2, CLEARs last.

    Returns:
        None when a holder would have to go to a colder slot that nobody makes free for it, which
        the paper's rules do not cover.
    """
    row: Slots = list(current)
    steps: list[Step] = []
    clears: list[Step] = []
    slot = 0
    while slot < REPLICA_SLOTS:
        holder, wanted = row[slot], target[slot]
        if holder == wanted:
            slot += 1
            continue
        if wanted is None:
            if holder is None or holder in target:
                return None
            clears.append(_clear(holder, slot))
            slot += 1
            continue
        step: Step | None
        if wanted in row:
            if holder is None and row.index(wanted) < slot:
                return None
            step = _make_room(row, target, slot)
        else:
            steps.extend(_step_chain_down(row, target, slot, smallest_backup_count))
            step = _bring_newcomer(row, target, slot, wanted)
        if step is None or len(steps) >= STEPS_MAX:
            return None
        row[:] = step.apply(tuple(row))
        steps.append(step)
    return steps + clears


def _bring_newcomer(row: Slots, target: Row, slot: int, newcomer: MemberId) -> Step:
    """The step that gives a slot to a member that holds none (ADL-55, ADL-57, ADL-58)."""
    holder = row[slot]
    if holder is None:
        return _copy(newcomer, slot)
    colder = _find(target, holder)
    if colder != NO_INDEX and row[colder] is None:
        return _shift_down(row, newcomer, slot, colder)
    return _move(row, newcomer, slot)


def _make_room(row: Slots, target: Row, slot: int) -> Step | None:
    """The next step towards a slot whose wanted member stands elsewhere (ADL-54, ADL-59).

    Follows the wanted members from slot to slot until one can move up, or until a newcomer
    takes over the place of one. Returns None when that leads in a circle.
    """
    for _ in range(REPLICA_SLOTS):
        place = _find(row, target[slot])
        if row[slot] is None:
            return _shift_up(row, place, slot)
        newcomer = target[place]
        if newcomer is None:
            return _shift_up_onto(row, target, place, slot)
        if newcomer not in row:
            return _move(row, newcomer, place)
        slot = place
    return None


def _shift_up_onto(row: Slots, target: Row, place: int, slot: int) -> Step:
    """SHIFT UP onto a filled slot; its holder steps down in the same step if it can."""
    colder = _find(target, row[slot])
    if colder != NO_INDEX and row[colder] is None:
        return _shift_up_down(row, place, slot, colder)
    return _shift_up(row, place, slot)


def _step_chain_down(
    row: Slots, target: Row, slot: int, smallest_backup_count: int
) -> Iterator[Step]:
    """Let the holders below a newcomer's slot step down first, so that none loses data (APR-41).

    Applies each step to ``row``. Does nothing unless the chain of holders, each wanted in the
    next one's slot, ends at an empty slot that every structure uses.
    """
    chain = [slot]
    while True:
        following = _find(target, row[chain[-1]])
        if not chain[-1] < following <= smallest_backup_count:
            return
        chain.append(following)
        if row[following] is None:
            break
    for hotter, colder in zip(chain[-2:0:-1], chain[:1:-1], strict=True):
        step = _step_down(row, hotter, colder)
        row[:] = step.apply(tuple(row))
        yield step


# -- safety -------------------------------------------------------------------------------


def _floor(current: Row, target: Row) -> tuple[int, ...]:
    """For each prefix 0..k of the row, how many slots must stay filled (ADL-46)."""
    return tuple(min(pair) for pair in zip(_filled(current), _filled(target), strict=True))


def _filled(row: Row) -> list[int]:
    """For each prefix 0..k of the row, how many slots are filled."""
    counts = []
    count = 0
    for member in row:
        count += member is not None
        counts.append(count)
    return counts


def _stays_above(row: Row, floor: Sequence[int]) -> bool:
    """Whether no prefix of the row has fewer replicas than it must."""
    return all(count >= least for count, least in zip(_filled(row), floor, strict=True))


def _keeps_copies(current: Row, target: Row, steps: Sequence[Step]) -> bool:
    """Replay a plan; only a shift up onto a filled slot can lower the number of copies."""
    if not any(step.source_current >= 0 and step.destination_current >= 0 for step in steps):
        return True
    floor = _floor(current, target)
    row = current
    for step in steps:
        row = step.apply(row)
        if step.kind is not MigrationKind.STEP_DOWN and not _stays_above(row, floor):
            return False
    return row == target


def _prioritised_if_safe(current: Row, target: Row, steps: list[Step]) -> tuple[Step, ...]:
    """Prioritise, unless the other order would not be the same change of the row."""
    ordered = prioritise(steps)
    if ordered == tuple(steps):
        return ordered
    floor = _floor(current, target)
    row = current
    for step in ordered:
        if not _fits(step, row):
            return tuple(steps)
        row = step.apply(row)
        if not _stays_above(row, floor):
            return tuple(steps)
    return ordered


def _fits(step: Step, row: Row) -> bool:
    """Whether a step finds the row as it expects it: holders in place, new slots free."""
    if step.source_current >= 0 and row[step.source_current] != step.source:
        return False
    if step.destination_current >= 0 and row[step.destination_current] != step.destination:
        return False
    if step.destination_current < 0 and step.destination in row and step.destination is not None:
        return False
    if step.source_new >= 0 and row[step.source_new] is not None:
        return False
    taken = step.source_current < 0 and step.destination_new >= 0
    return not taken or row[step.destination_new] is None


# -- the cautious planner -----------------------------------------------------------------


def _plan_cautiously(current: Row, target: Row) -> list[Step]:
    """A plan for any target: always the least harmful step that keeps all copies.

    Every step but the moves up of ``_compactions`` puts a member where it is wanted, and from
    there nothing moves it again; those moves only make indexes smaller. So it ends.
    """
    floor = _floor(current, target)
    row = current
    steps: list[Step] = []
    while True:
        offers = sorted(_offers(row, target), key=lambda offer: offer[0])
        safe = (step for _, step in offers if _stays_above(step.apply(row), floor))
        step = next(safe, None)
        if step is None:
            break
        steps.append(step)
        row = step.apply(row)
        check(len(steps) <= STEPS_MAX, "a plan has an end")
    for slot, holder in enumerate(row):
        if holder is not None and target[slot] is None and holder not in target:
            steps.append(_clear(holder, slot))
    return steps


def _offers(row: Row, target: Row) -> Iterator[tuple[int, Step]]:
    """Possible next steps with their rank: adding copies is 0, giving one up is last."""
    for slot, wanted in enumerate(target):
        if wanted is None or row[slot] == wanted:
            continue
        place = _find(row, wanted)
        if place == NO_INDEX:
            yield from _newcomer_offers(row, target, slot, wanted)
        elif place > slot:
            yield from _upward_offers(row, target, slot, place)
        elif target[place] is None and _find(target, row[slot]) == NO_INDEX:
            yield (6, _step_down(row, place, slot))
        if row[slot] is None:
            yield from _compactions(row, target, slot)


def _newcomer_offers(
    row: Row, target: Row, slot: int, newcomer: MemberId
) -> Iterator[tuple[int, Step]]:
    """Ways to give a slot to a member that holds none."""
    holder = row[slot]
    colder = _find(target, holder)
    if holder is None:
        yield (0, _copy(newcomer, slot))
    elif colder == NO_INDEX:
        yield (3, _move(row, newcomer, slot))
    elif row[colder] is not None:
        yield (8, _move(row, newcomer, slot))
    elif colder > slot:
        yield (2, _shift_down(row, newcomer, slot, colder))


def _upward_offers(row: Row, target: Row, slot: int, place: int) -> Iterator[tuple[int, Step]]:
    """Ways to bring a member up to the slot it is wanted in."""
    holder = row[slot]
    colder = _find(target, holder)
    if holder is None:
        yield (1, _shift_up(row, place, slot))
    elif colder == NO_INDEX:
        yield (5, _shift_up(row, place, slot))
    elif row[colder] is not None:
        yield (9, _shift_up(row, place, slot))
    elif colder > slot:
        yield (4, _shift_up_down(row, place, slot, colder))


def _compactions(row: Row, target: Row, slot: int) -> Iterator[tuple[int, Step]]:
    """Close a hole with the coldest holder that is not where it should be."""
    for place in range(REPLICA_SLOTS - 1, slot, -1):
        if row[place] is not None and row[place] != target[place] and row[place] in target:
            yield (7, _shift_up(row, place, slot))
            return


# -- order --------------------------------------------------------------------------------


def prioritise(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Put COPYs and pure SHIFT UPs before the steps they do not conflict with (ADL-67 to ADL-70).

    Each goes towards the front until it meets another of its sort, a step that shares its
    destination, or one whose source steps down to a hotter slot than its own.
    """
    ordered = list(steps)
    for position, step in enumerate(steps):
        if not step.is_refill:
            continue
        place = position
        while place > 0 and _may_overtake(step, ordered[place - 1]):
            place -= 1
        if place < position:
            ordered.insert(place, ordered.pop(position))
    return tuple(ordered)


def _may_overtake(step: Step, other: Step) -> bool:
    """Whether a healing step may run before another step that is planned earlier."""
    if other.is_refill or step.destination in (other.source, other.destination):
        return False
    return other.source_new < 0 or other.source_new >= step.destination_new
