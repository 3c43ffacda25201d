"""``/v1/calls/expected/{uuid}``: announces a call that will arrive with only its UUID."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from uuid import UUID

from aiohttp import web
from pydantic import ConfigDict, Field

from gateway.call.expected import ExpectedCall
from gateway.config import RouteConfig
from gateway.errors import Rejected
from gateway.http.request.auth import WHO
from gateway.http.request.forms import read_form
from gateway.http.request.routes import FORM, MULTIPART, ApiModel, Route
from gateway.listener.audiosocket import AudioSocketServer
from gateway.principal import Principal

Parameters = Annotated[
    dict[Annotated[str, Field(max_length=128)], Annotated[str, Field(max_length=1024)]], Field(max_length=64)
]


class ExpectedBody(ApiModel):
    """Body of `PUT /v1/calls/expected/{uuid}`."""

    model_config = ConfigDict(extra="forbid")

    route: str = "default"
    customParameters: Parameters = {}


class ExpectedAnswer(ApiModel):
    """Answer to an announced call."""

    uuid: str
    route: str
    expiresInS: float


class ExpectedRoutes:
    """The handlers."""

    def __init__(self, server: AudioSocketServer, routes: Mapping[str, RouteConfig]) -> None:
        self._server = server
        self._expected = server.expected
        self._routes = routes

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        path, tags = "/v1/calls/expected/{uuid}", ["calls"]
        return [
            Route(
                method="PUT", path=path, handler=self.put,
                summary="Announce the call with this UUID",
                body=ExpectedBody, answer=ExpectedAnswer, tags=tags,
            ),
            Route(
                method="POST", path=path, handler=self.post, takes=(FORM, MULTIPART),
                answer=ExpectedAnswer, tags=tags,
                summary="The same as a form, for dialplans: `route` and custom parameters as fields",
            ),
            Route(method="DELETE", path=path, handler=self.delete,
                  summary="Withdraw the announcement", tags=tags),
        ]  # fmt: skip

    async def put(self, request: web.Request) -> web.Response:
        """Announce a call. 201: it was not announced before. 200: the body replaces the earlier announcement."""
        return await self._expect(request[WHO], _uuid(request), ExpectedBody.from_json(await request.read()))

    async def post(self, request: web.Request) -> web.Response:
        """Announce a call from a dialplan, whose HTTP client has neither PUT nor JSON."""
        uuid = _uuid(request)
        fields = {name: values[-1] for name, values in (await read_form(request)).items()}
        route = fields.pop("route", "default")
        return await self._expect(request[WHO], uuid, ExpectedBody(route=route, customParameters=fields))

    async def _expect(self, who: Principal, uuid: UUID, body: ExpectedBody) -> web.Response:
        who.check_route(body.route, self._routes)
        live = await self._server.live_anywhere(uuid)
        before = live or self._expected.get(uuid)
        if before is not None and not who.sees(before.route):
            raise _unknown(uuid)
        if live is not None:
            raise Rejected(f"a call {uuid} is live", status=409, code="live", param="uuid")
        new = self._expected.put(uuid, ExpectedCall(body.route, body.customParameters))
        answer = ExpectedAnswer(uuid=str(uuid), route=body.route, expiresInS=self._expected.expiry_s)
        return web.json_response(answer.model_dump(), status=201 if new else 200)

    async def delete(self, request: web.Request) -> web.Response:
        """Withdraw an announcement."""
        uuid = _uuid(request)
        expected = self._expected.get(uuid)
        if expected is None or not request[WHO].sees(expected.route):
            raise _unknown(uuid)
        self._expected.take(uuid)
        return web.Response(status=204)


def _unknown(uuid: UUID) -> Rejected:
    return Rejected(f"no call {uuid} is expected", status=404, code="unknown_call", param="uuid")


def _uuid(request: web.Request) -> UUID:
    given = request.match_info["uuid"]
    try:
        return UUID(given)
    except ValueError:
        raise Rejected(f"{given[:40]!r} is not a UUID", status=422, code="invalid_uuid", param="uuid") from None
