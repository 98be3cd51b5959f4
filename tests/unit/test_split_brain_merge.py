"""Two halves go on alone and meet again: who yields, what is merged and counted (M5, M6, L3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.engine_pump import Client, Error, Node, Pump, quick_settings
from tests.unit.split_pump import SplitPump, data, totals

from whimbrel.core.effects import Stopped
from whimbrel.core.messages import MergeAnswered, MergeRequested
from whimbrel.errors import UsageError
from whimbrel.structures.map import policies
from whimbrel.structures.map.record import EntryView
from whimbrel.structures.map.service import MERGED
from whimbrel.structures.map.settings import MapSettings

KEYS = [f"k{number}" for number in range(20)]
POLICIES = ("PutIfAbsent", "LatestUpdate", "HigherHits", "Discard", "PassThrough")


def make_pump(**changes: object) -> SplitPump:
    maps = (MapSettings("default"), *(MapSettings(name, merge_policy=name) for name in POLICIES))
    return SplitPump(quick_settings(**{"structures": maps, **changes}))


def split_cluster(pump: SplitPump, name: str) -> tuple[list[Node], list[Node], Client, Client]:
    """Four members with data in a map, parted three to one; a client in each part."""
    nodes = list(pump.form(4))
    first = pump.client(nodes[0])
    for key in KEYS:
        pump.put(first, name, key, "common")
    pump.run(5)
    big, small = nodes[:3], nodes[3:]
    pump.separate(60, big, small)
    return big, small, first, pump.client(small[0], number=2)


def handed_over(pump: SplitPump) -> int:
    """Entries that the smaller part had to merge."""
    return sum(told["entries"] for told in pump.notes("split_brain.merging"))


def test_smaller_side_merges_what_only_it_has() -> None:
    """M6, L3: the smaller part comes back, its new keys come along, conflicts are counted."""
    pump = make_pump()
    big, small, one, other = split_cluster(pump, "m")
    pump.put(one, "m", "k0", "big")
    pump.put(other, "m", "k0", "small")
    pump.put(other, "m", "only-small", "x")
    pump.put(one, "m", "only-big", "y")
    pump.heal_and_wait()
    assert [node.alive for node in big] == [True] * 3
    assert not small[0].alive
    assert pump.get(one, "m", "k0") == "big"
    assert pump.get(one, "m", "only-small") == "x"
    assert pump.get(one, "m", "only-big") == "y"
    assert [pump.get(one, "m", key) for key in KEYS[1:]] == ["common"] * (len(KEYS) - 1)
    found = totals(pump, "m")
    assert found["discarded"] == 1
    assert found["replaced"] == 0
    assert found["added"] >= 1
    assert sum(found.values()) == handed_over(pump) >= 2
    (told,) = pump.notes("split_brain.merged")
    assert {name: told[name] for name in found} == found


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("PutIfAbsent", ("big", "big", "x")),
        ("LatestUpdate", ("small", "big", "x")),
        ("HigherHits", ("big", "small", "x")),
        ("Discard", ("big", "big", None)),
        ("PassThrough", ("small", "small", "x")),
    ],
)
def test_policy_decides(policy: str, expected: tuple[str | None, ...]) -> None:
    """M6: fault 70, both halves wrote the same keys; each policy keeps the value it names."""
    pump = make_pump()
    _, _, one, other = split_cluster(pump, policy)
    pump.put(one, policy, "k1", "big")
    pump.put(other, policy, "k2", "small")
    pump.run(1)
    pump.put(other, policy, "k1", "small")
    pump.put(one, policy, "k2", "big")
    pump.put(other, policy, "new", "x")
    for _ in range(5):
        pump.get(one, policy, "k1")
        pump.get(other, policy, "k2")
    pump.heal_and_wait()
    assert tuple(pump.get(one, policy, key) for key in ("k1", "k2", "new")) == expected


def test_what_does_not_fit_into_one_message_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """M6: a partition's entries are merged to the last, in however many messages. Method: messages
    of one entry, several entries for each partition.
    """
    monkeypatch.setattr("whimbrel.core.merging.service.CHUNK_BYTES_MAX", 1)
    pump = make_pump()
    _, _, one, other = split_cluster(pump, "m")
    keys = [f"late{number}" for number in range(40)]
    for key in keys:
        pump.put(other, "m", key, "small")
    pump.heal_and_wait()
    assert [pump.get(one, "m", key) for key in keys] == ["small"] * len(keys)
    assert sum(totals(pump, "m").values()) == handed_over(pump) >= len(keys)


def test_both_halves_remove_the_same_key() -> None:
    """M6: fault 70, what both removed stays away; what one removed comes back from the other."""
    pump = make_pump()
    _, _, one, other = split_cluster(pump, "m")
    for client in (one, other):
        pump.remove(client, "m", "k3")
    pump.remove(one, "m", "k4")
    pump.remove(other, "m", "k5")
    pump.heal_and_wait()
    assert [pump.get(one, "m", key) for key in ("k3", "k4", "k5")] == [None, "common", "common"]


def test_partition_that_only_the_smaller_side_kept() -> None:
    """M6, D1: a partition whose replicas were all in the smaller part is whole after the merge."""
    pump = make_pump(partition_count=31)
    nodes = list(pump.form(5))
    one = pump.client(nodes[0])
    for key in KEYS:
        pump.put(one, "m", key, "common")
    pump.run(5)
    pump.separate(60, nodes[:3], nodes[3:])
    lost = [key for key in KEYS if pump.get(one, "m", key) is None]
    assert lost, "no partition had both replicas in the smaller part"
    pump.heal_and_wait()
    assert [pump.get(one, "m", key) for key in KEYS] == ["common"] * len(KEYS)
    assert totals(pump, "m")["added"] == len(lost)


def test_three_parts_become_one() -> None:
    """M6: fault 69, a three-way split healed at once ends in one cluster with everybody's keys."""
    pump = make_pump()
    nodes = list(pump.form(4))
    pump.put(pump.client(nodes[0]), "m", "common", "c")
    pump.run(5)
    parts = [nodes[:2], nodes[2:3], nodes[3:]]
    pump.separate(90, *parts)
    for number, part in enumerate(parts):
        pump.put(pump.client(part[0], number=number + 1), "m", f"part{number}", "x")
    pump.heal_and_wait(240)
    client = pump.client(nodes[0], number=9)
    assert [pump.get(client, "m", f"part{number}") for number in range(3)] == ["x"] * 3
    assert pump.get(client, "m", "common") == "c"


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_three_parts_heal_in_any_order(order: tuple[int, int, int]) -> None:
    """M6: fault 69, two of three parts meet first, the third later; no third cluster is left."""
    pump = make_pump()
    nodes = list(pump.form(4))
    parts = [nodes[:2], nodes[2:3], nodes[3:]]
    pump.run(5)
    pump.separate(90, *parts)
    for number, part in enumerate(parts):
        pump.put(pump.client(part[0], number=number + 1), "m", f"part{number}", "x")
    first, second, last = order
    for address, where in list(pump.part_of.items()):
        pump.part_of[address] = last if where == last else first
    assert second not in pump.part_of.values()
    pump.run(120)
    masters = {node.engine.member.ctx.members.master for node in pump.living()}
    assert len(masters) == 2
    pump.heal_and_wait(240)
    client = pump.client(pump.living()[0], number=9)
    assert [pump.get(client, "m", f"part{number}") for number in range(3)] == ["x"] * 3


