"""Causes (docs/design/0016): one id for all that follows from one thing, on every member."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit import engine_pump
from tests.unit.engine_pump import Node, Pump, member_id, quick_settings
from tests.unit.split_pump import SplitPump

from whimbrel.core.context import Context
from whimbrel.core.effects import Joined, Note, Send, SendTo
from whimbrel.core.ids import Address, PartitionId
from whimbrel.core.member import Member
from whimbrel.core.messages import (
    ClaimRequested,
    FragmentPart,
    Heartbeat,
    JoinersTold,
    LeaveRequested,
    MembersPublished,
    MergeAnswered,
    MergeRequested,
    Message,
    MigrationCommitRequested,
    MigrationOpened,
    MigrationRequested,
    PromotionRequested,
    Purpose,
    QuestionAsked,
    RegistryTold,
    RoleChangeRequested,
    StateLockRequested,
    StateRequested,
    TablePublished,
    TransferAnswered,
    TransferSent,
    VersionsTold,
)
from whimbrel.core.model import MemberInfo, MemberList, MigrationInfo, MigrationKind, Step
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.transfer import Asked, Exchange, Shadows
from whimbrel.core.settings import CoreSettings
from whimbrel.core.stimuli import (
    AddressUnreachable,
    LeaveWanted,
    LinkLost,
    LinkRestored,
    Received,
    Started,
    TimerFired,
)
from whimbrel.serialization.data import to_data
from whimbrel.serving.outputs import ToPeer
from whimbrel.structures.kinds import KINDS

ME = MemberInfo(member_id(1), Address("127.0.0.1", 5701))
ELSEWHERE = Address("127.0.0.1", 5709)


@pytest.fixture
def ctx() -> Context:
    return Context(ME, CoreSettings(), started_us=5_000)


def causes(ctx: Context) -> list[str]:
    """The causes of all effects so far, which are taken."""
    found = [effect.cause for effect in ctx.effects]
    ctx.effects.clear()
    return found


# -- one member ---------------------------------------------------------------------------


def test_a_cause_is_made_when_it_is_asked_for(ctx: Context) -> None:
    """Goal: a step has one cause or none. Method: ask twice, begin, ask; a later process."""
    assert ctx.known_cause is None
    first = ctx.cause
    assert (first, ctx.cause) == ("00000001-5001", "00000001-5001")
    ctx.known_cause = None  # what ``Member.begin`` does
    assert ctx.cause == "00000001-5002"
    later = Context(ME, CoreSettings(), started_us=9_000)
    assert later.cause not in (first, ctx.cause)


def test_every_effect_has_the_cause_of_its_step(ctx: Context) -> None:
    """Goal: whoever sends or notes need not think of causes. Method: one of each."""
    ctx.send(member_id(2), Heartbeat(1, None))
    ctx.send_to(ELSEWHERE, Heartbeat(1, None))
    ctx.broadcast(Heartbeat(1, None), [member_id(2), member_id(3)])
    ctx.note("noted")
    ctx.emit(Joined())
    ctx.arm("room.timer", 10)
    assert causes(ctx) == [ctx.cause] * 7
    ctx.resume("00000002-1")
    ctx.note("noted")
    assert causes(ctx) == ["00000002-1"]


def fire(ctx: Context, key: str, again_us: int | None = None) -> str:
    """Let a timer fire that may arm itself anew; the cause of its step."""
    ctx.known_cause = None
    assert ctx.take_timer(key, ctx._armed[key])
    cause = ctx.cause
    if again_us is not None:
        ctx.arm(key, again_us)
    ctx.timer_done()
    return cause


def test_a_timer_keeps_the_cause_of_who_armed_it(ctx: Context) -> None:
    """Goal: work that waits goes on in its story; periodic work begins a new one each time."""
    armed = ctx.cause
    ctx.arm("room.timer", 10)
    assert fire(ctx, "room.timer", again_us=10) == armed
    second = fire(ctx, "room.timer", again_us=10)
    third = fire(ctx, "room.timer")
    assert len({armed, second, third}) == 3
    ctx.arm("room.timer", 10)
    assert fire(ctx, "room.timer") == third, "armed by that step, not by its own firing"


def test_a_timer_without_delay_is_the_rest_of_the_same_work(ctx: Context) -> None:
    """Goal: a job in pieces (0012) is one story. Method: a firing that arms itself at once."""
    armed = ctx.cause
    ctx.arm("room.slice", 0)
    assert [fire(ctx, "room.slice", again_us=0) for _ in range(3)] == [armed] * 3


def test_the_least_delay_makes_a_timer_periodic(ctx: Context) -> None:
    """Goal: whatever fires at a later moment is no rest of this one, be it a microsecond later."""
    ctx.arm("room.timer", 10)
    first = fire(ctx, "room.timer", again_us=1)
    assert fire(ctx, "room.timer") != first


def test_a_stale_firing_takes_no_cause(ctx: Context) -> None:
    """Goal: a firing that was replaced is nobody's work. Method: arm twice, fire the first."""
    ctx.arm("room.timer", 10)
    ctx.arm("room.timer", 20)
    ctx.known_cause = None
    assert ctx.cause_of_timer("room.timer", 1) is None
    assert not ctx.take_timer("room.timer", 1)
    assert ctx.known_cause is None


