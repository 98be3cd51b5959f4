"""Goal: a copy to a member that has an older one carries what differs, and ends equal all the same.

A sync compares with the fragment in doubt, a migration with one that is kept (APR-43, APR-45,
APR-49 to APR-53).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import cast

import msgspec
import pytest
from tests.unit.replication_net import (
    COPIED_WHOLE,
    SECOND,
    SETTINGS,
    M,
    Net,
    key,
    map_of,
    value,
)

from whimbrel.core.ids import MemberId, Namespace
from whimbrel.core.messages import (
    FragmentPart,
    Progress,
    SyncRequested,
    TransferAnswered,
    TransferSent,
)
from whimbrel.core.replication import walk
from whimbrel.core.replication.comparison import (
    BITS_MAX,
    CHILDREN,
    COUNT_BYTES,
    MASK_BYTES,
    SUM_BYTES,
    bits_for,
    child_sums,
    children_of,
    decode_sums,
    differing_bits,
    encode_sums,
    nothing_differs,
)
from whimbrel.core.settings import ComparisonBounds, CoreSettings
from whimbrel.errors import SerializationError
from whimbrel.structures.map.comparing import MapComparison
from whimbrel.structures.map.locks import LOCK
from whimbrel.structures.map.record import make_timing, stored_key
from whimbrel.structures.map.store import MapStore

LEAF_ENTRIES = ComparisonBounds().leaf_entries
ROOT_BYTES = COUNT_BYTES + MASK_BYTES + CHILDREN * SUM_BYTES
"""Of the sums of a node all of whose children have entries."""
SMALL_STEPS = msgspec.structs.replace(SETTINGS, comparison=ComparisonBounds(work_max=50))


def two(entries: int = 400, settings: CoreSettings = SETTINGS, names: str = "abc") -> Net:
    """Members a and b with the map m in partition 0; c has nothing."""
    net = Net(names, settings)
    net.set_row(0, "ab", 4)
    for number in range(entries):
        net.put("m", number, f"first {number}")
    net.pump()
    net.advance(2 * SECOND)
    net.log.clear()
    return net


def store_of(net: Net, name: str, of: str = "m") -> MapStore:
    return cast("MapStore", net[name].fragment(0, of).store)


def change(net: Net, operation: bytes, of: str = "m") -> None:
    """Count and send an operation that was carried out on the primary's store."""
    host = net["a"]
    partition = host.plane.partitions[0]
    host.plane.holdings.change(partition, host.fragment(0, of), operation, None)


def lose(net: Net, make: Callable[[MapStore], object], of: str = "m") -> None:
    """The primary changes its store, and its backup does not hear of it."""
    fragment = net["a"].fragment(0, of)
    targets, fragment.sync_targets = fragment.sync_targets, ()
    operation = make(store_of(net, "a", of))
    if isinstance(operation, tuple):
        operation = operation[1]
    change(net, cast("bytes", operation), of)
    fragment.sync_targets = targets


def heal(net: Net, of: str = "m") -> list[TransferSent]:
    """The backup asks for its fragment, and is equal then; what was sent to it."""
    net["b"].plane.doubts.mark_dirty(net["b"].fragment(0, of))
    net["b"].plane.syncs.ask(net["b"].plane.partitions[0])
    net.advance(3 * SECOND)
    net.check_equal(0, "ab", of)
    one, other = store_of(net, "a", of), store_of(net, "b", of)
    assert one.records == other.records
    assert one.timings.keys() == other.timings.keys()
    assert one.hashes == other.hashes
    assert one.bytes_used == other.bytes_used
    return sent(net)


def sent(net: Net) -> list[TransferSent]:
    return [m for _, _, m in net.log if isinstance(m, TransferSent)]


def parts_of(messages: list[TransferSent]) -> list[FragmentPart]:
    return [part for message in messages for part in message.parts]


def entries_of(messages: list[TransferSent]) -> int:
    return sum(part.entries for part in parts_of(messages))


