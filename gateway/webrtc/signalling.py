"""WebRTC over HTTP: offers in JSON or WHIP (RFC 9725), trickled candidates, hanging up, ICE servers, CORS."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, Literal

from aiohttp import web
from aiortc import RTCIceServer
from aiortc.rtcicetransport import connection_kwargs
from pydantic import Field

from gateway.config import IceServerConfig, LimitsConfig, RouteConfig, WebRtcConfig
from gateway.errors import ProtocolError, Rejected
from gateway.http.request.auth import WHO
from gateway.http.request.routes import ApiModel, Route
from gateway.listener.forwarded import Proxies
from gateway.principal import Principal
from gateway.seams.leg import CallEvents, RtpReport
from gateway.webrtc.dialogue import BrowserDialogue
from gateway.webrtc.ice import IceSettings
from gateway.webrtc.leg import Begin, WebRtcLeg
from gateway.webrtc.peer import WebRtcPeer
from gateway.webrtc.sdp import MAX_BYTES, Offer, WebRtcCodec, read_fragment, read_offer

log = logging.getLogger(__name__)

CONNECT_S = 15.0
"""Longest time from our answer until media flows, seconds; then the call is dropped."""

_MESSAGE_BYTES = 65_536
"""Largest message on the data channel, bytes."""

_CREDENTIAL_S = 3600
"""Life of TURN credentials that are made from a `secret`, seconds. It outlives long calls."""

_PATHS = ("/v1/webrtc/", "/whip/")
_FRAGMENT = "application/trickle-ice-sdpfrag"


class OfferBody(ApiModel):
    """Body of ``POST /v1/webrtc/offer``."""

    sdp: str = Field(max_length=MAX_BYTES)
    type: Literal["offer"]
    route: str = "default"
    params: dict[Annotated[str, Field(max_length=128)], Annotated[str, Field(max_length=1024)]] = Field(
        default={}, max_length=64
    )
    """Custom parameters of the call."""
    callId: str = ""
    """Id of a call of this browser: the offer continues the call's connection, or a new connection takes it over."""


class AnswerBody(ApiModel):
    """The answer to an offer."""

    sdp: str
    type: Literal["answer"] = "answer"
    callId: str
    leads: bool
    """True: the browser may act as the dialogue manager on its data channel."""


class IceServer(ApiModel):
    """An ICE server in the form that ``RTCPeerConnection`` takes."""

    urls: list[str]
    username: str = ""
    credential: str = ""


class IceServers(ApiModel):
    """ICE servers for a browser."""

    iceServers: list[IceServer]
    ttl: int
    """Lifetime of the credentials, seconds."""