class _Endless:
    """Something to copy that has no end."""

    def answered(self, answer: TransferAnswered) -> None:
        return

    def next_parts(self, bytes_max: int) -> tuple[tuple[FragmentPart, ...], bool]:
        return (), False


def test_copies_go_on_under_their_causes(ctx: Context) -> None:
    """Goal: who gives a copy and who asked for one go on with its story, whatever wakes them.
    Method: copies begun under causes of their own, answers under another.
    """
    pid, other = PartitionId(0), MemberInfo(member_id(2), ELSEWHERE)
    ctx.members = MemberList(1, (ME, other))
    exchange = Exchange(ctx, Purpose.SYNC)
    for number in (7, 8):
        ctx.resume(f"given-{number}")
        exchange.give(other.id, number, pid, _Endless(), 1)
    ctx.resume("asked-1")
    asked = Asked(ctx, other.id, Shadows(DataPlane(ctx).holdings, pid, 1))
    exchange.asked[pid] = asked
    assert causes(ctx)[:2] == ["given-7", "given-8"]
    for number in (8, 7):
        ctx.resume("other-1")
        exchange.answered(other.id, TransferAnswered(Purpose.SYNC, str(number), 1, True, ""))
    assert causes(ctx) == ["given-8", "given-7"]
    ctx.resume("other-1")
    assert exchange.find(other.id, pid, asked.number + 1) is None
    assert ctx.cause == "other-1"
    assert exchange.find(other.id, pid, asked.number) is asked
    assert ctx.cause == "asked-1"


def test_a_stimulus_brings_its_cause() -> None:
    """Goal: a message goes on with its sender's story, a start with that of the expulsion."""
    member = Member(ME, CoreSettings(), KINDS, 7_000)
    effects = member.handle(Started((ELSEWHERE,), cause="00000001-42"), 7_000, 0)
    assert {effect.cause for effect in effects} == {"00000001-42"}
    effects = member.handle(LeaveWanted(), 7_001, 0)
    assert {effect.cause for effect in effects} == {"00000001-7001"}


def test_seeking_a_cluster_is_one_story() -> None:
    """Goal: what a start leads to is found under it. Method: nobody answers, so it founds."""
    member = Member(ME, CoreSettings(), KINDS, 7_000)
    armed = member.handle(Started((ELSEWHERE,)), 7_000, 0)
    story = armed[0].cause
    said: list[Note | SendTo] = []
    now_us = 7_000
    for _ in range(10):
        member.handle(AddressUnreachable(ELSEWHERE), now_us, 0)
        now_us += member.ctx.settings.discovery_interval_us
        key = "membership.discovery"
        generation = member.ctx._armed.get(key)
        if generation is None:
            break
        effects = member.handle(TimerFired(key, generation), now_us, 0)
        said += [one for one in effects if isinstance(one, Note | SendTo)]
    assert "cluster_founded" in [one.kind for one in said if isinstance(one, Note)]
    assert {one.cause for one in said} == {story}


