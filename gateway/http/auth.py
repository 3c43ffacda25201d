"""Who may use ``/``, ``/v1`` and ``/metrics``: API keys of tenants, with a sliding window and a limit of live calls."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from aiohttp import web
from pydantic import SecretStr

from gateway.config import ApiKey, AuthConfig, ServerConfig
from gateway.errors import Rejected

COOKIE = "talkspurt_key"
"""Holds the key of a browser that has signed in (``gateway.http.pages``): HttpOnly, and SameSite=Strict, so that no
request which another site causes carries it."""


def is_loopback(host: str) -> bool:
    """Whether a listener on ``host`` is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Tenant:
    """One key's counters. Times are monotonic seconds."""

    def __init__(self, key: ApiKey) -> None:
        self.name = key.tenant
        self.secret = key.key.get_secret_value().encode()
        self._per_minute = key.requests_per_minute
        self._concurrent = key.concurrent_calls
        self._recent: deque[float] = deque()
        self._live = 0

    def admit(self, now: float) -> None:
        """Count a request in the sliding window. Raises ``Rejected`` (429)."""
        while self._recent and self._recent[0] <= now - 60:
            self._recent.popleft()
        if len(self._recent) >= self._per_minute:
            raise Rejected(
                f"{self._per_minute} requests a minute are allowed",
                status=429, code="rate_limited", retry_after_s=self._recent[0] + 60 - now,
            )  # fmt: skip
        self._recent.append(now)

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Count a live call or speech request while it lasts. Raises ``Rejected`` (429)."""
        if self._live >= self._concurrent:
            raise Rejected(
                f"{self._concurrent} calls at a time are allowed", status=429, code="too_many_calls", retry_after_s=1
            )
        self._live += 1
        try:
            yield
        finally:
            self._live -= 1


TENANT: web.RequestKey[Tenant] = web.RequestKey("tenant", Tenant)


class Authenticator:
    """Checks requests for protected routes.

    With keys configured every protected request needs one. Without keys the protected routes are open on a loopback
    listener and, with ``server.insecure``, elsewhere; otherwise they answer 403.
    """

    def __init__(self, auth: AuthConfig, server: ServerConfig) -> None:
        self._tenants = [Tenant(key) for key in auth.api_keys]
        self._anyone = Tenant(ApiKey(key=SecretStr("-")))
        self._open = server.insecure or is_loopback(server.host)

    def check(self, request: web.Request) -> Tenant:
        """The request's tenant; where no keys are asked for, one for all. Raises ``Rejected`` (401, 403, 429)."""
        if not self._tenants:
            if self._open:
                return self._anyone
            raise Rejected(
                "this listener is reachable from outside: configure auth.api_keys or set server.insecure: true",
                status=403, code="auth_not_configured",
            )  # fmt: skip
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        token = given.strip() if scheme.lower() == "bearer" else ""
        # A browser cannot send headers with a page, a WebSocket or an EventSource.
        found = self.tenant(token or request.query.get("access_token", "") or request.cookies.get(COOKIE, ""))
        if found is None:
            raise Rejected("Authorization: Bearer KEY is missing or unknown", status=401, code="unauthorized")
        found.admit(time.monotonic())
        return found

    def tenant(self, key: str) -> Tenant | None:
        """Whose key that is."""
        given = key.encode(errors="backslashreplace")
        found = None
        for tenant in self._tenants:
            if hmac.compare_digest(tenant.secret, given):
                found = tenant
        return found

    def guard(
        self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """A handler behind the check; the tenant is in ``request[TENANT]``."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            request[TENANT] = self.check(request)
            return await handler(request)

        return guarded
