"""The speech API over real HTTP: files, streams, voices, models, usage, and what is refused."""

import asyncio
import base64
import io
import json
import random
import wave
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import av
import numpy as np
import orjson
import pytest
from aiohttp import web

from gateway.config import RouteConfig
from gateway.http.speech_api.speech import _base64
from talkspurt import build
from tests.gateway.http.api_gateway import CloningEngine, api_gateway
from tests.gateway.http.speech_api.test_transcription import bursts, encoded
from tests.gateway.webrtc.webrtc_gateway import strongest_hz
from tests.waiting import until
from tts_engine.errors import Exhausted
from tts_engine.metrics import REFUSED
from tts_engine.pipeline.admission_queue import AdmissionConfig, AdmissionQueue
from tts_engine.service.client import GrpcEngine
from tts_engine.synthesizer import ClauseRequest, Hearing, PcmChunk
from tts_engine.tone import LETTER_MS, ToneSynthesizer, tone_hz
from voicecodecs import g711

TEXT = "Hello there everybody"
JSON = {"Content-Type": "application/json"}
SPOKEN_S = len(TEXT.replace(" ", "")) * LETTER_MS / 1000


class Api:
    """A client of the gateway."""

    def __init__(self, http: aiohttp.ClientSession, engine: CloningEngine) -> None:
        self.http = http
        self.engine = engine

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """Status, and the JSON or the bytes."""
        async with self.http.request(method, path, **more) as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, await answer.json() if is_json else await answer.read()

    async def speak(self, path: str = "/v1/tts", **body: Any) -> bytes:
        status, data = await self.ask("POST", path, json=body)
        assert status == 200, data
        return data


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with api_gateway(tmp_path) as (_, engine, url), aiohttp.ClientSession(url) as http:
        assert isinstance(engine, CloningEngine)
        yield Api(http, engine)


def reference_wav(seconds: float = 1.0) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(np.arange(int(16000 * seconds), dtype="<i2").tobytes())
    return data.getvalue()


def decoded(data: bytes, format_: str, rate: int = 0) -> tuple[np.ndarray, int]:
    """Samples and their rate, by another decoder than the one that is tested where there is one."""
    if format_ == "pcm":
        return np.frombuffer(data, "<i2"), rate or 24000
    if format_ == "ulaw":
        return g711.decode_ulaw(data), 8000
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format="s16", layout="mono", rate=stream.rate)
        blocks = [part.to_ndarray()[0] for frame in container.decode(stream) for part in resampler.resample(frame)]
        return np.concatenate(blocks), stream.rate


# --- speaking --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/tts", "/v1/tts/stream"])
@pytest.mark.parametrize("format_", ["wav", "pcm", "ulaw", "mp3", "opus"])
async def test_every_format_holds_the_whole_speech(api: Api, path: str, format_: str) -> None:
    pcm, rate = decoded(await api.speak(path, text=TEXT, format=format_), format_)
    assert strongest_hz(pcm, rate) == pytest.approx(tone_hz(TEXT), abs=5)
    loud = np.flatnonzero(np.abs(pcm) > 3000)
    assert (loud[-1] - loud[0]) / rate == pytest.approx(SPOKEN_S, abs=0.1)