def test_reads_and_writes_make_no_cause() -> None:
    """Goal: the data path pays one store. Method: a client's calls; no number is used up."""
    pump = Pump()
    node = pump.form(1)[0]
    client = pump.client(node)
    client.call("Map.put", 0, name="m", key=to_data(1), thread_id=1, value=to_data(1), ttl=-1)
    ctx = node.engine.member.ctx
    made = ctx._causes
    for number in range(50):
        value = to_data(number)
        client.call("Map.put", 0, name="m", key=to_data(1), thread_id=1, value=value, ttl=-1)
        client.call("Map.get", 0, name="m", key=to_data(1), thread_id=1)
    assert ctx._causes == made


# -- many members -------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[ToPeer]:
    """Every message between members, as its sender's engine put it."""
    found: list[ToPeer] = []
    framed = engine_pump.framed

    def record(output: ToPeer, encoded: bool) -> Any:
        if not isinstance(output.payload, bytes):
            found.append(output)
        return framed(output, encoded)

    monkeypatch.setattr(engine_pump, "framed", record)
    return found


def story(node: Node, kind: str, **fields: object) -> str:
    """The cause of the newest note of a kind with these fields."""
    found = [
        note.cause
        for note in node.notes
        if note.kind == kind and all(note.fields[name] == value for name, value in fields.items())
    ]
    assert found, f"{node.id} noted no {kind}"
    return found[-1]


def fill(pump: Pump) -> None:
    """Entries in every partition, so that something is copied."""
    client = pump.client(pump.living()[0])
    for number in range(pump.settings.partition_count):
        value = to_data("x" * 100)
        client.call("Map.put", number, name="m", key=to_data(number), thread_id=1, value=value,
                    ttl=-1)  # fmt: skip


@pytest.mark.parametrize(("encoded", "rows_max"), [(False, 10_000), (True, 10_000), (False, 2)])
def test_a_join_is_one_story(encoded: bool, rows_max: int) -> None:
    """Goal: from the start of a process to the end of the plan that gives it data, one thread.
    Method: also with bytes between members, and with a table that is planned in pieces.
    """
    pump = Pump(quick_settings(step_rows_max=rows_max), encoded=encoded)
    master, other = pump.form(2)
    fill(pump)
    joiner = pump.start()
    pump.run(10)
    started = story(joiner, "members_installed")
    assert started.startswith("00000003-")
    for node in (master, other):
        assert story(node, "member_added", member=joiner.id) == started
    assert story(master, "migration.planned") == started
    assert story(master, "migration.finished") == started


def test_all_work_of_a_plan_is_in_its_story(sent: list[ToPeer]) -> None:
    """Goal: requests, fragments, commits and publications of a plan. Method: a third member."""
    pump = Pump()
    pump.form(2)
    fill(pump)
    sent.clear()
    joiner = pump.start()
    pump.run(10)
    started = story(joiner, "members_installed")
    kinds = ("Migration", "Transfer", "TablePublished", "PublicationAnswered")
    of_plan = [one for one in sent if type(one.payload).__name__.startswith(kinds)]
    assert len(of_plan) > 20
    assert {one.cause for one in of_plan} == {started}


def test_a_leave_is_one_story(sent: list[ToPeer]) -> None:
    """Goal: the wish, its repeats, the plan, the permission, the new list. Method: one leaves."""
    pump = Pump()
    master, leaver, _ = pump.form(3)
    fill(pump)
    sent.clear()
    pump.leave(leaver)
    pump.run(5)
    wish = story(leaver, "leave_wanted")
    assert wish.startswith("00000002-")
    assert story(master, "leave_requested") == wish
    assert story(leaver, "stopped") == wish
    assert story(master, "member_removed", member=leaver.id) == wish
    requests = [one.cause for one in sent if isinstance(one.payload, LeaveRequested)]
    assert len(requests) > 1
    assert set(requests) == {wish}


