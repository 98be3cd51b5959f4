"""Rule D10: what a part of a split cluster held is merged by policy, or counted."""

from __future__ import annotations

import copy
from typing import Any

from whimbrel.core.effects import Note
from whimbrel.core.ids import MemberId, hottest_index, split_namespace
from whimbrel.core.merging.target import chunk_key
from whimbrel.core.messages import MergeRequested
from whimbrel.core.replication.fragments import Store
from whimbrel.sim.host import Host
from whimbrel.sim.profile import MERGE_POLICIES
from whimbrel.sim.rule import Rule, Sightings
from whimbrel.sim.structures.kinds import MODELS
from whimbrel.sim.world import World

EQUAL_HALVES = "equal halves are merged"
POLICIES = tuple(f"merge by {policy}" for policy in MERGE_POLICIES)


class MergesAccounted(Rule):
    """D10 (design 0008; EQH): entry by entry at the primary, in numbers at rest."""

    rule = "D10"
    messages = (MergeRequested,)
    sentence = "each entry of a part that yields is merged as its policy says, or counted as gone"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._owed: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._seen: tuple[Host, MemberId, MergeRequested] | None = None
        self._before: Any = None
        self._was_known = False

    # -- numbers --------------------------------------------------------------------------

    def note(self, host: Host, note: Note) -> None:
        """E: a member is expelled; its engine is still there."""
        if note.kind == "expelled":
            held = self._held(host)
            self._next[host.name] = held + self._owed.get(host.name, 0) - self._decided(host)

    def started(self, host: Host) -> None:
        """The next process of a place answers for what the one before it held."""
        self._owed[host.name] = self._next.pop(host.name, 0)

    def ended(self, host: Host, reason: str) -> None:
        """A process that dies takes along what it had not merged."""
        if reason != "expelled":
            self._next.pop(host.name, None)

    def quiet(self) -> None:
        """Q."""
        for host in self.world.up_hosts():
            owed = self._owed.get(host.name, 0)
            known = self._decided(host) + host.member.merging.remaining
            if known != owed:
                self.fail(f"{owed} entries were handed over, {known} are accounted for", host.name)

    def final(self) -> None:
        """H: merges end."""
        for host in self.world.up_hosts():
            if host.member.merging.is_active:
                self.fail(f"{host.member.merging.remaining} entries still wait", host.name)

    @staticmethod
    def _held(host: Host) -> int:
        """Entries that the member answers for: of rows of which it is the hottest listed holder.

        If the lists have a member in common, only of structures of which no copy goes on without
        it.
        """
        member = host.member
        room = member.membership
        moving = {one.partition_id for one in member.migrations.active_migrations()}
        held = 0
        for replica in member.dataplane.partitions:
            if hottest_index(replica.row, member.ctx.is_member) != replica.index:
                continue
            for fragment in replica.fragments.values():
                copies = replica.row[: fragment.backup_count + 1]
                is_lost = bool(room.gone_on) and not set(copies) & set(room.gone_on)
                if room.is_split or (is_lost and replica.pid not in moving):
                    held += len(fragment.store)
        return held

    @staticmethod
    def _decided(host: Host) -> int:
        merging = host.member.merging
        counts = merging.totals.values()
        return merging.lost + sum(
            c.added + c.replaced + c.same + c.discarded + c.expired for c in counts
        )

    # -- entries --------------------------------------------------------------------------

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E."""
        self._seen = (host, sender, message)
        store = self._store(host, message)
        content = MODELS[split_namespace(message.namespace)[0]].content
        self._before = None if store is None else copy.copy(content(store))
        self._was_known = self._is_known(host, sender, message)

    def step(self, host: Host) -> None:
        """E: what the policy keeps is there, and nothing but what was there or came along."""
        if self._seen is None or self._seen[0] is not host:
            return
        _, sender, message = self._seen
        self._seen = None
        kind, name = split_namespace(message.namespace)
        policy = MODELS[kind].merge_policy(self.world.plan.settings, name)
        exists = host.member.registry.get(kind, name) is not None
        is_merged = exists and not self._was_known and self._is_known(host, sender, message)
        problem = MODELS[kind].merge_problem(
            policy, is_merged, self._before, self._store(host, message), message.chunk
        )
        if problem:
            self.fail(f"p{message.partition_id}, {policy}: {problem}", host.name)

    @staticmethod
    def _is_known(host: Host, sender: MemberId, message: MergeRequested) -> bool:
        target = host.member.merging.target
        key = chunk_key(sender, message)
        return key in target._answers or key in target._waiting

    @staticmethod
    def _store(host: Host, message: MergeRequested) -> Store | None:
        return host.store_at(message.partition_id, message.namespace)


class MergeSightings(Sightings):
    """By which policy, and between whom."""

    messages = (MergeRequested,)
    situations = (EQUAL_HALVES, *POLICIES)

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E."""
        kind, name = split_namespace(message.namespace)
        policy = MODELS[kind].merge_policy(self.world.plan.settings, name)
        if policy in MERGE_POLICIES:
            self.saw(f"merge by {policy}")

    def note(self, host: Host, note: Note) -> None:
        """E: a master yields; is the part that goes on as big as its own?"""
        member = host.member
        if note.kind != "expelled" or not member.membership.is_split or not member.ctx.is_master:
            return
        for other in self.world.up_hosts():
            ctx = other.member.ctx
            is_apart = ctx.is_master and not ctx.is_member(host.info.id)
            if is_apart and len(ctx.data_members()) == len(member.ctx.data_members()):
                self.saw(EQUAL_HALVES)


RULES: tuple[type[Rule], ...] = (MergesAccounted, MergeSightings)