def exchanges(messages: list[TransferSent]) -> int:
    """Messages with sums: what comparing has cost before data are sent."""
    return sum(any(part.sums for part in message.parts) for message in messages)


def stored(number: int) -> bytes:
    return stored_key(key(number))


# -- trees ----------------------------------------------------------------------------------


def test_a_tree_has_about_one_to_a_few_entries_a_leaf() -> None:
    """The bits are a multiple of five, and bounded."""
    counts = (0, 1, 128, 129, 4_096, 4_097, 131_072)
    assert [bits_for(count, 4) for count in counts] == [5, 5, 5, 10, 10, 15, 15]
    assert [bits_for(count, 1) for count in (32, 33, 1_024, 1_025)] == [5, 10, 10, 15]
    assert bits_for(10**9, LEAF_ENTRIES) == BITS_MAX


def test_inner_nodes_are_the_sums_of_their_leaves() -> None:
    """Modulo 2^64; the bits of an answer name children in order (APR-50, APR-51)."""
    leaves = array("Q", [(1 << 64) - 1 - number for number in range(1 << 10)])
    tops = child_sums(leaves, 10, 0, [0])
    assert list(tops) == [sum(leaves[i * 32 : i * 32 + 32]) % (1 << 64) for i in range(32)]
    assert child_sums(leaves, 10, 5, [3, 9]) == leaves[96:128] + leaves[288:320]
    other = leaves[:]
    other[100] ^= 1
    bits = differing_bits(child_sums(leaves, 10, 0, [0]), child_sums(other, 10, 0, [0]))
    assert children_of([0], bits) == [3]
    lower = differing_bits(child_sums(leaves, 10, 5, [3]), child_sums(other, 10, 5, [3]))
    assert children_of([3], lower) == [100]
    with pytest.raises(SerializationError, match="other nodes"):
        children_of([3, 4], lower)


def test_sums_do_not_depend_on_order_and_tell_keys_from_values() -> None:
    """Two stores filled in another order are equal; two keys that swap records are not."""
    one, other, swapped = MapStore(), MapStore(), MapStore()
    for number in range(64):
        one.put(stored(number), value(str(number)), 1)
        other.put(stored(63 - number), value(str(63 - number)), 1)
        swapped.put(stored(number), value(str(number ^ 1)), 1)
    sums = []
    for store in (one, other, swapped):
        summing = MapComparison(store).sum_up(5)
        assert summing.step(1_000) > 0
        assert summing.is_over
        sums.append(summing.sums)
    assert sums[0] == sums[1]
    assert (sum(sums[0]) - sum(sums[2])) % (1 << 64)


