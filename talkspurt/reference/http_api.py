"""The page of the HTTP interface, from the routes of a gateway with every part that has routes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.http import api_page
from gateway.http.api_page import Operation
from gateway.http.app import ROUTES
from gateway.http.request.openapi import openapi
from gateway.http.request.routes import Route
from talkspurt import __version__
from talkspurt.build import Gateway
from talkspurt.config.settings import Config
from talkspurt.reference.table import table
from tts_engine.service.client import GrpcEngine

_HEAD = """# The HTTP interface

<!-- Written by `python -m talkspurt.reference docs`; change the routes and models in `gateway/http/`. -->

One port serves pages, REST, metrics, and the WebSockets of dialogue managers ([protocol.md](protocol.md)) and
carriers. This page has the operations and the fields of requests. A running server has the whole reference at `/docs`,
with the fields of all answers, and the same as OpenAPI 3.1 at `/openapi.json`. An answer is JSON or empty if the table
names no other type.

* **Keys.** `Authorization: Bearer KEY`. Beyond loopback, an operation with a scope needs a key with that scope
  ([tenants.md](tenants.md)). `admin` has all scopes.
* **Bodies** are JSON with `Content-Type: application/json`, unless the table says otherwise. **(r)** marks a required
  field.
* **Errors** are `{"error": {"type", "code", "message", "param"}}`. 400: not JSON. 401: no key. 403: not allowed. 404:
  not found, or another tenant's. 409: not possible now. 413: too large. 415: wrong content type. 422: wrong value.
  429: too many (`Retry-After`). 503: full, draining, or no engine.
* **Request ids.** Every answer has `X-Request-Id`, the request's own or a new one. The server logs it with its errors.
* **Call ids** (`{id}`) are `VX` and 32 hexadecimal digits: the `sessionId` of the dialogue protocol. Times ending in
  `At` are seconds since 1970.

## A client in Python

