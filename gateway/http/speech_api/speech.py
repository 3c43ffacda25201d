"""The speech API: converts text to an audio file, whole or as a stream."""

from __future__ import annotations

import asyncio
import base64
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, get_args

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from gateway.call.known_voices import KnownVoices
from gateway.call.turn_taking.speakable import Speakable
from gateway.config import LimitsConfig
from gateway.errors import Rejected
from gateway.http.request import request_id
from gateway.http.request.auth import TENANT, WHO, Tenant
from gateway.http.request.routes import JSON, ApiModel, Route
from gateway.http.speech_api.audio_file import FORMATS, engine_format, writer
from gateway.http.speech_api.usage import Usage
from gateway.http.speech_api.word_times import TimedSpeech, WordTime, word_times
from gateway.limits.fair_turns import FairPool
from gateway.principal import Principal, sees_voice
from tts_engine.api import SpeechEngine, UtteranceRequest
from tts_engine.errors import EngineError, InvalidRequest, NotFound

log = logging.getLogger(__name__)

ENCODERS = 2
"""Number of threads that encode files. With more requests at a time, they take turns, chunk by chunk."""
_WRITE_BYTES = 64 * 1024
"""Bytes of a file sent in one turn of the loop. Its socket may take 4 MB at once; half an hour is 86 MB."""

JSON_LINES = "application/x-ndjson"
"""Content type of a stream with timestamps: one JSON object a line."""

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
OPENAI_VOICES = frozenset(
    ("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse")
)
"""OpenAI's voices. Its clients must name one; if the engine has no voice of that name, its default voice speaks."""

GENERIC_VOICES = OPENAI_VOICES | {"default", "female", "male"}
"""Names that mean any voice. If the engine has no voice of that name, its default voice speaks."""

SILENT_FRAMES = 5
"""Length of the silence for a text without anything to speak (emoji, punctuation). An error would end the client's
whole answer."""


def _speed(value: object, check: ValidatorFunctionWrapHandler) -> float:
    try:
        return float(check(value))
    except ValidationError:
        raise PydanticCustomError(
            "speed", "got {got}, expected a number from 0.25 to 4", {"got": repr(value)[:40]}
        ) from None


Speed = Annotated[float, Field(ge=0.25, le=4), WrapValidator(_speed)]


class SpeechBody(ApiModel):
    """Body of ``POST /v1/tts`` and ``/v1/tts/stream``."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1)
    speaker: str = ""
    """Voice id. Empty: the engine's default."""
    format: Literal["wav", "pcm", "mp3", "opus", "ulaw"] = "wav"
    """``pcm`` is s16le, ``ulaw`` bare PCMU at 8000 Hz, ``opus`` Ogg."""
    sample_rate: int | None = None
    """Hz. Default: 24000, for ``ulaw`` 8000."""
    language: str = ""
    """BCP 47 tag. Empty: the voice's own."""
    speed: Speed = 1.0
    instruct: str = ""
    """Style instruction, for models that take one."""
    timestamps: bool = False
    """True: the answer is JSON with the sound as Base64 (`audio`), its length (`audio_ms`) and its `words`: `start` and
    `end` (characters of `text`), `at_ms`, `end_ms` and `timing` (`exact` or `estimated`). `/v1/tts/stream` answers one
    such object a line, and gives `audio_ms` in the last one."""


class OpenAiVoice(ApiModel):
    """A custom voice, by its id."""

    id: str


class OpenAiBody(ApiModel):
    """Body of ``POST /v1/audio/speech``, as OpenAI defines it."""

    model: str
    """``tts-1``, ``tts-1-hd`` and ``gpt-4o-mini-tts`` mean the active model. Any other is the name of a loaded
    model."""
    input: str = Field(min_length=1, max_length=4096)
    voice: str | OpenAiVoice = ""
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    """``pcm`` is 24 kHz s16le."""
    speed: Speed = 1.0
    instructions: str = ""
    stream_format: Literal["audio", "sse"] = "audio"


