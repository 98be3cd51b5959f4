"""Goal: who was away is sent the keys that have changed since, and those alone (APR-46 to APR-48).

A log begins with an absence and ends with it, at every replica; it is believed only where it is
known to have everything, and everything else is found out as ever (docs/design/0018).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from tests.unit.absence_net import (
    BACK,
    KEPT,
    MAP,
    P0,
    STABLE,
    TAILED,
    change,
    come_back,
    copy_back,
    frozen,
    keys_of,
    leave,
    list_members,
    log_of,
    remove,
    return_to_seat,
    set_row,
    settings_with,
    store_of,
    stored,
    three,
)
from tests.unit.replication_net import SECOND, SETTINGS, Net, map_of, migration, value

from whimbrel.core.ids import MemberId
from whimbrel.core.messages import (
    FragmentPart,
    LogPiece,
    Stretch,
    TransferAnswered,
    TransferSent,
    Vector,
)
from whimbrel.core.model import ClusterState, MigrationInfo, MigrationKind
from whimbrel.core.replication.comparison import base_of
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.replication.key_log import KEY_BYTES, steps_to
from whimbrel.core.replication.outbox import Tail
from whimbrel.errors import SerializationError
from whimbrel.structures.map.locks import LOCK
from whimbrel.structures.map.record import make_timing
from whimbrel.structures.map.store import MapStore

# -- what is logged -----------------------------------------------------------------------


def test_nobody_away_costs_nothing() -> None:
    """APR-46: there is no log, so a write passes what it always does."""
    net = three()
    for name in "abc":
        fragment = net[name].fragment(0, MAP)
        assert fragment.log is None and fragment.key_log is None
        assert len(net[name].plane.holdings.key_logs) == 0
    net = three(settings=SETTINGS)
    leave(net, "c", "ab", "ab-", 5)
    assert net["a"].fragment(0, MAP).key_log is None, "nobody's files have what it is to add to"


def test_every_change_is_logged_at_every_replica() -> None:
    """APR-46: put, replaced, removed, expired, evicted: changed and removed keys."""
    net = three()
    leave(net, "c", "ab", "ab-", 5)
    assert keys_of(net, "a") == set() == keys_of(net, "b")
    net.put(MAP, 1, "replaced")
    net.put(MAP, 200, "new")
    now_ms = net["a"].ctx.wall_ms
    timing = make_timing(10, 0, now_ms)
    change(net, store_of(net, "a").put(stored(2), value("soon gone"), now_ms, timing, b"hash")[1])
    for _, _, operation in store_of(net, "a").sweep_expired(now_ms + 60, 10):
        change(net, operation)
    remove(net, 3)
    change(net, store_of(net, "a").set_lock(stored(4), LOCK.pack(bytes(16), 1, 1, 1 << 60, 1)))
    net.pump()
    changed = {stored(number) for number in (1, 200, 2, 3)}
    assert keys_of(net, "a") == changed == keys_of(net, "b"), "a lock is no entry"
    logs = net["b"].plane.holdings.key_logs
    assert len(logs) == 1 and logs.keys == 4
    assert logs.bytes_used == sum(KEY_BYTES + len(one) for one in changed)


def test_a_cleared_map_begins_anew() -> None:
    """APR-46: everything may have changed, so a base of before is of no help; one of after is."""
    net = three()
    before = leave(net, "c", "ab", "ab-", 5)
    net.put(MAP, 1, "replaced")
    change(net, store_of(net, "a").clear())
    net.put(MAP, 2, "after")
    net.pump()
    for name in "ab":
        log = log_of(net, name)
        assert set(log.keys) == {stored(2)}
        told = base_of(before, is_trusted=True)
        assert told is not None and log.lacked_by(told) is None
        since = tuple(count - 1 for count in net[name].fragment(0, MAP).counters()[:2])
        vector = Vector(net[name].fragment(0, MAP).lineage, (*since, 0, 0, 0, 0))
        told = msgspec.structs.replace(told, sound=vector, slot=0)
        assert log.lacked_by(told) == [stored(2)]
        assert net[name].plane.holdings.key_logs.bytes_used == KEY_BYTES + len(stored(2))


def test_the_log_of_the_disk_gets_it_all() -> None:
    """A log stands before it and takes nothing away; afterwards it is there as before."""

    class Written:
        waits = True

        def __init__(self) -> None:
            self.seen: list[Any] = []

        def append(self, *record: Any) -> None:
            self.seen.append(record)

        def revise(self) -> None:
            self.seen.append("revised")

    net = three()
    written = Written()
    net["a"].fragment(0, MAP).log = cast("Any", written)
    leave(net, "c", "ab", "ab-", 5)
    written.seen.clear()
    fragment = net["a"].fragment(0, MAP)
    assert fragment.log is fragment.key_log is not None and fragment.key_log.waits
    counter = fragment.value
    reply = net.put(MAP, 1, "x")
    ((number, operation, waiting),) = written.seen
    assert (number, waiting) == (counter + 1, reply) and operation.endswith(value("x"))
    fragment.set_counters(fragment.counters(), 0)
    assert written.seen[1:] == ["revised"]
    list_members(net, "ab", ClusterState.ACTIVE)
    fragment = net["a"].fragment(0, MAP)
    assert cast("object", fragment.log) is written and fragment.key_log is None


# -- who returns --------------------------------------------------------------------------


def test_who_returns_gets_what_has_changed() -> None:
    """APR-47: k records and r removals; not a sum, not one of the others; then the log ends."""
    net = three()
    base = leave(net, "c", "ab", "ab-", 5)
    for number in (1, 2, 3, 200):
        net.put(MAP, number, "since")
    remove(net, 10, 11)
    net.put(MAP, 4, "put and")
    remove(net, 4)
    net.put(MAP, 5, "again")
    net.put(MAP, 5, "first 5")
    net.pump()
    come_back(net, "c", "abc", base)
    assert copy_back(net) == {
        "copies_by_log": 1, "copy_entries_sent": 5, "copy_removals_sent": 3
    }  # fmt: skip
    net.check_equal(0, "abc", MAP)
    assert store_of(net, "c").records == store_of(net, "a").records
    assert store_of(net, "c").bytes_used == store_of(net, "a").bytes_used
    for name in "abc":
        assert net[name].fragment(0, MAP).key_log is None
        assert net[name].plane.holdings.key_logs.bytes_used == 0
    net.put(MAP, 1, "goes on")
    net.pump()
    net.check_equal(0, "abc", MAP)


def test_nothing_changed_is_nothing_sent() -> None:
    """APR-43: versions say it; the log has no part in it."""
    net = three()
    base = leave(net, "c", "ab", "ab-", 5)
    come_back(net, "c", "abc", base)
    assert copy_back(net) == {"copies_same": 1}


def test_few_entries_are_not_too_few() -> None:
    """Where trees would cost more than the whole, a log does not."""
    net = three(10)
    base = leave(net, "c", "ab", "ab-", 5)
    net.put(MAP, 1, "since")
    net.pump()
    come_back(net, "c", "abc", base)
    assert copy_back(net) == {"copies_by_log": 1, "copy_entries_sent": 1}
    net.check_equal(0, "abc", MAP)


def test_more_changed_keys_than_entries_are_not_told() -> None:
    """The whole is less then."""
    net = three(20)
    base = leave(net, "c", "ab", "ab-", 5)
    remove(net, *range(15))
    net.pump()
    come_back(net, "c", "abc", base)
    assert copy_back(net) == {"copies_whole": 1, "copy_entries_sent": 5}
    net.check_equal(0, "abc", MAP)


def test_it_travels_in_pieces() -> None:
    """GCM-36: removals first, then entries, none larger than a message; one fills in steps."""
    net = three(400, settings_with(work_max=50))
    base = leave(net, "c", "ab", "ab-", 5)
    remove(net, *range(100))
    for number in range(100, 200):
        net.put(MAP, number, "since")
    net.pump()
    come_back(net, "c", "abc", base)
    messages: list[tuple[FragmentPart, ...]] = []
    ingest = net["c"].plane.roles.ingest

    def noted(info: MigrationInfo, parts: tuple[FragmentPart, ...]) -> Any:
        messages.append(parts)
        return ingest(info, parts)

    vars(net["c"].plane.roles)["ingest"] = noted
    assert copy_back(net, chunk=400) == {
        "copies_by_log": 1, "copy_entries_sent": 100, "copy_removals_sent": 100
    }  # fmt: skip
    net.check_equal(0, "abc", MAP)
    parts = [part for message in messages for part in message]
    assert all(len(part.data) + sum(map(len, part.removed or ())) < 600 for part in parts)
    assert [part.is_told for part in parts].count(True) == 1
    assert parts[-1].last and not any(part.last for part in parts[:-1])
    assert len(messages) > 10


# -- losses in between --------------------------------------------------------------------


def test_a_second_loss_does_not_lose_the_log() -> None:
    """APR-48: all replicas track; the promoted one goes on under its own lineage."""
    net = three()
    base = leave(net, "c", "ab", "ab-", 5)
    net.put(MAP, 1, "by a")
    net.pump()
    net["a"].alive = False
    list_members(net, "b", STABLE)
    set_row(net, "b", 7, "b")
    net.put(MAP, 2, "by b", at="b")
    come_back(net, "c", "bc", base)
    step = migration(MigrationKind.COPY, "c", 7, new=1)
    counted = copy_back(net, step, "bc", "b")
    assert counted == {"copies_by_log": 1, "copy_entries_sent": 2}
    net.check_equal(0, "bc", MAP)
    assert len(net["b"].plane.holdings.key_logs) == 1, "a is still away"


def test_absences_are_kept_apart() -> None:
    """APR-48: each gets what has changed since it left, and the last one's return ends it."""
    net = Net("abcd", KEPT)
    list_members(net, "abcd", STABLE)
    net.set_row(0, "abcd", 4)
    name = "b3"
    for number in range(100):
        net.put(name, number, "first")
    net.pump()
    bases: dict[str, Fragment] = {}
    for who, stay, row, version, keys in (
        ("d", "abc", "abc", 5, (1, 2)),
        ("c", "ab", "ab", 6, (2, 3)),
    ):
        bases[who] = net[who].fragment(0, name)
        net[who].alive = False
        list_members(net, stay, STABLE)
        set_row(net, row, version, stay)
        for number in keys:
            net.put(name, number, f"without {who}")
        net.pump()
    assert log_of(net, "a", name).keys.keys() == {stored(number) for number in (1, 2, 3)}
    come_back(net, "c", "abc", bases["c"])
    step = migration(MigrationKind.COPY, "c", 6, new=2)
    assert copy_back(net, step, "abc")["copy_entries_sent"] == 2
    come_back(net, "d", "abcd", bases["d"])
    step = migration(MigrationKind.COPY, "d", 8, new=3)
    assert copy_back(net, step, "abcd") == {"copies_by_log": 1, "copy_entries_sent": 3}
    net.check_equal(0, "abcd", name)
    assert all(len(net[one].plane.holdings.key_logs) == 0 for one in "abcd")


