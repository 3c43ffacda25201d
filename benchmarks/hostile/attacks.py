"""The attacks. Each runs for a while against a server on loopback, from a process of its own, and says what it did.
The process says ``ready`` and begins when it is sent a line.

python attacks.py '{"http": ["127.0.0.1", 8080], "sip": 5060, "seconds": 5, "names": ["pings"]}'
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import hmac
import json
import random
import re
import secrets
import socket
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field

from gateway.carriers.signatures import twilio_signature
from gateway.listener.server import raise_open_files
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.carriers.signalwire import SignalWireCarrier
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from talkspurt.simulator.peer_socket import PeerSocketError

ROUTE = "hostile"
SECRET = "a-secret-of-carriers-that-sign"
"""Signs the webhooks that are copied."""
LONG_CLIPS, CLIPS_AT_ONCE = 4_000, 12
"""Number of clips of ten minutes in the clip folder, of the names ``long-0.mp3`` and so on, and of those that play at
once."""
MEDIA_BYTES_PER_S = 1_000_000
"""How fast one media socket floods."""
WEBHOOKS: dict[str, dict[str, str]] = {
    "twilio": {"CallSid": "c1", "From": "+4930000001", "To": "+4930000002"},
    "signalwire": {"CallSid": "c1", "From": "+4930000001", "To": "+4930000002"},
    "telnyx": {"CallSid": "c1", "From": "+4930000001", "To": "+4930000002"},
    "plivo": {"CallUUID": "c1", "From": "+4930000001", "To": "+4930000002"},
    "exotel": {"CallSid": "c1", "CallFrom": "+4930000001", "CallTo": "+4930000002"},
    "vonage": {"uuid": "c1", "from": "+4930000001", "to": "+4930000002"},
    "jambonz": {"call_sid": "c1", "from": "+4930000001", "to": "+4930000002"},
}
"""Each dialect with webhooks, and the fields of a call that comes."""
_JSON = ("vonage", "jambonz")


@dataclass(frozen=True, slots=True)
class Target:
    """What is attacked, and for how long."""

    http: tuple[str, int]
    sip: int
    seconds: float
    sips: int = 0
    """Port of SIP over TLS. 0: there is none."""
    audiosocket: int = 0
    """Port of Asterisk's AudioSocket. 0: there is none."""

    def over(self, began: float) -> bool:
        return time.monotonic() - began >= self.seconds


@dataclass(slots=True)
class Done:
    """What an attack did."""

    bytes_sent: int = 0
    bytes_received: int = 0
    tried: int = 0
    accepted: int = 0
    """How many of the tries the server should have refused but did not."""
    answers: dict[str, int] = field(default_factory=dict)

    def answered(self, status: str) -> None:
        self.answers[status] = self.answers.get(status, 0) + 1


Attack = Callable[[Target, Done], Awaitable[None]]


async def _paced(target: Target, per_s: float) -> AsyncIterator[int]:
    """Yield 0, 1, 2 … at a steady rate until the attack's time is over."""
    began, number = time.monotonic(), 0
    while not target.over(began):
        while number < per_s * (time.monotonic() - began):
            yield number
            number += 1
        await asyncio.sleep(0.005)


def _source(number: int) -> str:
    """Return one of the addresses 127.1.0.1 to 127.255.255.254, which are all this machine's."""
    return f"127.{1 + number // 64516 % 255}.{number // 254 % 254}.{1 + number % 254}"


# --- SIP -------------------------------------------------------------------------------------------------------------


def sip_request(method: str, number: int, *, extra: str = "", tag: str = "") -> bytes:
    """Return a request in the short form of header names, which makes an answer large beside it."""
    return (
        f"{method} sip:1@127.0.0.1 SIP/2.0\r\nv:SIP/2.0/UDP 127.0.0.9;branch=z9hG4bK{number}\r\n"
        f"f:<sip:a@b>;tag={number}\r\nt:<sip:1@b>{tag}\r\ni:{number}\r\nCSeq:1 {method}\r\n{extra}\r\n"
    ).encode()


def _datagram(number: int) -> bytes:
    method = ("OPTIONS", "INVITE", "BYE", "REGISTER", "FROB", "UPDATE", "CANCEL", "ACK")[number % 8]
    in_dialog = ";tag=x" if method in ("BYE", "UPDATE") else ""
    return sip_request(method, number, tag=in_dialog)


async def sip_flood(target: Target, done: Done) -> None:
    """1000 requests a second of 500 strangers: every method, in and out of dialogs."""
    sources = []
    for number in range(500):
        source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        source.bind((_source(7919 * number), 0))
        source.setblocking(False)
        sources.append(source)
    try:
        async for number in _paced(target, 1000):
            await _send_datagram(sources[number % len(sources)], _datagram(number), target, done)
        await asyncio.sleep(1)  # answers that come late count too
        _read_datagrams(sources, done)
    finally:
        for source in sources:
            source.close()