class WebRtc:
    """All WebRTC calls of a process, and the handlers that make and end them.

    Args:
        new_call_id: makes a call id, from the directory.
        check_room: raises ``Rejected`` if the process takes no more calls.
        begin: makes a session.
        on_rejected: called with the code when a call is refused after its offer was answered.
        on_report: called for every connection once a second.
        trusted_proxies: networks whose ``X-Forwarded-For`` is trusted.
    """

    def __init__(
        self,
        config: WebRtcConfig,
        routes: Mapping[str, RouteConfig],
        limits: LimitsConfig,
        *,
        new_call_id: Callable[[], str],
        check_room: Callable[[], None],
        begin: Begin,
        on_rejected: Callable[[str], None] = lambda code: None,
        on_report: Callable[[RtpReport], None] = lambda report: None,
        trusted_proxies: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._routes = routes
        self._limits = limits
        self._new_call_id = new_call_id
        self._check_room = check_room
        self._begin = begin
        self._on_rejected = on_rejected
        self._on_report = on_report
        self._proxies = Proxies(trusted_proxies)
        self._legs: dict[str, WebRtcLeg] = {}
        self._by_address: Counter[str] = Counter()
        self._closing: set[asyncio.Task[None]] = set()

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        offer, ice, publish, resource = "/v1/webrtc/offer", "/v1/webrtc/ice", "/whip/{route}", "/whip/{route}/{id}"
        tags = ["webrtc"]
        return [
            Route(
                method="POST", path=offer, handler=self.offer,
                summary="A browser's call: takes an offer, returns the answer",
                body=OfferBody, answer=AnswerBody, tags=tags, begins_call=True,
            ),
            Route(
                method="GET", path=ice, handler=self.ice,
                summary="ICE servers with time-limited credentials",
                answer=IceServers, tags=tags,
            ),
            Route(
                method="POST", path=publish, handler=self.whip_offer, takes=("application/sdp",),
                summary="WHIP: takes an offer, returns the answer",
                content_type="application/sdp", tags=tags, begins_call=True,
            ),
            Route(
                method="PATCH", path=resource, handler=self.whip_trickle,
                takes=(_FRAGMENT,),
                summary="WHIP: more candidates (204), or an ICE restart (200)", tags=tags
            ),
            Route(method="DELETE", path=resource, handler=self.whip_end,
                  summary="WHIP: hang up", tags=tags),
            *(
                Route(method="OPTIONS", path=path, handler=self.preflight, summary="CORS", tags=tags)
                for path in (offer, ice, publish, resource)
            ),
        ]  # fmt: skip

    def browser(self, call_id: str) -> BrowserDialogue | None:
        """Return the browser's part in a call's dialogue. None: it has none."""
        leg = self._legs.get(call_id)
        return None if leg is None else leg.browser

    def __len__(self) -> int:
        return len(self._legs)

    async def aclose(self) -> None:
        """End all calls of browsers, and wait until their connections are closed."""
        for leg in list(self._legs.values()):
            leg.end("shutdown")
        await asyncio.gather(*self._closing, return_exceptions=True)

    # --- handlers --------------------------------------------------------------------------------------------------

    async def offer(self, request: web.Request) -> web.Response:
        """Take a call from a browser, or a new connection of a call."""
        body = OfferBody.from_json(await request.read())
        leg, answer = await self.answer(
            body.sdp,
            request[WHO],
            route=body.route,
            parameters=body.params,
            call_id=body.callId,
            address=self._address(request),
        )
        return web.json_response(
            AnswerBody(
                sdp=answer, callId=leg.call_id, leads=leg.browser is not None and leg.browser.leads
            ).model_dump(),
            headers=_resource_headers(leg),
        )

    async def answer_joining(
        self, request: web.Request, offer: str, route: str, joined_to: str, expect: Callable[[str], object]
    ) -> str:
        """Take the leg of a browser that joins a conversation; return the answer's SDP. See ``answer``."""
        _, answer = await self.answer(
            offer, request[WHO], route=route, address=self._address(request), joined_to=joined_to, expect=expect
        )
        return answer

    async def whip_offer(self, request: web.Request) -> web.Response:
        """Take a WHIP offer. Query parameters are the call's custom parameters; ``callId`` takes a call over."""
        parameters = {name: value for name, value in request.query.items() if name not in ("callId", "access_token")}
        text = await _text(request)
        leg, answer = await self.answer(
            text, request[WHO], route=request.match_info["route"], parameters=parameters,
            call_id=request.query.get("callId", ""), address=self._address(request),
        )  # fmt: skip
        headers = _resource_headers(leg)
        response = web.Response(status=201, text=answer, content_type="application/sdp", headers=headers)
        for server in self._servers():
            for url in server.urls:
                link = f'<{url}>; rel="ice-server"'
                if server.credential:
                    link += f'; username="{server.username}"; credential="{server.credential}"'
                    link += '; credential-type="password"'
                response.headers.add("Link", link)
        return response

    async def whip_trickle(self, request: web.Request) -> web.Response:
        """Take more candidates for the ICE session named by ``If-Match``, or restart ICE (RFC 9725 section 4.3).

        A restart has ``If-Match: *``, since the peer cannot know the entity tag of the session that it asks for. Some
        clients put the asterisk into quotation marks. New credentials restart ICE under the present tag too.
        """
        leg = self._leg(request.match_info["id"], request[WHO])
        peer = leg.latest
        match = request.headers.get("If-Match", "")
        if not match:
            raise Rejected("If-Match is missing, expected the ETag of the answer", status=428, code="no_if_match")
        anyone = match in ("*", '"*"')
        if peer is None or not (anyone or match == peer.etag):
            raise Rejected("If-Match names another ICE session", status=412, code="other_session", param="If-Match")
        fragment = read_fragment(await _text(request))
        if fragment.password and (anyone or fragment.user != peer.offer.ice.usernameFragment):
            answer = await peer.restart_ice(fragment)
            return web.Response(text=answer, content_type=_FRAGMENT, headers={"ETag": peer.etag})
        await peer.trickle(fragment)
        return web.Response(status=204)

    async def whip_end(self, request: web.Request) -> web.Response:
        """Hang up."""
        self._leg(request.match_info["id"], request[WHO]).end("hangup")
        return web.Response(status=200)

    async def ice(self, request: web.Request) -> web.Response:
        """Return ICE servers for the browser."""
        answer = IceServers(iceServers=self._servers(), ttl=_CREDENTIAL_S)
        return web.json_response(answer.model_dump(), headers={"Cache-Control": "no-store"})

    async def preflight(self, request: web.Request) -> web.Response:
        """Answer a CORS preflight. ``add_cors`` adds the headers."""
        if not self._allowed(request):
            raise Rejected("this origin is not in webrtc.allowed_origins", status=403, code="origin_not_allowed")
        return web.Response(
            status=204,
            headers={
                "Access-Control-Allow-Methods": "GET, POST, PATCH, DELETE",
                "Access-Control-Allow-Headers": "Authorization, Content-Type, If-Match",
                "Access-Control-Max-Age": "600",
            },
        )

    async def add_cors(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add CORS headers at the signal ``on_response_prepare``, so that an allowed page can read errors too."""
        if request.path.startswith(_PATHS) and self._allowed(request):
            response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
            response.headers["Access-Control-Expose-Headers"] = "ETag, Link, Location, Retry-After"
            response.headers["Vary"] = "Origin"

    def _allowed(self, request: web.Request) -> bool:
        origin = request.headers.get("Origin", "")
        return bool(origin) and (origin in self._config.allowed_origins or "*" in self._config.allowed_origins)

    # --- calls -----------------------------------------------------------------------------------------------------

    async def answer(
        self,
        text: str,
        who: Principal,
        *,
        route: str = "default",
        parameters: Mapping[str, str] | None = None,
        call_id: str = "",
        address: str = "",
        joined_to: str = "",
        expect: Callable[[str], object] | None = None,
    ) -> tuple[WebRtcLeg, str]:
        """Take a call, or a new connection of call ``call_id``. Return its leg and the answer's SDP.

        Args:
            address: the peer's address, for the limit per address.
            joined_to: correlation id of the conversation that the leg joins.
            expect: gets the id of a new leg before its session begins.

        Raises:
            ProtocolError: the offer cannot be read, or there is no common codec.
            Rejected: the route or the call is unknown, or there are too many calls.
        """
        offer = read_offer(text, channel=self._config.data_channel, again=bool(call_id))
        if call_id:
            leg = self._leg(call_id, who)
            return leg, await leg.connect(offer)
        who.check_route(route, self._routes)
        self._check_room()
        if len(self._legs) >= self._limits.calls:
            raise Rejected(f"{len(self._legs)} WebRTC calls are live", status=503, code="full", retry_after_s=5)
        if self._by_address[address] >= self._config.calls_per_address:
            raise Rejected(
                f"this address has {self._config.calls_per_address} calls already (webrtc.calls_per_address)",
                status=429, code="too_many_calls", retry_after_s=5,
            )  # fmt: skip
        joins = offer.channel is not None
        leg = WebRtcLeg(
            self._new_call_id(), route, address, offer.codecs[0],
            parameters=dict(parameters or {}), make_peer=self._make_peer,
            begin=self._begin_call, forget=self._forget, later=self._later,
            browser=BrowserDialogue(self._limits, leads=who.leads) if joins else None, token=who.token,
            restart_s=self._config.restart_s,
            lead_ms=self._config.lead_ms,
        )  # fmt: skip
        leg.joined_to = joined_to
        if expect is not None:
            expect(leg.call_id)
        self._legs[leg.call_id] = leg
        self._by_address[address] += 1
        return leg, await leg.connect(offer)

    def _begin_call(self, leg: WebRtcLeg) -> CallEvents:
        try:
            return self._begin(leg)
        except Rejected as exc:
            self._on_rejected(exc.code)
            raise

    def _make_peer(self, offer: Offer, codec: WebRtcCodec, leg: WebRtcLeg) -> WebRtcPeer:
        config = self._config
        return WebRtcPeer(
            offer, codec, leg, self._ice_settings(),
            connect_timeout_s=CONNECT_S, lost_after_s=config.lost_after_s,
            max_message_bytes=_MESSAGE_BYTES, on_report=self._on_report,
            arrival=leg.arrival,
        )  # fmt: skip

    def _forget(self, leg: WebRtcLeg) -> None:
        if self._legs.pop(leg.call_id, None) is not None:
            self._by_address[leg.address] -= 1
            if not self._by_address[leg.address]:
                del self._by_address[leg.address]

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="webrtc close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _leg(self, call_id: str, who: Principal) -> WebRtcLeg:
        leg = self._legs.get(call_id)
        if leg is None or not who.sees(leg.route) or not who.holds(leg.token):
            raise Rejected(f"no live WebRTC call {call_id[:40]!r}", status=404, code="unknown_call", param="callId")
        return leg

    def _address(self, request: web.Request) -> str:
        return self._proxies.client(request.remote or "", request.headers)

    # --- ICE servers -----------------------------------------------------------------------------------------------

    def _servers(self) -> list[IceServer]:
        return [ice_server(server, _CREDENTIAL_S, now=time.time()) for server in self._config.ice_servers]

    def _ice_settings(self) -> IceSettings:
        config = self._config
        servers = []
        if config.gather_from_servers:
            servers = [
                RTCIceServer(urls=s.urls, username=s.username or None, credential=s.credential or None)
                for s in self._servers()
            ]
        found = connection_kwargs(servers)
        stun = found.pop("stun_server", None)
        return IceSettings(
            addresses=config.addresses,
            ports=config.port_range,
            public_address=config.public_address,
            stun_server=stun,
            turn=found or None,
        )


def ice_server(server: IceServerConfig, lifetime_s: int, *, now: float) -> IceServer:
    """Return a server in the form for a browser.

    With a shared secret, the user name is the expiry of the credential (seconds since the epoch), and the credential is
    its HMAC-SHA1. TURN servers can check this without a database (draft-uberti-behave-turn-rest).
    """
    if server.secret is None:
        credential = server.credential.get_secret_value() if server.credential is not None else ""
        return IceServer(urls=list(server.urls), username=server.username, credential=credential)
    username = str(int(now) + lifetime_s) + (f":{server.username}" if server.username else "")
    mac = hmac.new(server.secret.get_secret_value().encode(), username.encode(), hashlib.sha1).digest()
    return IceServer(urls=list(server.urls), username=username, credential=base64.b64encode(mac).decode())


def _resource_headers(leg: WebRtcLeg) -> dict[str, str]:
    assert leg.latest is not None
    return {"Location": f"/whip/{leg.route}/{leg.call_id}", "ETag": leg.latest.etag}


async def _text(request: web.Request) -> str:
    try:
        return (await request.read()).decode()
    except UnicodeDecodeError as exc:
        raise ProtocolError(f"body is not UTF-8: {exc}", field="sdp", code="invalid_sdp") from exc
