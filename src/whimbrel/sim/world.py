"""The world of one run: places, time, network, history, and who listens to what happens.

Everything that happens passes through here, so that rules see all members' true state and not only
what members say. The world decides nothing about the order of a run, ``run`` does; it draws no harm
and starts no call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from whimbrel.core.effects import Note
from whimbrel.core.ids import Address, MemberId, Row
from whimbrel.core.model import ClusterState, MemberInfo
from whimbrel.core.persistence.encryption import Encryption
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import UsageError
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import new_engine
from whimbrel.sim.entropy import Entropy, coin
from whimbrel.sim.faults.budget import FailureBudget
from whimbrel.sim.history import History
from whimbrel.sim.host import Delivery, Host, Interceptor
from whimbrel.sim.network import Network
from whimbrel.sim.profile import Plan
from whimbrel.sim.scheduler import Scheduler
from whimbrel.sim.trace import Trace

FIRST_PORT = 5701
SENIORITY = ("master", "second", "third", "fourth")
"""Names in a scenario file for whoever has that place in the master's list."""
VIOLATIONS_MAX = 20
"""A run ends at its first violation; a single event may find several."""
HALF_OPEN_US = 9_000_000
"""A sender to a machine that vanished notices after this span at the latest."""
SHOWN_NOTES = ("migration.planned", "migration.finished", "partition.lost")
"""Notes that stand on the time line although they are no warnings."""
STALENESS = ("pause", "cut", "clog", "slow", "narrow", "double", "forsake")
"""Faults that can keep the news of a new primary from the old one."""
WALL_START_MS = 1_750_000_000_000

MakeEngine = Callable[[MemberInfo, CoreSettings, int, Encryption], Engine]


class Violation(msgspec.Struct, frozen=True):
    """A rule that was broken."""

    rule: str
    """Id of the rule, for example ``D1``."""
    sentence: str
    at_us: int
    who: str = ""


class ClientProcess(Protocol):
    """What a world knows of a client."""

    name: str
    index: int
    """Position among the clients."""
    is_busy: bool
    """Whether it waits for an answer."""

    def break_connection(self, host: Host) -> None:
        """The network resets its connection to a host."""
        ...

    def machine_vanished(self, host: Host, notice_us: int) -> None:
        """A machine went without a word."""
        ...

    def table_difference(self, rows: list[Row], members: tuple[MemberId, ...]) -> str:
        """How its picture of the cluster differs from a table; empty when it does not."""
        ...

    def is_listening_since(self, moment_us: int) -> bool:
        """Whether every running member has told it of all changes since a moment."""
        ...


