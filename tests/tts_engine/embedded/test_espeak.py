"""The optional robotic voice, where its extra is installed."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.tts_engine.garbage import leaving_no_circles
from tts_engine.api import UtteranceRequest
from tts_engine.config import EmbeddedConfig
from tts_engine.embedded.espeak import EspeakSynthesizer
from tts_engine.embedded.synthesizer import EmbeddedSynthesizer
from tts_engine.errors import NotFound
from tts_engine.pipeline.engine import Engine
from tts_engine.synthesizer import ClauseRequest, PcmChunk, Playhead
from voicecodecs.registry import AudioFormat


def test_nothing_of_it_is_imported_by_the_engine() -> None:
    code = (
        "import sys, tts_engine.pipeline.engine, tts_engine.embedded.synthesizer; "
        "sys.exit('espeakng_loader' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0


async def test_an_utterance_leaves_nothing_to_a_collection_of_garbage() -> None:
    pytest.importorskip("espeakng_loader")
    engine = Engine(EspeakSynthesizer(["de"]))
    await engine.start()
    async with leaving_no_circles():
        for number in range(2):
            async with engine.open(UtteranceRequest(utterance_id=f"u{number}", voice="espeak:de")) as utterance:
                utterance.feed("Guten Tag.")
                utterance.end_text()
                async for _ in utterance:
                    pass
    await engine.aclose()


async def test_speaks_other_scripts_with_word_times() -> None:
    pytest.importorskip("espeakng_loader")
    engine = Engine(EspeakSynthesizer(["cmn", "de"]))
    await engine.start()
    for voice, text in (
        ("espeak:cmn", "你好，请问有什么可以帮您？"),
        ("espeak:de", "Guten *Tag* 👍, wie geht es Ihnen?"),
    ):
        request = UtteranceRequest(utterance_id="u", format=AudioFormat("L16", 16000), voice=voice)
        async with engine.open(request) as utterance:
            utterance.feed(text)
            utterance.end_text()
            chunks = [chunk async for chunk in utterance]
        pcm = np.frombuffer(b"".join(f for c in chunks for f in c.frames), "<i2")
        assert len(pcm) > 16000 and np.abs(pcm).max() > 3000
        spans = [s for c in chunks for s in c.spans]
        assert all(a.first_sample <= b.first_sample for a, b in zip(spans, spans[1:], strict=False))
        if voice == "espeak:de":
            assert [text[s.start_char : s.end_char] for s in spans] == ["Guten", "Tag", "wie", "geht", "es", "Ihnen"]
    with pytest.raises(NotFound, match="espeak:xx"):
        async with engine.open(UtteranceRequest(utterance_id="u", voice="espeak:xx")) as utterance:
            utterance.feed("Hi.")
            utterance.end_text()
            await anext(aiter(utterance))
    await engine.aclose()


async def test_it_reads_numbers_and_drops_markup_as_the_other_voices_do() -> None:
    pytest.importorskip("espeakng_loader")
    voice = EspeakSynthesizer(["it"])
    await voice.start()

    async def speak(text: str) -> PcmChunk:
        clause = ClauseRequest(text=text, voice="", language="it", speed=1.0, instruct="", first=True)
        (chunk,) = [chunk async for chunk in voice.synthesize(clause, Playhead())]
        return chunk

    text = "<b>Il totale</b> è **-1.234,50 €**, grazie."
    written, spoken = (
        await speak(text),
        await speak("Il totale è meno mille duecento trentaquattro euro e cinquanta centesimi, grazie."),
    )
    # The library varies its sound by some milliseconds; digits read one by one would be far longer.
    assert len(written.pcm) == pytest.approx(len(spoken.pcm), rel=0.02)
    assert [text[word.start_char : word.end_char] for word in written.words][-2:] == ["1.234,50 €", "grazie"]
    await voice.aclose()


async def test_it_speaks_at_every_speed() -> None:
    pytest.importorskip("espeakng_loader")
    voice = EspeakSynthesizer(["en"])
    await voice.start()
    clause = ClauseRequest(text="Please hold the line.", voice="", language="en", speed=1.0, instruct="", first=True)
    spoken = {}
    for speed in (0.25, 0.5, 1.0, 4.0):
        (spoken[speed],) = [chunk async for chunk in voice.synthesize(replace(clause, speed=speed), Playhead())]
        length = len(spoken[speed].pcm)
        assert [word.end_sample for word in spoken[speed].words][-1] == pytest.approx(length, abs=1)
    await voice.aclose()
    lengths = {speed: len(chunk.pcm) / len(spoken[1.0].pcm) for speed, chunk in spoken.items()}
    assert lengths == pytest.approx({0.25: 4, 0.5: 2, 1.0: 1, 4.0: 0.25}, rel=0.15)


async def test_the_embedded_engine_offers_configured_languages_beside_its_own_voice() -> None:
    pytest.importorskip("espeakng_loader")
    engine = Engine(EmbeddedSynthesizer(EmbeddedConfig(espeak=("de",))))
    await engine.start()
    assert [voice.voice_id for voice in await engine.list_voices()] == ["heart", "espeak:de"]
    for fields in ({"voice": "espeak:de"}, {"language": "de-DE"}, {"voice": "heart"}, {}):
        async with engine.open(UtteranceRequest(utterance_id="u", **fields)) as utterance:  # type: ignore[arg-type]
            utterance.feed("Hallo, Welt.")
            utterance.end_text()
            assert [chunk async for chunk in utterance]
    await engine.aclose()


async def test_a_telephone_hears_the_same_speech_at_the_same_time() -> None:
    pytest.importorskip("espeakng_loader")
    engine = Engine(EmbeddedSynthesizer(EmbeddedConfig(espeak=("de",))))
    await engine.start()
    heard = []
    for fmt in (AudioFormat("L16", 24000), AudioFormat("PCMU"), AudioFormat("G722", 16000)):
        async with engine.open(UtteranceRequest(utterance_id="u", format=fmt, language="de")) as utterance:
            utterance.feed("Guten Tag, wie geht es Ihnen heute?")
            utterance.end_text()
            chunks = [chunk async for chunk in utterance]
        seconds = sum(chunk.samples for chunk in chunks) / fmt.sample_rate
        heard.append([seconds, *(s.end_sample / fmt.sample_rate for c in chunks for s in c.spans)])
    assert heard[1] == pytest.approx(heard[0], abs=0.03)
    assert heard[2] == pytest.approx(heard[0], abs=0.03)
    await engine.aclose()
