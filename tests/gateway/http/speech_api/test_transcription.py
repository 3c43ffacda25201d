"""Transcription over real HTTP, by a recogniser on a real WebSocket: formats, limits, refusals, OpenAI's own client."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import aiohttp
import av
import numpy as np
import pytest
from aiohttp import web
from numpy.typing import NDArray

from gateway.http.speech_api.sound_decoder import container_of
from gateway.http.speech_api.transcription import spoken_spans
from gateway.recognition import listen, moonshine
from gateway.recognition.server import ListenServer
from gateway.recognition.words import Words
from tests.gateway.http.api_gateway import api_gateway
from tests.waiting import until

PATH = "/v1/audio/transcriptions"
RATE = 16000


def bursts(*seconds: float, gap_s: float = 1.0) -> NDArray[np.int16]:
    """Hums of these lengths, with a pause after each."""
    parts = []
    for length_s in seconds:
        at = np.arange(int(length_s * RATE)) / RATE
        parts += [8000 * np.sin(2 * np.pi * 300 * at), np.zeros(int(gap_s * RATE))]
    return np.concatenate(parts).astype(np.int16)


def encoded(pcm: NDArray[np.int16], container: str = "wav", codec: str = "pcm_s16le") -> bytes:
    data = io.BytesIO()
    with av.open(data, "w", format=container) as file:
        rate = 48000 if codec == "libopus" else RATE
        stream = file.add_stream(codec, rate=rate, layout="mono")
        assert isinstance(stream, av.AudioStream)
        resampler = av.AudioResampler(format=stream.format.name, layout="mono", rate=rate, frame_size=stream.frame_size)
        frame = av.AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
        frame.sample_rate, frame.time_base, frame.pts = RATE, Fraction(1, RATE), 0
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(stream.encode(part))
        file.mux(stream.encode(None))
    return data.getvalue()


async def served(heard: ListenServer) -> AsyncIterator[str]:
    runner = web.AppRunner(heard.app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"ws://127.0.0.1:{runner.addresses[0][1]}{listen.PATH}"
    await runner.cleanup()


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """A gateway whose recogniser hears the length of each utterance, in tenths of a second."""
    async for recogniser in served(
        ListenServer(lambda pcm, language, begun: Words(f"hum {round(len(pcm) / RATE, 1):g}"))
    ):
        sections: dict[str, Any] = {
            "recogniser": {"url": recogniser},
            "routes": {"default": {"recogniser": "external"}},
        }
        async with api_gateway(tmp_path, **sections) as (made, _, address):
            await until(lambda: made.health.all_is_ready, "the recogniser")
            yield address


async def ask(url: str, data: bytes, **fields: str) -> tuple[int, Any]:
    form = aiohttp.FormData({"model": "whisper-1"} | fields)
    form.add_field("file", io.BytesIO(data), filename="sound.bin")
    async with aiohttp.ClientSession(url) as http, http.post(PATH, data=form) as answer:
        is_json = answer.content_type == "application/json"
        return answer.status, await answer.json() if is_json else await answer.text()


SOUNDS = [
    ("wav", "pcm_s16le"), ("mp3", "libmp3lame"), ("ogg", "libopus"), ("flac", "flac"), ("mp4", "aac"),
    ("matroska", "libopus"),
]  # fmt: skip


@pytest.mark.parametrize("container, codec", SOUNDS)
async def test_every_container_is_heard(url: str, container: str, codec: str) -> None:
    status, answer = await ask(url, encoded(bursts(1.0), container, codec))
    assert status == 200, answer
    word, length = answer["text"].split()
    assert word == "hum" and float(length) == pytest.approx(1.3, abs=0.15)
    assert answer["usage"] == {"type": "duration", "seconds": 2}


async def test_the_transcript_of_a_voice_is_compared_with_what_is_heard(url: str) -> None:
    async def added(voice_id: str, transcript: str) -> Any:
        form = aiohttp.FormData({"voice_id": voice_id, "transcript": transcript})
        form.add_field("audio", io.BytesIO(encoded(bursts(2.0))), filename="anna.wav")
        async with aiohttp.ClientSession(url) as http, http.post("/v1/voices", data=form) as answer:
            assert answer.status == 201
            return (await answer.json())["sample"]

    same, other = await added("anna", "Hum 2.2"), await added("ben", "Please hold the line for a minute.")
    assert same["heard"] == other["heard"] == "hum 2.2"
    told = [next((each["message"] for each in one["problems"] if each["code"] == "transcript"), "")
            for one in (same, other)]  # fmt: skip
    assert "recogniser" not in told[0] and "100 % of the words are others than a recogniser heard" in told[1]


async def test_the_formats_of_the_answer(url: str) -> None:
    sound = encoded(bursts(1.0, 2.0))
    text = "hum 1.2 hum 2.4"  # with 0.2 s around each, as far as there is sound
    assert await ask(url, sound, response_format="text") == (200, text + "\n")
    assert await ask(url, sound, response_format="srt") == (
        200,
        "1\n00:00:00,000 --> 00:00:01,200\nhum 1.2\n\n2\n00:00:01,800 --> 00:00:04,200\nhum 2.4\n\n",
    )
    status, vtt = await ask(url, sound, response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.200\nhum 1.2\n\n")
    status, answer = await ask(url, sound, response_format="verbose_json", **{"timestamp_granularities[]": "segment"})
    assert status == 200 and (answer["text"], answer["duration"], answer["language"]) == (text, 5.0, "en")
    assert [(part["start"], part["end"], part["text"]) for part in answer["segments"]] == [
        (0.0, 1.2, "hum 1.2"), (1.8, 4.2, "hum 2.4"),
    ]  # fmt: skip


async def test_openai_s_own_client(url: str) -> None:
    openai = pytest.importorskip("openai")
    sound = ("sound.wav", encoded(bursts(1.0)))
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        made = client.audio.transcriptions
        assert (await made.create(model="whisper-1", file=sound)).text == "hum 1.2"
        assert await made.create(model="whisper-1", file=sound, response_format="text") == "hum 1.2\n"
        verbose = await made.create(
            model="whisper-1", file=sound, response_format="verbose_json", timestamp_granularities=["segment"]
        )
        assert verbose.segments[0].end == 1.2
        with pytest.raises(openai.NotFoundError):
            await made.create(model="nosuch", file=sound)


NEAR = encoded(bursts(0.1))
LONG = encoded(np.zeros(RATE * 601, np.int16))


@pytest.mark.parametrize(
    "data, fields, status, param",
    [
        pytest.param(b"#EXTM3U\n/etc/passwd", {}, 422, "file", id="list"),
        pytest.param(b"", {}, 422, "file", id="empty"),
        pytest.param(b"RIFF\0\0\0\0WAVEjunk", {}, 422, "file", id="damaged"),
        pytest.param(LONG, {}, 413, "file", id="long"),
        pytest.param(NEAR, {"model": "nosuch"}, 404, "model", id="model"),
        pytest.param(NEAR, {"response_format": "xml"}, 422, "response_format", id="format"),
        pytest.param(NEAR, {"stream": "true"}, 422, "file", id="stream"),
        pytest.param(NEAR, {"timestamp_granularities[]": "word"}, 422, "timestamp_granularities[]", id="words"),
    ],
)
async def test_refusals(url: str, data: bytes, fields: dict[str, str], status: int, param: str) -> None:
    got, answer = await ask(url, data, **fields)
    assert got == status and answer["error"]["param"].startswith(param), answer


@pytest.mark.parametrize(
    "head",
    [
        "",
        'Content-Disposition: form-data; name="_charset_"\r\n\r\n' + "u" * 100,
        'Content-Disposition: form-data; name="_charset_"\r\n\r\nnosuch',
        'Content-Disposition: form-data; name="model"\r\nContent-Transfer-Encoding: nosuch\r\n\r\nx',
        'Content-Disposition: form-data; name="file"\r\nContent-Length: x\r\n\r\nx',
        "no colon\r\n\r\nx",
    ],
)
@pytest.mark.parametrize("path", [PATH, "/v1/voices"])
async def test_a_form_that_cannot_be_read_is_refused(url: str, head: str, path: str) -> None:
    data = f"--x\r\n{head}\r\n--x--\r\n".encode()
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    async with aiohttp.ClientSession(url) as http, http.post(path, data=data, headers=kind) as answer:
        assert answer.status in (400, 422), await answer.text()


async def test_without_a_recogniser_there_is_none(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, routes={"default": {"recogniser": ""}}) as (_, _, url):
        status, answer = await ask(url, encoded(bursts(0.1)))
        assert (status, answer["error"]["code"]) == (503, "not_configured")


@pytest.mark.skipif(not moonshine.installed(), reason="the extra [recogniser] is not installed")
async def test_the_embedded_recogniser_knows_english_only(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, routes={"default": {"recogniser": "embedded"}}) as (_, _, url):
        status, answer = await ask(url, encoded(bursts(0.1)), language="fr")
        assert (status, answer["error"]["param"]) == (422, "language")


def test_containers_are_known_by_their_head() -> None:
    for container, codec in SOUNDS:
        assert container_of(encoded(bursts(0.1), container, codec)[:12]) in (container, "mov"), container
    assert container_of(b"") == container_of(b"\xff") == container_of(b"ffconcat version") == ""


def test_long_speech_is_cut_and_silence_is_not_heard() -> None:
    assert spoken_spans(np.zeros(RATE, np.int16)) == spoken_spans(np.zeros(10, np.int16)) == []
    spans = spoken_spans(bursts(40.0))
    assert spans[0][0] == 0 and spans[-1][1] == pytest.approx(2000, abs=15)
    assert all(end - first <= 600 for first, end in spans)
    assert all(one[1] == other[0] for one, other in zip(spans, spans[1:], strict=False))


async def test_a_key_hears_with_the_recognisers_of_its_own_routes(tmp_path: Path) -> None:
    async for recogniser in served(ListenServer(lambda pcm, language, begun: Words("words"))):
        sections: dict[str, Any] = {
            "recogniser": {"url": recogniser},
            "routes": {"hearing": {"recogniser": "external", "tenant": "a"}, "deaf": {"tenant": "b"}},
            "auth": {"api_keys": [{"key": "k" * 16, "tenant": "a"}, {"key": "j" * 16, "tenant": "b"}]},
        }
        async with api_gateway(tmp_path, **sections) as (made, _, address):
            await until(lambda: made.health.all_is_ready, "the recogniser")
            for key, status in (("k" * 16, 200), ("j" * 16, 503)):
                form = aiohttp.FormData({"model": "external"})
                form.add_field("file", io.BytesIO(encoded(bursts(0.5))), filename="sound.wav")
                headers = {"Authorization": f"Bearer {key}"}
                async with (
                    aiohttp.ClientSession(address) as http,
                    http.post(PATH, data=form, headers=headers) as answer,
                ):
                    assert answer.status == status, await answer.text()