def test_split_again_while_merging() -> None:
    """M6: fault 69, a member that is cut off in the middle of its merge finishes after it."""
    pump = make_pump()
    big, small, one, other = split_cluster(pump, "m")
    pump.put(other, "m", "only-small", "x")
    pump.doomed = [MergeRequested] * 1000
    pump.heal()
    pump.run_until(lambda: small[0].number in pump.successors, 120)
    fresh = pump.successors[small[0].number]
    pump.run_until(lambda: fresh.joined and fresh.engine.member.merging.is_active, 60)
    pump.separate(60, big, [fresh])
    pump.doomed = []
    pump.heal_and_wait()
    assert pump.get(one, "m", "only-small") == "x"
    assert not pump.notes("split_brain.lost")


def test_ttl_goes_on_through_a_merge() -> None:
    """M6: the moment at which a merged entry expires is the one it had before."""
    pump = make_pump()
    _, _, one, other = split_cluster(pump, "m")
    pump.put(other, "m", "short", "x", ttl_ms=200_000)
    before = pump.wall_ms
    pump.heal_and_wait()
    view = one.call(
        "Map.getEntryView", pump.pid("short"), name="m", key=data("short"), thread_id=1
    )["response"]
    assert view.value == data("x")
    assert view.expiration_time == before + 200_000
    pump.run(200)
    assert pump.get(one, "m", "short") is None


