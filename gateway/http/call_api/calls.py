"""The REST API of live calls: list, show, hang up, send and receive messages. ``ended_calls`` handles calls that are
over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import orjson
from aiohttp import web
from pydantic import ConfigDict, Field, model_validator

from gateway.call.directory import Directory
from gateway.call.handoff import Handoffs
from gateway.call.session import Session
from gateway.config import RouteConfig
from gateway.dialogue.observers import Observers
from gateway.dialogue.wire import INBOUND_TYPES
from gateway.errors import Rejected
from gateway.http.call_api.ended_calls import EndedCalls
from gateway.http.request.auth import IS_GOOD, TENANT, WHO
from gateway.http.request.routes import ApiModel, Route
from gateway.seams.messages import AnsweredBy
from gateway.seams.originate import Attempt, CallOrder, Originator

_LONGEST_S = 30 * 86400.0
"""Credentials that last longer end no stream of events: a timer cannot wait for all times that a token may name."""
VIEWS_AT_ONCE = 50
"""Number of views made in one turn of the loop, in half a millisecond, so that no frame waits for a long list."""


class MessageBody(ApiModel):
    """A message of the dialogue protocol, as from a dialogue manager. The other fields depend on the type."""

    model_config = ConfigDict(extra="allow")

    type: Literal[INBOUND_TYPES]  # type: ignore[valid-type]
    """Type of the message."""


class WordsBody(ApiModel):
    """Words that a client types in the caller's place, to try a bot or to help a caller who is not understood."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1, max_length=2000)
    """The words. The manager gets them as a ``prompt``, also on a route without a recogniser. They interrupt as speech
    does."""
    lang: str = Field("", max_length=35)
    """Language tag of the words. Empty: the route's language."""


class CallView(ApiModel):
    """One call as REST shows it. Names of times end in their unit."""

    model_config = ConfigDict(populate_by_name=True)

    callId: str
    callSid: str
    route: str
    transport: str
    direction: str
    from_: str = Field(alias="from")
    """The caller, as named by the carrier or the peer. Empty: not named."""
    to: str
    """The called party."""
    state: str
    """``listening``, ``speaking``, or ``draining``: all audio is made, and the caller has not heard all of it."""
    answeredBy: AnsweredBy | None
    """The latest verdict on who or what answered an outgoing call, as in the message ``answered``. None: there is
    none."""
    startedAt: float
    """Seconds since the epoch."""
    turns: int
    firstPacketMs: list[float]
    """First-packet times of the latest turns, at most 100."""
    stages: dict[str, float]
    """The last of these times by stage, in milliseconds."""
    gaps: int
    """Number of gaps in the audio of turns. ``gapS`` is their total length."""
    gapS: float
    stalls: int
    """Frames dropped because the socket buffer was full."""
    lastCutMs: float | None
    bufferedMs: int
    """Audio that waits to be sent."""
    turn: str
    """The turn that is being played, else the last one."""
    outcome: str
    """The end of that turn. Empty while it is played."""
    playedText: str
    """The last 500 characters of that turn that the caller has heard."""
    queuedText: str
    """The first 500 characters of the text to come, one line for each turn."""


class AttemptView(ApiModel):
    """A placed call that is not answered, or not yet."""

    callId: str
    """Id of the call that this attempt becomes."""
    route: str
    carrier: str
    """The carrier that places the call. Empty: the call is placed by SIP."""
    state: str
    """``calling``, ``ringing``, ``early_media``, ``answered``, ``failed``."""
    event: str
    """The last event, as in the message ``call``."""
    code: str
    """The carrier's code of that event."""
    sipStatus: int
    """Status of the callee's last answer. 0: none yet."""
    reason: str
    """The cause of a failure: ``busy``, ``no_answer``, ``declined``, ``not_found``, ``no_common_codec``,
    ``not_authorised``, ``redirected``, ``unreachable``, ``unavailable``, ``cancelled``, ``refused``, ``no_status`` (the
    carrier has reported nothing)."""
    by: str | None
    """The party that ended a failed attempt: ``caller`` (the called party), ``carrier``, ``manager``, ``gateway``."""
    q850: int | None
    """Q.850 cause of a failure. None: unknown."""
    text: str | None
    """The network's text of a failure."""
    startedAt: float
    """Seconds since the epoch."""


class CallList(ApiModel):
    """All live calls of this process."""

    calls: list[CallView]
    placed: list[AttemptView]
    """Placed calls that are not answered yet."""


