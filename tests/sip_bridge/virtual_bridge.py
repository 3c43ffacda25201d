"""A whole bridge on the virtual clock: everything between the socket and the session is real. The network, the sessions
and the media are played here. What leaves the bridge, either way, is written down line by line, with the time at which
it left; random names are replaced by ``A1``, ``A2`` ... in the order in which they appear."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import sip_bridge.bridge
import sip_bridge.call
from gateway.errors import Rejected
from gateway.seams.end_cause import UNKNOWN, EndCause
from gateway.seams.originate import Attempt, CallOrder
from sip_bridge.bridge import SipBridge
from sip_bridge.config import SipConfig
from sip_bridge.dialog.transaction import failure_ack
from sip_bridge.message.sdp import Agreed
from sip_bridge.message.sip import Headers, Message, Request, Response, parse, response_to
from tests.sip_bridge.phone import policy
from voicecodecs.registry import AudioFormat

SCENE = "the scene begins"
US, FAR = ("127.0.0.1", 5060), ("127.0.0.9", 7000)

_RANDOM = re.compile(
    r"z9hG4bK[0-9a-f]{24}|\b[0-9a-f]{16,64}\b|(?<=tag=)[0-9a-f]{8}\b|(?<=o=- )[0-9]+|(?<=inline:)[A-Za-z0-9+/]{40}"
)
_DULL = ("Max-Forwards", "Content-Length", "From", "Call-ID")


def description(
    *, codecs: str = "0 8 101", more: str = "", host: str = FAR[0], port: int = 40000, protocol: str = "RTP/AVP"
) -> bytes:
    """The far end's session description; ``more`` is one more attribute of its audio."""
    at = f"IN IP6 {host}" if ":" in host else f"IN IP4 {host}"
    lines = [
        "v=0", f"o=- 77 1 {at}", "s=-", f"c={at}", "t=0 0", f"m=audio {port} {protocol} {codecs}",
        "a=rtpmap:0 PCMU/8000", "a=rtpmap:8 PCMA/8000", "a=rtpmap:9 G722/8000", "a=rtpmap:101 telephone-event/8000",
    ]  # fmt: skip
    return "".join(f"{line}\r\n" for line in [*lines, *([more] if more else [])]).encode()


class Media:
    """Stands where the media stands."""

    world: VirtualBridge

    def __init__(self, *_: object, **__: object) -> None:
        self._ports: Any = None
        self.carries_dtmf = True

    def open(self, ports: Any) -> None:
        self._ports = ports

    def negotiated(self, agreed: Agreed) -> None:
        keys = [crypto.suite if crypto else "" for crypto in (agreed.send_crypto, agreed.receive_crypto)]
        what = (agreed.codec.name, agreed.codec.payload_type, agreed.receive_type, agreed.host, agreed.port)
        self.world.note("media", *what, agreed.direction.value, agreed.ptime_ms, *keys)

    def keep_formats(self, outbound: AudioFormat, inbound: AudioFormat) -> None: ...

    def send_dtmf(self, digits: str) -> bool:
        self.world.note("media sends", digits)
        return True

    def close(self) -> None:
        if self._ports:
            self.world.note("media closed")
            self._ports.close()
            self._ports = None


class Session:
    """Stands where the session stands."""

    listening = True

    def __init__(self, world: VirtualBridge, call: Any) -> None:
        self._note = world.note
        self.call = call
        self.call_id = f"VX{len(world.sessions):032x}"
        self.metered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.metered.set_result(None)
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if world.ready:
            self.ready.set_result(None)

    def on_digit(self, digit: str) -> None:
        self._note("session: digit", digit)

    def on_audio(self, payload: bytes) -> None: ...

    def on_mark(self, name: str) -> None: ...

    def on_hold(self, on_hold: bool) -> None:
        self._note("session: on hold", on_hold, self.call.listening)

    def on_described(self, *, call_sid: str, from_: str, to: str, parameters: Mapping[str, str]) -> None:
        self._note("session: described", call_sid, from_, to)

    def on_caller_changed(self, from_: str, caller_name: str) -> None:
        self._note("session: caller changed", from_, caller_name)

    def on_leg_replaced(self, leg: Any, call_sid: str) -> None:
        self.call = leg
        self._note("session: leg replaced", call_sid)

    def on_transferred(self, problem: str, status: int = 0) -> None:
        self._note("session: transferred", problem)

    def on_leg_closed(self, reason: str, cause: EndCause = UNKNOWN) -> None:
        self.cause = cause
        self._note("session: closed", reason)


class _Ports:
    def __init__(self) -> None:
        self.in_use = 0

    def take(self) -> Any:
        self.in_use += 1
        return SimpleNamespace(port=42000, rtp=None, rtcp=None, close=self._close)

    def _close(self) -> None:
        self.in_use -= 1


