"""Marks in the text of an utterance: style, pauses and phonemes, whole, in pieces, and beside the cache."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.tts_engine.pipeline.test_engine import L16, pcm, request, speak
from tts_engine import speech_marks
from tts_engine.api import AudioChunk, VoiceInfo
from tts_engine.pipeline.engine import Engine
from tts_engine.pipeline.sound_out import PIECE_S
from tts_engine.speech_marks import PLAIN, Style, begin_mark, ipa_marks, pause_mark, style_marks
from tts_engine.tone import ToneSynthesizer

pytestmark = pytest.mark.virtual_time

SLOW = style_marks(PLAIN, Style(speed=0.5))
USUAL = style_marks(Style(speed=0.5), PLAIN)


def asked(tone: ToneSynthesizer) -> list[tuple[str, float, float]]:
    return [(clause.text, clause.speed, clause.pitch) for clause in tone.asked]


def runs_of_silence_ms(chunks: list[AudioChunk]) -> list[int]:
    """Return the lengths of all silences of 100 ms or more, in order."""
    size = L16.sample_rate // 100
    loud = [bool(np.abs(frame).max() > 1e-3) for frame in pcm(chunks)[: -size or None].reshape(-1, size)] + [True]
    edges = [-1, *(at for at, one in enumerate(loud) if one)]
    return [10 * (b - a - 1) for a, b in zip(edges, edges[1:], strict=False) if b - a > 10]


def test_marks_keep_their_values() -> None:
    style = PLAIN
    for mark in style_marks(PLAIN, Style(speed=1.69, gain_db=-6.0, pitch=2.0, language="zz")):
        style, pause_ms = speech_marks.applied(mark, style)
        assert pause_ms == 0
    assert style == Style(speed=1.69, gain_db=-6.0, pitch=2.0, language="zz")
    assert speech_marks.applied(pause_mark(1230), style) == (style, 1230)
    assert speech_marks.applied(pause_mark(1e9), style) == (style, speech_marks.LONGEST_PAUSE_MS)
    far = style_marks(PLAIN, Style(speed=99, gain_db=-999, pitch=99))
    assert all(0x100000 <= ord(mark) <= 0x103FFF for mark in far)


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_text_between_marks_is_spoken_in_their_style(size: int) -> None:
    tone = ToneSynthesizer()
    engine = Engine(tone)
    text = f"Hello there. {SLOW}Your code is four{USUAL} and thanks a lot. Bye."
    chunks = await speak(engine, *(text[at : at + size] for at in range(0, len(text), size)), speed=1.2)
    assert asked(tone) == [
        ("Hello there.", 1.2, 0.0), ("Your code is four", 0.6, 0.0),
        ("and thanks a lot.", 1.2, 0.0), ("Bye.", 1.2, 0.0),
    ]  # fmt: skip
    words = [text[span.start_char : span.end_char] for chunk in chunks for span in chunk.spans]
    assert words == "Hello there. Your code is four and thanks a lot. Bye.".split()
    await engine.aclose()


async def test_loudness_changes_the_sound_and_not_what_the_cache_keeps() -> None:
    tone = ToneSynthesizer()
    engine = Engine(tone)
    soft = style_marks(PLAIN, Style(gain_db=-12))
    plain, quiet, again = [
        float(np.abs(pcm(await speak(engine, text))).max()) for text in ("Hello.", f"{soft}Hello.", "Hello.")
    ]
    assert 20 * np.log10(quiet / plain) == pytest.approx(-12, abs=0.2)
    assert again == plain and len(tone.asked) == 1
    loud = float(np.abs(pcm(await speak(engine, f"{style_marks(PLAIN, Style(gain_db=12))}Hello."))).max())
    assert plain < loud <= 1
    await engine.aclose()


async def test_pitch_reaches_the_voice_and_the_cache_tells_them_apart() -> None:
    tone = ToneSynthesizer()
    engine = Engine(tone)
    high = style_marks(PLAIN, Style(pitch=2))
    for text in ("Hello.", f"{high}Hello.", "Hello.", f"{high}Hello."):
        await speak(engine, text)
    assert asked(tone) == [("Hello.", 1.0, 0.0), ("Hello.", 1.0, 2.0)]
    await engine.aclose()


class Polyglot(ToneSynthesizer):
    """Two voices: one for English and Spanish, one that says nothing of its languages."""

    def voices(self) -> Sequence[VoiceInfo]:
        return [
            VoiceInfo(voice_id="ana", name="Ana", languages=["en-US", "es"], engine=self.name),
            VoiceInfo(voice_id="any", name="Any", languages=[], engine=self.name),
        ]


@pytest.mark.parametrize(
    ("voice", "language", "spoken"), [("ana", "es", True), ("ana", "fr", False), ("any", "fr", True), ("", "fr", True)]
)
async def test_a_text_in_another_language_is_spoken_in_it_if_the_voice_can(
    voice: str, language: str, spoken: bool
) -> None:
    tone = Polyglot()
    engine = Engine(tone)
    there, back = style_marks(PLAIN, Style(language=language)), style_marks(Style(language=language), PLAIN)
    await speak(engine, f"Say {there}dos tres{back} to me.", voice=voice, language="en-US")
    heard = [(clause.text, clause.language) for clause in tone.asked]
    if spoken:
        assert heard == [("Say", "en-US"), ("dos tres", language), ("to me.", "en-US")]
    else:
        assert heard == [("Say  dos tres  to me.", "en-US")]
    await engine.aclose()


@pytest.mark.parametrize(
    ("text", "silences_ms"),
    [
        (f"One two three{pause_mark(1000)} four five six.", [1000]),
        (f"One two three. {pause_mark(200)}Four five six.", [200]),
        (f"{pause_mark(500)}One two three.", [500]),
        (f"One two three{pause_mark(500)}{pause_mark(500)} {pause_mark(300)}four.", [1300]),
        (f"One two three{pause_mark(50)} four.", []),
        (f"One two three.{pause_mark(500)}", []),
    ],
)  # fmt: skip
async def test_a_pause_is_as_long_as_asked(text: str, silences_ms: list[int]) -> None:
    engine = Engine(ToneSynthesizer())
    found = runs_of_silence_ms(await speak(engine, text))
    assert len(found) == len(silences_ms)
    assert found == pytest.approx(silences_ms, abs=40)
    await engine.aclose()


async def test_pauses_in_a_row_are_one_bounded_pause_in_bounded_chunks() -> None:
    engine = Engine(ToneSynthesizer())
    chunks = await speak(engine, f"One.{pause_mark(10_000) * 1000} Two.")
    assert runs_of_silence_ms(chunks) == pytest.approx([speech_marks.LONGEST_PAUSE_MS], abs=40)
    assert max(chunk.samples for chunk in chunks) <= PIECE_S * L16.sample_rate + L16.frame_samples
    await engine.aclose()


async def test_a_style_that_begins_in_a_draft_is_kept() -> None:
    tone = ToneSynthesizer()
    engine = Engine(tone)
    async with engine.open(request()) as utterance:
        utterance.feed(f"{SLOW}Hello there.")
        for _ in range(20):
            await tone._sleep(0.05)
        utterance.feed(f"{USUAL} Bye.")
        utterance.end_text()
        async for _ in utterance:
            pass
    assert asked(tone) == [("Hello there.", 0.5, 0.0), ("Bye.", 1.0, 0.0)]
    await engine.aclose()


async def test_phonemes_stay_in_the_clause_of_their_words() -> None:
    tone = ToneSynthesizer()
    engine = Engine(tone)
    word = f"{begin_mark()}tomato{ipa_marks('təˈmeɪtoʊ')}"
    await speak(engine, f"Say {word}, please. Now.")
    assert [clause.text for clause in tone.asked] == [f"Say {word}, please.", "Now."]
    assert [(each.start, each.ipa) for each in speech_marks.pronounced(tone.asked[0].text)] == [(4, "təˈmeɪtoʊ")]
    assert speech_marks.without_marks(tone.asked[0].text) == "Say tomato, please."
    await engine.aclose()
