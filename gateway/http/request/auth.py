"""Authentication for ``/``, ``/v1`` and ``/metrics``: API keys, JSON Web Tokens, browsers' tokens, and their limits."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path

from aiohttp import web

from gateway.calling.allowance import CountedAllowance
from gateway.config import SCOPES, AuthConfig, KeyRights, RouteConfig, Scope, ServerConfig, is_loopback
from gateway.credentials import api_keys
from gateway.credentials.api_keys import StoredKey, digest
from gateway.credentials.json_web_tokens import Claims, JsonWebTokens, looks_like_one
from gateway.credentials.watched_file import WatchedFile
from gateway.errors import Rejected
from gateway.http.request.rate_limit import STANDINGS
from gateway.http.request.routes import Handler, Route
from gateway.limits.limiter import Limiter, LimitReached
from gateway.limits.quota import QuotaStanding, QuotaWindow
from gateway.listener.forwarded import Proxies
from gateway.listener.passed_on import PassedOn
from gateway.listener.source_limit import SourceLimit, source
from gateway.principal import ANYONE, Principal, principal_of, sole_tenant
from gateway.tokens import GRANT, GrantScope, Tokens

COOKIE = "talkspurt_session"
"""Name of the cookie with the token of a signed-in browser (``gateway.http.pages``). It is HttpOnly and
SameSite=Strict, so a request caused by another site does not carry it."""

_SIGNED = b"jwt"
"""The credential of every JSON Web Token: nothing of a token is kept."""
_NO_KEY = b"-"
"""The credential if no key is required."""

_INDEX_BYTES = 8
"""A key is found by the first bytes of its digest and verified by all of them."""

_MAX_TALLIES = 500
"""Most keys whose calls and speech requests the workers report to each other, about 30 bytes each."""

FAILURES_PER_MINUTE = 6.0
FAILURES_AT_ONCE = 20
"""Unknown keys of one address per minute, on average, and at once; further new keys get 429. A person mistypes a key
less often, and a key cannot be guessed at this rate."""

_REMEMBERED = 10_000
"""Number of addresses and of keys that are remembered, a few hundred bytes each."""


class Tenant:
    """The holder and counters of one key, or of one tenant's JSON Web Tokens. Times are monotonic seconds.

    Args:
        credential: identifies the key to ``Tokens``: its digest, since the key itself is not kept.
        expires_at: the time from which the key is refused, seconds since the epoch.
    """

    def __init__(
        self,
        key: KeyRights,
        who: Principal,
        *,
        limiter: Limiter,
        credential: bytes = _NO_KEY,
        expires_at: float | None = None,
    ) -> None:
        self.name = key.tenant
        self.key = key
        self.who = who
        self.credential = credential
        self._expires_at = expires_at
        self.counted_as = hashlib.blake2b(credential + key.tenant.encode(), digest_size=8).hexdigest()
        """Identifies the counters to other workers."""
        self.allowance = CountedAllowance(
            per_minute=key.calls_per_minute, at_once=key.concurrent_calls, whose="this key"
        )
        self.used_at: float | None = None
        """The last request to this worker, seconds since the epoch. None: there was none since the start."""
        self._recent = QuotaWindow()
        self._limiter = limiter

    def admit(self, now: float) -> QuotaStanding:
        """Count a request in the key's window, and return the window's state.

        Raises:
            LimitReached: 429, too many requests.
        """
        limit = self.key.requests_per_minute
        if self._recent.used(now) >= limit:
            raise LimitReached(
                f"{limit} requests a minute are allowed", wait_s=self._recent.wait_s(1, now),
                standings=(self._recent.standing("key", limit, now),),
            )  # fmt: skip
        self._recent.take(1, now)
        return self._recent.standing("key", limit, now)

    def is_expired(self, now: float) -> bool:
        """Return True if the key has expired. ``now`` is seconds since the epoch."""
        return self._expires_at is not None and self._expires_at <= now

    def check_expiry(self, now: float) -> None:
        """Raise ``Rejected`` (401) if the key has expired. ``now`` is seconds since the epoch."""
        if self.is_expired(now):
            raise Rejected("the key has expired", status=401, code="expired_key")

    @asynccontextmanager
    async def occupied(self) -> AsyncIterator[None]:
        """Count a speech request while it lasts, together with the key's placed calls. If no key is required, only the
        engine limits requests.

        Raises:
            Rejected: 429, too many calls and requests.
        """
        has_share = self.credential != _NO_KEY
        if has_share:
            self.allowance.check_room()
            self.allowance.enter()
        try:
            async with self._limiter.held(self.name, "streams"):
                yield
        finally:
            if has_share:
                self.allowance.leave()

    async def spend(self, characters: int) -> None:
        """Count text to be spoken.

        Raises:
            Rejected: 429, the tenant's limit is reached.
        """
        await self._limiter.take(self.name, characters=characters)


TENANT: web.RequestKey[Tenant] = web.RequestKey("tenant", Tenant)
WHO: web.RequestKey[Principal] = web.RequestKey("who", Principal)
IS_GOOD: web.RequestKey[partial[bool]] = web.RequestKey("is_good", partial[bool])
"""Returns False if the key of a long connection was revoked or has expired since."""


class Authenticator:
    """Checks requests for protected routes.

    With keys configured, every protected request needs one, or a browser's token that was made with one. Without keys
    the protected routes are open on a loopback listener and, with ``server.insecure``, elsewhere; otherwise they answer
    403.

    To slow down guessing, an address that has sent too many unknown keys gets 429 for every new key, right or wrong.
    Keys that the address has sent before are answered as before and not counted again. So a page with an old key uses
    nothing up, and clients that share an address cannot lock each other out.
    """

    def __init__(
        self,
        auth: AuthConfig,
        server: ServerConfig,
        routes: Mapping[str, RouteConfig],
        tokens: Tokens,
        limiter: Limiter,
    ) -> None:
        self._limiter = limiter
        self._routes = routes
        self._tokens = tokens
        self._session_s = auth.session_s
        self._required = auth.required
        self._sole = sole_tenant(auth.api_keys, routes)
        self._anyone = Tenant(KeyRights(), ANYONE, limiter=limiter)
        self._configured = [self._tenant(key, digest(key.key.get_secret_value().encode())) for key in auth.api_keys]
        self._by_digest: dict[bytes, Tenant] = {}
        self._by_mark: dict[bytes, Tenant] = {}
        self._key_file = WatchedFile(Path(auth.keys_file), api_keys.read) if auth.keys_file else None
        self._jwt = JsonWebTokens(auth.jwt) if auth.jwt is not None else None
        self._by_name: dict[str, Tenant] = {}
        """Tenants of JSON Web Tokens, by name; as many as the issuer names."""
        self._counted: dict[str, Tenant] = {}
        """Tenants by ``counted_as``."""
        self._active: dict[str, Tenant] = {}
        """Those of them that have sent requests to this worker."""
        self._elsewhere: Mapping[str, tuple[int, int]] | None = None
        self._count(self._anyone)
        self._take(self._key_file.value if self._key_file is not None else ())
        self._open = server.insecure or is_loopback(server.host)
        self._proxies = Proxies(server.trusted_proxies)
        self._failures = SourceLimit(per_s=FAILURES_PER_MINUTE / 60, burst=FAILURES_AT_ONCE, sources=_REMEMBERED)
        self._asked: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        """Address and digest of each key that was sent. The entry unused for longest is forgotten first."""

    async def watch(self) -> None:
        """Apply keys that are made or revoked while the server runs. Connections opened with a key stay open; see
        ``IS_GOOD``."""
        async with asyncio.TaskGroup() as watches:
            if self._key_file is not None:
                watches.create_task(self._key_file.watch(self._take))
            if self._jwt is not None:
                watches.create_task(self._jwt.watch())

    def _take(self, stored: Sequence[StoredKey]) -> None:
        before = {tenant.credential: tenant for tenant in self._by_digest.values()}
        tenants = list(self._configured)
        for key in stored:
            credential = bytes.fromhex(key.sha256)
            if key.revoked_at is None:
                known = before.get(credential)  # keep its counters
                same = known is not None and known.key == key
                tenants.append(known if known is not None and same else self._tenant(key, credential, key.expires_at))
        for credential in before.keys() - {tenant.credential for tenant in tenants}:
            self._counted.pop(before[credential].counted_as, None)
            self._active.pop(before[credential].counted_as, None)
        for tenant in tenants:
            self._count(tenant)
        self._by_digest = {tenant.credential[:_INDEX_BYTES]: tenant for tenant in tenants}
        self._by_mark = {self._tokens.mark(t.credential): t for t in (tenants if self._required else [self._anyone])}

    def _is_good(self, tenant: Tenant) -> bool:
        if tenant.credential in (_NO_KEY, _SIGNED):
            return True
        current = self._by_digest.get(tenant.credential[:_INDEX_BYTES])
        return current is not None and current.credential == tenant.credential and not current.is_expired(time.time())

    def _tenant(self, key: KeyRights, credential: bytes, expires_at: float | None = None) -> Tenant:
        who = principal_of(key.tenant, key.scopes, sole=self._sole, routes=self._routes)
        if expires_at is not None:
            who = replace(who, expires=expires_at)
        return Tenant(key, who, limiter=self._limiter, credential=credential, expires_at=expires_at)

    @property
    def required(self) -> bool:
        """True if protected requests need a key."""
        return self._required

    @property
    def has_key_file(self) -> bool:
        """True if keys can be made and revoked while the server runs."""
        return self._key_file is not None

    def keys(self) -> Iterator[tuple[KeyRights, frozenset[Scope], float | None]]:
        """Yield all keys with their scopes and their last use: those of the configuration, then those of the file, also
        refused ones."""
        for tenant in self._configured:
            yield tenant.key, tenant.who.scopes, tenant.used_at
        for key in self._key_file.value if self._key_file is not None else ():
            scopes = principal_of(key.tenant, key.scopes, sole=self._sole, routes=self._routes).scopes
            user = self._by_digest.get(bytes.fromhex(key.sha256)[:_INDEX_BYTES])
            yield key, scopes, None if user is None else user.used_at

    def tallies(self) -> dict[str, tuple[int, int]]:
        """Return the use of allowances by ``counted_as`` (see ``CountedAllowance.tally``), for at most ``_MAX_TALLIES``
        keys with calls or speech requests."""
        tallies = ((name, tenant.allowance.tally) for name, tenant in self._active.items())
        return dict(islice(((name, tally) for name, tally in tallies if any(tally)), _MAX_TALLIES))

    def add(self, elsewhere: Mapping[str, tuple[int, int]], *, now: float) -> None:
        """Add the counts of other workers: the sums of their ``tallies``."""
        before, self._elsewhere = self._elsewhere, elsewhere
        changed = {name for name, _ in (before or {}).items() ^ elsewhere.items()}
        for tenant in (self._counted[name] for name in changed & self._counted.keys()):
            if before is None:  # this worker has just started
                tenant.allowance.begin(elsewhere[tenant.counted_as])
            else:
                tenant.allowance.add(elsewhere.get(tenant.counted_as, (0, 0)), now=now)

    def _count(self, tenant: Tenant) -> None:
        """Connect a tenant's counters to the counts of other workers."""
        if self._counted.get(tenant.counted_as) is not tenant:
            self._counted[tenant.counted_as] = tenant
            tenant.allowance.begin((self._elsewhere or {}).get(tenant.counted_as, (0, 0)))

    def check(self, request: web.Request) -> tuple[Tenant, Principal]:
        """Return the tenant and the principal of a request. If no keys are required, all requests have the same tenant.

        Raises:
            Rejected: 401, 403 or 429.
        """
        found, who = self._check(request)
        self._active[found.counted_as] = found
        return found, who

    def _check(self, request: web.Request) -> tuple[Tenant, Principal]:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # A browser cannot send headers with a page, a WebSocket or an EventSource.
        token = (given.strip() if scheme.lower() == "bearer" else "") or request.query.get("access_token", "")
        if not self._required:
            if self._open:
                return self._granted(token) if token.startswith(GRANT) else (self._anyone, ANYONE)
            raise Rejected(
                "this listener can be reached from outside: configure auth.api_keys or set server.insecure: true",
                status=403, code="auth_not_configured",
            )  # fmt: skip
        if (shown := token or request.cookies.get(COOKIE, "")).startswith(GRANT):
            found, who = self._granted(shown)
        else:
            known = self.holder(request, token)
            if known is None:
                raise Rejected("Authorization: Bearer KEY is missing or unknown", status=401, code="unauthorized")
            found, who = known
        request[STANDINGS] = (found.admit(time.monotonic()),)
        return found, who

    def session(self, given: str) -> str:
        """Return the cookie's token for a browser that showed a key or a token. It is never the key.

        Raises:
            Rejected: 401, the JSON Web Token is not accepted.
        """
        if given.startswith(GRANT):
            return given
        expires = time.time() + self._session_s
        if self._jwt is not None and looks_like_one(given):
            return self.grant(*self._signed(self._jwt.check(given)), "session", expires=expires)
        return self._tokens.grant(digest(given.encode()), "session", expires=expires)

    def grant(
        self, tenant: Tenant, who: Principal, scope: GrantScope, *, expires: float, route: str = "", call: str = ""
    ) -> str:
        """Return a browser's token, which expires no later than the credential that made it."""
        signed = tenant.credential == _SIGNED
        return self._tokens.grant(
            tenant.credential, scope, expires=min(expires, who.expires), route=route, call=call,
            tenant=tenant.name if signed else "", scopes=sorted(who.scopes) if signed else (),
        )  # fmt: skip

    def _granted(self, token: str) -> tuple[Tenant, Principal]:
        grant = self._tokens.check_grant(token, now=time.time())
        if grant.tenant and self._jwt is not None:
            scopes = tuple(scope for scope in SCOPES if scope in grant.scopes)
            tenant, who = self._signed(Claims(tenant=grant.tenant, scopes=scopes, expires=inf))
            return tenant, who.granted(grant)
        found = self._by_mark.get(grant.key)
        if found is None:
            raise Rejected("the key of this token is no longer configured", status=401, code="unauthorized")
        found.check_expiry(time.time())
        return found, found.who.granted(grant)

    def holder(self, request: web.Request, key: str) -> tuple[Tenant, Principal] | None:
        """Return the tenant and the principal of a key or JSON Web Token. None: unknown, or empty.

        Raises:
            Rejected: 401, the key has expired or the token is not accepted; 429, too many unknown ones came from this
                address.
        """
        if not key:
            return None
        refused: Rejected | None = None
        found: tuple[Tenant, Principal] | None = None
        if self._jwt is not None and looks_like_one(key):
            try:
                return self._signed(self._jwt.check(key))
            except Rejected as exc:
                refused = exc
        else:
            found = self._owner(key.encode(errors="backslashreplace"))
        self._count_failure(request, key, failed=found is None)
        if refused is not None:
            raise refused
        if found is not None:
            found[0].check_expiry(time.time())
        return found

    def _count_failure(self, request: web.Request, key: str, *, failed: bool) -> None:
        """Count an address's unknown keys, and refuse any new key from it when there were too many."""
        address, now = source(self._proxies.client(request.remote or "", request.headers)), time.monotonic()
        asked = (address, hashlib.blake2b(key.encode(errors="backslashreplace"), digest_size=16).digest())
        if asked not in self._asked:
            if self._failures.empty(address, now=now):
                raise Rejected(
                    "too many unknown keys came from this address",
                    status=429, code="too_many_failures", retry_after_s=self._failures.wait_s(address, now=now),
                )  # fmt: skip
            if failed:
                self._failures.take(address, now=now)
            self._asked[asked] = None
            if len(self._asked) > _REMEMBERED:
                self._asked.popitem(last=False)
        self._asked.move_to_end(asked)

    def _owner(self, given: bytes) -> tuple[Tenant, Principal] | None:
        shown = digest(given)
        found = self._by_digest.get(shown[:_INDEX_BYTES])
        return (found, found.who) if found is not None and hmac.compare_digest(found.credential, shown) else None

    def _signed(self, claims: Claims) -> tuple[Tenant, Principal]:
        """Return the tenant and the principal of a JSON Web Token."""
        who = principal_of(claims.tenant, claims.scopes, sole=self._sole, routes=self._routes)
        tenant = self._by_name.get(claims.tenant)
        if tenant is None:
            tenant = Tenant(KeyRights(tenant=claims.tenant), who, limiter=self._limiter, credential=_SIGNED)
            self._by_name[claims.tenant] = tenant
            self._count(tenant)
        return tenant, replace(who, expires=claims.expires)

    def guard(self, route: Route) -> Handler:
        """Return the route's handler. If the route needs a scope, the handler first checks the key and the type of the
        body; then the tenant is in ``request[TENANT]`` and the principal in ``request[WHO]``."""
        handler, scope = route.handler, route.scope
        if scope is None:
            return handler

        async def guarded(request: web.Request) -> web.StreamResponse:
            request[TENANT], request[WHO] = self.check(request)
            request[TENANT].used_at = time.time()
            request[IS_GOOD] = partial(self._is_good, request[TENANT])
            # A worker's part of a combined answer does not count as another request.
            part = isinstance(request.transport, PassedOn) and request.transport.is_part
            standings = await self._limiter.take(request[WHO].tenant, requests=0 if part else 1)
            request[STANDINGS] = (*request.get(STANDINGS, ()), *standings)
            request[WHO].check_scope(scope)
            route.check_type(request)
            return await handler(request)

        return guarded