class VirtualBridge:
    """One bridge with one far end.

    Args:
        trunk, timeouts, more: of its configuration.
        ready: the dialogue manager is there at once.
    """

    def __init__(
        self,
        *,
        trunk: dict[str, Any] | None = None,
        timeouts: dict[str, Any] | None = None,
        ready: bool = True,
        **more: Any,
    ) -> None:
        self.lines: list[str] = []
        self.sessions: list[Session] = []
        self.ready = ready
        self.room = True
        self.answers: dict[str, int | None] = {"BYE": 200}
        """The far end's answers to new requests, sent at once; others it leaves to the script."""
        self.sent: list[Message] = []
        self.causes: list[EndCause] = []
        self._names: dict[str, str] = {}
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._answered: set[str] = set()
        Media.world = self
        config = SipConfig(
            trunks={"office": {"addresses": ["127.0.0.0/8"], **(trunk or {})}},  # type: ignore[dict-item]
            timeouts=timeouts or {},  # type: ignore[arg-type]
            allowed_targets=["*@127.0.0.9", "*@127.0.0.8"],  # type: ignore[arg-type]
            **more,
        )
        self.bridge = SipBridge(
            config,
            policy(config),
            begin=self._begin,  # type: ignore[arg-type]
            check_room=self._check_room,
            on_report=lambda report: None,
            on_rejected=lambda reason: self.note("rejected", reason),
            on_cause=self.causes.append,
            new_call_id=lambda: "VX" + "f" * 32,
            routes={"default"},
        )
        endpoint = self.bridge.endpoint
        endpoint._loop, endpoint.port = self._loop, US[1]
        endpoint._datagrams.transport = self  # type: ignore[assignment]
        self.bridge._ports = _Ports()  # type: ignore[assignment]

    def _check_room(self) -> None:
        if not self.room:
            raise Rejected("no room", status=503, code="full", retry_after_s=5)

    def _begin(self, call: Any) -> Session:
        self._check_room()
        self.sessions.append(Session(self, call))
        info = call.caller
        self.note("session begins", call.direction, info.from_, info.to, call.outbound.encoding, call.inbound.encoding)
        return self.sessions[-1]

    @property
    def session(self) -> Session:
        return self.sessions[-1]

    @property
    def call(self) -> Any:
        """The live call."""
        return next(iter(self.bridge))

    # --- the network -----------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self.note("socket closed")

    def sendto(self, data: bytes, to: tuple[str, int]) -> None:
        message = parse(data)
        self.note(f"-> {to[0]}:{to[1]}", self._text(message))
        self.sent.append(message)
        if isinstance(message, Request) and self.answers.get(message.method) and message.method != "ACK":
            self._loop.call_soon(self.answer, message, self.answers[message.method])  # type: ignore[arg-type]

    def take(self, message: Message, source: tuple[str, int] = FAR) -> None:
        """A message of the far end."""
        status = f"{message.status} " if isinstance(message, Response) else ""
        self.note(f"<- {status}{message.cseq} tag={message.to.tag}")
        self.bridge.endpoint._datagrams.datagram_received(message.serialise(), source)

    def answer(
        self, request: Request, status: int, *headers: tuple[str, str], tag: str = "a", body: bytes = b""
    ) -> None:
        """The far end's answer to our request."""
        items = [*headers, *([("Content-Type", "application/sdp")] if body else [])]
        if status < 300 and request.method in ("INVITE", "UPDATE") and "Contact" not in dict(headers):
            items.insert(0, ("Contact", f"<sip:ann@{FAR[0]}:{FAR[1]}>"))
        self.take(response_to(request, status, to_tag="" if status == 100 else tag, headers=items, body=body))

    def asked(self, method: str) -> Request:
        """Our last request of that method."""
        return next(m for m in reversed(self.sent) if isinstance(m, Request) and m.method == method)

    def reply(self, method: str, status: int, *headers: tuple[str, str], **more: Any) -> None:
        """Answer it."""
        self.answer(self.asked(method), status, *headers, **more)

    def replied(self, method: str = "INVITE") -> Response:
        """Our last response to that method."""
        return next(m for m in reversed(self.sent) if isinstance(m, Response) and m.cseq.method == method)

    # --- time ------------------------------------------------------------------------------------------------------

    async def run(self, seconds: float = 0.01) -> None:
        await asyncio.sleep(seconds)

    async def finish(self) -> list[str]:
        """Hang up what is left, wait for all timers, and say what is kept."""
        for call in self.bridge:
            call.hang_up("end of script")
        await self.run(200)
        self.note("kept", {name: n for name, n in self.bridge.kept.items() if n})
        await self.bridge.outgoing.aclose()
        return self.lines

    # --- what is noted ------------------------------------------------------------------------------------------

    def begin_scene(self) -> None:
        """Note that the call is set up; what follows belongs to the scene."""
        self.note(SCENE)

    def note(self, *what: object) -> None:
        text = _RANDOM.sub(self._name, " ".join(map(str, what)))
        self.lines.append(f"{self._loop.time() - self._began:.3f} {text}")

    def _name(self, found: re.Match[str]) -> str:
        return self._names.setdefault(found.group(), f"A{len(self._names) + 1}")

    def _text(self, message: Message) -> str:
        first = f"{message.method} {message.uri}" if isinstance(message, Request) else f"{message.status}"
        headers = "; ".join(f"{name}: {value}" for name, value in message.headers if name not in _DULL)
        return f"{first} | {headers} | {message.body.decode().replace(chr(13) + chr(10), ' ')}".rstrip(" |")