def test_listeners_hear_of_merged_entries() -> None:
    """M6: an entry that a merge changes is told as MERGED, one that stays is not told."""
    pump = make_pump()
    _, _, one, other = split_cluster(pump, "m")
    pump.put(other, "m", "new", "x")
    pump.put(other, "m", "k1", "small")
    one.call(
        "Map.addEntryListener", name="m", include_value=True, listener_flags=0xFFF, local_only=False
    )
    pump.heal_and_wait()
    heard = [fields for _, _, fields in one.taken_events() if fields["event_type"] == MERGED]
    keys = [fields["key"] for fields in heard]
    assert data("new") in keys
    assert data("k1") not in keys
    assert len(keys) == totals(pump, "m")["added"]


def test_lost_answers_change_nothing() -> None:
    """M6: every request of a merge is repeated until answered and has its effect once."""
    pump = make_pump()
    _, _, one, other = split_cluster(pump, "PassThrough")
    pump.put(other, "PassThrough", "k1", "small")
    pump.doomed = [MergeAnswered, MergeAnswered, MergeRequested, MergeAnswered]
    pump.heal_and_wait()
    assert not pump.doomed
    assert pump.get(one, "PassThrough", "k1") == "small"
    found = totals(pump, "PassThrough")
    assert found["replaced"] == 1
    assert sum(found.values()) == handed_over(pump) > 1


def decided_unanswered(pump: SplitPump, policy: str) -> tuple[list[Node], Node, Client, list[str]]:
    """A merge whose answers are all lost: who stayed, who merges, a client, keys merged already."""
    big, small, one, other = split_cluster(pump, policy)
    for key in KEYS:
        pump.put(other, policy, key, "small")
    pump.doomed = [MergeAnswered] * 100_000
    pump.heal()
    pump.run_until(lambda: small[0].number in pump.successors, 120)
    fresh = pump.successors[small[0].number]
    pump.run_until(lambda: fresh.joined and fresh.engine.member.merging.is_active, 60)
    pump.run(3)
    merged = [key for key in KEYS if pump.get(one, policy, key) == "small"]
    assert merged and fresh.engine.member.merging.is_active
    for key in merged:
        pump.put(one, policy, key, "later")
    return big, fresh, one, merged


def primaries(pump: SplitPump, keys: list[str]) -> list[object]:
    """The primary of each key's partition."""
    rows = pump.nodes[0].engine.member.migrations.table.rows
    return [rows[pump.pid(key)][0] for key in keys]


def test_a_chunk_is_decided_once_though_its_partition_moves() -> None:
    """M6: who may have decided a chunk is asked again before the present primary is.

    Method: a policy that overwrites; the answers are lost, a client writes, the partitions move to
    newcomers, then the chunks are offered again. What the client wrote stays.
    """
    pump = make_pump()
    _, fresh, one, merged = decided_unanswered(pump, "PassThrough")
    before = primaries(pump, merged)
    for _ in range(3):
        pump.start()
    pump.run(30)
    assert primaries(pump, merged) != before, "no partition has moved"
    assert fresh.engine.member.merging.is_active
    pump.doomed = []
    pump.heal_and_wait()
    assert [pump.get(one, "PassThrough", key) for key in merged] == ["later"] * len(merged)
    rest = [key for key in KEYS if key not in merged]
    assert {pump.get(one, "PassThrough", key) for key in rest} <= {"small"}