@pytest.mark.parametrize("format_", ["wav", "pcm"])
async def test_a_long_file_leaves_the_loop_to_others(api: Api, format_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much the socket takes: here all of it at once."""
    write, written = web.StreamResponse.write, [0]

    async def counted(response: web.StreamResponse, data: bytes) -> None:
        written[-1] += len(data)
        await write(response, data)

    async def count_turns() -> None:
        while True:
            await asyncio.sleep(0)
            written.append(0)

    monkeypatch.setattr(web.StreamResponse, "write", counted)
    counting = asyncio.create_task(count_turns())
    data = await api.speak(text="a" * 400, format=format_)
    counting.cancel()
    assert sum(written) == len(data) > 900_000
    assert max(written) <= 128 * 1024


async def test_a_file_with_timestamps_is_json_with_each_word(api: Api) -> None:
    body = {"text": "Hello <b>there</b> everybody", "timestamps": True, "format": "pcm"}
    _, answer = await api.ask("POST", "/v1/tts", json=body)
    assert len(base64.b64decode(answer["audio"])) // 48 == pytest.approx(answer["audio_ms"], abs=1)
    assert [(word["start"], word["end"], word["timing"]) for word in answer["words"]] == [
        (0, 5, "exact"), (9, 14, "exact"), (19, 28, "exact")
    ]  # fmt: skip
    times = [at for word in answer["words"] for at in (word["at_ms"], word["end_ms"])]
    assert times == sorted(times) and times[-1] <= answer["audio_ms"]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1_000_000])
def test_a_long_file_becomes_base64_in_parts_that_do_not_hold_the_loop(size: int) -> None:
    audio = random.Random(size).randbytes(size)
    parts = list(_base64([audio[:7], audio[7:]]))
    assert b"".join(parts) == base64.b64encode(audio)
    assert all(0 < len(part) < 90_000 for part in parts[1:])


async def test_a_stream_with_timestamps_is_one_object_a_line(api: Api) -> None:
    asked = {"text": "This is one sentence. And here is another one.", "format": "pcm"}
    lines = [orjson.loads(line) for line in (await api.speak("/v1/tts/stream", **asked, timestamps=True)).splitlines()]
    assert [word["end"] for line in lines for word in line["words"]][-1] == len(asked["text"])
    sound = b"".join(base64.b64decode(line["audio"]) for line in lines)
    assert sound == await api.speak("/v1/tts/stream", **asked)
    assert [line.get("audio_ms") for line in lines] == [*[None] * (len(lines) - 1), len(sound) // 48]


async def test_events_of_the_openai_stream_have_the_words(api: Api) -> None:
    body = {"model": "tts-1", "input": "Hello there.", "response_format": "pcm", "stream_format": "sse"}
    data = await api.speak("/v1/audio/speech", **body)
    events = [orjson.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: ")]
    words = [word for event in events for word in event.get("words", ())]
    assert [(word["start"], word["end"], word["timing"]) for word in words] == [(0, 5, "exact"), (6, 12, "exact")]


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000])
async def test_the_rate_that_was_asked_for(api: Api, rate: int) -> None:
    with wave.open(io.BytesIO(await api.speak(text=TEXT, sample_rate=rate))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (rate, 1, 2)
        assert file.getnframes() / rate == pytest.approx(SPOKEN_S, abs=0.3)


async def test_the_stream_begins_before_the_speech_is_made(tmp_path: Path) -> None:
    released = asyncio.Event()
    asked: list[int] = []

    def delay_s(number: int) -> float:
        asked.append(number)
        return float(number)

    async def sleep(number: float) -> None:
        if number:
            await released.wait()

    slow = ToneSynthesizer(delay_s=delay_s, sleep=sleep)
    async with (
        api_gateway(tmp_path, synthesizer=slow) as (_, _, url),
        aiohttp.ClientSession(url) as http,
        http.post("/v1/tts/stream", json={"text": TEXT, "format": "wav"}) as answer,
    ):
        begun = await answer.content.readexactly(44 + 3200)
        assert begun[:4] == b"RIFF" and max(asked) <= 1
        released.set()
        rest = await answer.read()
        assert len(begun) + len(rest) > 44 + SPOKEN_S * 48000


async def test_what_is_asked_for_reaches_the_engine(api: Api) -> None:
    await api.speak(text=TEXT, speaker="tone", speed=2, instruct="whisper", language="de-DE", format="ulaw")
    (asked,) = api.engine.asked
    assert (asked.voice, asked.speed, asked.instruct, asked.language) == ("tone", 2.0, "whisper", "de-DE")
    assert asked.format.encoding == "PCMU"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 422, "text"),
        ({"text": ""}, 422, "text"),
        ({"text": 7}, 422, "text"),
        ({"text": "x" * 20_001}, 413, "text"),
        ({"text": "Hi.", "format": "wma"}, 422, "format"),
        ({"text": "Hi.", "sample_rate": 11025}, 422, "sample_rate"),
        ({"text": "Hi.", "sample_rate": 16000, "format": "ulaw"}, 422, "sample_rate"),
        ({"text": "Hi.", "speed": 9}, 422, "speed"),
        ({"text": "Hi.", "voice": "tone"}, 422, "voice"),
        ({"text": "Hi.", "speaker": "nobody"}, 404, ""),
    ],
)
@pytest.mark.parametrize("path", ["/v1/tts", "/v1/tts/stream"])
async def test_bad_requests_name_the_field(api: Api, path: str, body: dict[str, Any], status: int, param: str) -> None:
    got, answer = await api.ask("POST", path, json=body)
    assert (got, answer["error"]["param"]) == (status, param), answer
    assert answer["error"]["message"]


@pytest.mark.parametrize("speed", [0.2, 4.1, "fast", None])
@pytest.mark.parametrize(
    ("path", "text"), [("/v1/tts", "text"), ("/v1/tts/stream", "text"), ("/v1/audio/speech", "input")]
)
async def test_a_speed_out_of_range_is_told_with_what_came(api: Api, path: str, text: str, speed: Any) -> None:
    body = {text: "Hi.", "speed": speed} | ({"model": "tts-1", "voice": "tone"} if text == "input" else {})
    status, answer = await api.ask("POST", path, json=body)
    assert status in (400, 422)
    assert answer["error"]["param"] == "speed"
    assert answer["error"]["message"] == f"speed: got {speed!r}, expected a number from 0.25 to 4"


async def test_a_body_that_is_no_json_and_one_that_is_too_large(api: Api) -> None:
    assert (await api.ask("POST", "/v1/tts", data=b"{", headers=JSON))[0] == 422
    assert (await api.ask("POST", "/v1/tts", data=b" " * 1_000_001, headers=JSON))[0] == 413


async def test_an_answer_counts_for_the_rule_that_says_when_garbage_may_be_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[Callable[[], int]] = []

    async def collect(calls: Callable[[], int]) -> None:
        counted.append(calls)

    monkeypatch.setattr(build, "collect_between_calls", collect)
    async with api_gateway(tmp_path) as (_, _, url), aiohttp.ClientSession(url) as http:
        await until(lambda: bool(counted))
        assert counted[0]() == 0
        async with http.post("/v1/tts/stream", json={"text": "And on it goes. " * 500, "format": "pcm"}) as answer:
            await answer.content.readany()
            assert counted[0]() == 1
        await until(lambda: counted[0]() == 0)


async def test_a_listener_who_leaves_frees_the_engine(tmp_path: Path) -> None:
    synthesizer = ToneSynthesizer()
    async with api_gateway(tmp_path, synthesizer=synthesizer) as (_, engine, url), aiohttp.ClientSession(url) as http:
        body = {"text": "And on it goes without an end. " * 500, "format": "pcm"}
        async with http.post("/v1/tts/stream", json=body) as answer:
            await answer.content.readany()
        await until(lambda: not engine._open)


@pytest.mark.parametrize("path", ["/v1/tts/stream", "/v1/tts"])
async def test_a_write_that_meets_the_listeners_end_is_no_error(
    path: str, api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def write(response: web.StreamResponse, data: bytes) -> None:
        assert response._req is not None and response._req.transport is not None
        response._req.transport.close()
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(web.StreamResponse, "write", write)
    with suppress(aiohttp.ClientPayloadError):
        await api.speak(path, text=TEXT, format="pcm")
    assert "request failed" not in caplog.text


class Full(ToneSynthesizer):
    """A voice without a free place."""

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        raise Exhausted("every place is taken", retry_after_s=2.5)
        yield  # makes this a generator


async def test_a_request_that_waited_in_vain_is_answered_429_with_the_reason_and_when_to_come_again(
    tmp_path: Path,
) -> None:
    refused = REFUSED.labels("waited")
    before = refused._value.get()
    async with (
        api_gateway(tmp_path, synthesizer=Full()) as (_, engine, url),
        aiohttp.ClientSession(url) as http,
    ):
        engine.admission = AdmissionQueue(AdmissionConfig(wait_ms=20), engine.observer)
        for path, text in (("/v1/tts", "text"), ("/v1/tts/stream", "text"), ("/v1/audio/speech", "input")):
            body = {text: TEXT} | ({"model": "tts-1"} if text == "input" else {})
            async with http.post(path, json=body) as answer:
                error = (await answer.json())["error"]
                assert (answer.status, answer.headers["Retry-After"], error["code"]) == (
                    429,
                    "3",
                    "rate_limit_exceeded",
                )
                assert error["message"].startswith("waited 20 ms for a place") and "every place" in error["message"]
        async with http.ws_connect("/ws/tts") as socket:
            await socket.send_json({"text": TEXT})
            assert (await socket.receive_json())["error"]["code"] == "rate_limit_exceeded"
    assert refused._value.get() == before + 4


async def test_speech_over_http_has_its_keys_priority_which_is_below_that_of_calls(tmp_path: Path) -> None:
    keys = [{"key": "dear", "priority": 7}, {"key": "plain"}]
    async with api_gateway(tmp_path, auth={"api_keys": keys}) as (_, engine, url):
        assert isinstance(engine, CloningEngine)
        for key in ("dear", "plain"):
            async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {key}"}) as http:
                async with http.post("/v1/tts", json={"text": "Hi."}) as answer:
                    assert answer.status == 200
                async with http.ws_connect("/ws/tts") as socket:
                    await socket.send_json({"text": "Hi."})
                    await socket.receive_json()
    assert [asked.priority for asked in engine.asked] == [7, 7, 3, 3]
    assert RouteConfig().priority > 3


async def test_one_tenant_cannot_take_every_place(tmp_path: Path) -> None:
    keys = [{"key": "one", "tenant": "one", "concurrent_calls": 1}, {"key": "two", "tenant": "two"}]
    one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
    body = {"text": "And on it goes without an end. " * 500, "format": "pcm"}
    async with (
        api_gateway(tmp_path, auth={"api_keys": keys}) as (_, _, url),
        aiohttp.ClientSession(url) as http,
        http.post("/v1/tts/stream", json=body, headers=one) as first,
    ):
        assert first.status == 200
        async with http.post("/v1/tts", json={"text": "Hi."}, headers=one) as second:
            assert (second.status, second.headers["Retry-After"]) == (429, "1")
        async with http.post("/v1/tts", json={"text": "Hi."}, headers=two) as other:
            assert other.status == 200
        async with http.post("/v1/tts", json={"text": "Hi."}) as stranger:
            assert stranger.status == 401
        async with http.get("/v1/usage", headers=two) as answer:
            usage = await answer.json()
        assert usage["tenant"] == "two"
        (today,) = usage["days"]
        assert (today["requests"], today["characters"]) == (1, 3) and today["audioSeconds"] > 0


@pytest.mark.parametrize("text", ["...", "\U0001f600 \U0001f680", "?!"])
@pytest.mark.parametrize("format_", ["wav", "pcm", "mp3", "opus", "ulaw"])
@pytest.mark.parametrize("path", ["/v1/tts", "/v1/tts/stream"])
async def test_a_text_without_anything_to_speak_is_a_short_silence(
    api: Api, path: str, text: str, format_: str
) -> None:
    """Clients send a chat model's answer sentence by sentence; an error at an emoji ends the whole of it for some."""
    body = await api.speak(path, text=text, format=format_)
    if format_ in ("pcm", "ulaw"):
        assert len(body) == {"pcm": 4800, "ulaw": 800}[format_]  # 100 ms
        assert set(body) == {0 if format_ == "pcm" else 0xFF}
    else:
        pcm, rate = decoded(body, format_)
        assert 0.05 < len(pcm) / rate < 0.3
        assert np.abs(pcm).max() < 300


@pytest.mark.parametrize("speaker", ["female", "male", "default", "alloy"])
async def test_a_name_that_means_any_voice_is_the_engines_default(api: Api, speaker: str) -> None:
    await api.speak(text=TEXT, speaker=speaker)
    (asked,) = api.engine.asked
    assert asked.voice == ""


async def test_such_a_name_means_the_voice_that_has_it_from_its_registration_to_its_removal(api: Api) -> None:
    await api.speak(text=TEXT, speaker="nova")
    recording = base64.b64encode(reference_wav()).decode()
    added = await api.ask("POST", "/v1/voices", json={"audio": recording, "transcript": "Hi.", "voice_id": "nova"})
    assert added[0] == 201
    await api.speak(text=TEXT, speaker="nova")
    assert (await api.ask("DELETE", "/v1/voices/nova"))[0] == 204
    await api.speak(text=TEXT, speaker="nova")
    assert [asked.voice for asked in api.engine.asked] == ["", "nova", ""]


async def test_a_first_sound_waits_for_no_question_to_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request asked for the engine's status, then for its voices, and only then began."""

    async def never(engine: GrpcEngine) -> Any:
        await asyncio.Event().wait()

    async with api_gateway(tmp_path) as (made, engine, url), aiohttp.ClientSession(url) as http:
        await until(lambda: bool(made.call_parts.known_voices._voices))
        monkeypatch.setattr(GrpcEngine, "status", never)
        monkeypatch.setattr(GrpcEngine, "list_voices", never)
        api = Api(http, engine)  # type: ignore[arg-type]
        await api.speak("/v1/audio/speech", model="tts-1", input=TEXT, voice="alloy", response_format="pcm")
        await api.speak("/v1/tts/stream", text=TEXT, speaker="female")


# --- as OpenAI has it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
async def test_openai_formats(api: Api, format_: str) -> None:
    body = {"model": "tts-1", "input": TEXT, "voice": "alloy", "response_format": format_}
    pcm, rate = decoded(await api.speak("/v1/audio/speech", **body), format_)
    assert strongest_hz(pcm, rate) == pytest.approx(tone_hz(TEXT), abs=5)


async def test_openai_events_carry_the_file_and_its_usage(api: Api) -> None:
    body = {"model": "gpt-4o-mini-tts", "input": TEXT, "voice": {"id": "tone"}, "stream_format": "sse"}
    data = await api.speak("/v1/audio/speech", **body, response_format="pcm")
    events = [json.loads(line[6:]) for line in data.decode().split("\n\n") if line]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    pcm = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert events[-1]["type"] == "speech.audio.done"
    assert events[-1]["usage"] == {
        "input_tokens": len(TEXT),
        "output_tokens": len(pcm) // 960,
        "total_tokens": len(TEXT) + len(pcm) // 960,
    }


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "whisper-1"}, 404, "model"),
        ({"input": "x" * 4097}, 422, "input"),
        ({"voice": "nobody"}, 404, ""),
        ({"response_format": "wma"}, 422, "response_format"),
    ],
)
async def test_openai_refusals(api: Api, body: dict[str, Any], status: int, param: str) -> None:
    whole = {"model": "tts-1", "input": "Hi.", "voice": "nova"} | body
    got, answer = await api.ask("POST", "/v1/audio/speech", json=whole)
    assert (got, answer["error"]["param"]) == (status, param)


