"""``/v1/rooms``: named rooms, and their legs."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from pydantic import ConfigDict, Field, model_validator

from gateway.call.directory import Directory
from gateway.call.joined.conferences import GAIN_DB, Conference, Conferences, RoomLeg
from gateway.call.session import Session
from gateway.config import RouteConfig
from gateway.errors import Rejected
from gateway.http.call_api.supervise import AnswerOffer
from gateway.http.request.auth import TENANT, WHO
from gateway.http.request.routes import ApiModel, Route
from gateway.principal import Principal


class RoomLegBody(ApiModel):
    """Body of ``POST /v1/rooms/{name}/legs``: one of ``call``, ``to`` and ``offer``."""

    model_config = ConfigDict(extra="forbid")

    call: str = Field("", max_length=64)
    """A live call, which joins with its bot."""
    to: str = Field("", max_length=500)
    """SIP URI or number to be called, one of ``calling.allowed_targets`` or ``sip.allowed_targets``."""
    offer: str = Field("", max_length=65_536)
    """SDP of a browser's WebRTC offer."""
    route: str = "default"
    """Route of a leg that is called, or of a browser's. The room belongs to the route's tenant."""
    muted: bool = False
    """True: no one hears the leg."""
    gainDb: float = Field(0.0, ge=GAIN_DB[0], le=GAIN_DB[1])
    """Gain with which the others hear the leg, decibels."""

    @model_validator(mode="after")
    def _one_leg(self) -> RoomLegBody:
        if sum(map(bool, (self.call, self.to, self.offer))) != 1:
            raise ValueError("expected one of call, to and offer")
        return self


class RoomLegChange(ApiModel):
    """Body of ``PATCH /v1/rooms/{name}/legs/{leg}``. What is missing stays."""

    model_config = ConfigDict(extra="forbid")

    muted: bool | None = None
    gainDb: float | None = Field(None, ge=GAIN_DB[0], le=GAIN_DB[1])


class RoomLegView(ApiModel):
    """One leg of a room."""

    leg: str
    """Session id of the leg, also ``{id}`` of ``/v1/calls``."""
    state: str
    """``calling`` or ``present``."""
    muted: bool
    gainDb: float
    sdp: str = ""
    """Answer to a browser's offer."""


class RoomView(ApiModel):
    """One room."""

    id: str
    """``RM`` and 32 hexadecimal digits: the id that the legs called for the room share, and ``{id}`` of
    ``/v1/recordings``."""
    recorded: bool
    room: str
    tenant: str
    speaking: str
    """Session id of the leg that speaks. Empty: none."""
    legs: list[RoomLegView]


class RoomList(ApiModel):
    """The rooms that the key sees."""

    rooms: list[RoomView]


class Rooms:
    """The handlers.

    Args:
        answer_offer: answers a browser's offer.
    """

    def __init__(
        self,
        conferences: Conferences,
        directory: Directory[Session],
        routes: Mapping[str, RouteConfig],
        answer_offer: AnswerOffer,
    ) -> None:
        self._conferences = conferences
        self._directory = directory
        self._routes = routes
        self._answer_offer = answer_offer

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        legs, one, tags = "/v1/rooms/{name}/legs", "/v1/rooms/{name}/legs/{leg}", ["rooms"]
        return [
            Route(
                method="GET", path="/v1/rooms", handler=self.list, answer=RoomList, tags=tags,
                summary="Named rooms and their legs",
            ),
            Route(
                method="POST", path=legs, handler=self.add, body=RoomLegBody, answer=RoomLegView, tags=tags,
                begins_call=True, summary="Add a leg to a named room: a live call, a called number, or a browser",
            ),
            Route(
                method="PATCH", path=one, handler=self.change, body=RoomLegChange, answer=RoomLegView, tags=tags,
                summary="Mute a leg, or set its gain",
            ),
            Route(method="DELETE", path=one, handler=self.remove, tags=tags, summary="Remove a leg from its room"),
        ]  # fmt: skip

    async def list(self, request: web.Request) -> web.Response:
        """Return the rooms of this process that the client sees."""
        rooms = [
            RoomView(
                id=each.correlation_id,
                recorded=each.recorded,
                room=each.name,
                tenant=each.tenant,
                speaking=each.speaking,
                legs=[_view_of(leg) for leg in each.legs],
            ).model_dump()
            for each in self._conferences
            if self._sees(request[WHO], each)
        ]
        return web.json_response({"rooms": rooms})

    async def add(self, request: web.Request) -> web.Response:
        """Add a leg."""
        name, who = request.match_info["name"], request[WHO]
        body = RoomLegBody.from_json(await request.read())
        sdp = ""
        if body.call:
            session = self._directory.get(body.call)
            if session is None or not who.sees_call(session.call.route, body.call):
                raise Rejected(f"no live call {body.call[:40]!r}", status=404, code="unknown_call", param="call")
            leg = await session.rooms.join(name, muted=body.muted, gain_db=body.gainDb)
        else:
            who.check_route(body.route, self._routes)
            with self._conferences.opened(body.route, name) as room:
                if body.to:
                    leg = await room.call(
                        body.to, route=body.route, muted=body.muted, gain_db=body.gainDb,
                        allowance=request[TENANT].allowance,
                    )  # fmt: skip
                else:
                    expected: list[RoomLeg] = []
                    sdp = await self._answer_offer(
                        request, body.offer, body.route, room.correlation_id,
                        lambda leg: expected.append(
                            room.expect(leg, route=body.route, muted=body.muted, gain_db=body.gainDb)
                        ),
                    )  # fmt: skip
                    (leg,) = expected
        return web.json_response(
            _view_of(leg, sdp).model_dump(), status=201, headers={"Location": f"/v1/rooms/{name}/legs/{leg.name}"}
        )

    async def change(self, request: web.Request) -> web.Response:
        """Mute a leg or set its gain."""
        body = RoomLegChange.from_json(await request.read())
        room, leg = self._leg(request)
        room.change(leg, muted=body.muted, gain_db=body.gainDb)
        return web.json_response(_view_of(leg).model_dump())

    async def remove(self, request: web.Request) -> web.Response:
        """Remove a leg: one that was called ends, a call is with its bot again."""
        room, leg = self._leg(request)
        room.remove(leg)
        return web.Response(status=204)

    def _leg(self, request: web.Request) -> tuple[Conference, RoomLeg]:
        name, leg = request.match_info["name"], request.match_info["leg"]
        for room in self._conferences:
            found = room.find(leg) if room.name == name and self._sees(request[WHO], room) else None
            if found is not None:
                return room, found
        raise Rejected(f"no leg {leg[:40]!r} in the room {name[:64]!r}", status=404, code="unknown_leg", param="leg")

    def _sees(self, who: Principal, room: Conference) -> bool:
        return sees_tenant(who, room.tenant, self._conferences, self._routes)


def sees_tenant(who: Principal, tenant: str, conferences: Conferences, routes: Mapping[str, RouteConfig]) -> bool:
    """Return True if a principal may see the rooms of a tenant, and their recordings. A room may hold calls of all
    the tenant's routes, so a browser's token, which is for one route, sees none."""
    return not who.token and any(conferences.tenant_of(route) == tenant for route in routes if who.sees(route))


def _view_of(leg: RoomLeg, sdp: str = "") -> RoomLegView:
    return RoomLegView(
        leg=leg.name, state="calling" if leg.seat is None else "present", muted=leg.muted, gainDb=leg.gain_db, sdp=sdp
    )
