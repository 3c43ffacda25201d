"""Lists the routes by name and kind of dialogue, without addresses and secrets, for pages that offer a choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from aiohttp import web

from gateway.config import RouteConfig
from gateway.http.request.auth import WHO
from gateway.http.request.routes import ApiModel, Route


class RouteView(ApiModel):
    """A route as REST shows it."""

    name: str
    dialogue: Literal["script", "dial-out", "dial-in"]
    """The leader of the route's dialogue: the built-in script, a manager that we dial, or a manager that dials in."""
    language: str
    recogniser: bool
    """True: the route has a recogniser, which understands callers' words."""
    tenant: str
    """Tenant of the route. Empty: the only one, or the operator."""
    voice: str
    """Voice of the route. Empty: the engine's default."""
    recording: bool
    """True: calls are recorded."""


class RouteListView(ApiModel):
    """All routes, in the order of the configuration."""

    routes: list[RouteView]


class RouteList:
    """Handler of ``/v1/routes``."""

    def __init__(self, routes: Mapping[str, RouteConfig]) -> None:
        self._views = [_view(name, route) for name, route in routes.items()]

    def route(self) -> Route:
        """Return the route for ``make_app``."""
        return Route(method="GET", path="/v1/routes", handler=self.list, summary="Routes", answer=RouteListView)

    async def list(self, request: web.Request) -> web.Response:
        """Return all routes that the client may see."""
        seen = [view for view in self._views if request[WHO].sees(view.name)]
        return web.json_response(RouteListView(routes=seen).model_dump())


def _view(name: str, route: RouteConfig) -> RouteView:
    lead = route.dialogue
    return RouteView(
        name=name,
        dialogue="script" if lead.script else "dial-out" if lead.url else "dial-in",
        language=route.language,
        recogniser=bool(route.recogniser),
        tenant=route.tenant,
        voice=route.voice,
        recording=route.recording,
    )
