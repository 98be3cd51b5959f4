"""Rules judged on what clients saw: D1 to D4, R4, C1, C5."""

from __future__ import annotations

from whimbrel.sim.host import Host
from whimbrel.sim.sim_client import Invocation, Reply, SimClient
from whimbrel.sim.stores import holders_of, number_at, stored_number
from whimbrel.sim.watch import Checker
from whimbrel.sim.workload import ABSENT, READS, KeyHistory, Operation, Outcome
from whimbrel.sim.world import World

PATIENCE_US = 25_000_000
"""After a fault a call may wait for detection, a claim and the parking time-out; not longer."""


class NothingLost(Checker):
    """D1: looked at on every key once the cluster rests."""

    rule = "D1"
    sentence = "no acknowledged write is lost while the harm stays within the promise"

    def quiet(self) -> None:
        """Q: the primary's store holds what was acknowledged."""
        if not self.world.data_is_promised():
            return
        for (_, key), history in self.world.workload.history.keys.items():
            acked = history.acked
            if acked is None or acked.effect == ABSENT or has_open_write(history):
                continue
            if not history.is_judged:
                continue
            number = stored_number(self.world, history)
            is_older = number == ABSENT or 0 < number < acked.number
            if is_older and not history.is_allowed(number):
                self.fail(
                    f"{acked.map}[{key}] in p{history.partition_id} holds "
                    f"{number or 'nothing'}, acknowledged was {acked!r}"
                )
                return


class NothingInvented(Checker):
    """D2: every value read was written to that key before the read ended."""

    rule = "D2"
    sentence = "a value read for a key was written to that key"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        seen = operation.seen
        if not seen:
            return
        writes = self.world.workload.history.key(operation.map, operation.key).writes
        if seen > len(writes) or writes[seen - 1].effect != seen:
            self.fail(f"{operation!r} saw a write that was never begun")
        elif writes[seen - 1].outcome is Outcome.FAILED:
            self.fail(f"{operation!r} saw {writes[seen - 1]!r}")


class NoResurrection(Checker):
    """D3: at rest a key holds the last acknowledged write, or an indeterminate one."""

    rule = "D3"
    sentence = "a key holds the last acknowledged write or an indeterminate one"

    def quiet(self) -> None:
        """Q."""
        if not self.world.data_is_promised():
            return
        for (name, key), history in self.world.workload.history.keys.items():
            if has_open_write(history) or not history.is_judged:
                continue
            number = stored_number(self.world, history)
            if not history.is_allowed(number):
                self.fail(
                    f"{name}[{key}] in p{history.partition_id} holds {number or 'nothing'}, "
                    f"last acknowledged is {history.acked!r}"
                )
                return


class Linearizable(Checker):
    """D4: reads of a key with one writer, judged where no stale primary may be about.

    The writer's order is known, so a read is right when it returns the newest write acknowledged
    before it began, or one that was begun since, or one of unknown outcome. In a calm window
    no later read may return an older value than an earlier one did.
    """

    rule = "D4"
    sentence = "reads of one key through its primary are linearizable in calm windows"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        seen = operation.seen
        if seen is None or operation.kind not in READS:
            return
        history = self.world.workload.history.key(operation.map, operation.key)
        if not history.is_judged:
            return
        floor = operation.floor
        since_us = operation.invoked_us if floor is None else floor.invoked_us
        calm = self.world.is_calm_since(since_us)
        if (calm or self.world.reads_are_fresh()) and not self._is_allowed(history, floor, seen):
            self.fail(f"{operation!r} is older than {floor!r}")
        if not seen:
            return
        newest = history.newest_seen
        if (
            newest is not None
            and newest.seen is not None
            and seen < newest.seen
            and newest.completed_us < operation.invoked_us
            and self.world.is_calm_since(newest.invoked_us)
            and history.writes[seen - 1].outcome is not Outcome.UNKNOWN
        ):
            self.fail(f"{operation!r} went back behind {newest!r}")
        if newest is None or newest.seen is None or seen >= newest.seen:
            history.newest_seen = operation

    @staticmethod
    def _is_allowed(history: KeyHistory, floor: Operation | None, seen: int) -> bool:
        if seen == (ABSENT if floor is None else floor.effect):
            return True
        least = 0 if floor is None else floor.number
        for write in reversed(history.writes):
            if write.number <= least:
                break
            if write.effect == seen and write.outcome is not Outcome.FAILED:
                return True
        return any(write.effect == seen for write in history.unknown)


