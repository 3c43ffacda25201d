"""A carrier's media WebSocket: its handshake from the first byte on, and its frames, to the call that it carries."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from aiohttp import web
from picows import WSMsgType

from gateway.carriers.table import CARRIERS, CarriersConfig
from gateway.config import LimitsConfig, ServerConfig
from gateway.listener.connection import MediaConnection
from gateway.listener.forwarded import PublicUrl
from gateway.listener.server import GatewayServer, _Switch
from gateway.listener.sites import Sites
from gateway.listener.turns import InTurns, LoopTurns
from gateway.seams.end_cause import UNKNOWN, EndCause
from gateway.seams.incoming import IncomingCall
from tests.fuzz.target import Target, assert_plain, parts, pieces
from tests.fuzz.target import joined as case
from tests.fuzz.targets.carriers import TARGETS as CARRIER_TARGETS

_LOOP = asyncio.new_event_loop()
_KINDS = (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION, WSMsgType.PING, WSMsgType.PONG, WSMsgType.CLOSE)
_NAMES = list(CARRIERS)
_LIMITS = LimitsConfig()
_AT_ONCE = LoopTurns(clock=lambda: 0.0)


class _Frame:
    """The part of a picows frame that the connection reads."""

    last_in_buffer = False

    def __init__(self, head: int, payload: bytes) -> None:
        self.msg_type = _KINDS[head % len(_KINDS)]
        self.fin = head < 128
        self._payload = payload

    def get_payload_as_bytes(self) -> bytes:
        return self._payload


class _Transport:
    """The socket: it takes what is sent until it is closed."""

    def __init__(self) -> None:
        self.closed = False
        self.reading = True
        self.pongs = 0
        self.underlying_transport = self

    def send(self, kind: Any, data: bytes) -> None:
        assert isinstance(data, bytes)

    def send_pong(self, payload: bytes) -> None:
        self.pongs += 1

    def send_ping(self, payload: bytes) -> None: ...

    def send_close(self, code: Any = None, message: bytes | None = None) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        assert self.reading or self.closed  # a closed one is not resumed
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def disconnect(self, graceful: bool = True) -> None:
        self.closed = True


class _Call:
    """The session behind the connection."""

    call_id = "VX" + "0" * 32
    wants_round_trip = False
    listening = True

    def __init__(self) -> None:
        self.ended = 0

    def on_audio(self, payload: bytes) -> None:
        assert isinstance(payload, bytes)

    def on_digit(self, digit: str) -> None:
        assert digit in "0123456789*#ABCD"

    def on_mark(self, name: str) -> None:
        assert_plain(name)

    def on_playback(self, *, started: bool) -> None: ...

    def on_round_trip(self, seconds: float) -> None: ...

    def on_leg_closed(self, reason: str, cause: EndCause = UNKNOWN) -> None:
        self.ended += 1


def run_frames(data: bytes) -> None:
    """Any frames make at most one call; nothing raises; what is kept of an unfinished message is bounded."""
    name = _NAMES[data[0] % len(_NAMES)] if data else _NAMES[0]
    made: list[_Call] = []

    def accept(connection: MediaConnection, call: IncomingCall) -> Any:
        assert_plain(call)
        made.append(_Call())
        return made[-1]

    async def receive() -> None:
        connection = MediaConnection(
            CARRIERS[name].dialect(CARRIERS[name].settings(), {}), "default", accept, setup_timeout_s=60,
            max_message_bytes=2000, max_errors=_LIMITS.errors_in_a_row, turns=_AT_ONCE, floods=_AT_ONCE,
        )  # fmt: skip
        transport = _Transport()
        connection._transport = transport  # type: ignore[assignment]
        for part in parts(data[1:]):
            if not part or connection._transport is None:
                break
            connection.on_ws_frame(transport, _Frame(part[0], part[1:]))  # type: ignore[arg-type]
            while not transport.reading and not transport.closed:
                await asyncio.sleep(0)
            assert connection._parts_bytes <= 2000 and len(connection._parts) <= 1024
        connection.on_ws_disconnected(transport)  # type: ignore[arg-type]
        assert transport.pongs <= 1 and len(made) <= 1

    _LOOP.run_until_complete(receive())


def _seeds() -> list[bytes]:
    found = []
    for target in CARRIER_TARGETS:
        if target.name.startswith("media-") and target.seeds:
            at = _NAMES.index(target.name.removeprefix("media-"))
            said = [b"\1" + one[1:] if one[:1] == b"\x01" else b"\0" + one for one in parts(target.seeds[0])]
            found.append(bytes((at,)) + case(*said, b"\x80{", b"\x02}", b"\x03ping", b"\x04pong", b"\x05"))
    return [seed for seed in found if len(seed) < 4000]


class _Line:
    """One connection that has been accepted: what asyncio and picows ask of its transport and its socket."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.over = False
        self.protocol: Any = None
        self._ours, self._theirs = socket.socketpair()  # picows writes to the descriptor itself
        self._ours.setblocking(False)
        self._theirs.setblocking(False)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self, "peername": ("192.0.2.4", 5000), "sockname": ("192.0.2.9", 8080)}.get(name, default)

    def fileno(self) -> int:
        return self._ours.fileno()

    def setsockopt(self, *option: Any) -> None: ...

    def getsockopt(self, *option: Any) -> int:
        return 0

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, **limits: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: Any) -> None:
        self.written += b"".join(pieces)

    def is_closing(self) -> bool:
        return self.over

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.over = True

    abort = close

    def said(self) -> bytes:
        """All that was written, by either way. The line is gone then."""
        with contextlib.suppress(BlockingIOError):
            while piece := self._theirs.recv(65536):
                self.written += piece
        self._ours.close()
        self._theirs.close()
        return bytes(self.written)


