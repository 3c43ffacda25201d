"""Decides who may use ``/``, ``/v1`` and ``/metrics``: API keys of tenants, rate limits, limits of live calls."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aiohttp import web
from pydantic import SecretStr

from gateway.calling.allowance import Allowance
from gateway.config import ApiKey, AuthConfig, RouteConfig, ServerConfig, is_loopback
from gateway.errors import Rejected
from gateway.http.request.routes import Handler, Route
from gateway.listener.forwarded import Proxies
from gateway.listener.source_limit import SourceLimit
from gateway.principal import ANYONE, Principal, principal_of
from gateway.tokens import GRANT, Tokens

COOKIE = "talkspurt_session"
"""Name of the cookie with the token of a browser that has signed in (``gateway.http.pages``). It is HttpOnly and
SameSite=Strict, so a request that another site causes does not carry it."""

_REMEMBERED = 10_000
"""How many addresses that sent unknown keys, and how many keys, are remembered. Each takes a few hundred bytes."""


def source(address: str) -> str:
    """Return what is limited together: an IPv4 address, or the /64 network that an IPv6 customer has at least."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
    return address


class Tenant:
    """One key's counters, and who has the key. Times are monotonic seconds."""

    def __init__(self, key: ApiKey, who: Principal) -> None:
        self.name = key.tenant
        self.who = who
        self.secret = key.key.get_secret_value().encode()
        self._per_minute = key.requests_per_minute
        self.allowance = Allowance(per_minute=key.calls_per_minute, at_once=key.concurrent_calls, whose="this key")
        self._recent: deque[float] = deque()

    def admit(self, now: float) -> None:
        """Count a request in the sliding window.

        Raises:
            Rejected: 429, there were too many.
        """
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
        """Count a speech request while it lasts, beside the calls that the key has placed.

        Raises:
            Rejected: 429, there are too many.
        """
        self.allowance.check_room()
        self.allowance.enter()
        try:
            yield
        finally:
            self.allowance.leave()


TENANT: web.RequestKey[Tenant] = web.RequestKey("tenant", Tenant)
WHO: web.RequestKey[Principal] = web.RequestKey("who", Principal)


class Authenticator:
    """Checks requests for protected routes.

    With keys configured every protected request needs one, or a browser's token that was made with one. Without keys
    the protected routes are open on a loopback listener and, with ``server.insecure``, elsewhere; otherwise they answer
    403.

    Keys cannot be guessed at the speed of the network: an address that has sent too many unknown ones is answered 429,
    and a right one is not told from a wrong one then. What it asked before is answered as before and not counted again:
    a page that is left with an old key uses nothing up, and who shares an address with a client cannot lock it out.
    """

    def __init__(
        self, auth: AuthConfig, server: ServerConfig, routes: Mapping[str, RouteConfig], tokens: Tokens
    ) -> None:
        self._tenants = [Tenant(key, principal_of(key, auth.api_keys, routes)) for key in auth.api_keys]
        self._anyone = Tenant(ApiKey(key=SecretStr("-")), ANYONE)
        self._tokens = tokens
        self._session_s = auth.session_s
        self._by_mark = {tokens.mark(tenant.secret): tenant for tenant in self._tenants or [self._anyone]}
        self._open = server.insecure or is_loopback(server.host)
        self._proxies = Proxies(server.trusted_proxies)
        self._failures = SourceLimit(
            per_s=auth.failures_per_minute / 60, burst=auth.failures_burst, sources=_REMEMBERED
        )
        self._asked: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        """Address and digest of each key. The entry that was unused for longest is forgotten first."""

    def check(self, request: web.Request) -> tuple[Tenant, Principal]:
        """Return the tenant of a request, and who asks. If no keys are required, all requests have the same tenant.

        Raises:
            Rejected: 401, 403 or 429.
        """
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # A browser cannot send headers with a page, a WebSocket or an EventSource.
        token = (given.strip() if scheme.lower() == "bearer" else "") or request.query.get("access_token", "")
        if not self._tenants:
            if self._open:
                return self._granted(token) if token.startswith(GRANT) else (self._anyone, ANYONE)
            raise Rejected(
                "this listener is reachable from outside: configure auth.api_keys or set server.insecure: true",
                status=403, code="auth_not_configured",
            )  # fmt: skip
        if (shown := token or request.cookies.get(COOKIE, "")).startswith(GRANT):
            found, who = self._granted(shown)
        else:
            known = self.tenant(request, token)
            if known is None:
                raise Rejected("Authorization: Bearer KEY is missing or unknown", status=401, code="unauthorized")
            found, who = known, known.who
        found.admit(time.monotonic())
        return found, who

    def session(self, given: str) -> str:
        """Return what the cookie of a browser holds that showed an API key or a token: a token, never the key."""
        if given.startswith(GRANT):
            return given
        return self._tokens.grant(given.encode(), "session", expires=time.time() + self._session_s)

    def _granted(self, token: str) -> tuple[Tenant, Principal]:
        grant = self._tokens.check_grant(token, now=time.time())
        found = self._by_mark.get(grant.key)
        if found is None:
            raise Rejected("the key of this token is no longer configured", status=401, code="unauthorized")
        return found, found.who.granted(grant)

    def tenant(self, request: web.Request, key: str) -> Tenant | None:
        """Return the tenant whose key the request has. An empty key counts as none.

        Raises:
            Rejected: 429, too many unknown keys came from this address.
        """
        if not key:
            return None
        address, now = source(self._proxies.client(request.remote or "", request.headers)), time.monotonic()
        given = key.encode(errors="backslashreplace")
        asked = (address, hashlib.blake2b(given, digest_size=16).digest())
        found = self._owner(given)
        if asked not in self._asked:
            if self._failures.empty(address, now=now):
                raise Rejected(
                    "too many unknown keys came from this address",
                    status=429, code="too_many_failures", retry_after_s=self._failures.wait_s(address, now=now),
                )  # fmt: skip
            if found is None:
                self._failures.take(address, now=now)
            self._asked[asked] = None
            if len(self._asked) > _REMEMBERED:
                self._asked.popitem(last=False)
        self._asked.move_to_end(asked)
        return found

    def _owner(self, given: bytes) -> Tenant | None:
        found = None
        for tenant in self._tenants:
            if hmac.compare_digest(tenant.secret, given):
                found = tenant
        return found

    def guard(self, route: Route) -> Handler:
        """Return the route's handler. If the route wants a scope, the handler first checks who asks and the type of the
        body; the tenant is then in ``request[TENANT]``, who asks is in ``request[WHO]``."""
        handler, scope = route.handler, route.scope
        if scope is None:
            return handler

        async def guarded(request: web.Request) -> web.StreamResponse:
            request[TENANT], request[WHO] = self.check(request)
            request[WHO].check_scope(scope)
            route.check_type(request)
            return await handler(request)

        return guarded