def test_a_repeated_wish_to_leave_stays_in_its_story(sent: list[ToPeer]) -> None:
    """Goal: a timer that repeats goes on with what it repeats. Method: a master that is deaf."""
    pump = Pump()
    master, leaver = pump.form(2)
    deafen(master)
    leaver.handle(LeaveWanted())
    pump.run(4)
    requests = [one.cause for one in sent if isinstance(one.payload, LeaveRequested)]
    assert len(requests) > 2
    assert set(requests) == {story(leaver, "leave_wanted")}


def owned(node: Node) -> int:
    """A partition of which a member is the primary."""
    return next(one.pid for one in node.engine.member.dataplane.partitions if one.is_primary)


def deafen(node: Node, to: type[Message] | None = None) -> None:
    """Let a member go on without hearing a message; without hearing anything but heartbeats."""
    handle = node.handle

    def deaf(stimulus: Any) -> None:
        message = stimulus.message if isinstance(stimulus, Received) else None
        is_deaf = not isinstance(message, Heartbeat) if to is None else isinstance(message, to)
        if message is None or not is_deaf:
            handle(stimulus)

    node.handle = deaf  # type: ignore[method-assign]


def test_a_claim_and_what_the_new_master_settles_are_one_story(sent: list[ToPeer]) -> None:
    """Goal: a broken link, the claim, its repeats, the new table. Method: the master dies."""
    pump = Pump()
    master, second, third, fourth = pump.form(4)
    fill(pump)
    deafen(fourth)  # so that the claim is repeated until it is given up
    sent.clear()
    pump.kill(master)
    pump.run(30)
    claim = story(second, "mastership_claimed")
    assert claim.startswith("00000002-")
    asked = [one.cause for one in sent if isinstance(one.payload, ClaimRequested)]
    assert len(asked) > 2
    assert set(asked) == {claim}
    assert story(second, "became_master") == claim
    assert story(third, "member_removed", member=master.id) == claim
    assert story(second, "migration.table_settled") == claim
    assert story(second, "migration.finished") == claim


@pytest.mark.parametrize(
    "asked", [MigrationRequested, MigrationOpened, TransferSent, MigrationCommitRequested]
)
def test_a_plans_repeats_stay_in_its_story(sent: list[ToPeer], asked: type[Message]) -> None:
    """Goal: whatever a timer repeats for a migration is told under the plan, at both ends.
    Method: one member hears no such request for a while.
    """
    pump = Pump()
    pump.form(2)
    fill(pump)
    sent.clear()
    joiner = pump.start()
    for node in pump.nodes[1:]:
        deafen(node, asked)
    pump.run(6)
    causes = [one.cause for one in sent if isinstance(one.payload, asked)]
    assert len(causes) > 2
    assert set(causes) == {story(joiner, "members_installed")}


def test_repeats_of_a_publication_stay_in_its_story(sent: list[ToPeer]) -> None:
    """Goal: news are repeated under what brought them. Method: a member that hears none."""
    pump = Pump()
    pump.form(3)
    deafen(pump.nodes[2], TablePublished)
    sent.clear()
    joiner = pump.start()
    pump.run(4)
    to = pump.nodes[2].id
    causes = [
        one.cause for one in sent if isinstance(one.payload, TablePublished) and one.peer == to
    ]
    assert len(causes) > 2
    assert set(causes) == {story(joiner, "members_installed")}


