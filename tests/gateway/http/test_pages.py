"""Pages and their files: types, caching, and who may see them."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from gateway.config import ApiKey, AuthConfig, DialogueConfig, LimitsConfig, RouteConfig, ServerConfig
from gateway.credentials.api_keys import digest
from gateway.http.call_api.route_list import RouteList
from gateway.http.pages import PAGES, Pages
from gateway.http.request import errors
from gateway.http.request.auth import COOKIE, Authenticator
from gateway.limits.limiter import Limiter
from gateway.tokens import Tokens

KEY = "a long random key"
ROUTES = {
    "default": RouteConfig(dialogue=DialogueConfig(script="menu.yaml"), recogniser="embedded"),
    "sales": RouteConfig(dialogue=DialogueConfig(url="wss://bot.internal/secret"), language="de-DE"),
    "call": RouteConfig(),
}


@asynccontextmanager
async def site(
    *keys: str, host: str = "127.0.0.1", secure: bool = False, proxies: tuple[str, ...] = (), **auth_fields: float
) -> AsyncIterator[aiohttp.ClientSession]:
    """The pages on a free port, and a browser's cookie jar in front of them."""
    auth = Authenticator(
        AuthConfig(api_keys=tuple(ApiKey(key=key) for key in keys), **auth_fields),
        ServerConfig(host=host, trusted_proxies=proxies),
        ROUTES,
        Tokens("a secret", lifetime_s=60),
        Limiter(LimitsConfig()),
    )
    app = web.Application(middlewares=[errors.middleware])
    for route in (*Pages(auth, secure=secure).routes(), RouteList(ROUTES).route()):
        app.router.add_route(route.method, route.path, auth.guard(route))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        jar = aiohttp.CookieJar(unsafe=True)  # unsafe: an address, not a name
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}", cookie_jar=jar) as http:
            yield http
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("path", [path for path, name in PAGES.items() if name])
async def test_a_page_loads_nothing_from_elsewhere_and_everything_it_names_is_there(path: str) -> None:
    async with site() as http:
        async with http.get(path) as answer:
            text = await answer.text()
            assert (answer.status, answer.content_type, answer.charset) == (200, "text/html", "utf-8")
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert not re.search(
            r"<script(?! type=\"module\" src=)|<style| style=| on\w+=", text
        )  # the policy forbids them
        named = re.findall(r'<(?:link|script|img)\b[^>]*(?:src|href)="([^"]+)"', text)
        assert named and all(name.startswith("/") for name in named)
        for name in named:
            async with http.get(name) as answer:
                assert answer.status == 200, name


async def test_files_have_their_types_and_are_asked_for_again_with_their_tag() -> None:
    types = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "html": "text/html"}
    names = [entry.name for entry in files("gateway.web").iterdir() if entry.name.rpartition(".")[2] in types]
    assert {"talkspurt.js", "base.css", "phone.js"} <= set(names)
    async with site(KEY) as http:  # no key: files are the same everywhere
        for name in names:
            async with http.get(f"/web/{name}") as answer:
                assert (answer.status, answer.content_type) == (200, types[name.rpartition(".")[2]])
                assert answer.headers["Cache-Control"] == "no-cache"
                assert answer.headers["Access-Control-Allow-Origin"] == "*"
                tag = answer.headers["ETag"]
            async with http.get(f"/web/{name}", headers={"If-None-Match": f'"old", {tag}'}) as answer:
                assert (answer.status, await answer.read(), answer.headers["ETag"]) == (304, b"", tag)
            async with http.get(f"/web/{name}", headers={"If-None-Match": '"old"'}) as answer:
                assert answer.status == 200


@pytest.mark.parametrize("name", ["__init__.py", "nothing.js", "..%2Fauth.py", "%2Fetc%2Fpasswd", "sub/x.js", ""])
async def test_nothing_else_of_the_disk_is_served(name: str) -> None:
    async with site() as http, http.get(f"/web/{name}") as answer:
        assert answer.status == 404


