"""``WS /v1/audio/{call}``: a dialogue manager that makes its own sound opens one socket for each call.

A route with ``dialogue.audio`` announces its calls on its dial-in sockets and on the event streams; ``setup`` names the
path. Binary messages are s16le mono in both directions, at the rate of the query; text messages are those of the
dialogue protocol, and ``clear``. The socket leads the call as a dialled manager does: if it is lost, the fallback text
is spoken, and the manager may open it again. A close on purpose (1000, 1001) ends the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from aiohttp import web

from gateway.config import DialogueConfig, LimitsConfig, RouteConfig
from gateway.dialogue.hub import DialogueHub
from gateway.dialogue.line import (
    CLOSE_TIMEOUT_S,
    QUEUE_MESSAGES,
    REPLAY_MESSAGES,
    CallLink,
    DialogueStats,
    Ending,
    Line,
    serve_socket,
    setup_of,
)
from gateway.dialogue.wire import SAMPLE_RATES, decode, decode_sound, refusal
from gateway.errors import ProtocolError, Rejected
from gateway.principal import Principal
from gateway.seams.dialogue import DialogueLink, DialogueSink
from gateway.seams.leg import CallInfo
from gateway.seams.messages import Inbound, Outbound, Subscribe

log = logging.getLogger(__name__)

FIRST_SOCKET_S = 5.0
"""Wait for the first socket of a call, seconds. Then the fallback text is spoken, as after a loss."""

SAMPLE_RATE = 16000
"""Rate of a socket that names none, hertz."""


class _Announced:
    """The sink of a call on the dial-in sockets, which may send messages and whose loss changes nothing."""

    def __init__(self, sink: DialogueSink) -> None:
        self._sink = sink

    def on_message(self, message: Inbound) -> None:
        if isinstance(message, Subscribe):
            raise ProtocolError("the caller's audio goes to the call's audio socket", field="type")
        self._sink.on_message(message)

    def on_dialogue_ready(self) -> None: ...

    def on_dialogue_closed(self) -> None: ...

    def on_dialogue_lost(self) -> None: ...

    def on_dialogue_resumed(self) -> None: ...

    def on_dialogue_failed(self, description: str) -> None: ...

    def on_round_trip(self, seconds: float) -> None: ...

    def on_dialogue_skipped(self, kind: str, number: int) -> None: ...


class _AudioCall:
    """A call that has an audio socket, or waits for one. Implements ``DialogueLink``."""

    def __init__(
        self,
        call: CallInfo,
        sink: DialogueSink,
        config: DialogueConfig,
        limits: LimitsConfig,
        stats: DialogueStats,
        *,
        codec: str,
        version: str,
        announced: DialogueLink,
        calls: dict[str, _AudioCall],
    ) -> None:
        self.route = call.route
        self.config = config
        self._call_id = call.call_id
        self._sink = sink
        self._limits = limits
        self._stats = stats
        self._announced = announced
        self._calls = calls
        self._link = CallLink(
            setup_of(call, codec=codec, version=version, audio=True), sink,
            extensions=True, multiplexed=False, replay_messages=REPLAY_MESSAGES, stats=stats,
        )  # fmt: skip
        self._line: Line | None = None
        self._over = asyncio.Event()
        self._over.set()
        self._connected_before = False
        self._timers: list[asyncio.TimerHandle] = []
        calls[call.call_id] = self
        self.taken = False
        """True if a socket has the call."""
        self._await_socket(asyncio.get_running_loop().call_later(FIRST_SOCKET_S, self._link.line_down, []))

    def send(self, message: Outbound) -> None:
        self._link.send(message)
        self._announced.send(message)

    def send_audio(self, pcm: bytes) -> None:
        self._link.send_audio(pcm)

    async def aclose(self) -> None:
        """Send the queued messages, then close the socket with 1000."""
        self._link.close()
        self._calls.pop(self._call_id, None)
        self._stop_waiting()
        if self._line is not None:
            self._line.finish()
            # The bound counts twice: once for the queue, once for the peer's close.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * CLOSE_TIMEOUT_S):
                    await self._over.wait()
        await self._announced.aclose()

    def _await_socket(self, *more: asyncio.TimerHandle) -> None:
        """Give up unless a socket comes within ``give_up_s``. ``more``: timers that a socket cancels too."""
        self._timers = [asyncio.get_running_loop().call_later(self.config.give_up_s, self._fail), *more]

    def _stop_waiting(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _fail(self) -> None:
        if not self._link.closed:
            self._link.close()
            self._sink.on_dialogue_failed(
                f"no audio socket for a call of route {self.route} within {self.config.give_up_s:g} s"
            )

    async def serve(self, websocket: web.WebSocketResponse, sample_rate: int) -> None:
        """Run the socket to its end."""

        def accept(text: str) -> None:
            _, message = decode(text, limits=self._limits, multiplexed=False, audio=True)
            self._sink.on_message(message)

        def hear(pcm: bytes) -> None:
            self._sink.on_message(decode_sound(pcm, sample_rate=sample_rate))

        line = self._line = Line(
            websocket, queue_messages=QUEUE_MESSAGES, errors_in_a_row=self._limits.errors_in_a_row, stats=self._stats,
            accept=accept, refuse=lambda frame, reason: self._link.send(refusal(frame, reason)), hear=hear,
        )  # fmt: skip
        self._over.clear()
        self._stop_waiting()
        self._stats.connected[self.route] += 1
        self._stats.reconnects += self._connected_before
        self._connected_before = True
        ending = Ending.LOST
        try:
            self._link.line_up(line)
            self._sink.on_message(Subscribe(media=True, sample_rate=sample_rate))
            ending = await line.run()
        finally:
            self._line = None
            self._stats.connected[self.route] -= 1
            self._over.set()
            self._ended(ending, [text for _, text in line.leftover()])

    def _ended(self, ending: Ending, leftover: list[str]) -> None:
        if self._link.closed:
            return
        log.info("audio socket ended", extra={"call": self._call_id, "route": self.route, "ending": ending.name})
        if ending is Ending.CLOSED:
            self._link.close()
            self._sink.on_dialogue_closed()
        else:
            self._await_socket()
            self._link.line_down(leftover)


class AudioSockets:
    """The calls of all routes with ``dialogue.audio``, and the handler of ``/v1/audio/{id}``.

    Args:
        hub: announces the calls on the dial-in sockets.
    """

    def __init__(
        self,
        routes: Mapping[str, RouteConfig],
        *,
        hub: DialogueHub,
        limits: LimitsConfig,
        stats: DialogueStats,
        version: str,
    ) -> None:
        self._routes = routes
        self._hub = hub
        self._limits = limits
        self._stats = stats
        self._version = version
        self._calls: dict[str, _AudioCall] = {}

    def attach(self, call: CallInfo, sink: DialogueSink, *, codec: str) -> DialogueLink:
        """Announce a call, and wait for its socket."""
        return _AudioCall(
            call, sink, self._routes[call.route].dialogue, self._limits, self._stats, codec=codec,
            version=self._version, announced=self._hub.attach(call, _Announced(sink), codec=codec), calls=self._calls,
        )  # fmt: skip

    async def handle(self, request: web.Request, who: Principal) -> web.StreamResponse:
        """Handle ``GET /v1/audio/{id}`` for the authenticated client ``who``.

        Raises:
            Rejected: 404 if the client sees no such call; 409 if it has a socket; 422 for another rate; 426 if this is
                no WebSocket.
        """
        call_id = request.match_info["id"]
        call = self._calls.get(call_id)
        if call is None or not who.sees_call(call.route, call_id):
            raise Rejected(
                f"no live call {call_id[:40]!r} of a route with dialogue.audio",
                status=404, code="unknown_call", param="id",
            )  # fmt: skip
        rate = request.query.get("sampleRate", str(SAMPLE_RATE))
        if rate not in map(str, SAMPLE_RATES):
            raise Rejected(
                f"sampleRate is {rate[:20]!r}, expected 8000, 16000 or 24000",
                status=422, code="invalid", param="sampleRate",
            )  # fmt: skip
        if not web.WebSocketResponse().can_prepare(request):
            raise Rejected("expected a WebSocket", status=426, code="no_websocket")
        if call.taken:
            raise Rejected("the call has an audio socket already", status=409, code="taken", param="id")
        call.taken = True
        try:
            return await serve_socket(
                request, lambda websocket: call.serve(websocket, int(rate)),
                ping_s=call.config.ping_s, max_bytes=self._limits.message_bytes,
            )  # fmt: skip
        finally:
            call.taken = False

    async def aclose(self) -> None:
        """Close the sockets of calls that have not ended."""
        for call in list(self._calls.values()):
            await call.aclose()