class PlaceCallBody(ApiModel):
    """A call to be placed."""

    model_config = ConfigDict(extra="forbid")

    to: str = Field("", max_length=500)
    """SIP URI or number, one of ``calling.allowed_targets`` or ``sip.allowed_targets``."""
    target: str = Field("", max_length=500)
    """Another name of ``to``."""
    route: str = "default"
    """The route of the call when it is answered."""
    from_: str = Field("", alias="from", max_length=500)
    """SIP URI or number that the callee sees, one of ``calling.caller_ids``. Empty: the trunk's own."""
    carrier: str = ""
    """The carrier that places the call by its REST interface: ``twilio``, ``telnyx``, ``plivo``, ``vonage`` or
    ``signalwire``. Empty: the call is placed by SIP."""
    trunk: str = ""
    """The trunk that carries the call. Empty: the one whose proxy the target names; for a number, the first with a
    proxy."""
    headers: dict[str, str] = Field({}, max_length=50)
    """SIP headers for the callee, of ``calling.sip_headers``."""
    customParameters: dict[str, str] = Field({}, max_length=100)
    """Parameters for the dialogue manager's ``setup``. Those named by the trunk's ``headers`` also become SIP
    headers."""

    @model_validator(mode="after")
    def _one_target(self) -> PlaceCallBody:
        if bool(self.to) == bool(self.target):
            raise ValueError("expected one of to and target")
        return self


class HandoffView(ApiModel):
    """Data that a call leaves for the dialplan that continues it."""

    sessionId: str
    reason: str
    """``ended``, ``transferred``, or ``dialogue_failed``: no dialogue manager was available, and the caller still
    waits."""
    handoffData: str
    transferTarget: str


class HandoffRoute:
    """Handler of ``/v1/handoffs``, where a dialplan gets the hand-off data of a call whose stream has ended."""

    def __init__(self, handoffs: Handoffs) -> None:
        self._handoffs = handoffs

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        return [
            Route(
                method="GET", path="/v1/handoffs/{callSid}", handler=self.take,
                answer=HandoffView, tags=["calls"],
                summary="Result of a call, for the dialplan that continues it; readable once",
            )
        ]  # fmt: skip

    async def take(self, request: web.Request) -> web.Response:
        """Return the hand-off data, once. 404: there is none (the caller hung up), or it was taken before."""
        call_sid = request.match_info["callSid"]
        left = await self._handoffs.take_of_any(call_sid, request[WHO].sees)
        if left is None:
            raise Rejected(
                f"call {call_sid[:64]!r} has no hand-off data", status=404, code="unknown_call", param="callSid"
            )
        view = HandoffView(
            sessionId=left.session_id,
            reason=left.reason,
            handoffData=left.handoff_data or "",
            transferTarget=left.transfer_target,
        )
        return web.json_response(view.model_dump())


def live_call(directory: Directory[Session], request: web.Request) -> Session:
    """Return the live call in the request's path.

    Raises:
        Rejected: 404, the client sees no such live call.
    """
    call_id = request.match_info["id"]
    session = directory.get(call_id)
    if session is None or not request[WHO].sees_call(session.call.route, call_id):
        raise Rejected(f"no live call {call_id[:40]!r}", status=404, code="unknown_call", param="id")
    return session


