"""The page of the HTTP interface, from the routes of a gateway with every part that has routes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from gateway.http import api_page
from gateway.http.api_page import Operation
from gateway.http.app import ROUTES
from gateway.http.request.routes import Route, openapi
from talkspurt import __version__
from talkspurt.build import Gateway
from talkspurt.config.settings import Config
from talkspurt.reference.table import table
from tts_engine.service.client import GrpcEngine

_HEAD = """# The HTTP interface

<!-- Written by `python -m talkspurt.reference docs`; change the routes and models in `gateway/http/`. -->

One port has everything: pages, REST, metrics, and the WebSockets of dialogue managers ([protocol.md](protocol.md))
and carriers. A running server shows this page at `/docs`, and as OpenAPI 3.1 at `/openapi.json`, of which clients can
be generated.

* **Keys.** `Authorization: Bearer KEY`. Beyond loopback every operation with a scope needs a key that has it
  ([tenants.md](tenants.md)); `admin` has all scopes.
* **Bodies** are JSON with `Content-Type: application/json`, unless the table says otherwise.
* **Errors** are `{"error": {"type", "code", "message", "param"}}`. 400: no JSON. 401: no key. 403: not allowed. 404:
  not there, or another tenant's. 409: not now. 413: too large. 415: another content type. 422: a wrong value. 429:
  too often (`Retry-After`). 503: full, draining, or without an engine.
* **Request ids.** Every answer has `X-Request-Id`: the request's own if it has up to 128 letters, digits and `._:-`,
  else a new one. It stands beside errors of the server in its log.
* **Ids of calls** (`{id}`) are `VX` and 32 hexadecimal digits, the dialogue protocol's `sessionId`.
"""


def description() -> Mapping[str, Any]:
    """Return the OpenAPI description. The gateway that is made for it neither listens nor calls anybody."""

    async def describe() -> Mapping[str, Any]:
        config = Config.model_validate({"audiosocket": {}})  # its routes are there only with this section
        engine = GrpcEngine(["unix:/nowhere"], config.engine)
        made = Gateway(config, engine, {})
        try:
            routes: list[Route] = made.app[ROUTES]
            return openapi(routes, version=__version__)
        finally:
            made.ticker.close()
            made.uplink.close()
            await engine.aclose()

    return asyncio.run(describe())


def markdown() -> str:
    """Return the page."""
    described = description()
    found = api_page.operations(described)
    parts = [_HEAD]
    for group in dict.fromkeys(each.group for each in found):
        rows = [_row(each) for each in found if each.group == group]
        parts.append(f"## {group.capitalize()}\n\n" + table(("operation", "does", "scope", "body", "answer"), rows))
    parts.append("## Schemas\n")
    for name, schema in api_page.schemas(described).items():
        rows = [
            (f"`{each.name}`", each.value, f"`{each.default}`" if each.default else "", each.about)
            for each in api_page.fields(schema, _linked)
        ]
        parts.append(
            f"### {name}\n\n{api_page.about(schema)}\n\n" + table(("field", "value", "default", "meaning"), rows)
        )
    return "\n".join(parts)


def _row(each: Operation) -> tuple[str, ...]:
    body = _linked(each.body) if each.body else ", ".join(each.takes)
    answer = _linked(each.answer) if each.answer else ", ".join(each.gives)
    return f"`{each.method} {each.path}`", each.summary, each.scope or "-", body, answer


def _linked(name: str) -> str:
    return f"[{name}](#{name.lower()})"