async def test_models_are_listed_and_shown_and_only_a_loaded_one_can_be_chosen(api: Api) -> None:
    model = {"object": "model", "created": 0, "owned_by": "tone", "active": True}
    data = [model | {"id": "tone", "stands_for": ""}]
    data += [model | {"id": name, "stands_for": "tone"} for name in ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")]
    listed = {"object": "list", "data": data}
    assert await api.ask("GET", "/v1/models") == (200, listed)
    assert await api.ask("POST", "/v1/models/active", json={"model": "tone"}) == (200, listed)
    status, answer = await api.ask("POST", "/v1/models/active", json={"model": "other"})
    assert (status, answer["error"]["message"]) == (404, "model 'other' is not loaded, expected one of tone")


async def test_every_listed_model_is_shown_and_speaks(api: Api) -> None:
    """An application asks for the name that it is going to speak with; `tts-1` spoke, and was 404 when asked for."""
    _, listed = await api.ask("GET", "/v1/models")
    for model in listed["data"]:
        assert await api.ask("GET", f"/v1/models/{model['id']}") == (200, model)
        await api.speak("/v1/audio/speech", model=model["id"], input="Hi.", voice="alloy", response_format="pcm")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "/v1/models", {"id": "tone", "kind": "tone"}, 409, "id"),
        ("POST", "/v1/models", {"id": "../next", "kind": "tone"}, 422, "id"),
        ("POST", "/v1/models", {"id": "next", "kind": "flute"}, 422, "kind"),
        ("POST", "/v1/models", {"id": "next", "kind": "tone"}, 422, "model"),  # this engine loads none
        ("DELETE", "/v1/models/tone", None, 409, "id"),
        ("DELETE", "/v1/models/other", None, 404, "model"),
        ("DELETE", "/v1/models/tts-1", None, 404, "model"),  # it only stands for a loaded one
        ("POST", "/v1/models/active", {"model": "tts-1"}, 404, "model"),
        ("GET", "/v1/models/other", None, 404, "model"),
    ],
)
async def test_a_model_that_cannot_be_loaded_unloaded_or_shown_is_refused_and_nothing_changes(
    api: Api, method: str, path: str, body: dict[str, Any] | None, status: int, param: str
) -> None:
    got, answer = await api.ask(method, path, json=body)
    assert (got, answer["error"]["param"]) == (status, param)
    _, listed = await api.ask("GET", "/v1/models")
    assert [model["id"] for model in listed["data"] if not model["stands_for"]] == ["tone"]