def test_a_returner_goes_on_for_who_is_still_away() -> None:
    """APR-48: its copy begins a log; it covers whoever left in the state that it was copied in."""
    net = three()
    base = leave(net, "c", "ab", "ab-", 5)
    other = leave(net, "b", "a", "a", 6)
    come_back(net, "b", "ab", other)
    step = migration(MigrationKind.COPY, "b", 6, new=1)
    assert copy_back(net, step, "ab") == {"copies_same": 1}
    net.put(MAP, 1, "since")
    net.pump()
    assert keys_of(net, "b") == {stored(1)}
    net["a"].alive = False
    list_members(net, "b", STABLE)
    set_row(net, "b", 9, "b")
    come_back(net, "c", "bc", base)
    step = migration(MigrationKind.COPY, "c", 9, new=1)
    assert copy_back(net, step, "bc", "b") == {"copies_by_log": 1, "copy_entries_sent": 1}
    net.check_equal(0, "bc", MAP)


@pytest.mark.parametrize("chunk", [4_000, 300])
def test_a_log_goes_along_with_a_copy(chunk: int) -> None:
    """APR-48: who gets a replica during an absence knows what its primary knew.

    d is no stable member and takes the place of c; then a and b die, and d is the primary to which
    c returns.
    """
    net = three(names="abcd")
    base = net["c"].fragment(0, MAP)
    net["c"].alive = False
    list_members(net, "abd", STABLE)
    set_row(net, "ab-", 5, "abd")
    for number in range(40):
        net.put(MAP, number, "since")
    remove(net, 3)
    net.pump()
    step = migration(MigrationKind.COPY, "d", 5, new=2)
    counted = copy_back(net, step, "abd", chunk=chunk)
    assert counted == {"copies_whole": 1, "copy_entries_sent": 99}
    assert log_of(net, "d").keys == log_of(net, "a").keys
    bytes_used = net["a"].plane.holdings.key_logs.bytes_used
    assert net["d"].plane.holdings.key_logs.bytes_used == bytes_used > 40 * KEY_BYTES
    net.put(MAP, 60, "by all")
    net.pump()
    net["a"].alive = net["b"].alive = False
    list_members(net, "d", STABLE)
    set_row(net, "d", 9, "d")
    net.put(MAP, 61, "by d", at="d")
    come_back(net, "c", "dc", base)
    step = migration(MigrationKind.COPY, "c", 9, new=1)
    counted = copy_back(net, step, "dc", "d")
    assert counted == {"copies_by_log": 1, "copy_entries_sent": 41, "copy_removals_sent": 1}
    net.check_equal(0, "dc", MAP)


