"""The rights that each route of the HTTP application asks for. A route without a row cannot be declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gateway.config import Scope

Owner: TypeAlias = Literal["anyone", "carrier", "shared", "self", "list", "object", "operator"]
"""The owner of what a route serves, and the answer to another tenant:

- ``anyone``: needs no key. Probes, pages, and the browser's preflights (CORS).
- ``carrier``: needs no key but the carrier's proof (``gateway.http.webhooks``).
- ``shared``: is the same for every tenant.
- ``self``: makes or reads a thing of the principal's own tenant; the request names no thing of another.
- ``list``: holds the things that the principal sees (``Principal.sees``, ``sees_call``), and no others.
- ``object``: the path, query, body or message names a thing of one tenant. For another tenant it does not exist (404).
- ``operator``: belongs to the whole server.
"""


@dataclass(frozen=True, slots=True)
class Access:
    """The rights for one route."""

    scope: Scope | None
    """The scope that a key needs (beyond loopback, or if keys are configured). None: the route needs no key."""
    owner: Owner


_ANYONE, _CARRIER = Access(None, "anyone"), Access(None, "carrier")

ACCESS: Mapping[tuple[str, str], Access] = {
    ("GET", "/healthz"): _ANYONE,
    ("GET", "/readyz"): _ANYONE,
    ("GET", "/"): _ANYONE,
    ("GET", "/phone"): _ANYONE,
    ("GET", "/docs"): _ANYONE,
    ("GET", "/web/{name}"): _ANYONE,
    ("POST", "/login"): _ANYONE,
    ("GET", "/webhooks/{dialect}"): _CARRIER,
    ("POST", "/webhooks/{dialect}"): _CARRIER,
    ("GET", "/webhooks/{dialect}/after"): _CARRIER,
    ("POST", "/webhooks/{dialect}/after"): _CARRIER,
    ("GET", "/webhooks/{dialect}/status"): _CARRIER,
    ("POST", "/webhooks/{dialect}/status"): _CARRIER,
    ("GET", "/webhooks/{dialect}/{route}"): _CARRIER,
    ("POST", "/webhooks/{dialect}/{route}"): _CARRIER,
    ("GET", "/webhooks/{dialect}/{route}/after"): _CARRIER,
    ("POST", "/webhooks/{dialect}/{route}/after"): _CARRIER,
    ("GET", "/webhooks/{dialect}/{route}/status"): _CARRIER,
    ("POST", "/webhooks/{dialect}/{route}/status"): _CARRIER,
    ("GET", "/v1/health"): Access("read", "shared"),
    ("GET", "/openapi.json"): Access("read", "shared"),
    ("GET", "/metrics"): Access("admin", "operator"),
    ("GET", "/v1/figures"): Access("admin", "operator"),
    ("GET", "/v1/keys"): Access("admin", "operator"),
    ("GET", "/v1/calls"): Access("read", "list"),
    ("POST", "/v1/calls"): Access("calls", "object"),
    ("POST", "/v1/calls/attach"): Access("calls", "object"),
    ("GET", "/v1/calls/{id}"): Access("read", "object"),
    ("DELETE", "/v1/calls/{id}"): Access("calls", "object"),
    ("GET", "/v1/calls/{id}/recording"): Access("read", "object"),
    ("POST", "/v1/calls/{id}/messages"): Access("calls", "object"),
    ("POST", "/v1/calls/{id}/words"): Access("calls", "object"),
    ("GET", "/v1/calls/{id}/events"): Access("read", "object"),
    ("GET", "/v1/calls/{id}/listen"): Access("calls", "object"),
    ("GET", "/v1/calls/{id}/supervise"): Access("supervise", "object"),
    ("POST", "/v1/calls/{id}/supervise"): Access("supervise", "object"),
    ("PATCH", "/v1/calls/{id}/supervise/{leg}"): Access("supervise", "object"),
    ("DELETE", "/v1/calls/{id}/supervise/{leg}"): Access("supervise", "object"),
    ("PUT", "/v1/calls/expected/{uuid}"): Access("calls", "object"),
    ("POST", "/v1/calls/expected/{uuid}"): Access("calls", "object"),
    ("DELETE", "/v1/calls/expected/{uuid}"): Access("calls", "object"),
    ("GET", "/v1/rooms"): Access("read", "list"),
    ("POST", "/v1/rooms/{name}/legs"): Access("calls", "object"),
    ("PATCH", "/v1/rooms/{name}/legs/{leg}"): Access("calls", "object"),
    ("DELETE", "/v1/rooms/{name}/legs/{leg}"): Access("calls", "object"),
    ("GET", "/v1/recordings/{id}"): Access("read", "object"),
    ("GET", "/v1/recordings/{id}/audio"): Access("read", "object"),
    ("GET", "/v1/handoffs/{callSid}"): Access("calls", "object"),
    ("GET", "/v1/events"): Access("read", "list"),
    ("GET", "/v1/routes"): Access("read", "list"),
    ("GET", "/v1/dialogue"): Access("calls", "object"),
    ("GET", "/v1/audio/{id}"): Access("calls", "object"),
    ("POST", "/v1/tokens"): Access("browser", "object"),
    ("POST", "/v1/webrtc/offer"): Access("browser", "object"),
    ("OPTIONS", "/v1/webrtc/offer"): _ANYONE,
    ("GET", "/v1/webrtc/ice"): Access("browser", "shared"),
    ("OPTIONS", "/v1/webrtc/ice"): _ANYONE,
    ("POST", "/whip/{route}"): Access("browser", "object"),
    ("OPTIONS", "/whip/{route}"): _ANYONE,
    ("PATCH", "/whip/{route}/{id}"): Access("browser", "object"),
    ("DELETE", "/whip/{route}/{id}"): Access("browser", "object"),
    ("OPTIONS", "/whip/{route}/{id}"): _ANYONE,
    ("POST", "/v1/tts"): Access("speak", "object"),
    ("POST", "/v1/tts/stream"): Access("speak", "object"),
    ("POST", "/v1/audio/speech"): Access("speak", "object"),
    ("POST", "/v1/audio/transcriptions"): Access("speak", "self"),
    ("GET", "/ws/tts"): Access("speak", "object"),
    ("GET", "/v1/usage"): Access("speak", "self"),
    ("GET", "/v1/records"): Access("read", "list"),
    ("GET", "/v1/voices"): Access("speak", "list"),
    ("GET", "/v1/audio/voices"): Access("speak", "list"),
    ("POST", "/v1/voices"): Access("speak", "self"),
    ("GET", "/v1/voices/{voice_id}"): Access("speak", "object"),
    ("DELETE", "/v1/voices/{voice_id}"): Access("speak", "object"),
    ("GET", "/v1/models"): Access("speak", "shared"),
    ("GET", "/v1/models/{model_id}"): Access("speak", "shared"),
    ("POST", "/v1/models"): Access("admin", "operator"),
    ("POST", "/v1/models/active"): Access("admin", "operator"),
    ("DELETE", "/v1/models/{model_id}"): Access("admin", "operator"),
    ("GET", "/v1/trial"): Access("admin", "operator"),
    ("PUT", "/v1/trial"): Access("admin", "operator"),
    ("DELETE", "/v1/trial"): Access("admin", "operator"),
}
"""(method, path) -> rights, for every route of the application. ``/media/*``, which carriers dial, is served apart."""


def access_of(method: str, path: str) -> Access:
    """Return the rights for a route.

    Raises:
        LookupError: the table has no row for it.
    """
    try:
        return ACCESS[method, path]
    except KeyError:
        raise LookupError(f"{method} {path} has no row in gateway.http.request.access.ACCESS") from None
