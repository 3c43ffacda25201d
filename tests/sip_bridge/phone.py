"""A phone of few manners: one UDP socket for SIP, one for RTP; says exactly what a test tells it to say."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gateway.calling.policy import CallingPolicy
from gateway.config import CallingConfig, RouteConfig
from gateway.errors import Rejected
from gateway.seams.end_cause import UNKNOWN, EndCause
from gateway.seams.leg import RtpReport
from sip_bridge.bridge import SipBridge
from sip_bridge.call import SipCall
from sip_bridge.config import SipConfig
from sip_bridge.dialog.transaction import failure_ack
from sip_bridge.io.shared_address import SharedAddress
from sip_bridge.message.sdp import Media
from sip_bridge.message.sdp import parse as parse_sdp
from sip_bridge.message.sip import Headers, Message, Request, Response, parse, response_to
from tests.waiting import PATIENCE_S as PATIENCE_S

_LASTING = ("transactions", "asked", "outgoing")

_numbers = itertools.count(1)


def policy(config: SipConfig) -> CallingPolicy:
    """Calls may go where the SIP section says, and show what they like."""
    open_to_all = CallingConfig(caller_ids=("*", "*@*"), sip_headers=("*",))
    routes = {"default": RouteConfig(), "theirs": RouteConfig(tenant="theirs")}
    return CallingPolicy(open_to_all, routes, sip_targets=config.allowed_targets)


class Told:
    """Stands where the session stands, and keeps what its leg told it."""

    listening = True
    wants_round_trip = False

    def __init__(self, call: SipCall) -> None:
        loop = asyncio.get_running_loop()
        self.call = call
        self.call_id = "VX" + "0" * 32
        self.metered: asyncio.Future[None] = loop.create_future()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.digits = ""
        self.heard: list[bytes] = []
        self.is_on_hold: bool | None = None
        self.closed: list[str] = []
        self.transferred: list[str] = []
        self.parties: list[tuple[str, str]] = []

    def on_digit(self, digit: str) -> None:
        self.digits += digit

    def on_audio(self, payload: bytes) -> None:
        self.heard.append(payload)

    def on_mark(self, name: str) -> None: ...

    def on_playback(self, *, started: bool) -> None: ...

    def on_round_trip(self, seconds: float) -> None: ...

    def on_hold(self, on_hold: bool) -> None:
        self.is_on_hold = on_hold

    def on_described(self, *, call_sid: str, from_: str, to: str, parameters: Mapping[str, str]) -> None:
        raise AssertionError("a SIP call is described by its INVITE")

    def on_caller_changed(self, from_: str, caller_name: str) -> None:
        self.parties.append((from_, caller_name))

    def on_leg_replaced(self, leg: Any, call_sid: str) -> None:
        self.call, self.call_sid = leg, call_sid

    def on_transferred(self, problem: str, status: int = 0) -> None:
        self.transferred.append(problem)

    def on_leg_closed(self, reason: str, cause: EndCause = UNKNOWN) -> None:
        self.closed.append(reason)


class Bridge:
    """A bridge whose sessions are ``Told``."""

    def __init__(
        self,
        config: SipConfig,
        *,
        ready: bool,
        metered: bool = True,
        shared: SharedAddress | None = None,
        elsewhere: Callable[[str], Any] | None = None,
    ) -> None:
        self.sessions: list[Told] = []
        self.reports: list[RtpReport] = []
        self.rejected: list[str] = []
        self.refers: list[tuple[str, str]] = []
        self.room = True
        self._ready = ready
        self._metered = metered
        self.bridge = SipBridge(
            config,
            policy(config),
            begin=self._begin,
            check_room=self._check_room,
            on_report=self.reports.append,
            on_rejected=self.rejected.append,
            on_refer=lambda direction, outcome: self.refers.append((direction, outcome)),
            new_call_id=lambda: f"VX{next(_numbers):032x}",
            routes={"default"},
            shared=shared,
            elsewhere=elsewhere,
        )

    def _check_room(self) -> None:
        if not self.room:
            raise Rejected("no room", status=503, code="full", retry_after_s=5)

    def _begin(self, call: SipCall) -> Told:
        self._check_room()
        told = Told(call)
        if self._metered:
            told.metered.set_result(None)
        if self._ready:
            told.ready.set_result(None)
        self.sessions.append(told)
        return told

    @property
    def session(self) -> Told:
        (told,) = self.sessions
        return told

    async def empty(self) -> None:
        """Every table is empty, except those that wait for 64*T1."""

        def left() -> dict[str, int]:
            return {name: n for name, n in self.bridge.kept.items() if n and name not in _LASTING}

        await until(lambda: not left(), f"empty tables: {left()}")


@asynccontextmanager
async def bridge(
    *, ready: bool = True, metered: bool = True, trunk: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[Bridge]:
    """A bridge on a free port. Nothing may be left of its calls when the block is left.

    Args:
        ready: the dialogue manager of each call is there at once.
        metered: so is the beginning of its record.
        trunk: settings of the one trunk, which lets loopback in.
    """
    config = SipConfig(
        port=0,
        rtp_ports=more.pop("rtp_ports", "42000-42999"),
        trunks={"office": {"addresses": ["127.0.0.0/8"], **(trunk or {})}, **more.pop("trunks", {})},
        **more,
    )
    made = Bridge(config, ready=ready, metered=metered)
    await made.bridge.start()
    try:
        yield made
        for call in made.bridge:
            call.hang_up("test is over")
        await made.empty()
    finally:
        await made.bridge.aclose()


async def until(condition: Callable[[], Any], what: str = "") -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


def offer(
    port: int,
    *,
    codecs: str = "0 8 9 107 101",
    more: str = "",
    protocol: str = "RTP/AVP",
    host: str = "127.0.0.1",
    version: int = 1,
) -> bytes:
    """A session description. ``more`` are further attribute lines of the audio."""
    lines = [
        "v=0",
        f"o=- 77 {version} IN IP4 {host}",
        "s=-",
        f"c=IN IP4 {host}",
        "t=0 0",
        f"m=audio {port} {protocol} {codecs}",
        "a=rtpmap:0 PCMU/8000",
        "a=rtpmap:8 PCMA/8000",
        "a=rtpmap:9 G722/8000",
        "a=rtpmap:107 opus/48000/2",
        "a=rtpmap:101 telephone-event/8000",
        *more.split(),
        "",
    ]
    return "\r\n".join(lines).encode()


class Phone:
    """One call's caller.

    Args:
        server: the port to call.
        address: ours.
    """

    def __init__(self, server: int, *, address: str = "127.0.0.1") -> None:
        self.server = ("127.0.0.1", server)
        self.address = address
        self.sip = self._socket()
        self.rtp, self._rtcp = self._media()
        self.call_id = f"call-{next(_numbers)}"
        self.from_tag = "theirs"
        self.to_tag = ""
        self.cseq = 0
        self.target = f"sip:bot@127.0.0.1:{server}"
        self.called = ""
        """The party that it called through a proxy; ``target`` then is the one that answered, reached by ``routes``."""
        self.routes: list[str] = []
        self.invite: Request | None = None
        self.media: Media | None = None
        self._acked: set[str] = set()
        self._branches = itertools.count(1)
        self._known: set[tuple[str, str]] = set()

    def _socket(self, port: int = 0) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            made.setblocking(False)
            made.bind((self.address, port))
        except (OSError, OverflowError):
            made.close()
            raise
        return made

    def _media(self) -> tuple[socket.socket, socket.socket]:
        """Sockets for RTP and RTCP at neighbouring ports, so that no socket of somebody else gets our RTCP."""
        while True:
            rtp = self._socket()
            try:
                return rtp, self._socket(rtp.getsockname()[1] + 1)
            except (OSError, OverflowError):
                rtp.close()

    @property
    def port(self) -> int:
        port: int = self.sip.getsockname()[1]
        return port

    @property
    def rtp_port(self) -> int:
        port: int = self.rtp.getsockname()[1]
        return port

    def close(self) -> None:
        self.sip.close()
        self.rtp.close()
        self._rtcp.close()

    def __enter__(self) -> Phone:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- saying ----------------------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        *headers: tuple[str, str],
        body: bytes = b"",
        cseq: int | None = None,
        branch: str = "",
        to_tag: str | None = None,
        content: str = "application/sdp",
    ) -> Request:
        """A request of this call, in its dialog once there is one."""
        if cseq is None:
            self.cseq += 1
            cseq = self.cseq
        tag = self.to_tag if to_tag is None else to_tag
        items = [
            ("Via", f"SIP/2.0/UDP {self.address}:{self.port};branch=z9hG4bK{branch or self._branch()};rport"),
            ("Max-Forwards", "70"),
            ("From", f'"Ann" <sip:+4930111@example.org>;tag={self.from_tag}'),
            ("To", f"<{self.called or self.target}>" + (f";tag={tag}" if tag else "")),
            ("Call-ID", self.call_id),
            ("CSeq", f"{cseq} {method}"),
            *(
                (("Contact", f"<sip:ann@{self.address}:{self.port}>"),)
                if method not in ("ACK", "BYE", "CANCEL")
                else ()
            ),
            *(("Route", route) for route in self.routes),
            *((("Content-Type", content),) if body else ()),
            *headers,
        ]
        names = [name for name, _ in headers]
        return Request(
            method, self.target, Headers(item for item in items if item[0] not in names or item in headers), body
        )

    def _branch(self) -> str:
        return f"{self.call_id}-{next(self._branches)}"

    def send(self, message: Message | bytes) -> None:
        self.sip.sendto(message if isinstance(message, bytes) else message.serialise(), self.server)

    def answer(self, request: Request, status: int, *headers: tuple[str, str], body: bytes = b"") -> None:
        self.send(response_to(request, status, headers=headers, body=body))

    def ack(self, response: Response, *, body: bytes = b"") -> None:
        """The ACK of a 2xx."""
        self._acked.add(str(response.cseq))
        self.send(self.request("ACK", cseq=response.cseq.number, body=body))

    # --- hearing ---------------------------------------------------------------------------------------------------

    async def receive_datagram(self) -> bytes:
        """The next message, which need not be one that can be read."""
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.sip, 65536), PATIENCE_S)

    async def receive(self) -> Message:
        """The next message; not the repetition of an answer that crossed its ACK."""
        while True:
            message = parse(await self.receive_datagram())
            if not (isinstance(message, Response) and message.status < 300 and str(message.cseq) in self._acked):
                return message

    async def response(self, status: int | None) -> Response:
        """The response of that status (None: the final one); provisional ones before it are skipped.

        A failed INVITE is acknowledged.
        """
        while True:
            message = await self.receive()
            if isinstance(message, Request) and not self.is_new(message):
                continue
            assert isinstance(message, Response), message
            if message.status >= 300 and self.invite and message.cseq == self.invite.cseq:
                self.send(failure_ack(self.invite, message))
            if message.status >= 200 or message.status == status:
                assert status is None or message.status == status, message
                return message

    async def asked(self, method: str) -> Request:
        """The next request from the bridge."""
        message = await self.receive()
        assert isinstance(message, Request) and message.method == method, message
        self.is_new(message)  # a repetition that the answer crosses is not
        return message

    def is_new(self, request: Request) -> bool:
        """True if the request is no repetition of an earlier one."""
        key = (request.method, request.via.branch)
        known = key in self._known
        self._known.add(key)
        return not known

    def nothing(self) -> bool:
        """True if nothing waits to be read now."""
        try:
            self.sip.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        return False

    # --- calling ---------------------------------------------------------------------------------------------------

    async def call(self, *headers: tuple[str, str], body: bytes | None = None, **more: Any) -> Response:
        """INVITE to ACK; returns the 200."""
        ok = await self.invited(*headers, body=body, **more)
        self.ack(ok)
        return ok

    async def invited(
        self, *headers: tuple[str, str], status: int | None = 200, body: bytes | None = None, **more: Any
    ) -> Response:
        """INVITE, up to the response of that status."""
        self.invite = self.request("INVITE", *headers, body=offer(self.rtp_port) if body is None else body, **more)
        self.send(self.invite)
        response = await self.response(status)
        self.to_tag = response.to.tag
        if response.status < 300 and not self.called and (routes := response.headers.all("Record-Route")):
            assert response.contact
            self.called, self.target, self.routes = self.target, str(response.contact.uri), [*reversed(routes)]
        if response.body:
            self.media = parse_sdp(response.body).media[0]
        return response

    async def bye(self) -> None:
        self.send(self.request("BYE"))
        await self.response(200)

    async def hung_up(self) -> Request:
        """The bridge's BYE, answered."""
        bye = await self.asked("BYE")
        self.answer(bye, 200)
        return bye

    # --- media -----------------------------------------------------------------------------------------------------

    def speak(
        self, payload: bytes, *, payload_type: int = 0, sequence: int = 1, timestamp: int = 0, ssrc: int = 7
    ) -> None:
        """One RTP packet."""
        assert self.media
        packet = struct.pack("!BBHII", 0x80, payload_type, sequence, timestamp, ssrc) + payload
        self.rtp.sendto(packet, ("127.0.0.1", self.media.port))

    async def packet(self) -> bytes:
        """The next RTP packet."""
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.rtp, 4096), PATIENCE_S)

    def waiting(self) -> set[bytes]:
        """Payloads of the RTP packets that have come and were not read."""
        found = set()
        while True:
            try:
                found.add(self.rtp.recv(4096)[12:])
            except BlockingIOError:
                return found

    async def hears(self, payload: bytes) -> int:
        """Payload type of the packet with this payload; others before it are skipped."""
        while (data := await self.packet())[12:] != payload:
            pass
        return data[1] & 0x7F
