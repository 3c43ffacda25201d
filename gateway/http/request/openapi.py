"""The OpenAPI 3.1 description of the HTTP application, made from its routes. Pure.

Schemas come from the models that also check the bodies. ``_QUERY`` and ``_STATUS`` add what a route's declaration does
not say. Examples are made from the schemas, so that they always fit them; ``_SAMPLES`` gives the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode

from gateway.http.request.routes import JSON, Route

_REF = "#/components/schemas/"

Parameter = tuple[str, dict[str, Any], str]
"""Name, schema and meaning of a query parameter."""

_TEXT = {"type": "string"}
_TIME = {"type": "string", "examples": ["1795000000", "2026-11-29T12:00:00Z"]}
_CSV: Parameter = ("format", {"type": "string", "enum": ["json", "csv"], "default": "json"}, "Form of the answer.")
_TENANT: Parameter = ("tenant", _TEXT, "Only this tenant, for a key that sees several.")
_SECONDS = {"type": "number", "minimum": 0}
_PLACE = {"type": "string", "examples": ["1795000000.5,VX01"]}


def _limit(default: int, most: int) -> Parameter:
    return "limit", {"type": "integer", "minimum": 1, "maximum": most, "default": default}, "Most entries of a page."


_QUERY: Mapping[tuple[str, str], tuple[Parameter, ...]] = {
    ("GET", "/v1/calls"): (
        ("ended", {"type": "boolean", "default": False}, "true: calls of the call log instead of live ones."),
        ("from", _TEXT, "With `ended`: part of the caller's number."),
        ("to", _TEXT, "With `ended`: part of the called number."),
        ("route", _TEXT, "With `ended`: the route."),
        ("number", _TEXT, "With `ended`: part of either number."),
        ("text", _TEXT, "With `ended`: part of the spoken words."),
        ("outcome", {"type": "string", "enum": ["completed", "failed", "unanswered"]}, "With `ended`: the outcome."),
        ("shortest", _SECONDS, "With `ended`: least length, seconds."),
        ("longest", _SECONDS, "With `ended`: greatest length, seconds."),
        (
            "sort",
            {"type": "string", "enum": ["start", "length", "turns", "wait", "gaps"], "default": "start"},
            "With `ended`: order of the list. `wait`: longest wait for a first packet; `gaps`: their total length.",
        ),
        (
            "order",
            {"type": "string", "enum": ["desc", "asc"], "default": "desc"},
            "With `ended`: greatest first, or least.",
        ),
        ("totals", {"type": "boolean", "default": False}, "With `ended`: true: also sums over all that match."),
        ("since", _TIME, "With `ended`: earliest start, seconds since 1970 or ISO 8601."),
        ("until", _TIME, "With `ended`: latest start, seconds since 1970 or ISO 8601."),
        ("before", _PLACE, "With `ended`: `next` of the page before."),
        _limit(100, 1000),
        _CSV,
    ),
    ("GET", "/v1/usage"): (_TENANT, _CSV),
    ("GET", "/v1/records"): (
        _TENANT,
        ("since", {"type": "number", "minimum": 0}, "Earliest start, seconds since 1970."),
        ("until", {"type": "number", "minimum": 0}, "Latest start, seconds since 1970."),
        ("after", _PLACE, "`next` of the page before."),
        _limit(10_000, 10_000),
        _CSV,
    ),
    ("GET", "/v1/dialogue"): (
        ("route", _TEXT, "Route whose calls the manager takes. Required."),
        ("callSid", _TEXT, "Take only the call with this id of its carrier."),
    ),
    ("POST", "/whip/{route}"): (("callId", _TEXT, "Id that the call gets: `VX` and 32 hexadecimal digits."),),
}
"""(method, path) -> query parameters. Every route also takes ``access_token`` in place of the header."""

_STATUS: Mapping[tuple[str, str], int] = {
    ("POST", "/v1/calls"): 201,
    ("POST", "/v1/calls/{id}/supervise"): 201,
    ("POST", "/v1/rooms/{name}/legs"): 201,
    ("DELETE", "/v1/calls/{id}/supervise/{leg}"): 204,
    ("DELETE", "/v1/rooms/{name}/legs/{leg}"): 204,
    ("POST", "/v1/tokens"): 201,
    ("POST", "/v1/voices"): 201,
    ("POST", "/whip/{route}"): 201,
    ("POST", "/v1/calls/attach"): 202,
    ("POST", "/v1/calls/{id}/messages"): 202,
    ("POST", "/v1/calls/{id}/words"): 202,
    ("DELETE", "/v1/calls/{id}"): 204,
    ("DELETE", "/v1/voices/{voice_id}"): 204,
    ("DELETE", "/v1/calls/expected/{uuid}"): 204,
    ("PATCH", "/whip/{route}/{id}"): 204,
    ("DELETE", "/whip/{route}/{id}"): 204,
    ("OPTIONS", "/whip/{route}"): 204,
    ("OPTIONS", "/whip/{route}/{id}"): 204,
    ("OPTIONS", "/v1/webrtc/offer"): 204,
    ("OPTIONS", "/v1/webrtc/ice"): 204,
    ("POST", "/login"): 303,
    ("GET", "/v1/dialogue"): 101,
    ("GET", "/ws/tts"): 101,
    ("GET", "/v1/calls/{id}/listen"): 101,
    ("GET", "/v1/audio/{id}"): 101,
}
"""(method, path) -> status of success, where it is not 200."""

_MAY_BE_OFF = (("GET", "/v1/calls"), ("GET", "/v1/records"))
"""(method, path) that answer 404 where the configuration keeps nothing to show."""

_ALSO: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("PATCH", "/whip/{route}/{id}"): {
        "200": {
            "description": "ICE restarts: the new credentials and candidates of the server",
            "content": {"application/trickle-ice-sdpfrag": {"schema": {"type": "string"}}},
        }
    },
}
"""(method, path) -> further answers of success."""

_MEANING = {
    101: "The connection is a WebSocket now",
    200: "Done",
    201: "Made",
    202: "Taken",
    204: "Done; there is no content",
    303: "Signed in; the page follows",
    400: "The body or the address cannot be read",
    401: "No key, or an unknown one",
    403: "The key may not do this",
    404: "There is no such thing, or it is another tenant's",
    409: "Not possible now",
    413: "The body is too large",
    415: "The body has another content type",
    422: "A value is wrong; `param` names it",
    429: "Too many; `Retry-After` says when",
    503: "Full, draining, not configured, or without an engine",
}
_CODES = {
    400: "invalid_json", 401: "unauthorized", 403: "forbidden", 404: "not_found", 409: "conflict", 413: "too_large",
    415: "content_type", 422: "invalid", 429: "too_many", 503: "unavailable",
}  # fmt: skip

_SAMPLES: Mapping[str, Any] = {
    "id": "VX0123456789abcdef0123456789abcdef",
    "callId": "VX0123456789abcdef0123456789abcdef",
    "call": "VX0123456789abcdef0123456789abcdef",
    "sessionId": "VX0123456789abcdef0123456789abcdef",
    "callSid": "CA0123456789abcdef0123456789abcdef",
    "uuid": "0b7a5f00-4c3e-4f6e-9a51-2f1d5c6f7a80",
    "from": "+15550100",
    "to": "+15550199",
    "target": "sip:200@pbx.example.com",
    "transferTarget": "+15550199",
    "route": "default",
    "tenant": "acme",
    "text": "Hello, how can I help you?",
    "input": "Hello, how can I help you?",
    "playedText": "Hello, how",
    "queuedText": "can I help you?",
    "transcript": "This is my voice.",
    "voice": "heart",
    "voice_id": "heart",
    "name": "default",
    "language": "en-US",
    "model": "embedded",
    "dialect": "twilio",
    "transport": "twilio",
    "carrier": "twilio",
    "startedAt": 1795000000.5,
    "endedAt": 1795000042.5,
    "created": 1795000000,
    "day": "2026-11-29",
    "version": "0.1.0",
    "status": "ok",
    "folder": "models/cosyvoice3",
    "audio": "UklGRiQAAABXQVZF",
    "sdp": "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\n",
}
"""Name of a field -> value in examples."""


_EXAMPLES: Mapping[str, Any] = {
    "RoomLegBody": {"to": "+15550199", "route": "default"},
    "PlaceCallBody": {"to": "+15550199", "from": "+15550100", "route": "default"},
    "MessageBody": {"type": "text", "token": "Your order has been shipped.", "last": True},
    "SpeechBody": {"text": "Your order has been shipped.", "format": "wav"},
    "OpenAiBody": {"model": "tts-1", "input": "Your order has been shipped.", "voice": "heart"},
}
"""Name of a schema -> example, where only some fields go together."""


def example(schema: Mapping[str, Any], known: Mapping[str, Any], name: str = "", depth: int = 0) -> Any:
    """Return a value that fits a schema.

    Args:
        known: schemas by name, for references.
        name: field that the schema describes.
        depth: number of objects around it. An object in an object has its required fields only.
    """
    if "$ref" in schema:
        of = schema["$ref"].removeprefix(_REF)
        return _EXAMPLES.get(of) or example(known[of], known, name, depth)
    if schema.get("examples"):
        return schema["examples"][0]
    if "const" in schema:
        return schema["const"]
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return example(
            {**choices[0], **{key: schema[key] for key in ("default",) if schema.get(key)}}, known, name, depth
        )
    if "enum" in schema:
        return schema["default"] if schema.get("default") in schema["enum"] else schema["enum"][0]
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        return _object(schema, known, depth)
    if kind == "array":
        items = schema.get("items", {})
        return [example(items, known, name.removesuffix("s"), depth + 1)] if items and depth < 2 else []
    return _scalar(schema, name)


def _object(schema: Mapping[str, Any], known: Mapping[str, Any], depth: int) -> dict[str, Any]:
    required = schema.get("required", ())
    found: dict[str, Any] = {}
    for name, each in schema.get("properties", {}).items():
        if name in required or (depth == 0 and name in _SAMPLES) or (not required and depth == 0 and len(found) < 4):
            found[name] = example(each, known, name, depth + 1)
    return found


def _scalar(schema: Mapping[str, Any], name: str) -> Any:
    kind = schema.get("type")
    if kind == "string" and isinstance(_SAMPLES.get(name), str):
        sample = _SAMPLES[name]
        fits = schema.get("minLength", 0) <= len(sample) <= schema.get("maxLength", len(sample))
        if fits and "pattern" not in schema:
            return sample
    if kind in ("number", "integer") and isinstance(_SAMPLES.get(name), int | float):
        return int(_SAMPLES[name]) if kind == "integer" else _SAMPLES[name]
    if schema.get("default") is not None:
        return schema["default"]
    if kind == "boolean":
        return True
    if kind in ("number", "integer"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        return min(least + 1, schema.get("maximum", least + 1))
    if kind == "string":
        return (
            "x" * schema.get("minLength", 0)
            if schema.get("minLength", 0) > 6
            else "string"[: schema.get("maxLength", 6)]
        )
    return None


def openapi(routes: Sequence[Route], *, version: str) -> dict[str, Any]:
    """Return the description of the routes."""
    schemas: dict[str, Any] = {}
    schemas["Error"] = {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["type", "code", "message"],
                "properties": {name: {"type": "string"} for name in ("type", "code", "message", "param")},
            }
        },
    }
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(_plain(route.path), {})[route.method.lower()] = _operation(route, schemas)
    for methods in paths.values():
        for operation in methods.values():
            for content in _contents(operation):
                schema = content["schema"]
                if schema.keys() & {"$ref", "anyOf"} and "example" not in content:
                    content["example"] = example(schema, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "talkspurt",
            "version": version,
            "description": "Media server for telephone voice bots: calls, speech, voices, models and records.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key of `auth.api_keys`, or a token."},
                "query": {"type": "apiKey", "in": "query", "name": "access_token", "description": "The same key."},
            },
        },
    }


def _contents(operation: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what each content type of the body and of the answers says."""
    for holder in (operation.get("requestBody", {}), *operation["responses"].values()):
        yield from holder.get("content", {}).values()


