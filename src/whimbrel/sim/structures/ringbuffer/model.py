"""The ring buffer in a run: what is called, and what the answers mean.

Clients add to, look at and follow three ring buffers: one for a hundred items, one that overwrites
most of the time, and one whose items end by themselves; a fourth one is written and destroyed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from whimbrel.core.merging.past import Past
from whimbrel.core.replication.fragments import Store
from whimbrel.sim.entropy import pick
from whimbrel.sim.history import Ledger, Operation, Outcome, Reply
from whimbrel.sim.items import PRODUCER, code_of, item_data
from whimbrel.sim.model import StructureModel
from whimbrel.sim.structures.configured import (
    RING_ITEMS,
    SHORT_RING,
    SMALL_RING,
    SMALL_RING_ITEMS,
)
from whimbrel.sim.structures.ringbuffer.ledger import RingLedger, store_of
from whimbrel.sim.structures.ringbuffer.operations import RingAdd, RingFollow, RingRead
from whimbrel.sim.world import ClientProcess, World
from whimbrel.structures.ringbuffer.record import FOR_EVER, TIME_BYTES, ends_ms, read_items
from whimbrel.structures.ringbuffer.store import read_head

RING = "sim.ring"
SCRATCH_RING = "sim.scratch-ring"
SCRATCH_ADDS = 6
"""Additions to the scratch ring buffer before it is destroyed."""
WEIGHTS = {"add": 40, "addAll": 10, "look": 25, "follow": 25}
BATCH_ITEMS_MAX = 8
"""Of one addition, or look; more than the small ring buffer has."""
PATIENCE_US = 3_000_000
"""How long a client waits for the next item."""
WAITED_US = 200_000
"""A read that is served after so long has waited for more than messages."""
WAITED = "a read waits for the next item of a ring buffer and is served"


@dataclass(frozen=True, slots=True)
class Content:
    """What equal replicas of a ring buffer have in common."""

    head: int
    items: tuple[bytes, ...]
    past: Past

    def __len__(self) -> int:
        return len(self.items) - self.items.count(b"")

    def values(self) -> list[bytes]:
        """The items without their times."""
        return [item[TIME_BYTES:] for item in self.items if item]


NOTHING = Content(0, (), Past(0, ()))


class RingbufferModel(StructureModel):
    """Draws calls on ring buffers and books their answers."""

    kind = "ringbuffer"
    service_name = "hz:impl:ringbufferService"
    names = (RING, SMALL_RING, SHORT_RING)
    doomed_name = SCRATCH_RING

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._random: random.Random = world.entropy.of("workload-ringbuffer")
        self._rings = [
            self._begin(RING, RING_ITEMS, is_judged=True),
            self._begin(SMALL_RING, SMALL_RING_ITEMS, is_judged=True),
            self._begin(SHORT_RING, RING_ITEMS, is_judged=False),
        ]
        self._scratch = self._begin(SCRATCH_RING, RING_ITEMS, is_judged=False)
        self._sent: dict[int, int] = {}
        """Producer to the number of its items so far."""

    def _begin(self, name: str, capacity: int, *, is_judged: bool) -> RingLedger:
        plan = self.world.plan
        count = plan.settings.partition_count
        ledger = RingLedger(name, plan.seed, count, capacity, is_judged=is_judged)
        self.world.history.add(ledger)
        return ledger

    # -- calls ----------------------------------------------------------------------------

    def draw(self, client: ClientProcess) -> Operation:
        """Any call on one of the three ring buffers."""
        ledger = pick(self._random, self._rings)
        (kind,) = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if kind == "look":
            return self.read(client, ledger)
        if kind == "follow":
            return self._follow(client, ledger)
        count = 1 if kind == "add" else self._random.randint(2, BATCH_ITEMS_MAX)
        return self._add(client, ledger, client.index + 1, count)

    def read(self, client: ClientProcess, ledger: Ledger) -> RingRead:
        """A look at the last items, or at others."""
        ring = _ring(ledger)
        count = self._random.randint(1, BATCH_ITEMS_MAX)
        start = max(0, ring.tail - self._random.randrange(2 * count))
        return RingRead(client.name, ring, self.world.now_us, start, count)

    def _follow(self, client: ClientProcess, ledger: RingLedger) -> RingFollow:
        """A read of the next item, or of one of the last; who listens does not wait."""
        at = ledger.tail + 1 - self._random.choice((0, 0, 1, 2)) - (client.index == 0)
        operation = RingFollow(client.name, ledger, self.world.now_us, max(0, at), 1)
        if client.index == 0 and ledger.tail < 0:
            operation.is_impatient = True
        self.world.scheduler.after(PATIENCE_US, self._lose_patience, client, operation)
        return operation

    def _lose_patience(self, client: ClientProcess, operation: RingFollow) -> None:
        if operation.outcome is Outcome.PENDING and not operation.is_impatient:
            operation.is_impatient = True
            operation.tired_us = self.world.now_us
            for host in self.world.hosts:
                client.break_connection(host)

    def write(self, client: ClientProcess, ledger: Ledger) -> RingAdd:
        """One item of nobody in particular."""
        return self._add(client, _ring(ledger), 0, 1)

    def _add(self, client: ClientProcess, ledger: RingLedger, producer: int, count: int) -> RingAdd:
        plan = self.world.plan
        operation = RingAdd(client.name, ledger, self.world.now_us)
        for _ in range(count):
            number = self._sent[producer] = self._sent.get(producer, 0) + 1
            code = producer * PRODUCER + number
            padding = self._random.randrange(plan.value_bytes_max)
            operation.codes.append(code)
            operation.items.append(item_data(plan.seed, code, padding))
        ledger.begin(operation)
        return operation

    def draw_target(self) -> Ledger:
        """The large ring buffer."""
        return self._rings[0]

    def draw_doomed(self) -> list[Ledger]:
        """The scratch ring buffer."""
        return [self._scratch] * SCRATCH_ADDS

    def doom(self) -> Callable[[], None]:
        """What the scratch one holds now must be gone then; what comes later is another one."""
        doomed = self._scratch
        doomed.doomed = frozenset(doomed.given.values())
        self._scratch = self._begin(SCRATCH_RING, RING_ITEMS, is_judged=False)

        def gone() -> None:
            self.world.history.destroyed[doomed] = None

        return gone

    def final_reads(self) -> list[Ledger]:
        """Those that stay."""
        return list(self._rings)

    # -- answers --------------------------------------------------------------------------

    def ended(self, operation: Operation, reply: Reply) -> None:
        """Book the sequences that were given, or what was shown."""
        seed = self.world.plan.seed
        if isinstance(operation, RingAdd):
            ledger = operation.ledger
            if reply.answer is not None:
                operation.last = reply.answer
                if ledger is not self._scratch or reply.attempts == 1:
                    ledger.ended(operation)
            self.world.history.book(operation)
            return
        if not isinstance(operation, RingRead):
            raise TypeError(f"{operation!r} is no call on a ring buffer")
        operation.pairs = [(number, code_of(seed, item)) for number, item in reply.answer or ()]
        if operation.pairs:
            operation.seen = operation.ledger.number_of(operation.pairs[-1][1])
        waited_us = operation.completed_us - operation.invoked_us
        if isinstance(operation, RingFollow) and operation.pairs and waited_us > WAITED_US:
            self.world.sometimes(WAITED)

    # -- what members hold ----------------------------------------------------------------

    @staticmethod
    def content(store: Store) -> Content:
        """The items with their places and times, and who has numbered them."""
        ring = store_of(store)
        return Content(ring.head, tuple(ring.items(ring.head, ring.next)), ring.past)

    @staticmethod
    def merge_problem(
        policy: str, is_merged: bool, before: Any, store: Store | None, chunk: bytes
    ) -> str:
        """What the smaller part added since the split comes to the tail, in its order.

        Items whose time is over do not come, and go.
        """
        past, _, first, start = read_head(chunk)
        known = NOTHING if before is None else before
        now = NOTHING if store is None else RingbufferModel.content(store)
        parting = known.past.parting(past)
        items = list(read_items(chunk, start, len(chunk))) if is_merged else []
        own = [item for number, item in enumerate(items, first) if item and number >= parting]
        has_ends = any(ends_ms(item) != FOR_EVER for item in (*known.items, *own) if item)
        came, found = [item[TIME_BYTES:] for item in own], now.values()
        if has_ends:
            tails = (known.values() + came[at:] for at in range(len(came) + 1))
            is_right = any(_is_tail(found, wanted) for wanted in tails)
        else:
            is_right = len(found) >= len(known) and _is_tail(found, known.values() + came)
        return "" if is_right else f"{len(own)} items came, {len(known)} became {len(now)}"


def _is_tail(found: list[bytes], wanted: list[bytes]) -> bool:
    """Whether items are the last ones of others."""
    return len(found) <= len(wanted) and wanted[len(wanted) - len(found) :] == found


def _ring(ledger: Ledger) -> RingLedger:
    if not isinstance(ledger, RingLedger):
        raise TypeError(f"{ledger.label} is no ring buffer")
    return ledger
