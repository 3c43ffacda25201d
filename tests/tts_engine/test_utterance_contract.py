"""The promises of every ``SpeechEngine`` for an utterance: the engine in this process, and the same one over gRPC."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tts_engine.api import AudioChunk, SpeechEngine, Utterance, UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.errors import EngineError, Exhausted, InvalidRequest, Unavailable
from tts_engine.pipeline.engine import Engine
from tts_engine.pipeline.shared_clause import SharedPlayhead
from tts_engine.service.client import GrpcEngine
from tts_engine.service.server import SpeechServer
from tts_engine.synthesizer import ClauseRequest, Hearing, PcmChunk
from tts_engine.tone import ToneSynthesizer
from voicecodecs.registry import AudioFormat

TEXT = "Thank you very much, your order is on the way. Is that all?"
MAX_CHARS = 200
SETTINGS = {"max_chars": MAX_CHARS, "max_utterances": 2, "cache_bytes": 0}
HELD = "held"
"""A clause with this word makes one chunk, and no more until the voice is let go on."""


class HeldTone(ToneSynthesizer):
    """Hums, keeps every playhead, and can be held in the middle of a clause."""

    def __init__(self) -> None:
        super().__init__(chunk_ms=100)
        self.playheads: list[Hearing] = []
        self.go_on = asyncio.Event()

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        self.playheads.append(playhead)
        made = 0
        async for chunk in super().synthesize(clause, playhead):
            yield chunk
            made += 1
            if HELD in clause.text and made > 4:  # past the silence in front, which is trimmed
                await self.go_on.wait()


class Speech:
    """An engine, and its voice."""

    def __init__(self, engine: SpeechEngine, voice: HeldTone) -> None:
        self.engine, self.voice = engine, voice

    def open(self, **fields: Any) -> Utterance:
        return self.engine.open(UtteranceRequest(**{"utterance_id": "u"} | fields))  # type: ignore[arg-type]

    async def speak(self, *deltas: str, **fields: Any) -> list[AudioChunk]:
        async with self.open(**fields) as utterance:
            for delta in deltas:
                utterance.feed(delta)
            utterance.end_text()
            return [chunk async for chunk in utterance]

    async def failure(self, utterance: Utterance) -> EngineError:
        """The error that ends an utterance, whatever is heard before."""
        with pytest.raises(EngineError) as caught:
            await heard(utterance)
        return caught.value


@pytest.fixture(params=["in process", "over gRPC", "by two ways over gRPC"])
async def speech(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Speech]:
    voice = HeldTone()
    config = EngineConfig.model_validate({"listen": f"unix:{tmp_path}/engine.sock", "speech": SETTINGS})
    engine = Engine(voice, config.speech)
    if request.param == "in process":
        yield Speech(engine, voice)
    else:
        server = SpeechServer(config)
        await server.start()
        await server.serve(engine)
        ways = 1 if request.param == "over gRPC" else 2  # with two, an utterance may go on by the other
        client = GrpcEngine([server.address] * ways, config)
        yield Speech(client, voice)
        await client.aclose()
        await server.aclose()
    await engine.aclose()


async def heard(utterance: Utterance) -> bytes:
    return b"".join([frame async for chunk in utterance for frame in chunk.frames])


# Order, text and spans.


@pytest.mark.parametrize("fmt", [AudioFormat(), AudioFormat("L16", 16000, 40)], ids=str)
async def test_chunks_follow_each_other_without_a_hole_in_whole_frames(speech: Speech, fmt: AudioFormat) -> None:
    chunks = await speech.speak(TEXT, format=fmt)
    frame_samples = fmt.sample_rate * fmt.ptime_ms // 1000
    position = 0
    for chunk in chunks:
        assert chunk.first_sample == position
        assert chunk.samples == len(chunk.frames) * frame_samples
        position += chunk.samples
    assert len({len(frame) for chunk in chunks for frame in chunk.frames}) == 1


async def test_every_word_has_its_span_in_the_order_and_within_the_sound(speech: Speech) -> None:
    chunks = await speech.speak(TEXT)
    spans = [span for chunk in chunks for span in chunk.spans]
    assert [TEXT[span.start_char : span.end_char] for span in spans] == TEXT.split()
    bounds = [at for span in spans for at in (span.first_sample, span.end_sample)]
    assert bounds == sorted(bounds)
    assert bounds[-1] <= sum(chunk.samples for chunk in chunks)
    for chunk in chunks:
        assert all(span.first_sample >= chunk.first_sample for span in chunk.spans)


async def test_text_sounds_the_same_however_it_is_cut_into_deltas(speech: Speech) -> None:
    whole, letters = await speech.speak(TEXT), await speech.speak(*TEXT, "")
    assert [frame for chunk in letters for frame in chunk.frames] == [f for chunk in whole for f in chunk.frames]


async def test_the_first_clause_is_heard_before_the_text_ends(speech: Speech) -> None:
    async with speech.open() as utterance:
        utterance.feed("Thank you very much, your order ")
        assert (await anext(aiter(utterance))).first_sample == 0
        utterance.feed("is on the way.")
        utterance.end_text()
        assert await heard(utterance)


@pytest.mark.parametrize("text", ["", " ", "..."])
async def test_nothing_to_say_ends_without_sound(speech: Speech, text: str) -> None:
    assert await speech.speak(text) == []


# The end of the text.


async def test_the_end_of_text_may_be_told_twice(speech: Speech) -> None:
    async with speech.open() as utterance:
        utterance.feed("Two words.")
        utterance.end_text()
        utterance.end_text()
        assert await heard(utterance)
        utterance.end_text()


@pytest.mark.parametrize("at_once", [True, False], ids=["in one message", "later"])
async def test_text_after_the_end_fails_the_utterance_once(speech: Speech, at_once: bool) -> None:
    async with speech.open() as utterance:
        utterance.feed(f"This is {HELD} for long, so that more can come. ")
        utterance.end_text()
        if not at_once:
            await anext(aiter(utterance))
        utterance.feed("more")
        utterance.feed("and more")
        speech.voice.go_on.set()
        error = await speech.failure(utterance)
    assert isinstance(error, InvalidRequest)
    assert (str(error), error.field) == ("text was fed after the end of the text", "text")


async def test_text_after_all_was_spoken_is_ignored(speech: Speech) -> None:
    async with speech.open() as utterance:
        utterance.feed("Two words.")
        utterance.end_text()
        assert await heard(utterance)
        utterance.feed("more")
        assert await heard(utterance) == b""


# Too much text.


async def test_a_text_that_is_too_long_fails_the_utterance_with_its_length(speech: Speech) -> None:
    assert await speech.speak("x" * MAX_CHARS)
    async with speech.open() as utterance:
        utterance.feed("x" * (MAX_CHARS + 1))
        utterance.end_text()
        error = await speech.failure(utterance)
    assert isinstance(error, InvalidRequest)
    assert "201 characters or more, at most 200" in str(error) and "speech.max_chars" in str(error)
    assert error.field == "text"


async def test_a_late_delta_that_is_too_much_fails_the_utterance_that_speaks(speech: Speech) -> None:
    async with speech.open() as utterance:
        utterance.feed(f"This is {HELD} for long. ")
        await anext(aiter(utterance))
        utterance.feed("x" * MAX_CHARS)
        await asyncio.sleep(0)
        speech.voice.go_on.set()
        error = await speech.failure(utterance)
        utterance.feed("more")
        utterance.end_text()
    assert isinstance(error, InvalidRequest) and "speech.max_chars" in str(error)
    assert await speech.speak("Another turn continues.")


# Cancel.


async def test_closing_frees_the_voice_and_ends_the_iteration(speech: Speech) -> None:
    utterance = speech.open()
    utterance.feed(f"This is {HELD} for long. ")
    await anext(aiter(utterance))
    await utterance.aclose()
    await utterance.aclose()
    assert await heard(utterance) == b""
    await until(lambda: speech.voice.active == 0)
    for late in (lambda: utterance.feed("more"), utterance.end_text, lambda: utterance.played(80, at=time.monotonic())):
        late()
    assert await heard(utterance) == b""


async def test_leaving_the_utterance_by_an_error_frees_the_voice(speech: Speech) -> None:
    with pytest.raises(ZeroDivisionError):
        async with speech.open() as utterance:
            utterance.feed(f"This is {HELD} for long. ")
            await anext(aiter(utterance))
            raise ZeroDivisionError
    await until(lambda: speech.voice.active == 0)


async def test_an_utterance_that_was_closed_before_its_text_leaves_nothing(speech: Speech) -> None:
    for _ in range(5):  # more than there are places
        async with speech.open():
            pass
    assert await speech.speak("Two words.")


# A clause that several ask for at once.


async def test_a_clause_asked_for_twice_at_once_is_made_once_and_outlives_its_leader(speech: Speech) -> None:
    text = f"This is {HELD} for long. "
    leader, follower = speech.open(), speech.open()
    leader.feed(text)
    led = await anext(aiter(leader))
    follower.feed(text)
    follower.end_text()
    joined = await anext(aiter(follower))
    assert (joined.frames, joined.spans) == (led.frames, led.spans)
    await leader.aclose()
    speech.voice.go_on.set()
    rest = [chunk async for chunk in follower]
    assert len(speech.voice.asked) == 1
    alone = await speech.speak(text)
    assert [f for c in (joined, *rest) for f in c.frames] == [f for c in alone for f in c.frames]
    assert [s for c in (joined, *rest) for s in c.spans] == [s for c in alone for s in c.spans]


async def test_a_clause_is_given_up_when_its_last_listener_leaves(speech: Speech) -> None:
    both = [speech.open(), speech.open()]
    for utterance in both:
        utterance.feed(f"This is {HELD} for long. ")
        await anext(aiter(utterance))
    assert (len(speech.voice.asked), speech.voice.active) == (1, 1)
    await both[0].aclose()
    await both[1].aclose()
    await until(lambda: speech.voice.active == 0)


# Positions.


async def test_a_position_reaches_the_voice_and_says_that_somebody_waits(speech: Speech) -> None:
    async with speech.open(ahead=True) as utterance:
        utterance.feed(f"This is {HELD} for long. ")
        await anext(aiter(utterance))
        (playhead,) = speech.voice.playheads
        assert playhead.ahead
        utterance.played(400, at=time.monotonic())
        await until(lambda: not playhead.ahead)
        assert isinstance(playhead, SharedPlayhead)
        assert [one.played_s for one in playhead.listeners] == [0.05]


# Refusals.


async def test_a_speed_out_of_bounds_is_refused(speech: Speech) -> None:
    with pytest.raises(InvalidRequest, match="speed is 9") as caught:
        await speech.speak("Two words.", speed=9.0)
    assert caught.value.field == "speed"


async def test_one_utterance_too_many_is_refused_with_a_delay_and_the_others_go_on(speech: Speech) -> None:
    others = [speech.open(), speech.open()]
    for other in others:
        other.feed(f"This is {HELD} for long. ")
        await anext(aiter(other))
    with pytest.raises(Exhausted) as caught:
        await speech.speak("Two words.")
    assert caught.value.retry_after_s > 0
    speech.voice.go_on.set()
    for other in others:
        other.end_text()
        assert await heard(other)


async def test_a_closed_engine_fails_what_is_being_said_and_opens_nothing(speech: Speech) -> None:
    utterance = speech.open()
    utterance.feed(f"This is {HELD} for long. ")
    await anext(aiter(utterance))
    await speech.engine.aclose()
    for _ in range(2):
        assert isinstance(await speech.failure(utterance), Unavailable)
    with pytest.raises(Unavailable, match="closed"):
        speech.open()
