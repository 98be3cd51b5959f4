"""The production core taken step by step: each distinct step of a member is run once.

A member that takes a stimulus at a moment does one thing, whatever the others do. So members are
kept as numbered snapshots, messages as numbered items, and a step (snapshot, moment, item) is run
once and remembered; interleavings of a whole world are then combinations of numbers. Snapshots
that were not used for long keep only how they came to be, and are made again when needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from whimbrel.core.effects import (
    ArmTimer,
    DiskWork,
    Effect,
    Expelled,
    Note,
    Send,
    SendTo,
    Stopped,
)
from whimbrel.core.ids import Address, MemberId, Namespace, PartitionId, Row
from whimbrel.core.invariants import check_member
from whimbrel.core.jobs import Job
from whimbrel.core.member import Member
from whimbrel.core.messages import DATA_CHANNEL, Message
from whimbrel.core.model import ClusterState, Verdict
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.core.stimuli import LinkRestored, Received, Stimulus, TimerFired
from whimbrel.errors import InvariantViolation, RetryableError
from whimbrel.sim.explore.image import CopyError, clone, digest
from whimbrel.sim.explore.step_rules import StepRules
from whimbrel.sim.explore.worlds import TinyWorld, name_of
from whimbrel.sim.structures.map.model import key_data, store_of
from whimbrel.structures.map.record import stored_key
from whimbrel.structures.map.service import MapService
from whimbrel.wire.links import ACKS, BACKUPS

SNAPSHOTS_MAX = 4_000
"""Members kept ready; others are made again from their recipes."""
GONE = -1
"""In the place of a member that has ended."""
CONTROL, DATA, NEWS = "control", "data", "news"
MAP_NAME = "m"
NAMESPACE = Namespace(f"map/{MAP_NAME}")
WALL_MS = 1_750_000_000_000

KEYS = tuple(key_data(number) for number in range(4))
STORED_KEYS = tuple(stored_key(key) for key in KEYS)

Plant = Callable[[Any], None]


class Frame(msgspec.Struct, frozen=True):
    """Backup operations or their acknowledgements on the data connection."""

    sender: MemberId
    kind: int
    payload: bytes


class Timer(msgspec.Struct, frozen=True):
    """The newest firing of a timer."""

    key: str


class Write(msgspec.Struct, frozen=True):
    """A client writes an entry."""

    number: int


class Plan(msgspec.Struct, frozen=True):
    """The master is told to look for work with other wishes than before."""

    rows: tuple[Row, ...]
    """The row that each partition shall have; none: it wishes for itself again."""


class Order(msgspec.Struct, frozen=True):
    """An operator wishes a cluster state."""

    state: ClusterState


Item = Stimulus | Frame | Timer | Write | Plan | Order | DiskWork


class Facts(msgspec.Struct, frozen=True):
    """What rules want to know of a snapshot without having the member at hand."""

    master: MemberId | None
    rows: tuple[Row, ...]
    versions: tuple[int, ...]
    verdicts: tuple[tuple[str, Verdict], ...]
    """Finished migrations that it lists."""
    numbers: tuple[int, ...]
    """Entries of the map that it holds, by number."""
    timers: tuple[tuple[int, str], ...]
    """Armed timers by (deadline in us, key)."""
    serves: bool
    """Whether it is in a cluster that runs."""


class StepResult(msgspec.Struct, frozen=True):
    """What a step does."""

    member: int
    """The snapshot after it, or GONE."""
    sends: tuple[tuple[str, str, int], ...] = ()
    """(receiver, channel, item); a receiver is a name, or an address with ``@`` before it"""
    rows: tuple[tuple[PartitionId, Row, Row, int], ...] = ()
    """Rows that changed: partition, before, after, version."""
    written: tuple[int, ...] = ()
    """Writes that are acknowledged now."""
    broken: tuple[tuple[str, str], ...] = ()
    """(rule, sentence)"""
    lost: tuple[int, ...] = ()
    """Partitions told as wholly lost."""
    works: tuple[int, ...] = ()
    """What the disk is asked to do, as items."""


class Seat:
    """A member and what its shell keeps for it."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.timers: dict[str, int] = {}
        """Armed timers: key to deadline in us."""
        self.released: list[tuple[MemberId, bytes]] = []
        """Acknowledgements that have waited for the disk, and go with this step."""

    def releaser(self, to: MemberId, payload: bytes) -> Callable[[bool], None]:
        """Lets an acknowledgement go that waits for the disk, as ``Server._release_ack`` does."""

        def release(is_kept: bool) -> None:
            incoming = self.member.dataplane.incoming
            told = payload if is_kept else incoming.refuse_held(to, payload)
            self.released.append((to, told))

        return release


