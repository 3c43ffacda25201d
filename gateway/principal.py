"""Who asks, and what whoever asks may see and do: the one place that decides about tenants and scopes.

Calls belong to their route, and so do their events and recordings, what they leave behind, and the calls that are
expected on it. A route belongs to a tenant. The id of a registered voice names its tenant (``shop--anna``), because the
engine keeps voices and knows no tenants. What another tenant owns is answered as if it did not exist (404), so its
existence is not told either. This module knows no requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from gateway.config import SCOPES, KeyRights, RouteConfig, Scope
from gateway.errors import Rejected
from gateway.tokens import Grant, GrantScope


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Whoever has a key or a browser's token, or needs none."""

    tenant: str
    scopes: frozenset[Scope]
    routes: frozenset[str] | None
    """The routes that the principal sees. None: all."""
    voices: str = ""
    """What ids of the principal's own voices begin with. Empty: all voices are its own."""
    leads: bool
    """May it speak as the dialogue manager of a browser's call?"""
    call: str = ""
    """The only call that it sees. Empty: all calls of its routes."""
    token: bytes = b""
    """Id of the browser's token that it showed. Empty: an API key, or nothing."""
    expires: float = inf
    """Until when it is who it is, seconds since the epoch."""

    def sees(self, route: str) -> bool:
        """Whether the principal may know of a route, and of everything that belongs to it."""
        return self.routes is None or route in self.routes

    def sees_call(self, route: str, call_id: str) -> bool:
        """Whether the principal may know of a call."""
        return self.sees(route) and self.call in ("", call_id)

    def holds(self, token: bytes) -> bool:
        """Whether the principal may act for the browser that called with ``token``. A token is one browser's."""
        return self.token in (b"", token)

    def granted(self, grant: Grant) -> Principal:
        """Return who shows a token that was made by this principal: it may do a part of what this one may."""
        if grant.scope == "session":
            return self
        return replace(
            self,
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
            raise Rejected(f"no route {route[:40]!r}", status=404, code="unknown_route", param="route")

    def own_voice(self, voice_id: str) -> str:
        """Return the id under which a voice of this principal's is registered."""
        return voice_id if voice_id.startswith(self.voices) else self.voices + voice_id

    def check_scope(self, scope: Scope) -> None:
        """Check that a request which wants ``scope`` may be made.

        Raises:
            Rejected: 403, the scope is missing.
        """
        if scope not in self.scopes:
            raise Rejected(
                f"this request wants the scope {scope}, the key has {', '.join(sorted(self.scopes)) or 'none'}",
                status=403, code="missing_scope", param=scope,
            )  # fmt: skip


_GRANTED: Mapping[GrantScope, frozenset[Scope]] = {
    "call": frozenset({"browser"}),
    "lead": frozenset({"browser"}),
    "read": frozenset({"read"}),
}

ANYONE = Principal(tenant="default", scopes=frozenset(SCOPES), routes=None, leads=True)
"""Whoever asks where no keys are required."""


def sole_tenant(keys: Sequence[KeyRights], routes: Mapping[str, RouteConfig]) -> str | None:
    """Return the only tenant that the configuration names, which has everything. None: it names several.

    Only the configuration counts: who makes a key for one more tenant while the server runs takes nothing from others.
    """
    named = {key.tenant for key in keys} | {route.tenant for route in routes.values() if route.tenant}
    return next(iter(named or {"default"})) if len(named) < 2 else None


def principal_of(
    tenant: str, scopes: Sequence[Scope] | None, *, sole: str | None, routes: Mapping[str, RouteConfig]
) -> Principal:
    """Return who asks for ``tenant``, with ``scopes``. None: all that the tenant's keys have by default.

    Where the tenant is the only one of the configuration (``sole_tenant``), it has everything, and its keys may do
    everything unless they name scopes. Any other one sees its own routes, and routes without a tenant are seen by keys
    with the scope ``admin`` only.
    """
    alone = tenant == sole
    held = frozenset(scopes if scopes is not None else SCOPES if alone else set(SCOPES) - {"admin"})
    if alone or "admin" in held:
        return Principal(tenant=tenant, scopes=held, routes=None, leads="calls" in held)
    own = frozenset(name for name, route in routes.items() if route.tenant == tenant)
    return Principal(tenant=tenant, scopes=held, routes=own, voices=_voices(tenant), leads="calls" in held)


def tenants_of_routes(sole: str | None, routes: Mapping[str, RouteConfig]) -> dict[str, str]:
    """Return whose each route is, by its name. Empty: nobody's, where there are several tenants."""
    return {name: route.tenant or sole or "" for name, route in routes.items()}


def voices_of_routes(sole: str | None, routes: Mapping[str, RouteConfig]) -> dict[str, str]:
    """Return what ids of the own voices begin with, by the name of each route that has a tenant among several."""
    return {} if sole else {name: _voices(route.tenant) for name, route in routes.items() if route.tenant}


def sees_voice(voices: str, voice_id: str) -> bool:
    """Whether a voice may be used by those whose own voices begin with ``voices``. Voices of no tenant are for all."""
    return not voices or _MARK not in voice_id or voice_id.startswith(voices)


_MARK = "--"


def _voices(tenant: str) -> str:
    # Ids of voices are letters, digits, _ and -. No name holds the mark, and no two names become one.
    return re.sub(r"[^A-Za-z0-9]", lambda other: f"_{ord(other[0]):x}_", tenant) + _MARK
