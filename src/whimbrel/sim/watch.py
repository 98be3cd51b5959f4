"""Where the rules sit: probes in every member, and who is told at which point.

Probes wrap methods of one member's rooms from outside; the core knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from whimbrel.core.ids import PartitionId, Row
from whimbrel.core.member import Member
from whimbrel.core.messages import Message
from whimbrel.core.model import MemberList
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.stimuli import Received, Stimulus
from whimbrel.sim.host import Host
from whimbrel.sim.rule import ASKED_BY_MESSAGE, POINTS, Rule
from whimbrel.sim.world import World


class Watch:
    """All rules of a run and the probes that feed them."""

    def __init__(self, world: World, rules: Iterable[type[Rule]]) -> None:
        self.world = world
        made = [kind(world) for kind in rules]
        self._calls: dict[str, list[Callable[..., None]]] = {
            point: [getattr(rule, point) for rule in made if _is_asked(rule, point)]
            for point in POINTS
            if point not in ASKED_BY_MESSAGE
        }
        self._received = _by_message(made, "received")
        self._step = _by_message(made, "step")
        world.listeners = {
            **self._calls,
            "started": [self._put_probes_in, *self._calls["started"]],
            "stimulus": [self._before_stimulus],
            "stepped": [self._after_step],
        }

    # -- probes ---------------------------------------------------------------------------

    def _put_probes_in(self, host: Host) -> None:
        """A process is fresh."""
        self._probe_table(host, host.member)
        self._probe_views(host, host.member)
        self._probe_writes(host, host.member)
        self._probe_depth(host, host.member)

    def _probe_table(self, host: Host, member: Member) -> None:
        table, dataplane = member.migrations.table, member.dataplane
        set_row, row_changed = table.set_row, dataplane.roles.row_changed
        rows, settled = self._calls["row"], self._calls["row_settled"]

        def is_unjudged() -> bool:
            """Nor is a table that comes back from files: what changed it, it did before."""
            return host.is_outside or member.ctx.members.recovery is not None

        def probed_set_row(pid: PartitionId, row: Row, version: int) -> None:
            before = table.rows[pid]
            self.world.calm_since_us = None
            set_row(pid, row, version)
            for call in () if is_unjudged() else rows:
                call(host, pid, before, row, version)

        def probed_row_changed(pid: PartitionId, before: Row, after: Row, version: int) -> None:
            row_changed(pid, before, after, version)
            for call in () if is_unjudged() else settled:
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
        follow_mode = migrations._follow_mode

        def probe() -> None:
            execution = migrations.loop.execution
            load = execution.load

            def probed_load(*arguments: Any) -> None:
                if not host.is_outside:
                    self.world.tell("planned", host)
                load(*arguments)

            vars(execution)["load"] = probed_load

        def probed_follow() -> None:
            before = migrations.loop
            follow_mode()
            if migrations.loop is not before:
                probe()

        probe()
        vars(migrations)["_follow_mode"] = probed_follow

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
                f"v{new.version} " + " ".join(self.world.name_of(one) for one in new.ids()),
            )
            self.world.disturbed()
            host.lite = member.ctx.me.lite
            if not host.is_outside:
                self.world.tell("view", host, old, new)
            view_changed(old, new)

        def probed_master() -> None:
            self.world.trace.mark(self.world.now_us, host.name, "master")
            if not host.is_outside:
                self.world.tell("became_master", host)
            became_master()

        membership.on_view_changed = probed_view
        membership.on_became_master = probed_master

    # -- messages -------------------------------------------------------------------------

    def _before_stimulus(self, host: Host, stimulus: Stimulus) -> None:
        """A member is about to handle a stimulus."""
        if isinstance(stimulus, Received) and not host.is_outside:
            for call in self._received.get(type(stimulus.message), ()):
                call(host, stimulus.sender, stimulus.message)

    def _after_step(self, host: Host) -> None:
        """A member has handled something."""
        stimulus = host.stimulus
        if isinstance(stimulus, Received) and not host.is_outside:
            for call in self._step.get(type(stimulus.message), ()):
                call(host)


def _is_asked(rule: Rule, point: str) -> bool:
    return getattr(type(rule), point) is not getattr(Rule, point)


def _by_message(rules: list[Rule], point: str) -> dict[type[Message], list[Callable[..., None]]]:
    calls: dict[type[Message], list[Callable[..., None]]] = {}
    for rule in rules:
        for kind in rule.messages if _is_asked(rule, point) else ():
            calls.setdefault(kind, []).append(getattr(rule, point))
    return calls
