"""The HTML page ``/docs``, which describes the HTTP API. Pure.

The page is made from the OpenAPI description (``gateway.http.request.routes``) when the server starts. It loads nothing
and runs no script. ``talkspurt.reference`` makes ``docs/http-api.md`` from the same operations.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_GROUPS = ("calls", "dialogue", "webrtc", "speech", "voices", "models", "webhooks", "server", "pages")
"""The first groups of operations; others follow. An operation without a tag belongs to ``server``."""

_REF = "#/components/schemas/"
_BOUNDS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "maxProperties": "at most {} entries",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One route with one method."""

    method: str
    path: str
    summary: str
    group: str
    scope: str
    """The scope that a key needs. Empty: the route needs no key."""
    body: str
    """Name of the schema of the request's body. Empty: no body, or no schema."""
    takes: tuple[str, ...]
    """Content types of the request's body."""
    answer: str
    """Name of the schema of the answer. Empty: none."""
    gives: tuple[str, ...]
    """Content types of the answer."""


@dataclass(frozen=True, slots=True)
class ApiField:
    """One field of a schema."""

    name: str
    value: str
    """Type and bounds, with the names of schemas as links."""
    default: str
    """The default as JSON, ``required``, or empty for a field of an answer without a default."""
    about: str


def operations(description: Mapping[str, Any]) -> list[Operation]:
    """Return all operations by group, without CORS preflights (OPTIONS)."""
    found = [
        Operation(
            method=method.upper(),
            path=path,
            summary=each["summary"],
            group=(each["tags"] or ["server"])[0],
            scope="".join(next(iter(each.get("security", [{}])[0].values()), [])),
            body=_schema(body := each.get("requestBody", {}).get("content", {})),
            takes=tuple(body),
            answer=_schema(answer := each["responses"]["200"]["content"]),
            gives=tuple(answer),
        )
        for path, methods in description["paths"].items()
        for method, each in methods.items()
        if method != "options"
    ]
    return sorted(found, key=lambda each: (*_GROUPS, each.group).index(each.group))


def schemas(description: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the schemas that have fields, by name. References to others (enumerations) are replaced by these."""
    found = description["components"]["schemas"]

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(each) for each in value]
        if not isinstance(value, dict):
            return value
        other = found.get(str(value.get("$ref", "")).removeprefix(_REF), {})
        if other and not other.get("properties"):
            return other
        return {key: whole(each) for key, each in value.items()}

    return {name: whole(each) for name, each in found.items() if each.get("properties")}


def fields(schema: Mapping[str, Any], link: Callable[[str], str]) -> Iterator[ApiField]:
    """Yield the fields of a schema. ``link`` formats a reference to another schema."""
    required = schema.get("required", ())
    for name, each in schema["properties"].items():
        default = json.dumps(each["default"]) if "default" in each else "required" if name in required else ""
        yield ApiField(name, _value(each, link), default, about(each))


def about(schema: Mapping[str, Any]) -> str:
    """Return the description of a schema or field as one line."""
    return re.sub(r"\s+", " ", schema.get("description", "")).replace("``", "`").strip()


def page(description: Mapping[str, Any]) -> str:
    """Return the whole page of ``/docs``."""
    info, found = description["info"], operations(description)
    groups = list(dict.fromkeys(each.group for each in found))
    parts = [
        f"<h1>talkspurt {_text(info['version'])}: HTTP API</h1>",
        '<p>For programs: <a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1). A key goes into the header '
        "<code>Authorization: Bearer KEY</code>; <em>scope</em> is the right that it needs. Every answer has a header "
        "<code>X-Request-Id</code>. Media WebSockets of carriers are at <code>/media/{dialect}[/{route}]</code>.</p>",
        "<nav>" + " ".join(f'<a href="#{name}">{name}</a>' for name in (*groups, "schemas")) + "</nav>",
    ]
    for group in groups:
        rows = [_operation_row(each) for each in found if each.group == group]
        head = ("operation", "does", "scope", "body", "answer")
        parts.append(f'<h2 id="{group}">{group.capitalize()}</h2>' + _table(head, rows))
    parts.append('<h2 id="schemas">Schemas</h2>')
    for name, schema in schemas(description).items():
        rows = [
            (_code(each.name), each.value, _code(each.default), _marked(each.about)) for each in fields(schema, _linked)
        ]
        parts.append(f'<h3 id="{name}">{name}</h3><p>{_marked(about(schema))}</p>')
        parts.append(_table(("field", "value", "default", "meaning"), rows))
    return _PAGE % "\n".join(parts)


def _schema(content: Mapping[str, Any]) -> str:
    """Return the name of the schema that all content types share."""
    first: Mapping[str, Any] = next(iter(content.values()), {})
    return str(first.get("schema", {}).get("$ref", "")).removeprefix(_REF)


def _value(schema: Mapping[str, Any], link: Callable[[str], str]) -> str:
    if "$ref" in schema:
        return link(schema["$ref"].removeprefix(_REF))
    if "anyOf" in schema:
        return " or ".join(_value(each, link) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type", "anything")
    if kind == "array":
        kind = f"list of {_value(schema['items'], link)}"
    elif kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        kind = f"object of {_value(schema['additionalProperties'], link)}"
    bounds = [said.format(schema[name]) for name, said in _BOUNDS.items() if name in schema]
    return f"{kind} ({', '.join(bounds)})" if bounds else str(kind)


def _operation_row(each: Operation) -> tuple[str, ...]:
    return (
        f"<code><b>{each.method}</b> {_text(each.path)}</code>",
        _marked(each.summary),
        _text(each.scope or "-"),
        _linked(each.body) if each.body else _text(", ".join(each.takes)),
        _linked(each.answer) if each.answer else _text(", ".join(each.gives)),
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def row(cells: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    return f'<div class="wide" tabindex="0"><table><thead>{row(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def _linked(name: str) -> str:
    return f'<a href="#{name}">{name}</a>'


def _text(text: str) -> str:
    return html.escape(text, quote=False)


def _code(text: str) -> str:
    return f"<code>{_text(text)}</code>" if text else ""


def _marked(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _text(text))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>talkspurt: HTTP API</title>
<style>
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1rem }
h2 { margin-top: 2.5rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%% }
th, td { border-bottom: 1px solid #8886; padding: .35rem .7rem .35rem 0; text-align: left; vertical-align: top }
:target { background: #fd08 }
</style></head><body><main>
%s
</main></body></html>
"""
