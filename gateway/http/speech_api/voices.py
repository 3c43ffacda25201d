"""Voices over HTTP: list, show, register from reference audio, remove."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from aiohttp import web
from pydantic import BeforeValidator, ConfigDict, Field

from gateway.call.known_voices import KnownVoices
from gateway.config import LimitsConfig
from gateway.errors import Rejected
from gateway.http.request.auth import TENANT, WHO
from gateway.http.request.forms import read_multipart, too_large
from gateway.http.request.routes import JSON, MULTIPART, ApiModel, Route
from gateway.http.speech_api.sound_decoder import sampled
from gateway.http.speech_api.transcription import Transcriptions
from gateway.http.speech_api.voice_sample import Measured, problems
from gateway.limits.fair_turns import FairTurns
from gateway.principal import sees_voice
from gateway.seams.recogniser import SAMPLE_RATE
from tts_engine.api import SpeechEngine, VoiceInfo
from tts_engine.errors import NotFound
from voicecodecs.resample import resample

_FIELD_BYTES = 16 * 1024
"""Most bytes of a body beside the audio."""

_HEAD_BYTES = 44
"""Length of the head of a WAV file that ``sampled`` returns."""


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


class ProblemView(ApiModel):
    """Something that makes a voice worse than it could be."""

    code: str
    """`incomplete`, `two_channels`, `short`, `pauses`, `quiet`, `clipped`, `noisy`, `narrow` or `transcript`."""
    message: str


class SampleView(ApiModel):
    """The recording of a voice."""

    seconds: float
    sample_rate: int
    """Hz of the file."""
    channels: int
    speech_s: float
    """Seconds without the pauses."""
    level_dbfs: float
    """Level of the speech; 0 is full scale."""
    noise_db: float
    """Level of the speech above the quietest tenth of the recording, dB."""
    clipped: float
    """Share of samples at the limit, 0 to 1."""
    bandwidth_hz: int
    """Highest frequency with sound."""
    heard: str
    """The words that a recogniser of the client's routes understood. Empty: none listened."""
    problems: list[ProblemView]
    """Faults of the recording, the worst first. The voice was made all the same."""


class AddedVoice(VoiceView):
    """A new voice, and what is wrong with its recording."""

    sample: SampleView


class VoicesView(ApiModel):
    """``GET /v1/voices``: built-in voices first."""

    voices: list[VoiceView]


class VoiceBody(ApiModel):
    """A voice to register: as JSON, or as a form (multipart/form-data) with the same fields and ``audio`` as a file."""

    model_config = ConfigDict(extra="forbid")

    audio: Annotated[bytes, BeforeValidator(_from_base64), Field(min_length=1)]
    """Recording of one speaker, 1 to 30 seconds (5 to 15 are best): wav, mp3, ogg, flac, m4a or webm; in JSON as
    base64."""
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

    def __init__(
        self, engine: SpeechEngine, known: KnownVoices, limits: LimitsConfig, transcriptions: Transcriptions
    ) -> None:
        self._engine = engine
        self._transcriptions = transcriptions
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
                  body=VoiceBody, takes=(JSON, MULTIPART), answer=AddedVoice, tags=tags),
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
        """Register a voice. The answer comes when the engine has computed the voice's features and a recogniser, if
        there is one, has heard the recording."""
        body, data = await self._body(request)
        async with self._decoding.place((request[TENANT].name, "")):
            measured, wav = await sampled(data)
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
        sample = await self._sample(request, body, measured, wav)
        added = AddedVoice(**_view(voice).model_dump(), sample=sample)
        headers = {"Location": f"/v1/voices/{voice.voice_id}"}
        return web.json_response(added.model_dump(), status=201, headers=headers)

    async def _sample(self, request: web.Request, body: VoiceBody, measured: Measured, wav: bytes) -> SampleView:
        heard = ""
        if body.transcript.strip():
            pcm = await asyncio.to_thread(_for_recogniser, wav)
            heard = await self._transcriptions.words(request, pcm, body.language or "en")
        found = [
            ProblemView(code=each.code, message=each.message) for each in problems(measured, body.transcript, heard)
        ]
        return SampleView(
            seconds=measured.seconds, sample_rate=measured.sample_rate, channels=measured.channels,
            speech_s=measured.speech_s, level_dbfs=measured.level_dbfs, noise_db=measured.noise_db,
            clipped=measured.clipped, bandwidth_hz=measured.bandwidth_hz, heard=heard, problems=found,
        )  # fmt: skip

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
    head = {"audio": bytes(audio[:_HEAD_BYTES])} if audio else {}
    return VoiceBody.model_validate({name: values[-1] for name, values in form.items()} | head), audio


def _for_recogniser(wav: bytes) -> bytes:
    """Return the sound of a file of ``sampled`` as a recogniser takes it."""
    rate = int.from_bytes(wav[24:28], "little")
    pcm = np.frombuffer(wav, "<i2", offset=_HEAD_BYTES).astype(np.float32) / np.float32(32768)
    return (np.clip(resample(pcm, rate, SAMPLE_RATE), -1, 1) * 32767).astype("<i2").tobytes()


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
