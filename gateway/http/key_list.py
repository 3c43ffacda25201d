"""Lists the keys and what they may do, without the keys themselves, for the operator."""

from __future__ import annotations

import time
from typing import Literal

from aiohttp import web

from gateway.config import Scope
from gateway.credentials.api_keys import StoredKey
from gateway.http.request.auth import Authenticator
from gateway.http.request.routes import ApiModel, Route


class KeyView(ApiModel):
    """A key as REST shows it. Times are seconds since the epoch."""

    id: str
    """Identifies the key for people. Empty: a key of the configuration."""
    name: str
    """The purpose of the key, in its owner's words."""
    source: Literal["configuration", "file"]
    """``configuration``: `auth.api_keys`. ``file``: `auth.keys_file`, which ``talkspurt keys`` changes."""
    tenant: str
    scopes: list[Scope]
    requestsPerMinute: int
    callsPerMinute: int
    concurrentCalls: int
    state: Literal["active", "expired", "revoked"]
    createdAt: float | None
    """None: unknown."""
    expiresAt: float | None
    """None: never."""
    lastUsedAt: float | None
    """Last request with the key, or with a browser's token of it. None: there was none since the start of the server.
    With several workers, only those of the worker that answers count."""


class KeyListView(ApiModel):
    """All keys: those of the configuration, then those of the file."""

    required: bool
    """False: no key is needed."""
    changeable: bool
    """True if `auth.keys_file` is set, so that ``talkspurt keys`` makes and revokes keys while the server runs."""
    keys: list[KeyView]


class KeyList:
    """Handler of ``/v1/keys``."""

    def __init__(self, auth: Authenticator) -> None:
        self._auth = auth

    def route(self) -> Route:
        """Return the route for ``make_app``."""
        return Route(
            method="GET", path="/v1/keys", handler=self.list, answer=KeyListView, tags=["keys"],
            summary="The API keys and their rights, without the keys themselves",
        )  # fmt: skip

    async def list(self, request: web.Request) -> web.Response:
        """Return all keys."""
        now = time.time()
        views = []
        for key, scopes, used_at in self._auth.keys():
            stored = key if isinstance(key, StoredKey) else None
            views.append(
                KeyView(
                    id=stored.id if stored else "",
                    name=stored.name if stored else "",
                    source="file" if stored else "configuration",
                    tenant=key.tenant,
                    scopes=sorted(scopes),
                    requestsPerMinute=key.requests_per_minute,
                    callsPerMinute=key.calls_per_minute,
                    concurrentCalls=key.concurrent_calls,
                    state=stored.state(now) if stored else "active",
                    createdAt=stored.created_at if stored else None,
                    expiresAt=stored.expires_at if stored else None,
                    lastUsedAt=used_at,
                )
            )
        view = KeyListView(required=self._auth.required, changeable=self._auth.has_key_file, keys=views)
        return web.json_response(view.model_dump())
