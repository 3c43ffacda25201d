"""Voices over HTTP: list, show, register from reference audio, remove."""

from __future__ import annotations

import asyncio
import base64
import io
import uuid
import wave
from collections.abc import Sequence
from typing import Annotated

from aiohttp import web
from pydantic import BeforeValidator, ConfigDict, Field

from gateway.call.known_voices import KnownVoices
from gateway.config import LimitsConfig
from gateway.errors import Rejected
from gateway.http.request.auth import TENANT, WHO
from gateway.http.request.forms import read_multipart, too_large
from gateway.http.request.routes import JSON, MULTIPART, ApiModel, Route
from gateway.http.speech_api.sound_decoder import decoded
from gateway.limits.fair_turns import FairTurns
from gateway.principal import sees_voice
from tts_engine.api import SpeechEngine, VoiceInfo
from tts_engine.errors import NotFound

_FIELD_BYTES = 16 * 1024
"""Most bytes of a body beside the audio."""

_RATE = 24_000
"""Sample rate of decoded audio, hertz; the voice models use no more."""

_WAV_HEAD = 12
"""Number of bytes that identify a WAV file."""


def _from_base64(value: object) -> object:
    return base64.b64decode(value, validate=True) if isinstance(value, str) else value


class VoiceView(ApiModel):
    """A voice. Its id can be a ``speaker``, the ``voice`` of a route, or the ``voice`` of a ``text`` message."""

    voice_id: str
    name: str
    languages: list[str]
    engine: str
    registered: bool
    """True: a user added this voice, so it can be removed."""


class VoicesView(ApiModel):
    """``GET /v1/voices``: built-in voices first."""

    voices: list[VoiceView]


class VoiceBody(ApiModel):
    """A voice to register: as JSON, or as a form (multipart/form-data) with the same fields and ``audio`` as a file."""

    model_config = ConfigDict(extra="forbid")

    audio: Annotated[bytes, BeforeValidator(_from_base64), Field(min_length=1)]
    """Reference audio: wav, of a usual rate from 16 to 192 kHz, or mp3, ogg, flac, m4a or webm; in JSON as base64. 5 to
    15 seconds of one speaker are best."""
    transcript: str = ""
    """The words of the audio, exactly."""
    voice_id: str = ""
    """Letters, digits, ``_`` and ``-``. Empty: an id is generated. With several tenants, the tenant's name is put in
    front; the ``voice_id`` of the answer is valid."""
    name: str = ""
    """The display name. Empty: the id."""
    language: str = ""
    """BCP 47 tag of the speaker."""


class Voices:
    """Handlers of ``/v1/voices``."""

    def __init__(self, engine: SpeechEngine, known: KnownVoices, limits: LimitsConfig) -> None:
        self._engine = engine
        self._known = known
        self._limits = limits
        self._decoding = FairTurns(1)
        """One file at a time, as a decoder may take 1 GiB."""

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        path, one, tags = "/v1/voices", "/v1/voices/{voice_id}", ["voices"]
        return [
            Route(method="GET", path=path, handler=self.list,
                  summary="All voices", answer=VoicesView, tags=tags),
            Route(method="GET", path="/v1/audio/voices", handler=self.list,
                  summary="The same", answer=VoicesView,
                  tags=tags),
            Route(method="POST", path=path, handler=self.add,
                  summary="Register a voice from reference audio",
                  body=VoiceBody, takes=(JSON, MULTIPART), answer=VoiceView, tags=tags),
            Route(method="GET", path=one, handler=self.show,
                  summary="A voice", answer=VoiceView, tags=tags),
            Route(method="DELETE", path=one, handler=self.remove,
                  summary="Remove a registered voice", tags=tags),
        ]  # fmt: skip

    async def list(self, request: web.Request) -> web.Response:
        """Return all voices that the client may use."""
        voices = [_view(voice) for voice in await self._seen(request)]
        return web.json_response(VoicesView(voices=voices).model_dump())

    async def show(self, request: web.Request) -> web.Response:
        """Return one voice."""
        voice_id = request.match_info["voice_id"]
        found = next((voice for voice in await self._seen(request) if voice.voice_id == voice_id), None)
        if found is None:
            raise NotFound(f"no voice {voice_id[:40]!r}")
        return web.json_response(_view(found).model_dump())

    async def add(self, request: web.Request) -> web.Response:
        """Register a voice. The answer comes when the engine has computed the voice's features."""
        body, wav = await self._body(request)
        if not (wav[:4] == b"RIFF" and wav[8:_WAV_HEAD] == b"WAVE"):
            async with self._decoding.place((request[TENANT].name, "")):
                wav = _wav(await decoded(wav, rate=_RATE, field="audio"))
        who = request[WHO]
        voice_id = who.own_voice(body.voice_id or uuid.uuid4().hex[:12]) if who.voices else body.voice_id
        if voice_id and voice_id in {voice.voice_id for voice in await self._seen(request)}:
            raise Rejected(
                f"voice {voice_id[:40]!r} exists already; remove it first",
                status=409, code="voice_exists", param="voice_id",
            )  # fmt: skip
        voice = await self._engine.add_voice(
            voice_id=voice_id,
            name=body.name or body.voice_id,
            wav=wav,
            transcript=body.transcript,
            language=body.language,
        )
        await self._known.look()
        headers = {"Location": f"/v1/voices/{voice.voice_id}"}
        return web.json_response(_view(voice).model_dump(), status=201, headers=headers)

    async def remove(self, request: web.Request) -> web.Response:
        """Remove a voice that the client has registered. Utterances that use it finish."""
        voice_id = request.match_info["voice_id"]
        if not voice_id.startswith(request[WHO].voices):
            raise NotFound(f"no voice {voice_id[:40]!r} of yours")
        await self._engine.remove_voice(voice_id)
        await self._known.look()
        return web.Response(status=204)

    async def _seen(self, request: web.Request) -> Sequence[VoiceInfo]:
        own = request[WHO].voices
        return [voice for voice in await self._engine.list_voices() if sees_voice(own, voice.voice_id)]

    async def _body(self, request: web.Request) -> tuple[VoiceBody, bytes | bytearray]:
        """Return the body, and its recording separately: for a form, ``VoiceBody`` has only the recording's head."""
        most = self._limits.voice_bytes
        if request.content_type == "multipart/form-data":
            return await _form(request, most)
        data = bytearray()
        # Base64 takes four bytes for three; the other fields take a little more.
        async for piece in request.content.iter_chunked(65536):
            data += piece
            if len(data) > most * 4 // 3 + _FIELD_BYTES:
                raise _too_large(most)
        body = await asyncio.to_thread(VoiceBody.from_json, bytes(data))
        if len(body.audio) > most:
            raise _too_large(most)
        return body, body.audio


async def _form(request: web.Request, most: int) -> tuple[VoiceBody, bytearray]:
    form, audio = await read_multipart(
        request, names=VoiceBody.model_fields, file="audio", most=most, limit="limits.voice_bytes"
    )
    head = {"audio": bytes(audio[:_WAV_HEAD])} if audio else {}
    return VoiceBody.model_validate({name: values[-1] for name, values in form.items()} | head), audio


def _wav(pcm: bytes) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, _RATE, 0, "NONE", ""))
        file.writeframes(pcm)
    return data.getvalue()


def _too_large(most: int) -> Rejected:
    return too_large("audio", most, "limits.voice_bytes")


def _view(voice: VoiceInfo) -> VoiceView:
    return VoiceView(
        voice_id=voice.voice_id,
        name=voice.name,
        languages=[*voice.languages],
        engine=voice.engine,
        registered=voice.registered,
    )