def set_wish(member: Member, rows: tuple[Row, ...]) -> None:
    """Let repartitioning want these rows while all of their members are there to take them."""
    loop = member.migrations.loop
    ctx = member.ctx
    if not rows:
        vars(loop).pop("_targets", None)
        return
    usual = type(loop)._targets

    def targets() -> Job[list[Row]]:
        staying = [info.id for info in ctx.data_members() if info.id not in ctx.leaving]
        if all(one is None or one in staying for row in rows for one in row):
            return list(rows)
        return (yield from usual(loop))

    vars(loop)["_targets"] = targets


class Lab:
    """Snapshots, items and steps of one exploration."""

    def __init__(self, world: TinyWorld, plant: Plant | None = None) -> None:
        self.world = world
        self.plant = plant
        self.rules = StepRules(world)
        self.steps_run = 0
        """Steps of the core that were run, not remembered ones."""
        self.items: list[Item] = []
        self._item_numbers: dict[str, int] = {}
        self.facts: list[Facts] = []
        self.names: list[str] = []
        """Whose snapshot it is."""
        self._numbers: dict[bytes, int] = {}
        self._recipes: list[tuple[int, int, int] | Seat] = []
        self._ready: OrderedDict[int, Seat] = OrderedDict()
        self._steps: dict[tuple[int, int, int], StepResult] = {}

    # -- numbers --------------------------------------------------------------------------

    def item(self, item: Item) -> int:
        """The number of an item."""
        text = f"{type(item).__name__} {item!r}"
        number = self._item_numbers.get(text)
        if number is None:
            number = self._item_numbers[text] = len(self.items)
            self.items.append(item)
        return number

    def add(self, seat: Seat, recipe: tuple[int, int, int] | None = None) -> int:
        """The number of a snapshot; the seat must not be changed from now on."""
        name = name_of(seat.member.ctx.id)
        key = digest(seat, name)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.facts)
            self.facts.append(_facts_of(seat))
            self.names.append(name)
            self._recipes.append(recipe or seat)
            self._keep(number, seat)
        return number

    def _keep(self, number: int, seat: Seat) -> None:
        self._ready[number] = seat
        if len(self._ready) > SNAPSHOTS_MAX:
            self._ready.popitem(last=False)

    def seat(self, number: int) -> Seat:
        """A snapshot to look at; it must not be changed."""
        found = self._ready.get(number)
        if found is not None:
            self._ready.move_to_end(number)
            return found
        missing: list[tuple[int, int, int]] = []
        at = number
        while found is None:
            recipe = self._recipes[at]
            if isinstance(recipe, Seat):
                found = recipe
            else:
                missing.append((at, recipe[1], recipe[2]))
                at = recipe[0]
                found = self._ready.get(at)
        parent = at
        for at, now_us, item in reversed(missing):
            found = self.copy(parent)
            _Step(self, found, now_us).run(self.items[item])
            self._keep(at, found)
            parent = at
        return found

    def copy(self, number: int) -> Seat:
        """A snapshot to be changed; its last steps are taken again where it cannot be copied."""
        try:
            return clone(self.seat(number))
        except CopyError:
            recipe = self._recipes[number]
            if isinstance(recipe, Seat):
                raise
            parent, now_us, item = recipe
            seat = self.copy(parent)
            _Step(self, seat, now_us).run(self.items[item])
            return seat

    # -- steps ----------------------------------------------------------------------------

    def step(self, number: int, now_us: int, item: int) -> StepResult:
        """What a member does with an item at a moment."""
        key = (number, now_us, item)
        outcome = self._steps.get(key)
        if outcome is None:
            self.steps_run += 1
            seat = self.copy(number)
            step = _Step(self, seat, now_us)
            step.run(self.items[item])
            after = GONE if step.ended else self.add(seat, key)
            outcome = self._steps[key] = step.outcome(after)
        return outcome