def test_a_log_goes_along_for_others_alone() -> None:
    """Who is the last to return needs none; one that does not fit its copy is not gone on from."""
    net = three()
    base = leave(net, "c", "ab", "ab-", 5)
    net.put(MAP, 1, "since")
    net.pump()
    come_back(net, "c", "abc", base)
    pieces: list[LogPiece | None] = []
    ingest = net["c"].plane.roles.ingest

    def noted(info: MigrationInfo, parts: tuple[FragmentPart, ...]) -> Any:
        pieces.extend(part.log for part in parts)
        return ingest(info, parts)

    vars(net["c"].plane.roles)["ingest"] = noted
    copy_back(net)
    assert pieces and pieces == [None] * len(pieces)
    net = three()
    leave(net, "c", "ab", "ab-", 5)
    net.put(MAP, 1, "since")
    net.pump()
    log = log_of(net, "b")
    before = (list(log.stretches), dict(log.keys))
    log.go_on_from([msgspec.structs.replace(log.stretches[0], steps=0)], {stored(7): 0})
    assert (log.stretches, log.keys) == before


# -- what is not believed -----------------------------------------------------------------


def not_by_log(net: Net, base: Fragment, spoil: Callable[[Fragment], None]) -> None:
    net.put(MAP, 1, "since")
    net.pump()
    come_back(net, "c", "abc", base)
    spoil(net["c"].plane.holdings.kept.of(P0)[map_of(MAP)])
    counted = copy_back(net)
    assert "copies_by_log" not in counted
    net.check_equal(0, "abc", MAP)
    assert store_of(net, "c").records == store_of(net, "a").records


