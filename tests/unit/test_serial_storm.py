"""Goal: the storms of the modern way in a cluster of version 4.0, and the switch in the middle.

Method: the same seeded storms on the same in-test cluster, with the same checks at each settled
point. Nothing about them is softened for the old way (PIM-07, PIM-41, PIM-43).
"""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.migration_net import Net
from tests.unit.test_migration_storm import Storm


class SerialStorm(Storm):
    """A storm in a cluster that was founded with version 4.0."""

    switches = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        settings = msgspec.structs.replace(self.net.settings, cluster_version="4.0")
        net = Net(settings, self.backups)
        net.on_send, net.delay_us = self.net.on_send, self.net.delay_us
        self.net = net
        self.rounds = 0
        self.switch_in = self.rng.randrange(4)

    def harm(self) -> None:
        if self.switches and self.rounds == self.switch_in:
            self.net.at(self.rng.randrange(3_000_000), lambda: self.net.upgrade(self.delays()))
        self.rounds += 1
        super().harm()
        serial = [node.room.table_version is not None for node in self.net.live]
        assert all(serial) or self.switches
        if all(serial):
            assert self.net.active_max <= 1


class SwitchStorm(SerialStorm):
    """The same, and once in the middle of the harm the cluster becomes 4.1."""

    switches = True

    def run(self) -> None:
        super().run()
        assert all(node.room.table_version is None for node in self.net.live)


@pytest.mark.parametrize("block", range(6))
@pytest.mark.parametrize("kind", [SerialStorm, SwitchStorm])
def test_serial_storms(kind: type[SerialStorm], block: int) -> None:
    """PIM-07, PIM-41, PIM-42, PIM-43, ADL-35: see the module's goal."""
    for seed in range(block * 12, block * 12 + 12):
        try:
            kind(seed).run()
        except BaseException as error:
            error.add_note(f"{kind.__name__} seed {seed}")
            raise
