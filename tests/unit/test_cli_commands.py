"""The commands against a canned admin port: exit codes, JSON, text, words on stderr."""

from __future__ import annotations

import io
import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from whimbrel.cli import look as look_module
from whimbrel.cli import main, render
from whimbrel.cli import status as status_module
from whimbrel.cli.http import Admin
from whimbrel.errors import UsageError

MEMBERS = [
    {
        "uuid": f"0000000{number}-0000-4000-8000-000000000000",
        "address": f"127.0.0.1:570{number}",
        "lite": number == 3,
        "master": number == 1,
        "version": "5.7.0",
        "admin_port": 8700 + number,
    }
    for number in (1, 2, 3)
]
FIRST, SECOND = str(MEMBERS[0]["uuid"]), str(MEMBERS[1]["uuid"])
MOVES = {"active": 1, "queued": 2, "planned": 9, "completed": 6, "failed": 0}
SAFE = {
    "state": "ACTIVE",
    "safe": True,
    "reason": "",
    "members": 3,
    "cluster": "dev",
    "partitions_lost": 0,
    "migrations": dict.fromkeys(MOVES, 0),
}
UNSAFE = {**SAFE, "safe": False, "reason": "migrations are due", "migrations": MOVES}
PROCESS = {
    "id": 4,
    "reason": "a member joined",
    "planned": 9,
    "completed": 6,
    "remaining": 3,
    "failed": 0,
    "copies": 6,
    "promotions": 0,
    "bytes": 12_345_678,
    "elapsed_s": 1.5,
    "eta_s": 0.7,
}
PLAN = {
    "copies": 180,
    "promotions": 0,
    "role_changes": 10,
    "bytes": 5_000_000,
    "lower_bound_copies": 180,
    "partitions_lost": 0,
    "estimate_s": 200.0,
    "shares": [
        {
            "member": "newcomer-1",
            "address": "",
            "primaries_before": 0,
            "primaries_after": 90,
            "replicas_before": 0,
            "replicas_after": 180,
            "copies_received": 180,
        }
    ],
}
DOCUMENTS: dict[str, Any] = {
    "cluster": SAFE,
    "members": MEMBERS,
    "partitions": {
        "count": 3,
        "stamp": "77",
        "rows": [
            {"version": 2, "replicas": [FIRST, SECOND]},
            {"version": 1, "replicas": [SECOND]},
            {"version": 3, "replicas": [None]},
        ],
    },
    "structures": [
        {"name": "a [red]map[/]\x1b[31m", "kind": "map", "entries": 1_234_567, "backups": 1}
    ],
    "migrations": {"current": PROCESS, "history": [{**PROCESS, "id": 3, "eta_s": None}]},
    "events": [
        {"at": "2026-01-01", "kind": "joined", "level": "info", "member": FIRST, "port": 1},
        {"at": "2026-01-02", "kind": "left", "level": "info", "member": "gone"},
    ],
    "plan": PLAN,
}


