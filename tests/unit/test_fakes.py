"""What is played in tests behaves as what it stands for: the same story, the same answers.

A fake that lies makes its tests true of nothing. Links are held against those of both shells, the
member lists that tests install against the membership room, and the fake data side of the
migration rooms against the data plane.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import msgspec
import pytest
from tests.process.runtime_fakes import FakeNode, until
from tests.unit import membership_net, migration_net, registry_net, replication_net
from tests.unit.cluster import SECOND, Cluster, Peer
from tests.unit.engine_pump import Pump, member_id, quick_settings

from whimbrel.core.context import Context
from whimbrel.core.ids import Address, MemberId, PartitionId
from whimbrel.core.model import MemberInfo, MemberList, MigrationInfo, MigrationKind
from whimbrel.core.ports import FragmentHost
from whimbrel.core.settings import CoreSettings
from whimbrel.core.stimuli import Stimulus
from whimbrel.serialization.data import to_data
from whimbrel.serving.outputs import CONTROL
from whimbrel.sim import links as sim_links
from whimbrel.sim.network import Network, NetworkProfile
from whimbrel.sim.scheduler import Scheduler
from whimbrel.wire.links import BACKUPS

A, B, C = (MemberId(name) for name in "abc")

# -- links --------------------------------------------------------------------------------

LOST, FAILED, RESTORED = "LinkLost", "LinkFailed", "LinkRestored"
Words = list[str]
Heard = tuple[list[bytes], Words]

LINK_STORIES: dict[str, tuple[str, list[bytes], Words]] = {
    "order": ("start want send1 send2 send3 wait", [b"1", b"2", b"3"], []),
    "death": ("start want send1 wait die wait", [b"1"], [LOST, FAILED]),
    "another takes the address": ("start want send1 wait replace wait", [b"1"], [LOST, FAILED]),
    "break": ("start want send1 wait break wait send2 wait", [b"1", b"2"], [LOST, RESTORED]),
    "nobody": ("want wait", [], [FAILED]),
    "late": ("want wait start wait send1 wait", [b"1"], [FAILED, RESTORED]),
    "return": (
        "start want wait die wait start wait send1 wait",
        [b"1"],
        [LOST, FAILED, RESTORED],
    ),
}
"""What happens to member b, to which a has a link; what arrives there, and what a is told."""


class Ear(Peer):
    """Writes down what it gets and what it is told of its links."""

    def __init__(self, cluster: Cluster[Ear], name: MemberId, heard: Heard) -> None:
        info = MemberInfo(name, Address("h", 1 if name == A else 2))
        super().__init__(cluster, Context(info, CoreSettings()))
        self.heard = heard

    def receive(self, source: Peer, message: Any) -> None:
        self.heard[0].append(message)

    def link_lost(self, member: MemberId) -> None:
        self.heard[1].append(LOST)

    def link_restored(self, member: MemberId) -> None:
        self.heard[1].append(RESTORED)

    def link_failed(self, member: MemberId) -> None:
        self.heard[1].append(FAILED)


class ClusterLink:
    """A link of the test cluster."""

    def __init__(self) -> None:
        self.heard: Heard = ([], [])
        self.cluster: Cluster[Ear] = Cluster()
        self.owner = Ear(self.cluster, A, self.heard)

    def act(self, what: str) -> None:
        cluster, owner = self.cluster, self.owner
        match what:
            case "start":
                Ear(cluster, B, self.heard)
            case "want":
                owner.links[B] = Address("h", 2)
                cluster.connect(owner, B)
            case "die":
                cluster.kill(cluster.by_id[B])
            case "replace":
                cluster.kill(cluster.by_id[B])
                Ear(cluster, C, self.heard)
            case "break":
                cluster.break_link(owner, B)
            case "wait":
                cluster.play(cluster.now_us + 2 * SECOND)
            case _:
                cluster.send(owner, B, what[-1:].encode())


class Place:
    """As much of a simulated host as links need."""

    is_silent = is_paused = False

    def __init__(self, link: SimLink, name: MemberId, port: int) -> None:
        self.link = link
        self.name = f"m{port}"
        self.info = MemberInfo(name, Address("h", port))
        self.incarnation = 0
        self.is_up = False
        self.network = link.network

    def endpoint_at(self, address: Address) -> Place | None:
        return self.link.place

    def stimulate(self, stimulus: Stimulus) -> None:
        self.link.heard[1].append(type(stimulus).__name__)

    def frame_arrived(self, incarnation: int, sender: MemberInfo, kind: int, payload: Any) -> None:
        if self.is_up and incarnation == self.incarnation:
            self.link.heard[0].append(payload)

    def message_arrived(self, incarnation: int, sender: MemberInfo, payload: Any) -> None:
        raise AssertionError("nothing is sent to an address")


class SimLink:
    """A link of the simulator."""

    def __init__(self) -> None:
        self.heard: Heard = ([], [])
        self.scheduler = Scheduler(random.Random(1))
        self.network = Network(self.scheduler, random.Random(1), NetworkProfile())
        self.place = Place(self, B, 2)
        self.link = sim_links.PeerLink(Place(self, A, 1), B, Address("h", 2))

    def act(self, what: str) -> None:
        place, link = self.place, self.link
        match what:
            case "start":
                place.is_up = True
            case "want":
                link.connect()
            case "die" | "replace":
                place.incarnation += 1
                place.is_up = what == "replace"
                place.info = MemberInfo(C, place.info.address) if place.is_up else place.info
                link.target_gone(1_000)
            case "break":
                link.break_now(1_000)
            case "wait":
                self.scheduler.run_until(self.scheduler.now_us + 2 * SECOND)
            case _:
                link.send(CONTROL, BACKUPS, what[-1:].encode())


async def runtime_link(story: str) -> Heard:
    """A link of a real shell plays a story; a wait is for what the simulator has told by then."""
    owner, target, other = FakeNode("a"), FakeNode("b"), FakeNode("c")
    address = await target.listen()
    await target.stop_listening()
    sim = SimLink()
    told = owner.fake.stimuli
    try:
        for what in story.split():
            sim.act(what)
            match what:
                case "start":
                    await target.listen(address.port)
                case "want":
                    owner.links.want(B, address)
                case "die" | "replace":
                    await target.stop_listening()
                    if what == "replace":
                        await other.listen(address.port)
                case "break":
                    for channel in owner.links._peers[B].channels.values():
                        channel.abort()
                case "wait":
                    frames, count = len(sim.heard[0]), len(sim.heard[1])
                    await until(
                        lambda: len(target.fake.frames) >= frames and len(told) >= count,  # noqa: B023
                        f"{story}: {what}",
                    )
                    await until(lambda: owner.links._peers[B].stands or count, "a link")  # noqa: B023
                case _:
                    owner.links.send(B, "control", BACKUPS, what[-1:].encode())
                    owner.links.flush()
        await asyncio.sleep(0.1)  # nothing more comes
        return [data for _, _, data in target.fake.frames], [type(one).__name__ for one in told]
    finally:
        for node in (owner, target, other):
            await node.end()


@pytest.mark.parametrize("story", LINK_STORIES)
@pytest.mark.parametrize("kind", [ClusterLink, SimLink, None], ids=["cluster", "sim", "runtime"])
def test_links_deliver_in_order_and_tell_what_became_of_them(
    kind: type[ClusterLink | SimLink] | None, story: str
) -> None:
    """Goal: what a member hears of its links is the same in tests, simulator and real shell."""
    steps, arrived, words = LINK_STORIES[story]
    if kind is None:
        heard = asyncio.run(runtime_link(steps))
    else:
        link = kind()
        for what in steps.split():
            link.act(what)
        heard = link.heard
    assert heard == (arrived, words)


# -- member lists -------------------------------------------------------------------------

Told = dict[str, list[tuple[Any, ...]]]
"""By member: what its rooms were told of lists, and what its context said then."""


class Listener:
    """Writes down the callbacks of the membership room, real or played."""

    def __init__(self) -> None:
        self.told: Told = {}

    def view(self, peer: Peer, old: MemberList, new: MemberList) -> None:
        ctx = peer.ctx
        said = (self.names(old), self.names(new), ctx.members is new, old.version < new.version)
        self.told.setdefault(self.name(peer.id), []).append(
            ("view", *said, ctx.is_master, ctx.is_member(ctx.id), self.short(ctx.leaving))
        )

    def master(self, peer: Peer) -> None:
        said = ("master", self.names(peer.ctx.members), peer.ctx.is_master)
        self.told.setdefault(self.name(peer.id), []).append(said)

    @staticmethod
    def name(member: MemberId) -> str:
        return member[:1]

    def short(self, members: Sequence[MemberId]) -> str:
        return "".join(map(self.name, members))

    def names(self, members: MemberList) -> str:
        return self.short(members.ids())

    def listen(self, peer: Any) -> None:
        """Hear what a peer's rooms are told before they are."""
        view_changed, became_master = peer.view_changed, peer.became_master

        def view(old: MemberList, new: MemberList) -> None:
            self.view(peer, old, new)
            view_changed(old, new)

        def master() -> None:
            self.master(peer)
            became_master()

        peer.view_changed, peer.became_master = view, master


