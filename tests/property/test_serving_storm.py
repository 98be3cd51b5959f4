"""Random work on a cluster of engines while members join, leave and die.

A model keeps, for every key, the values that a read may return: one, or several after a write
whose outcome is unknown. Delivery is instant and ordered; the simulator has the bad networks.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from tests.unit.engine_pump import Client, Error, Node, Pump, quick_settings

from whimbrel.core.invariants import check_member
from whimbrel.core.stimuli import LeaveWanted
from whimbrel.serialization.data import to_data
from whimbrel.wire.fast_codec import BACKUP_ACKS_AT

NAMES = ("b1 storm", "b2 storm")
KEYS = 60
MEMBERS_MAX = 5
UNKNOWN = 80


class Storm:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = self.rng.choice([1, 2, 3, 7, 31])
        settings = quick_settings(
            partition_count=self.count,
            migration_chunk_bytes_max=self.rng.choice([1, 100, 262_144]),
            migration_copy_bytes_max=random.Random(seed ^ 0x7A11).choice([1, 8_388_608]),
        )
        self.pump = Pump(settings, encoded=self.rng.random() < 0.3)
        self.pump.form(self.rng.randint(2, 4))
        self.possible: dict[tuple[str, int], set[bytes | None]] = {}
        self.clients: dict[str, Client] = {}
        self.leaving: list[Node] = []
        self.promised: Counter[int] = Counter()
        self.aware: list[Client] = []
        self.sequence = 0
        self.unexpected = 0
        """Errors other than that of an unknown outcome."""

    # -- what happens to the cluster ------------------------------------------------------

    def shake(self) -> None:
        """Maybe start, kill or stop a member, or let time pass."""
        pump, chance = self.pump, self.rng.random()
        staying = [node for node in pump.living() if node.joined and node not in self.leaving]
        if chance < 0.08 and len(pump.living()) < MEMBERS_MAX:
            pump.start()
        elif chance < 0.13 and len(pump.living()) > 2:
            self.settle()
            if len(pump.living()) > 1:  # leavers may have gone meanwhile
                pump.kill(self.rng.choice(pump.living()))
        elif chance < 0.18 and len(staying) > 1:
            node = self.rng.choice(staying)
            self.leaving.append(node)
            node.handle(LeaveWanted())
        elif chance < 0.25:
            pump.run(self.rng.choice([0.01, 0.3, 2.0]))

    def settle(self) -> None:
        """Wait until the cluster is at rest, and look whether it is in order."""
        pump = self.pump
        pump.run(40)
        tables = []
        for node in pump.living():
            check_member(node.engine.member)
            tables.append(node.engine.member.migrations.table)
            assert node.engine.member.dataplane.unsettled() == 0
        assert all(table.rows == tables[0].rows for table in tables)
        assert all(table.versions == tables[0].versions for table in tables)
        masters = [node for node in pump.living() if node.engine.member.ctx.is_master]
        assert len(masters) == 1
        assert masters[0].engine.member.migrations.is_settled() == (True, "")

    # -- what clients do ------------------------------------------------------------------

    def client(self, partition: int) -> Client:
        """A client of any member; or one that counts backups, of the partition's primary."""
        node = self.rng.choice([node for node in self.pump.living() if node.joined])
        owners = [
            other
            for other in self.pump.living()
            if other.engine.member.dataplane.partitions[partition].is_primary
        ]
        smart = bool(owners) and self.rng.random() < 0.3
        if smart:
            node = owners[0]
        name = f"{node.id} {smart}"
        if name not in self.clients or self.clients[name].closed:
            client = self.pump.client(node, smart, number=5 if smart else 6)
            client.correlation = self.sequence * 1_000
            if smart:
                client.call("Client.localBackupListener")
                self.aware.append(client)
            self.clients[name] = client
        return self.clients[name]

    def work(self) -> None:
        """One call on a random key, checked against the model."""
        name, number = self.rng.choice(NAMES), self.rng.randrange(KEYS)
        partition = number % self.count
        self.sequence += 1
        possible = self.possible.setdefault((name, number), {None})
        value = to_data(self.sequence)
        method, after = self.rng.choice(
            [("put", value), ("put", value), ("get", None), ("get", None), ("remove", None)]
        )
        fields: dict[str, Any] = {"name": name, "key": to_data(number), "thread_id": 1}
        if method == "put":
            fields.update(value=value, ttl=-1)
        try:
            client = self.client(partition)
            correlation = client.ask(f"Map.{method}", partition, **fields)
            found = self.answered(client, correlation)
            assert found in possible, (name, number, method)
            self.possible[(name, number)] = {found if method == "get" else after}
        except (Error, EOFError) as error:
            self.unexpected += isinstance(error, Error) and error.code != UNKNOWN
            if method != "get":
                self.possible[(name, number)] = {*possible, after}
        self.pump.run(self.rng.choice([0, 0, 0.001, 0.02]))

    def answered(self, client: Client, correlation: int) -> Any:
        """The answer; the backups that it announces are noted."""
        self.pump.run_until(lambda: correlation in client.messages or client.closed, 60)
        message = client.messages.get(correlation)
        if message is not None and message[4] != 0 and client.smart:
            buffer, start = message[0], message[1]
            self.promised[correlation] += buffer[start + BACKUP_ACKS_AT]
        return client.answer(correlation)

    # -- at the end -----------------------------------------------------------------------

    def judge(self) -> None:
        """All values are as the model says, and no backup was told that was not announced."""
        self.settle()
        assert self.unexpected == 0
        client = self.pump.client(self.pump.living()[0], number=7)
        for (name, number), possible in self.possible.items():
            key = to_data(number)
            found = client.call("Map.get", number % self.count, name=name, key=key, thread_id=1)
            assert found in possible, (name, number)
        for name in NAMES:
            mine = [possible for (which, _), possible in self.possible.items() if which == name]
            size = client.call("Map.size", name=name)
            assert sum(None not in possible for possible in mine) <= size
            assert size <= sum(possible != {None} for possible in mine)
        told: Counter[int] = Counter()
        for aware in self.aware:
            told.update(fields["source_correlation_id"] for _, _, fields in aware.taken_events())
        # A backup may acknowledge and leave at once; then it may be counted by itself and for it.
        assert all(self.promised[correlation] > 0 for correlation in told)


@pytest.mark.parametrize("seed", range(8))
def test_random_work_in_a_changing_cluster(seed: int) -> None:
    """Goal: no acknowledged write is lost, no read is wrong, tables agree and everything settles.
    Method: 50 rounds of calls, between them joins, leaves and, from rest, kills.
    """
    storm = Storm(seed)
    for _ in range(50):
        storm.shake()
        for _ in range(storm.rng.randint(1, 15)):
            storm.work()
    storm.judge()
