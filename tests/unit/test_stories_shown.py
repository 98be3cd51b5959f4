"""Where a person reads causes: log lines, the events of a cluster, and the commands."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from tests.unit.admin_fakes import FakeNode, fakes
from tests.unit.engine_pump import Pump
from tests.unit.test_admin_documents import of, run
from tests.unit.test_admin_routes import ask
from tests.unit.test_cli_commands import FIRST, SECOND, Port, port

from whimbrel.cli import main
from whimbrel.config import Config, RuntimeSettings
from whimbrel.core.effects import Note
from whimbrel.runtime.logs import log_note, make_logger
from whimbrel.runtime.node import EVENTS_TOLD_MAX, Node

__all__ = ["port"]

STORY = "00000001-77"


@pytest.fixture
def pair() -> list[FakeNode]:
    """Two members at rest, with events of two stories."""
    pump = Pump()
    pump.form(2)
    first, second = fakes(pump)
    first.events = [
        {"at": "2026-01-01", "kind": "ordered", "cause": STORY},
        {"at": "2026-01-02", "kind": "other", "cause": "00000001-78"},
    ]
    second.events = [{"at": "2026-01-03", "kind": "followed", "cause": STORY}]
    return [first, second]


def node_with(*notes: Note) -> tuple[Node, io.StringIO]:
    """A member's shell that has noted something, and its log; no port is opened."""
    stream = io.StringIO()
    logger = make_logger(RuntimeSettings(log_format="json", log_level="info"), stream)
    node = Node(Config(), logger=logger)
    node.new_cause = lambda: "00000001-99"
    for note in notes:
        node.note(note)
    return node, stream


def test_log_lines_and_entries_have_the_cause() -> None:
    """Goal: whoever has a log line has the id to ask for. Method: notes of the core and shell."""
    node, stream = node_with(
        Note("info", "members_installed", {"members": 3}, cause=STORY),
        Note("warning", "stalled", {}),
    )
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["cause"] for line in lines] == [STORY, "00000001-99"]
    assert [entry["cause"] for entry in node.events] == [STORY, "00000001-99"]


def test_a_note_of_nobody_has_no_cause() -> None:
    """Goal: a line without a cause does not pretend to have one. Method: no member yet."""
    stream = io.StringIO()
    log_note(make_logger(RuntimeSettings(log_format="json"), stream), Note("info", "early", {}))
    assert "cause" not in json.loads(stream.getvalue())


def test_a_member_tells_what_it_kept_of_a_story() -> None:
    """Goal: one cause's entries, oldest first, and as many as of all; nothing is not an error."""
    notes = [
        Note("info", "noted", {"number": number}, cause=f"00000001-{number % 2}")
        for number in range(10)
    ]
    node, _ = node_with(*notes)

    def numbers(arguments: bytes) -> list[int]:
        return [entry["number"] for entry in json.loads(node._events_document(arguments))]

    assert numbers(b"") == numbers(b"{}") == list(range(10))
    assert numbers(b'{"cause": "00000001-1"}') == [1, 3, 5, 7, 9]
    assert numbers(b'{"cause": "00000001-5"}') == []
    assert EVENTS_TOLD_MAX >= 10


def test_the_cluster_tells_a_story_in_order(pair: list[FakeNode]) -> None:
    """Goal: every member is asked for its part; others' stories stay out. Method: two members."""
    first, second = pair
    found = run(of(second).events(STORY))
    assert [(event["kind"], event["member"]) for event in found] == [
        ("ordered", first.member_id),
        ("followed", second.member_id),
    ]
    answer = ask(first, "GET", f"/api/v1/events?cause={STORY}")
    assert [event["kind"] for event in answer.json()] == ["ordered", "followed"]
    assert ask(first, "GET", "/api/v1/events?cause=00000001-5").json() == []
    assert len(ask(first, "GET", "/api/v1/events").json()) == 3
    refused = ask(first, "GET", "/api/v1/events?story=x")
    assert (refused.status_code, "cause" in refused.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "body", "noted", "kind"),
    [
        ("state", {"state": "FROZEN"}, "state_change_ordered", "cluster_state_changed"),
        ("shutdown", {"member": "127.0.0.1:5702"}, "shutdown_ordered", "leave_wanted"),
    ],
)
def test_an_order_and_what_follows_are_one_story(
    path: str, body: dict[str, Any], noted: str, kind: str
) -> None:
    """Goal: from the operator's order to what the members did. Method: orders by HTTP."""
    pump = Pump()
    pump.form(2)
    fake = fakes(pump)[0]
    assert ask(fake, "POST", f"/api/v1/{path}", json=body).status_code in (200, 202)
    ordered = [note.cause for note in fake.notes if note.kind == noted]
    assert len(ordered) == 1 and ordered[0].startswith("00000001-")
    found = [note.cause for node in pump.nodes for note in node.notes if note.kind == kind]
    assert found and set(found) == set(ordered)


def test_the_command_prints_a_story(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: ``events --story ID`` is readable and in order, ``--json`` the same document."""
    told = [
        {"at": "2026-01-01", "kind": "ordered", "level": "info", "cause": STORY, "member": FIRST},
        {"at": "2026-01-02", "kind": "told", "level": "info", "cause": STORY, "member": SECOND,
         "version": 5},
    ]  # fmt: skip
    port.answers["events"] = [(200, told)]
    assert main.run(["events", "--story", STORY, "--limit", "1", "--admin", port.url]) == 0
    text = capsys.readouterr().out
    words = ["ordered", "127.0.0.1:5702", "told", "version=5"]
    assert [word for word in words if word not in text] == []
    assert text.index("ordered") < text.index("told")
    assert STORY not in text, "it is the same in every line"
    assert port.requests[0][1:3] == ("/api/v1/events", {"cause": [STORY]})
    assert main.run(["events", "--story", STORY, "--json", "--admin", port.url]) == 0
    assert json.loads(capsys.readouterr().out) == told


def test_without_a_story_the_id_is_shown(port: Port, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the id to ask for is found in the list. Method: the plain command."""
    event = {"at": "2026-01-01", "kind": "a", "level": "info", "cause": STORY, "member": FIRST}
    port.answers["events"] = [(200, [event])]
    assert main.run(["events", "--admin", port.url]) == 0
    text = capsys.readouterr().out
    assert STORY in text and "cause=" not in text


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_unknown_story_is_exit_1(
    port: Port, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """Goal: nothing found is said, and nothing is printed. Method: a cause that nobody has."""
    port.answers["events"] = [(200, [])]
    assert main.run(["events", "--story", "00000009-9", *options, "--admin", port.url]) == 1
    told = capsys.readouterr()
    assert "00000009-9" in told.err and not told.out


@pytest.mark.parametrize("command", ["events", "sim"])
def test_the_help_names_the_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: stories are found by whoever asks for help. Method: ``--help`` of both commands."""
    assert main.run([command, "--help"]) == 0
    assert "--story" in capsys.readouterr().out