async def test_who_has_no_key_gets_a_form_and_with_it_the_page_and_the_api() -> None:
    async with site(KEY) as http:
        async with http.get("/phone") as answer:
            assert answer.status == 401 and 'name="key"' in (form := await answer.text())
            assert 'value="/phone"' in form and "alert" not in form
        async with http.get("/v1/routes") as answer:
            assert answer.status == 401
        async with http.post("/login", data={"key": "wrong", "page": "/phone"}) as answer:
            assert answer.status == 401 and 'role="alert"' in await answer.text()
        async with http.post("/login", data={"key": KEY, "page": "/phone"}, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/phone")
            cookie = answer.headers["Set-Cookie"]
            assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Secure" not in cookie
            assert KEY not in unquote(cookie) and "talkspurt_session=tst_" in cookie
        for path in ("/phone", "/v1/routes"):
            async with http.get(path) as answer:
                assert answer.status == 200


async def test_a_sign_in_ends_with_its_time_or_its_key() -> None:
    async with site(KEY, session_s=60) as http:
        async with http.post("/login", data={"key": KEY, "page": "/"}, allow_redirects=False) as answer:
            session = answer.cookies[COOKIE].value
    old = Tokens("a secret", lifetime_s=60).grant(digest(KEY.encode()), "session", expires=time.time() - 1)
    for keys, cookie, status in (((KEY,), session, 200), ((KEY,), old, 401), (("another",), session, 401)):
        async with site(*keys) as http, http.get("/v1/routes", cookies={COOKIE: cookie}) as answer:
            assert answer.status == status
    async with site() as http, http.get("/", cookies={COOKIE: old}) as answer:  # no keys: as without a cookie
        assert answer.status == 200
    async with site(KEY) as http, http.get("/v1/routes", cookies={COOKIE: KEY}) as answer:
        assert answer.status == 401, "a cookie of before holds the key"


async def test_a_key_in_the_address_moves_into_the_cookie() -> None:
    async with site(KEY, secure=True) as http:
        async with http.get("/phone", params={"access_token": KEY}, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/phone")
            assert "Secure" in answer.headers["Set-Cookie"]
        async with http.get("/phone", params={"access_token": "wrong"}) as answer:
            assert answer.status == 401 and KEY not in await answer.text()


# Guessing keys.


@pytest.fixture
def few_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.request.auth.FAILURES_AT_ONCE", 3)
    monkeypatch.setattr("gateway.http.request.auth.FAILURES_PER_MINUTE", 0.1)


async def tried(http: aiohttp.ClientSession, key: str, *, form: bool = False, source: str = "") -> int:
    """Status of a request with this key, by the form or as the API takes it."""
    http.cookie_jar.clear()
    headers = {"X-Forwarded-For": source} if source else {}
    if form:
        data = {"key": key, "page": "/phone"}
        async with http.post("/login", data=data, headers=headers, allow_redirects=False) as answer:
            return answer.status
    async with http.get("/v1/routes", headers={"Authorization": f"Bearer {key}", **headers}) as answer:
        return answer.status


@pytest.mark.parametrize("form", [True, False], ids=["form", "api"])
@pytest.mark.usefixtures("few_guesses")
async def test_an_address_may_try_so_many_keys_and_then_not_even_the_right_one(
    form: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = 303 if form else 200
    async with site(KEY) as http:
        assert [await tried(http, f"guess {n}", form=form) for n in range(6)] == [401] * 3 + [429] * 3
        assert await tried(http, KEY, form=form) == await tried(http, "guess 9", form=not form) == 429
        async with http.post("/login", data={"key": KEY, "page": "/phone"}) as answer:
            assert answer.status == 429 and 0 < int(answer.headers["Retry-After"]) <= 600
            assert 'role="alert"' in await answer.text() and not answer.cookies
        async with http.get("/v1/routes", headers={"Authorization": f"Bearer {KEY}"}) as answer:
            assert (await answer.json())["error"]["code"] == "too_many_failures"
            assert 0 < int(answer.headers["Retry-After"]) <= 600
    monkeypatch.setattr("gateway.http.request.auth.FAILURES_PER_MINUTE", 1e6)  # and soon it may try again
    async with site(KEY) as http:
        assert 429 not in [await tried(http, f"guess {n}", form=form) for n in range(20)]
        assert await tried(http, KEY, form=form) == good


@pytest.mark.usefixtures("few_guesses")
async def test_success_is_not_counted_and_a_key_that_worked_goes_on_working() -> None:
    async with site(KEY) as http:
        assert [await tried(http, KEY) for _ in range(10)] == [200] * 10
        assert [await tried(http, f"guess {n}") for n in range(5)] == [401] * 3 + [429] * 2
        assert await tried(http, KEY) == 200 and await tried(http, KEY, form=True) == 303


@pytest.mark.usefixtures("few_guesses")
async def test_the_same_old_key_over_and_over_uses_nothing_up() -> None:
    async with site(KEY) as http:
        assert [await tried(http, "of last year") for _ in range(10)] == [401] * 10
        async with http.get("/v1/routes") as answer:  # and no key at all is no guess
            assert answer.status == 401
        assert await tried(http, KEY) == 200


@pytest.mark.usefixtures("few_guesses")
async def test_addresses_are_told_apart_behind_a_trusted_proxy_only() -> None:
    async with site(KEY, proxies=("127.0.0.0/8",)) as http:
        assert [await tried(http, f"guess {n}", source="192.0.2.1") for n in range(4)] == [401] * 3 + [429]
        assert await tried(http, KEY, source="192.0.2.2") == 200
        inside = [f"2001:db8:1:2::{n}" for n in range(1, 5)]  # one customer's /64
        assert [await tried(http, f"try {n}", source=host) for n, host in enumerate(inside)] == [401] * 3 + [429]
        assert await tried(http, KEY, source="2001:db8:1:3::1") == 200
    async with site(KEY) as http:
        assert [await tried(http, f"guess {n}", source=f"192.0.2.{n}") for n in range(4)] == [401] * 3 + [429]


async def test_what_is_remembered_of_guessers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.request.auth._REMEMBERED", 4)
    monkeypatch.setattr("gateway.http.request.auth.FAILURES_AT_ONCE", 1000)
    auth = Authenticator(
        AuthConfig(api_keys=(ApiKey(key=KEY),)),
        ServerConfig(),
        ROUTES,
        Tokens(None, lifetime_s=60),
        Limiter(LimitsConfig()),
    )
    request = make_mocked_request("GET", "/")
    assert [auth.holder(request, f"guess {number}") for number in range(100)] == [None] * 100
    assert len(auth._asked) == 4


@pytest.mark.parametrize("page", ["https://elsewhere.example/", "//elsewhere.example", "/v1/calls", ""])
async def test_signing_in_leads_to_a_page_of_ours_only(page: str) -> None:
    async with site(KEY) as http:
        async with http.post("/login", data={"key": KEY, "page": page}, allow_redirects=False) as answer:
            assert answer.status == 422 and "Set-Cookie" not in answer.headers


async def test_beyond_loopback_without_keys_there_is_no_page() -> None:
    async with site(host="0.0.0.0") as http, http.get("/phone") as answer:
        assert answer.status == 403 and (await answer.json())["error"]["code"] == "auth_not_configured"


async def test_routes_are_listed_without_their_secrets() -> None:
    async with site() as http, http.get("/v1/routes") as answer:
        body: dict[str, Any] = await answer.json()
    plain = {"tenant": "", "voice": "", "recording": False}
    assert body == {
        "routes": [
            {"name": "default", "dialogue": "script", "language": "en-US", "recogniser": True, **plain},
            {"name": "sales", "dialogue": "dial-out", "language": "de-DE", "recogniser": False, **plain},
            {"name": "call", "dialogue": "dial-in", "language": "en-US", "recogniser": False, **plain},
        ]
    }
