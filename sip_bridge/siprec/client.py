"""Sends copies of calls to session recording servers (RFC 7866): one dialog for each copy, with two labelled streams,
the party on the phone and ours. Whatever the recorder does, the call itself is not touched."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.media.latch import Latch
from gateway.media.timer import DeadlineTimer
from gateway.seams.leg import CallInfo
from sip_bridge.config import SipConfig, TrunkConfig
from sip_bridge.dialog.awaited_ack import AwaitedAck
from sip_bridge.dialog.dialog import Dialog, DialogId, Refusal, dialog_id
from sip_bridge.dialog.effects import Effect, Respond
from sip_bridge.dialog.own_requests import OwnRequests
from sip_bridge.dialog.transaction import Key, cancel_of
from sip_bridge.errors import NotAcceptable, PortsExhausted, SipError, SipProtocolError, Unreachable
from sip_bridge.io.client import Client
from sip_bridge.io.endpoint import Endpoint
from sip_bridge.io.ports import PortPair
from sip_bridge.io.rtp_leg import RtpLeg
from sip_bridge.local import HeaderItems, LocalAddress, Peer
from sip_bridge.message.body import SDP, description_of
from sip_bridge.message.digest import ClientAuth
from sip_bridge.message.sdp import Agreed, Direction, Negotiation
from sip_bridge.message.sip import Address, Headers, Request, Response, Uri, response_to
from sip_bridge.next_hops import HopTarget, NextHop, NextHops, locate_hops
from sip_bridge.siprec import metadata, streams
from sip_bridge.targets import read_target
from voicecodecs.packetizer import Packetizer
from voicecodecs.pcm import to_float32

log = logging.getLogger(__name__)

_USER = "talkspurt"
_ANSWER_S = 10.0
"""Longest wait for a recorder's answer."""
_GOODBYE_S = 4.0
_GLARE_TRIES = 3
_LATE_S = 1.0
"""Sound that comes later than this after the sound before begins a new stretch of the timetable."""
_QUICK_CODECS = ("PCMU", "PCMA")
_ALLOW = ("Allow", "INVITE, ACK, BYE, CANCEL, OPTIONS, UPDATE")
_ACCEPT = ("Accept", f"application/sdp, {metadata.REQUEST_TYPE}")


class RecordingHost(Protocol):
    """The bridge, as seen by its recording sessions."""

    config: SipConfig
    trunks: dict[str, TrunkConfig]
    endpoint: Endpoint
    client: Client
    local: LocalAddress
    hops: NextHops


class _Stream:
    """One side of a call as RTP. Handles the ``RtpLegEvents``, of which none matters: a recorder sends nothing."""

    listening = False

    def __init__(self, ports: PortPair) -> None:
        self.port = ports.port
        self.leg = RtpLeg(self, Latch("strict"))
        self.leg.open(ports)
        self._packetizer: Packetizer | None = None
        self._agreed: Agreed | None = None
        self._due = 0.0

    def agree(self, agreed: Agreed | None, rate: int) -> None:
        """Send as agreed from now on. None: the recorder does not want this stream."""
        if agreed is None:
            self._packetizer = None
            return
        if self._packetizer is None or self._packetizer.format != agreed.sent_format:
            self._packetizer = Packetizer(agreed.sent_format, rate)
        if agreed != self._agreed:
            self._agreed = agreed
            self.leg.negotiated(agreed)

    def send(self, pcm: NDArray[np.float32]) -> None:
        """Send the next sound. Frames follow each other without gaps on the RTP clock, since the sound has none."""
        if self._packetizer is None:
            return
        now, frame_s = time.monotonic(), self._packetizer.format.ptime_ms / 1000
        if now - self._due > _LATE_S:
            self._due = now
        for frame in self._packetizer.push(pcm):
            self.leg.send_frame(frame, self._due)
            self._due += frame_s

    def on_audio(self, payload: bytes) -> None: ...

    def on_digit(self, digit: str) -> None: ...

    def on_round_trip(self, seconds: float) -> None: ...

    def on_leg_closed(self, reason: str) -> None: ...


