"""Transcription over HTTP: an uploaded sound file to text, by the recognisers of the routes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from aiohttp import web
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from gateway.config import RecogniserConfig
from gateway.errors import Rejected
from gateway.http.request.auth import TENANT, WHO
from gateway.http.request.forms import read_multipart
from gateway.http.request.routes import MULTIPART, ApiModel, Route
from gateway.http.speech_api.sound_decoder import decoded
from gateway.limits.fair_turns import FairTurns
from gateway.principal import Principal
from gateway.seams.recogniser import FRAME_BYTES, SAMPLE_RATE, Recogniser, RecognitionError

MOST_BYTES = 25 * 1024 * 1024
"""Largest file, bytes; the same as OpenAI's."""

AT_ONCE = 2
"""Most requests at a time in this process. The recogniser also serves the calls."""

OPENAI_MODELS = ("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe")
"""OpenAI's names. Each means the first recogniser that knows the language."""

_FRAME_S = 0.02
_FRAMES_IN_A_ROW = 25
_PAUSE_FRAMES = 30  # a shorter pause does not end a segment
_EDGE_FRAMES = 10  # kept around speech, for soft beginnings and ends
_FIRST_CUT_FRAMES, _MOST_FRAMES = 250, 600  # a segment without a pause is cut between these, where it is quietest
_QUIET = 3e-4  # less is silence in every recording, full scale is 1
_LEEWAY_S = 0.05


class TranscriptionBody(ApiModel):
    """Form of ``POST /v1/audio/transcriptions``, as OpenAI defines it."""

    model_config = ConfigDict(extra="forbid")

    file: Annotated[bytes, Field(min_length=1)]
    """The sound: wav, mp3, ogg, flac, m4a or webm, at most 25 MiB and 10 minutes."""
    model: str
    """``embedded``, ``whisper`` or ``external``: that recogniser. OpenAI's names mean the first that knows the
    language."""
    language: str = "en"
    """Spoken language, BCP 47."""
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    prompt: str = ""
    """Ignored."""
    temperature: float = Field(0.0, ge=0, le=1)
    """Ignored."""
    timestamp_granularities: list[Literal["segment"]] = Field([], alias="timestamp_granularities[]")
    """Words have no times here."""


class DurationView(ApiModel):
    """The length of the file, in whole seconds."""

    type: str = "duration"
    seconds: int


class TranscriptionView(ApiModel):
    """Answer in the format ``json``."""

    text: str
    usage: DurationView


class SegmentView(ApiModel):
    """A part of the speech between pauses. Values that no recogniser tells are constant; OpenAI's clients need them."""

    id: int
    start: float
    """Seconds from the beginning of the file, estimated from the pauses."""
    end: float
    text: str
    seek: int = 0
    tokens: list[int] = []
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 1.0
    no_speech_prob: float = 0.0


class VerboseTranscriptionView(ApiModel):
    """Answer in the format ``verbose_json``."""

    task: str = "transcribe"
    language: str
    duration: float
    text: str
    segments: list[SegmentView]
    usage: DurationView


@dataclass(frozen=True, slots=True)
class _Heard:
    start_s: float
    end_s: float
    text: str


class _Words:
    """Takes the words of one utterance at a time."""

    def __init__(self) -> None:
        self.final: asyncio.Queue[str] = asyncio.Queue()  # one utterance at a time, so one text at most

    def on_partial(self, text: str) -> None:
        pass

    def on_final(self, text: str) -> None:
        self.final.put_nowait(text)


