"""The HTML page ``/docs``, which describes the HTTP API. Pure.

The page is made from the OpenAPI description (``gateway.http.request.openapi``) when the server starts. It loads files
of this server only, and can be read without its script. ``talkspurt.reference`` makes ``docs/http-api.md`` from the
same operations.
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
            scope="".join(next(iter(next(iter(each.get("security", [])), {}).values()), [])),
            body=_schema(body := each.get("requestBody", {}).get("content", {})),
            takes=tuple(body),
            answer=_schema(answer := _done(each).get("content", {})),
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
    """Return the whole page of ``/docs``. ``gateway/web/docs.js`` adds the trial of an operation."""
    info, found = description["info"], operations(description)
    groups = list(dict.fromkeys(each.group for each in found))
    parts = [
        f"<p>HTTP interface of talkspurt {_text(info['version'])}. For programs: "
        '<a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1). A key goes into the header '
        "<code>Authorization: Bearer KEY</code>; <em>scope</em> is the right that it needs. Every answer has a header "
        "<code>X-Request-Id</code>. Media WebSockets of carriers are at <code>/media/{dialect}[/{route}]</code>.</p>",
        '<nav class="groups" aria-label="Groups">'
        + " ".join(f'<a href="#{name}">{name}</a>' for name in (*groups, "schemas"))
        + "</nav>",
    ]
    for group in groups:
        parts.append(f'<h2 id="{group}">{group.capitalize()}</h2>')
        for each in (each for each in found if each.group == group):
            parts.append(_operation(each, description["paths"][each.path][each.method.lower()]))
    parts.append('<h2 id="schemas">Schemas</h2>')
    for name, schema in schemas(description).items():
        rows: list[tuple[str, ...]] = [
            (_code(each.name), each.value, _code(each.default), _marked(each.about)) for each in fields(schema, _linked)
        ]
        parts.append(f'<section class="card"><h3 id="{name}">{name}</h3><p>{_marked(about(schema))}</p>')
        parts.append(_table(("field", "value", "default", "meaning"), rows) + "</section>")
    return _PAGE % "\n".join(parts)


def _operation(each: Operation, described: Mapping[str, Any]) -> str:
    """Return an operation: its line, which opens its parameters, its trial, its curl line and its answers."""
    name = described.get("operationId", "")
    scope = f"Needs a key with the scope <code>{_text(each.scope)}</code>." if each.scope else "Needs no key."
    rows: list[tuple[str, ...]] = [
        (
            f"<code>{status}</code>",
            _marked(answer.get("description", "")),
            _answer(answer.get("content", {})),
        )
        for status, answer in described["responses"].items()
    ]
    return (
        f'<details class="card operation" id="{_text(name)}"><summary><b class="method">{each.method}</b> '
        f"<code>{_text(each.path)}</code> <span>{_marked(each.summary)}</span></summary>"
        f"<p>{scope}</p>{_trial(each, described, name)}<h3>Answers</h3>"
        f"{_table(('status', 'meaning', 'content'), rows)}</details>"
    )


def _trial(each: Operation, described: Mapping[str, Any], name: str) -> str:
    """Return the form that tries an operation, filled in with the examples, and its curl line."""
    inputs = []
    for parameter in described.get("parameters", ()):
        ident = f"{name}-{parameter['name']}"
        told = _marked(parameter.get("description", "part of the path"))
        value = _attribute(str(parameter.get("example", "")))
        inputs.append(
            f'<label for="{ident}">{_text(parameter["name"])} <span class="muted">{told}</span></label>'
            f'<input id="{ident}" name="{_attribute(parameter["name"])}" data-in="{parameter["in"]}" value="{value}">'
        )
    bodies = described.get("requestBody", {}).get("content", {})
    taken = bodies.get("application/json", {})
    text = json.dumps(taken["example"], indent=2) if "example" in taken else ""
    if text:
        link = f" ({_linked(each.body)})" if each.body else ""
        inputs.append(
            f'<label for="{name}-body">body{link}</label>'
            f'<textarea id="{name}-body" name="body" rows="{text.count(chr(10)) + 2}" spellcheck="false">'
            f"{_text(text)}</textarea>"
        )
    can_try = "101" not in described["responses"]
    button = '<button class="primary" type="submit">Try it</button>' if can_try else ""
    return (
        f'<form class="stack" data-method="{each.method}" data-path="{_attribute(each.path)}">{"".join(inputs)}'
        f'<pre class="curl" tabindex="0">{_text(curl(each, text))}</pre><p>{button}</p>'
        '<pre class="outcome" tabindex="0" role="status" hidden></pre></form>'
    )


def curl(each: Operation, body: str) -> str:
    """Return the command that asks for an operation. A path's parameters stay in braces, which curl leaves with -g."""
    parts = [
        "curl -g" + ("" if each.method == "GET" else f" -X {each.method}") + f" 'http://127.0.0.1:8080{each.path}'"
    ]
    if each.scope:
        parts.append('-H "Authorization: Bearer $TALKSPURT_API_KEY"')
    if body:
        one_line = json.dumps(json.loads(body)).replace("'", "'\\''")
        parts += ["-H 'Content-Type: application/json'", f"-d '{one_line}'"]
    return " \\\n  ".join(parts)


def _answer(content: Mapping[str, Any]) -> str:
    """Return the content types of an answer, its schema and its example."""
    said = []
    for kind, each in content.items():
        names = _names(each.get("schema", {}))
        said.append(f"{_text(kind)} {' or '.join(map(_linked, names))}")
        if "example" in each and names != ["Error"]:
            said.append(f'<pre tabindex="0">{_text(json.dumps(each["example"], indent=2))}</pre>')
    return "<br>".join(said).replace("<br><pre", "<pre")


def _attribute(text: str) -> str:
    return html.escape(text, quote=True)


def _done(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the response of success."""
    return next(each for status, each in operation["responses"].items() if status < "4")


def _schema(content: Mapping[str, Any]) -> str:
    """Return the name of the first schema, which all content types share."""
    first: Mapping[str, Any] = next(iter(content.values()), {})
    return "".join(_names(first.get("schema", {}))[:1])


def _names(schema: Mapping[str, Any]) -> list[str]:
    """Return the names of the schemas that a body or an answer may have."""
    return [each["$ref"].removeprefix(_REF) for each in (schema, *schema.get("anyOf", ())) if "$ref" in each]


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
    if schema.get("minLength") == 1:
        bounds[0] = "not empty"
    if {"minimum", "maximum"} <= schema.keys():
        bounds = [f"{schema['minimum']:g} to {schema['maximum']:g}"]
    return f"{kind} ({', '.join(bounds)})" if bounds else str(kind)


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
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>talkspurt: HTTP API</title>
<link rel="icon" href="/web/icon.svg">
<link rel="stylesheet" href="/web/base.css">
<link rel="stylesheet" href="/web/docs.css">
<script type="module" src="/web/docs.js"></script>
<body class="docs">
<header>
<h1 class="brand"><img src="/web/icon.svg" alt="" width="24" height="24"> talkspurt API</h1>
<nav aria-label="Elsewhere"><a href="/">Console</a> <a href="/phone">Phone</a></nav>
</header>
<main>
%s
</main>
</body>
</html>
"""
