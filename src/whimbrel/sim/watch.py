"""Where the checkers sit: probes in every member, and the points at which rules are looked at.

Check points (facts/reliability section 3): *E* after every event of a member, *T* at every change
of a table or view, *Q* at quiescence, *H* on the history. A checker overrides the points it needs
and costs nothing at the others. Probes wrap methods of one member's rooms from outside; the core
knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from whimbrel.core.effects import Note
from whimbrel.core.ids import MemberId, PartitionId, Row
from whimbrel.core.messages import Message
from whimbrel.core.model import MemberList
from whimbrel.core.stimuli import Received, Stimulus

if TYPE_CHECKING:
    from whimbrel.core.member import Member
    from whimbrel.core.replication.fragments import Fragment, PartitionReplica
    from whimbrel.sim.host import Host
    from whimbrel.sim.sim_client import Invocation, Reply, SimClient
    from whimbrel.sim.workload import Operation
    from whimbrel.sim.world import World


def member_of(host: Host) -> Member:
    """The core of a member whose process exists."""
    engine = host.engine
    if engine is None:
        raise LookupError(f"{host.name} is not running")
    return engine.member


class Checker:
    """One rule. Overrides of the methods below are called, the others cost nothing."""

    rule: ClassVar[str] = ""
    sentence: ClassVar[str] = ""
    messages: ClassVar[tuple[type[Message], ...]] = ()
    """Messages for which ``received`` and ``step`` are called."""

    def __init__(self, world: World) -> None:
        self.world = world

    def fail(self, detail: str, who: str = "") -> None:
        """The rule is broken."""
        self.world.violation(self.rule, f"{self.sentence}: {detail}", who)

    def started(self, host: Host) -> None:
        """A process has started."""

    def ending(self, host: Host, reason: str) -> None:
        """A process is about to be gone; its engine can still be looked at."""

    def ended(self, host: Host, reason: str) -> None:
        """A process is gone; its engine too."""

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E: a member is about to handle one of ``messages``."""

    def step(self, host: Host) -> None:
        """E: a member has handled one of ``messages``."""

    def sample(self) -> None:
        """Every quarter of a simulated second."""

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T: a row changed in a member's table; its data have not followed yet."""

    def row_settled(
        self, host: Host, pid: PartitionId, before: Row, after: Row, version: int
    ) -> None:
        """T: the member's data have followed a changed row."""

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T: a member installed a member list."""

    def became_master(self, host: Host) -> None:
        """T: a member took charge."""

    def planned(self, host: Host) -> None:
        """T: the master has made a plan and is about to carry it out."""

    def accepted(self, host: Host, pid: PartitionId) -> None:
        """E: a member took a write as primary of a partition."""

    def out_of_step(
        self, host: Host, fragment: Fragment, before: int, entries: int, counter: int
    ) -> None:
        """E: a backup got an operation that was not the next one of a clean replica.

        ``before`` and ``entries`` are the replica's version and size before, ``counter`` is the
        operation's version.
        """

    def note(self, host: Host, note: Note) -> None:
        """E: a member emitted a note."""

    def expelled(self, host: Host) -> None:
        """A member was removed although the nemesis had not silenced it for long."""

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H: a client knows the outcome of an operation."""

    def denied(self, operation: Operation, error: str) -> None:
        """H: an error tells a client that nothing has happened; it may make the call again."""

    def one_way(self, host: Host, span_us: int) -> None:
        """T: from now on a member hears and is not heard, or the reverse, for a span."""

    def listened(self, client: SimClient, key: int, number: int) -> None:
        """H: a client's listener was told of a change: operation number, 0 for a removal."""

    def scanned(self, operation: Operation, keys: list[bytes]) -> None:
        """H: a client got the keys of a whole map."""

    def hangs(self, client: SimClient, call: Invocation, host: Host | None) -> None:
        """H: a request was not answered for long."""

    def quiet(self) -> None:
        """Q: the cluster is safe and nothing harms it."""

    def final(self) -> None:
        """H: the run is over and the cluster is quiet."""