class Far:
    """The far end of one call, whichever side began it."""

    def __init__(self, world: VirtualBridge, invite: Request | None = None, tag: str = "theirs") -> None:
        self.world = world
        self.tag = tag
        self.to_tag = invite.from_.tag if invite else ""
        self.call_id = invite.call_id if invite else "call-1"
        self.cseq = 100 if invite else 0
        self._branches = 0
        self.invite: Request | None = None

    def request(
        self,
        method: str,
        *headers: tuple[str, str],
        body: bytes = b"",
        content: str = "application/sdp",
        cseq: int | None = None,
        to_tag: str | None = None,
        branch: str = "",
    ) -> Request:
        if cseq is None:
            self.cseq += 1
            cseq = self.cseq
        self._branches += 1
        tag = self.to_tag if to_tag is None else to_tag
        items = [
            ("Via", f"SIP/2.0/UDP {FAR[0]}:{FAR[1]};branch={branch or f'z9hG4bK-far-{self.call_id}-{self._branches}'}"),
            ("Max-Forwards", "70"),
            ("From", f'"Ann" <sip:+4930111@example.org>;tag={self.tag}'),
            ("To", "<sip:bot@127.0.0.1>" + (f";tag={tag}" if tag else "")),
            ("Call-ID", self.call_id),
            ("CSeq", f"{cseq} {method}"),
            ("Contact", f"<sip:ann@{FAR[0]}:{FAR[1]}>"),
            *([("Content-Type", content)] if body else []),
            *headers,
        ]
        names = [name for name, _ in headers]
        kept = (item for item in items if item[0] not in names or item in headers)
        return Request(method, f"sip:bot@{US[0]}:{US[1]}", Headers(kept), body)

    def send(self, method: str, *headers: tuple[str, str], **more: Any) -> Request:
        request = self.request(method, *headers, **more)
        self.world.take(request)
        return request

    def ack(self, *headers: tuple[str, str], body: bytes = b"") -> None:
        """Acknowledge the last answer to an INVITE."""
        response = self.world.replied()
        self.to_tag = response.to.tag
        if response.status >= 300:
            assert self.invite
            self.world.take(failure_ack(self.invite, response))
        else:
            self.send("ACK", *headers, cseq=response.cseq.number, body=body)

    def calls(self, *headers: tuple[str, str], body: bytes | None = None) -> None:
        """INVITE, outside a dialog or in one."""
        self.invite = self.send("INVITE", *headers, body=description() if body is None else body)

    async def reoffers(self, *headers: tuple[str, str], **more: Any) -> None:
        """A whole re-INVITE."""
        self.calls(*headers, body=description(**more))
        await self.world.run(0.2)
        self.ack()
        await self.world.run(0.2)


async def placed(world: VirtualBridge, **order: Any) -> Attempt:
    """Our call to the far end, its INVITE sent."""
    order = {"target": f"sip:ann@{FAR[0]}:{FAR[1]}", **order}
    try:
        attempt = await world.bridge.outgoing.place(CallOrder(**order))
    except Rejected as exc:
        world.note("order refused", exc.code)
        raise
    await world.run()
    return attempt


@contextmanager
def played() -> Iterator[None]:
    """Media is played, chance is the middle of what it may be, and certificates are not read."""
    before = sip_bridge.call.RtpLeg, secrets.randbelow, sip_bridge.bridge.client_context
    sip_bridge.call.RtpLeg = Media  # type: ignore[misc, assignment]
    secrets.randbelow = lambda n: n // 2  # type: ignore[assignment]
    sip_bridge.bridge.client_context = lambda *_: None  # type: ignore[assignment]
    try:
        yield
    finally:
        sip_bridge.call.RtpLeg, secrets.randbelow, sip_bridge.bridge.client_context = before  # type: ignore[misc]