def raise_value(fragment: Fragment) -> None:
    fragment.set_counters(tuple(count + 5 for count in fragment.counters()), fragment.slot)


def lower_value(fragment: Fragment) -> None:
    fragment.set_counters(tuple(max(0, one - 5) for one in fragment.counters()), fragment.slot)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda fragment: setattr(fragment, "is_dirty", True),
        lambda fragment: setattr(fragment, "lineage", fragment.lineage + 1),
        lambda fragment: setattr(fragment, "lineage", 0),
        raise_value,
        lower_value,
    ],
    ids=["in doubt", "another lineage", "no lineage", "further than we", "before the log"],
)
def test_a_base_that_the_log_does_not_cover_is_compared(spoil: Callable[[Fragment], None]) -> None:
    """APR-48, AE-11: equal numbers of other histories are not equal."""
    net = three()
    base = leave(net, "c", "ab", "ab-", 5)
    not_by_log(net, base, spoil)


def test_a_log_that_has_grown_too_large_is_given_up() -> None:
    """APR-48: keys of a fragment, bytes of a member; then it is as without; it is counted."""
    for bounds in ({"log_keys_max": 5}, {"log_bytes_max": 5 * KEY_BYTES}):
        net = three(settings=settings_with(**bounds))
        base = leave(net, "c", "ab", "ab-", 5)
        for number in range(5):
            net.put(MAP, number, "since")
            net.put(MAP, number, "once more")
        net.pump()
        logs = net["a"].plane.holdings.key_logs
        is_given_up = "log_bytes_max" in bounds
        assert len(logs) == (not is_given_up)
        net.put(MAP, 50, "one too many")
        net.pump()
        assert len(logs) == 0 == logs.bytes_used and logs.counters == {"key_logs_dropped": 1}
        assert net["a"].fragment(0, MAP).log is None
        not_by_log(net, base, lambda _fragment: None)


