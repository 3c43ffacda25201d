"""Dial-out: one WebSocket per call to the route's ``dialogue.url``, with reconnection."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from gateway.carriers.signatures import twilio_signature
from gateway.config import DialogueConfig, LimitsConfig
from gateway.dialogue.dialled_socket import DialledSocket
from gateway.dialogue.line import (
    CLOSE_TIMEOUT_S,
    QUEUE_MESSAGES,
    REPLAY_MESSAGES,
    CallLink,
    DialogueStats,
    Ending,
    Line,
    setup_of,
)
from gateway.dialogue.wire import decode, refusal
from gateway.errors import ProtocolError
from gateway.seams.dialogue import DialogueSink
from gateway.seams.leg import CallInfo
from gateway.seams.messages import Outbound
from gateway.websocket_client import CannotOpen, open_websocket
from tts_engine.correlation import CORRELATION, TRACE_KEY

log = logging.getLogger(__name__)

RECONNECT_FIRST_S = 0.25
"""Pause before the first new attempt, seconds. It doubles after each attempt."""

RECONNECT_MAX_S = 5.0
"""Longest pause between attempts, seconds. A connection that lived for longer makes the next pause short again."""

CONNECT_S = 5.0
"""Longest wait for one attempt, name look-up and handshake together, seconds."""


class Relay:
    """A ``DialogueLink`` that dials out. Call ``start`` once; ``aclose`` ends its one task.

    A line that lived no longer than ``RECONNECT_MAX_S`` belongs to the same outage as the loss before it: the pauses
    keep growing and ``give_up_s`` keeps running. This bounds the attempts for an application that dies on every
    ``setup`` or on a replayed message.
    """

    def __init__(
        self,
        call: CallInfo,
        sink: DialogueSink,
        config: DialogueConfig,
        *,
        limits: LimitsConfig,
        stats: DialogueStats,
        codec: str,
        version: str,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._route = call.route
        self._sink = sink
        self._config = config
        self._limits = limits
        self._stats = stats
        self._jitter = jitter
        self._version = version
        self._link = CallLink(
            setup_of(call, codec=codec, version=version),
            sink,
            extensions=config.sends_extensions,
            multiplexed=False,
            replay_messages=REPLAY_MESSAGES,
            stats=stats,
        )
        self._line: Line | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="dialogue-relay")

    def send(self, message: Outbound) -> None:
        self._link.send(message)

    def send_audio(self, pcm: bytes) -> None:
        self._link.send_audio(pcm)

    async def aclose(self) -> None:
        self._link.close()
        if self._task is None:
            return
        if self._line is not None:
            self._line.finish()
            # The bound counts twice: once for the queue, once for the peer's close.
            await asyncio.wait({self._task}, timeout=2 * CLOSE_TIMEOUT_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            await self._dial_until_over()
        except Exception:  # an internal error must not leave the call waiting
            log.exception("dialogue relay failed")
            self._failed("internal error of the dialogue relay")

    async def _dial_until_over(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = RECONNECT_FIRST_S
        down_since = loop.time()
        broken = False
        while True:
            line, reason = None, ""
            try:
                async with asyncio.timeout(CONNECT_S):
                    websocket = await self._connect()
            except TimeoutError:
                reason = f"no connection within {CONNECT_S:g} s"
            except (CannotOpen, OSError) as exc:
                reason = str(exc)
                if not reason.startswith("cannot connect"):
                    reason = f"cannot connect: {reason}"
            else:
                line = self._new_line(websocket)
                up_since = loop.time()
                self._stats.reconnects += broken
                broken = True
                ending = await self._serve(line)
                if ending is Ending.CLOSED:
                    self._link.close()
                    self._sink.on_dialogue_closed()
                if ending is Ending.MALFORMED:  # the application would only repeat them; Twilio ends the session too
                    self._failed(f"dialogue manager of route {self._route} sent too many bad messages in a row")
                if ending is not Ending.LOST or self._link.closed:
                    return
                reason = "the connection broke"
                if loop.time() - up_since > RECONNECT_MAX_S:
                    pause_s, down_since = RECONNECT_FIRST_S, loop.time()
            waited_s = loop.time() - down_since
            if not self._config.reconnect or waited_s + pause_s > self._config.give_up_s:
                self._failed(f"dialogue manager of route {self._route} lost for {waited_s:.1f} s: {reason}")
                return
            log.info("dialogue line down", extra={"route": self._route, "reason": reason, "pause_s": pause_s})
            leftover = [text for _, text in line.leftover()] if line else []
            self._link.line_down(leftover, line.blamed.get(self._link.session_id, []) if line else None)
            # A random wait between half and all of the pause keeps calls that were lost together from reconnecting
            # together.
            await asyncio.sleep(pause_s * (0.5 + 0.5 * self._jitter()))
            pause_s = min(2 * pause_s, RECONNECT_MAX_S)

    async def _connect(self) -> DialledSocket:
        url = self._config.url
        # Twilio requests no subprotocol and no compression (recorded).
        headers = {
            "User-Agent": f"talkspurt/{self._version}",
            "Accept-Encoding": "gzip",
            "Cache-Control": "no-cache",
            "Pragma": "no-cache",
        }
        if traceparent := CORRELATION.get().traceparent:
            headers[TRACE_KEY] = traceparent
        if self._config.auth_token is not None:
            # Twilio signs the URL as written, with wss:// and without appended parameters (recorded).
            headers["X-Twilio-Signature"] = twilio_signature(self._config.auth_token.get_secret_value(), url)
        websocket = await open_websocket(
            url,
            headers={**headers, **self._config.headers},
            message_bytes=self._limits.message_bytes,
            close_s=CLOSE_TIMEOUT_S,
            ping_s=self._config.ping_s,
            on_round_trip=self._sink.on_round_trip,
        )
        return DialledSocket(websocket)

    def _new_line(self, websocket: DialledSocket) -> Line:
        return Line(
            websocket,
            queue_messages=QUEUE_MESSAGES,
            errors_in_a_row=self._limits.errors_in_a_row,
            stats=self._stats,
            accept=self._accept,
            refuse=self._refuse,
        )

    async def _serve(self, line: Line) -> Ending:
        self._line = line
        self._stats.connected[self._route] += 1
        try:
            self._link.line_up(line)
            return await line.run()
        finally:
            self._line = None
            self._stats.connected[self._route] -= 1

    def _accept(self, text: str) -> None:
        _, message = decode(text, limits=self._limits, multiplexed=False)
        self._sink.on_message(message)

    def _refuse(self, frame: str | bytes, reason: ProtocolError) -> None:
        self._link.send(refusal(frame, reason))

    def _failed(self, description: str) -> None:
        if not self._link.closed:
            self._link.close()
            self._sink.on_dialogue_failed(description)
