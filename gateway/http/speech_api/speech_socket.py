"""Speech over a WebSocket: the client sends text, or tokens from a language model, and gets PCM with word timings.

The client sends ``{"text": …, "speaker"?: …}``, or ``{"delta": …}`` … ``{"end": true}``; ``{"type": "cancel"}`` stops.
It gets ``audio_chunk`` … ``done``, or ``error``. A socket may make many utterances, one at a time.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import uuid
from typing import Any, Literal

import orjson
from aiohttp import WSCloseCode, WSMsgType, web
from pydantic import ConfigDict, ValidationError

from gateway.call.known_voices import KnownVoices
from gateway.call.turn_taking.speakable import Speakable
from gateway.config import LimitsConfig
from gateway.errors import ProtocolError, Rejected
from gateway.http.request import errors as http_errors
from gateway.http.request.auth import TENANT, Tenant
from gateway.http.request.routes import ApiModel, Route
from gateway.http.speech_api.audio_file import FORMATS, engine_format
from gateway.http.speech_api.speech import Speed, voice_id
from gateway.http.speech_api.usage import Usage
from gateway.http.speech_api.word_times import word_times
from tts_engine.api import SpeechEngine, Utterance, UtteranceRequest
from tts_engine.errors import EngineError

PING_S = 20.0
"""Time between WebSocket pings. A client that is silent for twice that time counts as gone."""


class SpeechMessage(ApiModel):
    """A message of a client. The first message of an utterance sets its voice and style."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["", "cancel"] = ""
    text: str = ""
    """A whole utterance."""
    delta: str = ""
    """More text of an utterance. The first delta begins it."""
    end: bool = False
    """True for the end of the deltas."""
    speaker: str = ""
    sample_rate: int = 24000
    """Hz of the returned PCM."""
    language: str = ""
    speed: Speed = 1.0
    instruct: str = ""


