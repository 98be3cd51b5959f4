"""Rule D10: what a part of a split cluster held is merged by policy, or counted (promise table).

Looked at from outside: what a member held when it was expelled is counted here, and must be found
in the counts of the incarnation that follows; what a merge does to a key is compared with the
policy.
"""

from __future__ import annotations

from typing import Any

from whimbrel.core.effects import Note
from whimbrel.core.ids import MemberId
from whimbrel.core.merging.leftovers import hottest_listed
from whimbrel.core.merging.policies import DISCARD, PASS_THROUGH, PUT_IF_ABSENT
from whimbrel.core.merging.target import chunk_key
from whimbrel.core.messages import MergeRequested
from whimbrel.core.registry import MAP_KIND
from whimbrel.core.structures.map_store import MapStore
from whimbrel.core.structures.record import RECORD_BYTES
from whimbrel.sim.host import Host
from whimbrel.sim.stores import replica_of, store_of
from whimbrel.sim.watch import Checker, member_of
from whimbrel.sim.world import World


class MergesAccounted(Checker):
    """D10: entry by entry at the primary, in numbers at rest."""

    rule = "D10"
    messages = (MergeRequested,)
    sentence = "each entry of a part that yields is merged as its policy says, or counted as gone"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._owed: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._seen: tuple[Host, MemberId, MergeRequested] | None = None
        self._before: dict[bytes, bytes] = {}
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
            known = self._decided(host) + member_of(host).merging.remaining
            if known != owed:
                self.fail(f"{owed} entries were handed over, {known} are accounted for", host.name)

    def final(self) -> None:
        """H: merges end."""
        for host in self.world.up_hosts():
            if member_of(host).merging.is_active:
                self.fail(f"{member_of(host).merging.remaining} entries still wait", host.name)

    @staticmethod
    def _held(host: Host) -> int:
        """Entries that the member answers for: of rows of which it is the hottest listed holder.

        If the lists have a member in common, only of maps of which no copy goes on without it.
        """
        member = member_of(host)
        listed = member.ctx.members.ids()
        room = member.membership
        moving = {one.partition_id for one in member.migrations.active_migrations()}
        held = 0
        for replica in member.dataplane.partitions:
            if hottest_listed(replica.row, listed) != member.ctx.id:
                continue
            for fragment in replica.maps.values():
                copies = replica.row[: fragment.backup_count + 1]
                is_lost = bool(room.gone_on) and not set(copies) & set(room.gone_on)
                if room.is_split or (is_lost and replica.pid not in moving):
                    held += len(fragment.store)
        return held

    @staticmethod
    def _decided(host: Host) -> int:
        merging = member_of(host).merging
        counts = merging.totals.values()
        return merging.lost + sum(
            c.added + c.replaced + c.same + c.discarded + c.expired for c in counts
        )

    # -- entries --------------------------------------------------------------------------

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E."""
        self._seen = (host, sender, message)
        self._before = dict(self._records(host, message))
        self._was_known = self._is_known(host, sender, message)

    def step(self, host: Host) -> None:
        """E: what the policy keeps is there, and nothing but what was there or came along."""
        if self._seen is None or self._seen[0] is not host:
            return
        _, sender, message = self._seen
        self._seen = None
        policy = self.world.plan.settings.map_settings(message.name).merge_policy
        after = self._records(host, message)
        incoming = MapStore()
        incoming.ingest(message.chunk)
        exists = member_of(host).registry.get(MAP_KIND, message.name) is not None
        is_merged = exists and not self._was_known and self._is_known(host, sender, message)
        for key in incoming.records:
            if key not in incoming.timings:
                problem = _problem(
                    policy,
                    is_merged,
                    _value(self._before.get(key)),
                    _value(after.get(key)),
                    _value(incoming.records[key]),
                )
                if problem:
                    self.fail(f"p{message.partition_id}, {policy}: {problem}", host.name)

    @staticmethod
    def _is_known(host: Host, sender: MemberId, message: MergeRequested) -> bool:
        target = member_of(host).merging.target
        key = chunk_key(sender, message)
        return key in target._answers or key in target._waiting

    @staticmethod
    def _records(host: Host, message: MergeRequested) -> dict[bytes, bytes]:
        fragment = replica_of(host, message.partition_id).maps.get(message.name)
        return {} if fragment is None else store_of(fragment).records


def _value(record: bytes | None) -> bytes | None:
    return None if record is None else record[RECORD_BYTES:]


def _problem(
    policy: str, is_merged: bool, before: bytes | None, now: bytes | None, came: bytes | None
) -> str:
    """What a merge did to an entry and the policy does not allow; empty when it does.

    Which of two values is later, or was read more often, is not known here: either may stay.
    """
    if policy in (PUT_IF_ABSENT, DISCARD) and before is not None and now != before:
        return "a merge replaced what was there"
    if policy == DISCARD and before is None and now is not None:
        return "an entry came along"
    if now not in (before, came):
        return "there is a value that was on neither side"
    must_come = policy == PASS_THROUGH or (policy != DISCARD and before is None)
    return "an entry did not come along" if is_merged and must_come and now != came else ""


MERGE_CHECKERS: tuple[type[Checker], ...] = (MergesAccounted,)