class Calls:
    """Handlers of ``/v1/calls``."""

    def __init__(
        self,
        directory: Directory[Session],
        observers: Observers,
        routes: Mapping[str, RouteConfig],
        ended: EndedCalls,
        originator: Originator | None = None,
    ) -> None:
        self._directory = directory
        self._ended = ended
        self._observers = observers
        self._routes = routes
        self._originator = originator

    def _call(self, request: web.Request) -> Session:
        return live_call(self._directory, request)

    async def list(self, request: web.Request) -> web.Response:
        """Return all live and ringing calls that the client may see; with ``ended=true``, calls of the call log."""
        if request.query.get("ended") == "true":
            return await self._ended.list(request)
        views = []
        who = request[WHO]
        sessions = (one for one in self._directory if who.sees_call(one.call.route, one.call_id))
        for number, session in enumerate(sessions, 1):
            views.append(view(session))
            if number % VIEWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        attempts = [] if self._originator is None else self._originator.under_way()
        placed = [_attempt_view(each) for each in attempts if who.sees_call(each.route, each.call_id)]
        return web.Response(body=orjson.dumps({"calls": views, "placed": placed}), content_type="application/json")

    async def show(self, request: web.Request) -> web.Response:
        """Return one call with its statistics, the state of a call that was placed, or a call of the log."""
        attempt = self._placed(request)
        if attempt is not None and self._directory.get(attempt.call_id) is None:
            return web.json_response(_attempt_view(attempt))
        if self._directory.get(request.match_info["id"]) is None:
            return await self._ended.show(request.match_info["id"], request[WHO])
        return web.json_response(view(self._call(request)))

    async def hang_up(self, request: web.Request) -> web.Response:
        """End a call now, or stop calling."""
        attempt = self._placed(request)
        if self._originator is not None and attempt is not None and self._originator.cancel(attempt.call_id):
            return web.Response(status=204)
        self._call(request).end("hangup_by_api", hang_up=True)
        return web.Response(status=204)

    async def place(self, request: web.Request) -> web.Response:
        """Place a call. The answer comes immediately; ``GET /v1/calls/{id}`` returns the state of the call."""
        body = PlaceCallBody.from_json(await request.read())
        request[WHO].check_route(body.route, self._routes)
        if self._originator is None:
            raise Rejected("calls cannot be placed: section sip is not configured", status=503, code="not_configured")
        attempt = await self._originator.place(
            CallOrder(
                target=body.to or body.target,
                route=body.route,
                from_=body.from_,
                trunk=body.trunk,
                carrier=body.carrier,
                headers=body.headers,
                custom_parameters=body.customParameters,
                allowance=request[TENANT].allowance,
            )
        )
        headers = {"Location": f"/v1/calls/{attempt.call_id}"}
        return web.json_response(_attempt_view(attempt), status=201, headers=headers)

    def _placed(self, request: web.Request) -> Attempt | None:
        attempt = None if self._originator is None else self._originator.attempt(request.match_info["id"])
        return attempt if attempt is not None and request[WHO].sees_call(attempt.route, attempt.call_id) else None

    async def message(self, request: web.Request) -> web.Response:
        """Take any dialogue-manager message for one call."""
        self._observers.inject(self._call(request).call_id, await request.read())
        return web.Response(status=202)

    async def words(self, request: web.Request) -> web.Response:
        """Take words as if the caller had said them. The call's record names the tenant that typed them."""
        body = WordsBody.from_json(await request.read())
        self._call(request).caller.typed(body.text, body.lang, request[WHO].tenant)
        return web.Response(status=202)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Send the gateway's messages of one call, or of all calls that the client may see, as server-sent events. They
        end when its key or token expires, and with the next message after the key was revoked."""
        placed = self._placed(request) if "id" in request.match_info else None
        call_id = "" if "id" not in request.match_info else (placed or self._call(request)).call_id
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        subscription = self._observers.subscribe(
            call_id, request[WHO].sees_call, placed=placed is not None, tenant=request[WHO].tenant
        )
        left_s = request[WHO].expires - time.time()
        async with subscription as events:
            with suppress(ConnectionError, TimeoutError):  # the client has disconnected, or its time is over
                async with asyncio.timeout(left_s if left_s < _LONGEST_S else None):
                    await response.prepare(request)
                    await response.write(b": connected\n\n")
                    async for event in events:
                        if not request[IS_GOOD]():
                            break
                        await response.write(b"data: " + event.encode() + b"\n\n")
        return response


def _attempt_view(attempt: Attempt) -> dict[str, Any]:
    return AttemptView(
        callId=attempt.call_id,
        route=attempt.route,
        carrier="" if attempt.transport == "sip" else attempt.transport,
        state=attempt.state,
        event=attempt.events[-1].event if attempt.events else "",
        code=attempt.events[-1].code if attempt.events else "",
        sipStatus=attempt.status,
        reason=attempt.reason,
        by=attempt.cause.by,
        q850=attempt.cause.q850,
        text=attempt.cause.text or None,
        startedAt=attempt.started_at,
    ).model_dump()


def view(session: Session) -> dict[str, Any]:
    """Return a call's public state."""
    stats, call = session.stats, session.call
    speaking, text = session.turns.speaking(), session.spoken_text()
    return CallView(
        callId=call.call_id,
        callSid=call.call_sid,
        route=call.route,
        transport=call.transport,
        direction=call.direction,
        from_=call.from_,
        to=call.to,
        state="listening" if speaking is None else "draining" if speaking.track.done else "speaking",
        answeredBy=None if session.caller.other_end is None else session.caller.other_end.answered_by,
        startedAt=stats.started_at,
        turns=stats.turns,
        firstPacketMs=stats.first_packet_ms,
        stages={stage: round(ms, 1) for stage, ms in stats.stages_ms.items()},
        gaps=stats.gaps,
        gapS=round(stats.gap_s, 3),
        stalls=stats.stalls,
        lastCutMs=stats.last_cut_ms,
        bufferedMs=round(session.speech.playout.buffered_s() * 1000),
        turn=text.turn,
        outcome=text.outcome,
        playedText=text.played,
        queuedText=text.queued,
    ).model_dump(by_alias=True)