class World:
    """One simulated cluster."""

    def __init__(self, plan: Plan, entropy: Entropy, make_engine: MakeEngine | None = None) -> None:
        self.plan = plan
        self.entropy = entropy
        self.make_engine: MakeEngine = make_engine or new_engine
        self.scheduler = Scheduler(entropy.of("scheduler"))
        self.network = Network(self.scheduler, entropy.of("network"), plan.network)
        self.trace = Trace()
        self.wall_base_ms = WALL_START_MS
        self.violations: list[Violation] = []
        self.budget = FailureBudget(plan.backup_count, self.trace)
        self.error_counts: dict[int, int] = {}
        self.note_counts: dict[str, int] = {}
        self.fault_counts: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        """Rare situations to how often this run met them (``coverage``)."""
        self.clock_jumps_ms = 0
        """Upper bound of what wall clocks may be off beyond their first skew."""
        self.stale_window_us = 0
        """Longest span in which a stale primary still took writes beside the new one (P3)."""
        self.last_fault_us = 0
        self.is_dark = False
        """Whether everybody was killed or has left at once and nobody serves again yet: what was
        acknowledged is on disks."""
        self.era = 0
        """Rises when everybody is killed and when somebody serves again: what nobody but the dead
        knew may be said again."""
        self.calm_since_us: int | None = None
        """Since when the cluster has been safe and nothing has changed; None when it is not."""
        self._connections = 0
        self.hosts = [
            Host(
                self,
                f"m{index + 1}",
                Address(f"10.0.0.{index + 1}", FIRST_PORT),
                lite=0 < index <= plan.lite_hosts,
                machine=f"h{1 + index // plan.machine_size}",
            )
            for index in range(plan.hosts)
        ]
        self._draw_joins()
        self._by_address = {host.address: host for host in self.hosts}
        self._by_name = {host.name: host for host in self.hosts}
        self.clients: Sequence[ClientProcess] = ()
        self.interceptors: tuple[Interceptor, ...] = ()
        """Harm that waits for a message."""
        self.history = History(plan.settings.partition_count)
        self.listeners: dict[str, list[Callable[..., None]]] = {}
        """Point to whom it is told (``watch``)."""

    # -- looking --------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        """Simulated time."""
        return self.scheduler.now_us

    def host_at(self, address: Address) -> Host | None:
        """The place with that address."""
        return self._by_address.get(address)

    def host_named(self, name: str) -> Host:
        """The place of that name.

        Raises:
            UsageError: There is none.
        """
        host = self._by_name.get(name) or self.place_of(name)
        if host is None:
            raise UsageError(f"there is no member {name!r} in this run")
        return host

    def place_of(self, name: str) -> Host | None:
        """The place of that name, or of who is ``master``, ``second``, ``third`` in its list now.

        None when there is no such place, or nobody rules.
        """
        if name in self._by_name or name not in SENIORITY:
            return self._by_name.get(name)
        for host in self.up_hosts():
            if host.member.ctx.is_master and host.joined:
                members = host.member.ctx.members.ids()
                rank = SENIORITY.index(name)
                return self.host_of(members[rank]) if rank < len(members) else None
        return None

    def name_of(self, member: MemberId | None) -> str:
        """The place whose process has (or had last) this identity, else the id's beginning."""
        if member is None:
            return "-"
        for host in self.hosts:
            if host.info.id == member:
                return host.name
        return member[:8]

    def host_of(self, member: MemberId | None) -> Host | None:
        """The running process of this identity."""
        for host in self.hosts:
            if host.info.id == member and host.is_up:
                return host
        return None

    def addresses(self) -> tuple[Address, ...]:
        """Every address where a member may listen; as a rule each is configured with all."""
        return tuple(host.address for host in self.hosts)

    def start(self, host: Host) -> None:
        """A process starts at a place, as it is configured there."""
        host.start(host.joins)

    def _draw_joins(self) -> None:
        """Configure every place: with all addresses, or with some that connect all of them.

        Of each place and one before it one knows the other; by a coin somebody knows more.
        """
        for host in self.hosts:
            host.joins = self.addresses()
        if not self.plan.profile.partial_joins:
            return
        generator = self.entropy.of("joins")
        lists: dict[Host, list[Address]] = {host: [] for host in self.hosts}
        for number, host in enumerate(self.hosts[1:], 1):
            other = self.hosts[generator.randrange(number)]
            knower, known = (host, other) if coin(generator, 0.5) else (other, host)
            lists[knower].append(known.address)
        for host, addresses in lists.items():
            if coin(generator, 0.2):
                addresses.append(self.hosts[generator.randrange(len(self.hosts))].address)
            host.joins = tuple(addresses)

    def up_hosts(self) -> list[Host]:
        """Members whose process exists, without those that are outside for ever."""
        return [host for host in self.hosts if host.is_up and not host.is_outside]

    def _data_hosts(self) -> list[Host]:
        return [
            host
            for host in self.hosts
            if host.is_up
            and not host.is_outside
            and host.joined
            and not host.lite
            and not host.is_leaving
            and not host.is_draining
            and not host.is_condemned
        ]

    def data_member_count(self) -> int:
        """Members that hold data and are meant to stay."""
        return len(self._data_hosts())

    def places(self, without: Host | None = None) -> list[str]:
        """Places that may each hold one replica of a partition: those members, or machines.

        Args:
            without: Somebody who is not meant to stay.
        """
        hosts = [host for host in self._data_hosts() if host is not without]
        return list(dict.fromkeys(map(self.place_for, hosts)))

    def places_of(self, hosts: list[Host]) -> int:
        """How many replicas of one partition these hosts may hold together."""
        return len(dict.fromkeys(map(self.place_for, hosts)))

    def place_for(self, host: Host) -> str:
        """Of what may hold one replica of a partition: the member's, or its machine's name."""
        by_machine = self.plan.settings.member_group != "member"
        return host.machine if by_machine else host.name

    def book_loss(self, host: Host) -> None:
        """A data member is lost ungracefully; those of one machine may be lost as one place.

        Who dies while the cluster comes back from its files comes back with them, too.
        """
        if self.is_dark:
            return
        by_machine = self.plan.settings.member_group != "member"
        self.budget.lose(self.now_us, self.place_for(host), once=by_machine)

    def data_is_promised(self) -> bool:
        """Whether the harm so far is within what the configuration promises to survive."""
        is_within = not self.plan.profile.over_budget and not self.budget.overdrawn
        return is_within and not self.is_dark

    def reads_are_fresh(self) -> bool:
        """Whether no stale primary can be about: members never stop, and refuse stale reads."""
        stale = any(self.fault_counts.get(verb) for verb in STALENESS)
        return self.plan.settings.stale_read_disabled and not stale and self.data_is_promised()

    def is_calm_since(self, moment_us: int) -> bool:
        """Whether the cluster has been safe and unchanged since a moment."""
        return self.calm_since_us is not None and self.calm_since_us <= moment_us

    def is_everywhere_active(self) -> bool:
        """Whether every member believes that the cluster is ACTIVE and no change is under way."""
        for host in self.up_hosts():
            member = host.member
            is_changing = member.membership.states._transaction is not None
            if member.ctx.members.state is not ClusterState.ACTIVE or is_changing:
                return False
        return True

    def reached_safe_point(self) -> None:
        """The cluster is safe now."""
        data_members = self.data_member_count()
        self.budget.safe_point(len(self.places()))
        self.trace.mark(self.now_us, "--", "safe", f"{data_members} data members")
        if self.calm_since_us is None:
            self.calm_since_us = self.now_us

    def disturbed(self) -> None:
        """A fault, a new list or a changed row: the calm is over."""
        self.calm_since_us = None

    def harmed(self) -> None:
        """A fault, now."""
        self.last_fault_us = self.now_us
        self.disturbed()

    def next_connection(self) -> int:
        """A number for a client's connection."""
        self._connections += 1
        return self._connections

    # -- what happens ---------------------------------------------------------------------

    def tell(self, point: str, *arguments: Any) -> None:
        """Something has happened: tell whoever listens at this point (``rule.POINTS``)."""
        for listener in self.listeners.get(point, ()):
            listener(*arguments)

    @property
    def is_intercepted(self) -> bool:
        """Whether some harm waits for a message."""
        return any(not one.is_idle for one in self.interceptors)

    def stops(self, delivery: Delivery, side: str) -> bool:
        """Whether a member does not go on with what it is handed, or is gone."""
        return any(one.stops(delivery, side) for one in self.interceptors)

    def host_ending(self, host: Host, reason: str) -> None:
        """A process is about to be gone.

        Where migrations are not allowed a leaver goes with its data, as one that dies (GCM-08).
        """
        if reason == "left" and not host.lite and not self.is_everywhere_active():
            self.book_loss(host)
        self.tell("ending", host, reason)

    def repeated_after_us(self, host: Host, sender: MemberInfo) -> int:
        """How much later a control message arrives a second time; 0 when it does not."""
        source = self._by_address.get(sender.address)
        if source is None:
            return 0
        most_us = self.network.path(source.name, host.name).double_us
        return 1 + self.entropy.of("double").randrange(most_us) if most_us else 0

    def clocks_jumped(self) -> None:
        """A wall clock was set: how far apart the clocks may be is worked out anew."""
        true_ms = self.wall_base_ms + self.now_us // 1000
        most_ms = max(abs(host.wall_ms() - true_ms) for host in self.hosts)
        self.clock_jumps_ms = max(self.clock_jumps_ms, most_ms)

    def sometimes(self, name: str) -> None:
        """A rare situation has come about; counted for the coverage report."""
        self.seen[name] = self.seen.get(name, 0) + 1

    def host_expelled(self, host: Host) -> None:
        """A member learned that the cluster goes on without it."""
        if not host.is_condemned:
            if not host.lite:
                self.book_loss(host)
            self.tell("expelled", host)

    def noted(self, host: Host, note: Note) -> None:
        """A member emitted a note."""
        self.note_counts[note.kind] = self.note_counts.get(note.kind, 0) + 1
        if note.kind == "role_change_ended":
            host.is_draining = False
        fields = " ".join(f"{name}={value}" for name, value in note.fields.items())
        is_news = note.level in ("warning", "error") or note.kind in SHOWN_NOTES
        record = self.trace.mark if is_news else self.trace.add
        record(self.now_us, host.name, f"note {note.kind}", fields, note.cause)
        if not host.is_outside:
            self.tell("note", host, note)

    def violation(
        self, rule: str, sentence: str, who: str = "", error: BaseException | None = None
    ) -> None:
        """A rule is broken."""
        if error is not None and error.__traceback__ is not None:
            last = error.__traceback__
            while last.tb_next is not None:
                last = last.tb_next
            code = last.tb_frame.f_code
            sentence = f"{sentence} (in {code.co_name}, line {last.tb_lineno})"
        self.trace.mark(self.now_us, who, f"VIOLATION {rule}", sentence)
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(rule, sentence, self.now_us, who))

    def count_error(self, code: int) -> None:
        """A client got an error response."""
        self.error_counts[code] = self.error_counts.get(code, 0) + 1

    # -- harm -----------------------------------------------------------------------------

    def lose_all(self, *, power: bool) -> None:
        """Every process dies at one moment, or every machine loses its power.

        Nothing is booked: with files no copy is lost by it (``faults.budget``).
        """
        self.tell("outage", power)
        self.is_dark = True
        self.era += 1
        for host in self.up_hosts():
            host.crash(silent=power)

    def shut_down(self) -> None:
        """Every member leaves at once: what they have goes to their disks.

        Until all have asked, who asked first may be taken out of rows: there are fewer copies then.
        """
        self.is_dark = True
        self.budget.shrunk(self.now_us, ())
        for host in self.up_hosts():
            host.leave()

    def served(self) -> None:
        """A member is in a cluster that runs."""
        if self.is_dark:
            self.is_dark = False
            self.era += 1

    def lose_by_crash(self, host: Host, *, silent: bool = False) -> None:
        """A member dies ungracefully, and the budget hears of it."""
        if not host.lite and host.joined:
            self.book_loss(host)
        host.crash(silent=silent)

    def break_links_to(self, host: Host, notice: bool) -> None:
        """The process at a place is gone: connections to it are over.

        ``notice`` tells that its machine still answers, so that senders learn it at once; else
        they learn it late.
        """
        for other in self.hosts:
            if other is host:
                continue
            for link in other.links.values():
                if link.target is host and link.target_incarnation != host.incarnation:
                    path = self.network.path(host.name, other.name)
                    delay_us = self.network.draw_delay_us(path) if notice else HALF_OPEN_US
                    link.target_gone(delay_us)
        if not notice:
            for client in self.clients:
                client.machine_vanished(host, HALF_OPEN_US)
