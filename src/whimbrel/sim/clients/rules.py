"""Rules of clients: C1, C2, C4."""

from __future__ import annotations

from collections.abc import Mapping

from whimbrel.sim.history import Operation, Reply
from whimbrel.sim.host import Host
from whimbrel.sim.rule import Rule, Sightings
from whimbrel.sim.world import World
from whimbrel.wire import errors as codes

PATIENCE_US = 25_000_000
"""After a fault a call may wait for detection, a claim and the parking time-out; not longer."""
ERRORS = {
    codes.OVERLOAD: "error 20: overload",
    codes.PARTITION_MIGRATING: "error 39: a partition was busy for too long",
    codes.RETRYABLE: "error 46: try again",
    codes.INDETERMINATE: "error 80: indeterminate",
}


class EveryCallEnds(Rule):
    """C1 (promise table; H): a member answers, at the latest when the others have found out who is
    gone.
    """

    rule = "C1"
    sentence = "every call ends: success, error or indeterminate"

    def hangs(self, operation: Operation, host: Host | None) -> None:
        """H."""
        world = self.world
        if host is None or not host.is_up or world.now_us - world.last_fault_us < PATIENCE_US:
            return
        if host.is_outside:
            return
        self.fail(f"{operation!r} was never answered", host.name)

    def final(self) -> None:
        """H: nobody waits any more."""
        for client in self.world.clients:
            if client.is_busy:
                self.fail(f"{client.name} still waits for an answer at the end", client.name)


class ClientsAgree(Rule):
    """C2 (promise table; Q): at rest every smart client has the cluster's table and members."""

    rule = "C2"
    sentence = "every smart client's table is the cluster's; none keeps to a departed member"

    def quiet(self) -> None:
        """Q: the run has waited for it (L1), so what is wrong now stays wrong."""
        reason = clients_differ(self.world)
        if reason:
            self.fail(reason)


class RunsOnce(Rule):
    """C4 (design 0013; H): a write that returned what it wrote itself was carried out twice."""

    rule = "C4"
    sentence = "an operation that is not idempotent is carried out once"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        if not operation.is_read and operation.seen == operation.number:
            self.fail(f"{operation!r} found its own value")


def clients_differ(world: World) -> str:
    """Which client has another picture of the cluster than the master; empty when none has."""
    for host in world.up_hosts():
        member = host.member
        if not member.ctx.is_master:
            continue
        members = member.ctx.members.ids()
        for client in world.clients:
            difference = client.table_difference(member.migrations.table.rows, members)
            if difference:
                return difference
    return ""


class ErrorSightings(Sightings):
    """Each error once; counted by the world."""

    situations = tuple(ERRORS.values())


def errors_met(counts: Mapping[int, int]) -> dict[str, int]:
    """Error codes to how often clients got them, as situations."""
    return {ERRORS[code]: count for code, count in counts.items() if code in ERRORS}


RULES: tuple[type[Rule], ...] = (EveryCallEnds, ClientsAgree, RunsOnce, ErrorSightings)