def test_a_walk_that_begins_anew_counts_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys come while a large store is summed up: at the end it is as if it had begun then."""
    monkeypatch.setattr(walk, "KEYS_TAKEN", 8)
    store = MapStore()
    for number in range(40):
        store.put(stored(number), value(str(number)), 1)
    summing = MapComparison(store).sum_up(5)
    summing.step(10)
    store.put(stored(99), value("new"), 1)
    while not summing.is_over:
        summing.step(10)
    fresh = MapComparison(store).sum_up(5)
    while not fresh.is_over:
        fresh.step(1_000)
    assert summing.sums == fresh.sums


def test_sums_travel_as_they_are() -> None:
    """Those of empty children cost a bit; what is cut, or of other nodes, is refused."""
    sums = array("Q", [0] * 64)
    sums[3], sums[40] = 7, (1 << 64) - 1
    data = encode_sums(sums)
    assert len(data) == COUNT_BYTES + 2 * MASK_BYTES + 2 * SUM_BYTES
    assert decode_sums(data, 2) == sums
    assert nothing_differs(data) == bytes(2 * MASK_BYTES)
    for wrong, nodes in ((data, 1), (data[:-1], 2), (data + b"x", 2), (b"", 1)):
        with pytest.raises(SerializationError, match="other nodes"):
            decode_sums(wrong, nodes)
    with pytest.raises(SerializationError, match="cut"):
        nothing_differs(b"\xff" * 8)


# -- syncs ----------------------------------------------------------------------------------


def test_equal_fragments_cost_one_exchange() -> None:
    """APR-50: a doubt without a cause: 32 sums, no entry."""
    net = two()
    messages = heal(net)
    assert exchanges(messages) == 1
    assert entries_of(messages) == 0
    assert sum(len(part.sums) for part in parts_of(messages)) == ROOT_BYTES
    figures = net["a"].plane.holdings.copies
    assert figures["copies_by_difference"] == 1 and figures["copies_whole"] == 0
    assert figures["copy_sum_bytes_sent"] == ROOT_BYTES


@pytest.mark.parametrize(("entries", "bits"), [(1_000, 10), (5_000, 15)])
def test_one_lost_write_costs_one_leaf(entries: int, bits: int) -> None:
    """APR-50, APR-51: one exchange for each five levels, then the entries of one leaf."""
    net = two(entries)
    assert bits_for(entries, LEAF_ENTRIES) == bits
    lose(net, lambda store: store.put(stored(7), value("lost"), 5))
    messages = heal(net)
    assert exchanges(messages) == bits // 5
    assert 1 <= entries_of(messages) <= 6 * LEAF_ENTRIES
    sums = sum(len(part.sums) for part in parts_of(messages))
    assert ROOT_BYTES < sums <= bits // 5 * ROOT_BYTES


def test_when_everything_differs_everything_is_sent() -> None:
    """No more exchanges than levels, no entry twice."""
    net = two(200)
    for number in range(200):
        lose(net, lambda store, n=number: store.put(stored(n), value("lost"), 5))  # type: ignore[misc]
    messages = heal(net)
    assert exchanges(messages) == 2
    assert entries_of(messages) == 200


def test_removals_need_no_tombstones() -> None:
    """AE-24, bug 37: what the primary does not have any more goes with its leaf."""
    net = two()
    lose(net, lambda store: store.remove(stored(3)))
    store_of(net, "b").put(stored(1_000), value("nobody's"), 1)
    messages = heal(net)
    assert entries_of(messages) <= 12 * LEAF_ENTRIES
    assert key(3) not in net["b"].content(0, "m") and key(1_000) not in net["b"].content(0, "m")


def test_swapped_records_differ() -> None:
    """Two keys in one leaf, or two, that have each other's record (facts: equal sums hide it)."""
    net = two()
    records = store_of(net, "b").records
    for number in range(0, 400, 2):
        one, other = stored(number), stored(number + 1)
        records[one], records[other] = records[other], records[one]
    assert entries_of(heal(net)) == 400


