"""Talks to the admin port of a member with the standard library alone, so that commands are quick.

Knows which kind of failure ends with which exit code: nobody there is 3 and names the port, a
refusal of the member is 1 with the member's own sentence, an address without sense is 2.
"""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any, NoReturn
from urllib.parse import quote, urlencode, urlsplit

import typer

from whimbrel.errors import OperationError, UsageError

DEFAULT_URL = "http://127.0.0.1:8701"
TIMEOUT_S = 15.0
"""Longer than a member waits for other members before it answers."""
LINE_BYTES_MAX = 1024 * 1024
ANSWER_BYTES_MAX = 256 * 1024 * 1024
EXIT_UNREACHABLE = 3
EXIT_IN_VAIN = 4

AdminUrl = Annotated[
    str, typer.Option("--admin", metavar="URL", help="Admin port of any member of the cluster")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document")]


class Admin:
    """The admin port of one member.

    Args:
        url: ``http://host:port``; ``host:port`` is enough.
        is_quiet: Nobody there is no news, only exit code 3.

    Raises:
        UsageError: The address makes no sense.
    """

    def __init__(self, url: str, *, is_quiet: bool = False) -> None:
        text = url if "://" in url else f"http://{url}"
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise UsageError(f"{url!r} is not an admin address such as {DEFAULT_URL}") from None
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise UsageError(f"{url!r} is not an admin address such as {DEFAULT_URL}")
        self.host = parts.hostname
        self.port = port if port is not None else 80
        self._is_quiet = is_quiet

    def get(self, path: str, **query: object) -> Any:
        """The document at a path below ``/api/v1``; lists in the query are repeated names."""
        pairs = [
            (name, item)
            for name, value in query.items()
            for item in (value if isinstance(value, list) else [value])
        ]
        text = f"?{urlencode(pairs)}" if pairs else ""
        return self._ask("GET", f"/api/v1/{quote(path)}{text}", None)

    def post(self, path: str, content: dict[str, object]) -> Any:
        """Give an order; the document that answers it."""
        return self._ask("POST", f"/api/v1/{quote(path)}", json.dumps(content).encode())

    def follow(self, path: str) -> Iterator[dict[str, Any]]:
        """The documents of an event stream below ``/api/v1``, until the member ends it."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", f"/api/v1/{quote(path)}", headers={"Connection": "close"})
            reply = connection.getresponse()
            if reply.status >= 300:
                page = json.loads(reply.read(ANSWER_BYTES_MAX))
                raise OperationError(str(page.get("error", f"HTTP status {reply.status}")))
            while line := reply.readline(LINE_BYTES_MAX):
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        except (OSError, http.client.HTTPException, ValueError) as problem:
            self._unreachable(str(problem) or type(problem).__name__)
        finally:
            connection.close()

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        headers = {"Accept": "application/json", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            status, page = reply.status, reply.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as problem:
            self._unreachable(str(problem) or type(problem).__name__)
        finally:
            connection.close()
        try:
            document = json.loads(page)
        except ValueError:
            self._unreachable(f"what answers there is no member (HTTP status {status})")
        if status < 300:
            return document
        sentence = document.get("error") if isinstance(document, dict) else None
        raise OperationError(str(sentence or f"the member answered with HTTP status {status}"))

    def _unreachable(self, why: str) -> NoReturn:
        if not self._is_quiet:
            from whimbrel.core.ids import Address

            place = Address(self.host, self.port)
            sys.stderr.write(f"nobody answers at admin address {place}: {why}\n")
        raise typer.Exit(EXIT_UNREACHABLE)


def print_json(document: object) -> None:
    """One JSON document on stdout, indented."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
