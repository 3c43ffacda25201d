"""The page at ``/docs``: readable without a network, and with everything that the server answers."""

import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import aiohttp
import jsonschema
import pytest

from gateway.http import api_page
from gateway.http.request.routes import ApiModel
from tests.gateway.http.api_gateway import api_gateway

FILES = ("base.css", "docs.css", "docs.js", "icon.svg")
FREE = ("/openapi.json", "/v1/calls/attach")
"""Operations whose answer has no model: the description itself, and an echo of the request."""


class Links(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.to: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("href", "src"):
                self.to.append(value or "")
            elif name == "id":
                self.ids.append(value or "")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[str, dict]]:
    async with api_gateway(tmp_path) as (_, _, address), aiohttp.ClientSession(address) as http:
        async with http.get("/docs") as answer:
            assert answer.content_type == "text/html"
            page = await answer.text()
        async with http.get("/openapi.json") as answer:
            yield page, await answer.json()


async def test_the_page_loads_files_of_this_server_only_and_its_links_lead_somewhere(served: tuple[str, dict]) -> None:
    page, _ = served
    links = Links(page)
    assert not links.tags & {"iframe", "style"} and "url(" not in page and "<script>" not in page
    assert len(links.ids) == len(set(links.ids))
    others = {to for to in links.to if not to.startswith("#")}
    assert others == {"/openapi.json", "/", "/phone", *(f"/web/{name}" for name in FILES)}
    assert {to[1:] for to in links.to if to.startswith("#")} <= set(links.ids)


async def test_a_browser_without_a_key_gets_the_form(tmp_path: Path) -> None:
    auth = {"api_keys": [{"key": "secret-of-the-test"}]}
    jar = aiohttp.CookieJar(unsafe=True)  # which takes cookies of an address without a name
    async with (
        api_gateway(tmp_path, auth=auth) as (_, _, address),
        aiohttp.ClientSession(address, cookie_jar=jar) as http,
    ):
        async with http.get("/docs") as answer:
            assert answer.status == 401 and 'action="/login"' in await answer.text()
        form = {"key": "secret-of-the-test", "page": "/docs"}
        async with http.post("/login", data=form, headers={"Origin": address}) as answer:
            assert answer.status == 200 and "talkspurt API" in await answer.text()


async def test_every_example_fits_its_schema_and_every_body_and_answer_has_one(served: tuple[str, dict]) -> None:
    _, description = served
    names = set()
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            names.add(operation["operationId"])
            assert "security" in operation, path
            for holder in (operation.get("requestBody", {}), *operation["responses"].values()):
                for kind, content in holder.get("content", {}).items():
                    if content["schema"].keys() & {"$ref", "anyOf"}:
                        whole = {**content["schema"], "components": description["components"]}
                        jsonschema.Draft202012Validator(whole).validate(content["example"])
                    else:
                        assert kind != "application/json" or not operation["security"] or path in FREE, (method, path)
    assert len(names) == sum(len(methods) for methods in description["paths"].values())


async def test_examples_of_bodies_are_taken_by_the_models_that_check_them(served: tuple[str, dict]) -> None:
    _, description = served
    bodies = {model.__name__: model for model in ApiModel.__subclasses__()}
    checked = 0
    for methods in description["paths"].values():
        for operation in methods.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                model = bodies.get(content["schema"]["$ref"].rpartition("/")[2])
                if model is not None:
                    model.model_validate(content["example"])
                    checked += 1
    assert checked >= 8


async def test_the_page_has_every_operation_and_every_field(served: tuple[str, dict]) -> None:
    page, description = served
    text = re.sub(r"<[^>]+>", "", page)
    for path, methods in description["paths"].items():
        for method in methods:
            assert method == "options" or f"{method.upper()} {path}" in text
    for name, schema in description["components"]["schemas"].items():
        section = page.partition(f'<h3 id="{name}">')[2].partition("<h3")[0]
        for field in schema.get("properties", ()):
            assert f"<code>{field}</code>" in section, (name, field)
    assert {"/docs", "/metrics"} <= set(description["paths"])


async def test_fields_are_explained_by_the_docstrings_of_their_models(served: tuple[str, dict]) -> None:
    page, description = served
    state = description["components"]["schemas"]["CallView"]["properties"]["state"]
    assert "draining" in state["description"]
    assert "all audio is made" in page


def test_what_a_description_says_cannot_become_markup() -> None:
    operation = {"summary": "a <b> & `c`", "tags": ["new"], "responses": {"200": {"content": {"text/plain": {}}}}}
    description = {"info": {"version": "1"}, "paths": {"/x": {"get": operation}}, "components": {"schemas": {}}}
    page = api_page.page(description)
    assert "a &lt;b&gt; &amp; <code>c</code>" in page and '<h2 id="new">New</h2>' in page