def test_a_replica_in_doubt_has_no_log() -> None:
    """What it missed is in nobody's log of it; its copy begins another one."""
    net = three()
    leave(net, "c", "ab", "ab-", 5)
    fragment = net["b"].fragment(0, MAP)
    net["b"].plane.doubts.mark_dirty(fragment)
    assert fragment.key_log is None and fragment.log is None
    net["b"].plane.syncs.ask(net["b"].plane.partitions[0])
    net.advance(3 * SECOND)
    net.check_equal(0, "ab", MAP)
    assert log_of(net, "b").fragment is not fragment


def test_destruction_ends_the_log() -> None:
    """D11: of a structure that is begun anew nothing of before is of help."""
    net = three()
    base = leave(net, "c", "ab", "ab-", 5)
    for name in "ab":
        net[name].destroy(MAP, 3)
        assert len(net[name].plane.holdings.key_logs) == 0
    net.put(MAP, 1, "another life")
    net.pump()
    told = base_of(base, is_trusted=True)
    assert told is not None and log_of(net, "a").lacked_by(told) is None


def test_a_log_that_ends_before_its_copy_begins() -> None:
    """It is given up between the request and the first message: all is sent."""
    net = three()
    base = leave(net, "c", "ab", "ab-", 5)
    net.put(MAP, 1, "since")
    net.pump()
    come_back(net, "c", "abc", base)
    roles = net["a"].plane.roles
    open_export = roles.open_export

    def opened(info: MigrationInfo) -> Any:
        export = open_export(info)
        compare = export._compare

        def compare_and_end(bases: Any) -> None:
            compare(bases)
            net["a"].plane.holdings.key_logs.end(net["a"].fragment(0, MAP))

        vars(export)["_compare"] = compare_and_end
        return export

    vars(roles)["open_export"] = opened
    assert copy_back(net) == {"copies_whole": 1, "copy_entries_sent": 100}
    net.check_equal(0, "abc", MAP)


# -- what did not reach its disk ----------------------------------------------------------