class Port:
    """An admin port with canned answers."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        """Answers by last part of the path, taken one by one; the last one stays."""
        self.requests: list[tuple[str, str, dict[str, list[str]], bytes]] = []
        for name, content in DOCUMENTS.items():
            self.answers[name] = [(200, content)]
        port = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                name = parts.path.rpartition("/")[2]
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                port.requests.append((self.command, parts.path, parse_qs(parts.query), body))
                canned = port.answers.get(name, [(404, {"error": "no such path"})])
                status, content = canned.pop(0) if len(canned) > 1 else canned[0]
                page = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[Port]:
    monkeypatch.setattr(status_module, "POLL_S", 0.01)
    monkeypatch.setattr(look_module, "FOLLOW_S", 0.01)
    made = Port()
    yield made
    made.close()


GROUPED = "1 234 567".replace(" ", "\N{NARROW NO-BREAK SPACE}")
RECOVERY = {
    "phase": "loading",
    "members_expected": 3,
    "members_here": 2,
    "missing": [SECOND],
    "bytes_total": 4_000_000,
    "bytes_loaded": 1_000_000,
    "reason": "[red]one died",
}
LOOKS = ["status", "members", "partitions", "structures", "migrations", "events"]


@pytest.mark.parametrize("command", LOOKS)
def test_json_is_the_document_itself(
    command: str, port: Port, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: ``--json`` prints one document, equal to the HTTP answer."""
    assert main.run([command, "--json", "--admin", port.url]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == DOCUMENTS["cluster" if command == "status" else command]
    assert told.err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status"], ["safe", "ACTIVE", "members     3"]),
        (["members"], ["127.0.0.1:5701", FIRST, "master", "lite"]),
        (["partitions"], ["AB.", "127.0.0.1:5702", "77"]),
        (["partitions", "--rows"], ["127.0.0.1:5702", "backup 1", "version"]),
        (["structures"], ["a [red]map[/]", GROUPED]),
        (["migrations"], ["a member joined", "6/9", "12.3 MB", "0.70 s"]),
        (["events"], ["joined", "127.0.0.1:5701", "port=1", "gone"]),
        (["events", "--limit", "1"], ["left"]),
        (["plan", "--join", "1"], ["180", "newcomer-1", "5.0 MB", "3 min 20 s"]),
    ],
    ids=" ".join,
)  # fmt: skip
def test_text_is_for_people(
    arguments: list[str], words: list[str], port: Port, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: without ``--json`` the same commands print readable text without control codes."""
    assert main.run([*arguments, "--admin", port.url]) == 0
    told = capsys.readouterr()
    assert not [word for word in words if word not in told.out], told.out
    assert told.err == ""
    assert "\x1b" not in told.out


@pytest.mark.parametrize("extra", [[], ["--json"]])
@pytest.mark.parametrize("command", [*LOOKS, "plan", "shutdown", "promote", "demote"])
def test_nobody_there_is_exit_3(
    command: str, extra: list[str], port: Port, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: "nobody there" is told apart from failure and names the port. Method: a port that was
    closed a moment ago.
    """
    number = port.server.server_port
    port.server.server_close()
    given = {"plan": ["--join", "1"]}.get(command, [] if command in LOOKS else ["x"])
    assert main.run([command, *given, *extra, "--admin", port.url]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert str(number) in told.err
    assert "Traceback" not in told.err


def test_somebody_else_there_is_exit_3(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: another program's port is no member. Method: a page that is no JSON."""
    port.answers["members"] = [(200, b"<html>")]
    assert main.run(["members", "--admin", port.url]) == 3
    assert "no member" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "content", "word"),
    [
        (503, {"error": "the master does not answer"}, "the master does not answer"),
        (500, {}, "500"),
        (404, [], "404"),
    ],
)
def test_a_refusal_is_exit_1_with_the_members_words(
    status: int, content: Any, word: str, port: Port, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: what the member says about a failure reaches the operator."""
    port.answers["migrations"] = [(status, content)]
    assert main.run(["migrations", "--admin", port.url]) == 1
    assert word in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--wait-safe", "-1"],
        ["status", "--wait-safe", "soon"],
        ["status", "--no-such-flag"],
        ["members", "--admin", "ftp://127.0.0.1:1"],
        ["members", "--admin", "http://127.0.0.1:99999"],
        ["members", "--admin", "http://127.0.0.1:8701/x"],
        ["members", "--admin", ""],
        ["plan"],
        ["plan", "--join", "0"],
        ["plan", "--join", "-2"],
        ["shutdown"],
        ["shutdown", "x", "--cluster"],
        ["recovery", "explode"],
        ["backup"],
        ["backup", "explode"],
        ["backup", "create", "--id", "../x"],
        ["backup", "create", "--id", ".x"],
        ["backup", "verify"],
        ["backup", "delete", "a/b"],
        ["backup", "schedule", "set", "now and then", "--keep", "2"],
        ["backup", "schedule", "set", "* * * * *"],
        ["backup", "schedule", "set", "* * * * *", "--keep", "0"],
        ["backup", "schedule", "set", "60 * * * *", "--keep", "2"],
        ["restore", "--at", "yesterday"],
        ["restore", "--id", "a/b"],
        ["migrations", "--follow", "--json"],
        ["events", "--limit", "0"],
        ["events", "--follow", "--story", "a-1"],
        ["sim", "--seed", "1", "--story", "nobody"],
        ["sim", "--seed", "1", "--story", "partition=x"],
        ["config", "explode"],
        ["dev", "--members", "0"],
        ["dev", "--set", "partition.cuont=3"],
        ["dev", "--set", "persistence.enabled=true"],
        ["dev", "--set", "member.data_dir=d"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: wrong usage ends with 2 and words on stderr, nothing on stdout."""
    assert main.run(arguments) == 2
    told = capsys.readouterr()
    assert told.err.strip()
    assert not told.out.strip()


def test_wait_safe(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: scripts can wait. Method: 0 when it becomes safe; 4 when it does not, with the last
    status printed; no waiting at all with 0 seconds.
    """
    port.answers["cluster"] = [(200, UNSAFE), (200, UNSAFE), (200, SAFE)]
    assert main.run(["status", "--wait-safe", "10", "--json", "--admin", port.url]) == 0
    assert json.loads(capsys.readouterr().out)["safe"]
    port.answers["cluster"] = [(200, UNSAFE)]
    assert main.run(["status", "--wait-safe", "0.05", "--json", "--admin", port.url]) == 4
    assert json.loads(capsys.readouterr().out) == UNSAFE
    assert main.run(["status", "--wait-safe", "0", "--admin", port.url]) == 4
    told = capsys.readouterr().out
    assert "migrations are due" in told
    assert "6 of 9 done" in told
    assert main.run(["status", "--admin", port.url]) == 0


def test_lost_partitions_are_shown(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a loss is not hidden. Method: a status that tells of two."""
    port.answers["cluster"] = [(200, {**SAFE, "partitions_lost": 2})]
    assert main.run(["status", "--admin", port.url]) == 0
    assert "2 partitions" in capsys.readouterr().out


LOST = {
    "name": "abc",
    "partitions": 2,
    "whole": 1,
    "structures": [
        {"kind": "map", "name": "b0", "partitions": 2, "entries": 12, "as_of_ms": 1_000},
        {"kind": "map", "name": "[red]x", "partitions": 1, "entries": None, "as_of_ms": None},
    ],
    "marks": [],
}


def test_losses_are_shown_and_acknowledged(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: an operator sees what is gone, structure by structure, and acknowledges exactly that.
    Method: a document, the same with --seen, a refusal, and nothing lost.
    """
    port.answers["losses"] = [(200, LOST)]
    assert main.run(["losses", "--admin", port.url]) == 0
    told = capsys.readouterr().out
    assert "b0" in told and "12" in told and "[red]x" in told and "1970-01-01T00:00:01" in told
    assert "2 partitions lost data, 1 of them every replica" in told and "--seen" in told
    assert main.run(["losses", "--seen", "--json", "--admin", port.url]) == 0
    assert json.loads(capsys.readouterr().out) == {**LOST, "seen": True}
    method, path, _, body = port.requests[-1]
    assert (method, path, json.loads(body)) == ("POST", "/api/v1/losses", {"seen": "abc"})
    port.answers["losses"] = [(200, LOST), (409, {"error": "look at it again"})]
    assert main.run(["losses", "--seen", "--admin", port.url]) == 1
    assert "look at it again" in capsys.readouterr().err
    port.answers["losses"] = [(200, {**LOST, "name": "", "partitions": 0, "structures": []})]
    count = len(port.requests)
    assert main.run(["losses", "--seen", "--admin", port.url]) == 0
    assert "nothing is lost" in capsys.readouterr().out
    assert [request[0] for request in port.requests[count:]] == ["GET"]
    port.answers["cluster"] = [(200, {**SAFE, "partitions_lost": 2, "losses": LOST})]
    assert main.run(["status", "--admin", port.url]) == 0
    told = capsys.readouterr().out
    assert "map b0: about 12 entries in 2 partitions" in told
    assert "map [red]x: ? entries" in told


def test_a_shutdown_may_discard(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: what goes with the last member, or the cluster, is refused or told. Method: orders
    with and without --discard; --wait waits until no admin port of the cluster answers.
    """
    port.answers["shutdown"] = [(409, {"error": "would discard map b0 (3 entries)"})]
    assert main.run(["shutdown", SECOND, "--admin", port.url]) == 1
    assert "b0 (3 entries)" in capsys.readouterr().err
    gone = {"discarded": [{"kind": "map", "name": "b0", "entries": 3}], "leaving": True}
    port.answers["shutdown"] = [(202, {**gone, "member": SECOND, "address": "x:1"})]
    assert main.run(["shutdown", SECOND, "--discard", "--admin", port.url]) == 0
    assert json.loads(port.requests[-1][3]) == {"member": SECOND, "discard": True}
    assert "discarded: map b0, 3 entries" in capsys.readouterr().out
    port.answers["members"] = [(200, [{**MEMBERS[0], "admin_port": free_port()}])]
    port.answers["shutdown"] = [(202, {**gone, "members": [FIRST]})]
    assert main.run(["shutdown", "--cluster", "--wait", "5", "--admin", port.url]) == 0
    assert json.loads(port.requests[-1][3]) == {"cluster": True}
    assert "the whole cluster has left" in capsys.readouterr().out
    port.answers["members"] = [(200, [{**MEMBERS[0], "admin_port": port.server.server_port}])]
    assert main.run(["shutdown", "--cluster", "--wait", "0", "--admin", port.url]) == 4


def test_split_brain_protection_is_shown(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: M6: status says which maps a part refuses, and why; nothing where nothing is set."""
    shown = {
        "minimum_size": 3, "protects": "write", "data_members": 2, "refusing": True,
        "maps": {
            "orders*": {"minimum_size": 2, "protects": "read_write", "refusing": False},
            "cache": {"minimum_size": 0, "protects": "write", "refusing": False},
        },
    }  # fmt: skip
    port.answers["cluster"] = [(200, {**SAFE, "split_brain_protection": shown}), (200, SAFE)]
    assert main.run(["status", "--admin", port.url]) == 0
    told = capsys.readouterr().out
    assert "refusing: write needs 3; data members here: 2" in told
    assert "orders*: serving: read_write needs 2" in told
    assert "cache: none" in told
    assert main.run(["status", "--admin", port.url]) == 0
    assert "protection" not in capsys.readouterr().out


def test_follow_ends_when_safe(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: ``migrations --follow`` shows progress and ends with the last process."""
    port.answers["cluster"] = [(200, UNSAFE), (200, UNSAFE), (200, SAFE)]
    done = {"current": None, "history": [PROCESS]}
    busy = {"current": PROCESS, "history": []}
    port.answers["migrations"] = [
        (200, busy),
        (200, {"current": None, "history": []}),
        (200, done),
    ]
    assert main.run(["migrations", "--follow", "--admin", port.url]) == 0
    assert "safe" in capsys.readouterr().out


def test_nothing_migrated_yet(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: an empty history is a sentence, not an empty table."""
    port.answers["migrations"] = [(200, {"current": None, "history": []})]
    port.answers["structures"] = [(200, [])]
    assert main.run(["migrations", "--admin", port.url]) == 0
    assert "nothing" in capsys.readouterr().out
    assert main.run(["structures", "--admin", port.url]) == 0
    assert "no structures" in capsys.readouterr().out


def test_plan_and_shutdown_pass_on_what_was_asked(
    port: Port, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: the question reaches the member as it was asked. Method: look at the requests."""
    asked = ["--join", "2", "--leave", "a", "--leave", "b", "--crash", "127.0.0.1:1"]
    assert main.run(["plan", *asked, "--json", "--admin", port.url]) == 0
    assert json.loads(capsys.readouterr().out) == PLAN
    assert port.requests[-1][2] == {"join": ["2"], "leave": ["a", "b"], "crash": ["127.0.0.1:1"]}
    left = {"member": SECOND, "address": "127.0.0.1:5702", "leaving": True}
    port.answers["shutdown"] = [(202, left)]
    assert main.run(["shutdown", SECOND, "--admin", port.url]) == 0
    method, path, _, body = port.requests[-1]
    assert (method, path, json.loads(body)) == ("POST", "/api/v1/shutdown", {"member": SECOND})
    assert "is leaving" in capsys.readouterr().out
    port.answers["shutdown"] = [(404, {"error": "there is no member x"})]
    assert main.run(["shutdown", "x", "--admin", port.url]) == 1
    assert "there is no member x" in capsys.readouterr().err


def test_shutdown_can_wait(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: ``shutdown --wait`` returns when the member is off the others' lists, 4 when it
    stays; the one that is asked may be the one that leaves. Method: all lists come from one port;
    the last member's port closes.
    """
    here = port.server.server_port
    second = {**MEMBERS[1], "admin_port": here}
    first = {**MEMBERS[0], "admin_port": here}
    port.answers["shutdown"] = [(202, {"member": SECOND, "address": "x:1", "leaving": True})]
    command = ["shutdown", SECOND, "--json", "--admin", port.url]
    port.answers["members"] = [(200, [first, second]), (200, [first, second]), (200, [first])]
    assert main.run([*command, "--wait", "10"]) == 0
    assert json.loads(capsys.readouterr().out)["left"] is True
    port.answers["members"] = [(200, [first, second])]
    assert main.run([*command, "--wait", "0"]) == 4
    assert json.loads(capsys.readouterr().out)["left"] is False
    port.answers["members"] = [(200, [{**second, "admin_port": free_port()}])]
    assert main.run([*command, "--wait", "10"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["left"] is True
    assert told.err == ""


def free_port() -> int:
    """A port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_addresses_of_admin_ports() -> None:
    """Goal: ``host:port`` is enough. Method: some spellings."""
    for text in ("127.0.0.1:8702", "http://127.0.0.1:8702", "http://127.0.0.1:8702/"):
        found = Admin(text)
        assert (found.host, found.port) == ("127.0.0.1", 8702)
    assert Admin("http://[::1]:8702").host == "::1"
    with pytest.raises(UsageError):
        Admin("https://127.0.0.1:8702")


def test_config_check_and_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: problems with lines, exit 2; sources of every key, as JSON and as a table."""
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text("[partition]\ncount = 31\n")
    bad.write_text("[partition]\ncuont = 31\n")
    assert main.run(["config", "check", str(good)]) == 0
    assert "1 keys set" in capsys.readouterr().out
    assert main.run(["config", "check", str(good), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    assert main.run(["config", "check", str(bad)]) == 2
    assert "bad.toml:2" in capsys.readouterr().err
    explain = ["config", "explain", "--config", str(good), "--set", "map.b0*.backup_count=0"]
    assert main.run([*explain, "--json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["partition.count"]["value"] == 31
    assert "good.toml" in rows["partition.count"]["source"]
    assert rows["map.b0*.backup_count"]["value"] == 0
    assert main.run(explain) == 0
    told = capsys.readouterr().out
    assert "partition.count" in told
    assert "31" in told


def test_a_closed_pipe_is_silent(
    port: Port, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: a reader that goes away is no error to talk about. Method: a stdout that breaks."""

    class Broken(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Broken())
    assert main.run(["members", "--json", "--admin", port.url]) == 1
    monkeypatch.undo()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (12_345_678, "12.3 MB"), (1e16, "10000.0 TB")],
)
def test_sizes(count: float, text: str) -> None:
    """Goal: bytes are readable."""
    assert render.size(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0.314, "0.31 s"),
        (42.2, "42 s"),
        (200, "3 min 20 s"),
        (7_200, "2 h 00 min"),
    ],
)
def test_spans(count: float | None, text: str) -> None:
    """Goal: spans are readable."""
    assert render.seconds(count) == text


class FakeCluster:
    """A cluster for ``dev`` without processes."""

    made: ClassVar[list[FakeCluster]] = []

    def __init__(
        self, members: int, name: str, settings: dict[str, str], *_: Any, **__: Any
    ) -> None:
        self.name, self.settings, self.wanted = name, settings, members
        self.folder = Path("logs")
        self.members: list[Any] = []
        self.closed = False
        self.trouble: BaseException | None = None
        FakeCluster.made.append(self)

    def start(self) -> None:
        """Nothing to start."""
        raise KeyboardInterrupt

    def stop(self, timeout_s: float) -> None:
        raise KeyboardInterrupt

    def close(self) -> None:
        self.closed = True


def test_dev_cleans_up_when_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: Ctrl-C at any moment leaves no process behind, a second one ends at once. Method: a
    cluster that is interrupted while it starts and again while it stops.
    """
    from whimbrel.testing import cluster as cluster_module

    monkeypatch.setattr(cluster_module, "LocalCluster", FakeCluster)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert main.run(["dev", "--set", "partition.count=7", "--cluster-name", "x"]) == 0
    made = FakeCluster.made[-1]
    assert (made.name, made.settings, made.closed) == ("x", {"partition.count": "7"}, True)
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "kind"), [("promote", "data"), ("demote", "lite")])
def test_promote_and_demote(
    command: str, kind: str, port: Port, capsys: pytest.CaptureFixture[str]
) -> None:
    """GCM-27: the order waits for its outcome by number; a refusal is 1, no end in time is 4."""
    begun = {
        "member": SECOND,
        "address": "127.0.0.1:5702",
        "lite": kind == "lite",
        "done": False,
        "number": 7,
    }
    port.answers[command] = [(202, begun), (200, {**begun, "done": True})]
    assert main.run([command, "127.0.0.1:5702", "--admin", port.url]) == 0
    method, path, _, body = port.requests[-1]
    assert (method, path) == ("POST", f"/api/v1/{command}")
    assert json.loads(body) == {"member": SECOND, "number": 7}
    assert f"is a {kind} member now" in capsys.readouterr().out
    port.answers[command] = [(409, {"error": "the cluster state FROZEN forbids migrations"})]
    assert main.run([command, SECOND, "--admin", port.url]) == 1
    assert "FROZEN" in capsys.readouterr().err
    port.answers[command] = [(202, begun)]
    assert main.run([command, SECOND, "--wait", "0", "--json", "--admin", port.url]) == 4
    assert json.loads(capsys.readouterr().out)["done"] is False


def test_events_can_be_followed(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """PIM-58: a line per event until the stream ends; a reader that was cut fails with words."""
    moved = b'event: replica_migrated\ndata: {"kind":"replica_migrated","partition":4}\n\n'
    port.answers["stream"] = [(200, b": events from here on\n\n" + moved + b": still here\n\n")]
    assert main.run(["events", "--follow", "--admin", port.url]) == 0
    assert port.requests[-1][1] == "/api/v1/events/stream"
    assert capsys.readouterr().out == "replica_migrated partition=4\n"
    assert main.run(["events", "--follow", "--json", "--admin", port.url]) == 0
    assert json.loads(capsys.readouterr().out) == {"kind": "replica_migrated", "partition": 4}
    port.answers["stream"] = [(200, b'event: lost\ndata: {"kind":"lost","events":5}\n\n')]
    assert main.run(["events", "--follow", "--admin", port.url]) == 1
    assert "5 events were missed" in capsys.readouterr().err
    port.answers["stream"] = [(503, {"error": "too many readers"})]
    assert main.run(["events", "--follow", "--admin", port.url]) == 1
    assert "too many readers" in capsys.readouterr().err


def test_a_recovery_is_shown(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: who is missing and how far loading is, also in ``status``; nothing, and null, when
    nothing recovers.
    """
    port.answers["recovery"] = [(200, RECOVERY)]
    port.answers["cluster"] = [(200, {**UNSAFE, "recovery": RECOVERY}), (200, SAFE)]
    assert main.run(["recovery", "show", "--json", "--admin", port.url]) == 0
    assert json.loads(capsys.readouterr().out) == RECOVERY
    for command in (["recovery", "show"], ["status"]):
        assert main.run([*command, "--admin", port.url]) == 0
        told = capsys.readouterr().out
        words = ("loading", "[red]one died", "2 of 3 members", SECOND, "1.0 MB of 4.0 MB")
        assert not [word for word in words if word not in told], told
        assert "\x1b" not in told
    assert main.run(["status", "--admin", port.url]) == 0
    assert "recovery" not in capsys.readouterr().out
    port.answers["recovery"] = [(200, {**RECOVERY, "missing": [], "bytes_total": 0, "reason": ""})]
    assert main.run(["recovery", "show", "--admin", port.url]) == 0
    told = capsys.readouterr().out
    assert "missing" not in told and "loaded" not in told
    port.answers["recovery"] = [(200, None)]
    assert main.run(["recovery", "show", "--admin", port.url]) == 0
    assert capsys.readouterr().out == "nothing recovers\n"
    assert main.run(["recovery", "show", "--json", "--admin", port.url]) == 0
    assert json.loads(capsys.readouterr().out) is None


@pytest.mark.parametrize("command", ["force-start", "partial-start"])
def test_orders_to_a_recovery(command: str, port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: each order is one POST; a refusal is 1 with the member's words."""
    port.answers[command] = [(202, {"ordered": True})]
    assert main.run(["recovery", command, "--admin", port.url]) == 0
    method, path, _, body = port.requests[-1]
    assert (method, path, json.loads(body)) == ("POST", f"/api/v1/recovery/{command}", {})
    assert "status --wait-safe" in capsys.readouterr().out
    assert main.run(["recovery", command, "--json", "--admin", port.url]) == 0
    assert json.loads(capsys.readouterr().out) == {"ordered": True}
    port.answers[command] = [(409, {"error": "nothing recovers"})]
    assert main.run(["recovery", command, "--admin", port.url]) == 1
    assert "nothing recovers" in capsys.readouterr().err
    port.server.server_close()
    assert main.run(["recovery", command, "--admin", port.url]) == 3


BACKUP = {"id": "one", "at": "2026-01-02T03:04:05+00:00", "bytes": 5_000_000, "entries": 1_234_567}
JOB = {"over": True, "problem": "", "phase": "", "done": 0, "total": 0}


def test_backups_are_ordered_and_waited_for(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """APR-30: what is asked travels, a job is asked for until it is over, its figures are printed;
    one that failed is exit 1 with its words.
    """
    made = {**BACKUP, "members": 3, "incremental_of": None, "elapsed_s": 0.2}
    port.answers["backups"] = [(202, {"job": "j"})]
    port.answers["job"] = [(200, {**JOB, "over": False}), (200, {**JOB, "document": made})]
    order = ["backup", "create", "--to", "/mnt/x", "--incremental", "--id", "one"]
    assert main.run([*order, "--json", "--admin", port.url]) == 0
    assert json.loads(capsys.readouterr().out) == made
    _, path, _, body = port.requests[0]
    assert path == "/api/v1/backups"
    assert json.loads(body) == {
        "what": "create", "place": "/mnt/x", "id": "one", "incremental": True,
    }  # fmt: skip
    assert [query for _, path, query, _ in port.requests if path.endswith("/job")] == [
        {"name": ["j"]}
    ] * 2
    assert main.run([*order, "--admin", port.url]) == 0
    assert GROUPED.split("\N{NARROW NO-BREAK SPACE}")[0] in capsys.readouterr().out
    port.answers["job"] = [(200, {**JOB, "problem": "backup x is still needed by y"})]
    assert main.run(["backup", "delete", "x", "--admin", port.url]) == 1
    assert "still needed by y" in capsys.readouterr().err
    restored = {"id": "one", "entries": 2, "structures": 1, "elapsed_s": 0.1}
    port.answers["job"] = [(200, {**JOB, "document": restored})]
    port.requests.clear()
    moment = "2026-01-02T03:04:05+00:00"
    words = ["restore", "--from", "/mnt/x", "--at", moment, "--map", "m*", "--replace"]
    assert main.run([*words, "--admin", port.url]) == 0
    assert "2 entries of 1 structures" in capsys.readouterr().out
    asked = json.loads(port.requests[0][3])
    assert (asked["at_ms"], asked["pattern"]) == (1_767_323_045_000, "map/m*")
    assert asked["replace"] is True


def test_backups_and_schedules_are_shown(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """APR-28, APR-30: a list as text, with what is not complete; a schedule, or none."""
    rows = [
        {**BACKUP, "complete": True, "incremental_of": None},
        {**BACKUP, "id": "[red]two", "at": "", "complete": False, "incremental_of": "one"},
    ]
    port.answers["backups"] = [(200, rows)]
    assert main.run(["backup", "list", "--from", "/mnt/x", "--admin", port.url]) == 0
    told = capsys.readouterr().out
    assert "[red]two" in told and "not complete" in told and "5.0 MB" in told
    assert port.requests[-1][2] == {"from": ["/mnt/x"]}
    port.answers["schedule"] = [(200, {"cron": "0 3 * * *", "keep": 7})]
    order = ["backup", "schedule", "set", "0 3 * * *", "--keep", "7"]
    assert main.run([*order, "--admin", port.url]) == 0
    assert "0 3 * * * (UTC); 7 are kept" in capsys.readouterr().out
    assert json.loads(port.requests[-1][3]) == {"cron": "0 3 * * *", "keep": 7}
    port.answers["schedule"] = [(200, {"cron": None, "keep": None})]
    assert main.run(["backup", "schedule", "off", "--admin", port.url]) == 0
    assert "no backups are scheduled" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["show"], ["force-start"], ["partial-start"]])
def test_help_of_a_recovery_has_examples(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: what to type stands in the help."""
    assert main.run(["recovery", *words, "--help"]) == 0
    assert f"whimbrel recovery {words[0]}" in capsys.readouterr().out