class SpeechSocket:
    """Handler of ``/ws/tts``. ``aclose`` ends all connections."""

    def __init__(self, engine: SpeechEngine, voices: KnownVoices, limits: LimitsConfig, usage: Usage) -> None:
        self._engine = engine
        self._voices = voices
        self._limits = limits
        self._usage = usage
        self._sockets: set[web.WebSocketResponse] = set()

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        return [
            Route(
                method="GET", path="/ws/tts", handler=self.handle,
                summary="Text or tokens to PCM (WebSocket)",
                tags=["speech"],
            )
        ]  # fmt: skip

    async def aclose(self) -> None:
        """Close all connections, because the process shuts down."""
        await asyncio.gather(
            *(socket.close(code=WSCloseCode.GOING_AWAY) for socket in list(self._sockets)), return_exceptions=True
        )

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one connection."""
        socket = web.WebSocketResponse(max_msg_size=self._limits.message_bytes, heartbeat=PING_S)
        await socket.prepare(request)
        client = _Client(socket, self._engine, self._voices, self._limits, self._usage, request[TENANT])
        self._sockets.add(socket)
        errors = 0
        try:
            async for message in socket:
                if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                    break
                try:
                    await client.on_message(SpeechMessage.from_json(message.data))
                    errors = 0
                except (ProtocolError, Rejected, EngineError, ValidationError) as exc:
                    await client.send(type="error", error=error_of(exc))
                    errors += 1
                    if errors >= self._limits.errors_in_a_row:
                        await socket.close(code=WSCloseCode.INVALID_TEXT)
        finally:
            self._sockets.discard(socket)
            await client.stop()
        return socket


def error_of(exc: Exception) -> Any:
    """Return the error object, as in the body of an HTTP error."""
    return orjson.loads(http_errors.of(exc).text or "")["error"]


class _Client:
    """One connection and its utterance in progress."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        engine: SpeechEngine,
        voices: KnownVoices,
        limits: LimitsConfig,
        usage: Usage,
        tenant: Tenant,
    ) -> None:
        self._socket = socket
        self._engine = engine
        self._voices = voices
        self._limits = limits
        self._usage = usage
        self._tenant = tenant
        self._utterance: Utterance | None = None
        self._task: asyncio.Task[None] | None = None
        self._speakable = Speakable()
        self._ended = False
        """True once the client has ended the text of the utterance in progress."""
        self._characters = 0

    async def send(self, **fields: Any) -> None:
        """Send a message. If the client has disconnected, do nothing."""
        with contextlib.suppress(ConnectionError):
            await self._socket.send_str(orjson.dumps(fields).decode())

    async def on_message(self, message: SpeechMessage) -> None:
        """Handle a message.

        Raises:
            ProtocolError: the message is not possible now, or is empty.
            EngineError: the text is refused.
        """
        if message.type == "cancel":
            if self._task is not None:
                await self.stop()
                await self.send(type="done", cancelled=True)
        elif message.text:
            if self._task is not None:
                raise ProtocolError(
                    "an utterance is in progress; wait for done, or cancel it", field="text", code="busy"
                )
            await self._begin(message)
            await self._feed(message.text, end=True)
        elif message.delta or message.end:
            if self._task is None:
                if not message.delta:
                    raise ProtocolError("there is no utterance to end", field="end")
                await self._begin(message)
            elif self._ended:
                field = "delta" if message.delta else "end"
                raise ProtocolError("the text has ended; wait for done, or cancel", field=field, code="busy")
            await self._feed(message.delta, end=message.end)
        else:
            raise ProtocolError("the message has none of text, delta, end, type", field="text")

    async def stop(self) -> None:
        """Cancel the utterance, if there is one. Return when it has stopped."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _begin(self, message: SpeechMessage) -> None:
        rates = FORMATS["pcm"].rates_hz
        if message.sample_rate not in rates:
            expected = ", ".join(map(str, rates))
            raise ProtocolError(f"sample_rate is {message.sample_rate} Hz, expected {expected}", field="sample_rate")
        asked = UtteranceRequest(
            utterance_id=f"api.{uuid.uuid4().hex[:12]}", format=engine_format("pcm", message.sample_rate),
            voice=await voice_id(self._voices, message.speaker, self._tenant.who), language=message.language,
            speed=message.speed, instruct=message.instruct, priority=self._tenant.key.priority,
        )  # fmt: skip
        self._characters = 0
        self._speakable, self._ended = Speakable(), False
        self._utterance = self._engine.open(asked)
        self._task = asyncio.create_task(self._speak(self._utterance, message.sample_rate), name="speech socket")

    async def _feed(self, text: str, *, end: bool) -> None:
        assert self._utterance is not None
        self._characters += len(text)
        if self._characters > (most := self._limits.turn_chars):
            await self.stop()
            raise ProtocolError(
                f"text is {self._characters} characters, expected {most} or fewer (limits.turn_chars)", field="text"
            )
        try:
            if text:
                await self._tenant.spend(len(text))
        except Rejected:
            await self.stop()
            raise
        if self._task is None:  # it has failed meanwhile, which was reported
            return
        self._utterance.feed(self._speakable.feed(text))
        if end:
            self._ended = True
            self._utterance.feed(self._speakable.close())
            self._utterance.end_text()

    async def _speak(self, utterance: Utterance, rate: int) -> None:
        """Send the audio as it is made. A slow client slows the engine down."""
        samples = 0
        try:
            with self._usage.request(self._tenant.name, f"api.{uuid.uuid4().hex}") as tally:
                try:
                    speakable = self._speakable
                    async with utterance, self._tenant.occupied():
                        await tally.metered
                        async for chunk in utterance:
                            samples += chunk.samples
                            tally.heard(samples / rate)
                            words = [word.model_dump() for word in word_times(chunk, speakable, rate)]
                            data = base64.b64encode(b"".join(chunk.frames)).decode()
                            await self.send(type="audio_chunk", data=data, sample_rate=rate, words=words)
                finally:
                    tally.characters = self._characters
            self._task = None
            await self.send(type="done", cancelled=False, audio_ms=samples * 1000 // rate)
        except (EngineError, Rejected) as exc:
            self._task = None
            await self.send(type="error", error=error_of(exc))
