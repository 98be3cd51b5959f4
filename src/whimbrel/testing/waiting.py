"""Waiting for other processes: always with a limit, always with the last thing seen in the error.

Knows the admin port of a member from outside.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

from whimbrel.errors import OperationError

POLL_S = 0.05
HTTP_TIMEOUT_S = 15.0

T = TypeVar("T")


def wait_until(look: Callable[[], tuple[bool, T]], timeout_s: float, what: str) -> T:
    """Look again and again until something is true.

    Args:
        look: Says whether it is true, and what was seen.
        timeout_s: Longest wait.
        what: What is waited for, for the error.

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
        time.sleep(POLL_S)


def get_document(host: str, port: int, path: str) -> Any:
    """The JSON document at a path of an admin port.

    Raises:
        OperationError: Nobody answers, or with an error.
    """
    connection = http.client.HTTPConnection(host, port, timeout=HTTP_TIMEOUT_S)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        page = reply.read()
        if reply.status != 200:
            raise OperationError(f"GET {path}: HTTP status {reply.status}: {page[:500]!r}")
        return json.loads(page)
    except (OSError, http.client.HTTPException, ValueError) as problem:
        raise OperationError(f"GET {path} of port {port}: {problem!r}") from None
    finally:
        connection.close()