# --- voices ----------------------------------------------------------------------------------------------------------


def form(**fields: Any) -> aiohttp.FormData:
    data = aiohttp.FormData(default_to_multipart=True)
    for name, value in fields.items():
        if isinstance(value, bytes):
            data.add_field(name, io.BytesIO(value), filename="reference.wav", content_type="audio/wav")
        else:
            data.add_field(name, value)
    return data


@pytest.mark.parametrize("as_form", [True, False])
async def test_a_voice_is_registered_heard_and_removed(api: Api, as_form: bool) -> None:
    wav = reference_wav()
    fields = {"transcript": "One two.", "voice_id": "anna", "name": "Anna", "language": "en-US"}
    more: dict[str, Any] = (
        {"data": form(audio=wav, **fields)}
        if as_form
        else {"json": {"audio": base64.b64encode(wav).decode(), **fields}}
    )
    anna = {"voice_id": "anna", "name": "Anna", "languages": ["en-US"], "engine": "tone", "registered": True}
    status, added = await api.ask("POST", "/v1/voices", **more)
    sample = added.pop("sample")
    assert (status, added) == (201, anna)
    assert (sample["seconds"], sample["sample_rate"], sample["channels"], sample["heard"]) == (1.0, 16000, 1, "")
    assert "short" in {problem["code"] for problem in sample["problems"]}
    assert all(problem["message"] for problem in sample["problems"])
    assert api.engine.registry.wav("anna") == wav
    assert await api.ask("GET", "/v1/voices/anna") == (200, anna)
    for path in ("/v1/voices", "/v1/audio/voices"):
        status, answer = await api.ask("GET", path)
        assert [voice["voice_id"] for voice in answer["voices"]] == ["tone", "anna"]
    await api.speak(text="Hi.", speaker="anna")
    again = {"audio": base64.b64encode(wav).decode(), **fields}
    status, answer = await api.ask("POST", "/v1/voices", json=again)
    assert (status, answer["error"]["param"]) == (409, "voice_id")
    assert (await api.ask("DELETE", "/v1/voices/anna"))[0] == 204
    assert (await api.ask("GET", "/v1/voices/anna"))[0] == 404
    assert (await api.ask("DELETE", "/v1/voices/anna"))[0] == 404
    assert (await api.ask("DELETE", "/v1/voices/tone"))[0] == 422


