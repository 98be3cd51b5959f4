"""What operators ask about backups: jobs are the master's, and a request waits a bounded time."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from whimbrel.admin.documents import ChangeRefusedError, ClusterDocuments
from whimbrel.admin.http import Answer, document, order_of
from whimbrel.core.effects import Note
from whimbrel.errors import OperationError, UsageError
from whimbrel.runtime.node import Node
from whimbrel.serving.backup_orders import JobOrder, ScheduleOrder, schedule_of, wish_of

LIST_TIMEOUT_S = 12.0
"""How long a request waits for a job that only looks; the client waits a little longer."""
POLL_S = 0.05
"""Between two questions of one request."""

Json = dict[str, Any]


class BackupRoutes:
    """The handlers of one member for backups."""

    def __init__(self, node: Node, cluster: ClusterDocuments) -> None:
        self._node = node
        self._cluster = cluster

    def gets(self, api: str) -> dict[str, Answer]:
        """Paths that are read."""
        return {
            f"{api}/backups": self._list,
            f"{api}/backups/status": self._state,
            f"{api}/backups/job": self._job,
            f"{api}/backups/schedule": self._schedule,
        }

    def posts(self, api: str) -> dict[str, Answer]:
        """Paths that take orders."""
        return {f"{api}/backups": self._start, f"{api}/backups/schedule": self._set_schedule}

    async def _list(self, request: Request) -> Response:
        """Every backup in a place (``from``), oldest first."""
        place = _only(request, "from")
        job = await self._begin(JobOrder("list", place), None)
        end_s = asyncio.get_running_loop().time() + LIST_TIMEOUT_S
        while asyncio.get_running_loop().time() < end_s:
            found = await self._told(job)
            if found["over"]:
                break
            await asyncio.sleep(POLL_S)
        else:
            raise OperationError("not every member has said in time what it sees there")
        if found["problem"]:
            raise OperationError(found["problem"])
        return document(found["document"])

    async def _state(self, _: Request) -> Response:
        return document(await self._cluster.ask(None, "backups"))

    async def _job(self, request: Request) -> Response:
        """How a job stands, by its name."""
        return document(await self._told(_only(request, "name")))

    async def _told(self, job: str) -> Json:
        found: Json | None = await self._cluster.ask(None, "backup.job", {"job": job})
        if found is None:
            raise ChangeRefusedError(
                "the master does not know this job; it may be another one than before"
            )
        return found

    async def _start(self, request: Request) -> Response:
        """Begin a job; its name is answered, by which it is asked how it stands."""
        order = await order_of(request, JobOrder, '{"what": "create", ...}')
        cause = self._node.new_cause()
        job = await self._begin(order, cause)
        fields: dict[str, str | int | float | bool | None] = {"what": order.what, "id": order.id}
        self._node.note(Note("info", "backup_ordered", fields, cause=cause))
        return document({"job": job}, 202)

    async def _begin(self, order: JobOrder, cause: str | None) -> str:
        """Have the master begin a job; its name.

        Raises:
            UsageError: The order makes no sense.
            ChangeRefusedError: Another one is under way.
        """
        wish_of(order)
        found = await self._cluster.ask(None, "backup.start", asdict(order), cause)
        if found["refusal"]:
            raise ChangeRefusedError(found["refusal"])
        job: str = found["job"]
        return job

    async def _schedule(self, _: Request) -> Response:
        return document((await self._cluster.ask(None, "backups"))["schedule"])

    async def _set_schedule(self, request: Request) -> Response:
        """Set a schedule; an order without ``cron`` ends it."""
        order = await order_of(request, ScheduleOrder, '{"cron": CRON, "keep": N}')
        schedule_of(order)
        cause = self._node.new_cause()
        wish = {"cron": order.cron, "keep": order.keep}
        return document(await self._cluster.ask(None, "backup.set_schedule", wish, cause))


def _only(request: Request, name: str) -> str:
    """The value of the one name that a query knows.

    Raises:
        UsageError: There are others.
    """
    unknown = [one for one in request.query_params if one != name]
    if unknown:
        raise UsageError(f"this path knows {name}, not {unknown[0]!r}")
    return request.query_params.get(name, "")
