"""``POST /v1/calls/attach``: a dialplan makes the bot join a call that is already on a switch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiohttp import web
from pydantic import ConfigDict, Field

from gateway.call.directory import Directory
from gateway.call.session import Session
from gateway.config import RouteConfig
from gateway.errors import Rejected
from gateway.http.call_api.expected import Parameters
from gateway.http.request.auth import WHO
from gateway.http.request.forms import read_form
from gateway.http.request.routes import FORM, JSON, ApiModel, Route
from gateway.seams.call_api import Attach


class AttachBody(ApiModel):
    """Body of `POST /v1/calls/attach`."""

    model_config = ConfigDict(extra="forbid")

    dialect: str
    """``asterisk``, ``freeswitch`` or ``freeswitch-fork``."""
    call: str = Field(min_length=1, max_length=128)
    """``MEDIA_WEBSOCKET_CONNECTION_ID`` of an Asterisk channel, or the UUID of a FreeSWITCH channel."""
    route: str = "default"
    customParameters: Parameters = {}


class AttachRoutes:
    """The handler.

    Args:
        switches: the configured switches, by dialect.
        routes_elsewhere: returns the routes of calls with a carrier's call id in the other processes of this server.
    """

    def __init__(
        self,
        switches: Mapping[str, Attach],
        routes: Mapping[str, RouteConfig],
        directory: Directory[Session],
        routes_elsewhere: Callable[[str], Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        self._routes_elsewhere = routes_elsewhere
        self._switches = switches
        self._routes = routes
        self._directory = directory

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        return [
            Route(
                method="POST", path="/v1/calls/attach", handler=self.attach,
                body=AttachBody, takes=(JSON, FORM), tags=["calls"],
                begins_call=True,
                summary="Let the bot join a call on a switch; as JSON, or as a form for dialplans",
            )
        ]  # fmt: skip

    async def attach(self, request: web.Request) -> web.Response:
        """Answer 202 when the switch has agreed; the call is listed when its stream begins."""
        if request.content_type == FORM:
            fields = {name: values[-1] for name, values in (await read_form(request)).items()}
            known = {name: fields.pop(name) for name in ("dialect", "call", "route") if name in fields}
            body = AttachBody.model_validate({**known, "customParameters": fields})
        else:
            body = AttachBody.from_json(await request.read())
        who = request[WHO]
        who.check_route(body.route, self._routes)
        taken = [session.call.route for session in self._directory if session.call.call_sid == body.call]
        if self._routes_elsewhere is not None:
            taken += await self._routes_elsewhere(body.call)
        if not all(map(who.sees, taken)):
            raise Rejected(f"no call {body.call[:40]!r}", status=404, code="unknown_call", param="call")
        attach = self._switches.get(body.dialect)
        if attach is None:
            known_switches = ", ".join(self._switches) or "none"
            raise Rejected(
                f"no switch for dialect {body.dialect[:40]!r}, expected one of: {known_switches}",
                status=404, code="unknown_dialect", param="dialect",
            )  # fmt: skip
        await attach(body.call, body.route, body.customParameters)
        return web.json_response({"call": body.call, "route": body.route}, status=202)
