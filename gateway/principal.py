"""Principals and their rights: the one place that decides about tenants and scopes.

Calls belong to their route, and so do their events, recordings and hand-offs, and the calls announced on it. A route
belongs to a tenant. The id of a registered voice names its tenant (``shop--anna``), because the engine knows no
tenants. Requests for another tenant's objects are answered as if these did not exist (404). This module knows no
requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from gateway.config import SCOPES, KeyRights, RouteConfig, Scope
from gateway.errors import Rejected, did_you_mean
from gateway.tokens import Grant, GrantScope


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The holder of a key or a browser's token, or anyone where no key is required."""

    tenant: str
    scopes: frozenset[Scope]
    routes: frozenset[str] | None
    """The routes that the principal sees. None: all."""
    voices: str = ""
    """Prefix of the ids of the principal's own voices. Empty: all voices are its own."""
    leads: bool
    """True if it may speak as the dialogue manager of a browser's call."""
    call: str = ""
    """The only call that it sees. Empty: all calls of its routes."""
    token: bytes = b""
    """Id of the browser's token that it showed. Empty: an API key, or nothing."""
    expires: float = inf
    """Expiry of the credential, seconds since the epoch."""

    def sees(self, route: str) -> bool:
        """Return True if the principal may see a route and everything that belongs to it."""
        return self.routes is None or route in self.routes

    def sees_call(self, route: str, call_id: str) -> bool:
        """Return True if the principal may see a call."""
        return self.sees(route) and self.call in ("", call_id)

    def billed_tenant(self, asked: str | None) -> str | None:
        """Return the tenant whose usage and records the principal reads. None: all tenants.

        Args:
            asked: the tenant that the request names. None: it names none, and means all that the principal may read.

        Raises:
            Rejected: 403, only the scope ``admin`` reads those of another tenant.
        """
        if "admin" not in self.scopes or self.routes is not None:
            if asked not in (None, self.tenant):
                self.check_scope("admin")
            return self.tenant
        return asked

    def holds(self, token: bytes) -> bool:
        """Return True if the principal may act for the browser that called with ``token``. A token is for one
        browser."""
        return self.token in (b"", token)

    def granted(self, grant: Grant) -> Principal:
        """Return the principal of a token that this principal made, with a part of its rights."""
        expires = min(self.expires, grant.expires)
        if grant.scope == "session":
            return replace(self, expires=expires)
        return replace(
            self,
            expires=expires,
            scopes=_GRANTED[grant.scope] & self.scopes,
            routes=frozenset({grant.route} if self.sees(grant.route) else ()),
            leads=self.leads and grant.scope == "lead",
            call=grant.call,
            token=grant.id,
        )

    def check_route(self, route: str, known: Mapping[str, RouteConfig]) -> None:
        """Check that a route can be used.

        Raises:
            Rejected: 404, there is no such route for this principal.
        """
        if route not in known or not self.sees(route):
            hint = did_you_mean(route, filter(self.sees, known))
            raise Rejected(f"no route {route[:40]!r}{hint}", status=404, code="unknown_route", param="route")

    def own_voice(self, voice_id: str) -> str:
        """Return the id under which a voice of this principal is registered."""
        return voice_id if voice_id.startswith(self.voices) else self.voices + voice_id

    def check_scope(self, scope: Scope) -> None:
        """Check that the principal has ``scope``.

        Raises:
            Rejected: 403, the scope is missing.
        """
        if scope not in self.scopes:
            raise Rejected(
                f"this request needs the scope {scope}, the key has {', '.join(sorted(self.scopes)) or 'none'}",
                status=403, code="missing_scope", param=scope,
            )  # fmt: skip


_GRANTED: Mapping[GrantScope, frozenset[Scope]] = {
    "call": frozenset({"browser"}),
    "lead": frozenset({"browser"}),
    "read": frozenset({"read"}),
}

ANYONE = Principal(tenant="default", scopes=frozenset(SCOPES), routes=None, leads=True)
"""The principal of every request where no keys are required."""


def sole_tenant(keys: Sequence[KeyRights], routes: Mapping[str, RouteConfig]) -> str | None:
    """Return the only tenant that the configuration names, which has all rights. None: it names several.

    Only the configuration counts, so a key made for another tenant while the server runs takes nothing from others.
    """
    named = {key.tenant for key in keys} | {route.tenant for route in routes.values() if route.tenant}
    return next(iter(named or {"default"})) if len(named) < 2 else None


def principal_of(
    tenant: str, scopes: Sequence[Scope] | None, *, sole: str | None, routes: Mapping[str, RouteConfig]
) -> Principal:
    """Return the principal of ``tenant`` with ``scopes``. None: the default scopes of the tenant's keys.

    The only tenant of the configuration (``sole_tenant``) has everything, and its keys have all rights unless they name
    scopes. Any other tenant sees its own routes. Routes without a tenant are seen only by keys with the scope
    ``admin``, which includes all others.
    """
    alone = tenant == sole
    held = frozenset(scopes if scopes is not None else SCOPES if alone else set(SCOPES) - {"admin"})
    if "admin" in held:
        held = frozenset(SCOPES)
    if alone or "admin" in held:
        return Principal(tenant=tenant, scopes=held, routes=None, leads="calls" in held)
    own = frozenset(name for name, route in routes.items() if route.tenant == tenant)
    return Principal(tenant=tenant, scopes=held, routes=own, voices=_voices(tenant), leads="calls" in held)


def tenants_of_routes(sole: str | None, routes: Mapping[str, RouteConfig]) -> dict[str, str]:
    """Return the tenant of each route, by its name. Empty: none, if there are several tenants."""
    return {name: route.tenant or sole or "" for name, route in routes.items()}


def voices_of_routes(sole: str | None, routes: Mapping[str, RouteConfig]) -> dict[str, str]:
    """Return the prefix of own voices for each route that has a tenant among several."""
    return {} if sole else {name: _voices(route.tenant) for name, route in routes.items() if route.tenant}


def sees_voice(voices: str, voice_id: str) -> bool:
    """Return True if holders of the voice prefix ``voices`` may use a voice. Voices of no tenant are for all."""
    return not voices or _MARK not in voice_id or voice_id.startswith(voices)


_MARK = "--"


def _voices(tenant: str) -> str:
    # Voice ids are letters, digits, _ and -. No encoded name contains the mark, and no two names become equal.
    return re.sub(r"[^A-Za-z0-9]", lambda other: f"_{ord(other[0]):x}_", tenant) + _MARK
