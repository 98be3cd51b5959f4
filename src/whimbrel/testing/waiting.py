"""Waiting for other processes: always with a limit, always with the last thing seen in the error.

Knows the admin port of a member from outside.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from whimbrel.errors import OperationError

POLL_S = 0.05
HTTP_TIMEOUT_S = 15.0

T = TypeVar("T")


def wait_until(
    look: Callable[[], tuple[bool, T]], timeout_s: float, what: str, poll_s: float = POLL_S
) -> T:
    """Look again and again until something is true.

    Args:
        look: Says whether it is true, and what was seen.
        timeout_s: Longest wait.
        what: What is waited for, for the error.
        poll_s: Pause between two looks.

    Returns:
        What was seen when it was true.

    Raises:
        TimeoutError: It did not come true in time.
    """
    end_s = time.monotonic() + timeout_s
    while True:
        is_true, seen = look()
        if is_true:
            return seen
        if time.monotonic() >= end_s:
            raise TimeoutError(f"not {what} within {timeout_s:g} s; last seen: {seen}")
        time.sleep(poll_s)


def get_document(host: str, port: int, path: str) -> Any:
    """The JSON document at a path of an admin port.

    Raises:
        OperationError: Nobody answers, or with an error.
    """
    return _ask(host, port, "GET", path, None)


def post_order(host: str, port: int, path: str, order: Mapping[str, object]) -> Any:
    """Give an order at a path of an admin port; the document that answers it.

    Raises:
        OperationError: Nobody answers, or with an error.
    """
    return _ask(host, port, "POST", path, json.dumps(order).encode())


def _ask(host: str, port: int, method: str, path: str, body: bytes | None) -> Any:
    connection = http.client.HTTPConnection(host, port, timeout=HTTP_TIMEOUT_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        page = reply.read()
        if reply.status != 200:
            raise OperationError(f"{method} {path}: HTTP status {reply.status}: {page[:500]!r}")
        return json.loads(page)
    except (OSError, http.client.HTTPException, ValueError) as problem:
        raise OperationError(f"{method} {path} of port {port}: {problem!r}") from None
    finally:
        connection.close()
