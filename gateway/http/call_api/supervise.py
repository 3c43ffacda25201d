"""``/v1/calls/{id}/supervise``: a supervisor's leg is added to a live call, by SIP or from a browser."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from pydantic import ConfigDict, Field, model_validator

from gateway.call.directory import Directory
from gateway.call.joined.supervisors import SuperviseMode, SupervisorLeg
from gateway.call.session import Session
from gateway.http.call_api.calls import live_call
from gateway.http.request.auth import TENANT, WHO
from gateway.http.request.routes import ApiModel, Route

AnswerOffer = Callable[[web.Request, str, str, str, Callable[[str], object]], Awaitable[str]]
"""Answers a browser's offer: request, SDP, route, correlation id, and what takes the new leg's id. Returns the SDP."""


class SuperviseBody(ApiModel):
    """Body of ``POST /v1/calls/{id}/supervise``: one of ``to``, ``offer`` and ``leg``."""

    model_config = ConfigDict(extra="forbid")

    mode: SuperviseMode
    """``listen``: hears all. ``whisper``: is heard by the person of a transfer alone. ``join``: is heard by all.
    ``takeover``: is heard by all, and the bot is silent."""
    to: str = Field("", max_length=500)
    """SIP URI or number of the supervisor, one of ``calling.allowed_targets`` or ``sip.allowed_targets``."""
    offer: str = Field("", max_length=65_536)
    """SDP of a browser's WebRTC offer."""
    leg: str = Field("", max_length=64)
    """A supervisor of this call, who gets another mode."""

    @model_validator(mode="after")
    def _one_way(self) -> SuperviseBody:
        if sum(map(bool, (self.to, self.offer, self.leg))) != 1:
            raise ValueError("expected one of to, offer and leg")
        return self


class SuperviseModeBody(ApiModel):
    """Body of ``PATCH /v1/calls/{id}/supervise/{leg}``."""

    model_config = ConfigDict(extra="forbid")

    mode: SuperviseMode


class SupervisorView(ApiModel):
    """One supervisor of a call."""

    leg: str
    """Session id of the supervisor's leg, also ``{id}`` of ``/v1/calls``."""
    mode: SuperviseMode
    state: str
    """``calling``, ``present`` or ``gone``."""
    sdp: str = ""
    """Answer to a browser's offer."""


class SupervisorList(ApiModel):
    """The supervisors of a call."""

    supervisors: list[SupervisorView]


class Supervise:
    """The handlers.

    Args:
        answer_offer: answers a browser's offer.
    """

    def __init__(self, directory: Directory[Session], answer_offer: AnswerOffer) -> None:
        self._directory = directory
        self._answer_offer = answer_offer

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        path, one, tags = "/v1/calls/{id}/supervise", "/v1/calls/{id}/supervise/{leg}", ["calls"]
        return [
            Route(
                method="POST", path=path, handler=self.begin, body=SuperviseBody,
                answer=SupervisorView, tags=tags, begins_call=True,
                summary="Add a supervisor to a live call, or change a supervisor's mode",
            ),
            Route(
                method="GET", path=path, handler=self.list, answer=SupervisorList, tags=tags,
                summary="The supervisors of a live call",
            ),
            Route(
                method="PATCH", path=one, handler=self.change, body=SuperviseModeBody,
                answer=SupervisorView, tags=tags, summary="Change a supervisor's mode",
            ),
            Route(
                method="DELETE", path=one, handler=self.end, tags=tags,
                summary="End a supervisor's leg",
            ),
        ]  # fmt: skip

    async def begin(self, request: web.Request) -> web.Response:
        """Call a supervisor, answer a supervisor's browser, or change the mode of one."""
        session = live_call(self._directory, request)
        body = SuperviseBody.from_json(await request.read())
        supervisors = session.supervisors
        if body.leg:
            return web.json_response(_view(supervisors.change(body.leg, body.mode)))
        by, sdp = request[WHO].tenant, ""
        if body.to:
            made = await supervisors.call(body.to, body.mode, by=by, allowance=request[TENANT].allowance)
        else:
            supervisors.check(body.mode)
            expected: list[SupervisorLeg] = []
            sdp = await self._answer_offer(
                request, body.offer, session.call.route, session.call.correlation_id,
                lambda leg: expected.append(supervisors.expect(leg, body.mode, by=by)),
            )  # fmt: skip
            (made,) = expected
        return web.json_response(
            _view(made, sdp), status=201, headers={"Location": f"/v1/calls/{session.call_id}/supervise/{made.leg}"}
        )

    async def list(self, request: web.Request) -> web.Response:
        """Return the supervisors of a call."""
        found = live_call(self._directory, request).supervisors.views()
        return web.json_response({"supervisors": [_view(each) for each in found]})

    async def change(self, request: web.Request) -> web.Response:
        """Give a supervisor another mode."""
        session = live_call(self._directory, request)
        body = SuperviseModeBody.from_json(await request.read())
        return web.json_response(_view(session.supervisors.change(request.match_info["leg"], body.mode)))

    async def end(self, request: web.Request) -> web.Response:
        """End a supervisor's leg."""
        live_call(self._directory, request).supervisors.remove(request.match_info["leg"])
        return web.Response(status=204)


def _view(supervisor: SupervisorLeg, sdp: str = "") -> dict[str, object]:
    return SupervisorView(leg=supervisor.leg, mode=supervisor.mode, state=supervisor.guest.state, sdp=sdp).model_dump()
