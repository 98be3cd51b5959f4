"""A structure that lies in one partition, its home, and clients at each of three members."""

from __future__ import annotations

from typing import Any

from tests.unit.engine_pump import Client, Node, Pump, quick_settings

from whimbrel.core.ids import PartitionId
from whimbrel.core.partition.hashing import partition_hash, partition_of
from whimbrel.core.settings import StructureSettings
from whimbrel.serialization.data import to_data


class HomeScene:
    """Three members: the home of a structure, its backup, and another; a client at each."""

    def __init__(self, service: str, name: str, *settings: StructureSettings) -> None:
        self.service = service
        """What the names of its requests begin with."""
        self.name = name
        structures = (*quick_settings().structures, *settings)
        self.pump = Pump(quick_settings(structures=structures))
        self.pump.form(3)
        self.pid = PartitionId(partition_of(partition_hash(to_data(name)), 7))
        rows = self.pump.nodes[0].engine.member.dataplane.partitions[self.pid].row
        by_id = {node.id: node for node in self.pump.nodes}
        self.home, self.backup = (by_id[member] for member in rows[:2] if member is not None)
        self.other = next(node for node in self.pump.nodes if node.id not in rows[:2])
        self.client = self.pump.client(self.home)

    def at(self, where: str, number: int = 2) -> Client:
        """A client of one of the members."""
        node: Node = getattr(self, where)
        return self.pump.client(node, number=number)

    def call(self, method: str, client: Client | None = None, /, **fields: Any) -> Any:
        """A call on the structure, or the one that is named."""
        fields.setdefault("name", self.name)
        return (client or self.client).call(f"{self.service}.{method}", self.pid, **fields)

    def ask(self, method: str, client: Client, /, **fields: Any) -> int:
        """Begin a call; everything comes to rest."""
        fields.setdefault("name", self.name)
        asked = client.ask(f"{self.service}.{method}", self.pid, **fields)
        self.pump.settle()
        return asked
