"""Finds the cluster from a list of addresses, asks to join it, or founds it.

Exactly one cluster must come out when several members start together. The rule: a member founds
only after two rounds in a row in which every other address was unreachable, belonged to another
cluster, or was a member that seeks as well and has a *higher* address. A round lasts until every
address has been found out, one interval at least; probes go out in every interval. Whoever hears a
seeking member with a lower address waits for it. So the lowest reachable address founds.

Whoever has files of a cluster comes before all that have none, and founds its recovery instead of a
new cluster (docs/design/0017). A member without files that has heard of files founds nothing.
"""

from __future__ import annotations

import enum
from hashlib import blake2b

from whimbrel.core.context import Context
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.membership.membership_state import MembershipState
from whimbrel.core.messages import (
    ClaimRequested,
    Heartbeat,
    JoinRefused,
    JoinRequested,
    ProbeAnswered,
    ProbeRequested,
)
from whimbrel.core.model import ClusterState, MemberInfo, MemberList
from whimbrel.core.persistence.metadata import ClusterFile
from whimbrel.core.recovery.decision import recovery_of
from whimbrel.serialization.uuids import UUID_BYTES, uuid_text

DISCOVERY_TIMER = "membership.discovery"
ROUNDS_TO_FOUND = 2
"""One round could be a glance at a member that starts at this very moment; two cannot, because
that member's own first probe reaches us in between."""
HEARD_ADDRESSES_MAX = 64
"""Addresses learned from probers, beyond the configured ones."""
STALE_DATA_KEY = "persistence.auto_remove_stale_data"
LATE_NOTICE_US = 2_000_000
"""A probe may be found to have reached nobody so long after it was sent: a machine that was without
power gives no answer, and a shell tries for a second. Who was heard of since is there."""
CLAIMANTS_MAX = 64
"""Claimants we told that we have no list yet; the oldest are forgotten."""


class Sight(enum.Enum):
    """What one round found out about an address."""

    SILENT = "no answer"
    UNREACHABLE = "unreachable"
    FOREIGN = "belongs to another cluster"
    HIGHER = "seeks too, after us"
    LOWER = "seeks too, before us"


CLEAR = (Sight.UNREACHABLE, Sight.FOREIGN, Sight.HIGHER)
"""Sights that do not keep us from founding."""


def new_cluster_id(ctx: Context) -> str:
    """A uuid no founding has had before: to clients the same id means the same data.

    A founder may have its uuid, and a machine that has restarted even its start, from a process
    before it; so both clocks are part of it.
    """
    named = f"{ctx.id}:{ctx.started_us}:{ctx.wall_ms}"
    return uuid_text(blake2b(named.encode(), digest_size=UUID_BYTES).digest())


