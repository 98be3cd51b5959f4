"""Flake ids: never twice, roughly by time, and as clients count them."""

from __future__ import annotations

import pytest
from tests.unit.engine_pump import Client, Error, Node, Pump

from whimbrel.core.context import Context
from whimbrel.core.ids import Address, MemberId, Namespace, namespace_of
from whimbrel.core.model import NO_NUMBER, MemberInfo
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import IllegalStateError, RetryableError, UsageError
from whimbrel.structures.flake_id_generator.service import BATCH_MAX, EPOCH_MS, INCREMENT, FlakeIds
from whimbrel.structures.flake_id_generator.settings import NAME, FlakeIdGeneratorSettings

NOW_MS = EPOCH_MS + 250_000_000_000
IDS = namespace_of(NAME, "ids")
OTHER = namespace_of(NAME, "other")
SERVICE = "hz:impl:flakeIdGeneratorService"
OUT_OF_RANGE = 81


class Maker:
    """The generators of a member with number 5, at a time that the test says."""

    def __init__(self) -> None:
        settings = CoreSettings(structures=(FlakeIdGeneratorSettings("default", 15_000),))
        self.ctx = Context(MemberInfo(MemberId("m"), Address("h", 1)), settings, 7_000_000)
        self.ctx.wall_ms = NOW_MS
        self.ids = FlakeIds(self.ctx)

    def make(self, size: int = 1, namespace: Namespace = IDS) -> list[int]:
        base = self.ids.batch(namespace, size, 5)
        return [base + k * INCREMENT for k in range(size)]

    def passes(self, ms: int) -> None:
        self.ctx.wall_ms += ms
        self.ctx.now_us += 1_000 * ms


def parts(flake_id: int) -> tuple[int, int, int]:
    """(milliseconds since the epoch, sequence, number) of an id."""
    return flake_id >> 22, flake_id >> 16 & 63, flake_id & 0xFFFF


def test_an_id_is_moment_sequence_and_number() -> None:
    """Goal: the layout that every client and tool reads. Method: take ids apart."""
    maker = Maker()
    moment = NOW_MS - EPOCH_MS
    assert [parts(one) for one in maker.make(3)] == [(moment, k, 5) for k in range(3)]
    maker.passes(1)
    assert parts(maker.make()[0]) == (moment + 1, 0, 5)
    assert all(0 < one < 2**63 for one in maker.make(BATCH_MAX))


def test_more_than_a_millisecond_holds_goes_into_the_next() -> None:
    """Goal: 64 ids a millisecond, and no id twice. Method: batches across the border."""
    maker = Maker()
    made = maker.make(60) + maker.make(10) + maker.make(100)
    assert made == sorted(set(made))
    assert [parts(made[k])[:2] for k in (0, 63, 64)] == [
        (NOW_MS - EPOCH_MS, 0),
        (NOW_MS - EPOCH_MS, 63),
        (NOW_MS - EPOCH_MS + 1, 0),
    ]
    maker.passes(1)
    assert maker.make()[0] > made[-1]


def test_generators_do_not_know_each_other() -> None:
    """Goal: each name has all ids of a moment. Method: two names."""
    maker = Maker()
    assert maker.make(10) == maker.make(10, OTHER)


def test_ids_do_not_run_away_from_the_clock() -> None:
    """Goal: at most ``allowed_future_ms`` ahead; then nothing is made, and later it is.

    Method: 15 s hold 960,000 ids; ask for more at one moment.
    """
    maker = Maker()
    for _ in range(9):
        maker.make(BATCH_MAX)
    maker.make(60_000)
    maker.make(63)
    with pytest.raises(RetryableError, match="ahead of the clock"):
        maker.make(2)
    maker.passes(1)
    maker.make(64)
    with pytest.raises(RetryableError):
        maker.make(BATCH_MAX)


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    """Goal: no id twice and none refused. Method: an hour back, then on by the monotonic clock."""
    maker = Maker()
    made = maker.make(10)
    maker.ctx.wall_ms -= 3_600_000
    made += maker.make(10)
    maker.passes(5)
    made += maker.make(10)
    assert made == sorted(set(made))
    assert parts(made[-1])[0] == NOW_MS - EPOCH_MS + 5
    maker.ctx.wall_ms += 7_200_000
    assert parts(maker.make()[0])[0] == NOW_MS - EPOCH_MS + 5 + 3_600_000


