"""Frames of a carrier's media WebSocket, from the frame to the call behind it."""

from __future__ import annotations

import asyncio
from typing import Any

from picows import WSMsgType

from gateway.carriers.table import CARRIERS
from gateway.config import LimitsConfig
from gateway.listener.connection import MediaConnection
from gateway.seams.incoming import IncomingCall
from tests.fuzz.target import Target, parts
from tests.fuzz.target import joined as case
from tests.fuzz.targets.carriers import TARGETS as CARRIER_TARGETS

_LOOP = asyncio.new_event_loop()
_KINDS = (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION, WSMsgType.PING, WSMsgType.PONG, WSMsgType.CLOSE)
_NAMES = list(CARRIERS)
_LIMITS = LimitsConfig()


class _Frame:
    """What the connection asks of a frame of picows."""

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
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def disconnect(self, graceful: bool = True) -> None:
        self.closed = True


class _Call:
    """The session behind the connection."""

    wants_round_trip = False
    listening = True

    def __init__(self) -> None:
        self.ended = 0

    def on_audio(self, payload: bytes) -> None:
        assert isinstance(payload, bytes)

    def on_digit(self, digit: str) -> None:
        assert digit in "0123456789*#ABCD"

    def on_mark(self, name: str) -> None:
        assert isinstance(name, str)

    def on_playback(self, *, started: bool) -> None: ...

    def on_round_trip(self, seconds: float) -> None: ...

    def on_leg_closed(self, reason: str) -> None:
        self.ended += 1


def run_frames(data: bytes) -> None:
    """Any frames make at most one call; nothing raises; what is kept of an unfinished message is bounded."""
    name = _NAMES[data[0] % len(_NAMES)] if data else _NAMES[0]
    made: list[_Call] = []

    def accept(connection: MediaConnection, call: IncomingCall) -> Any:
        made.append(_Call())
        return made[-1]

    async def receive() -> None:
        connection = MediaConnection(
            CARRIERS[name].dialect(CARRIERS[name].settings(), {}), "default", accept, setup_timeout_s=60,
            max_message_bytes=2000, max_errors=_LIMITS.errors_in_a_row, on_closed=lambda gone: None,
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


TARGETS = [
    Target(
        name="websocket",
        run=run_frames,
        covers=("gateway/listener/connection.py",),
        seeds=_seeds(),
        words=(b"\x1e\x00", b"\x1e\x01", b"\x1e\x80", b"\x1e\x82", b"\x1e\x02", b"\x1e\x03", b"\x1e\x05"),
    )
]
