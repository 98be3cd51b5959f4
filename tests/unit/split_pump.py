"""The engine pump with a network that can be cut, and expelled members that come back."""

from __future__ import annotations

from typing import Any

from tests.unit.engine_pump import Client, Node, Pump
from tests.unit.replication_net import map_of

from whimbrel.core.ids import Address, MemberId, PartitionId
from whimbrel.core.stimuli import Started


def data(text: str) -> bytes:
    """A string-like Data: no partition hash, a type id, then the text."""
    return b"\0\0\0\0" + (-11).to_bytes(4, "big", signed=True) + text.encode()


class SplitPump(Pump):
    """Parts cannot hear each other; who is expelled is followed by a fresh engine."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.part_of: dict[Address, int] = {}
        self.successors: dict[int, Node] = {}
        """Number of an expelled node to the node that followed it."""
        self.doomed: list[type] = []
        """Kinds of member messages of which the next one is lost, each once."""
        self.respawns = True

    def split(self, *parts: list[Node]) -> None:
        """Cut the network into these parts."""
        for number, part in enumerate(parts):
            for node in part:
                self.part_of[node.address] = number

    def heal(self) -> None:
        """Everybody hears everybody again."""
        self.part_of.clear()

    def separate(self, seconds: float, *parts: list[Node]) -> None:
        """Cut, and wait until each part is a cluster of its own."""
        self.split(*parts)
        self.run(seconds)
        for part in parts:
            ids = sorted(node.id for node in part)
            for node in part:
                assert sorted(node.engine.member.ctx.members.ids()) == ids

    def merged(self) -> bool:
        """Whether all living nodes are one cluster and nobody merges any more."""
        living = self.living()
        ids = sorted(node.id for node in living)
        return all(
            node.joined
            and sorted(node.engine.member.ctx.members.ids()) == ids
            and not node.engine.member.merging.is_active
            and node.engine.member.split_data is None
            for node in living
        )

    def heal_and_wait(self, timeout_s: float = 120) -> None:
        """Heal, and wait until one cluster is left and everything is merged."""
        self.heal()
        self.run_until(self.merged, timeout_s)
        self.run(5)

    def _deliver(self, sender: Node, to: MemberId | Address, kind: int, payload: Any) -> None:
        if type(payload) in self.doomed:
            self.doomed.remove(type(payload))
        else:
            super()._deliver(sender, to, kind, payload)

    def is_cut(self, source: Node, target: Node) -> bool:
        """Whether they are in different parts."""
        return self.part_of.get(source.address, 0) != self.part_of.get(target.address, 0)

    def kill(self, node: Node) -> None:
        """As in the pump; an expelled node gets a successor with what it had to merge."""
        super().kill(node)
        if not node.expelled or not self.respawns:
            return
        fresh = Node(self, len(self.nodes) + 1, False)
        self.part_of[fresh.address] = self.part_of.get(node.address, 0)
        self.successors[node.number] = fresh
        data_left = node.engine.member.split_data
        if data_left is not None:
            fresh.engine.member.merging.take_over(data_left)
        fresh.handle(Started(tuple(other.address for other in self.nodes)))

    # -- maps -----------------------------------------------------------------------------

    def pid(self, key: str) -> PartitionId:
        """A partition for a key; any fixed choice will do."""
        return PartitionId(sum(key.encode()) % self.settings.partition_count)

    def put(self, client: Client, name: str, key: str, value: str, ttl_ms: int = -1) -> Any:
        """Map.put; the former value's text."""
        old = client.call(
            "Map.put", self.pid(key), name=name, key=data(key), value=data(value),
            thread_id=1, ttl=ttl_ms,
        )  # fmt: skip
        return None if old is None else old[8:].decode()

    def get(self, client: Client, name: str, key: str) -> str | None:
        """Map.get; the value's text."""
        value = client.call("Map.get", self.pid(key), name=name, key=data(key), thread_id=1)
        return None if value is None else value[8:].decode()

    def remove(self, client: Client, name: str, key: str) -> None:
        """Map.delete."""
        client.call("Map.delete", self.pid(key), name=name, key=data(key), thread_id=1)

    def notes(self, kind: str) -> list[dict[str, Any]]:
        """Fields of all notes of a kind, of all nodes."""
        return [note.fields for node in self.nodes for note in node.notes if note.kind == kind]


def totals(pump: SplitPump, name: str) -> dict[str, int]:
    """Sums over all members of what became of a map's entries."""
    sums = {"added": 0, "replaced": 0, "same": 0, "discarded": 0, "expired": 0}
    for node in pump.nodes:
        counts = node.engine.member.merging.totals.get(map_of(name))
        if counts is not None:
            for field in sums:
                sums[field] += getattr(counts, field)
    return sums
