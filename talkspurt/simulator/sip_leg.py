"""A simulated phone that calls by SIP over UDP (RFC 3261), with only the parts that one call needs. It shares nothing
with ``sip_bridge``. Its jitter buffer has a fixed delay.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import ClassVar, cast
from urllib.parse import urlsplit

from talkspurt.simulator.carrier_leg import Leg
from talkspurt.simulator.carrier_playout import PHONE_BUFFER_S
from talkspurt.simulator.carriers.carrier import FROM, Message
from talkspurt.simulator.carriers.sip import EVENTS, PCMU, SipCarrier
from talkspurt.simulator.peer_socket import PeerSocketError

_T1_S, _T2_S = 0.5, 4.0


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, receive: Callable[[bytes], None]) -> None:
        self._receive = receive

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._receive(data)


class SipLeg(Leg):
    """The phone's end of one call."""

    delay_s: ClassVar = PHONE_BUFFER_S

    def __init__(self, carrier: SipCarrier, *, record: bool = False) -> None:
        super().__init__(carrier, record=record)
        self._phone = carrier
        self._signalling: asyncio.DatagramTransport | None = None
        self._media: asyncio.DatagramTransport | None = None
        self._sockets: list[asyncio.DatagramTransport] = []
        self._target = ""
        self._remote = ""
        """The other side's Contact, the target of requests within the call."""
        self._to = ""
        self._tag = secrets.token_hex(4)
        self._branch = f"z9hG4bK{secrets.token_hex(8)}"
        self._routes: list[str] = []
        """The proxies for requests within the call (RFC 3261 section 12.1.2)."""
        self._answer: asyncio.Future[str] | None = None
        self._accepted = False
        self._ringing = asyncio.Event()
        self._over = asyncio.Event()
        self._away = ("", 0)

    async def connect(self, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0) -> None:
        """Call ``sip:USER@HOST:PORT``. The part after a ``?`` is ignored. The call's parameters become headers
        ``X-NAME``."""
        self._target = url.partition("?")[0]
        at = urlsplit("sip://" + self._target.removeprefix("sip:"))
        server = (at.hostname or "127.0.0.1", at.port or 5060)
        loop = asyncio.get_running_loop()
        try:
            self._signalling, _ = await loop.create_datagram_endpoint(
                lambda: _Datagrams(self._received), remote_addr=server, family=socket.AF_INET
            )
            self._sockets.append(self._signalling)
            media, _ = await loop.create_datagram_endpoint(
                lambda: _Datagrams(self._heard), local_addr=("127.0.0.1", 0), family=socket.AF_INET
            )
            self._sockets.append(media)
            async with asyncio.timeout(timeout_s):
                answer = await self._invite(media.get_extra_info("sockname")[1], headers or {})
            self._away = self._address(answer)
        except PeerSocketError:
            self._close()
            raise
        except (OSError, TimeoutError) as exc:
            self._close()
            raise PeerSocketError(f"cannot connect to {url}: {exc or 'timed out'}") from exc
        self._media = media
        self._connected()

    # --- signalling ---

    async def _invite(self, port: int, headers: Mapping[str, str]) -> str:
        body = (
            f"v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
            f"m=audio {port} RTP/AVP {PCMU} {EVENTS}\r\na=rtpmap:{PCMU} PCMU/8000\r\n"
            f"a=rtpmap:{EVENTS} telephone-event/8000\r\na=ptime:20\r\n"
        )
        own = {f"X-{name}": value for name, value in self._phone.parameters.items() if name != FROM}
        more = {**headers, **own, "Content-Type": "application/sdp"}
        self._answer = asyncio.get_running_loop().create_future()
        pause_s = _T1_S
        invite = self._request("INVITE", self._target, 1, more, body)
        while not self._ringing.is_set() and not self._answer.done():  # RFC 3261 section 17.1.1.2, timer A
            self._tell(invite)
            await asyncio.wait({self._answer}, timeout=pause_s)
            pause_s *= 2
        return await self._answer

    def _request(
        self, method: str, uri: str, number: int, more: Mapping[str, str] | None = None, body: str = ""
    ) -> str:
        assert self._signalling is not None
        host, port = self._signalling.get_extra_info("sockname")[:2]
        # The ACK of a refusal is part of the INVITE's transaction (section 17.1.1.3). Every other request is a
        # transaction of its own.
        branch = f"z9hG4bK{secrets.token_hex(8)}" if self._accepted else self._branch
        lines = [
            f"{method} {uri} SIP/2.0",
            f"Via: SIP/2.0/UDP {host}:{port};branch={branch};rport",
            "Max-Forwards: 70",
            *(f"Route: {route}" for route in self._routes),
            f"From: <sip:{self._phone.parameters.get(FROM, 'caller')}@phone.invalid>;tag={self._tag}",
            f"To: {self._to or f'<{self._target}>'}",
            f"Call-ID: {self._phone.call_sid}",
            f"CSeq: {number} {method}",
            f"Contact: <sip:caller@{host}:{port}>",
            *(f"{name}: {value}" for name, value in (more or {}).items()),
            f"Content-Length: {len(body)}",
        ]
        return "\r\n".join(lines) + "\r\n\r\n" + body

    def _tell(self, message: str) -> None:
        if self._signalling is not None and not self._signalling.is_closing():
            self._signalling.sendto(message.encode())

    def _received(self, data: bytes) -> None:
        text = data.decode(errors="replace")
        head, _, body = text.partition("\r\n\r\n")
        first = head.partition("\r\n")[0]
        if first.startswith("SIP/2.0 "):
            self._response(int(first.split(" ")[1]), head, body)
        elif first.startswith("BYE "):
            self._reply(head, "200 OK")
            self._end()
        elif not first.startswith("ACK "):
            self._reply(head, "200 OK" if first.startswith("OPTIONS ") else "501 Not Implemented")

    def _response(self, status: int, head: str, body: str) -> None:
        method = _header(head, "CSeq").split(" ")[-1]
        if method == "BYE" and status >= 200:
            self._end()
        elif method == "INVITE" and status >= 200:
            self._to = _header(head, "To")
            self._remote = _header(head, "Contact").strip("<>").partition(">")[0] or self._target
            self._accepted = status < 300
            if self._accepted:
                self._routes = [route for row in reversed(_headers(head, "Record-Route"))
                                for route in reversed(re.findall(r"<[^>]*>[^,]*", row))]  # fmt: skip
            self._tell(self._request("ACK", self._remote if self._accepted else self._target, 1))
            if self._answer is not None and not self._answer.done():
                if self._accepted:
                    self._answer.set_result(body)
                else:
                    self._answer.set_exception(PeerSocketError(f"{self._target} refused the call: {status}"))
        elif method == "INVITE":
            self._ringing.set()

    def _reply(self, head: str, status: str) -> None:
        echoed = ("via", "from", "to", "call-id", "cseq")
        kept = [line for line in head.split("\r\n")[1:] if line.partition(":")[0].lower() in echoed]
        self._tell("\r\n".join([f"SIP/2.0 {status}", *kept, "Content-Length: 0", "", ""]))

    def _end(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._close()
            self._disconnected()

    def _close(self) -> None:
        for transport in self._sockets:
            transport.close()

    # --- media ---

    def _address(self, answer: str) -> tuple[str, int]:
        """Return the address for audio from the answer."""
        port = re.search(r"^m=audio (\d+) ", answer, flags=re.M)
        host = re.search(r"^c=IN IP4 (\S+)", answer, flags=re.M)
        if port is None or host is None:
            raise PeerSocketError(f"{self._target} answered without an address for audio")
        return host[1], int(port[1])

    def _heard(self, data: bytes) -> None:
        if not self._over.is_set() and self._media is not None:
            self._obey(self._phone.read(data), time.monotonic())

    # --- Leg ---

    @property
    def _open(self) -> bool:
        return self._media is not None and not self._over.is_set()

    def _write(self, message: Message) -> None:
        cast(asyncio.DatagramTransport, self._media).sendto(cast(bytes, message), self._away)

    def _shut(self) -> None:
        self._repeat(self._request("BYE", self._remote, 2), _T1_S)

    def _repeat(self, message: str, pause_s: float) -> None:
        """Send a request until the call is over (RFC 3261 section 17.1.2.2, timer E)."""
        if not self._over.is_set():
            self._tell(message)
            asyncio.get_running_loop().call_later(pause_s, self._repeat, message, min(2 * pause_s, _T2_S))

    async def _gone(self, timeout_s: float) -> None:
        if self._media is not None:
            try:
                await asyncio.wait_for(self._over.wait(), timeout_s)
            except TimeoutError:
                self._end()


def _header(head: str, name: str) -> str:
    return next(iter(_headers(head, name)), "")


def _headers(head: str, name: str) -> list[str]:
    return [found.strip() for found in re.findall(rf"^{name}\s*:\s*(.*?)\r?$", head, flags=re.M | re.I)]
