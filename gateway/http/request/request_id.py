"""Gives each HTTP request an id, so that a client's report can be matched with log lines."""

from __future__ import annotations

import re
import secrets

from aiohttp import web

HEADER = "X-Request-Id"
_KEY: web.RequestKey[str] = web.RequestKey("request_id", str)
_SANE = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
"""Allowed form of a client's id, which is logged unchanged."""


def of(request: web.Request) -> str:
    """Return the request's id: the client's or a proxy's, else a new one."""
    if _KEY not in request:
        given = request.headers.get(HEADER, "")
        request[_KEY] = given if _SANE.fullmatch(given) else secrets.token_hex(16)
    return request[_KEY]


async def on_prepare(request: web.Request, response: web.StreamResponse) -> None:
    """Write the id into any answer, including streams, errors and upgrades."""
    response.headers[HEADER] = of(request)