@dataclass(frozen=True, slots=True)
class SpeechFile:
    """A text to speak, and the file that it becomes."""

    text: str
    format: str
    """One of ``FORMATS``."""
    asked: UtteranceRequest
    timestamps: bool = False
    """True: the answer is JSON, with the times of the words."""


def audio_types(body: type[BaseModel], field: str) -> tuple[str, ...]:
    """Return the content types that a body's field can select."""
    return tuple(FORMATS[name].content_type for name in get_args(body.model_fields[field].annotation))


class SpeechRoutes:
    """Handlers of the speech API. ``aclose`` ends its threads."""

    def __init__(self, engine: SpeechEngine, voices: KnownVoices, limits: LimitsConfig, usage: Usage) -> None:
        self._engine = engine
        self._voices = voices
        self._limits = limits
        self._usage = usage
        self._threads = FairPool(ENCODERS, "speech-file")

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        tags = ["speech"]
        return [
            Route(
                method="POST", path="/v1/tts", handler=self.file, summary="Text to an audio file",
                body=SpeechBody, content_type=(*audio_types(SpeechBody, "format"), JSON), answer=TimedSpeech,
                tags=tags,
            ),
            Route(
                method="POST", path="/v1/tts/stream", handler=self.stream,
                summary="Text to audio, sent as it is made",
                body=SpeechBody, content_type=(*audio_types(SpeechBody, "format"), JSON_LINES), tags=tags,
            ),
            Route(
                method="POST", path="/v1/audio/speech", handler=self.openai,
                summary="OpenAI's speech endpoint",
                content_type=(*audio_types(OpenAiBody, "response_format"), "text/event-stream"),
                body=OpenAiBody, tags=tags,
            ),
        ]  # fmt: skip

    async def aclose(self) -> None:
        """End the threads. A piece in progress is still encoded."""
        self._threads.close()

    # --- handlers --------------------------------------------------------------------------------------------------

    async def file(self, request: web.Request) -> web.StreamResponse:
        """Return the whole file."""
        order = await self._order(request)
        async with request[TENANT].occupied():
            await request[TENANT].spend(len(order.text))
            words: list[WordTime] = []
            told_s = [0.0]
            spoken = self.spoken(order, request[TENANT], whole=True, on_audio=told_s.append, on_words=words.extend)
            pieces = [piece async for piece in spoken]
        kind, length = FORMATS[order.format].content_type, sum(map(len, pieces))
        parts: Iterable[bytes | memoryview] = _cut(pieces)
        if order.timestamps:
            begin, end = _timed(b"", words, audio_ms=round(told_s[-1] * 1000)).split(b'""', 1)
            begin, end = begin + b'"', b'"' + end
            kind, length = JSON, len(begin) + -(-length // 3) * 4 + len(end)
            parts = chain([begin], _base64(pieces), [end])
        response = web.StreamResponse(headers={"Content-Type": kind})
        response.content_length = length
        await response.prepare(request)
        with suppress(ConnectionResetError):  # the client has disconnected
            for part in parts:  # a long file in one go would keep the loop from the frames of calls
                await response.write(part)
                await asyncio.sleep(0)
        return response

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Return the file in chunks, as they are made."""
        order = await self._order(request)
        if not order.timestamps:
            return await self._stream(request, order, FORMATS[order.format].content_type)
        words: list[WordTime] = []

        def line(piece: bytes) -> bytes:
            data = _timed(piece, words)
            words.clear()
            return data + b"\n"

        def last(audio_s: float) -> bytes:
            return _timed(b"", words, audio_ms=round(audio_s * 1000)) + b"\n"

        return await self._stream(request, order, JSON_LINES, wrap=line, end=last, on_words=words.extend)

    async def openai(self, request: web.Request) -> web.StreamResponse:
        """Handle OpenAI's ``audio/speech``."""
        body = OpenAiBody.from_json(await request.read())
        voice = body.voice if isinstance(body.voice, str) else body.voice.id
        name = body.response_format
        asked = UtteranceRequest(
            utterance_id=_new_id(), format=engine_format(name, FORMATS[name].default_hz),
            voice=await voice_id(self._voices, voice, request[WHO]), speed=body.speed, instruct=body.instructions,
            priority=request[TENANT].key.priority, model=await self._model(body.model),
        )  # fmt: skip
        order = SpeechFile(body.input, name, asked)
        try:
            return await self._openai(request, order, body)
        except InvalidRequest as exc:  # the field has another name in this API
            exc.field = "input" if exc.field == "text" else exc.field
            raise

    async def _openai(self, request: web.Request, order: SpeechFile, body: OpenAiBody) -> web.StreamResponse:
        if body.stream_format == "audio":
            return await self._stream(request, order, FORMATS[order.format].content_type)
        # OpenAI reports usage in tokens. We report characters of text and 20 ms frames of speech instead.
        tokens = {"input_tokens": len(order.text), "output_tokens": 0}

        words: list[WordTime] = []

        def delta(piece: bytes) -> bytes:
            data = _event(type="speech.audio.delta", audio=base64.b64encode(piece).decode(), words=_shown(words))
            words.clear()
            return data

        def done(audio_s: float) -> bytes:
            tokens["output_tokens"] = round(audio_s * 50)
            return _event(type="speech.audio.done", usage={**tokens, "total_tokens": sum(tokens.values())})

        return await self._stream(request, order, "text/event-stream", wrap=delta, end=done, on_words=words.extend)

    # --- shared by the handlers -------------------------------------------------------------------------------------

    async def _model(self, name: str) -> str:
        """Return the loaded model that an OpenAI client names. Empty: the active one."""
        if name in OPENAI_MODELS:
            return ""
        status = await self._engine.status()
        if name not in (status.model, *status.models):
            raise Rejected(f"no model {name[:40]!r}", status=404, code="model_not_found", param="model")
        return "" if name == status.model else name

    async def _order(self, request: web.Request) -> SpeechFile:
        body = SpeechBody.from_json(await request.read())
        fmt = FORMATS[body.format]
        rate = fmt.default_hz if body.sample_rate is None else body.sample_rate
        if rate not in fmt.rates_hz:
            expected = ", ".join(map(str, fmt.rates_hz))
            raise Rejected(
                f"sample_rate is {rate} Hz, expected for {body.format}: {expected}",
                status=422, code="invalid_body", param="sample_rate",
            )  # fmt: skip
        if len(body.text) > self._limits.turn_chars:
            raise Rejected(
                f"text is {len(body.text)} characters, expected {self._limits.turn_chars} or fewer (limits.turn_chars)",
                status=413, code="text_too_long", param="text",
            )  # fmt: skip
        asked = UtteranceRequest(
            utterance_id=_new_id(), format=engine_format(body.format, rate),
            voice=await voice_id(self._voices, body.speaker, request[WHO]), language=body.language,
            speed=body.speed, instruct=body.instruct, priority=request[TENANT].key.priority,
        )  # fmt: skip
        return SpeechFile(body.text, body.format, asked, body.timestamps)

    async def spoken(
        self,
        order: SpeechFile,
        tenant: Tenant,
        *,
        whole: bool = False,
        on_audio: Callable[[float], None] = lambda s: None,
        on_words: Callable[[list[WordTime]], None] = lambda words: None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the file in non-empty pieces, and count it in the tenant's usage.

        Args:
            whole: True: the file is returned as one, so that its header can have the length.
            on_audio: called with the seconds of audio made so far.
            on_words: called with the words of each chunk of sound.

        Raises:
            EngineError: the text cannot be spoken.
        """
        asked, fmt = order.asked, order.asked.format
        # Samples that need no encoding take less time here than their way to a thread.
        do = (
            partial(self._in_thread, tenant.name, asked.utterance_id)
            if FORMATS[order.format].codec or whole
            else _inline
        )
        samples = 0
        with self._usage.request(tenant.name, asked.utterance_id) as tally:
            tally.characters = len(order.text)
            async with self._engine.open(asked) as utterance:
                speakable = Speakable()
                utterance.feed(speakable.feed(order.text) + speakable.close())
                utterance.end_text()
                # Meanwhile the engine works.
                file = await do(lambda: writer(order.format, fmt.sample_rate, whole=whole))
                await tally.metered
                async for chunk in utterance:
                    if not chunk.frames:
                        continue
                    samples += chunk.samples
                    tally.heard(samples / fmt.sample_rate)
                    on_audio(samples / fmt.sample_rate)
                    on_words(word_times(chunk, speakable, fmt.sample_rate))
                    if piece := await do(file.write, chunk.frames):
                        yield piece
            if not samples and (piece := await do(file.write, [fmt.silence_frame()] * SILENT_FRAMES)):
                yield piece
            if piece := await do(file.close):
                yield piece

    async def _in_thread(self, tenant: str, request: str, work: Callable[..., Any], *args: Any) -> Any:
        return await self._threads.run((tenant, request), partial(work, *args))

    async def _stream(
        self,
        request: web.Request,
        order: SpeechFile,
        content_type: str,
        *,
        wrap: Callable[[bytes], bytes] = lambda piece: piece,
        end: Callable[[float], bytes] = lambda audio_s: b"",
        on_words: Callable[[list[WordTime]], None] = lambda words: None,
    ) -> web.StreamResponse:
        audio_s = 0.0

        def on_audio(seconds: float) -> None:
            nonlocal audio_s
            audio_s = seconds

        async with request[TENANT].occupied():
            await request[TENANT].spend(len(order.text))
            async with aclosing(self.spoken(order, request[TENANT], on_audio=on_audio, on_words=on_words)) as pieces:
                # The status is certain to be 200 only when the first piece has been made.
                first = await anext(pieces)
                response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-store"})
                await response.prepare(request)
                try:
                    await response.write(wrap(first))
                    async for piece in pieces:
                        await response.write(wrap(piece))
                except ConnectionResetError:
                    return response  # the client has disconnected
                except EngineError as exc:
                    # The status has been sent, so only an incomplete body can signal the error.
                    why = {"request": request_id.of(request), "code": exc.code, "why": str(exc)}
                    log.warning("speech aborted", extra=why)
                    if request.transport is not None:
                        request.transport.abort()
                    return response
                if last := end(audio_s):
                    await response.write(last)
        return response


def _new_id() -> str:
    return f"api.{uuid.uuid4().hex}"


async def _inline(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


async def voice_id(voices: KnownVoices, name: str, who: Principal) -> str:
    """Return the id of the voice that a client names. Empty: the engine's default.

    Raises:
        NotFound: the voice belongs to another tenant.
    """
    if not sees_voice(who.voices, name):
        raise NotFound(f"no voice {name[:40]!r}")
    if name in GENERIC_VOICES and name not in await voices.ids():
        return ""
    return name


def _cut(pieces: Iterable[bytes]) -> Iterator[memoryview]:
    """Yield a file in parts that cost the loop little."""
    for piece in pieces:
        for at in range(0, len(piece), _WRITE_BYTES):
            yield memoryview(piece)[at : at + _WRITE_BYTES]


def _base64(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a file in Base64, in parts that cost the loop little."""
    left = b""
    for part in _cut(pieces):
        whole = left + part
        end = len(whole) // 3 * 3
        left = whole[end:]
        yield base64.b64encode(whole[:end])
    if left:
        yield base64.b64encode(left)


def _timed(audio: bytes, words: list[WordTime], **fields: int) -> bytes:
    """Return a piece of sound and its words as JSON."""
    return orjson.dumps({"audio": base64.b64encode(audio).decode(), "words": _shown(words), **fields})


def _shown(words: list[WordTime]) -> list[dict[str, Any]]:
    return [word.model_dump() for word in words]


def _event(**fields: Any) -> bytes:
    return b"data: " + orjson.dumps(fields) + b"\n\n"
