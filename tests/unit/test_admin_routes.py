"""The admin side as HTTP: status codes, JSON errors, manners towards strangers, metrics."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.unit.admin_fakes import RECOVERY, FakeNode, as_node, fakes, recovers
from tests.unit.engine_pump import Node as EngineNode
from tests.unit.engine_pump import Pump, member_id

from whimbrel.admin import http as http_module
from whimbrel.admin.http import BODY_BYTES_MAX
from whimbrel.admin.routes import make_app
from whimbrel.core.stimuli import LeaveWanted

BASE = "http://127.0.0.1:8701"
SAMPLE = re.compile(r"^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^{}]*\})? [-+0-9.eE]+$")


@pytest.fixture
def pair() -> list[FakeNode]:
    """Two members at rest."""
    pump = Pump()
    pump.form(2)
    return fakes(pump)


def ask(fake: FakeNode, method: str, path: str, **options: Any) -> httpx.Response:
    async def work() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(as_node(fake)))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            return await client.request(method, path, **options)

    return asyncio.run(work())


def order(fake: FakeNode, member: str, **headers: str) -> httpx.Response:
    return ask(fake, "POST", "/api/v1/shutdown", json={"member": member}, headers=headers)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/health/live",
        "/health/ready",
        "/health/serving",
        "/api/v1/cluster",
        "/api/v1/members",
        "/api/v1/members?x=<script>",
        "/api/v1/partitions",
        "/api/v1/migrations",
        "/api/v1/structures",
        "/api/v1/events",
        "/api/v1/recovery",
        "/api/v1/backups/status",
        "/api/v1/backups/schedule",
        "/api/v1/plan?join=1",
        f"/api/v1/plan?leave={member_id(2)}",
        "/api/v1/plan?crash=127.0.0.1:5702&join=2",
    ],
)
def test_every_document_is_json(pair: list[FakeNode], path: str) -> None:
    """Goal: every path answers 200 with JSON that nobody keeps or mistakes for a page."""
    answer = ask(pair[1], "GET", path)
    assert answer.status_code == 200, answer.text
    answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/api/v1/members/", 404),
        ("DELETE", "/api/v1/members", 405),
        ("POST", "/api/v1/members", 405),
        ("GET", "/api/v1/shutdown", 405),
        ("POST", "/api/v1/recovery", 405),
        ("GET", "/api/v1/recovery/force-start", 405),
        ("POST", "/api/v1/recovery/force-start", 409),
        ("POST", "/api/v1/recovery/partial-start", 409),
        ("GET", "/api/v1/backups?where=x", 400),
        ("GET", "/api/v1/backups?from=x", 400),
        ("GET", "/api/v1/backups", 503),
        ("GET", "/api/v1/backups/job?name=x", 409),
        ("POST", "/api/v1/backups", 400),
        ("POST", "/api/v1/backups/status", 405),
        ("GET", "/api/v1/plan", 400),
        ("GET", "/api/v1/plan?join=x", 400),
        ("GET", "/api/v1/plan?joni=1", 400),
        ("GET", "/api/v1/plan?leave=nobody", 404),
    ],
)
def test_errors_are_json(pair: list[FakeNode], method: str, path: str, status: int) -> None:
    """Goal: a wrong request is told in one sentence. Method: wrong paths, methods, questions."""
    answer = ask(pair[0], method, path, follow_redirects=False)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert "Traceback" not in answer.text
    if status == 405:
        assert "POST" in answer.headers["allow"] or "GET" in answer.headers["allow"]


def test_an_order_to_leave(pair: list[FakeNode]) -> None:
    """Goal: a shutdown order is accepted and carried out; an unknown member is 404."""
    assert order(pair[0], "nobody").status_code == 404
    answer = order(pair[0], member_id(2))
    assert answer.status_code == 202
    assert answer.json()["address"] == "127.0.0.1:5702"
    pump = pair[0].pump
    pump.run_until(lambda: not pump.nodes[1].alive, 60)
    assert [note.kind for note in pair[0].notes] == ["shutdown_ordered"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://[oops"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8701", "Origin": "http://evil.example:8701"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "[oops"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Origin": BASE}, 404),
        ({"Host": "localhost:8701", "Origin": "http://localhost:8701"}, 404),
        ({"Host": "[::1]:8701"}, 404),
        ({"Host": "10.1.2.3:8701"}, 404),
    ],
    ids=str,
)
def test_foreign_pages_cannot_act(
    pair: list[FakeNode], headers: dict[str, str], status: int
) -> None:
    """Goal: a web page in the operator's browser cannot stop members, a name that was made to
    point here neither; our own names may. Method: the unknown member tells whether the order was
    looked at (404) or not (403).
    """
    assert order(pair[0], "nobody", **headers).status_code == status


def test_own_names_come_from_the_configuration(pair: list[FakeNode]) -> None:
    """Goal: a member that listens under a name takes orders under it. Method: host, machine and
    advertised address.
    """
    pair[0].settings.host = "Grid.example"
    pair[0].settings.machine = "box7"
    pair[0].settings.advertise = "public.example:5701"
    for name in ("grid.example:8701", "BOX7", "public.example"):
        assert order(pair[0], "nobody", Host=name).status_code == 404
    assert order(pair[0], "nobody", Host="other.example").status_code == 403


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"", {}, 400),
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b'{"member": 3}', {}, 400),
        (b'{"member": "x", "force": true}', {}, 400),
        (b'{"member": "x"}', {"Content-Type": "text/plain"}, 415),
        (b'{"member": "x"}', {"Content-Type": "application/json; charset=utf-8"}, 404),
        (b" " * (BODY_BYTES_MAX + 1), {}, 413),
        (b"{}", {"Content-Length": "99999999999"}, 413),
        (b"{}", {"Content-Length": "-1"}, 413),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bodies_are_small_json(
    pair: list[FakeNode], content: bytes, headers: dict[str, str], status: int
) -> None:
    """Goal: a wrong body is told. Method: none, half, foreign types and fields, too long."""
    answer = ask(pair[0], "POST", "/api/v1/shutdown", content=content, headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"]
    if status == 413:
        assert answer.headers["connection"] == "close"


def test_a_body_without_end_or_that_does_not_come(
    pair: list[FakeNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: neither an endless nor a silent body holds memory or a request."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield bytes(1024)

    async def silent() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    assert ask(pair[0], "POST", "/api/v1/shutdown", content=endless()).status_code == 413
    monkeypatch.setattr(http_module, "BODY_TIMEOUT_S", 0.02)
    assert ask(pair[0], "POST", "/api/v1/shutdown", content=silent()).status_code == 408


def test_not_ready_is_503(pair: list[FakeNode]) -> None:
    """Goal: ``/health/ready`` is 503 with a reason while replicas are missing; ``live`` stays
    200.
    """
    pair[0].spoiled[pair[0].member_id, "readiness"] = {"ready": False, "reason": "5 are missing"}
    answer = ask(pair[0], "GET", "/health/ready")
    assert (answer.status_code, answer.json()["reason"]) == (503, "5 are missing")
    assert ask(pair[0], "GET", "/health/live").status_code == 200


def test_a_member_serves_while_copies_are_due(pair: list[FakeNode]) -> None:
    """Goal: the probe of a Service is 200 whatever the copies and the cluster state are, and 503 on
    a member that leaves. Method: one that is not ready; PASSIVE; the wish to leave.
    """
    fake = pair[0]
    fake.spoiled[fake.member_id, "readiness"] = {"ready": False, "reason": "5 are missing"}
    assert ask(fake, "GET", "/health/ready").status_code == 503
    answer = ask(fake, "GET", "/health/serving")
    assert (answer.status_code, answer.json()) == (200, {"serving": True, "reason": ""})
    assert ask(fake, "POST", "/api/v1/state", json={"state": "PASSIVE"}).status_code == 200
    assert ask(fake, "GET", "/health/serving").status_code == 200
    fake.engine.handle(LeaveWanted(), fake.pump.now_us, fake.pump.wall_ms)
    answer = ask(fake, "GET", "/health/serving")
    assert answer.status_code == 503
    assert answer.json() == {"serving": False, "reason": "the member is leaving"}


def test_a_member_in_no_cluster_says_so() -> None:
    """Goal: while a member seeks, health and metrics have answers, and every other path, and every
    order, is a sentence with 503. Method: all paths of one that has found nobody.
    """
    pump = Pump()
    EngineNode(pump, 1, lite=False)
    fake = fakes(pump)[0]
    assert not fake.engine.member.is_joined
    expected = {
        "/": 200, "/health/live": 200, "/health/ready": 503, "/health/serving": 503,
        "/metrics": 200, "/api/v1/cluster": 200, "/api/v1/recovery": 200,
        "/api/v1/recovery/force-start": 409, "/api/v1/recovery/partial-start": 409,
    }  # fmt: skip
    orders = (
        *("shutdown", "state", "promote", "demote", "upgrade", "force-start", "partial-start"),
        *("audits", "cancel"),
    )
    paths = json.loads(ask(fake, "GET", "/").text)["paths"]
    for path in ["/", *paths]:
        is_order = path.rpartition("/")[2] in orders
        answer = ask(fake, "POST" if is_order else "GET", path)
        assert answer.status_code == expected.get(path, 503), path
        if path not in expected:
            assert "has not joined" in answer.json()["error"], path
    assert "no list" in ask(fake, "GET", "/health/ready").json()["reason"]
    assert "no list" in ask(fake, "GET", "/health/serving").json()["reason"]
    status = ask(fake, "GET", "/api/v1/cluster").json()
    assert not status["safe"] and "has not joined" in status["reason"]
    assert fake.notes == []


def test_a_recovery_by_http(pair: list[FakeNode]) -> None:
    """Goal: an operator sees the recovery, and ends the waiting with an order with the manners
    of all others.
    """
    fake = pair[0]
    orders = recovers(fake, "partial_start")
    assert ask(fake, "GET", "/api/v1/recovery").json() == RECOVERY
    assert ask(fake, "GET", "/api/v1/cluster").json()["recovery"] == RECOVERY
    path = "/api/v1/recovery/force-start"
    assert ask(fake, "POST", path, json={"member": "x"}).status_code == 400
    foreign = {"Origin": "http://evil.example"}
    assert ask(fake, "POST", path, headers=foreign).status_code == 403
    assert orders == []
    bodies: list[dict[str, Any]] = [{}, {"json": {}}]
    assert [ask(fake, "POST", path, **body).status_code for body in bodies] == [202] * 2
    answer = ask(fake, "POST", "/api/v1/recovery/partial-start")
    assert answer.status_code == 503 and "FULL_RECOVERY_ONLY" in answer.json()["error"]
    assert orders == ["force_start"] * 2
    assert [note.kind for note in fake.notes] == ["recovery_force_start_ordered"] * 2


def test_a_bug_is_a_note_and_no_page_of_code(pair: list[FakeNode]) -> None:
    """Goal: an internal error shows nothing of the inside and is logged. Method: a document of a
    wrong shape.
    """
    pair[0].spoiled[None, "master"] = {"nonsense": 1}
    answer = ask(pair[0], "GET", "/api/v1/cluster")
    assert answer.status_code == 500
    assert "nonsense" not in answer.text
    assert "settled" not in answer.text
    assert [note.kind for note in pair[0].notes] == ["admin_failed"]


def test_nobody_answers_is_503(pair: list[FakeNode]) -> None:
    """Goal: a document that needs others is 503 when they do not answer. Method: the master says
    an error sentence.
    """
    del pair[0].engine.questions.documents["migrations"]
    answer = ask(pair[0], "GET", "/api/v1/migrations")
    assert answer.status_code == 503
    assert "migrations" in answer.json()["error"]


def test_losses_by_http(pair: list[FakeNode]) -> None:
    """Goal: the losses and their acknowledgement have the manners of all others. Method: none
    lost; a name that is not the present one, none, a foreign page.
    """
    assert ask(pair[1], "GET", "/api/v1/losses").json()["partitions"] == 0
    assert "/api/v1/losses" in ask(pair[0], "GET", "/").json()["paths"]
    answer = ask(pair[1], "POST", "/api/v1/losses", json={"seen": "abc"})
    assert answer.status_code == 409 and "look at it again" in answer.json()["error"]
    assert ask(pair[1], "POST", "/api/v1/losses", json={"seen": ""}).status_code == 400
    foreign = {"Origin": "http://evil.example"}
    answer = ask(pair[1], "POST", "/api/v1/losses", json={"seen": "abc"}, headers=foreign)
    assert answer.status_code == 403


def test_an_order_names_one_member_or_the_cluster(pair: list[FakeNode]) -> None:
    """Goal: an order to shut down is never about something that was not said."""
    for body in ({}, {"member": member_id(2), "cluster": True}):
        assert ask(pair[0], "POST", "/api/v1/shutdown", json=body).status_code == 400
    assert ask(pair[0], "POST", "/api/v1/shutdown", json={"cluster": True}).status_code == 202
    pump = pair[0].pump
    pump.run_until(lambda: not pump.living(), 60)


def test_metrics_follow_the_text_format(pair: list[FakeNode]) -> None:
    """Goal: Prometheus can read a member. Method: each line a comment or a sample, names of ours,
    HELP and TYPE, counters end in ``_total``; one page after the other has the same names.
    """
    answer = ask(pair[0], "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert not [line for line in samples if not SAMPLE.match(line)]
    assert all(line.startswith("whimbrel_") for line in samples)
    assert len(samples) >= 10
    values = dict(line.split(" ") for line in samples)
    assert float(values["whimbrel_members"]) == 2
    assert float(values["whimbrel_is_master"]) == 1
    assert float(values["whimbrel_replicas_held"]) == 7
    for kind in ("HELP", "TYPE"):
        told = [line.split(" ")[2] for line in lines if line.startswith(f"# {kind}")]
        assert {name.removesuffix("_total") for name in told} >= {
            line.split("{")[0].split(" ")[0].removesuffix("_total") for line in samples
        }
    assert "# TYPE whimbrel_backups_applied_total counter" in lines
    assert json.dumps(ask(pair[0], "GET", "/metrics").text.count("\n")) == json.dumps(len(lines))


def test_backups_by_http(pair: list[FakeNode]) -> None:
    """APR-30: orders travel to the master, and what makes no sense, or cannot be now, is told."""
    for body, word in [
        ({"what": "explode"}, "no job"),
        ({"what": "create", "id": "../x"}, "cannot be the id"),
        ({"what": "create", "place": "x"}, "absolute"),
        ({"what": "verify"}, "needs an id"),
        ({"what": "create", "where": "x"}, "where"),
    ]:
        answer = ask(pair[1], "POST", "/api/v1/backups", json=body)
        assert answer.status_code == 400 and word in answer.json()["error"], body
    answer = ask(pair[1], "POST", "/api/v1/backups", json={"what": "create"})
    assert answer.status_code == 202
    told = ask(pair[1], "GET", f"/api/v1/backups/job?name={answer.json()['job']}").json()
    assert told["over"] and "persistence.enabled" in told["problem"]
    for cron in ({"cron": "now and then", "keep": 1}, {"cron": "* * * * *"}):
        assert ask(pair[1], "POST", "/api/v1/backups/schedule", json=cron).status_code == 400
    wish = {"cron": "0 3 * * *", "keep": 7}
    assert ask(pair[1], "POST", "/api/v1/backups/schedule", json=wish).json() == wish
    assert ask(pair[0], "GET", "/api/v1/backups/schedule").json() == wish
    off = ask(pair[1], "POST", "/api/v1/backups/schedule", json={})
    assert off.json() == {"cron": None, "keep": None}
