"""``whimbrel audit`` and its paths: words, figures and exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.admin_fakes import FakeNode, fakes
from tests.unit.engine_pump import Pump
from tests.unit.test_admin_routes import ask
from tests.unit.test_cli_commands import Port, port

from whimbrel.cli import audit as audit_module
from whimbrel.cli import main

__all__ = ["port"]


class Shell:
    """Runs commands against the canned port; what the last one has said."""

    def __init__(self, port: Port, capsys: pytest.CaptureFixture[str]) -> None:
        self._port, self._capsys = port, capsys
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        self._port.requests.clear()
        status = main.run([*words, "--admin", self._port.url])
        self.out, self.err = self._capsys.readouterr()
        return status


@pytest.fixture
def shell(port: Port, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(port, capsys)


ROW = {
    "rows": 1_234, "replicas": 7, "missing": 0, "different": 0, "extra": 0, "repaired": 0,
    "not_compared": 0,
}  # fmt: skip
EQUAL: dict[str, Any] = {
    "equal": True,
    "complete": True,
    "structures": [
        {"kind": "map", "name": "a [red]map[/]", **ROW},
        {"kind": "queue", "name": "jobs", **ROW},
    ],
    "missing": 0,
    "different": 0,
    "extra": 0,
    "repaired": 0,
    "differences": [],
    "not_compared": [],
    "elapsed_s": 1.5,
}
WHERE = {"partition": 3, "member": "m1", "address": "127.0.0.1:5702", "structure": "map/m"}
FOUND = {"missing": 2, "different": 1, "extra": 0}
DIFFERS = {
    **EQUAL,
    **FOUND,
    "equal": False,
    "differences": [{**WHERE, **FOUND, "repaired": 0, "keys": ["'k [b]1'"], "reason": ""}],
}
REPAIRED = {**DIFFERS, "repaired": 3}
INCOMPLETE = {
    **EQUAL,
    "equal": False,
    "complete": False,
    "not_compared": [{**WHERE, "reason": "the backup does not answer"}],
}


def over(document: Any, problem: str = "") -> dict[str, Any]:
    return {
        "audit": "audit:1", "over": True, "problem": problem, "done": 7, "total": 7, "rows": 9,
        "differing": 0, "document": document,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "document", "status", "shown"),
    [
        ([], EQUAL, 0, ["1\N{NARROW NO-BREAK SPACE}234", "a [red]map[/]", "queue/jobs", "equal"]),
        ([], DIFFERS, 1, ["partition 3", "map/m", "127.0.0.1:5702", "2 missing", "'k [b]1'"]),
        (["--repair"], DIFFERS, 1, ["0 repaired"]),
        (["--repair"], REPAIRED, 0, ["3 repaired"]),
        ([], INCOMPLETE, 2, ["not compared", "does not answer", "not everything"]),
    ],
)
def test_what_was_found_is_told(
    shell: Shell, port: Port, words: list[str], document: Any, status: int, shown: list[str]
) -> None:
    """Goal: exit codes and words of each outcome; JSON is the document. Method: a canned port that
    says once that the audit is under way.
    """
    port.answers["audits"] = [(202, {"audit": "audit:1"})]
    port.answers["job"] = [(200, {**over(None), "over": False}), (200, over(document))]
    assert shell("audit", "--online", *words) == status
    found = shell.out.replace("\n", " ")
    assert all(one in found for one in shown), found
    assert json.loads(port.requests[0][3]) == {"pattern": "", "repair": "--repair" in words}
    assert not shell.err
    port.answers["job"] = [(200, over(document))]
    assert shell("audit", "--online", "--json", *words) == status
    told = json.loads(shell.out)
    assert told["maps"] == [{"map": "a [red]map[/]", **ROW}]
    assert told["others"] == [{"kind": "queue", "name": "jobs", **ROW}]
    rest = {name: value for name, value in document.items() if name != "structures"}
    assert {name: told[name] for name in rest} == rest and len(told) == len(rest) + 2


@pytest.mark.parametrize(
    ("words", "pattern"),
    [(["--map", "fl*"], "map/fl*"), (["--kind", "queue"], "queue/*"), (["--kind", "map"], "map/*")],
)
def test_what_is_chosen(shell: Shell, port: Port, words: list[str], pattern: str) -> None:
    """Goal: names of maps and kinds become one pattern."""
    port.answers["audits"] = [(202, {"audit": "audit:1"})]
    port.answers["job"] = [(200, over(EQUAL))]
    assert shell("audit", "--online", *words) == 0
    assert json.loads(port.requests[0][3])["pattern"] == pattern


def test_what_could_not_be_done_is_2(
    shell: Shell, port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: one sentence each for: no --online, a refusal, an audit that ended without a result, a
    member that has forgotten it.
    """
    monkeypatch.setattr(audit_module, "PATIENCE_S", 0.0)
    assert shell("audit") == 2 and "--online" in shell.err
    assert shell("audit", "--online", "--map", "a", "--kind", "queue") == 2
    port.answers["audits"] = [(409, {"error": "this member drives another audit"})]
    assert shell("audit", "--online") == 2 and "drives another" in shell.err
    port.answers["audits"] = [(202, {"audit": "audit:1"})]
    port.answers["job"] = [(200, over(None, "it was cancelled"))]
    assert shell("audit", "--online") == 2 and "cancelled" in shell.err
    port.answers["job"] = [(404, {"error": "this member does not know this audit"})]
    assert shell("audit", "--online") == 2 and "does not know" in shell.err


def test_who_interrupts_it_ends_it(
    shell: Shell, port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: Ctrl-C is told to the member. Method: it comes with the first look."""
    port.answers["audits"] = [(202, {"audit": "audit:1"})]
    port.answers["cancel"] = [(200, {"cancelled": True})]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(audit_module, "await_job", interrupted)
    assert shell("audit", "--online") == 130
    assert port.requests[-1][1].endswith("/audits/cancel")
    assert json.loads(port.requests[-1][3]) == {"audit": "audit:1"}


@pytest.fixture
def pair() -> list[FakeNode]:
    """Two members at rest."""
    pump = Pump()
    pump.form(2, 3)
    return fakes(pump)


def test_paths_of_audits(pair: list[FakeNode]) -> None:
    """Goal: an order is carried out by the member asked; orders without sense, and names that are
    not known, are refused with words. Method: through HTTP, without sockets.
    """
    fake = pair[1]
    assert ask(fake, "POST", "/api/v1/audits", json={"pattern": "noslash"}).status_code == 400
    assert ask(fake, "POST", "/api/v1/audits", json={"pattern": "map/none"}).status_code == 409
    assert ask(fake, "POST", "/api/v1/audits", json={"what": 1}).status_code == 400
    assert ask(fake, "GET", "/api/v1/audits/job?name=x").status_code == 404
    assert ask(fake, "GET", "/api/v1/audits/job?names=x").status_code == 400
    begun = ask(fake, "POST", "/api/v1/audits", json={})
    assert begun.status_code == 202
    name = begun.json()["audit"]
    fake.node.carry_out()
    fake.pump.run(2)
    found = ask(fake, "GET", f"/api/v1/audits/job?name={name}").json()
    assert found["over"] and found["document"]["equal"] and found["done"] == found["total"] == 7
    cancelled = ask(fake, "POST", "/api/v1/audits/cancel", json={"audit": name})
    assert cancelled.json() == {"cancelled": False}
    assert fake.metrics()["audits_total"] == 1