class _Step:
    """One run of the core, with probes in it for its length."""

    def __init__(self, lab: Lab, seat: Seat, now_us: int) -> None:
        self.lab = lab
        self.seat = seat
        self.now_us = now_us
        self.ended = False
        self.sends: list[tuple[str, str, int]] = []
        self.rows: list[tuple[PartitionId, Row, Row, int]] = []
        self.written: list[int] = []
        self.broken: list[tuple[str, str]] = []
        self.lost: list[int] = []
        self.works: list[int] = []

    def outcome(self, member: int) -> StepResult:
        """What came of it."""
        return StepResult(
            member,
            tuple(self.sends),
            tuple(self.rows),
            tuple(self.written),
            tuple(self.broken),
            tuple(self.lost),
            tuple(self.works),
        )

    def run(self, item: Item) -> None:
        """Let the member take the item and carry out what it wants."""
        table = self.seat.member.migrations.table
        set_row = table.set_row
        rules, host = self.lab.rules, self.lab.rules.host(self.seat.member, item)

        def probed(pid: PartitionId, row: Row, version: int) -> None:
            before, version_before = table.rows[pid], table.versions[pid]
            set_row(pid, row, version)
            self.rows.append((pid, before, row, version))
            self.broken += rules.row(host, pid, before, row, version_before, version)

        vars(table)["set_row"] = probed
        try:
            self._take(item)
            self._drain()
            self._forget_timers()
            check_member(self.seat.member)
        except InvariantViolation as error:
            self._break("X2", f"{host.name} stopped: {error}")
            self.ended = True
        except Exception as error:
            self._break("X2", f"{host.name}: {type(error).__name__}: {error}")
            self.ended = True
        finally:
            del vars(table)["set_row"]

    def _break(self, rule: str, sentence: str) -> None:
        self.broken.append((rule, sentence))

    def _take(self, item: Item) -> None:
        member = self.seat.member
        if isinstance(item, Frame):
            member.begin(self.now_us, WALL_MS)
            if not member.is_expelled and member.ctx.is_member(item.sender):
                take = member.dataplane.outgoing.apply_acks if item.kind == ACKS else None
                (take or member.dataplane.incoming.apply_backups)(item.sender, item.payload)
        elif isinstance(item, Timer):
            del self.seat.timers[item.key]
            generation = member.ctx._armed.get(item.key, 0)
            member.begin(self.now_us, WALL_MS)
            member.apply(TimerFired(item.key, generation))
        elif isinstance(item, Write):
            self._write(item.number)
        elif isinstance(item, Plan):
            member.begin(self.now_us, WALL_MS)
            set_wish(member, item.rows)
            member.migrations.loop.trigger("explored")
            member.migrations.conclude()
        elif isinstance(item, Order):
            member.begin(self.now_us, WALL_MS)
            member.membership.change_cluster(str(item), item.state)
        elif isinstance(item, DiskWork):
            raise TypeError("a work is the disk's")
        else:
            member.begin(self.now_us, WALL_MS)
            member.apply(item)

    def _write(self, number: int) -> None:
        member = self.seat.member
        member.begin(self.now_us, WALL_MS)
        plane = member.dataplane
        reply = PendingReply(payload=number)
        try:
            pid = self.lab.world.partition_of(number)
            maps = member.service(MapService)
            maps.set(plane.partitions[pid], NAMESPACE, KEYS[number], b"\0" * 8 + b"v", reply)
        except RetryableError:
            return
        if reply.remaining <= 0 and not reply.failed:
            self.written.append(number)

    def _drain(self) -> None:
        """Carry out effects and frames until there are none, as ``Server.flush`` orders them."""
        member = self.seat.member
        plane, log = member.dataplane, member.persistence.log
        for effect in member.take_effects():
            self._carry_out(effect)
        for reply in plane.outgoing.completed:
            if not reply.failed and isinstance(reply.payload, int):
                self.written.append(reply.payload)
        plane.outgoing.completed.clear()
        plane.incoming.take_notifications()
        for to, payload in plane.outgoing.take_backups():
            self._send_frame(to, BACKUPS, payload)
        for to, payload in self.seat.released:
            self._send_frame(to, ACKS, payload)
        self.seat.released.clear()
        for to, payload in plane.incoming.take_acks():
            if log is None or not log.hold_back(self.seat.releaser(to, payload)):
                self._send_frame(to, ACKS, payload)
        if log is not None:
            log.flush()
        for effect in member.take_effects():
            self._carry_out(effect)

    def _forget_timers(self) -> None:
        """A timer that was taken back does not fire."""
        timers, ctx = self.seat.timers, self.seat.member.ctx
        for key in [key for key in timers if not ctx.is_armed(key)]:
            del timers[key]

    def _send_frame(self, to: MemberId, kind: int, payload: bytes) -> None:
        frame = Frame(self.seat.member.ctx.id, kind, payload)
        self.sends.append((name_of(to), DATA, self.lab.item(frame)))

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            channel = DATA if isinstance(effect.message, DATA_CHANNEL) else CONTROL
            self.sends.append((name_of(effect.to), channel, self._received(effect.message)))
        elif isinstance(effect, SendTo):
            item = self._received(effect.message)
            self.sends.append((f"@{effect.address.host}", CONTROL, item))
        elif isinstance(effect, ArmTimer):
            self.seat.timers[effect.key] = effect.at_us
        elif isinstance(effect, DiskWork):
            self.works.append(self.lab.item(DiskWork(effect.number, effect.commands, cause="")))
        elif isinstance(effect, Note):
            self._noted(effect)
        elif isinstance(effect, Expelled):
            self._break("M5", f"it was told to go: {effect.reason}")
            self.ended = True
        elif isinstance(effect, Stopped):
            if effect.exit_status:
                self._break("X2", f"it has given up: {effect.reason}")
            self.ended = True

    def _received(self, message: Message) -> int:
        me = self.seat.member.ctx.me
        return self.lab.item(Received(me.id, me.address, message, me.started_us))

    def _noted(self, note: Note) -> None:
        if note.kind == "partition.lost":
            if note.level == "error":
                self.lost.append(int(note.fields["partition"] or 0))
        elif note.level == "error":
            self._break("X2", f"{note.kind}: {note.fields}")