class Recording:
    """The copy of one call; implements ``gateway.seams.session_recording.SessionRecording``.

    Args:
        uri: the recorder.
        trunk: the trunk at whose proxy the recorder is.
        hops: the next hops to it.
        take_ports: takes ports for one stream. Raises ``PortsExhausted``.
        rate: sample rate of the sound, Hz.
    """

    def __init__(
        self,
        host: RecordingHost,
        call: CallInfo,
        uri: Uri,
        trunk: TrunkConfig,
        hops: Iterable[NextHop],
        *,
        take_ports: Callable[[], PortPair],
        rate: int,
    ) -> None:
        self.dialog: Dialog | None = None
        """The dialog with the recorder. None: it has not answered yet."""
        self._host = host
        self._take_ports = take_ports
        self._uri = uri
        self._trunk = trunk
        self._hops = list(hops)
        self._rate = rate
        self._loop = asyncio.get_running_loop()
        self._call_id = secrets.token_hex(16)
        self._cseq = 0
        password = trunk.password.get_secret_value() if trunk.password else ""
        self._auth = ClientAuth(trunk.username, password) if trunk.username else None
        advertised = host.config.advertised
        literal = f"[{advertised}]" if ":" in advertised else advertised
        own = Uri.parse(trunk.from_uri or f"sip:{trunk.username or _USER}@{literal}")
        self._from = Address(own).with_tag(host.local.tag())
        self._metadata = _metadata(call, literal)
        self._streams: list[_Stream] = []
        self._negotiations: list[Negotiation] = []
        self._invite: Request | None = None
        self._ack: tuple[Request, Peer] | None = None
        self._hop: Peer | None = None
        self._paused = self._told_paused = False
        self._problem = ""
        """The reason for which the recorder is lost."""
        self._gone = False
        """True: the recorder has hung up."""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._changed = asyncio.Event()
        self._effects: deque[Effect] = deque()
        self._awaited_ack = AwaitedAck(self._effects, t1_s=host.config.timeouts.t1_s, t2_s=host.config.timeouts.t2_s)
        self._timer = DeadlineTimer(self, clock=self._loop.time)
        self._open: set[asyncio.Task[Response]] = set()

    # --- SessionRecording ------------------------------------------------------------------------------------------

    def put(self, pcm: bytes) -> None:
        """Send the next sound: s16le, the caller left, the bot right."""
        if self.dialog is None or self._paused or self._ended.done():
            return
        try:
            both = np.frombuffer(pcm, np.int16).reshape(-1, 2)
            for side, stream in enumerate(self._streams):
                stream.send(to_float32(np.ascontiguousarray(both[:, side])))
        except Exception:  # a bug here must not end the call
            log.exception("session recording failed")
            self._lose("internal error")

    def pause(self, paused: bool) -> None:
        """Stop sending, or continue."""
        self._paused = paused
        self._changed.set()

    def end(self) -> None:
        """End the copy."""
        if not self._ended.done():
            self._ended.set_result(None)
        self._changed.set()

    def _lose(self, problem: str) -> None:
        if not self._ended.done():
            self._problem = problem
            self.end()

    # --- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> str:
        """Run the session to its end. Return the reason if the recorder was lost; empty: the call ended first."""
        try:
            for _ in streams.LABELS:
                self._streams.append(_Stream(self._take_ports()))
            await self._begin()
            while not self._ended.done():
                self._changed.clear()
                if self._paused != self._told_paused:
                    await self._tell_paused()
                await self._changed.wait()
        except (SipError, PortsExhausted) as error:
            self._lose(str(error))
        finally:
            self._timer.close()
            for stream in self._streams:
                stream.leg.close()
            if self.dialog is not None and not self._gone:
                await self._ask_briefly("BYE")
        return self._problem

    async def _begin(self) -> None:
        """Call the recorder.

        Raises:
            SipError: it cannot be reached, refuses, or takes no stream.
        """
        response, target = None, None
        for target in await locate_hops(self._hops, ours=self._host.local.host):
            response = await self._invited(target)
            if response is None or response.status not in (408, 503):
                break
        if response is None or target is None:
            return
        if response.status >= 300:
            raise SipProtocolError(f"the recorder answers {response.status}")
        self._acknowledge(response, target.peer)
        answer = description_of(response)
        if answer is None:
            raise SipProtocolError("the recorder's answer has no session description")
        self._agree(streams.accept(self._negotiations, answer))

    def _acknowledge(self, response: Response, peer: Peer) -> None:
        assert self._invite is not None
        self.dialog = dialog = Dialog.as_client(self._invite, response)
        requests = OwnRequests(peer, self._host.local, None, self._effects)
        self._hop = requests.hop(dialog) if requests.can_reach(dialog) else peer
        self._send_ack(self._invite)

    def _send_ack(self, invite: Request) -> None:
        assert self.dialog is not None and self._hop is not None
        proofs = [(name, value) for name, value in invite.headers if name in ("Authorization", "Proxy-Authorization")]
        via = self._host.local.via(self._hop.transport)
        self._ack = self.dialog.request("ACK", via, cseq=invite.cseq.number, headers=proofs), self._hop
        self._host.endpoint.send(*self._ack)

    def _agree(self, agreed: list[Agreed | None]) -> None:
        for stream, each in zip(self._streams, agreed, strict=True):
            stream.agree(each, self._rate)

    async def _invited(self, target: HopTarget) -> Response | None:
        """Call one address. None: the call has ended meanwhile."""
        local, peer, trunk = self._host.local, target.peer, self._trunk
        codecs = [codec for codec in trunk.codecs if codec in _QUICK_CODECS] or list(trunk.codecs)
        self._negotiations = [
            Negotiation(host=local.host, port=each.port, peer_host=peer.host, codecs=codecs, srtp=trunk.srtp)
            for each in self._streams
        ]
        description = streams.offer(self._negotiations, wish=self._wish)
        content_type, body = streams.body(description, self._metadata)

        def make(headers: HeaderItems) -> Request:
            self._cseq += 1
            items = [
                ("Via", str(local.via(peer.transport))),
                *(("Route", route) for route in target.routes),
                ("Max-Forwards", "70"),
                ("From", str(self._from)),
                ("To", f"<{self._uri}>"),
                ("Call-ID", self._call_id),
                ("CSeq", f"{self._cseq} INVITE"),
                ("Contact", self._contact(peer)),
                ("Require", "siprec"),
                _ALLOW,
                _ACCEPT,
                *headers,
                ("MIME-Version", "1.0"),
                content_type,
            ]
            self._invite = Request("INVITE", str(self._uri), Headers(items), body)
            return self._invite

        asking = self._loop.create_task(self._host.client.ask(make, peer, auth=self._auth))
        news: list[asyncio.Future[Any]] = [asking, self._ended]
        await asyncio.wait(news, timeout=_ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
        assert self._invite is not None
        self._open.add(asking)
        asking.add_done_callback(partial(self._answered_late, self._invite, peer))
        self._host.endpoint.request(cancel_of(self._invite), peer)
        return None if self._ended.done() else response_to(self._invite, 408)

    def _answered_late(self, invite: Request, peer: Peer, asking: asyncio.Task[Response]) -> None:
        """Hang up if the answer crossed our CANCEL."""
        self._open.discard(asking)
        if asking.cancelled() or asking.exception() is not None or not 200 <= asking.result().status < 300:
            return
        with contextlib.suppress(SipProtocolError):
            dialog = Dialog.as_client(invite, asking.result())
            endpoint, local = self._host.endpoint, self._host.local
            endpoint.send(dialog.request("ACK", local.via(peer.transport), cseq=invite.cseq.number), peer)
            endpoint.request(dialog.request("BYE", local.via(peer.transport)), peer)

    def _contact(self, peer: Peer) -> str:
        return f"<{self._host.local.contact(peer.transport, _USER)}>;+sip.src"

    @property
    def _wish(self) -> Direction:
        return Direction.INACTIVE if self._paused else Direction.SENDONLY

    # --- our requests in the dialog ------------------------------------------------------------------------------

    async def _ask(self, method: str, headers: HeaderItems = (), body: bytes = b"") -> Response:
        assert self.dialog is not None and self._hop is not None
        dialog, hop = self.dialog, self._hop

        def make(proofs: HeaderItems) -> Request:
            via = self._host.local.via(hop.transport)
            request = dialog.request(method, via, headers=[*headers, *proofs], body=body)
            if method == "INVITE":
                self._invite = request
            return request

        return await self._host.client.ask(make, hop, auth=self._auth)

    async def _ask_briefly(self, method: str, headers: HeaderItems = (), body: bytes = b"") -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await self._ask(method, headers, body)

    async def _tell_paused(self) -> None:
        """Offer the streams as inactive, or as sent again (RFC 7866 section 7.1.1.3)."""
        assert self.dialog is not None and self._hop is not None
        dialog, paused = self.dialog, self._paused
        for tries in range(1, _GLARE_TRIES + 1):
            if dialog.invited or self._awaited_ack.deadline() is not None:
                await asyncio.sleep(0.1 * tries)
                continue
            dialog.inviting = True
            description = streams.offer(self._negotiations, wish=self._wish, refresh=True)
            try:
                response = await self._ask("INVITE", [("Contact", self._contact(self._hop)), _ALLOW, SDP], description)
            finally:
                dialog.inviting = False
            if self._ended.done() and self._gone:
                return
            if 200 <= response.status < 300:
                assert self._invite is not None
                dialog.refresh(response)
                self._send_ack(self._invite)
                answer = description_of(response)
                if answer is not None:
                    self._agree(streams.accept(self._negotiations, answer))
                break
            for each in self._negotiations:
                each.withdraw()
            if response.status in (408, 481):
                self._gone = response.status == 481
                raise SipProtocolError(f"the recorder answers {response.status}")
            if response.status != 491:
                break  # the recorder knows no pause; nothing is sent anyway
            await asyncio.sleep(dialog.glare_wait_s(secrets.randbelow(100) / 100))
        self._told_paused = paused

    # --- the recorder's requests ---------------------------------------------------------------------------------

    def on_request(self, key: Key, request: Request) -> None:
        """Handle a request in the dialog."""
        assert self.dialog is not None
        try:
            offered = (
                description_of(request) if request.method in ("INVITE", "UPDATE") and self._has_sdp(request) else None
            )
            wait_s = secrets.randbelow(11)
            refusal = self.dialog.check(request, offers=offered is not None, retry_after_s=wait_s)
            if refusal is None:
                match request.method:
                    case "BYE":
                        self._respond(key, request, 200)
                        self._gone = True
                        self._lose("the recorder has hung up")
                    case "INVITE" | "UPDATE":
                        self._on_offer(key, request, offered)
                    case "OPTIONS":
                        self._respond(key, request, 200, [_ALLOW, _ACCEPT])
                    case _:
                        refusal = Refusal(405, (_ALLOW,))
        except (SipProtocolError, NotAcceptable) as error:
            refusal = Refusal(error.status)
        if refusal is not None:
            self._respond(key, request, refusal.status, refusal.headers)

    @staticmethod
    def _has_sdp(request: Request) -> bool:
        return bool(request.body.strip()) and request.content_type != metadata.REQUEST_TYPE

    def _on_offer(self, key: Key, request: Request, offered: object) -> None:
        assert self.dialog is not None and self._hop is not None
        self.dialog.refresh(request)
        contact = ("Contact", self._contact(self._hop))
        if offered is not None:
            description = description_of(request)
            assert description is not None
            body = streams.answer(self._negotiations, description, wish=self._wish)
            self._agree([each.agreed for each in self._negotiations])
        elif request.method == "INVITE":
            body = streams.offer(self._negotiations, wish=self._wish, refresh=True)
        else:
            body = b""
        response = self._respond(key, request, 200, [contact, _ALLOW, *([SDP] if body else [])], body)
        if request.method == "INVITE":
            offers = offered is None
            self._awaited_ack.begin(self.dialog, key, response, offers=offers, now=self._loop.time())
            self._timer.arm()
        if request.content_type == metadata.REQUEST_TYPE:
            disposition = ("Content-Disposition", "recording-session")
            headers = [contact, ("Content-Type", metadata.TYPE), disposition]
            task = self._loop.create_task(self._ask("UPDATE", headers, self._metadata))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    def _respond(
        self, key: Key, request: Request, status: int, headers: HeaderItems = (), body: bytes = b""
    ) -> Response:
        response = response_to(request, status, headers=headers, body=body)
        self._host.endpoint.respond(key, response)
        return response

    def on_ack(self, ack: Request) -> None:
        """Handle the ACK of our 2xx."""
        waiting = self._awaited_ack.take(ack)
        self._timer.arm()
        if waiting is not None and waiting.offers:
            try:
                answer = description_of(ack)
                if answer is None:
                    raise SipProtocolError("ACK without the answer to our offer")
                self._agree(streams.accept(self._negotiations, answer))
            except SipError:
                for each in self._negotiations:
                    each.withdraw()

    def on_response(self, response: Response) -> None:
        """Handle a repeated response: the recorder did not get our ACK."""
        if self._ack is not None and 200 <= response.status < 300 and response.cseq.method == "INVITE":
            if response.cseq.number == self._ack[0].cseq.number:
                self._host.endpoint.send(*self._ack)

    def deadline(self) -> float | None:
        """Return the time at which ``on_timer`` must be called."""
        return self._awaited_ack.deadline()

    def on_timer(self, now: float) -> None:
        """Repeat our 2xx until its ACK comes."""
        self._awaited_ack.tick(now=now)
        while self._effects:
            effect = self._effects.popleft()
            if isinstance(effect, Respond):
                self._host.endpoint.respond(effect.key, effect.response)
        self._timer.arm()

    def uses(self, peer: Peer) -> bool:
        """Return True if the recorder's messages go to this peer."""
        return peer == self._hop


class RecordingClient:
    """All recording sessions; implements ``gateway.seams.session_recording.SessionRecordingClient``.

    Args:
        take_ports: takes ports for one stream. Raises ``PortsExhausted``.
        on_lost: counts sessions that the recorder did not take to the end, by reason.
    """

    def __init__(
        self, host: RecordingHost, take_ports: Callable[[], PortPair], *, on_lost: Callable[[str], None]
    ) -> None:
        self._host = host
        self._take_ports = take_ports
        self._on_lost = on_lost
        self._all: dict[Recording, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def record(self, call: CallInfo, recorder: str, *, rate: int, on_lost: Callable[[str], None]) -> Recording:
        """Begin the copy of a call; see ``SessionRecordingClient``."""
        uri = Uri.parse(recorder)
        name = self._host.hops.serving(uri)
        trunk = self._host.trunks[name] if name else TrunkConfig.model_construct()
        hops = self._host.hops.hops(name) if name else [NextHop(uri)]
        recording = Recording(self._host, call, uri, trunk, hops, take_ports=self._take_ports, rate=rate)
        self._all[recording] = asyncio.get_running_loop().create_task(
            self._run(recording, call, on_lost), name=f"recording of {call.call_id}"
        )
        return recording

    async def _run(self, recording: Recording, call: CallInfo, on_lost: Callable[[str], None]) -> None:
        problem = "internal error"
        try:
            problem = await recording.run()
        except Exception:  # a bug in one copy ends only that copy
            log.exception("session recording failed", extra={"call": call.call_id})
        finally:
            recording.end()
            del self._all[recording]
        if problem:
            log.warning("session recording lost", extra={"call": call.call_id, "why": problem})
            self._on_lost("recorder")
            on_lost(problem)

    def _of(self, dialog: DialogId) -> Recording | None:
        return next((each for each in self._all if each.dialog is not None and each.dialog.id == dialog), None)

    def on_request(self, key: Key, request: Request) -> bool:
        """Handle a request. True: it is of one of these dialogs."""
        recording = self._of(dialog_id(request, received=True))
        if recording is not None:
            recording.on_request(key, request)
        return recording is not None

    def on_ack(self, ack: Request) -> None:
        """Handle the ACK of a 2xx."""
        recording = self._of(dialog_id(ack, received=True))
        if recording is not None:
            recording.on_ack(ack)

    def on_response(self, response: Response) -> None:
        """Handle a response to a request whose outcome is known."""
        recording = self._of(dialog_id(response, received=True))
        if recording is not None:
            recording.on_response(response)

    def uses(self, peer: Peer) -> bool:
        """Return True if a recorder's messages go to this peer."""
        return any(each.uses(peer) for each in self._all)

    def drop(self) -> None:
        """End all sessions."""
        for each in list(self._all):
            each.end()

    async def aclose(self) -> None:
        """End all sessions, and wait until they are over."""
        self.drop()
        await asyncio.gather(*self._all.values(), return_exceptions=True)


def _metadata(call: CallInfo, host: str) -> bytes:
    """Return the metadata of a call. Numbers belong to ``host``."""
    ours, theirs = (call.to, call.from_) if call.direction == "inbound" else (call.from_, call.to)
    name = call.caller_name if call.direction == "inbound" else ""
    phone, bot = streams.LABELS
    participants = (
        metadata.Participant(_aor(theirs, host), name, phone),
        metadata.Participant(_aor(ours, host), "", bot),
    )
    session_id = base64.b64encode(bytes.fromhex(call.call_id.removeprefix("VX"))).decode()
    return metadata.metadata(session_id, datetime.datetime.now(datetime.UTC), participants)


def _aor(party: str, host: str) -> str:
    try:
        return str(read_target(party, host))
    except (SipProtocolError, Unreachable):
        return f"sip:anonymous@{host}"
