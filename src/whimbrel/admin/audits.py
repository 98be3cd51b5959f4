"""What operators ask about audits: the member that is asked drives them."""

from __future__ import annotations

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from whimbrel.admin.documents import ChangeRefusedError, ClusterDocuments, MemberUnknownError
from whimbrel.admin.http import Answer, document, order_of
from whimbrel.core.effects import Note
from whimbrel.errors import UsageError
from whimbrel.runtime.node import Node
from whimbrel.serving.audit_orders import AuditOrder, AuditQuestion, audit_of


class AuditRoutes:
    """The handlers of one member for audits."""

    def __init__(self, node: Node, cluster: ClusterDocuments) -> None:
        self._node = node
        self._cluster = cluster

    def gets(self, api: str) -> dict[str, Answer]:
        """Paths that are read."""
        return {f"{api}/audits/job": self._job}

    def posts(self, api: str) -> dict[str, Answer]:
        """Paths that take orders."""
        return {f"{api}/audits": self._start, f"{api}/audits/cancel": self._cancel}

    async def _start(self, request: Request) -> Response:
        """Begin an audit; its name is answered, by which it is asked how it stands."""
        order = await order_of(request, AuditOrder, '{"pattern": "KIND/NAME", "repair": BOOL}')
        audit_of(order)
        cause = self._node.new_cause()
        here = self._node.member_id
        found = await self._cluster.ask(here, "audit.start", asdict(order), cause)
        if found["refusal"]:
            raise ChangeRefusedError(found["refusal"])
        self._node.note(Note("info", "audit_ordered", asdict(order), cause=cause))
        return document({"audit": found["audit"]}, 202)

    async def _job(self, request: Request) -> Response:
        """How an audit stands, by its name; one that nobody asks about ends."""
        query = request.query_params
        unknown = [one for one in query if one != "name"]
        if unknown:
            raise UsageError(f"this path knows name, not {unknown[0]!r}")
        audit = {"audit": query.get("name", "")}
        found = await self._cluster.ask(self._node.member_id, "audit.job", audit)
        if found is None:
            raise MemberUnknownError("this member does not know this audit")
        return document(found)

    async def _cancel(self, request: Request) -> Response:
        """End an audit."""
        order = await order_of(request, AuditQuestion, '{"audit": NAME}')
        here = self._node.member_id
        return document(await self._cluster.ask(here, "audit.cancel", asdict(order)))
