"""The page at ``/docs``: readable without a network, and with everything that the server answers."""

import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import aiohttp
import pytest

from gateway.http import api_page
from tests.gateway.http.api_gateway import api_gateway


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


async def test_the_page_loads_nothing_and_its_links_lead_somewhere(served: tuple[str, dict]) -> None:
    page, _ = served
    links = Links(page)
    assert not links.tags & {"script", "link", "img", "iframe"} and "url(" not in page
    assert len(links.ids) == len(set(links.ids))
    assert {to for to in links.to if not to.startswith("#")} == {"/openapi.json"}
    assert {to[1:] for to in links.to if to.startswith("#")} <= set(links.ids)


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