def test_a_chunk_is_decided_once_though_its_sender_is_removed() -> None:
    """M6: an incarnation later a chunk is known again by whoever decided it.

    Method: as above, and the merging member is removed before it hears an answer.
    """
    pump = make_pump()
    big, fresh, one, merged = decided_unanswered(pump, "PassThrough")
    for node in big:
        node.engine.member.membership.detector.gone(fresh.id, "test")
        node.carry_out()
    pump.run_until(lambda: fresh.expelled, 60)
    pump.doomed = []
    pump.heal_and_wait()
    assert fresh.number in pump.successors
    assert [pump.get(one, "PassThrough", key) for key in merged] == ["later"] * len(merged)
    assert not pump.notes("split_brain.lost")


def test_destroyed_meanwhile_stays_destroyed() -> None:
    """M6: what the bigger part destroyed is not brought back; its entries count as discarded."""
    pump = make_pump()
    _, _, one, other = split_cluster(pump, "m")
    pump.put(other, "m", "k1", "small")
    one.call("Client.destroyProxy", name="m", service_name="hz:impl:mapService")
    pump.heal_and_wait()
    assert totals(pump, "m") == dict.fromkeys(totals(pump, "m"), 0) | {
        "discarded": handed_over(pump)
    }
    assert pump.get(one, "m", "k1") is None


def test_created_in_the_smaller_part_exists_afterwards() -> None:
    """M6: structures that only the smaller part knew are known to all before data come."""
    pump = make_pump()
    _, _, one, other = split_cluster(pump, "m")
    pump.put(other, "made-apart", "a", "x")
    pump.heal_and_wait()
    assert pump.get(one, "made-apart", "a") == "x"


def test_leave_waits_for_the_merge() -> None:
    """M6: a member that is told to leave in the middle of its merge finishes it first."""
    pump = make_pump()
    _, small, one, other = split_cluster(pump, "m")
    pump.put(other, "m", "only-small", "x")
    pump.doomed = [MergeRequested] * 3
    pump.heal()
    pump.run_until(lambda: small[0].number in pump.successors, 120)
    fresh = pump.successors[small[0].number]
    pump.run_until(lambda: fresh.joined and fresh.engine.member.merging.is_active, 60)
    pump.leave(fresh)
    assert pump.get(one, "m", "only-small") == "x"
    assert not pump.notes("split_brain.lost")


def test_what_cannot_be_merged_is_reported() -> None:
    """M6: a member that ends with entries unmerged says how many are lost."""
    pump = make_pump()
    _, small, _, other = split_cluster(pump, "m")
    pump.put(other, "m", "only-small", "x")
    pump.doomed = [MergeRequested] * 100_000
    pump.heal()
    pump.run_until(lambda: small[0].number in pump.successors, 120)
    fresh = pump.successors[small[0].number]
    pump.run_until(lambda: fresh.joined and fresh.engine.member.merging.is_active, 60)
    pump.run(1)
    left = fresh.engine.member.merging.remaining
    assert left > 0
    fresh.engine.member.ctx.emit(Stopped("told to", 1))
    fresh.carry_out()
    (told,) = pump.notes("split_brain.lost")
    assert told["entries"] == left
    assert fresh.engine.member.merging.lost == left


def test_removed_by_mistake_merges_nothing() -> None:
    """M5: a member that its own cluster removed drops its copies: the cluster has newer ones."""
    pump = make_pump()
    nodes = list(pump.form(3))
    one = pump.client(nodes[0])
    for key in KEYS:
        pump.put(one, "m", key, "old")
    pump.run(5)
    removed = nodes[2]
    for node in nodes[:2]:
        node.engine.member.membership.detector.gone(removed.id, "test")
        node.carry_out()
    pump.run_until(lambda: removed.expelled, 60)
    pump.run_until(pump.merged, 60)
    assert removed.engine.member.split_data is None
    dropped = [note for note in removed.notes if note.kind == "expelled.dropped"]
    assert dropped and int(dropped[0].fields["entries"] or 0) > 0
    assert not pump.notes("split_brain.merging")
    assert [pump.get(one, "m", key) for key in KEYS] == ["old"] * len(KEYS)