class Discovery:
    """The seeking member's side of discovery and joining."""

    def __init__(self, membership: MembershipState) -> None:
        """Begin with ``start``."""
        self._membership = membership
        self._ctx = membership.ctx
        self._sights: dict[Address, Sight] = {}
        """Every address we probe, in probing order, with this round's finding."""
        self._named: dict[MemberId, tuple[bool, MemberInfo]] = {}
        """Masters named since the last probes, and whether one named itself."""
        self._foreign: dict[Address, str] = {}
        """Addresses of other clusters, noted once each."""
        self._heard_from: dict[Address, int] = {}
        """Addresses that the incarnation before us gave way to and we are not configured with,
        and when somebody answered from there last."""
        self._cause = ""
        """Of our start: what follows from it ends with the list that we are on."""
        self._target: MemberInfo | None = None
        self._heard_us: dict[Address, int] = {}
        """When a seeker or a member was last heard of at an address."""
        self._clear_rounds = 0
        self._probes = 0
        self._probes_excused = 0
        """How many there were when we were last told to wait: they do not count as tries."""
        self._heard_count = 0
        self._refusal = ""
        """What the master last said when it would not have us yet."""
        self._claimants: dict[MemberId, int] = {}
        """Claimants that count on us to have no list, and when we told them so last."""
        self._knows_of_files = False
        """Whether somebody has files of this cluster that we have not: its place is kept."""
        self._is_setting_aside = False
        self._is_loading = False
        self._has_loaded = False
        """Whether what our files have is in memory: we may return with it."""

    @property
    def files(self) -> str:
        """Id of the cluster that we have files of, empty for none."""
        found = self._membership.found
        return "" if found is None else found.members.cluster_id

    # -- rounds ---------------------------------------------------------------------------

    def start(self, addresses: tuple[Address, ...], heard: tuple[Address, ...] = ()) -> None:
        """Probe all addresses but our own; with none to probe, found the cluster at once.

        Args:
            addresses: Those that we are configured with.
            heard: Those that the incarnation before us gave way to; whoever is there is asked
                like the others, and waited for until it is silent for the heartbeat time-out.
        """
        self._cause = self._ctx.cause
        places = dict.fromkeys((*addresses, *heard))
        self._sights = {item: Sight.SILENT for item in places if item != self._ctx.me.address}
        self._heard_from = {item: self._ctx.now_us for item in heard if item not in addresses}
        if self._sights:
            self._probe()
        else:
            self._found()

    def on_timer(self) -> None:
        """See whether a round has ended, probe again; give up after the join time-out."""
        settings = self._ctx.settings
        self._ctx.resume(self._cause)
        self._choose_target()
        self._maybe_end_round()
        if self._clear_rounds >= ROUNDS_TO_FOUND:
            self._found()
        elif self._tries * settings.discovery_interval_us > settings.join_timeout_us:
            self._membership.stop(self._failure(), 1)
        else:
            self._say_who_is_awaited()
            self._probe()

    @property
    def _tries(self) -> int:
        return self._probes - self._probes_excused

    def _say_who_is_awaited(self) -> None:
        """Once in a heartbeat time-out: a process that is stopped accepts, and says nothing."""
        settings = self._ctx.settings
        period = max(1, settings.heartbeat_timeout_us // settings.discovery_interval_us)
        awaited = [f"{at} ({one.value})" for at, one in self._sights.items() if one not in CLEAR]
        if awaited and not self._probes % period:
            seconds = self._probes * settings.discovery_interval_us // 1_000_000
            self._ctx.note("still_seeking", "warning", awaited=", ".join(awaited), seconds=seconds)

    def _is_given_up(self, address: Address) -> bool:
        """Whether only the incarnation before us had heard that address, and it fell silent.

        It is not what we were told to wait for: where nobody is left we go on by our own list.
        """
        last_us = self._heard_from.get(address, self._ctx.now_us)
        return self._ctx.now_us - last_us > self._ctx.settings.heartbeat_timeout_us

    def _maybe_end_round(self) -> None:
        is_waiting = self._is_setting_aside or (self._knows_of_files and not self.files)
        if self._target is not None or Sight.LOWER in self._sights.values() or is_waiting:
            self._clear_rounds = 0
        elif all(one in CLEAR or self._is_given_up(at) for at, one in self._sights.items()):
            self._clear_rounds += 1
        else:
            return
        self._sights = dict.fromkeys(self._sights, Sight.SILENT)

    def _probe(self) -> None:
        ctx = self._ctx
        self._named = {}
        self._probes += 1
        for address in self._sights:
            probe = ProbeRequested(ctx.settings.cluster_name, ctx.me, address, self.files)
            ctx.send_to(address, probe)
        self._ask_to_join()
        ctx.arm(DISCOVERY_TIMER, ctx.settings.discovery_interval_us)

    def _found(self) -> None:
        ctx, files = self._ctx, self._membership.found
        if files is not None:
            self._found_recovery(files)
            return
        ctx.note("cluster_founded", name=ctx.settings.cluster_name)
        founded = MemberList(
            1,
            (ctx.me,),
            cluster_id=new_cluster_id(ctx),
            cluster_version=ctx.settings.cluster_version,
        )
        self._membership.numbers.found()
        self._membership.install(founded)

    def _found_recovery(self, files: ClusterFile) -> None:
        """The cluster of our files comes back, under its id; nobody serves before it is whole."""
        ctx, before = self._ctx, files.members
        ctx.note("recovery_founded", cluster_id=before.cluster_id, list_version=before.version)
        self._membership.install(
            MemberList(
                before.version + 1,
                (ctx.me,),
                cluster_id=before.cluster_id,
                state=ClusterState.PASSIVE,
                cluster_version=before.cluster_version,
                missing=before.missing,
                recovery=recovery_of(before),
                backup_schedule=before.backup_schedule,
                given_up=before.given_up,
                stable=before.stable,
            )
        )

    def _failure(self) -> str:
        seconds = self._ctx.settings.join_timeout_us / 1_000_000
        if self._target is not None:
            why = f" ({self._refusal})" if self._refusal else ""
            return (
                f"the master at {self._target.address} did not admit us within {seconds:g} s{why}"
            )
        seen = ", ".join(f"{address}: {sight.value}" for address, sight in self._sights.items())
        if self._knows_of_files and not self.files:
            seen += "; others have files of it, whose place is kept"
        return f"no cluster to join was found within {seconds:g} s ({seen})"

    # -- findings -------------------------------------------------------------------------

    def on_probe(self, probe: ProbeRequested) -> None:
        """Somebody probes us while we seek; if it is not us, it is worth a look as well."""
        if probe.sender.id == self._ctx.id:
            # The dialled address is another name of our own.
            if probe.asked is not None:
                self._sights.pop(probe.asked, None)
            return
        if probe.cluster_name != self._ctx.settings.cluster_name:
            return
        address = probe.sender.address
        if address not in self._sights:
            if self._heard_count >= HEARD_ADDRESSES_MAX or address == self._ctx.me.address:
                return
            self._heard_count += 1
        self._see_seeker(address, probe.sender, probe.files, has_answered=False)

    def on_answer(self, sender: MemberId, at: Address, answer: ProbeAnswered) -> None:
        """Somebody answered our probe: a member, another seeker, or another cluster's member."""
        address = answer.asked or answer.sender.address
        if address in self._heard_from:
            self._heard_from[address] = self._ctx.now_us
        if answer.cluster_name != self._ctx.settings.cluster_name:
            self._see_foreigner(address, answer.cluster_name)
        elif answer.master is not None:
            if address in self._sights:
                self._heard_us[address] = self._ctx.now_us
            me = self._ctx.me
            if answer.master.id == me.id or answer.master.address == me.address:
                # A process before us, on our address; the cluster is about to notice its end.
                return
            names_itself = answer.master.id == answer.sender.id
            before = self._named.get(answer.master.id, (False, answer.master))[0]
            self._named[answer.master.id] = (names_itself or before, answer.master)
            if self._target is None:
                self._target = answer.master
                self._ask_to_join()
        elif address in self._sights:
            self._see_seeker(address, answer.sender, answer.files, has_answered=True)

    def on_unreachable(self, address: Address) -> None:
        """Nobody listens there, or did when the probe was sent: lately hearing it weighs more."""
        span_us = max(self._ctx.settings.call_timeout_us, LATE_NOTICE_US)
        if address in self._heard_us and self._heard_us[address] >= self._ctx.now_us - span_us:
            return
        if address in self._sights:
            self._sights[address] = Sight.UNREACHABLE
        if self._target is not None and self._target.address == address:
            self._target = None

    def on_refused(self, sender: MemberId, address: Address, refusal: JoinRefused) -> None:
        """The master will not have us: for good, or not yet."""
        if self._target is None or self._target.id != sender:
            return
        if refusal.joiner not in (None, self._ctx.id):
            return
        if refusal.reason != self._refusal:
            self._refusal = refusal.reason
            self._ctx.note("join_refused", "warning", reason=refusal.reason, final=refusal.final)
        if refusal.final:
            self._membership.stop(f"the master refused us: {refusal.reason}", 1)
        elif refusal.is_recovering:
            self._knows_of_files = True
            self._probes_excused = self._probes
        elif refusal.is_stale:
            self._on_stale(refusal.reason)
        elif refusal.is_awaited:
            self._on_awaited()

    def _on_stale(self, reason: str) -> None:
        """The cluster has gone on without us: what our files say is old (APR-14, APR-15)."""
        membership = self._membership
        if membership.files is None or membership.found is None or self._is_setting_aside:
            return
        if not self._ctx.settings.persistence.auto_remove_stale_data:
            membership.stop(f"{reason}; nothing is set aside: {STALE_DATA_KEY} is false", 1)
            return
        self._knows_of_files = self._is_setting_aside = True
        self._ctx.note("files_stale", "warning", reason=reason)
        membership.files.set_aside(self._on_set_aside)

    def _on_awaited(self) -> None:
        """We are missing there, and what our files have is of use: bring it back first (APR-39)."""
        self._knows_of_files = True
        self._probes_excused = self._probes
        if not self._is_loading:
            self._is_loading = True
            self._membership.load_base(self._on_base_loaded)

    def _on_base_loaded(self) -> None:
        self._is_loading, self._has_loaded = False, True
        self._probes_excused = self._probes
        self._ask_to_join()

    def _on_set_aside(self) -> None:
        """Our files are out of the way: go on asking without them."""
        self._is_setting_aside = False
        self._probes_excused = self._probes

    def _see_foreigner(self, address: Address, name: str) -> None:
        """An address of another cluster is like one where nobody listens."""
        if address not in self._sights:
            return
        self._sights[address] = Sight.FOREIGN
        if address not in self._foreign:
            self._foreign[address] = name
            self._ctx.note("foreign_cluster", "warning", address=str(address), name=name)

    def _see_seeker(
        self, address: Address, seeker: MemberInfo, files: str, has_answered: bool
    ) -> None:
        """Take note of another seeker. One with a higher address counts once it has answered.

        Before that it may not have heard of us, and may found the cluster though we would. Of two
        members the later one reaches the earlier one, so one of them knows what the other does.
        """
        me = self._ctx.me
        self._knows_of_files |= bool(files)
        theirs = (not files, seeker.address, seeker.id)
        if theirs < (not self.files, me.address, me.id):
            self._sights[address] = Sight.LOWER
        elif has_answered:
            self._sights[address] = Sight.HIGHER
        elif self._sights.get(address) is not Sight.HIGHER:
            self._sights[address] = Sight.SILENT
        self._heard_us[address] = self._ctx.now_us
        # Whoever named a master at this address has not noticed that its process is gone.
        for member in [one for one, named in self._named.items() if named[1].address == address]:
            del self._named[member]
        if self._target is not None and self._target.address == address:
            self._target = None

    # -- claimants ------------------------------------------------------------------------

    def on_claim(self, claimant: MemberId, address: Address, claim: ClaimRequested) -> None:
        """A claimant knows us as a joiner of the master it replaces: tell it that we have no list.

        It concludes without a list of that master that may be on its way to us.
        """
        self._claimants.pop(claimant, None)
        self._claimants[claimant] = self._ctx.now_us
        if len(self._claimants) > CLAIMANTS_MAX:
            del self._claimants[next(iter(self._claimants))]
        self._ctx.send_to(address, self._request(claim.call))

    def on_heartbeat(self, sender: MemberId, address: Address, beat: Heartbeat) -> None:
        """A claimant that obeys somebody else has abandoned its claim."""
        if beat.master != sender:
            self._claimants.pop(sender, None)

    def may_install(self, members: MemberList) -> bool:
        """Whether a first list comes from no master that a claimant is about to replace.

        A claim is over, one way or another, after the claim time-out; a master that still lives
        then publishes to us again, because we go on asking.
        """
        since_us = self._ctx.now_us - self._ctx.settings.claim_timeout_us
        return not any(
            told_us >= since_us and members.master != claimant and members.get(claimant) is not None
            for claimant, told_us in self._claimants.items()
        )

    # -- joining --------------------------------------------------------------------------

    def _request(self, claim: int = 0) -> JoinRequested:
        settings, found = self._ctx.settings, self._membership.found
        return JoinRequested(
            settings.cluster_name,
            settings.partition_count,
            self._ctx.me,
            claim,
            self.files,
            0 if found is None else found.members.version,
            self._has_loaded,
        )

    def _choose_target(self) -> None:
        """Follow the master: one that named itself, the one we ask already, the lowest."""
        ranked = sorted(
            self._named.values(),
            key=lambda item: (not item[0], item[1] != self._target, item[1].address),
        )
        if ranked:
            self._target = ranked[0][1]
        if self._target is not None and self._is_given_up(self._target.address):
            self._target = None

    def _ask_to_join(self) -> None:
        if self._target is not None:
            self._ctx.send_to(self._target.address, self._request())
