"""Bodies of orders and answers in JSON, for all paths of the admin side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from whimbrel.errors import UsageError

BODY_BYTES_MAX = 64 * 1024
"""Longest body of an order."""
BODY_TIMEOUT_S = 5.0

OrderKind = TypeVar("OrderKind", bound=msgspec.Struct)
Answer = Callable[[Request], Awaitable[Response]]


async def order_of(request: Request, kind: type[OrderKind], shape: str) -> OrderKind:
    """The order in a body; no body is one without fields.

    Raises:
        UsageError: It is none; names the shape it should have.
    """
    try:
        return msgspec.json.decode(await _body(request) or b"{}", type=kind)
    except msgspec.DecodeError as problem:
        raise UsageError(f"the body must be {shape}: {problem}") from None


async def _body(request: Request) -> bytes:
    """The body, if it is small and comes soon."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > BODY_BYTES_MAX:
        raise HTTPException(413, f"a body has at most {BODY_BYTES_MAX} bytes")
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise HTTPException(415, "a body is application/json")
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                found += piece
                if len(found) > BODY_BYTES_MAX:
                    raise HTTPException(413, f"a body has at most {BODY_BYTES_MAX} bytes")
    except TimeoutError:
        raise HTTPException(408, "the body did not come in time") from None
    return bytes(found)


def document(content: Any, status: int = 200) -> Response:
    """A JSON answer; never kept by anybody in between."""
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    body = msgspec.json.encode(content)
    return Response(body, status, headers=headers, media_type="application/json")


def error(status: int, sentence: str) -> Response:
    """A JSON error."""
    return document({"error": sentence}, status)