@pytest.mark.parametrize("name", ["c", "a"])
@pytest.mark.parametrize("lost", [0, 3, 7])
def test_what_was_on_its_way_is_logged_too(name: str, lost: int) -> None:
    """APR-48: its disk is behind what it had acknowledged, or had sent itself when it died.

    The last frames of its links are still here, and the log goes back over them.
    """
    net = three(settings=TAILED)
    was = net[name].fragment(0, MAP).vector()
    store = cast("MapStore", net[name].fragment(0, MAP).store)
    on_disk = MapStore()
    for number in range(7):
        if number == 7 - lost:
            was = net[name].fragment(0, MAP).vector()
            on_disk.ingest(store.chunk_of(list(store.records)))
        net.put(MAP, number, "late")
        net.pump()
    if not lost:
        was = net[name].fragment(0, MAP).vector()
        on_disk.ingest(store.chunk_of(list(store.records)))
    stay, primary = ("ab", "a") if name == "c" else ("bc", "b")
    base = leave(net, name, stay, f"{stay}-", 5)
    base.store = on_disk
    base.install(was, base.slot + 1)
    net.put(MAP, 50, "since", at=primary)
    net.pump()
    come_back(net, name, f"{stay}{name}", base)
    step = migration(MigrationKind.COPY, name, 8, new=2)
    counted = copy_back(net, step, f"{stay}{name}", primary)
    assert counted == {"copies_by_log": 1, "copy_entries_sent": 1 + lost}
    net.check_equal(0, f"{stay}{name}", MAP)


def test_what_nobody_has_acknowledged_is_logged_too() -> None:
    """It may have it or not."""
    net = three()
    base = leave_silently(net)
    for number in range(5):
        net.put(MAP, number, "not heard of")
    net.pump()
    list_members(net, "ab", STABLE)
    set_row(net, "ab-", 5, "ab")
    net.put(MAP, 50, "since")
    net.pump()
    come_back(net, "c", "abc", base)
    counted = copy_back(net)
    assert counted["copies_by_log"] == 1 and counted["copy_entries_sent"] >= 6
    net.check_equal(0, "abc", MAP)


def leave_silently(net: Net) -> Fragment:
    net["c"].alive = False
    return net["c"].fragment(0, MAP)


def test_a_tail_is_bounded() -> None:
    """Bytes of the last frames of a link; without a disk none are kept."""
    tail = Tail(100)
    for number in range(30):
        tail.add(bytes([number]) * 30)
    assert [frame[0] for frame in tail.frames] == [27, 28, 29]
    tail.add(bytes(101))
    assert not tail.frames
    assert three(1, TAILED)["a"].plane.outgoing.outboxes[MemberId("b")].tail is not None
    net = three(1, SETTINGS)
    assert net["a"].plane.outgoing.outboxes[MemberId("b")].tail is None
    assert net["b"].plane.incoming.inboxes[MemberId("a")].tail is None


def test_a_tail_with_a_hole_is_of_use_behind_it() -> None:
    """Only operations without a gap up to the present one say what lies between."""
    net = three(settings=settings_with(tail_bytes_max=500))
    for number in range(20):
        net.put(MAP, number, "late")
        net.pump()
    leave(net, "c", "ab", "ab-", 5)
    log = log_of(net, "a")
    *back, now = log.stretches
    steps = sum(stretch.steps for stretch in back)
    assert steps == 4 and now.steps == 0
    assert [stretch.steps for stretch in back] == [1, 2, 1], "1, 2, 4, ... from the end"
    assert keys_of(net, "a") == {stored(number) for number in range(20 - steps, 20)}
    assert now.counters[0] - back[0].counters[0] == steps