def test_what_the_cluster_lost_with_a_removed_member_comes_back() -> None:
    """M6: lists with a common member: what no member that goes on has a copy of is merged, too.

    Method: two of four members are removed though they live. They hold maps without backups, and
    both copies of some partitions; the cluster has lost these. It keeps what it wrote since, and
    what it has a copy of is dropped as always.
    """
    pump = make_pump(
        structures=(MapSettings("default"), MapSettings("alone", 0)), partition_count=31
    )
    nodes = list(pump.form(4))
    one = pump.client(nodes[0])
    for key in KEYS:
        pump.put(one, "m", key, "old")
        pump.put(one, "alone", key, "old")
    pump.run(5)
    removed = nodes[2:]
    pump.split(nodes[:2], removed)
    for node in nodes[:2]:
        for other in removed:
            node.engine.member.membership.detector.gone(other.id, "test")
    nodes[0].engine.member.membership._react()
    nodes[0].carry_out()
    pump.run(1)
    assert len(nodes[0].engine.member.ctx.members.members) == 2
    lost = [key for key in KEYS if pump.get(one, "alone", key) is None]
    gone = [key for key in KEYS if pump.get(one, "m", key) is None]
    assert lost and gone and len(lost) < len(KEYS) and len(gone) < len(KEYS)
    kept = next(key for key in KEYS if key not in gone)
    pump.put(one, "m", gone[0], "new")
    pump.remove(one, "m", kept)
    pump.heal_and_wait()
    assert not any(node.engine.member.membership.is_split for node in removed)
    assert [pump.get(one, "alone", key) for key in KEYS] == ["old"] * len(KEYS)
    expected = {**dict.fromkeys(KEYS, "old"), gone[0]: "new", kept: None}
    assert {key: pump.get(one, "m", key) for key in KEYS} == expected
    assert handed_over(pump) == len(lost) + len(gone)
    assert sum(totals(pump, "m").values()) == len(gone)
    assert totals(pump, "alone")["added"] == len(lost)


def test_the_latest_update_goes_by_the_writers_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """M6, D10: ``LatestUpdate`` compares the wall clocks of the two primaries, and nothing else is
    known across a split: a write whose member's clock is a minute ahead wins over one made later.
    """
    pump = make_pump()
    name = "LatestUpdate"
    _, _, one, other = split_cluster(pump, name)
    true_ms = vars(Pump)["wall_ms"].fget
    with monkeypatch.context() as ahead:
        ahead.setattr(SplitPump, "wall_ms", property(lambda self: true_ms(self) + 60_000))
        pump.put(other, name, "k0", "earlier, by a fast clock")
    pump.put(other, name, "k1", "earlier")
    pump.run(5)
    for key in ("k0", "k1"):
        pump.put(one, name, key, "later")
    pump.heal_and_wait()
    assert pump.get(one, name, "k0") == "earlier, by a fast clock"
    assert pump.get(one, name, "k1") == "later"


# -- policies -----------------------------------------------------------------------------


def view(value: str, updated_ms: int = 0, hits: int = 0) -> EntryView:
    return EntryView(data("k"), data(value), 0, 0, updated_ms, 0, 0, hits, 0, 0, 0)


def test_ties_keep_what_is_there() -> None:
    """M6: equal times or hits decide the same way on every member: the present value stays."""
    there, coming = view("a", 5, 3), view("b", 5, 3)
    assert policies.latest_update(there, coming) is None
    assert policies.higher_hits(there, coming) is None
    assert policies.latest_update(there, view("b", 6)) == data("b")
    assert policies.higher_hits(there, view("b", 5, 4)) == data("b")