class AnsweredAfterBackups(Checker):
    """R4: when a client hears success, the copies it was promised exist."""

    rule = "R4"
    sentence = "a successful reply is sent after the required acknowledgements"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H: counted in the stores of all members, at the moment the client hears."""
        world = self.world
        if (
            operation.outcome is not Outcome.OK
            or operation.kind in READS
            or operation.effect == ABSENT
            or not world.is_calm_since(operation.invoked_us)
        ):
            return
        history = world.workload.history.key(operation.map, operation.key)
        if history.unknown or not history.is_judged:
            return
        needed = 1 + min(world.plan.backup_count, len(world.places()) - 1)
        holders = holders_of(world, history, operation.number)
        if len(holders) < needed:
            names = ", ".join(holders) or "nobody"
            self.fail(
                f"{operation!r} of p{history.partition_id} is at {names}, {needed} are needed"
            )


class EveryCallEnds(Checker):
    """C1: a member answers, at the latest when the others have found out who is gone."""

    rule = "C1"
    sentence = "every call ends: success, error or indeterminate"

    def hangs(self, client: SimClient, call: Invocation, host: Host | None) -> None:
        """H."""
        world = self.world
        if host is None or not host.is_up or world.now_us - world.last_fault_us < PATIENCE_US:
            return
        if host.is_outside:
            return
        self.fail(f"{call.operation!r} was never answered", host.name)

    def final(self) -> None:
        """H: nobody waits any more."""
        for client in self.world.clients:
            if client.is_busy:
                self.fail(f"{client.name} still waits for an answer at the end", client.name)


class FailedIsWithoutEffect(Checker):
    """C5: every error but the indeterminate one, also those after which a call is made again.

    A write is looked for in the stores of all members when its client hears of the error, before
    it is made again, and in the end if it was not. A call that is made again and finds the value
    that only itself can have written has been carried out before (a putIfAbsent loses to itself).
    """

    rule = "C5"
    sentence = "a call that ends in an error has had no effect, unless the error says: unknown"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._failed: list[Operation] = []

    def denied(self, operation: Operation, error: str) -> None:
        """H."""
        self._look(operation, error)

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        if operation.kind in READS:
            return
        if reply.outcome is Outcome.OK and operation.seen == operation.number:
            self.fail(f"{operation!r} met itself, after {reply.attempts} attempts")
        elif reply.outcome is Outcome.FAILED:
            self._failed.append(operation)

    def quiet(self) -> None:
        """Q."""
        for operation in self._failed:
            self._look(operation, "failed")

    def _look(self, operation: Operation, error: str) -> None:
        if operation.kind in READS or operation.effect == ABSENT:
            return
        history = self.world.workload.history.key(operation.map, operation.key)
        for host in self.world.up_hosts():
            if number_at(host, history) == operation.number:
                self.fail(f"{operation!r} of p{history.partition_id}: {error}", host.name)
                return


def has_open_write(history: KeyHistory) -> bool:
    """Whether a write of the key has not ended yet."""
    return bool(history.writes) and history.writes[-1].outcome is Outcome.PENDING


HISTORY_CHECKERS: tuple[type[Checker], ...] = (
    NothingLost,
    NothingInvented,
    NoResurrection,
    Linearizable,
    AnsweredAfterBackups,
    EveryCallEnds,
    FailedIsWithoutEffect,
)
