"""The web pages and the files that they load. All are read once from the package and served from memory.

Files below ``/web/`` are public, because they are the same in every installation; pages of other origins may import
``talkspurt.js``. The pages need a key wherever ``/v1`` does. A browser cannot send ``Authorization`` with a page, an
EventSource or a script. So a browser without a key gets a form, and for its key a cookie with a token that is valid for
some hours. Scripts cannot read the cookie, and other sites cannot use it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath

from aiohttp import ETag, web

from gateway.errors import Rejected
from gateway.http.request import errors
from gateway.http.request.auth import COOKIE, Authenticator
from gateway.http.request.forms import read_form
from gateway.http.request.routes import FORM, Route

PAGES: Mapping[str, str] = {"/": "console.html", "/phone": "phone.html", "/docs": ""}
"""Path -> file of ``gateway/web``. Empty: a page that ``publish`` adds."""

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

_LOGIN = "login.html"
_PROBLEM = "<!-- problem -->"
_ASKED_PAGE = "ASKED-PAGE"
"""Placeholder in the form for the requested page."""
_UNKNOWN = "Unknown key."

_HEADERS = {
    # Browsers revalidate each time and get 304, so an update never arrives in parts.
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # without it, browsers post our sign-in form with the origin "null"
}
_PAGE_HEADERS = {
    **_HEADERS,
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'self'"
    ),
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    content_type: str
    etag: str


def _read() -> dict[str, _File]:
    """Return the package's files for browsers by name."""
    found = {}
    for entry in files("gateway.web").iterdir():
        content_type = _TYPES.get(PurePath(entry.name).suffix)
        if content_type is not None:
            body = entry.read_bytes()
            found[entry.name] = _File(body, content_type, hashlib.sha256(body).hexdigest()[:32])
    return found


class Pages:
    """Handlers of the pages, their files and the sign-in form.

    Args:
        secure: True: the cookie is sent over TLS only.
    """

    def __init__(self, auth: Authenticator, *, secure: bool) -> None:
        self._auth = auth
        self._secure = secure
        self._files = _read()
        self._made: dict[str, _File] = {}

    def publish(self, path: str, text: str) -> None:
        """Add a page that is made when the server starts."""
        body = text.encode()
        self._made[path] = _File(body, "text/html", hashlib.sha256(body).hexdigest()[:32])

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``. Pages check the key themselves, since they show a form to a browser
        without one."""
        return [
            *(
                Route(
                    method="GET", path=path, handler=self.page, summary="A page", content_type="text/html",
                    tags=["pages"],
                )
                for path in PAGES
            ),
            Route(
                method="GET", path="/web/{name}", handler=self.file, summary="A file that pages load",
                content_type="text/javascript", tags=["pages"],
            ),
            Route(
                method="POST", path="/login", handler=self.login, takes=(FORM,), summary="The sign-in form",
                content_type="text/html", tags=["pages"],
            ),
        ]  # fmt: skip

    async def page(self, request: web.Request) -> web.StreamResponse:
        """Return a page, or the sign-in form. A key or token in the address (``access_token``) is exchanged for the
        cookie."""
        try:
            self._auth.check(request)
        except Rejected as exc:
            if exc.status != 401:
                raise
            return self._form(request.path, _UNKNOWN if "access_token" in request.query else "")
        token = request.query.get("access_token")
        if token:
            return self._enter(request.path, token)
        page = self._made.get(request.path) or self._files[PAGES[request.path]]
        return self._answer(request, page, _PAGE_HEADERS)

    async def file(self, request: web.Request) -> web.StreamResponse:
        """Return a file that pages load."""
        name = request.match_info["name"]
        found = self._files.get(name)
        if found is None:
            raise Rejected(f"no file {name[:40]!r}", status=404, code="unknown_file", param="name")
        return self._answer(request, found, {**_HEADERS, "Access-Control-Allow-Origin": "*"})

    async def login(self, request: web.Request) -> web.StreamResponse:
        """Exchange the entered key for the cookie, and redirect to the requested page."""
        form = await read_form(request)
        key, page = form.get("key", [""])[0].strip(), form.get("page", [""])[0]
        if page not in PAGES:  # only our own pages, so that the form cannot lead to another site
            raise Rejected(f"no page {page[:40]!r}", status=422, code="unknown_page", param="page")
        try:
            known = self._auth.holder(request, key) is not None
        except Rejected as exc:
            if exc.status == 401:
                return self._form(page, _UNKNOWN)
            answer = self._form(page, "Too many unknown keys from this address. Try again later.", status=exc.status)
            answer.headers["Retry-After"] = errors.retry_after(exc.retry_after_s)
            return answer
        return self._enter(page, key) if known else self._form(page, _UNKNOWN)

    def _enter(self, path: str, key: str) -> web.Response:
        response = web.Response(status=303, headers={"Location": path, "Cache-Control": "no-store"})
        session = self._auth.session(key)
        response.set_cookie(COOKIE, session, httponly=True, samesite="Strict", secure=self._secure, path="/")
        return response

    def _form(self, page: str, problem: str, *, status: int = 401) -> web.Response:
        text = self._files[_LOGIN].body.decode().replace(_ASKED_PAGE, page)
        if problem:
            text = text.replace(_PROBLEM, f'<p role="alert">{problem}</p>')
        return web.Response(
            status=status, text=text, content_type="text/html", headers={**_PAGE_HEADERS, "Cache-Control": "no-store"}
        )

    def _answer(self, request: web.Request, file: _File, headers: Mapping[str, str]) -> web.Response:
        known = request.if_none_match or ()
        if any(tag.value in (file.etag, "*") for tag in known):
            response = web.Response(status=304, headers=headers)
        else:
            charset = "utf-8" if file.content_type.startswith("text/") else None
            response = web.Response(body=file.body, content_type=file.content_type, charset=charset, headers=headers)
        response.etag = ETag(file.etag)
        return response