@pytest.mark.parametrize("asked", [StateRequested, PromotionRequested])
def test_repeats_of_a_new_master_stay_in_its_story(
    sent: list[ToPeer], asked: type[Message]
) -> None:
    """Goal: recovery and promotions are repeated under the claim. Method: one hears none."""
    pump = Pump()
    master, second, third = pump.form(3)
    fill(pump)
    deafen(third, asked)
    sent.clear()
    pump.kill(master)
    pump.run(8)
    causes = [one.cause for one in sent if isinstance(one.payload, asked) and one.peer == third.id]
    assert len(causes) > 2
    assert set(causes) == {story(second, "mastership_claimed")}


def test_repeats_of_wishes_and_questions_stay_in_their_stories(sent: list[ToPeer]) -> None:
    """Goal: as for plans. Method: a master that hears neither changes of roles nor questions."""
    pump = Pump()
    master, other = pump.form(2)
    deafen(master, RoleChangeRequested)
    deafen(master, QuestionAsked)
    other.engine.want_role(True, lambda _: None, pump.now_us, pump.wall_ms)
    other.engine.ask(None, "cluster_state", b"", pump.now_us, pump.wall_ms, "00000002-7")
    other.engine.ask(None, "cluster_state", b"", pump.now_us, pump.wall_ms, "00000002-8")
    other.carry_out()
    pump.run(4)
    causes = [one.cause for one in sent if isinstance(one.payload, RoleChangeRequested)]
    assert len(causes) > 2 and len(set(causes)) == 1
    asked = [one for one in sent if isinstance(one.payload, QuestionAsked)]
    assert len(asked) > 4
    assert {one.cause for one in asked} == {"00000002-7", "00000002-8"}
    assert len({(one.cause, one.payload.call) for one in asked}) == 2  # type: ignore[union-attr]


def test_repeats_of_a_change_of_state_stay_in_its_story(sent: list[ToPeer]) -> None:
    """Goal: as for plans. Method: a member that does not hear that it is to stand still."""
    pump = Pump()
    master, other = pump.form(2)
    deafen(other, StateLockRequested)
    order = b'{"wish": "w", "state": "FROZEN"}'
    master.engine.ask(None, "change_cluster", order, pump.now_us, pump.wall_ms, "00000001-77")
    master.carry_out()
    pump.run(8)
    causes = [one.cause for one in sent if isinstance(one.payload, StateLockRequested)]
    assert len(causes) > 1
    assert set(causes) == {"00000001-77"}
    assert story(master, "state_change_refused") == "00000001-77"


def test_a_late_joiner_comes_in_under_its_own_start(sent: list[ToPeer]) -> None:
    """Goal: a list belongs to who is on it first, though a timer or a note let it in. Method: a
    member that does not hear of the joiner for a while.
    """
    pump = Pump()
    master, other = pump.form(2)
    handle = other.handle
    deafen(other, JoinersTold)
    joiner = pump.start()
    pump.run(3)
    assert not joiner.joined
    other.handle = handle  # type: ignore[method-assign]
    pump.run(10)
    requests = [one.cause for one in sent if isinstance(one.payload, JoinersTold)]
    assert len(requests) > 1
    assert story(master, "member_added", member=joiner.id) == story(joiner, "members_installed")
    assert story(joiner, "members_installed").startswith(joiner.id[:8])


@pytest.mark.parametrize("asked", [MigrationRequested, MigrationOpened, TablePublished])
def test_links_that_come_back_take_nobodys_story(sent: list[ToPeer], asked: type[Message]) -> None:
    """Goal: what is sent again when a link stands is told under its own cause, and what the link
    itself brings under the link's. Method: a plan under way, and a link that was broken.
    """
    pump = Pump()
    master, other = pump.form(2)
    fill(pump)
    joiner = pump.start()
    for node in (other, joiner):
        deafen(node, asked)
    pump.run(1)
    plan = story(joiner, "members_installed")
    for peer in (other, joiner):
        sent.clear()
        master.handle(LinkLost(peer.id))
        master.handle(LinkRestored(peer.id))
        again = [one.cause for one in sent if isinstance(one.payload, asked)]
        assert set(again) <= {plan}
        versions = {one.cause for one in sent if isinstance(one.payload, VersionsTold)}
        lists = {one.cause for one in sent if isinstance(one.payload, MembersPublished)}
        assert len(lists) == 1 and plan not in lists | versions
        if again:
            break
    assert again