@pytest.mark.parametrize("size", [0, -1, BATCH_MAX + 1, -(2**31)])
def test_batches_have_a_size(size: int) -> None:
    """Goal: a size that clients do not ask for is refused, and uses nothing up."""
    maker = Maker()
    with pytest.raises(UsageError, match="batch"):
        maker.make(size)
    assert parts(maker.make()[0])[1] == 0


@pytest.mark.parametrize("wall_ms", [EPOCH_MS - 1, 0, EPOCH_MS + 2**41])
def test_a_time_without_bits_is_refused(wall_ms: int) -> None:
    """Goal: nothing wraps before 2018 and after 2087."""
    maker = Maker()
    maker.ctx.wall_ms = wall_ms
    with pytest.raises(IllegalStateError, match="2018"):
        maker.make()


def test_a_destroyed_generator_goes_on_above() -> None:
    """Goal: a name that is used again gets no id again. Method: destroy one that was ahead."""
    maker = Maker()
    made = maker.make(1_000)
    maker.ids.destroyed(IDS)
    maker.ids.destroyed(OTHER)
    assert maker.make()[0] > made[-1]


# -- requests -----------------------------------------------------------------------------


def batch(client: Client, size: int = 10, name: str = "ids") -> list[int]:
    found = client.call("FlakeIdGenerator.newIdBatch", name=name, batch_size=size)
    assert found["batch_size"] == size
    return [found["base"] + k * found["increment"] for k in range(size)]


def without_number(node: Node) -> None:
    node.engine.member.membership.numbers.number = 100_000


def cluster(count: int) -> tuple[Pump, list[Client]]:
    pump = Pump()
    pump.form(count)
    return pump, [pump.client(node, number=at) for at, node in enumerate(pump.nodes, 1)]


def test_no_two_members_make_one_id() -> None:
    """Goal: ids differ by member and come in order from each. Method: three members at once."""
    _, clients = cluster(3)
    made = [batch(client) + batch(client, 100) for client in clients]
    assert all(ids == sorted(ids) for ids in made)
    every = [one for ids in made for one in ids]
    assert len(set(every)) == len(every)
    assert sorted({one & 0xFFFF for one in every}) == [0, 8, 16]


def test_a_generator_is_a_structure() -> None:
    """Goal: proxies, lists of structures and destruction as for any. Method: make one, end it."""
    _, (client,) = cluster(1)
    client.call("Client.createProxy", name="ids", service_name=SERVICE)
    made = batch(client)
    found = client.call("Client.getDistributedObjects")
    assert [(one.service_name, one.name) for one in found] == [(SERVICE, "ids")]
    client.call("Client.destroyProxy", name="ids", service_name=SERVICE)
    assert client.call("Client.getDistributedObjects") == []
    assert batch(client)[0] > made[-1]


def test_a_member_without_a_number_asks_another() -> None:
    """Goal: clients get ids wherever they ask, as long as one member has a number.

    Method: take the numbers of two of three away, the eldest's among them.
    """
    pump, clients = cluster(3)
    pump.nodes[0].engine.member.membership.numbers.number = NO_NUMBER
    without_number(pump.nodes[1])
    every = [one for client in clients for one in batch(client)]
    assert len(set(every)) == len(every)
    assert {one & 0xFFFF for one in every} == {16}


def test_nobody_has_a_number() -> None:
    """Goal: the protocol's error, once all were asked. Method: take all numbers away."""
    pump, clients = cluster(3)
    for node in pump.nodes:
        without_number(node)
    for client in clients:
        with pytest.raises(Error) as refused:
            batch(client)
        assert refused.value.code == OUT_OF_RANGE


def test_another_member_dies_before_it_answers() -> None:
    """Goal: the request goes to the next one. Method: kill the eldest while it is asked."""
    pump, clients = cluster(4)
    without_number(pump.nodes[3])
    sent = clients[3].ask("FlakeIdGenerator.newIdBatch", name="ids", batch_size=3)
    pump.kill(pump.nodes[0])
    assert clients[3].answer(sent)["base"] & 0xFFFF == 8


def test_bad_batches_are_refused_by_whoever_answers() -> None:
    """Goal: illegal argument, here and at another member. Method: both."""
    pump, clients = cluster(2)
    without_number(pump.nodes[1])
    for client in clients:
        with pytest.raises(Error) as refused:
            batch(client, 0)
        assert refused.value.code == 23