async def _send_datagram(source: socket.socket, data: bytes, target: Target, done: Done) -> None:
    with contextlib.suppress(BlockingIOError):
        done.bytes_sent += source.sendto(data, ("127.0.0.1", target.sip))
        done.tried += 1


def _read_datagrams(sources: Sequence[socket.socket], done: Done) -> None:
    for source in sources:
        with contextlib.suppress(BlockingIOError):
            while data := source.recv(65536):
                done.bytes_received += len(data)
                done.answered(data.partition(b"\r\n")[0].decode(errors="replace")[:30])


def worst_datagrams() -> list[bytes]:
    """Return messages that took a parser long: the same byte often, where something is looked for that never comes."""
    head = b"OPTIONS sip:1@127.0.0.1 SIP/2.0\r\n"
    sizes = (8_000, 30_000, 60_000)
    return [
        *(b"OPTIONS x" + b" " * size + b"y" for size in sizes),
        *(head + b"Via: SIP/2.0/UDP " + b" " * size + b"\r\n\r\n" for size in sizes),
        *(head + b"Via: " + b"a;" * (size // 2) + b"\r\n\r\n" for size in sizes),
        *(head + b"From: " + b'"\\' * (size // 2) + b"\r\n\r\n" for size in sizes),
        *(head + b"To: " + b"<" * size + b"\r\n\r\n" for size in sizes),
        *(head + b"Contact: " + b"," * size + b"\r\n\r\n" for size in sizes),
        *(head + b"Authorization: Digest " + b"a=," * (size // 3) + b"\r\n\r\n" for size in sizes),
        *(head + b"X: y\r\n" * (size // 6) + b"\r\n" for size in sizes),
        *(head + b"X: y\r\n" + b" y\r\n" * (size // 4) + b"\r\n" for size in sizes),
        *(head + b"Content-Length: " + b"0" * size + b"\r\n\r\n" for size in sizes),
        *(head + b"Content-Length:" + b" " * size + b"\r\n\r\n" for size in sizes),
        sip_request("INVITE", 1, extra="c:application/sdp\r\n") + b"m=" + b"a " * 30_000,
        sip_request("INVITE", 2, extra="c:application/sdp\r\n") + b"v=0\r\n" + b"a=rtpmap:0 x\r\n" * 4_000,
    ]


async def sip_worst(target: Target, done: Done) -> None:
    """The messages that are hardest to read, 50 a second, each of another address, by UDP and by TCP."""
    messages = worst_datagrams()
    async for number in _paced(target, 50):
        data = messages[number % len(messages)]
        if number % 4:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source:
                source.bind((_source(100_000 + number), 0))
                await _send_datagram(source, data, target, done)
        else:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", target.sip, local_addr=(_source(100_000 + number), 0)
                )
                writer.write(data)
                done.tried += 1
                asyncio.get_running_loop().call_later(1, writer.close)


RTP_PORTS, WEBRTC_PORTS = (20_000, 20_999), (21_000, 21_007)
"""The server's ports for RTP, of which calls take the first ones, and for browsers' calls."""
_USED_PORTS = 64
_OF_STRANGERS = (
    b"\x80\x00\x00\x01" + bytes(8) + b"\xff" * 160,  # RTP, PCMU
    b"\x80\xc8\x00\x06" + bytes(24),  # RTCP, sender report
    b"\x81\xcb\x00\x01" + bytes(4),  # RTCP, BYE
    b"\x00\x01\x00\x00\x21\x12\xa4\x42" + bytes(12),  # STUN, binding request without a signature
    b"\x16\xfe\xfd" + bytes(8) + b"\x00\x64\x01" + bytes(99),  # DTLS, the head of a ClientHello
    b"\x80" * 1400,
)
"""Datagrams that reach the port of a call: RFC 3550, 8489 and 9147."""


async def rtp_of_strangers(target: Target, done: Done) -> None:
    """3000 datagrams a second of 50 strangers to the ports of running SIP calls."""
    await _to_ports_of_calls(target, done, range(RTP_PORTS[0], RTP_PORTS[0] + _USED_PORTS))


async def webrtc_of_strangers(target: Target, done: Done) -> None:
    """The same to the ports of browsers' calls, while they connect and later."""
    await _to_ports_of_calls(target, done, range(WEBRTC_PORTS[0], WEBRTC_PORTS[1] + 1))


async def _to_ports_of_calls(target: Target, done: Done, ports: Sequence[int]) -> None:
    with contextlib.ExitStack() as stack:
        sources = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(50)]
        for number, source in enumerate(sources):
            source.bind((_source(500_000 + number), 0))
            source.setblocking(False)
        async for number in _paced(target, 3000):
            with contextlib.suppress(BlockingIOError, ConnectionError):
                data, source = _OF_STRANGERS[number % len(_OF_STRANGERS)], sources[number % len(sources)]
                done.bytes_sent += source.sendto(data, ("127.0.0.1", random.choice(ports)))
                done.tried += 1


# --- HTTP ------------------------------------------------------------------------------------------------------------


def _request(method: str, path: str, body: bytes = b"", *headers: str, host: str = "127.0.0.1") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def ask(target: Target, request: bytes, number: int = 0, *, wait_s: float = 5.0) -> tuple[str, bytes]:
    """Send a request on a connection of its own.

    Args:
        number: chooses the address that the request comes from.

    Returns:
        the status, ``none`` if nothing came in time; and the body.
    """
    try:
        async with asyncio.timeout(wait_s):
            reader, writer = await asyncio.open_connection(*target.http, local_addr=(_source(number), 0))
            try:
                writer.write(request)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                head = await reader.readuntil(b"\r\n\r\n")
                status = head.split(b" ", 2)[1].decode()
                length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
                body = b"" if status == "101" or length is None else await reader.readexactly(int(length[1]))
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError):
        return "none", b""
    return status, body


async def _asking(target: Target, done: Done, per_s: float, request: Callable[[int], bytes], *, most: int = 50) -> None:
    """Send ``request(0)``, ``request(1)`` … at a rate, at most ``most`` at a time."""
    gate, tasks = asyncio.Semaphore(most), set()

    async def one(number: int) -> None:
        async with gate:
            status, _ = await ask(target, request(number), number)
            done.answered(status)

    async for number in _paced(target, per_s):
        done.tried += 1
        tasks.add(task := asyncio.create_task(one(number)))
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


async def _hold(
    target: Target,
    done: Done,
    count: int,
    opening: Callable[[int], bytes] = lambda number: b"",
    drip: bytes = b"",
    *,
    ports: Sequence[int] = (),
    sources: Sequence[int] = range(20),
) -> None:
    """Keep ``count`` connections open: send ``opening``, then ``drip`` every second. Those that the server closes are
    opened again.

    Args:
        ports: the ports that the connections go to in turn. None: HTTP's.
        sources: numbers of the addresses that they come from in turn.
    """

    async def one(number: int) -> None:
        host, port = target.http[0], (ports or target.http[1:])[number % max(1, len(ports))]
        source = (_source(sources[number % len(sources)]), 0)
        while not target.over(began):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(host, port, local_addr=source)
                done.tried += 1
                try:
                    writer.write(opening(number))
                    while not target.over(began) and not reader.at_eof():
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(reader.read(4096), 1)
                        writer.write(drip)
                finally:
                    writer.close()
            await asyncio.sleep(0.2)

    began = time.monotonic()
    await asyncio.gather(*map(one, range(count)))


async def idle_sockets(target: Target, done: Done) -> None:
    """1000 connections of 20 addresses that send nothing."""
    await _hold(target, done, 1000)


async def crowd_of_one(target: Target, done: Done) -> None:
    """1000 connections of one address that send nothing, more than it may have."""
    await _hold(target, done, 1000, sources=[77])


async def sip_crowd_of_one(target: Target, done: Done) -> None:
    """1000 connections of one address to SIP's TCP and TLS ports: no byte comes, and no TLS handshake begins."""
    await _hold(target, done, 1000, ports=[target.sip, target.sips], sources=[78])


async def audiosocket_crowd(target: Target, done: Done) -> None:
    """1000 connections of 20 switches that name no call, twice as many as the port has."""
    await _hold(target, done, 1000, ports=[target.audiosocket])


async def slow_requests(target: Target, done: Done) -> None:
    """300 connections that send a head or a body one byte a second."""

    def opening(number: int) -> bytes:
        if number % 2:
            return b"POST /webhooks/twilio HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
        return b"POST /webhooks/twilio HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000\r\n\r\n"

    await _hold(target, done, 300, opening, b"x")


def webhook(dialect: str, what: str = "", *headers: str) -> bytes:
    """Return a webhook that proves nothing, or something false."""
    fields = WEBHOOKS[dialect]
    if dialect in _JSON:
        body, kind = json.dumps(fields).encode(), "application/json"
    else:
        body, kind = "&".join(f"{k}={v}" for k, v in fields.items()).encode(), "application/x-www-form-urlencoded"
    return _request("POST", f"/webhooks/{dialect}/default{what}", body, f"Content-Type: {kind}", *headers)


def webhooks(dialect: str) -> list[bytes]:
    """Return webhooks of a dialect that all have to be refused where strangers reach us."""
    return [
        webhook(dialect),
        webhook(dialect, "/after?call=c1"),
        webhook(dialect, "/status"),
        webhook(dialect, "?bodySHA256=%C3%A9"),
        webhook(dialect, "", "X-Twilio-Signature: AAAA", "X-SignalWire-Signature: AAAA"),
        webhook(dialect, "", "X-Plivo-Signature-V3: AAAA", "X-Plivo-Signature-V3-Nonce: 1"),
        webhook(dialect, "", "Telnyx-Signature-Ed25519: AAAA", "Telnyx-Timestamp: 1"),
        webhook(dialect, "", "Authorization: Bearer eyJhbGciOiJub25lIn0.e30."),
        webhook(dialect, "", "Jambonz-Signature: t=1,v1=AAAA", "X-Forwarded-For: 127.0.0.1", "Host: 127.0.0.1"),
    ]


async def unsigned_webhooks(target: Target, done: Done) -> None:
    """200 webhooks a second of all dialects, without proof, with a false one, and again and again the same."""
    everything = [request for dialect in WEBHOOKS for request in webhooks(dialect)]
    await _asking(target, done, 200, lambda number: everything[number % len(everything)])


@dataclass(frozen=True, slots=True)
class _Copied:
    """A signed webhook that a stranger has seen."""

    path: str
    body: bytes
    headers: tuple[str, ...]
    answer: bytes

    def sent(self, path: str = "", body: bytes | None = None, method: str = "POST") -> bytes:
        """Return it as a request, changed where something is given."""
        return _request(method, path or self.path, self.body if body is None else body, *self.headers)


async def _let_in(target: Target, connect: Callable[[], Awaitable[None]]) -> None:
    """Connect, and again if a server that is full closes the connection in favour of another one: this process is slow
    to send its request while its other attacks keep it busy. Raises PeerSocketError when the attack's time is over."""
    began = time.monotonic()
    while True:
        try:
            return await connect()
        except PeerSocketError:
            if target.over(began):
                raise
            await asyncio.sleep(0.05)


async def _carriers_own(target: Target, request: bytes) -> bytes:
    """Send a webhook as its carrier, again if nothing comes, and return the answer."""
    found = b""

    async def send() -> None:
        nonlocal found
        status, found = await ask(target, request, 1)
        if status == "none":
            raise PeerSocketError("the carrier's own webhook got no answer")
        if status != "200":
            raise RuntimeError(f"the carrier's own webhook got {status}: {found[:200]!r}")

    await _let_in(target, send)
    return found


async def _copied_form(target: Target, call: str) -> _Copied:
    """Send a webhook whose signature covers address and form, as the carrier."""
    path, form = f"/webhooks/signalwire/{ROUTE}", {"CallSid": call, "From": "+4930000001"}
    url = f"http://127.0.0.1{path}"
    signature = twilio_signature(SECRET, url, {name: [value] for name, value in form.items()})
    headers = (f"X-SignalWire-Signature: {signature}", "Content-Type: application/x-www-form-urlencoded")
    body = f"CallSid={call}&From=%2B4930000001".encode()
    return _Copied(path, body, headers, await _carriers_own(target, _request("POST", path, body, *headers)))


async def _copied_json(target: Target, call: str) -> _Copied:
    """Send a webhook whose signature covers the body and no address, as the carrier."""
    path, body, at = f"/webhooks/jambonz/{ROUTE}", json.dumps({"call_sid": call}).encode(), int(time.time())
    mac = hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    headers = (f"Jambonz-Signature: t={at},v1={mac}", "Content-Type: application/json")
    return _Copied(path, body, headers, await _carriers_own(target, _request("POST", path, body, *headers)))


def _respelt(form: _Copied, call: str) -> list[bytes]:
    return [
        form.sent(body=f"From=%2B4930000001&CallSid={call}".encode()),
        form.sent(body=f"CallSid={call}&From=%2b4930000001".encode()),
        form.sent(body=f"CallSid=%{ord(call[0]):x}{call[1:]}&From=%2B4930000001".encode()),
        form.sent(body=f"CallSid={call}&From=%2B4930000001&".encode()),
        form.sent(body=f"CallSid={call}&From=%2B4930000001&CallSid={call}".encode()),
        form.sent(body=f"CallSi=d{call}&From=%2B4930000001".encode()),
        form.sent(body=f"CallSid={call}2&From=%2B4930000001".encode()),
    ]


async def replays(target: Target, done: Done) -> None:
    """100 copied proofs a second: a webhook as it was and in other spellings, for other calls, routes and methods, and
    the address of a stream that has begun. Accepted is a webhook with an answer of its own, and an upgrade."""
    carrier = SignalWireCarrier(secrets.randbits(96), {})
    call = carrier.call_sid
    form, body = await _copied_form(target, call), await _copied_json(target, call)
    found = re.search(rb"wss?://[^/]+(/media/[^\"<]+)", form.answer)
    assert found is not None
    stream = found[1].decode()
    leg = CarrierLeg(carrier)
    await _let_in(target, lambda: leg.connect(f"ws://{target.http[0]}:{target.http[1]}{stream}"))
    waited_since = time.monotonic()
    while call.encode() not in (await ask(target, _request("GET", "/v1/calls"), 1))[1]:
        if time.monotonic() - waited_since > 5.0:
            raise RuntimeError("the stream's own call is not in the list of calls")
        await asyncio.sleep(0.05)
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
               "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")  # fmt: skip
    elsewhere = [f"/webhooks/jambonz/{route}" for route in ("neighbour", f"{ROUTE}/after", f"{ROUTE}/status")]
    copies = [
        form.sent(), body.sent(), *_respelt(form, call),
        form.sent(f"{form.path}?CallSid=other"), form.sent(method="PUT"), form.sent(body=b"", method="GET"),
        *(body.sent(path) for path in elsewhere), body.sent(body=body.body + b" "),
        *(_request("GET", path, b"", *upgrade) for path in (stream, stream.replace(ROUTE, "neighbour"))),
    ]  # fmt: skip
    gate, tasks = asyncio.Semaphore(50), set()

    async def one(number: int) -> None:
        async with gate:
            status, answer = await ask(target, copies[number % len(copies)], number)
        done.answered(status)
        done.accepted += status == "101" or (status == "200" and answer not in (form.answer, body.answer))

    async for number in _paced(target, 100):
        done.tried += 1
        tasks.add(task := asyncio.create_task(one(number)))
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    await leg.aclose()


def foreign_requests() -> list[bytes]:
    """Return what a page of another site can make a browser send here, and requests under a foreign name."""
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
               "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")  # fmt: skip
    evil = "Origin: https://evil.example"
    upgrades = (f"/v1/dialogue?route={ROUTE}", "/ws/tts", f"/media/twilio/{ROUTE}")
    changes = (("POST", "/v1/tts"), ("POST", "/v1/calls"), ("DELETE", "/v1/voices/x"), ("POST", "/v1/voices"))
    reads = ("/", "/v1/calls", "/v1/events", "/metrics", "/openapi.json", "/v1/voices")
    text = b'{"text": "hello"}'
    return [
        *(_request("GET", path, b"", *upgrade, evil) for path in upgrades),
        *(_request("GET", path, b"", *upgrade, "Origin: null") for path in upgrades),
        *(_request("GET", path, b"", *upgrade, host="evil.example") for path in upgrades),
        *(_request(method, path, text, "Content-Type: text/plain", evil) for method, path in changes),
        *(_request("GET", path, host="evil.example") for path in reads),
        *(_request("GET", path, host="127.0.0.1.evil.example:80") for path in reads),
    ]


async def foreign_sites(target: Target, done: Done) -> None:
    """100 requests a second with a foreign Origin or Host."""
    everything = foreign_requests()
    await _asking(target, done, 100, lambda number: everything[number % len(everything)])
    done.accepted = sum(count for status, count in done.answers.items() if status[0] in "123")


async def bombs(target: Target, done: Done) -> None:
    """Ten small bodies a second that unpack to 64 MB, to webhooks."""
    bomb = gzip.compress(bytes(64_000_000))
    packed = [("gzip", bomb), ("deflate", zlib.compress(bytes(64_000_000)))]
    requests = [
        _request("POST", path, body, f"Content-Encoding: {name}", f"Content-Type: {kind}")
        for name, body in packed
        for path, kind in (
            ("/webhooks/twilio/default", "application/x-www-form-urlencoded"),
            ("/webhooks/twilio/default", "application/json"),
            ("/healthz", "text/plain"),
        )
    ]
    await _asking(target, done, 10, lambda number: requests[number % len(requests)])


async def long_heads(target: Target, done: Done) -> None:
    """100 requests a second with 64 kB of head or body, in forms that are slow to read."""
    heads = [
        b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2_500 + b"\r\n",
        b"GET /?" + b"a=&" * 5_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        _request("POST", "/webhooks/twilio/default", b"a=b&" * 16_000,
                 "Content-Type: application/x-www-form-urlencoded"),
        _request("POST", "/webhooks/vonage/default", b"[" * 64_000, "Content-Type: application/json"),
        _request("POST", "/webhooks/twilio/default", b"--x\r\n\r\n\r\n" * 6_000,
                 "Content-Type: multipart/form-data; boundary=x"),
        _request("GET", "/", b"", "Cookie: " + "a=b;" * 3_500),
        _request("GET", "/media/twilio/x", b"", "X: " + "y" * 15_000),
        b"\r\n" * 8_000,
        b"POST /webhooks/twilio HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 10_000,
    ]  # fmt: skip
    await _asking(target, done, 100, lambda number: heads[number % len(heads)])


async def pipelined(target: Target, done: Done) -> None:
    """64 kB of small requests at once, five times a second."""
    line = b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    await _asking(target, done, 5, lambda number: line * (64_000 // len(line)))


# --- one media socket ------------------------------------------------------------------------------------------------

_TEXT, _PING, _MORE = 1, 9, 0


def frame(kind: int, payload: bytes, *, fin: bool = True, deflated: bool = False) -> bytes:
    """Return a WebSocket frame of a client. Its mask is zero, so the payload stays as it is."""
    size = len(payload)
    first = bytes([(0x80 if fin else 0) | (0x40 if deflated else 0) | kind])
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = b"\xfe" + size.to_bytes(2, "big")
    else:
        length = b"\xff" + size.to_bytes(8, "big")
    return first + length + bytes(4) + payload


@contextlib.asynccontextmanager
async def _websocket(
    target: Target, done: Done, path: str, *headers: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*target.http, local_addr=(_source(5), 0))
    try:
        writer.write(
            _request("GET", path, b"", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
                     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", *headers)
        )  # fmt: skip
        done.answered((await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode())
        yield reader, writer
    finally:
        writer.close()


async def _flood(target: Target, done: Done, piece: bytes, *, started: bool, reads: bool = True) -> None:
    """Send ``piece`` over one media socket at MEDIA_BYTES_PER_S. A socket that is closed is opened again."""
    began, sent = time.monotonic(), 0
    while not target.over(began):
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with _websocket(target, done, f"/media/twilio/{ROUTE}") as (reader, writer):
                for message in TwilioCarrier(secrets.randbits(96), {}).opening() if started else ():
                    writer.write(frame(_TEXT, message.encode()))
                eof = asyncio.create_task(_drained(reader, done)) if reads else None
                while not target.over(began) and (eof is None or not eof.done()) and not writer.is_closing():
                    while sent < MEDIA_BYTES_PER_S * (time.monotonic() - began) and not target.over(began):
                        writer.write(piece)
                        sent += len(piece)
                        done.tried += 1
                        await asyncio.wait_for(writer.drain(), target.seconds)
                    await asyncio.sleep(0.005)
                if eof is not None:
                    eof.cancel()
        await asyncio.sleep(0.05)
    done.bytes_sent += sent


async def _drained(reader: asyncio.StreamReader, done: Done) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            done.bytes_received += len(data)


async def fragments(target: Target, done: Done) -> None:
    """Empty fragments before the stream's start, then fragments of one byte."""
    half = Target(target.http, target.sip, target.seconds / 2)
    await _flood(half, done, frame(_MORE, b"", fin=False) * 500, started=False)
    await _flood(half, done, frame(_MORE, b"x", fin=False) * 500, started=True)


async def pings(target: Target, done: Done) -> None:
    """Pings with 125 bytes; no pong is read."""
    await _flood(target, done, frame(_PING, bytes(125)) * 50, started=True, reads=False)


def _media(payload: str) -> bytes:
    return frame(_TEXT, b'{"event":"media","media":{"track":"inbound","payload":"' + payload.encode() + b'"}}')


async def messages(target: Target, done: Done) -> None:
    """Caller audio: first one message of 0.93 MB a second, then as many small ones as 1 MB holds."""
    half = Target(target.http, target.sip, target.seconds / 2)
    await _flood(half, done, _media("f39/" * 232_000), started=True)
    await _flood(half, done, _media("/" * 4) * 50, started=True)


async def bursts(target: Target, done: Done) -> None:
    """A second's worth of small messages at once, every second: what is ready together is done together."""
    await _flood(target, done, frame(_TEXT, b'{"event":"frob"}') * (MEDIA_BYTES_PER_S // 22), started=True)


async def other_messages(target: Target, done: Done) -> None:
    """Keys, marks that nobody set, unknown events, and JSON that is nested deeply."""
    half = Target(target.http, target.sip, target.seconds / 2)
    key = frame(_TEXT, b'{"event":"dtmf","dtmf":{"digit":"1"}}')
    mark = frame(_TEXT, b'{"event":"mark","mark":{"name":"x"}}')
    unknown = frame(_TEXT, b'{"event":"frob"}')
    await _flood(half, done, (key + mark + unknown) * 20, started=True)
    await _flood(half, done, frame(_TEXT, b'{"event":"media","media":' + b"[" * 900_000), started=True)


async def oversize(target: Target, done: Done) -> None:
    """Messages over ``limits.message_bytes``, whole and in parts."""
    half = Target(target.http, target.sip, target.seconds / 2)
    await _flood(half, done, frame(_TEXT, b" " * 1_100_000), started=True)
    await _flood(half, done, frame(_MORE, b" " * 50_000, fin=False), started=True)


# --- others that are let in ------------------------------------------------------------------------------------------


async def deflate_bombs(target: Target, done: Done) -> None:
    """Compressed messages that unpack to 64 MB, to the WebSockets of managers and of speech."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(bytes(64_000_000)) + packer.flush(zlib.Z_SYNC_FLUSH)
    for path in (f"/v1/dialogue?route={ROUTE}", "/ws/tts"):
        half = Target(target.http, target.sip, target.seconds / 2)
        async for _ in _paced(half, 10):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                extension = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
                async with _websocket(target, done, path, extension) as (reader, writer):
                    writer.write(frame(_TEXT, bomb[:-4], deflated=True))
                    done.tried += 1
                    await asyncio.wait_for(reader.read(1000), 2)


def _wav(*, rate: int = 16000, channels: int = 1, bits: int = 16, data: bytes = b"", size: int | None = None) -> bytes:
    fmt = b"fmt \x10\0\0\0\x01\0" + channels.to_bytes(2, "little") + rate.to_bytes(4, "little")
    fmt += (rate * channels * bits // 8 % 2**32).to_bytes(4, "little") + (channels * bits // 8 % 65536).to_bytes(
        2, "little"
    )
    fmt += bits.to_bytes(2, "little")
    length = len(data) if size is None else size
    return b"RIFF\xff\xff\xff\xffWAVE" + fmt + b"data" + length.to_bytes(4, "little") + data


def hurtful_sounds() -> dict[str, bytes]:
    """Return sound files that lie about themselves, or that ask for much work."""
    noise = random.Random(1).randbytes(200_000)
    return {
        "rate.wav": _wav(rate=4_000_000_000, data=noise),
        "channels.wav": _wav(channels=65_535, data=noise),
        "cut.wav": _wav(data=noise[:100], size=0xFFFFFFFF),
        "chunks.wav": b"RIFF\xff\xff\xff\xffWAVE" + b"LIST\0\0\0\0" * 500_000,
        "slow.wav": _wav(rate=1, data=noise),
        "bits.wav": _wav(bits=1, data=noise),
        "empty.wav": _wav(),
        "long.wav": _wav(rate=8000, bits=8, data=bytes(4_790_000)),
        "noise.wav": noise,
    }


async def hurtful_voices(target: Target, done: Done) -> None:
    """Reference audio that lies about itself, five a second, some of it as large as is allowed."""
    sounds = [*hurtful_sounds().values(), _wav(rate=48000, channels=2, data=bytes(11_000_000))]
    requests = []
    for number, sound in enumerate(sounds):
        form = f'--x\r\nContent-Disposition: form-data; name="voice_id"\r\n\r\nv{number}\r\n'.encode()
        form += b'--x\r\nContent-Disposition: form-data; name="audio"; filename="a.wav"\r\n\r\n' + sound
        kind = "Content-Type: multipart/form-data; boundary=x"
        requests.append(_request("POST", "/v1/voices", form + b"\r\n--x--\r\n", kind))
    await _asking(target, done, 5, lambda number: requests[number % len(requests)], most=4)


@contextlib.asynccontextmanager
async def _call(target: Target) -> AsyncIterator[ManagedCall]:
    """Yield a call of our own, as its manager sees it."""
    host, port = target.http
    begun: asyncio.Future[ManagedCall] = asyncio.get_running_loop().create_future()
    manager = SimulatedManager(lambda call: None if begun.done() else begun.set_result(call))
    leg = CarrierLeg(TwilioCarrier(secrets.randbits(96), {}))
    try:
        await _let_in(target, lambda: manager.dial_in(f"ws://{host}:{port}/v1/dialogue?route={ROUTE}"))
        await _let_in(target, lambda: leg.connect(f"ws://{host}:{port}/media/twilio/{ROUTE}"))
        yield await asyncio.wait_for(begun, 10)
    finally:
        await leg.aclose()
        await manager.aclose()


async def hurtful_clips(target: Target, done: Done) -> None:
    """`play` of ``hurtful_sounds``, which lie in the clip folder, ten a second in one call."""
    clips = list(hurtful_sounds())
    async with _call(target) as call:
        async for number in _paced(target, 10):
            call.send("play", source=clips[number % len(clips)], turn=f"p{number}")
            call.send("cancel")
            done.tried += 1
        done.answers = {"errors": len(call.errors)}


async def long_clips(target: Target, done: Done) -> None:
    """Twelve calls that each play a clip of ten minutes that was never played before."""
    first = secrets.randbelow(LONG_CLIPS // CLIPS_AT_ONCE) * CLIPS_AT_ONCE
    calls: list[ManagedCall] = []

    def play(call: ManagedCall) -> None:
        call.send("play", source=f"long-{first + len(calls)}.mp3", turn="long")
        calls.append(call)

    host, port = target.http
    manager, legs = (
        SimulatedManager(play),
        [CarrierLeg(TwilioCarrier(secrets.randbits(96), {})) for _ in range(CLIPS_AT_ONCE)],
    )
    began, url = time.monotonic(), f"ws://{host}:{port}/media/twilio/{ROUTE}"
    await _let_in(target, lambda: manager.dial_in(f"ws://{host}:{port}/v1/dialogue?route={ROUTE}"))
    try:
        await asyncio.gather(*(_let_in(target, lambda leg=leg: leg.connect(url)) for leg in legs))
        await asyncio.sleep(max(0.0, began + target.seconds - time.monotonic()))
    finally:
        done.tried = len(calls)
        done.answers = {"heard": sum(leg.messages > 0 for leg in legs), "errors": sum(len(c.errors) for c in calls)}
        await asyncio.gather(*(leg.aclose() for leg in legs))
        await manager.aclose()


def worst_texts() -> list[str]:
    """Return texts of up to 20,000 characters that are hard to cut into clauses or to read."""
    return [
        ", " * 9_999,
        " " * 20_000,
        "a" * 20_000,
        "." * 20_000,
        "1" * 20_000,
        "1,000," * 3_333,
        "Dr. " * 5_000,
        "a.b" * 6_666,
        "“(" * 10_000,
        "e\u0301" * 10_000,
        "\u202e\u200b" * 10_000,
        "好，" * 10_000,
        "👩‍👩‍👧" * 4_000,
        "https://a.b/" * 1_666,
    ]


async def worst_texts_spoken(target: Target, done: Done) -> None:
    """Hard texts to the speech API, four at a time, and in a call a token at a time."""
    texts = worst_texts()
    requests = [
        _request(
            "POST", "/v1/tts", json.dumps({"text": text, "format": "pcm"}).encode(), "Content-Type: application/json"
        )
        for text in texts
    ]

    async def drip() -> None:
        async with _call(target) as call:
            async for number in _paced(target, 2000):
                text = texts[number // 3000 % len(texts)]
                call.send("text", token=text[number % 3000], last=number % 3000 == 2999, turn=f"d{number // 3000}")

    await asyncio.gather(drip(), _asking(target, done, 8, lambda number: requests[number % len(requests)], most=4))


UNAUTHENTICATED: dict[str, Attack] = {
    "sip-flood": sip_flood,
    "sip-worst": sip_worst,
    "idle": idle_sockets,
    "crowd": crowd_of_one,
    "sip-crowd": sip_crowd_of_one,
    "audiosocket-crowd": audiosocket_crowd,
    "rtp": rtp_of_strangers,
    "webrtc": webrtc_of_strangers,
    "slow": slow_requests,
    "heads": long_heads,
    "pipelined": pipelined,
    "bombs": bombs,
    "webhooks": unsigned_webhooks,
    "sites": foreign_sites,
    "replays": replays,
}
MEDIA: dict[str, Attack] = {
    "fragments": fragments,
    "pings": pings,
    "messages": messages,
    "bursts": bursts,
    "other-messages": other_messages,
    "oversize": oversize,
}
LET_IN: dict[str, Attack] = {
    "deflate": deflate_bombs,
    "voices": hurtful_voices,
    "clips": hurtful_clips,
    "long-clips": long_clips,
    "texts": worst_texts_spoken,
}
ATTACKS = UNAUTHENTICATED | MEDIA | LET_IN


async def _run(target: Target, names: Sequence[str]) -> dict[str, Done]:
    done = {name: Done() for name in names}
    ended = await asyncio.gather(*(ATTACKS[name](target, done[name]) for name in names), return_exceptions=True)
    for name, exc in zip(names, ended, strict=True):
        if exc is not None:
            done[name].answered(f"ended early: {exc!r}")
    return done


if __name__ == "__main__":
    raise_open_files()
    given = json.loads(sys.argv[1])
    ports = given["sip"], given["seconds"], given["sips"], given["audiosocket"]
    where = Target((given["http"][0], given["http"][1]), *ports)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps({name: asdict(done) for name, done in asyncio.run(_run(where, given["names"])).items()}))
