"""The cluster's documents: asks the master and all members, waits a bounded time, combines.

Knows how answers are put together; what a member says about itself is
``whimbrel.serving.documents``, and when a cluster counts as safe ``whimbrel.core.safety``. Every
question has the same short time limit, so that a member that is silent costs a sentence, never a
hanging request.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from whimbrel.config import parse_address
from whimbrel.core.ids import Address, MemberId, namespace_of
from whimbrel.core.membership.role_change import error_of
from whimbrel.core.model import MemberInfo
from whimbrel.core.safety import (
    Answer,
    master_word,
    member_answer,
    survived_failures,
    unsafe_because,
)
from whimbrel.errors import GridError, OperationError, UsageError
from whimbrel.runtime.node import Node
from whimbrel.serving.documents import state_of
from whimbrel.serving.losses import summary_of

ANSWER_TIMEOUT_S = 2.0
"""How long an HTTP request waits for other members."""
ROLE_WAIT_S = 5.0
"""How long an order to become lite or a data member is waited for before "under way" is told."""
ROLE_POLL_S = 0.05
NAMES_PER_QUESTION = 1_000
EVENTS_MAX = 1_000
"""Newest events of the cluster that are shown."""
NO_SIZES = (0, 0, 0)
"""Entries, bytes and changes with too few backups of a structure that nobody has written to."""
NO_PROCESS = {"active": 0, "queued": 0, "planned": 0, "completed": 0, "failed": 0}
CHANGE_TIMEOUT_S = 12.0
"""How long an order waits for a change of the cluster state; the client waits a little longer."""
CHANGE_POLL_S = 0.05
PASSING_TIMEOUT_S = 5.0
"""How long a change is tried again that only waits for news to arrive."""

Json = dict[str, Any]


class MemberUnknownError(UsageError):
    """An order or a question names a member that is not on the list."""


class ChangeRefusedError(OperationError):
    """The cluster state cannot change now; nothing has changed, and it may be asked for again."""


class ClusterDocuments:
    """Documents about the whole cluster, from where one member stands."""

    def __init__(self, node: Node) -> None:
        self._node = node

    # -- asking ---------------------------------------------------------------------------

    def members(self) -> tuple[MemberInfo, ...]:
        """This member's own list, oldest first."""
        return self._node.engine.member.ctx.members.members

    async def ask(
        self,
        member: MemberId | None,
        what: str,
        arguments: Mapping[str, object] | None = None,
        cause: str | None = None,
    ) -> Any:
        """Ask one member, the master when None; of an order it is known what it follows from.

        Raises:
            OperationError: An error sentence came, or nothing in time.
        """
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._node.ask(member, what, arguments, cause)
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
        try:
            address: Address | None = parse_address(text)
        except ValueError:
            address = None
        for info in self.members():
            if text == info.id or info.address == address:
                return info
        raise MemberUnknownError(f"there is no member {text}")

    # -- looking --------------------------------------------------------------------------

    async def status(self) -> Json:
        """State, safety and the process under way; answers also when nobody else does.

        During a recovery from files nobody is asked: there is no table yet that could be safe.
        """
        recovery = await self.recovery()
        if recovery is not None:
            return {**self._status(_recovering(recovery), {}), "recovery": recovery}
        try:
            master = await self.ask(None, "master")
        except GridError as silence:
            return self._status(f"the master is not heard: {silence}", {})
        answers = await self.ask_all("safety", {"is_settled": master["settled"]})
        found = self._status(_unsafe(master, answers), master)
        found["survives"] = survived_failures(master_word(master), _words(answers))
        found["writes_short_of_backups"] = sum(
            answer["writes_short_of_backups"]
            for _, answer in answers
            if not isinstance(answer, GridError)
        )
        found["without_number"] = [
            str(info.address)
            for info, answer in answers
            if not isinstance(answer, GridError) and not answer.get("has_number", True)
        ]
        return found

    def _status(self, reason: str, master: Json) -> Json:
        known = [info.id for info in self.members()]
        unseen = self._node.engine.member.migrations.losses.unseen
        losses: Json = master.get("losses") or summary_of(unseen())
        protection = master.get("split_brain_protection")
        return {
            **({"split_brain_protection": protection} if protection else {}),
            **({"backups": master["backups"]} if master.get("backups") else {}),
            "state": master.get("state", self._node.engine.member.ctx.members.state),
            "cluster_version": master.get(
                "cluster_version", self._node.engine.member.ctx.members.cluster_version
            ),
            "missing": master.get("missing", []),
            "safe": not reason,
            "reason": reason,
            "survives": 0,
            "degraded": master.get("degraded", ""),
            "writes_short_of_backups": 0,
            "without_number": [],
            "members": len(master.get("members", known)),
            "master": known[0] if known else None,
            "cluster": self._node.cluster_name,
            "partitions_lost": losses["partitions"],
            "losses": losses,
            "migrations": master.get("migrations", NO_PROCESS),
            "recovery": None,
            "stable": master.get("stable"),
        }

    async def recovery(self) -> Json | None:
        """What this member says of the recovery under way; None when nothing recovers."""
        found: Json | None = await self.ask(self._node.member_id, "recovery")
        return found

    async def structures(self) -> list[Json]:
        """Every live structure with its entries and bytes, replicas not counted twice.

        And with the changes that were made while it had too few backups.

        Raises:
            OperationError: A member does not answer: its share is not known.
        """
        rows: list[Json] = await self.ask(self._node.member_id, "structures")
        names = [namespace_of(row["kind"], row["name"]) for row in rows]
        sizes: dict[str, tuple[int, ...]] = {}
        for start in range(0, len(names), NAMES_PER_QUESTION):
            part = {"namespaces": names[start : start + NAMES_PER_QUESTION]}
            for _, answer in await self.gather("sizes", part):
                for name, figures in answer.items():
                    sums = zip(sizes.get(name, NO_SIZES), figures, strict=True)
                    sizes[name] = tuple(map(sum, sums))
        for row, name in zip(rows, names, strict=True):
            figures = sizes.get(name, NO_SIZES)
            row["entries"], row["bytes"], row["writes_short_of_backups"] = figures
        return rows

    async def events(self, cause: str = "") -> list[Json]:
        """What happened lately on the members that answer, oldest first; all, or of one cause."""
        found: list[Json] = []
        for info, answer in await self.ask_all("events", {"cause": cause} if cause else None):
            if isinstance(answer, GridError):
                continue
            found.extend({**event, "member": info.id} for event in answer)
        found.sort(key=lambda event: str(event["at"]))
        return found[-EVENTS_MAX:]

    async def losses(self) -> Json:
        """What is lost and no operator has seen, by the master; by this member without one."""
        try:
            found: Json = await self.ask(None, "losses")
        except GridError:
            found = await self.ask(self._node.member_id, "losses")
        return found

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

    async def shutdown(self, text: str, discard: bool = False, cause: str | None = None) -> Json:
        """Make a member leave gracefully; it is on its way out when this returns.

        Args:
            text: The member's uuid or address.
            discard: Whether data may end with it, when no data member stays.
            cause: What the order follows from.

        Raises:
            MemberUnknownError: There is no such member.
            ChangeRefusedError: It is the last data member and has entries that are on no disk;
                nothing has changed.
            OperationError: It cannot be reached; it may or may not have heard the order.
        """
        info = self.find(text)
        gone: list[Json] = []
        try:
            answer = await self.ask(None, "may_leave", {"member": info.id})
        except OperationError:
            if not discard and self._is_here(info):
                raise
        else:
            if answer["is_last"]:
                gone = await self._discarded(f"member {info.address}", discard)
        await self._order_leave(info, cause)
        return {
            "member": info.id,
            "address": str(info.address),
            "leaving": True,
            "discarded": gone,
        }

    async def shutdown_all(self, discard: bool = False, cause: str | None = None) -> Json:
        """Make all members leave; nothing is handed over when all have heard it.

        With persistence this is the ordinary end of a cluster: the next start brings back what is
        persistent, and whoever configured a structure otherwise has said that it may go.

        Args:
            discard: Whether the data may end with them.
            cause: What the order follows from.

        Raises:
            ChangeRefusedError: There are entries, and no persistence; nothing has changed.
            OperationError: Some member cannot be reached; the others leave.
        """
        members = self.members()
        is_kept = self._node.engine.member.ctx.settings.persistence.enabled
        gone = await self._discarded("the whole cluster", discard or is_kept)
        await asyncio.gather(*(self._order_leave(info, cause) for info in members))
        return {"members": [info.id for info in members], "leaving": True, "discarded": gone}

    async def _order_leave(self, info: MemberInfo, cause: str | None) -> None:
        try:
            await self.ask(info.id, "leave", {"member": info.id}, cause)
        except OperationError:
            if self._is_here(info):
                raise

    def _is_here(self, info: MemberInfo) -> bool:
        return any(other.id == info.id for other in self.members())

    async def _discarded(self, who: str, discard: bool) -> list[Json]:
        """The entries of each structure that end with the last data members, being on no disk.

        Raises:
            ChangeRefusedError: There are some, and nobody said that they may go.
            OperationError: They are not known, and nobody said that they may go.
        """
        try:
            rows = await self.structures()
        except GridError:
            if not discard:
                raise
            return []
        gone = [
            {"kind": row["kind"], "name": row["name"], "entries": row["entries"]}
            for row in rows
            if row["entries"] and not row["persistent"]
        ]
        if gone and not discard:
            words = ", ".join(
                f"{row['kind']} {row['name']} ({row['entries']:,} entries)" for row in gone
            )
            raise ChangeRefusedError(
                f"the shutdown of {who} would discard {words}, because no data member stays; "
                "give --discard (HTTP: discard) if that is wanted"
            )
        return gone

    async def order_recovery(self, order: str, cause: str | None = None) -> Json:
        """Order the master of a recovery to end the waiting.

        Args:
            order: ``force_start`` or ``partial_start``.
            cause: What the order follows from.

        Raises:
            ChangeRefusedError: Nothing recovers here; nothing has changed.
            OperationError: It was refused, or no answer came in time.
        """
        if await self.recovery() is None:
            raise ChangeRefusedError("nothing recovers: there is no recovery that could be ended")
        found: Json = await self.ask(None, f"recovery.{order}", None, cause)
        return found

    async def see_losses(self, name: str) -> Json:
        """Acknowledge the losses of a name; every member has it when this returns.

        Raises:
            ChangeRefusedError: The losses are others by now; nothing has changed.
            OperationError: It is not known in time whether every member has it.
        """
        problem = "not every member has answered"
        end_s = asyncio.get_running_loop().time() + CHANGE_TIMEOUT_S
        while asyncio.get_running_loop().time() < end_s:
            try:
                found = await self.ask(None, "see_losses", {"name": name})
            except OperationError as silence:
                problem = str(silence)
            else:
                if not found["same"]:
                    raise ChangeRefusedError(
                        "what is lost is not what was shown; look at it again (whimbrel losses)"
                    )
                if found["done"]:
                    return {"seen": name}
            await asyncio.sleep(CHANGE_POLL_S)
        raise OperationError(f"it is not known whether every member has it: {problem}")

    async def change_cluster(
        self, state: str, cluster_version: str = "", cause: str | None = None
    ) -> Json:
        """Change the cluster state or version; every member is in the new one when this returns.

        Args:
            state: The new state; empty to leave it.
            cluster_version: The new version; empty to leave it.
            cause: What the order follows from.

        Raises:
            UsageError: There is no such state.
            ChangeRefusedError: Not now; nothing has changed.
            OperationError: It is not known in time whether every member has the change.
        """
        if state:
            state_of(state)
        name, attempt = str(uuid.uuid4()), 0
        problem = "nobody has answered"
        end_s = asyncio.get_running_loop().time() + CHANGE_TIMEOUT_S
        passing_end_s = end_s - CHANGE_TIMEOUT_S + PASSING_TIMEOUT_S
        while (now_s := asyncio.get_running_loop().time()) < end_s:
            wish = {"wish": f"{name}/{attempt}", "state": state, "cluster_version": cluster_version}
            try:
                found: Json = await self.ask(None, "change_cluster", wish, cause)
            except OperationError as silence:
                problem = str(silence)
            else:
                if found["done"]:
                    here: Json = await self.ask(self._node.member_id, "cluster_state")
                    return here
                if found["refusal"]:
                    problem = str(found["refusal"])
                    if not found["passing"] or now_s >= passing_end_s:
                        what = "state" if state else "version"
                        raise ChangeRefusedError(f"the cluster {what} cannot change now: {problem}")
                    attempt += 1
            await asyncio.sleep(CHANGE_POLL_S)
        raise OperationError(
            f"it is not known whether every member is in the new state: {problem}; ask for it again"
        )

    async def change_role(self, order: str, text: str, number: int) -> Json:
        """Order a member to become a data member or lite, and wait a bounded time for it.

        Args:
            order: ``promote`` or ``demote``.
            text: The member's uuid or address.
            number: 0 for a new order, else that of one that was given: only its outcome is asked.

        Returns:
            ``done`` False when it goes on.

        Raises:
            MemberUnknownError: There is no such member.
            IllegalStateError, UsageError, UnsupportedError: It was refused.
            OperationError: The member does not answer.
        """
        info = self.find(text)
        if number:
            found = await self.ask(info.id, "role", {"number": number})
        else:
            found = await self.ask(info.id, order, {"member": info.id})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ROLE_WAIT_S):
                while not found["done"]:
                    await asyncio.sleep(ROLE_POLL_S)
                    found = await self.ask(info.id, "role", {"number": found["number"]})
        if found["problem"]:
            raise error_of(found["problem"], f"member {info.address}: {found['reason']}")
        return {
            "member": info.id,
            "address": str(info.address),
            "lite": found["lite"],
            "done": found["done"],
            "number": found["number"],
        }


def _unsafe(master: Json, answers: Sequence[tuple[MemberInfo, Any]]) -> str:
    """Why the cluster is not safe, in one sentence; empty when it is."""
    return unsafe_because(master_word(master), _words(answers))


def _recovering(recovery: Json) -> str:
    """Why nothing is served yet, in one sentence."""
    text = f"the cluster recovers from its files ({recovery['phase']})"
    return f"{text}: {recovery['reason']}" if recovery["reason"] else text


def _words(answers: Sequence[tuple[MemberInfo, Any]]) -> list[Answer]:
    return [member_answer(info, answer) for info, answer in answers]


def _estimate_s(plan: Json, migrations: Json) -> float | None:
    """Seconds by the pace of the newest process that copied something; None without one."""
    for process in reversed(migrations["history"]):
        if process["copies"] and process["elapsed_s"]:
            pace = float(process["elapsed_s"]) / int(process["copies"])
            return round(pace * int(plan["copies"]), 1)
    return None
