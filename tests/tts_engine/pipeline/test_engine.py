"""Utterances over the tone model: order, spans, pauses, bounds, cancel. Time is the virtual clock of the loop."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.tts_engine.garbage import leaving_no_circles
from tests.waiting import until
from tts_engine.api import AudioChunk, TextSpan, UtteranceRequest
from tts_engine.errors import Exhausted, InvalidRequest, SynthesisFailed, Unavailable
from tts_engine.pipeline.engine import Engine
from tts_engine.pipeline.settings import PauseConfig, SpeechConfig
from tts_engine.pipeline.sound_out import PIECE_S
from tts_engine.pipeline.utterance import EngineUtterance
from tts_engine.synthesizer import ClauseRequest, Hearing, PcmChunk
from tts_engine.tone import LETTER_MS, ToneSynthesizer, tone_hz
from voicecodecs.registry import AudioFormat

pytestmark = pytest.mark.virtual_time

L16 = AudioFormat("L16", 16000)
TEXT = "Thank you very much, your order is on the way. Is that all?"


def request(**fields: Any) -> UtteranceRequest:
    return UtteranceRequest(**{"utterance_id": "u", "format": L16} | fields)  # type: ignore[arg-type]


async def speak(engine: Engine, *deltas: str, **fields: Any) -> list[AudioChunk]:
    async with engine.open(request(**fields)) as utterance:
        for delta in deltas:
            utterance.feed(delta)
        utterance.end_text()
        return [chunk async for chunk in utterance]


def pcm(chunks: Sequence[AudioChunk]) -> np.ndarray:
    return np.frombuffer(b"".join(frame for chunk in chunks for frame in chunk.frames), "<i2") / 32768


def pitch_hz(samples: np.ndarray) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 16000))))


async def test_every_word_is_heard_where_its_span_says() -> None:
    engine = Engine(ToneSynthesizer())
    chunks = await speak(engine, TEXT)
    sound = pcm(chunks)
    spans = [span for chunk in chunks for span in chunk.spans]
    assert [TEXT[s.start_char : s.end_char] for s in spans] == TEXT.split()
    clause_hz = {
        0: tone_hz("Thank you very much,"),
        4: tone_hz("your order is on the way."),
        10: tone_hz("Is that all?"),
    }
    hz = 0
    for number, span in enumerate(spans):
        hz = clause_hz.get(number, hz)
        assert pitch_hz(sound[span.first_sample + 80 : span.end_sample - 80]) == pytest.approx(hz, abs=12)
    await engine.aclose()


@pytest.mark.parametrize("fmt", [AudioFormat(), L16, AudioFormat("G722", 16000), AudioFormat("OPUS", 48000)], ids=str)
async def test_chunks_follow_each_other_in_whole_frames(fmt: AudioFormat) -> None:
    engine = Engine(ToneSynthesizer())
    chunks = await speak(engine, TEXT, format=fmt)
    at = 0
    for chunk in chunks:
        assert chunk.first_sample == at
        assert chunk.samples == len(chunk.frames) * fmt.frame_samples
        at += chunk.samples
    spans = [span for chunk in chunks for span in chunk.spans]
    assert all(a.end_sample <= b.first_sample + 1 for a, b in zip(spans, spans[1:], strict=False))
    assert at * 1000 / fmt.sample_rate == pytest.approx(len(TEXT.replace(" ", "")) * LETTER_MS + 160 + 360, abs=100)
    await engine.aclose()


@pytest.mark.parametrize("fmt", [AudioFormat(), L16, AudioFormat("OPUS", 48000)], ids=str)
async def test_a_clause_that_is_made_as_a_whole_comes_in_chunks_of_bounded_length(fmt: AudioFormat) -> None:
    text = "Rindfleischetikettierungsüberwachungsaufgabenübertragungsgesetz " * 2  # 6 s
    whole, streamed = Engine(ToneSynthesizer(chunk_ms=60_000)), Engine(ToneSynthesizer())
    chunks = await speak(whole, text, format=fmt)
    assert max(chunk.samples for chunk in chunks) <= PIECE_S * fmt.sample_rate + fmt.frame_samples
    expected = await speak(streamed, text, format=fmt)
    assert b"".join(frame for chunk in chunks for frame in chunk.frames) == b"".join(
        frame for chunk in expected for frame in chunk.frames
    )
    spans = [span for chunk in chunks for span in chunk.spans]
    assert spans == [span for chunk in expected for span in chunk.spans]
    await whole.aclose()
    await streamed.aclose()


async def test_speech_starts_without_silence_and_pauses_as_punctuated() -> None:
    engine = Engine(ToneSynthesizer(), SpeechConfig(pauses=PauseConfig(comma_ms=100, sentence_ms=300)))
    chunks = await speak(engine, TEXT)
    loud = np.flatnonzero(np.abs(pcm(chunks)) > 0.05) / 16
    assert loud[0] <= 15
    gaps = [gap for gap in np.diff(loud) if gap > 50]
    assert gaps == [pytest.approx(120, abs=3), pytest.approx(320, abs=3)], "10 ms are kept on both sides"
    await engine.aclose()


@pytest.mark.parametrize("ptime_ms", [20, 80, 200])
async def test_a_pause_is_as_long_whatever_the_frames_are(ptime_ms: int) -> None:
    engine = Engine(ToneSynthesizer(), SpeechConfig(pauses=PauseConfig(comma_ms=240, sentence_ms=360)))
    chunks = await speak(engine, TEXT, format=AudioFormat("L16", 16000, ptime_ms))
    loud = np.flatnonzero(np.abs(pcm(chunks)) > 0.05) / 16
    gaps = [gap for gap in np.diff(loud) if gap > 50]
    assert gaps == [pytest.approx(260, abs=3), pytest.approx(380, abs=3)], "the filled-up last frame is part of it"
    spans = [span for chunk in chunks for span in chunk.spans]
    begins = [loud[0], *(loud[1:][np.diff(loud) > 50])]
    assert [spans[word].first_sample / 16 for word in (0, 4, 10)] == pytest.approx(begins, abs=13)
    await engine.aclose()


async def test_deltas_make_the_same_sound_as_the_whole_text() -> None:
    engine = Engine(ToneSynthesizer(), SpeechConfig(cache_bytes=0))
    whole = await speak(engine, TEXT)
    tokens = await speak(engine, *TEXT)
    np.testing.assert_array_equal(pcm(whole), pcm(tokens))
    await engine.aclose()


async def test_first_clause_is_spoken_before_the_text_ends() -> None:
    engine = Engine(ToneSynthesizer())
    async with engine.open(request()) as utterance:
        utterance.feed("Thank you very much, your")
        chunk = await anext(aiter(utterance))
        assert [TEXT[s.start_char : s.end_char] for s in chunk.spans] == ["Thank", "you", "very", "much,"]
    await engine.aclose()


async def test_a_sentence_is_spoken_when_the_stream_stalls_behind_its_full_stop() -> None:
    engine = Engine(ToneSynthesizer(), SpeechConfig())
    async with engine.open(request()) as utterance:
        utterance.feed("One moment.")
        async with asyncio.timeout(0.31):
            assert await anext(aiter(utterance))
    await engine.aclose()


class Counter:
    """Records what the engine tells."""

    def __init__(self) -> None:
        self.lookups: list[str] = []
        self.first: list[float] = []
        self.freed_s: list[float] = []
        self.unheard_s: list[float] = []
        self.drafts: list[bool] = []
        self.admissions: list[tuple[float, str]] = []
        self.most_waiting = self.now_waiting = 0
        self.refusals: list[str] = []

    def first_chunk(self, engine: str, seconds: float) -> None:
        self.first.append(seconds)

    def queued(self, seconds: float) -> None: ...

    def realtime_factor(self, engine: str, factor: float) -> None: ...

    def text_cache(self, outcome: str, cache_bytes: int) -> None:
        self.lookups.append(outcome)

    def draft(self, *, kept: bool) -> None:
        self.drafts.append(kept)

    def unheard(self, seconds: float) -> None:
        self.unheard_s.append(seconds)

    def freed(self, seconds: float) -> None:
        self.freed_s.append(seconds)

    def admission(self, seconds: float, outcome: str) -> None:
        self.admissions.append((seconds, outcome))

    def waiting(self, turns: int) -> None:
        self.now_waiting, self.most_waiting = turns, max(self.most_waiting, turns)

    def refused(self, reason: str) -> None:
        self.refusals.append(reason)


async def test_a_clause_spoken_before_comes_from_the_cache_sample_for_sample() -> None:
    counter, tone = Counter(), ToneSynthesizer()
    engine = Engine(tone, observer=counter)
    first, again = await speak(engine, TEXT), await speak(engine, TEXT)
    assert len(tone.asked) == 3
    assert counter.lookups == ["miss"] * 3 + ["hit"] * 3
    np.testing.assert_array_equal(pcm(first), pcm(again))
    spans: list[list[TextSpan]] = [[s for c in chunks for s in c.spans] for chunks in (first, again)]
    assert spans[0] == spans[1]
    await speak(engine, TEXT, speed=1.5)
    assert len(tone.asked) == 6
    assert len(counter.first) == 3
    await engine.aclose()


async def in_mid_clause() -> tuple[Engine, ToneSynthesizer, Counter, EngineUtterance]:
    """Open an utterance of which one chunk has come, and whose model will work for an hour on the next."""
    counter, tone = Counter(), ToneSynthesizer(delay_s=lambda chunk: 3600 if chunk else 0)
    engine = Engine(tone, observer=counter)
    utterance = engine.open(request())
    utterance.feed(TEXT * 3)
    utterance.end_text()
    await anext(aiter(utterance))
    return engine, tone, counter, utterance


async def test_cancel_frees_the_model_and_makes_no_further_chunk() -> None:
    engine, tone, counter, utterance = await in_mid_clause()
    assert tone.active == 1
    await utterance.aclose()
    await utterance.aclose()
    assert tone.active == 0 and tone.chunks_made == 1
    assert len(counter.freed_s) == 1
    (unheard_s,) = counter.unheard_s
    assert 0 < unheard_s <= utterance.speech._playhead.delivered_s
    assert [chunk async for chunk in utterance] == []
    await engine.aclose()


async def test_work_ahead_stops_until_the_phone_has_heard_enough() -> None:
    now = 100.0
    tone = ToneSynthesizer()
    engine = Engine(tone, SpeechConfig(ahead_s=2, cache_bytes=0), clock=lambda: now)
    async with engine.open(request()) as utterance:
        utterance.feed("Two words here. " * 20)
        utterance.end_text()
        chunks = aiter(utterance)
        await anext(chunks)
        utterance.played(0, at=now)

        async def drain() -> int:
            count = 0
            try:
                while True:
                    async with asyncio.timeout(0.2):
                        await anext(chunks)
                    count += 1
            except TimeoutError:
                return count

        await drain()
        made = len(tone.asked)
        assert made < 8  # about 1 s each
        now += 3
        utterance.played(3 * 16000, at=now)
        await drain()
        assert made + 2 <= len(tone.asked) <= made + 5
    await engine.aclose()


@pytest.mark.parametrize("gap_s", [0.0, 0.5, 30.0])
async def test_a_listener_that_reports_no_position_plays_on_after_a_gap_of_its_own(gap_s: float) -> None:
    now = 100.0
    engine = Engine(ToneSynthesizer(), clock=lambda: now)
    async with engine.open(request()) as utterance:
        utterance.feed("Hello there. ")
        chunks = aiter(utterance)
        heard = await anext(chunks)
        playhead = utterance.speech._playhead  # type: ignore[attr-defined]
        while heard.samples / 16000 < playhead.delivered_s - 1e-9:
            heard = replace(heard, samples=heard.samples + (await anext(chunks)).samples)
        before_s = playhead.delivered_s
        now += before_s + gap_s
        assert playhead.slack_s(now) == 0
        utterance.feed("Your order left this morning. ")
        utterance.end_text()
        async for _ in chunks:
            pass
        assert playhead.slack_s(now) == pytest.approx(playhead.delivered_s - before_s)
    await engine.aclose()


@pytest.mark.parametrize(("dry_s", "pause_ms"), [(0.0, 360), (0.2, 160), (9.0, 0)])
async def test_a_pause_that_was_heard_already_is_not_made_again(dry_s: float, pause_ms: int) -> None:
    now = 100.0
    engine = Engine(ToneSynthesizer(), clock=lambda: now)
    async with engine.open(request()) as utterance:
        utterance.feed("Hello there. ")
        chunks = aiter(utterance)
        spoken = [await anext(chunks)]
        while sum(c.samples for c in spoken) < 0.56 * 16000:
            spoken.append(await anext(chunks))
        utterance.played(0, at=now)
        samples = sum(c.samples for c in spoken)
        now += samples / 16000 + dry_s
        utterance.feed("More. ")
        utterance.end_text()
        span = next(s for c in [c async for c in chunks] for s in c.spans)
        assert (span.first_sample - samples) / 16 == pytest.approx(pause_ms + 10, abs=20)
    await engine.aclose()


async def test_a_consumer_that_does_not_take_bounds_the_work() -> None:
    tone = ToneSynthesizer()
    engine = Engine(tone, SpeechConfig(ahead_s=2, cache_bytes=0))
    async with engine.open(request()) as utterance:
        utterance.feed("Two words here. " * 20)
        await asyncio.sleep(3600)
        assert len(tone.asked) < 8
    await engine.aclose()


async def test_an_utterance_nobody_waits_for_is_made_ahead_up_to_the_bound() -> None:
    tone = ToneSynthesizer()
    engine = Engine(tone, SpeechConfig(ahead_s=2, cache_bytes=0))
    async with engine.open(request(ahead=True)) as utterance:
        utterance.feed("Two words here. " * 5)
        utterance.end_text()
        chunks = aiter(utterance)
        seconds = 0.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                async for chunk in chunks:
                    seconds += chunk.samples / 16000
        assert 2 <= seconds < 4
        utterance.played(0, at=engine.clock())
    await engine.aclose()


@pytest.mark.parametrize("text", ["", "   ", "...", "👍🎉", "\x00\x07", "?! —"])
async def test_nothing_to_speak_ends_without_sound(text: str) -> None:
    engine = Engine(ToneSynthesizer())
    assert await speak(engine, text) == []
    await engine.aclose()


async def test_too_long_a_text_is_refused_with_its_length() -> None:
    engine = Engine(ToneSynthesizer(), SpeechConfig(max_chars=100))
    with pytest.raises(InvalidRequest, match="at most 100 "):
        await speak(engine, "x" * 101)
    await engine.aclose()


async def test_bounds_on_utterances_and_speed() -> None:
    engine = Engine(ToneSynthesizer(), SpeechConfig(max_utterances=1))
    with pytest.raises(InvalidRequest, match="speed is 9"):
        engine.open(request(speed=9))
    utterance = engine.open(request())
    with pytest.raises(Exhausted) as refused:
        engine.open(request())
    assert refused.value.retry_after_s > 0
    await utterance.aclose()
    assert await speak(engine, TEXT)
    await engine.aclose()
    with pytest.raises(Unavailable):
        engine.open(request())


async def test_a_model_that_breaks_fails_its_utterance_only(caplog: pytest.LogCaptureFixture) -> None:
    def broken(chunk: int) -> float:
        raise ZeroDivisionError

    tone = ToneSynthesizer()
    engine = Engine(tone, SpeechConfig(cache_bytes=0))
    fine = await speak(engine, TEXT)
    tone._delay_s = broken
    with pytest.raises(SynthesisFailed, match="ZeroDivisionError"):
        await speak(engine, TEXT)
    tone._delay_s = lambda chunk: 0.0
    np.testing.assert_array_equal(pcm(await speak(engine, TEXT)), pcm(fine))
    assert TEXT not in caplog.text
    await engine.aclose()


async def test_utterances_are_freed_without_a_collection_of_garbage() -> None:
    engine = Engine(ToneSynthesizer(delay_s=lambda chunk: 0.03), SpeechConfig(cache_bytes=0))
    async with leaving_no_circles():
        await speak(engine, TEXT)
        async with engine.open(request()) as utterance:
            utterance.feed(TEXT)
            await anext(utterance)
        async with engine.open(request()) as utterance:
            utterance.feed(TEXT)
            await asyncio.sleep(0.01)
    await engine.aclose()


class Measured(ToneSynthesizer):
    """Hums, and tells where the time goes: 5 ms wording, 20 ms queue, 10 ms sound; 1 ms more it does not tell of."""

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        async with aclosing(super().synthesize(clause, playhead)) as chunks:
            async for chunk in chunks:
                await asyncio.sleep(0.036)
                yield replace(chunk, text_ms=5, queue_ms=20, engine_ms=10)


@pytest.mark.parametrize("fmt", [AudioFormat(), AudioFormat("OPUS", 48000)], ids=str)
@pytest.mark.parametrize(("chunk_ms", "chunks"), [(400, 1), (120, 2)], ids=["", "the first chunk is silence"])
@pytest.mark.parametrize("token_ms", [25, 39, 100], ids=["overlapped", "waited for", "not waited for"])
async def test_the_stages_of_the_first_sound_add_up_to_the_time_since_its_text(
    fmt: AudioFormat, chunk_ms: int, chunks: int, token_ms: int
) -> None:
    loop = asyncio.get_running_loop()
    engine = Engine(Measured(chunk_ms=chunk_ms), SpeechConfig(confirm_ms=50), clock=loop.time)
    async with engine.open(request(format=fmt)) as utterance:
        utterance.feed("Hello there, this is")
        await asyncio.sleep(0.5)
        fed_at = loop.time()
        utterance.feed(" me.")
        loop.call_later(token_ms / 1e3, utterance.feed, " And more.")
        chunk = await anext(aiter(utterance))
        assert chunk.clause_end_char == len("Hello there, this is me.")
        assert sum(chunk.stages_ms.values()) == pytest.approx((loop.time() - fed_at) * 1e3)
        waited = max(0, min(token_ms, 50) - 36 * chunks)
        expected = {"token": waited, "text": 5 * chunks, "queue": 20 * chunks, "engine": 10 * chunks, "loop": chunks}
        assert {name: chunk.stages_ms[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    await engine.aclose()


# A clause is made before the next token tells that it is complete.


class Pausing(ToneSynthesizer):
    """Hums after a while, and keeps what each clause was asked with."""

    def __init__(self) -> None:
        super().__init__(delay_s=lambda chunk: 0.03)
        self.playheads: list[Hearing] = []

    def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        self.playheads.append(playhead)
        return super().synthesize(clause, playhead)


def texts(tone: ToneSynthesizer) -> list[str]:
    return [asked.text for asked in tone.asked]


async def test_a_clause_that_was_complete_is_sent_as_soon_as_that_is_known() -> None:
    counter, tone, loop = Counter(), Pausing(), asyncio.get_running_loop()
    engine = Engine(tone, SpeechConfig(confirm_ms=1000), observer=counter, clock=loop.time)
    async with engine.open(request()) as utterance:
        begun = loop.time()
        utterance.feed("Hello there.")
        await asyncio.sleep(0.2)
        assert texts(tone) == ["Hello there."]
        assert tone.chunks_made == 1, "the beginning, and no more"
        assert tone.playheads[0].tentative, "others may go first"
        utterance.feed(" How")
        assert not tone.playheads[0].tentative and tone.playheads[0].slack_s(loop.time()) == 0
        await anext(aiter(utterance))
        assert loop.time() - begun == pytest.approx(0.2)
        utterance.end_text()
        assert [c async for c in utterance]
    assert texts(tone) == ["Hello there.", "How"]
    assert counter.drafts == [True]
    await engine.aclose()


@pytest.mark.parametrize(
    ("text", "more"), [("It costs 3.", "5 percent."), ("I saw Meyer Inc.", " today."), ("Ask amazon.", "com now.")]
)
async def test_a_clause_that_went_on_is_made_anew_unheard(text: str, more: str) -> None:
    counter, tone = Counter(), Pausing()
    engine = Engine(tone, SpeechConfig(cache_bytes=2**20), observer=counter)
    chunks = []
    async with engine.open(request()) as utterance:
        utterance.feed(text)
        await asyncio.sleep(0.035)
        utterance.feed(more)
        await asyncio.sleep(0)
        utterance.end_text()
        chunks = [chunk async for chunk in utterance]
    assert tone.active == 0
    assert texts(tone) == [text, text + more]
    assert counter.drafts[0] is False
    spans = [span for chunk in chunks for span in chunk.spans]
    assert [(text + more)[s.start_char : s.end_char] for s in spans] == (text + more).split()
    whole = await speak(Engine(ToneSynthesizer()), text + more)
    np.testing.assert_array_equal(pcm(chunks), pcm(whole))
    await speak(engine, text)
    assert texts(tone) == [text, text + more, text], "no half of it is remembered"
    await engine.aclose()


async def test_a_clause_is_sent_when_no_token_comes_for_so_long() -> None:
    loop = asyncio.get_running_loop()
    engine = Engine(Pausing(), SpeechConfig(confirm_ms=40), clock=loop.time)
    for text, after_s in (("One moment please.", 0.04), ("It costs 3.", 1.8), ("We close at 5 p.m.", 0.3)):
        async with engine.open(request()) as utterance:
            begun = loop.time()
            utterance.feed(text)
            await anext(aiter(utterance))
            assert loop.time() - begun == pytest.approx(after_s)
    await engine.aclose()


async def test_text_without_punctuation_is_spoken_by_phrase_after_a_bounded_wait() -> None:
    loop = asyncio.get_running_loop()
    tone = Pausing()
    engine = Engine(tone, SpeechConfig(), clock=loop.time)
    async with engine.open(request()) as utterance:
        begun = loop.time()
        first = asyncio.ensure_future(anext(aiter(utterance)))
        for word in "so I looked at your order and I can see".split():
            utterance.feed(f"{word} ")
            await asyncio.sleep(0.5)
        await first
        assert texts(tone)[0] == "so I looked"
        assert loop.time() - begun < 6
        utterance.feed("it here.")
        utterance.end_text()
        spoken = [chunk async for chunk in utterance]
        assert [span.end_char for chunk in spoken for span in chunk.spans][-1] == len(
            "so I looked at your order and I can see it here."
        )
    await engine.aclose()


async def test_who_is_cancelled_in_a_cancel_counts_the_freed_model_too() -> None:
    """A server whose client has just gone does so: its sending fails, and only then is it cancelled."""
    engine, tone, counter, utterance = await in_mid_clause()
    closing = asyncio.create_task(utterance.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await until(lambda: counter.freed_s)
    assert closing.cancelled() and tone.active == 0
    assert len(counter.freed_s) == 1
    await engine.aclose()


async def test_cancel_frees_a_draft_at_once() -> None:
    counter, tone = Counter(), ToneSynthesizer(delay_s=lambda chunk: 3600)
    engine = Engine(tone, observer=counter)
    utterance = engine.open(request())
    utterance.feed("One moment please.")
    await asyncio.sleep(0.01)
    assert tone.active == 1
    await utterance.aclose()
    assert (tone.active, tone.chunks_made, counter.drafts) == (0, 0, [False])
    assert len(counter.freed_s) == 1
    await engine.aclose()


async def test_cancel_frees_a_clause_that_was_a_draft() -> None:
    tone = ToneSynthesizer(delay_s=lambda chunk: 3600 if chunk else 0)
    engine = Engine(tone)
    utterance = engine.open(request())
    utterance.feed("One moment please. And")
    await anext(aiter(utterance))
    assert tone.active == 1
    await utterance.aclose()
    assert tone.active == 0
    await engine.aclose()


async def test_no_draft_is_made_of_what_nobody_waits_for() -> None:
    tone = ToneSynthesizer()
    engine = Engine(tone)
    async with engine.open(request(ahead=True)) as utterance:
        utterance.feed("A held turn.")
        await asyncio.sleep(0.01)
        assert texts(tone) == []
    async with engine.open(request()) as utterance:
        utterance.feed("One moment please. ")
        await anext(aiter(utterance))
        utterance.feed("The caller has enough to hear.")
        await asyncio.sleep(0.01)
        assert texts(tone) == ["One moment please."]
    await engine.aclose()


class Refusing(ToneSynthesizer):
    """Refuses a clause that may not be needed."""

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        if playhead.tentative:
            raise Exhausted("full", retry_after_s=1)
        async with aclosing(super().synthesize(clause, playhead)) as chunks:
            async for chunk in chunks:
                yield chunk


async def test_a_refused_draft_is_no_refused_turn() -> None:
    engine = Engine(Refusing())
    async with engine.open(request()) as utterance:
        utterance.feed("One moment please.")
        await asyncio.sleep(0.01)
        utterance.end_text()
        assert [chunk async for chunk in utterance]
    await engine.aclose()