def test_names_of_the_field_are_known() -> None:
    """M6: a policy goes by its short name and by the name it has in the field."""
    for name in POLICIES:
        assert policies.resolve(name) == name
        assert policies.resolve(f"com.hazelcast.spi.merge.{name}MergePolicy") == name
    with pytest.raises(UsageError, match="known are PutIfAbsent, LatestUpdate"):
        policies.resolve("Newest")


def test_registered_policy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """M6: a program's own policy makes a value out of both; one that fails keeps what is there."""
    monkeypatch.setattr(policies, "_registered", {})

    def both(existing: EntryView | None, merging: EntryView) -> bytes | None:
        if existing is None:
            return merging.value
        if merging.value == data("bad"):
            raise ValueError("cannot decide")
        return existing.value + b"+" + merging.value[8:]

    policies.register_merge_policy("both", both)
    with pytest.raises(UsageError, match="already"):
        policies.register_merge_policy("PutIfAbsent", both)
    pump = make_pump(structures=(MapSettings("default", merge_policy="both"),))
    _, _, one, other = split_cluster(pump, "m")
    for key, value in (("k1", "small"), ("k2", "bad")):
        pump.put(one, "m", key, "big")
        pump.put(other, "m", key, value)
    pump.heal_and_wait()
    assert pump.get(one, "m", "k1") == "big+small"
    assert pump.get(one, "m", "k2") == "big"
    (told,) = pump.notes("split_brain.policy_failed")
    assert "cannot decide" in told["problem"]


# -- protection ---------------------------------------------------------------------------


def refused(pump: SplitPump, client: Client) -> Error:
    with pytest.raises(Error) as caught:
        pump.put(client, "m", "k1", "small")
    return caught.value


def test_too_small_a_part_refuses_writes() -> None:
    """M6: below the minimum size writes get error 42 at once, reads go on; a join ends it."""
    pump = make_pump(split_brain_minimum_size=2)
    big, small, one, other = split_cluster(pump, "m")
    error = refused(pump, other)
    assert error.code == 42
    assert "1 data members" in error.text
    assert "minimum_size asks for 2" in error.text
    for call in ("Map.clear", "Map.evictAll"):
        with pytest.raises(Error) as caught:
            other.call(call, name="m")
        assert caught.value.code == 42
    assert other.call("Map.size", name="m") > 0
    for key in KEYS:
        pump.put(one, "m", key, "big")
    protection = small[0].engine.server.admission.protection
    assert protection.document() == {
        "minimum_size": 2, "protects": "write", "data_members": 1, "refusing": True,
    }  # fmt: skip
    assert small[0].engine.metrics()["split_brain_protection_refusing"] == 1
    assert small[0].engine.metrics()["refused_split_brain_protection_total"] >= 3
    pump.heal_and_wait()
    fresh = pump.successors[small[0].number]
    pump.put(pump.client(fresh, number=5), "m", "k1", "again")
    assert not big[0].engine.server.admission.protection.is_refusing
    assert pump.get(one, "m", "k1") == "again"
    assert totals(pump, "m")["discarded"] == handed_over(pump) > 1


@pytest.mark.parametrize("protects", ["read", "read_write"])
def test_reads_can_be_refused(protects: str) -> None:
    """M6: what a small part refuses is configured; whole-map reads are refused with the others."""
    pump = make_pump(split_brain_minimum_size=2, split_brain_protects=protects)
    nodes = list(pump.form(2))
    client = pump.client(nodes[0])
    pump.put(client, "m", "k1", "x")
    pump.kill(nodes[1])
    pump.run(30)
    for call in (lambda: pump.get(client, "m", "k1"), lambda: client.call("Map.size", name="m")):
        with pytest.raises(Error) as caught:
            call()
        assert caught.value.code == 42
    if protects == "read":
        pump.put(client, "m", "k1", "y")
    else:
        assert refused(pump, client).code == 42
    pump.start()
    pump.run(10)
    assert pump.get(client, "m", "k1") in ("x", "y")


MAPS = (
    MapSettings("default"),
    MapSettings("orders*", split_brain_minimum_size=3),
    MapSettings("orders.seen", split_brain_minimum_size=2, split_brain_protects="read"),
    MapSettings("cache", split_brain_minimum_size=0),
)


