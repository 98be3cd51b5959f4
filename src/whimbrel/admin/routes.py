"""Paths, methods and status codes of the admin side. Knows HTTP; documents come from elsewhere.

Errors are JSON objects ``{"error": sentence}``: 400 a question without sense, 403 a foreign page,
404 an unknown path or member, 405 a wrong method, 409 not possible as things stand, 413 and 415 a
wrong body, 501 not offered, 503 nobody answers.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from whimbrel.admin.audits import AuditRoutes
from whimbrel.admin.backups import BackupRoutes
from whimbrel.admin.documents import ChangeRefusedError, ClusterDocuments, MemberUnknownError
from whimbrel.admin.event_stream import EventStreams
from whimbrel.admin.http import Answer, document, error, order_of
from whimbrel.admin.metrics import CONTENT_TYPE, Metrics
from whimbrel.core.effects import Note
from whimbrel.errors import GridError, IllegalStateError, UnsupportedError, UsageError
from whimbrel.runtime.node import Node

API = "/api/v1"
EVENT_STREAM = f"{API}/events/stream"
"""An answer without an end."""
STATUS = f"{API}/cluster"
RECOVERY = f"{API}/recovery"
FORCE_START = f"{RECOVERY}/force-start"
PARTIAL_START = f"{RECOVERY}/partial-start"
ANSWERED_ALONE = (
    "/", "/health/live", "/health/ready", "/health/serving", "/metrics", STATUS, RECOVERY,
    FORCE_START, PARTIAL_START,
)  # fmt: skip
"""Paths that have an answer while the member is in no cluster."""


class StateOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an order to change the cluster state."""

    state: str


class RoleOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a promotion or demotion: a member's uuid or ``host:port``."""

    member: str
    number: int = 0
    """Of an order that was given before: its outcome is asked."""


class ShutdownOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a shutdown order: a member's uuid or ``host:port``, or the whole cluster."""

    member: str = ""
    cluster: bool = False
    discard: bool = False
    """Whether data may end with the last data members."""


class RecoveryOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an order to end the waiting of a recovery: the path says it all."""


class SeenOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that acknowledges losses: the name of the document that was looked at."""

    seen: str


class UpgradeOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an order to raise the cluster version."""

    version: str


def make_app(node: Node) -> Starlette:
    """The application of one member."""
    return Routes(node).app()


class Routes:
    """The handlers of one member."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._cluster = ClusterDocuments(node)
        self._metrics = Metrics(node)
        self._streams = EventStreams(node)
        self._backups = BackupRoutes(node, self._cluster)
        self._audits = AuditRoutes(node, self._cluster)

    def app(self) -> Starlette:
        """All paths, with errors as JSON."""
        gets: dict[str, Answer] = {
            "/": self._index,
            "/health/live": self._live,
            "/health/ready": self._ready,
            "/health/serving": self._serving,
            "/metrics": self._metrics_page,
            STATUS: self._status,
            f"{API}/members": self._own("members"),
            f"{API}/partitions": self._own("partitions"),
            f"{API}/migrations": self._migrations,
            f"{API}/structures": self._structures,
            f"{API}/losses": self._losses,
            f"{API}/events": self._events,
            EVENT_STREAM: self._event_stream,
            RECOVERY: self._recovery,
            f"{API}/plan": self._plan,
            **self._backups.gets(API),
            **self._audits.gets(API),
        }
        posts: dict[str, Answer] = {
            f"{API}/shutdown": self._shutdown,
            f"{API}/state": self._state,
            f"{API}/promote": self._role("promote"),
            f"{API}/demote": self._role("demote"),
            f"{API}/upgrade": self._upgrade,
            f"{API}/losses": self._see_losses,
            FORCE_START: self._recover("force_start"),
            PARTIAL_START: self._recover("partial_start"),
            **self._backups.posts(API),
            **self._audits.posts(API),
        }
        self._paths = list(dict.fromkeys([*gets, *posts]))
        routes = [Route(path, self._safely(get), methods=["GET"]) for path, get in gets.items()]
        routes += [
            Route(path, self._safely(self._guarded(post)), methods=["POST"])
            for path, post in posts.items()
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
        app.router.redirect_slashes = False
        return app

    # -- wrapping -------------------------------------------------------------------------

    def _safely(self, answer: Answer) -> Answer:
        """Our errors become sentences; a bug becomes a note in the log, not a page of code.

        A member that has not joined knows nothing of a cluster, which it says at once.
        """

        async def handle(request: Request) -> Response:
            if not self._node.engine.member.is_joined and request.url.path not in ANSWERED_ALONE:
                return error(503, "this member has not joined a cluster yet")
            try:
                return await answer(request)
            except MemberUnknownError as problem:
                return error(404, str(problem))
            except ChangeRefusedError as problem:
                return error(409, str(problem))
            except UsageError as problem:
                return error(400, str(problem))
            except IllegalStateError as problem:
                return error(409, str(problem))
            except UnsupportedError as problem:
                return error(501, str(problem))
            except GridError as problem:
                return error(503, str(problem))
            except (HTTPException, ClientDisconnect):
                raise
            except Exception as problem:
                self._node.note(
                    Note("error", "admin_failed", {"path": request.url.path, "why": repr(problem)})
                )
                return error(500, "internal error; the member's log has more")

        return handle

    def _guarded(self, answer: Answer) -> Answer:
        """An order must not come from a web page that the operator happens to look at."""

        async def handle(request: Request) -> Response:
            host = request.headers.get("host", "")
            if not self._is_own(host):
                return error(403, f"orders to host {host!r} are not for this member")
            origin = request.headers.get("origin")
            if origin is not None and origin.lower() != f"{request.url.scheme}://{host.lower()}":
                return error(403, "orders from pages of another origin are refused")
            return await answer(request)

        return handle

    def _is_own(self, host: str) -> bool:
        """Whether a Host header means this member.

        A name is ours or it is refused, because any name can be made to point here; an address
        in figures cannot.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        settings = self._node.settings
        advertised = urlsplit(f"//{settings.advertise}").hostname if settings.advertise else None
        names = ("localhost", settings.host, settings.machine, advertised, socket.gethostname())
        if name in [known.lower() for known in names if known]:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    # -- health and metrics ---------------------------------------------------------------

    async def _index(self, _: Request) -> Response:
        return document({"product": "whimbrel", "paths": self._paths[1:]})

    async def _live(self, _: Request) -> Response:
        return document({"live": True})

    async def _ready(self, _: Request) -> Response:
        found = await self._cluster.ask(self._node.member_id, "readiness")
        return document(found, 200 if found["ready"] else 503)

    async def _serving(self, _: Request) -> Response:
        found = await self._cluster.ask(self._node.member_id, "serving")
        return document(found, 200 if found["serving"] else 503)

    async def _metrics_page(self, _: Request) -> Response:
        return Response(self._metrics.page(), headers={"content-type": CONTENT_TYPE})

    # -- looking --------------------------------------------------------------------------

    def _own(self, what: str) -> Answer:
        """This member's own document of that name."""

        async def handle(_: Request) -> Response:
            return document(await self._cluster.ask(self._node.member_id, what))

        return handle

    async def _status(self, _: Request) -> Response:
        return document(await self._cluster.status())

    async def _migrations(self, _: Request) -> Response:
        return document(await self._cluster.ask(None, "migrations"))

    async def _structures(self, _: Request) -> Response:
        return document(await self._cluster.structures())

    async def _losses(self, _: Request) -> Response:
        return document(await self._cluster.losses())

    async def _recovery(self, _: Request) -> Response:
        return document(await self._cluster.recovery())

    async def _events(self, request: Request) -> Response:
        query = request.query_params
        unknown = [name for name in query if name != "cause"]
        if unknown:
            raise UsageError(f"events know cause, not {unknown[0]!r}")
        return document(await self._cluster.events(query.get("cause", "")))

    async def _event_stream(self, _: Request) -> Response:
        return self._streams.open()

    async def _plan(self, request: Request) -> Response:
        query = request.query_params
        unknown = [name for name in query if name not in ("join", "leave", "crash")]
        if unknown:
            raise UsageError(f"a plan knows join, leave and crash, not {unknown[0]!r}")
        try:
            join = int(query.get("join", "0"))
        except ValueError:
            raise UsageError("join is a number of members") from None
        found = await self._cluster.plan(join, query.getlist("leave"), query.getlist("crash"))
        return document(found)

    # -- acting ---------------------------------------------------------------------------

    async def _state(self, request: Request) -> Response:
        order = await order_of(request, StateOrder, '{"state": STATE}')
        cause = self._node.new_cause()
        self._node.note(Note("info", "state_change_ordered", {"state": order.state}, cause=cause))
        return document(await self._cluster.change_cluster(order.state, cause=cause))

    async def _shutdown(self, request: Request) -> Response:
        order = await order_of(request, ShutdownOrder, '{"member": MEMBER}')
        if bool(order.member) is order.cluster:
            raise UsageError("the body names one member, or the cluster")
        cause = self._node.new_cause()
        if order.cluster:
            found = await self._cluster.shutdown_all(order.discard, cause)
        else:
            found = await self._cluster.shutdown(order.member, order.discard, cause)
        who, entries = found.get("member"), sum(row["entries"] for row in found["discarded"])
        fields: dict[str, str | int | float | bool | None] = {"member": who, "discarded": entries}
        level = "warning" if entries else "info"
        self._node.note(Note(level, "shutdown_ordered", fields, cause=cause))
        return document(found, 202)

    def _role(self, what: str) -> Answer:
        """The order to become a data member or lite (GCM-27)."""

        async def handle(request: Request) -> Response:
            order = await order_of(request, RoleOrder, '{"member": MEMBER}')
            found = await self._cluster.change_role(what, order.member, order.number)
            return document(found, 200 if found["done"] else 202)

        return handle

    async def _see_losses(self, request: Request) -> Response:
        order = await order_of(request, SeenOrder, '{"seen": NAME}')
        if not order.seen:
            raise UsageError("the body names no losses; GET the document of this path first")
        return document(await self._cluster.see_losses(order.seen))

    def _recover(self, what: str) -> Answer:
        """The order to end the waiting of a recovery."""

        async def handle(request: Request) -> Response:
            await order_of(request, RecoveryOrder, "{}")
            cause = self._node.new_cause()
            found = await self._cluster.order_recovery(what, cause)
            self._node.note(Note("warning", f"recovery_{what}_ordered", {}, cause=cause))
            return document(found, 202)

        return handle

    async def _upgrade(self, request: Request) -> Response:
        order = await order_of(request, UpgradeOrder, '{"version": VERSION}')
        if not order.version:
            raise UsageError("the body names no version")
        cause = self._node.new_cause()
        found = await self._cluster.change_cluster("", order.version, cause)
        version = {"version": found["cluster_version"]}
        self._node.note(Note("info", "upgrade_ordered", version, cause=cause))
        return document(found)


async def _http_error(request: Request, problem: Exception) -> Response:
    """Errors of the framework: no such path, wrong method, wrong body."""
    if not isinstance(problem, HTTPException):
        raise problem
    sentence = problem.detail
    if problem.status_code in (404, 405):
        sentence = f"{problem.detail}: {request.method} {request.url.path[:200]}"
    answer = error(problem.status_code, sentence)
    for name, value in (problem.headers or {}).items():
        answer.headers[name] = value
    if problem.status_code in (408, 413):
        answer.headers["connection"] = "close"
    return answer