def _facts_of(seat: Seat) -> Facts:
    member = seat.member
    table = member.migrations.table
    held: list[int] = []
    for replica in member.dataplane.partitions:
        fragment = replica.fragments.get(NAMESPACE)
        if fragment is not None:
            held += numbers_in(store_of(fragment.store).records)
    return Facts(
        member.ctx.master,
        tuple(table.rows),
        tuple(table.versions),
        tuple((one.id, one.verdict) for one in member.migrations.completed_migrations()),
        tuple(sorted(held)),
        tuple(sorted((at_us, key) for key, at_us in seat.timers.items())),
        member.is_joined,
    )


def numbers_in(records: dict[bytes, bytes]) -> tuple[int, ...]:
    """Which of the entries are there."""
    return tuple(number for number, key in enumerate(STORED_KEYS) if key in records)


def address_of(name: str) -> Address:
    """Where a member listens."""
    return Address(name, 5701)


def describe(item: Item) -> str:
    """An item for people."""
    if isinstance(item, Received):
        return type(item.message).__name__
    if isinstance(item, Frame):
        return "acknowledgements" if item.kind == ACKS else "backups"
    if isinstance(item, LinkRestored):
        return "LinkRestored"
    return type(item).__name__


def fake_engine(member: Member) -> Any:
    """What a planted bug expects: something with a member."""
    return SimpleNamespace(member=member)
