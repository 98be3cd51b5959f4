"""The operator's order to raise the cluster version (PIM-41, PIM-43, PIM-44).

Obeyed by the master alone, and only while the whole cluster stands still on one table: then every
member takes the new ways up from the same table, whichever of them hears of it first.
"""

from __future__ import annotations

import msgspec

from whimbrel.core.member import Member
from whimbrel.core.model import CLUSTER_VERSION, ClusterState

CLUSTER_VERSIONS = ("4.0", CLUSTER_VERSION)
"""All that this code knows, oldest first."""


class UpgradeOutcome(msgspec.Struct, frozen=True):
    """What became of an order."""

    cluster_version: str
    """By which the cluster runs now."""
    refusal: str = ""
    """Why the order was not obeyed, as a sentence; empty when it was, now or earlier."""


def upgrade_cluster(member: Member, version: str) -> UpgradeOutcome:
    """Obey the order, or say why not; the same order again changes nothing."""
    present = member.ctx.members.cluster_version
    refusal = refusal_of(member, version)
    if refusal or version == present:
        return UpgradeOutcome(present, refusal)
    members = member.ctx.members
    member.membership.install(
        msgspec.structs.replace(members, version=members.version + 1, cluster_version=version)
    )
    return UpgradeOutcome(member.ctx.members.cluster_version)


def refusal_of(member: Member, version: str) -> str:
    """Why the cluster cannot get this version now; empty when it can, or has it."""
    ctx = member.ctx
    present = ctx.members.cluster_version
    if version not in CLUSTER_VERSIONS:
        return f"cluster version {version} is unknown; there are {', '.join(CLUSTER_VERSIONS)}"
    if version == present:
        return ""
    if CLUSTER_VERSIONS.index(version) < CLUSTER_VERSIONS.index(present):
        return f"the cluster has version {present} and cannot go back to {version}"
    if not ctx.is_master:
        return "this member is not the master; ask again"
    if ctx.state is ClusterState.IN_TRANSITION:
        return "another change of the cluster is under way; try again"
    if ctx.leaving:
        return "a member is leaving; try again when it has left"
    settled, reason = member.migrations.is_settled()
    return "" if settled else f"{reason}; try again when the cluster is settled"
