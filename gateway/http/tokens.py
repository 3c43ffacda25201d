"""``POST /v1/tokens``: a short-lived token for a browser, so that no page needs an API key."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

from aiohttp import web
from pydantic import ConfigDict, Field

from gateway.call.directory import Directory
from gateway.call.session import Session
from gateway.config import TOKEN_MAX_S, AuthConfig, RouteConfig, Scope
from gateway.errors import Rejected
from gateway.http.request.auth import TENANT, WHO, Authenticator
from gateway.http.request.routes import ApiModel, Route

_NEEDED_SCOPES: Mapping[str, Scope] = {"call": "browser", "read": "read", "lead": "calls"}
"""Scope of a token -> the scope that the key needs to make it."""


class TokenBody(ApiModel):
    """Body of `POST /v1/tokens`."""

    model_config = ConfigDict(extra="forbid")

    scope: Literal["call", "read", "lead"]
    """``call``: call the route. ``lead``: also speak as the dialogue manager of that call, on its data channel.
    ``read``: see the route's calls and events."""
    route: str = "default"
    """The only route of the token."""
    call: str = ""
    """With ``read``: the only call of the token, whose route is then used. Empty: all calls of the route."""
    ttl_s: int | None = Field(None, gt=0)
    """Lifetime of the token, seconds. Default: ``auth.token_s``."""


class TokenView(ApiModel):
    """A token for a browser, used like an API key."""

    token: str
    scope: str
    route: str
    call: str
    expiresInS: int


class BrowserTokens:
    """The handler."""

    def __init__(
        self,
        auth: AuthConfig,
        routes: Mapping[str, RouteConfig],
        authenticator: Authenticator,
        directory: Directory[Session],
    ) -> None:
        self._auth = auth
        self._routes = routes
        self._authenticator = authenticator
        self._directory = directory

    def route(self) -> Route:
        """Return the route for ``make_app``."""
        return Route(
            method="POST", path="/v1/tokens", handler=self.make, summary="A token for a browser",
            body=TokenBody, answer=TokenView, tags=["webrtc"],
        )  # fmt: skip

    async def make(self, request: web.Request) -> web.Response:
        """Make a token with a part of the rights of the client's key."""
        body, who = TokenBody.from_json(await request.read()), request[WHO]
        if who.token:
            raise Rejected("a token cannot make tokens, expected an API key", status=403, code="missing_scope")
        who.check_scope(_NEEDED_SCOPES[body.scope])
        route, ttl_s = body.route, body.ttl_s or self._auth.token_s
        if body.call:
            if body.scope != "read":
                raise Rejected(f"call needs scope read, got {body.scope}", status=422, code="invalid_body",
                               param="call")  # fmt: skip
            session = self._directory.get(body.call)
            if session is None or not who.sees_call(session.call.route, body.call):
                raise Rejected(f"no live call {body.call[:40]!r}", status=404, code="unknown_call", param="call")
            route = session.call.route
        who.check_route(route, self._routes)
        if ttl_s > TOKEN_MAX_S:
            raise Rejected(
                f"ttl_s is {ttl_s}, expected at most {TOKEN_MAX_S}",
                status=422, code="invalid_body", param="ttl_s",
            )  # fmt: skip
        now = time.time()
        ttl_s = int(min(ttl_s, who.expires - now))
        token = self._authenticator.grant(
            request[TENANT], who, body.scope, expires=now + ttl_s, route=route, call=body.call
        )
        view = TokenView(token=token, scope=body.scope, route=route, call=body.call, expiresInS=ttl_s)
        return web.json_response(view.model_dump(), status=201, headers={"Cache-Control": "no-store"})
