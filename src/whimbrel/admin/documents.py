"""The cluster's documents: asks the master and all members, waits a bounded time, combines.

Knows how answers are put together and when a cluster counts as safe; what a member says about
itself is ``whimbrel.serving.documents``. Every question has the same short time limit, so that a
member that is silent costs a sentence, never a hanging request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from whimbrel.core.ids import MemberId
from whimbrel.core.model import MemberInfo
from whimbrel.errors import GridError, OperationError, UsageError
from whimbrel.runtime.node import Node

ANSWER_TIMEOUT_S = 2.0
"""How long an HTTP request waits for other members."""
NAMES_PER_QUESTION = 1_000
EVENTS_MAX = 1_000
"""Newest events of the cluster that are shown."""
NO_PROCESS = {"active": 0, "queued": 0, "planned": 0, "completed": 0, "failed": 0}
STATE = "ACTIVE"
"""The one cluster state there is."""

Json = dict[str, Any]


class MemberUnknownError(UsageError):
    """An order or a question names a member that is not on the list."""


class ChangeRefusedError(OperationError):
    """A change of the whole cluster that cannot be made now; nothing has changed."""


class ClusterDocuments:
    """Documents about the whole cluster, from where one member stands."""

    def __init__(self, node: Node) -> None:
        self._node = node

    # -- asking ---------------------------------------------------------------------------

    def members(self) -> tuple[MemberInfo, ...]:
        """This member's own list, oldest first."""
        return self._node.engine.member.ctx.members.members

    async def ask(
        self, member: MemberId | None, what: str, arguments: Mapping[str, object] | None = None
    ) -> Any:
        """Ask one member, the master when None.

        Raises:
            OperationError: An error sentence came, or nothing in time.
        """
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._node.ask(member, what, arguments)
        except TimeoutError:
            raise OperationError(f"{self._name(member)} does not answer") from None

    async def ask_all(
        self, what: str, arguments: Mapping[str, object] | None = None
    ) -> list[tuple[MemberInfo, Any]]:
        """Ask every member on the list at once; an answer is a document or a GridError."""
        members = self.members()
        answers = await asyncio.gather(
            *(self.ask(info.id, what, arguments) for info in members), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, GridError):
                raise answer
        return list(zip(members, answers, strict=True))

    async def gather(
        self, what: str, arguments: Mapping[str, object] | None = None
    ) -> list[tuple[MemberInfo, Any]]:
        """Ask every member; all must answer.

        Raises:
            OperationError: A member said an error sentence, or nothing in time.
        """
        answers = await self.ask_all(what, arguments)
        for info, answer in answers:
            if isinstance(answer, GridError):
                raise OperationError(f"member {info.address}: {answer}")
        return answers

    def _name(self, member: MemberId | None) -> str:
        if member is None:
            return "the master"
        info = self._node.engine.member.ctx.members.get(member)
        return f"member {member if info is None else info.address}"

    def find(self, text: str) -> MemberInfo:
        """The member with this uuid or address.

        Raises:
            MemberUnknownError: There is none on this member's list.
        """
        for info in self.members():
            if text in (info.id, str(info.address)):
                return info
        raise MemberUnknownError(f"there is no member {text}")

    # -- looking --------------------------------------------------------------------------

    async def status(self) -> Json:
        """State, safety and the process under way; answers also when nobody else does."""
        master, answers = await asyncio.gather(
            self.ask(None, "master"), self.ask_all("safety"), return_exceptions=True
        )
        if isinstance(answers, BaseException):
            raise answers
        if isinstance(master, GridError):
            return self._status(f"the master is not heard: {master}", {})
        if isinstance(master, BaseException):
            raise master
        return self._status(_unsafe(master, answers), master)

    def _status(self, reason: str, master: Json) -> Json:
        known = [info.id for info in self.members()]
        return {
            "state": STATE,
            "safe": not reason,
            "reason": reason,
            "members": len(master.get("members", known)),
            "master": known[0] if known else None,
            "cluster": self._node.cluster_name,
            "partitions_lost": master.get("partitions_lost", 0),
            "migrations": master.get("migrations", NO_PROCESS),
        }

    async def structures(self) -> list[Json]:
        """Every live structure with its entries and bytes, replicas not counted twice.

        Raises:
            OperationError: A member does not answer: its share is not known.
        """
        rows: list[Json] = await self.ask(self._node.member_id, "structures")
        names = [row["name"] for row in rows]
        sizes: dict[str, tuple[int, int]] = {}
        for start in range(0, len(names), NAMES_PER_QUESTION):
            part = {"names": names[start : start + NAMES_PER_QUESTION]}
            for _, answer in await self.gather("sizes", part):
                for name, (entries, size) in answer.items():
                    before = sizes.get(name, (0, 0))
                    sizes[name] = (before[0] + entries, before[1] + size)
        for row in rows:
            row["entries"], row["bytes"] = sizes.get(row["name"], (0, 0))
        return rows

    async def events(self) -> list[Json]:
        """What happened lately on the members that answer, oldest first."""
        found: list[Json] = []
        for info, answer in await self.ask_all("events"):
            if isinstance(answer, GridError):
                continue
            found.extend({**event, "member": info.id} for event in answer)
        found.sort(key=lambda event: str(event["at"]))
        return found[-EVENTS_MAX:]

    async def plan(self, join: int, leave: Sequence[str], crash: Sequence[str]) -> Json:
        """What a change of members would move, by the master's table and everybody's sizes.

        Raises:
            MemberUnknownError: A named member is not on the list.
            UsageError: The question makes no sense.
            OperationError: The master or a member does not answer.
        """
        question = {
            "join": join,
            "leave": [self.find(text).id for text in leave],
            "crash": [self.find(text).id for text in crash],
        }
        if not any(question.values()):
            raise UsageError("a plan needs members that join, leave or crash")
        answer: Json = await self.ask(None, "plan", question)
        size_of: dict[str, int] = {}
        for _, part in await self.gather("partition_bytes"):
            size_of.update(part)
        copied: dict[str, int] = answer.pop("copied")
        answer["bytes"] = sum(size_of.get(pid, 0) * count for pid, count in copied.items())
        answer["estimate_s"] = _estimate_s(answer, await self.ask(None, "migrations"))
        return answer

    # -- acting ---------------------------------------------------------------------------

    async def shutdown(self, text: str) -> Json:
        """Make a member leave gracefully; it is on its way out when this returns.

        Raises:
            MemberUnknownError: There is no such member.
            OperationError: It cannot be reached; it may or may not have heard the order.
        """
        info = self.find(text)
        try:
            await self.ask(info.id, "leave", {"member": info.id})
        except OperationError:
            if any(other.id == info.id for other in self.members()):
                raise
        return {"member": info.id, "address": str(info.address), "leaving": True}

    async def upgrade(self, version: str) -> Json:
        """Raise the cluster version.

        Raises:
            ChangeRefusedError: The master does not obey now; nothing has changed.
            OperationError: It cannot be reached; it may or may not have obeyed.
        """
        found: Json = await self.ask(None, "upgrade", {"version": version})
        if found["refusal"]:
            raise ChangeRefusedError(found["refusal"])
        return found


def _unsafe(master: Json, answers: Sequence[tuple[MemberInfo, Any]]) -> str:
    """Why the cluster is not safe, in one sentence; empty when it is."""
    if not master["settled"]:
        return str(master["reason"])
    if [info.id for info, _ in answers] != master["members"]:
        return "the member list is changing"
    if master["holes"]:
        return f"{master['holes']} replicas are missing"
    for info, answer in answers:
        if isinstance(answer, GridError):
            return str(answer)
        if answer["list_version"] != master["list_version"]:
            return f"member {info.address} has another member list than the master"
        if answer["stamp"] != master["stamp"]:
            return f"member {info.address} has another table than the master"
        if answer["announcing"]:
            return f"member {info.address} is announcing a structure"
        if answer["unsettled"]:
            return f"member {info.address}: {answer['unsettled']} replicas may not be in step"
    return ""


def _estimate_s(plan: Json, migrations: Json) -> float | None:
    """Seconds by the pace of the newest process that copied something; None without one."""
    for process in reversed(migrations["history"]):
        if process["copies"] and process["elapsed_s"]:
            pace = float(process["elapsed_s"]) / int(process["copies"])
            return round(pace * int(plan["copies"]), 1)
    return None