# -- seats that are kept ------------------------------------------------------------------


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_backup_in_its_seat_gets_what_has_changed(is_busy: bool) -> None:
    """APR-47, AE-20: a sync is answered by log; what passes meanwhile comes as ever."""
    net, base = frozen()
    for number in (1, 2):
        net.put("m", number, "since")
    change_map(net, store_of(net, "a", "m").remove(stored(3))[1])
    net.pump()
    return_to_seat(net, base)
    if is_busy:
        net.put("m", 4, "now")

        def meanwhile(_source: MemberId, _target: MemberId, what: object) -> bool:
            if isinstance(what, TransferSent | TransferAnswered):
                net.put("m", 10 + what.sequence, "meanwhile")
                change_map(net, store_of(net, "a", "m").remove(stored(20 + what.sequence))[1])
            return False

        net.drop = meanwhile
    net.advance(6 * SECOND)
    net.drop = None
    net.advance(3 * SECOND)
    net.check_equal(0, "ab", "m")
    copies = net["a"].plane.holdings.copies
    assert copies["copies_by_log"] == 1 and copies["copies_by_difference"] == 0
    assert copies["copy_entries_sent"] == 2 + is_busy and copies["copy_removals_sent"] >= 1
    assert store_of(net, "b", "m").records == store_of(net, "a", "m").records


def change_map(net: Net, operation: bytes) -> None:
    host = net["a"]
    host.begin()
    host.plane.holdings.change(host.plane.partitions[0], host.fragment(0, "m"), operation, None)


def test_a_doubt_of_another_kind_is_not_healed_by_log() -> None:
    """AE-20: contents that differ though versions agree are found by trees alone."""
    net, base = frozen()
    cast("MapStore", base.store).remove(stored(50))
    return_to_seat(net, base)
    net["b"].plane.doubts.mark_dirty(net["b"].fragment(0, "m"))
    net.put("m", 1, "since")
    net.advance(6 * SECOND)
    net.check_equal(0, "ab", "m")
    assert net["a"].plane.holdings.copies["copies_by_log"] == 0


def test_where_it_lacked_nothing_is_remembered_once() -> None:
    """A gap, then a new primary: what it has got in between may be nobody else's."""
    net, base = frozen()
    vector = base.vector()
    net["a"].fragment(0, "m")
    return_to_seat(net, base)
    held, doubts = net["b"].fragment(0, "m"), net["b"].plane.doubts
    doubts.mark_dirty(held, held.last_sound())
    held.set_counters((150, 0, 0, 0, 0, 0), 0)
    told = base_of(held, is_trusted=False)
    assert told is not None and told.sound == vector and told.met == vector.lineage
    assert told.vector.lineage == 0
    held.meet_lineage(vector.lineage + 1, vector.lineage, (150, 0, 0, 0, 0, 0), 0)
    assert held.is_dirty and held.sound is None and held.last_sound() is None
    told = base_of(held, is_trusted=False)
    assert told is not None and told.sound is None


def test_another_primary_between_is_not_believed() -> None:
    """What a base has got since is of the lineage that it says, and that must be the sender's."""
    net, base = frozen()
    net.put("m", 1, "since")
    log = log_of(net, "a", "m")
    told = base_of(base, is_trusted=True)
    assert told is not None and log.lacked_by(told) == [stored(1)]
    lineage = net["a"].fragment(0, "m").lineage
    assert told.met == 0 and base_of(base, is_trusted=False) == msgspec.structs.replace(
        told, vector=Vector(0, told.vector.counters)
    )
    assert log.lacked_by(msgspec.structs.replace(told, met=lineage)) == [stored(1)]
    net["a"].fragment(0, "m").become_primary(lineage + 1)
    assert log.lacked_by(told) == [stored(1)]
    assert log.lacked_by(msgspec.structs.replace(told, met=lineage)) is None


# -- stretches ----------------------------------------------------------------------------