def test_what_waits_for_its_turn_keeps_its_cause(sent: list[ToPeer]) -> None:
    """Goal: a source that begins a copy later begins it under the request's cause, not under that
    of what made room for it. Method: requests that come with a cause for each partition.
    """
    pump = Pump(quick_settings(migration_copy_bytes_max=1))
    _, other = pump.form(2)
    fill(pump)
    handle = other.handle

    def one_by_one(stimulus: Any) -> None:
        if isinstance(stimulus, Received) and isinstance(stimulus.message, MigrationRequested):
            pid = stimulus.message.migration.partition_id
            stimulus = msgspec.structs.replace(stimulus, cause=f"partition-{pid}")
        handle(stimulus)

    other.handle = one_by_one  # type: ignore[method-assign]
    sent.clear()
    pump.start()
    pump.run(10)
    found = {
        (one.payload.migration.partition_id, one.cause)
        for one in sent
        if isinstance(one.payload, MigrationOpened) and one.cause.startswith("partition-")
    }
    assert len(found) > 1
    assert all(cause == f"partition-{pid}" for pid, cause in found)


def test_messages_to_ourselves_keep_their_causes() -> None:
    """Goal: a master that is its own source or destination is no other story than others would be.
    Method: two letters to itself that it refuses with a note each, posted under two causes.
    """
    pump = Pump()
    master, other = pump.form(2)
    room, ctx = master.engine.member.migrations, master.engine.member.ctx
    migration = MigrationInfo(
        "x", PartitionId(0), Step(MigrationKind.CLEAR, None, None), other.id, 1
    )
    for cause in ("one-1", "two-1"):
        ctx.resume(cause)
        room._loopback.post(master.id, MigrationRequested(migration, ()))
    room.conclude()
    noted = [effect.cause for effect in ctx.effects if isinstance(effect, Note)]
    assert noted == ["one-1", "two-1"]


def test_a_member_that_dies_does_not_take_over_the_recovery() -> None:
    """Goal: what a new master settles is in the story of its claim, whoever is missing last."""
    pump = Pump()
    master, second, third = pump.form(3)
    deafen(third, StateRequested)
    pump.kill(master)
    pump.run(3)
    assert not [note for note in second.notes if note.kind == "migration.table_settled"]
    pump.kill(third)
    pump.run(10)
    assert story(second, "migration.table_settled") == story(second, "mastership_claimed")
    assert story(second, "member_removed", member=third.id) != story(second, "became_master")


def test_a_merge_is_one_story(sent: list[ToPeer]) -> None:
    """Goal: a timer that goes on with a merge, and offers again what was not answered, does so
    under what brought its entries in. Method: most answers are lost for a while.
    """
    pump = SplitPump(quick_settings())
    nodes = pump.form(4)
    pump.separate(60, nodes[:3], nodes[3:])
    other = pump.client(nodes[3], number=2)
    for number in range(20):
        pump.put(other, "m", f"k{number}", "small")
    pump.doomed = [MergeAnswered] * 6
    sent.clear()
    pump.heal_and_wait()
    fresh = pump.successors[nodes[3].number]
    merging = story(fresh, "split_brain.merging")
    requests = [one for one in sent if isinstance(one.payload, MergeRequested)]
    calls = {one.payload.call for one in requests}  # type: ignore[union-attr]
    assert len(requests) > len(calls) > 4, "some were repeated"
    assert {one.cause for one in requests} == {merging}
    assert story(fresh, "split_brain.merged") == merging