def real_lists(listener: Listener) -> None:
    net = membership_net.Net()
    net.hold_leavers = True

    def start(name: str, port: int) -> membership_net.Host:
        host = net.start(port, (1, 2, 3), id=name)
        listener.listen(host)
        host.room.on_view_changed = host.view_changed
        host.room.on_became_master = host.became_master
        net.run_until(lambda: host.joined and net.agreed())
        return host

    hosts = [start(name, port) for port, name in enumerate("abc", 1)]
    net.leave(hosts[2])
    net.run_until(lambda: bool(hosts[0].ctx.leaving))
    for host, left in ((hosts[2], hosts[:2]), (hosts[0], hosts[1:2])):
        net.kill(host)
        net.run_until(lambda: net.agreed(left))  # noqa: B023


def migration_lists(listener: Listener) -> None:
    net = migration_net.Net()
    for name in "abc":
        listener.listen(migration_net.Node(net, name, lite=False))
        net.order.append(name)
        net.view()
    net.leave("c")
    net.crash("c")
    net.crash("a")


def replication_lists(listener: Listener) -> None:
    net = replication_net.Net("")
    for port, name in enumerate("abc"):
        listener.listen(replication_net.Host(net, name, port))
        net.set_members("abc"[: port + 1])
    net.crash("c")
    net.set_members("ab")
    net.crash("a")
    net.set_members("b")