POINTS = (
    "started",
    "ending",
    "ended",
    "sample",
    "row",
    "row_settled",
    "view",
    "became_master",
    "planned",
    "accepted",
    "out_of_step",
    "note",
    "expelled",
    "operation",
    "denied",
    "one_way",
    "listened",
    "scanned",
    "hangs",
    "quiet",
    "final",
)


class Watch:
    """All checkers of a run and the probes that feed them."""

    def __init__(self, world: World) -> None:
        from whimbrel.sim.checkers import make_checkers
        from whimbrel.sim.coverage import Sightings

        self.world = world
        self.checkers: list[Checker] = [*make_checkers(world), Sightings(world)]
        self._calls: dict[str, list[Callable[..., None]]] = {
            point: [
                getattr(checker, point)
                for checker in self.checkers
                if getattr(type(checker), point) is not getattr(Checker, point)
            ]
            for point in POINTS
        }
        self._received: dict[type[Message], list[Callable[..., None]]] = {}
        self._step: dict[type[Message], list[Callable[..., None]]] = {}
        for checker in self.checkers:
            for kind in checker.messages:
                if type(checker).received is not Checker.received:
                    self._received.setdefault(kind, []).append(checker.received)
                if type(checker).step is not Checker.step:
                    self._step.setdefault(kind, []).append(checker.step)

    def _tell(self, point: str, *arguments: Any) -> None:
        for call in self._calls[point]:
            call(*arguments)

    # -- probes ---------------------------------------------------------------------------

    def attach(self, host: Host) -> None:
        """Put the probes into a fresh process."""
        member = member_of(host)
        self._probe_table(host, member)
        self._probe_views(host, member)
        self._probe_writes(host, member)
        self._probe_depth(host, member)
        self._tell("started", host)

    def _probe_table(self, host: Host, member: Member) -> None:
        table, dataplane = member.migrations.table, member.dataplane
        set_row, row_changed = table.set_row, dataplane.roles.row_changed
        rows, settled = self._calls["row"], self._calls["row_settled"]

        def probed_set_row(pid: PartitionId, row: Row, version: int) -> None:
            before = table.rows[pid]
            self.world.calm_since_us = None
            set_row(pid, row, version)
            for call in () if host.is_outside else rows:
                call(host, pid, before, row, version)

        def probed_row_changed(pid: PartitionId, before: Row, after: Row, version: int) -> None:
            row_changed(pid, before, after, version)
            for call in () if host.is_outside else settled:
                call(host, pid, before, after, version)

        self._probe_plans(host, member)
        # Attributes of these objects only: the classes stay as they are.
        vars(table)["set_row"] = probed_set_row
        vars(dataplane.roles)["row_changed"] = probed_row_changed

    def _probe_depth(self, host: Host, member: Member) -> None:
        """A map that wants deeper rows than all before it: its copies are due from here on."""
        migrations = member.migrations
        depth_changed = migrations.depth_changed

        def probed_depth(depth: int) -> None:
            if not host.is_outside:
                self.world.disturbed()
            depth_changed(depth)

        vars(migrations)["depth_changed"] = probed_depth

    def _probe_plans(self, host: Host, member: Member) -> None:
        """Also after a switch of the cluster version, when the room has built its parts anew."""
        migrations = member.migrations
        follow_ways = migrations._follow_ways

        def probe() -> None:
            execution = migrations._loop.execution
            load = execution.load

            def probed_load(*arguments: Any) -> None:
                if not host.is_outside:
                    self._tell("planned", host)
                load(*arguments)

            vars(execution)["load"] = probed_load

        def probed_follow() -> None:
            before = migrations._loop
            follow_ways()
            if migrations._loop is not before:
                probe()

        probe()
        vars(migrations)["_follow_ways"] = probed_follow

    def _probe_writes(self, host: Host, member: Member) -> None:
        dataplane = member.dataplane
        change, out_of_step = dataplane.holdings.change, dataplane.incoming._apply_out_of_step
        accepted, gaps = self._calls["accepted"], self._calls["out_of_step"]

        def probed_change(partition: PartitionReplica, fragment: Fragment, *arguments: Any) -> None:
            for call in () if host.is_outside else accepted:
                call(host, partition.pid)
            change(partition, fragment, *arguments)

        def probed_out_of_step(fragment: Fragment, counter: int, *arguments: Any) -> None:
            before, entries = fragment.value, len(fragment.store)
            out_of_step(fragment, counter, *arguments)
            for call in gaps:
                call(host, fragment, before, entries, counter)

        vars(dataplane.holdings)["change"] = probed_change
        vars(dataplane.incoming)["_apply_out_of_step"] = probed_out_of_step

    def _probe_views(self, host: Host, member: Member) -> None:
        membership = member.membership
        view_changed, became_master = membership.on_view_changed, membership.on_became_master

        def probed_view(old: MemberList, new: MemberList) -> None:
            self.world.trace.mark(
                self.world.now_us,
                host.name,
                "view",
                f"v{new.version} " + " ".join(self.name_of(one) for one in new.ids()),
            )
            self.world.disturbed()
            host.lite = member.ctx.me.lite
            if not host.is_outside:
                self._tell("view", host, old, new)
            if view_changed is not None:
                view_changed(old, new)

        def probed_master() -> None:
            self.world.trace.mark(self.world.now_us, host.name, "master")
            if not host.is_outside:
                self._tell("became_master", host)
            if became_master is not None:
                became_master()

        membership.on_view_changed = probed_view
        membership.on_became_master = probed_master

    # -- points ---------------------------------------------------------------------------

    def before_stimulus(self, host: Host, stimulus: Stimulus) -> None:
        """A member is about to handle a stimulus."""
        if isinstance(stimulus, Received) and not host.is_outside:
            for call in self._received.get(type(stimulus.message), ()):
                call(host, stimulus.sender, stimulus.message)

    def after_step(self, host: Host) -> None:
        """A member has handled something."""
        cause = host.cause
        if isinstance(cause, Received) and not host.is_outside:
            for call in self._step.get(type(cause.message), ()):
                call(host)

    def sample(self) -> None:
        """Some simulated time has passed."""
        self._tell("sample")

    def host_ending(self, host: Host, reason: str) -> None:
        """A process is about to be gone."""
        self._tell("ending", host, reason)

    def host_ended(self, host: Host, reason: str) -> None:
        """A process is gone."""
        self._tell("ended", host, reason)

    def accepted(self, host: Host, pid: PartitionId) -> None:
        """A member took a write as primary."""
        self._tell("accepted", host, pid)

    def expelled_without_cause(self, host: Host) -> None:
        """A member was removed although it was never silent for long."""
        self._tell("expelled", host)

    def noted(self, host: Host, note: Note) -> None:
        """A member emitted a note."""
        if not host.is_outside:
            self._tell("note", host, note)

    def operation_ended(self, operation: Operation, reply: Reply) -> None:
        """A client knows an outcome."""
        self._tell("operation", operation, reply)

    def call_denied(self, operation: Operation, error: str) -> None:
        """A client hears that nothing has happened."""
        self._tell("denied", operation, error)

    def one_way_began(self, host: Host, span_us: int) -> None:
        """A member is cut off in one direction."""
        self._tell("one_way", host, span_us)

    def heard_event(self, client: SimClient, key: int, number: int) -> None:
        """A client's listener was told of a change."""
        self._tell("listened", client, key, number)

    def scanned(self, operation: Operation, keys: list[bytes]) -> None:
        """A client got the keys of a whole map."""
        self._tell("scanned", operation, keys)

    def call_hangs(self, client: SimClient, call: Invocation, host: Host | None) -> None:
        """A request was not answered for long."""
        self._tell("hangs", client, call, host)

    def quiet(self) -> None:
        """The cluster is safe now."""
        self._tell("quiet")

    def final(self) -> None:
        """The run is over."""
        self._tell("final")

    # -- names ----------------------------------------------------------------------------

    def name_of(self, member: MemberId | None) -> str:
        """The place whose process has (or had last) this identity, else the id's beginning."""
        if member is None:
            return "-"
        for host in self.world.hosts:
            if host.info.id == member:
                return host.name
        return member[:8]

    def host_of(self, member: MemberId | None) -> Host | None:
        """The running process of this identity."""
        for host in self.world.hosts:
            if host.info.id == member and host.is_up:
                return host
        return None