def test_an_order_is_one_story_on_every_member() -> None:
    """Goal: a change of the cluster state. Method: an operator's order through a third member."""
    pump = Pump()
    master, *others = pump.form(3)
    order = b'{"wish": "w", "state": "FROZEN"}'
    asker = others[1]
    asker.engine.ask(None, "change_cluster", order, pump.now_us, pump.wall_ms, "00000003-77")
    asker.carry_out()
    pump.run(2)
    assert story(master, "state_change_begun") == "00000003-77"
    for node in pump.living():
        assert story(node, "cluster_state_changed") == "00000003-77"


def test_a_refusal_is_in_the_story_of_the_order() -> None:
    """Goal: a change that a new list ends says so where it began. Method: a member dies."""
    pump = Pump()
    master, other, _ = pump.form(3)
    deafen(other)
    order = b'{"wish": "w", "state": "FROZEN"}'
    master.engine.ask(None, "change_cluster", order, pump.now_us, pump.wall_ms, "00000001-77")
    master.carry_out()
    pump.kill(other)
    pump.run(5)
    assert story(master, "state_change_refused") == "00000001-77"
    assert story(master, "member_removed", member=other.id) != "00000001-77"


def test_a_repeated_fact_stays_in_its_story(sent: list[ToPeer]) -> None:
    """Goal: an announcement of the registry is repeated under its cause, each its own."""
    pump = Pump()
    master, other = pump.form(2)
    deafen(other)
    sent.clear()
    for name in ("one", "two"):
        pump.client(master).ask("Map.put", owned(master), name=name, key=to_data(1), thread_id=1,
                                value=to_data(1), ttl=-1)  # fmt: skip
        pump.run(0.01)
    pump.run(3)
    told: dict[int, set[str]] = {}
    for one in sent:
        if isinstance(one.payload, RegistryTold) and one.peer == other.id:
            told.setdefault(one.payload.call, set()).add(one.cause)
    assert len(told) >= 2
    assert all(len(found) == 1 for found in told.values())
    assert len(set.union(*told.values())) == len(told)


def test_what_a_structure_needs_is_in_the_story_of_its_client() -> None:
    """Goal: a deeper row is planned under the call that asked for it, whoever calls next."""
    pump = Pump()
    master = pump.form(3)[0]
    first, second = pump.client(master), pump.client(master)
    put = dict[str, Any](name="b2 deep", key=to_data(1), thread_id=1, value=to_data(1), ttl=-1)
    ctx, carry_out = master.engine.member.ctx, master.carry_out
    master.carry_out = lambda: None  # type: ignore[method-assign]  # two calls in one turn
    made = ctx._causes
    first.ask("Map.put", owned(master), **put)
    assert ctx._causes == made + 1
    second.ask("Map.get", owned(master), name="b2 deep", key=to_data(1), thread_id=1)
    ctx.note("of the second")
    master.carry_out = carry_out  # type: ignore[method-assign]
    pump.run(10)
    assert story(master, "migration.planned") == f"00000001-{made + 1}"
    assert story(master, "of the second") != f"00000001-{made + 1}"


def test_sends_of_others_follow_from_what_they_answer(sent: list[ToPeer]) -> None:
    """Goal: an answer has the cause of its question. Method: pairs of a joined cluster's life."""
    pump = Pump()
    pump.form(2)
    fill(pump)
    pump.start()
    pump.run(10)
    answered = {
        "MigrationDataAnswered": ("MigrationRequested",),
        "TransferAnswered": ("MigrationOpened", "TransferSent"),
        "PublicationAnswered": ("TablePublished",),
    }
    by_kind: dict[str, set[str]] = {}
    for one in sent:
        by_kind.setdefault(type(one.payload).__name__, set()).add(one.cause)
    for answer, questions in answered.items():
        assert by_kind[answer] <= set[str]().union(*(by_kind[name] for name in questions))


def test_an_effect_without_a_context_has_none() -> None:
    """Goal: a shell may make notes; what it says of itself has no cause before it gives one."""
    assert Note("info", "x", {}).cause == ""
    assert Send(member_id(2), Heartbeat(1, None)).cause == ""