@pytest.mark.parametrize(
    ("container", "codec"), [("mp3", "libmp3lame"), ("ogg", "libopus"), ("flac", "flac"), ("mp4", "aac")]
)
async def test_a_voice_is_registered_from_every_usual_file(api: Api, container: str, codec: str) -> None:
    fields = {"audio": encoded(bursts(1.0), container, codec), "transcript": "One.", "voice_id": "anna"}
    status, answer = await api.ask("POST", "/v1/voices", data=form(**fields))
    assert status == 201, answer
    with wave.open(io.BytesIO(api.engine.registry.wav("anna"))) as file:
        rate = 48000 if codec == "libopus" else 16000
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (rate, 1, 2)
        assert file.getnframes() / rate == pytest.approx(2.0, abs=0.15)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"transcript": "One."}, 422, "audio"),
        ({"audio": b"", "transcript": "One."}, 422, "audio"),
        ({"audio": b"ID3" + bytes(100), "transcript": "One."}, 422, "audio"),
        ({"audio": b"x" * 12_000_001}, 413, "audio"),
        ({"audio": reference_wav(0.9), "transcript": "One."}, 422, "audio"),
        ({"audio": reference_wav(30.5), "transcript": "One."}, 422, "audio"),
        ({"audio": reference_wav(), "transcript": ""}, 422, "transcript"),
        ({"audio": reference_wav(), "transcript": "x" * 2000}, 422, "transcript"),
        ({"audio": reference_wav(), "transcript": "x" * 20_000}, 413, "transcript"),
        ({"audio": reference_wav(), "transcript": "One.", "voice_id": "../etc"}, 422, "voice_id"),
        ({"audio": reference_wav(), "speaker": "anna"}, 422, "audio"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
async def test_reference_audio_that_cannot_serve(api: Api, fields: dict[str, Any], status: int, param: str) -> None:
    got, answer = await api.ask("POST", "/v1/voices", data=form(**fields))
    assert (got, answer["error"]["param"]) == (status, param), answer


async def test_json_that_is_no_voice(api: Api) -> None:
    status, answer = await api.ask("POST", "/v1/voices", json={"audio": "no base64!", "transcript": "One."})
    assert (status, answer["error"]["param"]) == (422, "audio")
    assert (await api.ask("POST", "/v1/voices", data=io.BytesIO(bytes(17_000_000)), headers=JSON))[0] == 413
    headers = {"Content-Type": "multipart/form-data"}
    assert (await api.ask("POST", "/v1/voices", data=b"no boundary", headers=headers))[0] == 400


async def test_an_engine_with_fixed_voices_says_which_one_takes_new_ones(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, clones=False) as (_, engine, url), aiohttp.ClientSession(url) as http:
        api = Api(http, engine)  # type: ignore[arg-type]
        fields = {"audio": reference_wav(), "transcript": "One.", "voice_id": "anna"}
        status, answer = await api.ask("POST", "/v1/voices", data=form(**fields))
        assert status == 422
        assert "cosyvoice" in answer["error"]["message"]


async def test_the_api_describes_itself(api: Api) -> None:
    _, description = await api.ask("GET", "/openapi.json")
    paths = description["paths"]
    for path in ("/v1/tts", "/v1/tts/stream", "/v1/audio/speech", "/v1/voices", "/v1/voices/{voice_id}", "/v1/usage"):
        assert path in paths
    schemas = description["components"]["schemas"]
    body = paths["/v1/tts"]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert set(schemas[body]["properties"]) >= {"text", "speaker", "format", "sample_rate", "speed", "instruct"}


async def test_generated_clients_know_sound_events_and_messages(api: Api) -> None:
    """They skip answers of ``audio/*`` and without a schema."""
    _, description = await api.ask("GET", "/openapi.json")
    paths = description["paths"]
    own = paths["/v1/tts"]["post"]["responses"]["200"]["content"]
    assert own.keys() == {
        "audio/wav", "audio/pcm", "audio/mpeg", "audio/ogg", "audio/basic", "application/json"
    }  # fmt: skip
    openai = paths["/v1/audio/speech"]["post"]["responses"]["200"]["content"]
    assert openai.keys() == own.keys() - {"audio/basic", "application/json"} | {
        "audio/aac",
        "audio/flac",
        "text/event-stream",
    }
    assert own["audio/wav"]["schema"] == {"type": "string", "format": "binary"}
    for path in ("/v1/events", "/v1/calls/{id}/events"):
        assert paths[path]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"]["type"] == "string"
    message = paths["/v1/calls/{id}/messages"]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    kinds = description["components"]["schemas"][message.rpartition("/")[2]]["properties"]["type"]["enum"]
    assert {"text", "play", "cancel", "end", "transfer"} <= set(kinds)


async def test_ssml_and_half_a_character_are_spoken_over_http(api: Api) -> None:
    plain = await api.speak(text="Hello there", format="pcm", speaker="tone")
    marked = "<speak><emphasis>Hello</emphasis> <think>hm</think><b>there</b></speak>"
    assert len(await api.speak(text=marked, format="pcm", speaker="tone")) == len(plain)
    slow = await api.speak(text='<prosody rate="50%">Hello there</prosody>', format="pcm", speaker="tone")
    assert len(slow) == pytest.approx(2 * len(plain), rel=0.1)
    late = await api.speak(text='<break time="2s"/>Hello there', format="pcm", speaker="tone")
    assert (len(late) - len(plain)) / 48000 == pytest.approx(2.0, abs=0.1)
    paused = {"model": "tts-1", "input": 'Hello<break time="1s"/> there', "voice": "alloy", "response_format": "pcm"}
    assert (len(await api.speak("/v1/audio/speech", **paused)) - len(plain)) / 48000 == pytest.approx(1.0, abs=0.15)
    status, data = await api.ask(
        "POST", "/v1/tts", data=b'{"text": "Hello there\\ud83d", "format": "pcm", "speaker": "tone"}', headers=JSON
    )
    assert status == 200 and len(data) >= len(plain)