def outcome(call: Callable[[], object]) -> str:
    """``served``, or what error 42 (or the number of another one) says."""
    try:
        call()
    except Error as error:
        return error.text if error.code == 42 else f"error {error.code}"
    return "served"


def test_minimum_size_is_per_map() -> None:
    """M6: a map's own minimum size and what it protects win over the cluster's; the longest
    pattern wins among patterns; a map may be exempt; other maps are as the cluster says.
    """
    pump = make_pump(structures=MAPS, split_brain_minimum_size=2)
    nodes = list(pump.form(3))
    client = pump.client(nodes[0])
    names = ("m", "orders.new", "orders.seen", "cache")
    for name in names:
        pump.put(client, name, "k1", "x")
    told_before = len(pump.notes("split_brain_protection.refusing"))
    pump.kill(nodes[2])
    pump.run(30)
    protection = nodes[0].engine.server.admission.protection
    assert protection.document() == {
        "minimum_size": 2, "protects": "write", "data_members": 2, "refusing": False,
        "maps": {
            "orders*": {"minimum_size": 3, "protects": "write", "refusing": True},
            "orders.seen": {"minimum_size": 2, "protects": "read", "refusing": False},
            "cache": {"minimum_size": 0, "protects": "write", "refusing": False},
        },
    }  # fmt: skip

    def look(name: str) -> tuple[bool, ...]:
        write = outcome(lambda: pump.put(client, name, "k1", "y"))
        clear = outcome(lambda: client.call("Map.evictAll", name=name))
        read = outcome(lambda: pump.get(client, name, "k1"))
        size = outcome(lambda: client.call("Map.size", name=name))
        assert [write, read] == [clear, size]
        assert all(text == "served" or "refused" in text for text in (write, read))
        return write == "served", read == "served"

    seen = {name: look(name) for name in names}
    both, only_reads, only_writes = (True, True), (False, True), (True, False)
    assert seen == {"m": both, "orders.new": only_reads, "orders.seen": both, "cache": both}
    text = outcome(lambda: pump.put(client, "orders.new", "k1", "y"))
    assert "2 data members, map.orders*.split_brain_minimum_size asks for 3" in text

    pump.kill(nodes[1])
    pump.run(30)
    seen = {name: look(name) for name in names}
    assert seen == {
        "m": only_reads, "orders.new": only_reads, "orders.seen": only_writes, "cache": both,
    }  # fmt: skip
    text = outcome(lambda: pump.put(client, "m", "k1", "y"))
    assert "1 data members, split_brain_protection.minimum_size asks for 2" in text
    notes = pump.notes("split_brain_protection.refusing")[told_before:]
    told = [note["maps"] for note in notes if "maps" in note]
    assert sorted(told) == ["default", "orders*", "orders*", "orders.seen"]

    pump.start()
    pump.start()
    pump.run_until(lambda: not protection.is_refusing, 30)
    assert {name: look(name) for name in names} == dict.fromkeys(names, both)


def test_share_of_a_protected_map_is_refused() -> None:
    """M6: a member that refuses a map also refuses its share of a whole-map call asked elsewhere,
    by the map's own rule; the caller hears why.
    """
    pump = make_pump(structures=MAPS)
    nodes = list(pump.form(2))
    pump.run(10)
    for row in nodes[0].engine.server.operations.rows():
        row.is_guarded = False
    client = pump.client(nodes[0])
    assert client.call("Map.size", name="orders.new") == 0
    with pytest.raises(Error, match=r"map\.orders\*\.split_brain_minimum_size asks for 3"):
        client.call("Map.clear", name="orders.new")
    client.call("Map.clear", name="cache")


def test_unprotected_cluster_serves_alone() -> None:
    """M6: without a minimum size nothing is refused and nothing is shown."""
    pump = make_pump()
    node = pump.start()
    pump.run(2)
    pump.put(pump.client(node), "m", "k1", "x")
    assert node.engine.server.admission.protection.document() is None
