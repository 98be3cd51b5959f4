"""Clusters of registries: every message arrives at once, but at members that are ``deaf``."""

from __future__ import annotations

from typing import Any

from tests.unit.cluster import Cluster, Peer

from whimbrel.core.context import Context
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.model import MemberInfo, MemberList
from whimbrel.core.registry import Registry
from whimbrel.core.settings import CoreSettings


class Clerk(Peer):
    """One member: its registry is real."""

    def __init__(self, net: Net, number: int) -> None:
        info = MemberInfo(MemberId(f"m{number}"), Address("h", number))
        super().__init__(net, Context(info, CoreSettings()))
        self.registry = Registry(self.ctx)

    def receive(self, source: Peer, message: Any) -> None:
        self.registry.on_message(source.id, message)

    def view_changed(self, old: MemberList, new: MemberList) -> None:
        self.registry.view_changed(old, new)

    def became_master(self) -> None:
        self.registry.became_master()


class Net(Cluster[Clerk]):
    """The members, by number; what they have to say is sent when a test says ``deliver``."""

    is_lazy = True

    def __init__(self, count: int) -> None:
        super().__init__(0)
        clerks = [Clerk(self, number) for number in range(count)]
        self.infos = [clerk.info for clerk in clerks]
        self.contexts = [clerk.ctx for clerk in clerks]
        self.registries = [clerk.registry for clerk in clerks]
        self.deaf: list[int] = []
        self.version = 0

    def view(self, *numbers: int) -> None:
        """Install a list of these members at each of them."""
        self.version += 1
        new = MemberList(self.version, tuple(self.infos[number] for number in numbers))
        for number in numbers:
            self.install(self.peers[number], new)
        self.deliver()

    def deliver(self) -> None:
        """Deliver until nothing is under way."""
        self.drain()

    def copies_of(self, source: Clerk, target: Clerk, message: Any) -> int:
        return 0 if target.address.port in self.deaf else 1

    def structures(self, number: int) -> list[str]:
        """Names of the maps a member knows."""
        return [entry.key for entry in self.registries[number].structures()]
