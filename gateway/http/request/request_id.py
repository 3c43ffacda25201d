"""Names each HTTP request, so that a client's report and a line of the log can be put together."""

from __future__ import annotations

import re
import secrets

from aiohttp import web

HEADER = "X-Request-Id"
_KEY: web.RequestKey[str] = web.RequestKey("request_id", str)
_SANE = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
"""What an id of a client's may look like: it goes into the log as it is."""


def of(request: web.Request) -> str:
    """Return the request's id: the client's or a proxy's, else one of ours."""
    if _KEY not in request:
        given = request.headers.get(HEADER, "")
        request[_KEY] = given if _SANE.fullmatch(given) else secrets.token_hex(16)
    return request[_KEY]


async def on_prepare(request: web.Request, response: web.StreamResponse) -> None:
    """Write the id into an answer, be it a stream, an error or an upgrade."""
    response.headers[HEADER] = of(request)
