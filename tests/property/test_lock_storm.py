"""Goal: in a cluster of engines that changes all the time, whoever was told that it holds a lock
holds it, alone, until it gives it back or dies.

People lock a key, write it, read their own value back and unlock; whoever waits, waits. A person
whose member dies connects to another one and makes its call again, under the same reference, as
clients do. Some die, and others take their place. Delivery is instant and ordered.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.property.test_serving_storm import Storm
from tests.unit.engine_pump import Client, Node

from whimbrel.serialization.data import to_data
from whimbrel.wire import errors as codes
from whimbrel.wire.codec import decode_response
from whimbrel.wire.errors import decode_errors

NAME = "b1 locks"
KEYS = 3
PEOPLE = 6
STEP_US = 50_000
LEASES: dict[str, dict[str, int]] = {"lock": {"ttl": -1}, "tryLock": {"lease": -1, "timeout": 700}}
GIVEN_UP = "x"
"""What a call came to that its caller does not make again."""


class Person:
    """One client with one thread, which does one thing after the other."""

    def __init__(self, storm: LockStorm, number: int) -> None:
        self.storm = storm
        self.number = number
        self.rng = random.Random(f"{storm.seed}/{number}")
        self.client: Client | None = None
        self.call: tuple[str, dict[str, Any], int] | None = None
        """What it has asked: method, fields, correlation."""
        self.key = 0
        self.plan: list[str] = []
        """What it does next with its key."""
        self.holds = False
        self.value = b""
        self.turns = 0

    def step(self) -> None:
        """Look for the answer, and go on."""
        if self.client is None or self.client.closed:
            self.connect()
            if self.client is not None and self.call is not None:
                self.ask_again()
        elif self.call is None:
            self.go_on()
        elif self.call[2] in self.client.messages:
            self.take(self.client.messages.pop(self.call[2]))

    def connect(self) -> None:
        nodes: list[Node] = [one for one in self.storm.pump.living() if one.joined]
        if nodes:
            self.client = Client(self.rng.choice(nodes), number=self.number)
            self.client.connect()
            self.client.ask("Client.authentication", **self.client.credentials())

    def ask_again(self) -> None:
        """The connection broke: what may be repeated is asked of another member."""
        assert self.call is not None
        method, fields, _ = self.call
        if method in ("lock", "tryLock", "unlock"):
            self.ask(method, fields)
        else:
            self.done(method, GIVEN_UP)

    def ask(self, method: str, fields: dict[str, Any]) -> None:
        assert self.client is not None
        partition = self.key % self.storm.count
        self.call = (method, fields, self.client.ask(f"Map.{method}", partition, **fields))

    def go_on(self) -> None:
        """Do the next thing, or think of another one."""
        if not self.plan:
            self.key = self.rng.randrange(KEYS)
            how = self.rng.choice(["lock", "lock", "tryLock", "put"])
            self.plan = [how] if how == "put" else [how, "put", "get", "unlock"]
        method = self.plan.pop(0)
        fields: dict[str, Any] = {"name": NAME, "key": to_data(self.key), "thread_id": 1}
        if method == "put":
            self.turns += 1
            self.value = to_data(f"{self.number}/{self.turns}")
            fields |= {"value": self.value, "ttl": -1}
        elif method != "get":
            self.storm.sequence += 1
            fields["reference_id"] = self.storm.sequence
            fields |= {"lock": {"ttl": -1}, "tryLock": {"lease": -1, "timeout": 700}}.get(
                method, {}
            )
        if method == "unlock":
            self.holds = False  # it may be carried out at any time from now on
        self.ask(method, fields)

    def take(self, message: Any) -> None:
        """An answer is here; an error that says nothing has happened is no end of a lock call."""
        assert self.call is not None
        method, fields, _ = self.call
        if message[4] == 0:
            code = decode_errors(message)[0].error_code
            assert code != codes.ILLEGAL_MONITOR_STATE, f"{self.number} has lost its lock"
            if method in ("lock", "tryLock", "unlock"):
                self.ask(method, fields)
            else:
                self.done(method, GIVEN_UP)
        else:
            answer = decode_response(message)[1]
            self.done(method, answer.get("response"))

    def done(self, method: str, answer: Any) -> None:
        """A call has ended."""
        self.call = None
        if method == "lock" or (method == "tryLock" and answer is True):
            self.storm.acquired(self)
        elif method == "tryLock":
            self.plan.clear()
        elif method == "put" and answer == GIVEN_UP and self.holds:
            self.plan = ["unlock"]
        elif method == "get" and answer != GIVEN_UP:
            assert answer == self.value, "somebody else has written a locked key"


class LockStorm(Storm):
    """A storm with people in it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed = seed
        self.people = [Person(self, 100 + number) for number in range(PEOPLE)]
        self.born = PEOPLE
        self.locked = 0
        self.is_over = False
        self.pump.at(STEP_US, self.let_live)

    def let_live(self) -> None:
        """Everybody does something; now and then somebody dies."""
        if self.is_over:
            return
        self.pump.at(STEP_US, self.let_live)
        for place, person in enumerate(self.people):
            if self.rng.random() < 0.002 and person.client is not None and not person.client.closed:
                self.end(person.client)
                self.people[place] = Person(self, 100 + self.born)
                self.born += 1
            else:
                person.step()

    def end(self, client: Client) -> None:
        """The connection of somebody who died."""
        client.node.clients.pop(client.conn, None)
        client.node.engine.client_closed(client.conn)
        client.node.carry_out()

    def acquired(self, person: Person) -> None:
        """Somebody was told that it holds its key."""
        others = [one.number for one in self.people if one.holds and one.key == person.key]
        assert not others, f"{person.number} and {others} hold key {person.key}"
        person.holds = True
        self.locked += 1

    def judge(self) -> None:
        """At rest everybody has had its turn; once all are gone every lock is."""
        before = self.locked
        self.settle()
        assert self.locked > before + 10, "nobody gets a lock any more"
        self.is_over = True
        for person in self.people:
            if person.client is not None and not person.client.closed:
                self.end(person.client)
        self.pump.run(10)
        figures = [node.engine.metrics() for node in self.pump.living()]
        assert sum(one["map_locks_held"] for one in figures) == 0
        assert sum(one["waiting_calls"] + one["waiting_call_hints"] for one in figures) == 0


@pytest.mark.parametrize("seed", range(4))
def test_locks_in_a_changing_cluster(seed: int) -> None:
    """Goal: no two hold a key, nobody loses one or finds it written by another, nobody waits for
    ever. Method: joins, leaves and, from rest, kills, while people lock and die.
    """
    storm = LockStorm(seed)
    for _ in range(40):
        storm.shake()
        storm.pump.run(storm.rng.choice([0.05, 0.5, 2]))
    storm.judge()
