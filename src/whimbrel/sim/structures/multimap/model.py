"""The multimap in a run: what is called, what the answers mean, what a value must show.

Every value is put once and says where it comes from. Half of them are meant to be removed again:
those that share their key with others by themselves, the others with their key. Keys are read, the
values of keys counted, and whole multimaps read, of sets and of lists.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from whimbrel.core.replication.fragments import Store
from whimbrel.serialization.data import HASH_BYTES
from whimbrel.sim.entropy import coin, pick
from whimbrel.sim.history import Ledger, Operation, Outcome, Reply
from whimbrel.sim.model import StructureModel
from whimbrel.sim.structures.configured import LIST_NAME
from whimbrel.sim.structures.multimap.ledger import (
    SCRATCH_NAME,
    SET_NAME,
    PairLedger,
    new_pair,
    store_of,
)
from whimbrel.sim.structures.multimap.operations import (
    OF_KEY,
    PUT,
    REMOVE_ENTRY,
    PairChange,
    ValuesCounted,
    ValuesRead,
)
from whimbrel.sim.world import ClientProcess, World
from whimbrel.structures.multimap.merging import read_values
from whimbrel.structures.multimap.settings import NAME

SCRATCH_WRITES = 6
"""Values of the scratch multimap before it is destroyed."""
FINAL_READS_MAX = 150
FIRST_LONE_KEY = 1_000_000
"""Keys from here on get one value."""
MANY_BYTES = 600
"""A run of larger values pads only some of them, so that a whole multimap stays quick to read."""


class MultiMapModel(StructureModel):
    """Draws calls on multimaps and books their answers."""

    kind = NAME
    service_name = "hz:impl:multiMapService"
    names = (SET_NAME, LIST_NAME)
    doomed_name = SCRATCH_NAME

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.pairs: dict[tuple[str, int], list[PairLedger]] = {}
        """By multimap and key, in the order of their puts."""
        self._random: random.Random = world.entropy.of("workload-multimap")
        self._removable: list[PairLedger] = []
        """Values that are there for certain and meant to be removed."""
        self._lone_keys = FIRST_LONE_KEY
        self._scratch_held: dict[PairLedger, None] = {}
        """Values of the scratch multimap that were put for certain and not destroyed."""

    def pair(self, name: str, key: int) -> PairLedger:
        """A new value under a key."""
        pairs = self.pairs.setdefault((name, key), [])
        plan = self.world.plan
        padding = self._random.randrange(plan.value_bytes_max)
        if padding > MANY_BYTES and coin(self._random, 0.7):
            padding = 0
        count = plan.settings.partition_count
        ledger = new_pair(name, key, len(pairs) + 1, count, plan.seed, padding)
        pairs.append(ledger)
        self.world.history.add(ledger)
        return ledger

    def _draw_pair(self, name: str) -> PairLedger:
        is_alone = coin(self._random, 0.3)
        key = self._random.randrange(self.world.plan.register_keys)
        if is_alone:
            key = self._lone_keys = self._lone_keys + 1
        ledger = self.pair(name, key)
        ledger.is_alone = is_alone
        ledger.is_written_once = coin(self._random, 0.5)
        return ledger

    def _draw_name(self) -> str:
        return pick(self._random, self.names)

    # -- calls ----------------------------------------------------------------------------

    def draw(self, client: ClientProcess) -> Operation:
        """A new value, the removal of one, or a look."""
        chance = self._random.random()
        if chance < 0.5:
            return self.write(client, self._draw_pair(self._draw_name()))
        if chance < 0.7 and self._removable:
            at = self._random.randrange(len(self._removable))
            return self._remove(client, self._removable.pop(at))
        name = self._draw_name()
        known = [key for one, key in self.pairs if one == name]
        key = pick(self._random, known) if known else 0
        if chance < 0.75:
            return self._read_all(client, name)
        return self._look(client, name, key, is_counted=chance > 0.9)

    def write(self, client: ClientProcess, ledger: Ledger) -> PairChange:
        """A put."""
        return self._change(client, _pair(ledger), PUT)

    def _remove(self, client: ClientProcess, ledger: PairLedger) -> PairChange:
        kind = pick(self._random, OF_KEY) if ledger.is_alone else REMOVE_ENTRY
        return self._change(client, ledger, kind)

    def _change(self, client: ClientProcess, ledger: PairLedger, kind: str) -> PairChange:
        number = len(ledger.changes) + 1
        change = PairChange(client.name, kind, ledger, number, self.world.now_us)
        ledger.changes.append(change)
        return change

    def read(self, client: ClientProcess, ledger: Ledger) -> ValuesRead:
        """The values of a key."""
        return self._look(client, ledger.name, _pair(ledger).key, is_counted=False)

    def _look(self, client: ClientProcess, name: str, key: int, *, is_counted: bool) -> ValuesRead:
        pairs = tuple(self.pairs.get((name, key), ()))
        kind, make = ("valueCount", ValuesCounted) if is_counted else ("get", ValuesRead)
        return make(client.name, kind, self._key(name, key), self.world.now_us, pairs)

    def _read_all(self, client: ClientProcess, name: str) -> ValuesRead:
        pairs = tuple(one for (of, _), known in self.pairs.items() if of == name for one in known)
        whole = self._key(name, 0)
        return ValuesRead(client.name, "entrySet", whole, self.world.now_us, pairs)

    def _key(self, name: str, key: int) -> PairLedger:
        return PairLedger(name, key, 0, self.world.plan.settings.partition_count)

    def draw_target(self) -> Ledger:
        """A new value, mostly of a multimap that stays."""
        name = SCRATCH_NAME if self._random.random() < 0.3 else self._draw_name()
        return self._draw_pair(name)

    def draw_doomed(self) -> list[Ledger]:
        """New values of the scratch multimap."""
        return [self._draw_pair(SCRATCH_NAME) for _ in range(SCRATCH_WRITES)]

    def doom(self) -> Callable[[], None]:
        """What the scratch multimap holds now must be gone then."""
        return self.gone_once_destroyed(self._scratch_held)

    def final_reads(self) -> list[Ledger]:
        """Keys of the multimaps that stay, those with many values first."""
        keys = sorted(
            (key for key in self.pairs if key[0] != SCRATCH_NAME),
            key=lambda key: (-len(self.pairs[key]), key),
        )
        return [self._key(name, key) for name, key in keys[:FINAL_READS_MAX]]

    # -- answers --------------------------------------------------------------------------

    def ended(self, operation: Operation, reply: Reply) -> None:
        """Book what was shown, and a change."""
        is_ok = reply.outcome is Outcome.OK
        if isinstance(operation, ValuesCounted):
            operation.seen = reply.answer
        elif isinstance(operation, ValuesRead):
            operation.shown = reply.answer or []
        elif isinstance(operation, PairChange):
            ledger = operation.ledger
            if is_ok and operation.kind != "delete":
                operation.is_done = bool(reply.answer)
                if operation.kind == PUT and not operation.is_done:
                    operation.seen = operation.number  # nobody else can have put it there
            self.world.history.book(operation)
            if ledger.name == SCRATCH_NAME:
                if is_ok and reply.attempts == 1:
                    self._scratch_held[ledger] = None
            elif is_ok and operation.kind == PUT and not ledger.is_written_once:
                self._removable.append(ledger)

    # -- what members hold ----------------------------------------------------------------

    @staticmethod
    def content(store: Store) -> dict[tuple[bytes, bytes], None]:
        """Every item with its key."""
        return dict.fromkeys(store_of(store).items())

    @staticmethod
    def merge_problem(
        policy: str, is_merged: bool, before: Any, store: Store | None, chunk: bytes
    ) -> str:
        """Of each value there is the greater number of what was there and what came along."""
        if store is None:
            return "" if not is_merged else "nothing is there"
        at = store_of(store).value_at + HASH_BYTES
        was = Counter((key[HASH_BYTES:], item[at:]) for key, item in before or ())
        now = Counter((key[HASH_BYTES:], item[at:]) for key, item in store_of(store).items())
        due = was.copy()
        if is_merged:
            for key, value, ordinal in read_values(chunk):
                one = (key[HASH_BYTES:], value[HASH_BYTES:])
                due[one] = max(due[one], ordinal)
        if now - due:
            return "there is a value that was on neither side, or more often than on either"
        return "a value did not come along, or went" if due - now else ""


def _pair(ledger: Ledger) -> PairLedger:
    if not isinstance(ledger, PairLedger):
        raise TypeError(f"{ledger.label} is no value of a multimap")
    return ledger