class Transcriptions:
    """Handler of ``/v1/audio/transcriptions``.

    Args:
        recognisers: kind (``embedded``, ``whisper``, ``external``) and recogniser of each route that has one. A client
            uses those of the routes that it sees.
    """

    def __init__(self, recognisers: Mapping[str, tuple[str, Recogniser]], config: RecogniserConfig) -> None:
        self._recognisers = recognisers
        self._final_s = config.final_timeout_ms / 1000
        self._busy: Counter[str] = Counter()
        """Transcriptions that run or wait, by tenant."""
        self._places = FairTurns(AT_ONCE)

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        return [
            Route(
                method="POST", path="/v1/audio/transcriptions", handler=self.transcribe,
                summary="OpenAI's transcription endpoint: a sound file to text",
                body=TranscriptionBody, takes=(MULTIPART,), answer=TranscriptionView, tags=["speech"],
            )
        ]  # fmt: skip

    async def transcribe(self, request: web.Request) -> web.Response:
        """Return the words of a file."""
        tenant = request[TENANT].name
        async with request[TENANT].occupied():
            with self._counted(tenant):
                names = [field.alias or name for name, field in TranscriptionBody.model_fields.items()]
                # A slow upload has no place, which would keep others waiting.
                form, data = await read_multipart(request, names=names, file="file", most=MOST_BYTES)
                several = "timestamp_granularities[]"
                fields = {name: values if name == several else values[-1] for name, values in form.items()}
                body = TranscriptionBody.model_validate(fields | ({"file": bytes(data[:1])} if data else {}))
                recogniser = self._recogniser(request[WHO], body.model, body.language)
                async with self._places.place((tenant, "")):
                    pcm = await decoded(data)
                    return _answer(body, len(pcm) / 2 / SAMPLE_RATE, await self._hear(recogniser, pcm, body.language))

    async def words(self, request: web.Request, pcm: bytes, language: str) -> str:
        """Return the words of a sound by the first recogniser that knows the language.

        Args:
            request: of the client whose recognisers may listen.
            pcm: s16le mono at ``SAMPLE_RATE``.

        Returns:
            Empty: no recogniser can listen now, or none understood a word.
        """
        tenant = request[TENANT].name
        try:
            with self._counted(tenant):
                async with self._places.place((tenant, "")):
                    recogniser = self._recogniser(request[WHO], OPENAI_MODELS[0], language)
                    return " ".join(each.text for each in await self._hear(recogniser, pcm, language))
        except Rejected:
            return ""

    @contextmanager
    def _counted(self, tenant: str) -> Iterator[None]:
        """Count a request. A tenant has at most ``AT_ONCE``, also uploads and requests that wait."""
        if self._busy[tenant] >= AT_ONCE:
            raise Rejected(
                f"{AT_ONCE} transcriptions are in progress", status=429, code="too_many_requests", retry_after_s=1.0
            )
        self._busy[tenant] += 1
        try:
            yield
        finally:
            self._busy[tenant] -= 1
            if not self._busy[tenant]:
                del self._busy[tenant]

    def _recogniser(self, who: Principal, model: str, language: str) -> Recogniser:
        """Return the recogniser that a client names.

        Raises:
            Rejected: 404, there is none of that name; 422, it does not know the language; 503, it starts.
        """
        seen = dict(named for route, named in self._recognisers.items() if who.sees(route))
        if not seen:
            raise Rejected(
                "no route of this key has a recogniser (routes.NAME.recogniser)", status=503, code="not_configured"
            )
        names = tuple(seen) if model in OPENAI_MODELS else (model,)
        if unknown := [name for name in names if name not in seen]:
            raise Rejected(f"no model {unknown[0][:40]!r}", status=404, code="model_not_found", param="model")
        able = [seen[name] for name in names if seen[name].knows(language)]
        if not able:
            raise Rejected(
                f"no recogniser here knows the language {language[:20]!r}",
                status=422, code="invalid_body", param="language",
            )  # fmt: skip
        if not able[0].ready:
            raise Rejected("the recogniser starts", status=503, code="unavailable", retry_after_s=2.0)
        return able[0]

    async def _hear(self, recogniser: Recogniser, pcm: bytes, language: str) -> list[_Heard]:
        words, heard = _Words(), []
        spans = await asyncio.to_thread(spoken_spans, np.frombuffer(pcm, "<i2"))
        loop = asyncio.get_running_loop()
        try:
            stream = recogniser.open(words, language=language, hints=(), partials=False)
        except RecognitionError as exc:
            raise Rejected(str(exc), status=422, code="invalid_body", param="language") from None
        try:
            for first, end in spans:
                for at in range(first, end):
                    stream.push(pcm[at * FRAME_BYTES : (at + 1) * FRAME_BYTES])
                    if at % _FRAMES_IN_A_ROW == 0:
                        await asyncio.sleep(0)  # calls are paced on this loop
                stream.finish()
                begun = loop.time()
                text = await words.final.get()
                if not text and loop.time() - begun > self._final_s - _LEEWAY_S:
                    raise Rejected(
                        "the recogniser did not answer in time", status=503, code="unavailable", retry_after_s=2.0
                    )
                if text:
                    heard.append(_Heard(round(first * _FRAME_S, 2), round(end * _FRAME_S, 2), text))
        finally:
            await stream.aclose()
        return heard


def spoken_spans(pcm: NDArray[np.int16]) -> list[tuple[int, int]]:
    """Return the parts of a recording that may be speech, in frames of 20 ms: first, and the one after the last.

    Args:
        pcm: samples at ``SAMPLE_RATE``.
    """
    size = FRAME_BYTES // 2
    frames = pcm[: len(pcm) // size * size].reshape(-1, size).astype(np.float32) / 32768
    if not len(frames):
        return []
    level = np.sqrt(np.mean(frames**2, axis=1))
    low, high = np.percentile(level, (10, 95))
    loud = np.flatnonzero(level > max(_QUIET, min(3 * float(low), 0.1 * float(high))))
    if not len(loud):
        return []
    spans = []
    for part in np.split(loud, np.flatnonzero(np.diff(loud) > _PAUSE_FRAMES) + 1):
        first, end = max(0, int(part[0]) - _EDGE_FRAMES), min(len(level), int(part[-1]) + 1 + _EDGE_FRAMES)
        while end - first > _MOST_FRAMES:
            cut = first + _FIRST_CUT_FRAMES + int(np.argmin(level[first + _FIRST_CUT_FRAMES : first + _MOST_FRAMES]))
            spans.append((first, cut))
            first = cut
        spans.append((first, end))
    return spans


def _answer(body: TranscriptionBody, duration_s: float, heard: list[_Heard]) -> web.Response:
    text = " ".join(each.text for each in heard)
    usage = DurationView(seconds=round(duration_s))
    match body.response_format:
        case "text":
            return web.Response(text=f"{text}\n")
        case "srt":
            cues = [
                f"{number}\n{_time(each.start_s, ',')} --> {_time(each.end_s, ',')}\n{each.text}\n\n"
                for number, each in enumerate(heard, 1)
            ]
            return web.Response(text="".join(cues))
        case "vtt":
            cues = [f"{_time(each.start_s, '.')} --> {_time(each.end_s, '.')}\n{each.text}\n\n" for each in heard]
            return web.Response(text="WEBVTT\n\n" + "".join(cues), content_type="text/vtt")
        case "verbose_json":
            segments = [
                SegmentView(id=number, start=each.start_s, end=each.end_s, text=each.text)
                for number, each in enumerate(heard)
            ]
            view = VerboseTranscriptionView(
                language=body.language, duration=round(duration_s, 2), text=text, segments=segments, usage=usage
            )
            return web.json_response(view.model_dump())
        case _:
            return web.json_response(TranscriptionView(text=text, usage=usage).model_dump())


def _time(seconds: float, point: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"