def _plain(path: str) -> str:
    """Return a path without the patterns of its parameters."""
    return "/".join(f"{{{p[1:-1].split(':')[0]}}}" if p.startswith("{") else p for p in path.split("/"))


def _answered(answer: type[BaseModel] | tuple[type[BaseModel], ...], schemas: dict[str, Any]) -> dict[str, Any]:
    if isinstance(answer, tuple):
        return {"anyOf": [_answered(each, schemas) for each in answer]}
    return _ref(answer, schemas, "serialization")


def _ref(model: type[BaseModel], schemas: dict[str, Any], mode: JsonSchemaMode) -> dict[str, str]:
    schema = model.model_json_schema(ref_template=_REF + "{model}", mode=mode)
    for name, nested in schema.pop("$defs", {}).items():
        schemas.setdefault(name, nested)
    schemas[model.__name__] = schema
    return {"$ref": _REF + model.__name__}


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    path = _plain(route.path)
    types = (route.content_type,) if isinstance(route.content_type, str) else route.content_type
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [
        {
            "name": name, "in": "path", "required": True, "schema": {"type": "string"},
            "example": _SAMPLES.get(name, name),
        }
        for name in names
    ]  # fmt: skip
    for name, schema, about in _QUERY.get((route.method, path), ()):
        required = about.endswith("Required.")
        parameters.append({"name": name, "in": "query", "required": required, "schema": schema, "description": about})
    status = _STATUS.get((route.method, path), 200)
    done: dict[str, Any] = {"description": _MEANING[status]}
    if status not in (101, 204, 303) and not (status == 202 and route.answer is None):
        done["content"] = {
            kind: {"schema": _answered(route.answer, schemas) if route.answer and kind == JSON else _schema(kind)}
            for kind in types
        }
    words = path.replace("{", "").replace("}", "").replace(".", "_").replace("-", "_").strip("/").split("/")
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *filter(None, words)]),
        "summary": route.summary,
        "tags": list(route.tags),
        "parameters": parameters,
        "responses": {
            **_ALSO.get((route.method, path), {}),
            str(status): done,
            **{str(code): _problem(code) for code in sorted(_errors(route))},
        },
    }
    if route.body is not None:
        body = {"schema": _ref(route.body, schemas, "validation")}
        operation["requestBody"] = {"required": True, "content": {kind: dict(body) for kind in route.takes or (JSON,)}}
    # An empty list means that no key is needed, in place of nothing said.
    operation["security"] = [{"key": [route.scope]}, {"query": [route.scope]}] if route.scope is not None else []
    return operation


def _errors(route: Route) -> Iterator[int]:
    """Yield the statuses with which a route may refuse."""
    if route.body is not None:
        yield from (400, 413, 415, 422)
    elif _QUERY.get((route.method, _plain(route.path))):
        yield 422
    if route.scope is not None:
        yield from (401, 403)
    if route.access.owner == "object" or "{" in route.path or (route.method, route.path) in _MAY_BE_OFF:
        yield 404
    if route.method == "POST" and route.access.owner in ("object", "operator"):
        yield 409
    yield from (429, 503)


def _problem(status: int) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"type": kind, "code": _CODES[status], "message": _MEANING[status]}
    content = {"schema": {"$ref": _REF + "Error"}, "example": {"error": error}}
    return {"description": _MEANING[status], "content": {JSON: content}}


def _schema(content_type: str) -> dict[str, Any]:
    """Return the schema of an answer without a model. Generated clients read it as bytes or text."""
    if content_type.startswith("audio/"):
        return {"type": "string", "format": "binary"}
    if content_type == "text/event-stream":
        return {
            "type": "string",
            "description": "Server-sent events; the data of each is one JSON object with a `type`",
        }
    return {"type": "string"} if content_type.startswith(("text/", "application/sdp")) else {}