def registry_lists(listener: Listener) -> None:
    net = registry_net.Net(3)
    for clerk in net.peers:
        listener.listen(clerk)
    listener.short = lambda members: "".join("abc"[int(member[1:])] for member in members)  # type: ignore[method-assign]
    listener.name = lambda member: listener.short([member])  # type: ignore[method-assign]
    for view in ((0,), (0, 1), (0, 1, 2), (0, 1), (1,)):
        net.view(*view)


@pytest.mark.parametrize("play", [migration_lists, replication_lists, registry_lists])
def test_lists_are_installed_as_the_membership_room_does(play: Callable[[Listener], None]) -> None:
    """Goal: rooms hear of lists and of mastership in the order, and find in their context what
    they would in a member. Method: three join, the third is leaving and dies, the first dies.
    """
    real, played = Listener(), Listener()
    real_lists(real)
    play(played)
    assert played.told == real.told
    assert real.told["b"][-2:] == [
        ("view", "ab", "b", True, True, True, True, ""),
        ("master", "b", True),
    ]


# -- the data side of migrations ----------------------------------------------------------

P0 = PartitionId(0)
VERSION = 5


class FakeData:
    """Three members of the fake data side, with a structure of one backup."""

    def __init__(self, row: str) -> None:
        self.hosts = {name: migration_net.FakeHost(MemberId(name), 1) for name in "abc"}
        self.row = replication_net.make_row(row)
        for name in row[:2].replace("-", ""):
            self.hosts[name].data[0] = migration_net.Net.content(0)

    def host(self, name: str) -> FragmentHost:
        return self.hosts[name]

    def is_flagged(self, name: str) -> bool:
        return bool(self.hosts[name].flags)

    def held(self, name: str) -> int:
        return len(self.hosts[name].data.get(0, ()))

    def set_row(self, row: str, version: int) -> None:
        before, self.row = self.row, replication_net.make_row(row)
        for host in self.hosts.values():
            host.row_changed(P0, before, self.row, version)


class RealData:
    """Three members with data planes and a map of one backup."""

    def __init__(self, row: str) -> None:
        self.net = replication_net.Net("abc")
        self.set_row(row, VERSION)
        for number in range(3):
            self.net.put("m", number, "x")
        self.net.pump()

    def host(self, name: str) -> FragmentHost:
        self.net[name].begin()
        return self.net[name].plane.roles

    def is_flagged(self, name: str) -> bool:
        return self.net[name].plane.partitions[0].migrating

    def held(self, name: str) -> int:
        return len(self.net[name].content(0, "m"))

    def set_row(self, row: str, version: int) -> None:
        self.net.set_row(0, row, version)


Answers = list[object]


