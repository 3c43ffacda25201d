"""One clause, asked for by many utterances at one moment: it is made once, and each of them hears all of it."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from tests.tts_engine.pipeline.test_engine import Counter
from tts_engine.api import AudioChunk, TextSpan, UtteranceRequest
from tts_engine.errors import EngineError, Exhausted, SynthesisFailed
from tts_engine.pipeline.engine import Engine
from tts_engine.pipeline.settings import SpeechConfig
from tts_engine.pipeline.shared_clause import ClauseInMaking, Piece, SharedPlayhead
from tts_engine.synthesizer import ClauseRequest, Hearing, PcmChunk, Playhead
from tts_engine.tone import ToneSynthesizer
from voicecodecs.registry import AudioFormat

pytestmark = pytest.mark.virtual_time

L16 = AudioFormat("L16", 16000)
TEXT = "Thank you very much, your order is on the way. "
CLAUSES = 2
CHUNK_S = 0.05


class SlowTone(ToneSynthesizer):
    """Hums a chunk of 100 ms every 50 ms, refuses or breaks where told, and notes how many clauses run at once."""

    def __init__(self, *, error_at: int | None = None, error: Exception | None = None) -> None:
        super().__init__(chunk_ms=100, delay_s=self._delay)
        self._error_at, self._error = error_at, error
        self.most_active = 0

    def _delay(self, chunk: int) -> float:
        self.most_active = max(self.most_active, self.active)
        if chunk == self._error_at and self._error is not None:
            raise self._error
        return CHUNK_S


class Refusing(SlowTone):
    """Refuses new turns that somebody waits for, as CosyVoice does when it is full; an owed clause waits for its
    place."""

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        await asyncio.sleep(CHUNK_S)
        if clause.first and not playhead.ahead:
            raise Exhausted("full", retry_after_s=1)
        async with aclosing(super().synthesize(clause, playhead)) as chunks:
            async for chunk in chunks:
                yield chunk


def request(**fields: Any) -> UtteranceRequest:
    return UtteranceRequest(**{"utterance_id": "u", "format": L16} | fields)  # type: ignore[arg-type]


async def speak(engine: Engine, text: str = TEXT, **fields: Any) -> list[AudioChunk]:
    async with engine.open(request(**fields)) as utterance:
        utterance.feed(text)
        utterance.end_text()
        return [chunk async for chunk in utterance]


async def speak_tokens(engine: Engine, apart_s: float, **fields: Any) -> list[AudioChunk]:
    """Speak as a language model streams, so that clauses are drafted before they are known to be complete."""

    async def feed() -> None:
        for word in TEXT.split(" "):
            utterance.feed(f"{word} ")
            await asyncio.sleep(apart_s)
        utterance.end_text()

    async with engine.open(request(**fields)) as utterance:
        feeding = asyncio.create_task(feed())
        try:
            return [chunk async for chunk in utterance]
        finally:
            feeding.cancel()


def heard(chunks: Sequence[AudioChunk]) -> tuple[bytes, list[TextSpan]]:
    return b"".join(f for c in chunks for f in c.frames), [span for c in chunks for span in c.spans]


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
async def test_a_hundred_callers_of_one_greeting_have_it_made_once(cache_bytes: int) -> None:
    counter, tone = Counter(), SlowTone()
    engine = Engine(tone, SpeechConfig(cache_bytes=cache_bytes), observer=counter)
    calls = await asyncio.gather(*(speak(engine) for _ in range(100)))
    assert len(tone.asked) == CLAUSES and tone.most_active == 1
    assert counter.lookups.count("miss") == CLAUSES and counter.lookups.count("shared") == 99 * CLAUSES
    alone = heard(await speak(Engine(SlowTone())))
    assert all(heard(call) == alone for call in calls)
    assert engine.in_making == {}
    await engine.aclose()


async def test_who_joins_late_gets_what_exists_at_once_and_follows() -> None:
    loop, tone = asyncio.get_running_loop(), SlowTone()
    engine = Engine(tone, clock=loop.time)
    leader = asyncio.create_task(speak(engine))
    await asyncio.sleep(0.6)
    begun = loop.time()
    async with engine.open(request(format=AudioFormat())) as late:
        late.feed(TEXT)
        late.end_text()
        first = await anext(aiter(late))
        assert loop.time() == begun and first.stages_ms["engine"] == first.stages_ms["queue"] == 0
        rest = [chunk async for chunk in late]
    alone = await speak(Engine(SlowTone()), format=AudioFormat())
    assert heard([first, *rest]) == heard(alone)
    assert heard(await leader) == heard(await speak(Engine(SlowTone())))
    assert len(tone.asked) == CLAUSES
    await engine.aclose()


async def test_a_hundred_streams_of_the_same_tokens_draft_and_make_a_clause_once() -> None:
    tone = SlowTone()
    engine = Engine(tone, SpeechConfig(cache_bytes=0))
    calls = await asyncio.gather(*(speak_tokens(engine, 0.025) for _ in range(100)))
    assert len(tone.asked) <= 2 * CLAUSES
    assert all(heard(call)[1] == heard(calls[0])[1] for call in calls)
    assert not engine.drafts and not engine.in_making
    await engine.aclose()


async def test_positions_are_those_of_each_utterance() -> None:
    prefix = "One moment, please. "
    tone = SlowTone()
    engine = Engine(tone)
    shared, other = await asyncio.gather(speak(engine, TEXT), speak(engine, prefix + TEXT))
    assert [TEXT[s.start_char : s.end_char] for c in shared for s in c.spans] == TEXT.split()
    assert [(prefix + TEXT)[s.start_char : s.end_char] for c in other for s in c.spans] == (prefix + TEXT).split()
    assert heard(other) == heard(await speak(Engine(SlowTone()), prefix + TEXT))
    await engine.aclose()


@pytest.mark.parametrize(
    ("language", "text", "languages"),
    [
        ("en-US", "您的验证码是：482913。谢谢。", ["en-US", "zh", "en-US"]),
        ("en-US", "您账户的余额为：¥1,234.50。", ["en-US", "zh"]),
        ("zh-CN", "Your code is now:\n482913.\n", ["zh-CN", "en"]),
        ("ja-JP", "認証番号は、\n482913。", ["ja-JP", "ja-JP"]),
        ("fr-FR", "Le code est :\n482913.\n", ["fr-FR", "fr-FR"]),
    ],
)
async def test_a_clause_of_digits_is_in_the_language_of_the_text_before_it(
    language: str, text: str, languages: list[str]
) -> None:
    tone = SlowTone()
    engine = Engine(tone)
    await speak(engine, text, language=language, voice="v")
    assert [clause.language for clause in tone.asked] == languages
    await engine.aclose()


@pytest.mark.parametrize("different", [{"voice": "b"}, {"speed": 1.5}, {"instruct": "x"}, {"language": "de"}], ids=str)
async def test_another_voice_speed_style_or_language_is_another_clause(different: dict[str, Any]) -> None:
    tone = SlowTone()
    engine = Engine(tone)
    await asyncio.gather(speak(engine), speak(engine, **different))
    assert len(tone.asked) == 2 * CLAUSES
    await engine.aclose()


@pytest.mark.parametrize("error", [SynthesisFailed("broke"), ZeroDivisionError("a bug")], ids=repr)
@pytest.mark.parametrize("at", [1, 6])
async def test_a_failure_reaches_all_who_listen_once_each(at: int, error: Exception) -> None:
    tone = SlowTone(error_at=at, error=error)
    engine = Engine(tone)
    results = await asyncio.gather(*(speak(engine) for _ in range(10)), return_exceptions=True)
    assert len(tone.asked) == 1
    assert [type(result) for result in results] == [SynthesisFailed] * 10
    assert engine.in_making == {} and not engine._open
    tone._error = None
    assert heard(await speak(engine)) == heard(await speak(Engine(SlowTone())))
    await engine.aclose()


async def test_a_refusal_of_a_new_turn_spares_one_that_speaks_and_one_that_nobody_waits_for() -> None:
    tone = Refusing()
    engine = Engine(tone)
    clause = "Your order is on the way. "
    speaking = engine.open(request())
    speaking.feed("Hold on. ")
    tasks = [asyncio.create_task(speak(engine, "Hold on. " + clause, ahead=True))]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(speak(engine, clause)), asyncio.create_task(speak(engine, clause, ahead=True))]
    spoken, refused, ahead = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(refused, Exhausted)
    assert not isinstance(spoken, BaseException) and not isinstance(ahead, BaseException)
    assert [s.start_char for c in ahead for s in c.spans] == [0, 5, 11, 14, 17, 21]
    await engine.aclose()


async def test_closing_the_engine_ends_leader_and_followers() -> None:
    tone = SlowTone()
    engine = Engine(tone)
    tasks = [asyncio.create_task(speak(engine)) for _ in range(3)]
    await asyncio.sleep(0.3)
    await engine.aclose()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, EngineError) for result in results)
    assert tone.active == 0 and engine.in_making == {}


@pytest.mark.parametrize("seed", range(200))
async def test_whoever_leaves_whenever_the_others_hear_everything_and_nobody_works_for_nobody(seed: int) -> None:
    """Listeners of random formats come and go; the leader is one of them."""
    chance = random.Random(seed)
    tone = SlowTone()
    engine = Engine(tone, SpeechConfig(cache_bytes=chance.choice([0, 2**20])))
    formats = [L16, AudioFormat(), AudioFormat("G722", 16000)]
    alone = {fmt: heard(await speak(Engine(SlowTone()), format=fmt)) for fmt in formats}
    words = [(span.start_char, span.end_char) for span in alone[L16][1]]
    staying = 0

    async def listen(fmt: AudioFormat, leaves_s: float | None) -> None:
        nonlocal staying
        await asyncio.sleep(chance.choice([0, 0, 0.2, 0.5]))
        staying += 1
        try:
            async with asyncio.timeout(leaves_s):
                if chance.random() < 0.3:  # its pauses depend on when its text came
                    chunks = await speak_tokens(engine, 0.025, format=fmt)
                    assert [(s.start_char, s.end_char) for s in heard(chunks)[1]] == words
                else:
                    assert heard(await speak(engine, format=fmt)) == alone[fmt]
        except TimeoutError:
            pass
        staying -= 1
        if not staying:
            assert tone.active == 0 and engine.in_making == {}

    await asyncio.gather(
        *(
            listen(chance.choice(formats), chance.choice([None, 0, 0.01, chance.uniform(0, 1)]))
            for _ in range(chance.randint(1, 6))
        )
    )
    assert tone.active == 0 and not engine._open and engine.in_making == {} and not engine.drafts
    await engine.aclose()


def test_a_shared_clause_is_as_urgent_as_its_most_urgent_listener() -> None:
    shared, speaking, waiting = SharedPlayhead(), Playhead(), Playhead(ahead=True)
    assert shared.slack_s(0) > 1000
    speaking.delivered_s, speaking.played_at = 3.0, 10.0
    making = ClauseInMaking(None)
    making.join(speaking)
    shared = making.playhead
    assert (shared.slack_s(11), shared.speaks, shared.ahead) == (2.0, True, False)
    making.join(waiting)
    assert (shared.slack_s(11), shared.ahead) == (2.0, False)
    waiting.ahead = False
    assert shared.slack_s(11) == 0.0
    assert making.leave(speaking) is False
    assert (shared.slack_s(11), shared.speaks) == (0.0, False)
    assert making.leave(waiting) is True and making.leave(waiting) is True


async def test_a_failure_behind_the_last_piece_is_nobodys() -> None:
    making = ClauseInMaking(None)
    making.add(Piece(pcm=np.zeros(1, np.float32), last=True))
    making.fail(SynthesisFailed("late"))
    assert (await making.piece(0)).last