@pytest.mark.parametrize("what", ["timings", "hashes"])
def test_what_is_kept_beside_a_record_differs(what: str) -> None:
    """The records are equal, and so is what they have beside them, but for one of them."""
    net = two()
    now_ms = net["a"].ctx.wall_ms
    for name, life_ms in (("a", 9_000_000), ("b", 8_000_000)):
        store = store_of(net, name)
        timing = make_timing(life_ms if what == "timings" else 9_000_000, 0, now_ms)
        key_hash = b"\1\2\3" + bytes([0 if what == "timings" else life_ms // 1_000_000])
        store.take(stored(7), store.records[stored(7)], timing, key_hash)
        store.take(stored(8), store.records[stored(8)], make_timing(7_000_000, 0, now_ms), b"")
    messages = heal(net)
    assert 1 <= entries_of(messages) <= 6 * LEAF_ENTRIES
    beside = [getattr(store_of(net, name), what)[stored(7)] for name in "ab"]
    assert beside[0] == beside[1]


def test_what_is_taken_from_the_base_keeps_what_is_beside_it() -> None:
    """Timings, hashes and locks of entries that are not sent."""
    net = two()
    for number in range(50):
        ttl = make_timing(9_000_000, 9_000_000, net["a"].ctx.wall_ms)
        operation = store_of(net, "a").put(stored(number), value("timed"), 5, ttl, b"\1\2\3\4")[1]
        change(net, operation)
    lock = LOCK.pack(bytes(16), 1, 1, 1 << 60, 1)
    change(net, store_of(net, "a").set_lock(stored(3), lock))
    net.pump()
    assert entries_of(heal(net)) == 0
    locks = store_of(net, "b").locks
    assert locks is not None and locks.held == {stored(3): lock}
    assert len(store_of(net, "b").timings) == 50


def test_reads_at_the_primary_are_no_difference() -> None:
    """The moment of the last access is the primary's; a backup never hears of it."""
    net = two()
    for number in range(100):
        idle = make_timing(0, 9_000_000, net["a"].ctx.wall_ms)
        change(net, store_of(net, "a").put(stored(number), value("idle"), 5, idle)[1])
    net.pump()
    for number in range(100):
        store_of(net, "a").get(stored(number), net["a"].ctx.wall_ms + 500)
    assert entries_of(heal(net)) == 0


def test_bytes_are_proportional_to_what_was_lost() -> None:
    """APR-53, AE-40: k lost writes of a large map cost about k leaves and their sums."""
    net = two(1)
    entries, record = 20_000, bytes(8) + b"x" * 100
    for number in range(entries):
        operation = store_of(net, "a").put(stored(number), record, 5)[1]
        store_of(net, "b").apply(operation, 0, len(operation))
    moved = []
    for lost in (0, 5, 50):
        for number in range(lost):
            spread = number * 397 % entries
            lose(net, lambda store, n=spread: store.put(stored(n), record, 6))  # type: ignore[misc]
        net.log.clear()
        messages = heal(net)
        parts = parts_of(messages)
        moved.append(sum(len(part.data) + len(part.sums) for part in parts))
        assert lost <= entries_of(messages) <= lost * 3 * LEAF_ENTRIES
    whole = store_of(net, "a").bytes_used
    each = 3 * LEAF_ENTRIES * 140 + 2 * CHILDREN * SUM_BYTES
    assert moved[0] <= 2 * CHILDREN * SUM_BYTES
    assert moved[1] <= CHILDREN * SUM_BYTES + 5 * each < whole / 40
    assert moved[2] <= CHILDREN * SUM_BYTES + 50 * each < whole / 10


def test_small_fragments_are_copied_whole() -> None:
    """A few entries are cheaper than sums; large ones are not."""
    assert entries_of(heal(two(20))) == 20
    net = two(20)
    for number in range(20):
        big = value("x" * 2_000)
        change(net, store_of(net, "a").put(stored(number), big, 5)[1])
    net.pump()
    net.log.clear()
    assert entries_of(heal(net)) == 0


def test_a_base_with_little_in_it_is_no_help() -> None:
    """Nearly everything would differ."""
    net = two()
    for number in range(20, 400):
        store_of(net, "b").remove(stored(number))
    messages = heal(net)
    assert exchanges(messages) == 0
    assert entries_of(messages) == 400


def test_a_map_that_is_not_to_be_compared_is_copied_whole() -> None:
    """APR-52: a setting of the map, on either side."""
    net = two(settings=COPIED_WHOLE)
    messages = heal(net)
    assert exchanges(messages) == 0 and entries_of(messages) == 400
    (request,) = [m for _, _, m in net.log if isinstance(m, SyncRequested) and m.namespaces]
    assert request.bases == ()
    assert net["a"].plane.holdings.copies["copies_whole"] == 1


def test_one_namespace_has_a_base_and_another_has_none() -> None:
    """AE-20, AE-22: in one request; the one is compared, the other copied."""
    net = two()
    for number in range(60):
        net.put("n", number, "other")
    net.pump()
    for number in range(60):
        store_of(net, "b", "n").remove(stored(number))
    lose(net, lambda store: store.put(stored(7), value("lost"), 5))
    net["b"].plane.doubts.mark_dirty(net["b"].fragment(0, "n"))
    messages = heal(net)
    net.check_equal(0, "ab", "n")
    parts = parts_of(messages)
    assert sum(part.entries for part in parts if part.namespace == map_of("n")) == 60
    assert 1 <= sum(part.entries for part in parts if part.namespace == M) < 60
    assert not any(part.sums for part in parts if part.namespace == map_of("n"))


def test_pieces_are_bounded_and_paced_by_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """GCM-42, GCM-43: trees and fillings go on with each message, the last waits for them."""
    steps: list[int] = []
    step = MapComparison.sum_up

    def watched(self: MapComparison, bits: int) -> object:
        summing = step(self, bits)
        real = summing.step

        def counted(work_max: int) -> int:
            steps.append(work_max)
            return real(work_max)

        summing.step = counted  # type: ignore[method-assign]
        return summing

    monkeypatch.setattr(MapComparison, "sum_up", watched)
    net = two(settings=SMALL_STEPS)
    lose(net, lambda store: store.put(stored(7), value("lost"), 5))
    messages = heal(net)
    assert exchanges(messages) == 2
    assert max(steps) <= 50
    assert len(messages) >= 400 // 50 * 2, "summing up, and then filling, a piece a message"
    answers = [m for _, _, m in net.log if isinstance(m, TransferAnswered)]
    assert not all(answer.progress.is_ready for answer in answers)
    assert answers[-2].progress.is_ready


def test_a_lost_answer_is_said_again() -> None:
    """Answers are repeated word for word: the sender goes on where it was."""
    net = two()
    lose(net, lambda store: store.put(stored(7), value("lost"), 5))
    dropped = net.drop_first(TransferAnswered)
    net["b"].plane.doubts.mark_dirty(net["b"].fragment(0, "m"))
    net["b"].plane.syncs.ask(net["b"].plane.partitions[0])
    net.pump()
    (sending,) = net["a"].plane.syncs.exchange.given.values()
    net["a"].step(sending.repeat)
    net.pump()
    net.check_equal(0, "ab", "m")
    answers = [m for _, _, m in net.log if isinstance(m, TransferAnswered)]
    assert answers[0] == answers[1] == dropped[0] and answers[0].progress.differing


@pytest.mark.parametrize(("whole", "number"), [(False, 1), (False, 2), (True, 1), (True, 5)])
def test_a_clear_that_passes_keeps_what_is_locked(whole: bool, number: int) -> None:
    """What a clear leaves is said with it: the fragment to come has no locks yet."""
    settings = COPIED_WHOLE if whole else SETTINGS
    net = two(100, msgspec.structs.replace(settings, migration_chunk_bytes_max=400))
    lock = LOCK.pack(bytes(16), 1, 1, 1 << 60, 1)
    change(net, store_of(net, "a").set_lock(stored(3), lock))
    net.pump()
    cleared: list[object] = []

    def meanwhile(_sender: MemberId, _target: MemberId, what: object) -> bool:
        if isinstance(what, TransferSent) and what.sequence == number:
            cleared.append(what)
            change(net, store_of(net, "a").clear())
        return False

    net.drop = meanwhile
    heal(net)
    assert cleared and net["b"].content(0, "m") == {key(3): value("first 3")}


def test_a_clear_is_a_piece_of_state() -> None:
    """The entries that stay are in the operation, whatever locks the receiver knows of."""
    one, other = MapStore(), MapStore()
    for store in (one, other):
        for number in range(4):
            store.put(stored(number), value(str(number)), 1, b"", b"\1\2\3\4")
    one.set_lock(stored(2), LOCK.pack(bytes(16), 1, 1, 1 << 60, 1))
    other.set_lock(stored(1), LOCK.pack(bytes(16), 1, 1, 1 << 60, 1))
    operation = one.clear()
    other.apply(operation, 0, len(operation))
    assert other.records == one.records and list(one.records) == [stored(2)]
    assert other.hashes == one.hashes == {stored(2): b"\1\2\3\4"}
    before = dict(other.records)
    with pytest.raises(Exception, match="is not cleared"):
        other.apply(operation[:-1], 0, len(operation) - 1)
    assert other.records == before


def test_what_comes_too_late_is_doubted() -> None:
    """An operation of before the comparison that comes after something was taken from the base."""
    net = two()
    backup = net["b"]
    lose(net, lambda store: store.put(stored(7), value("lost"), 5))
    late: list[bool] = []

    def hold_up(_sender: MemberId, _target: MemberId, what: object) -> bool:
        if isinstance(what, TransferSent) and what.sequence == 2 and not late:
            (asked,) = backup.plane.syncs.exchange.asked.values()
            asked.shadows.filled[M] = None
            held = backup.fragment(0, "m")
            backup.plane.syncs.passed_by(held, held.value, b"")
            late.append(asked.shadows.arriving[M].is_dirty)
        return False

    net.drop = hold_up
    heal(net)
    assert late == [True]


# -- what goes wrong ------------------------------------------------------------------------


def damaged(
    net: Net, spoil: Callable[[FragmentPart], FragmentPart]
) -> Callable[[MemberId, MemberId, object], bool]:
    """Parts arrive as ``spoil`` leaves them."""

    def instead(sender: MemberId, target: MemberId, what: object) -> bool:
        if not isinstance(what, TransferSent) or what.sequence > 9:
            return False
        parts = tuple(spoil(part) for part in what.parts)
        if parts == what.parts:
            return False
        changed = msgspec.structs.replace(what, parts=parts)
        net[str(target)].begin()
        net[str(target)].plane.on_message(sender, changed)
        return True

    return instead


@pytest.mark.parametrize(
    ("change_of", "problem"),
    [
        ({"sums": b"12345678"}, "sums of other nodes"),
        ({"bits": 7}, "a tree of 7 bits"),
        ({"bits": 20}, "a tree of 20 bits"),
        ({"first": False, "bits": 0}, "before its first piece"),
        ({"bits": 5, "is_same": True}, "begins nowhere"),
        ({"bits": 0}, "no comparison of map/m"),
        ({"namespace": Namespace("map/n")}, "no base for a copy of map/n"),
    ],
)
def test_damaged_comparisons_end_the_copy(change_of: dict[str, object], problem: str) -> None:
    """A clear error; permits come back, and the next try heals (AE-16)."""
    net = two()
    lose(net, lambda store: store.put(stored(7), value("lost"), 5))

    def spoil(part: FragmentPart) -> FragmentPart:
        return msgspec.structs.replace(part, **change_of) if part.sums and part.first else part

    net.drop = damaged(net, spoil)
    backup = net["b"]
    backup.plane.doubts.mark_dirty(backup.fragment(0, "m"))
    backup.plane.syncs.ask(backup.plane.partitions[0])
    net.pump()
    net.drop = None
    assert backup.plane.syncs.permits_requested == 0
    told = [m.reason for _, _, m in net.log if isinstance(m, TransferAnswered) and not m.success]
    assert len(told) == 1 and problem in told[0]
    assert backup.fragment(0, "m").is_dirty
    net.advance(6 * SECOND)
    net.check_equal(0, "ab", "m")
    assert net["a"].plane.syncs.permits_served == 0


def test_an_answer_of_damage_ends_the_copy() -> None:
    """The sender goes no further; the receiver gives up by itself and asks anew (AE-13)."""
    net = two()
    lose(net, lambda store: store.put(stored(7), value("lost"), 5))
    spoiled: list[object] = []

    def spoil(sender: MemberId, target: MemberId, what: object) -> bool:
        if isinstance(what, TransferAnswered) and not spoiled:
            spoiled.append(what)
            progress = Progress({M: b"123"}, True)
            net[str(target)].plane.on_message(
                sender, msgspec.structs.replace(what, progress=progress)
            )
            return True
        return False

    net.drop = spoil
    backup = net["b"]
    backup.plane.doubts.mark_dirty(backup.fragment(0, "m"))
    backup.plane.syncs.ask(backup.plane.partitions[0])
    net.pump()
    assert net["a"].plane.syncs.permits_served == 0
    net.advance(20 * SECOND)
    net.check_equal(0, "ab", "m")
    assert backup.plane.syncs.permits_requested == 0
    assert backup.plane.syncs.counters["syncs_timed_out"] == 1


def test_a_lost_link_ends_the_copy() -> None:
    """In the middle of a comparison; everything is asked for anew."""
    net = two()
    lose(net, lambda store: store.put(stored(7), value("lost"), 5))
    net.drop = lambda _s, _t, what: isinstance(what, TransferSent) and what.sequence == 2
    backup = net["b"]
    backup.plane.doubts.mark_dirty(backup.fragment(0, "m"))
    backup.plane.syncs.ask(backup.plane.partitions[0])
    net.pump()
    net.drop = None
    for name, other in ("ab", "ba"):
        net.cut(name, other)
    assert backup.plane.syncs.permits_requested == 0 == net["a"].plane.syncs.permits_served
    for name, other in ("ab", "ba"):
        net.mend(name, other)
    net.advance(6 * SECOND)
    net.check_equal(0, "ab", "m")


@pytest.mark.parametrize("sequence", [1, 2])
def test_a_structure_destroyed_meanwhile_does_not_come_back(sequence: int) -> None:
    """D11: its base is freed under the comparison, which ends without a word."""
    net = two()
    lose(net, lambda store: store.put(stored(7), value("lost"), 5))

    def destroy(_sender: MemberId, _target: MemberId, what: object) -> bool:
        if isinstance(what, TransferSent) and what.sequence == sequence:
            net["b"].destroy("m", 9)
        return False

    net.drop = destroy
    net["b"].plane.doubts.mark_dirty(net["b"].fragment(0, "m"))
    net["b"].plane.syncs.ask(net["b"].plane.partitions[0])
    net.pump()
    assert M not in net["b"].plane.partitions[0].fragments
    assert net["b"].plane.syncs.counters["syncs_completed"] == 1
    assert net["b"].plane.syncs.permits_requested == 0


def test_a_base_that_went_ends_the_copy() -> None:
    """A row changes in the middle; or the primary has left the namespace out for good."""
    net = two()
    lose(net, lambda store: store.put(stored(7), value("lost"), 5))
    backup = net["b"]
    partition = backup.plane.partitions[0]

    def discard(_sender: MemberId, _target: MemberId, what: object) -> bool:
        if isinstance(what, TransferSent) and what.sequence == 2 and M in partition.fragments:
            backup.plane.holdings.discard(partition, M)
        return False

    net.drop = discard
    backup.plane.doubts.mark_dirty(backup.fragment(0, "m"))
    backup.plane.syncs.ask(partition)
    net.pump()
    told = [m.reason for _, _, m in net.log if isinstance(m, TransferAnswered) and not m.success]
    assert told == ["the base of map/m is gone"]
    net.drop = None
    net.advance(6 * SECOND)
    net.check_equal(0, "ab", "m")
    net.drop = lambda _s, _t, what: isinstance(what, TransferSent) and what.sequence == 2
    backup.plane.doubts.mark_dirty(backup.fragment(0, "m"))
    backup.plane.syncs.ask(partition)
    net.pump()
    net.drop = None
    net.set_row(0, "ac", 6)
    assert not backup.plane.syncs.exchange.asked and not partition.fragments
    net.advance(6 * SECOND)
    net.check_equal(0, "ac", "m")