[openapi-python-client](https://pypi.org/project/openapi-python-client/) (0.29.1 was tried) makes a typed client of the
description. Its configuration names the types of sound and of session descriptions, which it does not know:

```yaml
content_type_overrides:
  audio/aac: application/octet-stream
  audio/basic: application/octet-stream
  audio/flac: application/octet-stream
  audio/mpeg: application/octet-stream
  audio/ogg: application/octet-stream
  audio/pcm: application/octet-stream
  audio/wav: application/octet-stream
  application/sdp: text/plain
  application/trickle-ice-sdpfrag: text/plain
```

```sh
curl -H "Authorization: Bearer $TALKSPURT_API_KEY" http://127.0.0.1:8080/openapi.json -o openapi.json
openapi-python-client generate --path openapi.json --config client.yaml --meta none --output-path talkspurt_client
```

```python
import os

from talkspurt_client import AuthenticatedClient
from talkspurt_client.api.calls import get_v1_calls
from talkspurt_client.api.speech import post_v1_tts
from talkspurt_client.models import CallList, SpeechBody
from talkspurt_client.types import File

client = AuthenticatedClient("http://127.0.0.1:8080", token=os.environ["TALKSPURT_API_KEY"])
live = get_v1_calls.sync(client=client)
assert isinstance(live, CallList), live  # else it is an Error
print(len(live.calls), "live calls")
sound = post_v1_tts.sync(client=client, body=SpeechBody(text="Your order has been shipped."))
assert isinstance(sound, File), sound
with open("shipped.wav", "wb") as file:
    file.write(sound.payload.read())
```
"""

_EXPLAINED: Mapping[str, str] = {
    "MessageBody": "[protocol.md](protocol.md)",
    "SuperviseBody": "[hand-over.md](hand-over.md#supervise-a-call)",
    "SuperviseModeBody": "[hand-over.md](hand-over.md#supervise-a-call)",
    "OfferBody": "[browser.md](browser.md#other-webrtc-clients)",
    "TokenBody": "[browser.md](browser.md#tokens)",
    "TranscriptionBody": "[speech-server.md](speech-server.md#transcription)",
    "LoadModelBody": "[models.md](models.md#change-it-during-calls)",
    "ActiveModelBody": "[models.md](models.md#change-it-during-calls)",
    "TrialBody": "[models.md](models.md#try-it-on-a-share-of-the-calls)",
    "RoomLegBody": "[hand-over.md](hand-over.md#conference-rooms)",
    "RoomLegChange": "[hand-over.md](hand-over.md#conference-rooms)",
}
"""Bodies that another page explains."""


def description() -> Mapping[str, Any]:
    """Return the OpenAPI description. The gateway that is built for it neither listens nor connects."""

    async def describe() -> Mapping[str, Any]:
        config = Config.model_validate({"audiosocket": {}})  # its routes exist only with this section
        engine = GrpcEngine(["unix:/nowhere"], config.engine)
        made = Gateway(config, engine, {})
        try:
            routes: list[Route] = made.app[ROUTES]
            return openapi(routes, version=__version__)
        finally:
            made.ticker.close()
            made.call_parts.uplink.close()
            await engine.aclose()

    return asyncio.run(describe())


def markdown() -> str:
    """Return the page."""
    described = description()
    found = api_page.operations(described)
    parts = [_HEAD]
    for group in dict.fromkeys(each.group for each in found):
        rows = _rows([each for each in found if each.group == group])
        parts.append(f"## {group.capitalize()}\n\n" + table(("operation", "does", "scope", "body", "answer"), rows))
    known = api_page.schemas(described)
    taken = _taken(found, known)
    brief = [(f"`{name}`", _brief(known[name]), link) for name in taken if (link := _EXPLAINED.get(name))]
    parts.append("## Bodies of requests\n\n" + table(("body", "fields", "explained in"), brief))
    for name in taken:
        if name in _EXPLAINED:
            continue
        text = f"{about}\n\n" if (about := api_page.about(known[name])) else ""
        parts.append(f"### {name}\n\n{text}{_fields(known[name])}")
    return "\n".join(parts)


def _taken(operations: Iterable[Operation], known: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of the schemas of requests, and of the schemas that these refer to."""
    names = list(dict.fromkeys(each.body for each in operations if each.body))

    def add(name: str) -> str:
        if name not in names:
            names.append(name)
        return name

    for name in names:  # the list grows meanwhile
        list(api_page.fields(known[name], add))
    return names


def _rows(operations: Iterable[Operation]) -> list[tuple[str, ...]]:
    """Return a table's rows. Methods of one path that do the same share a row, and so do paths that do the same."""
    methods: dict[tuple[str, ...], list[str]] = {}
    for each in operations:
        body = (_EXPLAINED.get(each.body) or _linked(each.body)) if each.body else ", ".join(each.takes)
        answer = ", ".join(kind for kind in each.gives if kind != "application/json")
        methods.setdefault((each.path, each.summary, each.scope or "-", body, answer), []).append(each.method)
    paths: dict[tuple[str, ...], list[str]] = {}
    for (path, *rest), names in methods.items():
        paths.setdefault(("`, `".join(names), *rest), []).append(path)
    return [(f"`{names} {'`, `'.join(each)}`", *rest) for (names, *rest), each in paths.items()]


def _brief(schema: Mapping[str, Any]) -> str:
    """Return the names of the fields."""
    return " ".join(
        f"`{each.name}`{' **(r)**' if each.default == 'required' else ''}" for each in api_page.fields(schema, _linked)
    )


def _fields(schema: Mapping[str, Any]) -> str:
    """Return a list of fields. Neighbours of the same type without a meaning share an item."""
    items: dict[tuple[str, ...], list[str]] = {}
    for each in api_page.fields(schema, _linked):
        default = f", default `{each.default}`" if each.default not in ("", "required", '""', "null") else ""
        mark = " **(r)**" if each.default == "required" else ""
        key = (f"{each.value}{default}{mark}", each.about) if not each.about else (each.name, each.value)
        if each.about:
            items[key] = [f"* `{each.name}`: {each.value}{default}{mark}. {each.about}"]
        else:
            items.setdefault(key, []).append(f"`{each.name}`")
    lines = [
        names[0] if names[0].startswith("* ") else f"* {', '.join(names)}: {key[0]}" for key, names in items.items()
    ]
    return "\n".join(lines) + "\n"


def _linked(name: str) -> str:
    return f"[{name}](#{name.lower()})"