def test_a_stretch_has_what_was_counted_in_it() -> None:
    """Slots that mean something on both sides, all as far along."""
    stretch = Stretch(7, (10, 10, 4, 0, 0, 0), 0, 3, steps=5)
    assert steps_to(stretch, Vector(7, (12, 12, 6, 0, 0, 0)), 0) == 2
    assert steps_to(stretch, Vector(7, (0, 0, 9, 0, 0, 0)), 2) == 5
    assert steps_to(stretch, Vector(7, (0, 0, 10, 0, 0, 0)), 2) == -1, "later"
    assert steps_to(stretch, Vector(7, (0, 0, 3, 0, 0, 0)), 2) == -1, "before"
    assert steps_to(stretch, Vector(8, (12, 12, 6, 0, 0, 0)), 0) == -1
    assert steps_to(stretch, Vector(7, (12, 12, 7, 0, 0, 0)), 0) == -1
    assert steps_to(stretch, Vector(7, (12, 12, 6, 0, 0, 0)), 3) == -1, "no slot says anything"
    assert steps_to(stretch, Vector(7, (12,)), 0) == -1
    assert steps_to(Stretch(0, stretch.counters, 0, 3), Vector(0, stretch.counters), 0) == -1


def test_stretches_are_few() -> None:
    """The oldest go, and with them what they covered."""
    net, base = frozen()
    log, fragment = log_of(net, "a", "m"), net["a"].fragment(0, "m")
    told = base_of(base, is_trusted=True)
    assert told is not None
    for number in range(100):
        log.begin_stretch()
        log.begin_stretch()
        net.put("m", number, "x")
    assert len(log.stretches) == 64 and log.lacked_by(told) is None
    fragment.key_log = log
    middle = msgspec.structs.replace(told, sound=Vector(fragment.lineage, (190, 0, 0, 0, 0, 0)))
    assert log.lacked_by(middle) == [stored(number) for number in range(90, 100)]


# -- what nobody sends --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change_part", "problem"),
    [
        ({"bits": 5}, "compared in two ways"),
        ({"is_same": True}, "compared in two ways"),
        ({"sums": b"123"}, "compared in two ways"),
        ({"removed": None}, "not copied key by key"),
        ({"log": LogPiece((), (b"key",), (0,))}, "an impossible log"),
        ({"log": LogPiece((Stretch(1, (1,), 0, 1),), (), ())}, "an impossible log"),
        ({"log": LogPiece((Stretch(1, (0,) * 6, 0, 1),), (b"key",), ())}, "an impossible log"),
    ],
)
def test_parts_that_fit_no_way_are_refused(change_part: dict[str, Any], problem: str) -> None:
    """SerializationError: the copy ends, and is asked for anew."""
    net = three()
    base = leave(net, "c", "ab", "ab-", 5)
    net.put(MAP, 1, "since")
    net.pump()
    come_back(net, "c", "abc", base)
    ingest = net["c"].plane.roles.ingest

    def spoiled(info: MigrationInfo, parts: tuple[FragmentPart, ...]) -> Any:
        (part,) = parts
        if change_part == {"removed": None}:
            ingest(info, (msgspec.structs.replace(part, removed=None, is_same=True),))
            part = msgspec.structs.replace(part, first=False)
        else:
            part = msgspec.structs.replace(part, **change_part)
        return ingest(info, (part,))

    vars(net["c"].plane.roles)["ingest"] = spoiled
    with pytest.raises(SerializationError, match=problem):
        net.migrate(BACK, "a", 4_000)


def test_a_last_part_before_all_is_told_is_refused() -> None:
    """Nothing would have been taken from the base."""
    net = three()
    base = leave(net, "c", "ab", "ab-", 5)
    net.put(MAP, 1, "since")
    net.pump()
    come_back(net, "c", "abc", base)
    ingest = net["c"].plane.roles.ingest

    def spoiled(info: MigrationInfo, parts: tuple[FragmentPart, ...]) -> Any:
        (part,) = parts
        return ingest(info, (msgspec.structs.replace(part, is_told=False, last=True),))

    vars(net["c"].plane.roles)["ingest"] = spoiled
    with pytest.raises(SerializationError, match="has not ended"):
        net.migrate(BACK, "a", 4_000)