def copied(data: FakeData | RealData, migration: MigrationInfo) -> Answers:
    """Play the copying of a migration from a; what was seen on the way."""
    destination = migration.step.destination
    assert destination is not None
    source, target = data.host("a"), data.host(destination)
    answers: Answers = [source.copy_bytes(migration) > 0]
    source.begin_source(migration)
    target.begin_destination(migration)
    answers.append([data.is_flagged(name) for name in "abc"])
    export = source.open_export(migration)
    moved, last = 0, False
    while not last:
        parts, last = export.next_parts(400)
        moved += sum(bool(part.data) for part in parts)
        target.ingest(migration, parts)
    answers += [moved > 0, [data.held(name) for name in "abc"]]
    return answers


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize(
    ("kind", "before", "after", "destination", "current", "new", "moves"),
    [
        (MigrationKind.COPY, "a", "ab", "b", -1, 1, True),
        (MigrationKind.MOVE, "ab", "ac", "c", -1, 1, True),
        (MigrationKind.MOVE, "ab", "cb", "c", -1, 0, True),
        (MigrationKind.COPY, "ab", "abc", "c", -1, 2, False),
        (MigrationKind.SHIFT_UP, "a-c", "ac", "c", 2, 1, True),
        (MigrationKind.SHIFT_UP_SHIFT_DOWN, "ab", "ba", "b", 1, 0, False),
        (MigrationKind.SHIFT_UP_SHIFT_DOWN, "a-c", "c-a", "c", 2, 0, True),
    ],
)
def test_the_fake_data_side_answers_as_the_data_plane(
    kind: MigrationKind,
    before: str,
    after: str,
    destination: str,
    current: int,
    new: int,
    moves: bool,
    commits: bool,
) -> None:
    """Goal: what is copied, refused meanwhile, held after success and after failure is the same."""
    info = replication_net.migration(kind, destination, VERSION, new, current)
    seen: list[Answers] = []
    for data in (FakeData(before), RealData(before)):
        answers = copied(data, info)
        if commits:
            data.set_row(after, VERSION + info.step.increment)
        else:
            data.host(destination).rollback_destination(info)
            data.set_row(before, VERSION + info.step.increment + 1)
        for _ in range(2):
            data.host("a").end_source(P0)  # twice is as good as once
        answers += [[data.held(name), data.is_flagged(name)] for name in "abc"]
        seen.append(answers)
    assert seen[0] == seen[1]
    assert seen[0][2] is moves


CALLS = (
    "begin_source", "open_export", "end_source",
    "begin_destination", "ingest", "rollback_destination", "row_changed",
)  # fmt: skip
ENDS = ("end_source", "row_changed")


def record(host: Any, calls: list[tuple[int, str]]) -> None:
    """Write down the calls that a data side gets, with their partitions."""

    def recording(name: str) -> Callable[..., Any]:
        call = getattr(host, name)

        def recorded(what: MigrationInfo | int, *rest: Any) -> Any:
            calls.append((what if isinstance(what, int) else what.partition_id, name))
            return call(what, *rest)

        return recorded

    for name in CALLS:
        setattr(host, name, recording(name))


def episodes(calls: Sequence[tuple[int, str]]) -> set[tuple[str, ...]]:
    """What one migration, or one row of another's, calls in which order; repeats as one."""
    found: set[tuple[str, ...]] = set()
    for pid in {pid for pid, _ in calls}:
        episode: list[str] = []
        for name, _ in groupby(name for at, name in calls if at == pid):
            episode.append(name)
            if (name in ENDS and episode[0] != "begin_source") or name == "end_source":
                found.add(tuple(episode))
                episode = []
        assert not episode, f"partition {pid} is left in the middle: {episode}"
    return found


def fake_story() -> set[tuple[str, ...]]:
    net = migration_net.Net(msgspec.structs.replace(migration_net.SETTINGS, partition_count=7))
    found: set[tuple[str, ...]] = set()
    calls: dict[str, list[tuple[int, str]]] = {name: [] for name in "abc"}
    for name in "abc":
        node = migration_net.Node(net, name, lite=False)
        record(node.host, calls[name])
        net.order.append(name)
        net.view()
        net.settle()
        if name == "a":
            net.fill()
    net.crash("b")
    net.settle()
    for told in calls.values():
        found |= episodes(told)
    return found


def real_story() -> set[tuple[str, ...]]:
    pump = Pump(quick_settings())
    found: set[tuple[str, ...]] = set()
    calls: dict[MemberId, list[tuple[int, str]]] = {member_id(n): [] for n in (1, 2, 3)}
    for number in range(3):
        node = pump.start()
        record(node.engine.member.dataplane.roles, calls[node.id])
        pump.run(10)
        if not number:
            client = pump.client(node)
            for pid in range(7):
                fields = {"name": "m", "key": to_data(pid), "value": to_data("x")}
                client.call("Map.put", pid, **fields, thread_id=1, ttl=-1)
    pump.kill(pump.nodes[1])
    pump.run(20)
    for told in calls.values():
        found |= episodes(told)
    return found


def test_the_fake_data_side_is_called_as_the_data_plane() -> None:
    """Goal: in a whole member the data plane gets the calls that the fake gets, in their order.
    Method: two members join a first with data, one dies; the calls of each migration and row.
    """
    fake = fake_story()
    assert fake == real_story()
    assert ("begin_source", "open_export", "row_changed", "end_source") in fake
    assert ("begin_destination", "ingest", "row_changed") in fake