def _accept(connection: MediaConnection, call: IncomingCall) -> Any:
    return _Call()


async def _server() -> GatewayServer:
    return GatewayServer(
        ServerConfig(), LimitsConfig(), web.Application(),
        CarriersConfig.model_validate({carrier.key: {} for carrier in CARRIERS.values()}).configured(),
        accept=_accept, authorise=lambda dialect, route, request, peer: None,
        sites=Sites(ServerConfig(insecure=True), PublicUrl(ServerConfig())),
    )  # fmt: skip


_SERVER = _LOOP.run_until_complete(_server())


def run_handshake(data: bytes) -> None:
    """However a request for a media socket is cut into reads, it gets the same answer: 101, or one refusal."""

    async def answer(size: int) -> bytes:
        line = _Line()
        switch = _Switch(_SERVER)
        line.protocol = InTurns(switch, _AT_ONCE)
        line.protocol.connection_made(line)
        for piece in pieces(b"GET /media/" + data[1:], size):
            rest = memoryview(piece)
            while rest and not line.over:
                room = line.protocol.get_buffer(len(rest))
                read = min(len(room), len(rest))
                assert read, "no room for a read"
                room[:read] = rest[:read]
                line.protocol.buffer_updated(read)
                rest = rest[read:]
        line.protocol.connection_lost(None)
        _SERVER.sockets.close()
        for handle in (switch._timer,):
            if handle is not None:
                handle.cancel()
        return line.said()

    async def both() -> None:
        whole, piecewise = await answer(1 << 20), await answer(data[0] % 64 + 1 if data else 1)
        assert whole.partition(b"\r\n")[0] == piecewise.partition(b"\r\n")[0]
        assert not whole or whole.startswith(b"HTTP/1.1 "), whole[:40]

    _LOOP.run_until_complete(both())


_UPGRADE = (
    b"\x07twilio/default HTTP/1.1\r\nHost: voice.example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
)

TARGETS = [
    Target(
        name="websocket",
        run=run_frames,
        covers=("gateway/listener/connection.py",),
        seeds=_seeds(),
        words=(b"\x1e\x00", b"\x1e\x01", b"\x1e\x80", b"\x1e\x82", b"\x1e\x02", b"\x1e\x03", b"\x1e\x05"),
    ),
    Target(
        name="handshake",
        run=run_handshake,
        without_text="a head is answered; websocket and proof assert what it brings to a call",
        covers=("gateway/listener/server.py", "gateway/listener/sites.py", "gateway/listener/forwarded.py"),
        seeds=(
            _UPGRADE + b"\r\n",
            _UPGRADE + b"Sec-WebSocket-Protocol: a, audio.drachtio.org\r\nOrigin: https://a.example\r\n\r\n"
            b"\x81\x82\0\0\0\0{}",
            _UPGRADE.replace(b"twilio/default", b"nosuch/x?token=a&b=c") + b"X-Forwarded-For: 10.0.0.1\r\n\r\n",
        ),
        words=(b"\r\n", b"\r\n\r\n", b": ", b"Upgrade: websocket", b"Sec-WebSocket-Key: ", b"Content-Length: 5\r\n",
               b"Transfer-Encoding: chunked\r\n", b"HTTP/1.0", b"%", b"?", b"//", b"\x88\x80\0\0\0\0", b"\xff"),
    ),
]  # fmt: skip
