"""Texts of calls that are answered, for synthetic voices. The wordings are ours, but for fragments of the assistants of
iOS and Google (``tests/vectors/answering/wordings.json``).

Each half has its own texts and voices.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
from hibari import Hibari

from benchmarks.people.rooms import RATE, Pcm, at_level, trimmed
from gateway.seams.messages import AnsweredBy
from tts_engine.embedded import espeak_text
from tts_engine.embedded.espeak import EspeakSynthesizer
from tts_engine.embedded.espeak_text import EspeakReader
from tts_engine.embedded.hibari_text import PhonemeReader
from tts_engine.embedded.kokoro import SAMPLE_RATE, KokoroVoice, Stop, model_files, read_model, read_tables
from tts_engine.embedded.mandarin import ClauseReader
from tts_engine.embedded.mandarin_text import MandarinReader
from tts_engine.embedded.romance_text import RomanceReader
from tts_engine.embedded.voice_ids import ESPEAK as PREFIX
from tts_engine.synthesizer import ClauseRequest, Hearing
from voicecodecs.resample import resample

TEXTS: dict[str, dict[str, dict[AnsweredBy, list[str]]]] = json.loads(
    Path(__file__).with_suffix(".json").read_text("utf-8")
)
"""Texts by language, half, and who says them."""
VOICES = {"tuning": ("+f2", "+m3"), "table": ("+m1", "+f4")}
"""Variants of espeak-ng's voices, which differ by the pitch and the formants. English has the embedded voice, too."""
NAMES = {
    "en": ("en-us", "en-gb-x-rp"),
    "es": ("es", "es-419"),
    "fr": ("fr-fr", "fr-be"),
    "pt": ("pt-br", "pt"),
    "zh": ("cmn",),
}
"""espeak-ng's names of a language's voices, if they are not the language itself."""
PITCH = {"tuning": 0.85, "table": 1.0}
"""Pitch of the embedded voice."""
KOKORO = {
    "es": {"tuning": "ef_dora", "table": "em_alex"},
    "fr": {"tuning": "ff_siwis", "table": "ff_siwis"},
    "it": {"tuning": "if_sara", "table": "im_nicola"},
    "pt": {"tuning": "pf_dora", "table": "pm_alex"},
    "zh": {"tuning": "zf_xiaoni", "table": "zm_yunxi"},
}
"""Voices of Kokoro. There is one of French."""


def spoken(half: str, language: str, said_by: AnsweredBy, kokoro: Path | None) -> Iterator[tuple[str, str, Pcm]]:
    """Return each text of a half with its sound, by each voice, whose kind comes first: ``neural`` or ``espeak``.

    Args:
        kokoro: folder of Kokoro's voice tables. With it, a language of ``KOKORO`` has no other voice.
    """
    names = NAMES.get(language, (language,))
    for text in TEXTS[language][half][said_by]:
        if kokoro is not None and language in KOKORO:
            yield "neural", text, at_level(trimmed(_by_kokoro(text, language, KOKORO[language][half], kokoro)), -26.0)
            continue
        if language == "en":
            yield "neural", text, at_level(trimmed(_embedded(text, PITCH[half])), -26.0)
        for name, variant in zip(itertools.cycle(names), VOICES[half], strict=False):
            yield "espeak", text, at_level(trimmed(asyncio.run(_espeak(text, name + variant, language))), -26.0)


@cache
def _hibari() -> Hibari:
    return Hibari(threads=1)


def _embedded(text: str, pitch: float) -> Pcm:
    # Played slower, a voice is lower: the resampler is told a rate that the samples do not have.
    return resample(_hibari()(text).astype(np.float32), int(24000 * pitch) // 100 * 100, RATE)


@cache
def _kokoro(folder: Path) -> KokoroVoice:
    return KokoroVoice(read_model(*model_files()), read_tables(str(folder)))


@cache
def _reader(language: str) -> ClauseReader:
    english = PhonemeReader()
    if language == "zh":
        return MandarinReader(english, Path("build/people"))
    reader = EspeakReader if language in espeak_text.LANGUAGES else RomanceReader
    return reader(language, english.ids)


def _by_kokoro(text: str, language: str, voice: str, folder: Path) -> Pcm:
    pieces = _reader(language).read(text)
    spoken = [_kokoro(folder).speak(piece, voice, 1.0, Stop()) for piece in pieces]
    return resample(np.concatenate([each[0] for each in spoken if each is not None]), SAMPLE_RATE, RATE)


async def _espeak(text: str, voice: str, language: str) -> Pcm:
    synthesizer = EspeakSynthesizer([voice], RATE)
    await synthesizer.start()
    clause = ClauseRequest(text=text, voice=f"{PREFIX}{voice}", language=language, speed=1.0, instruct="", first=True)
    heard = cast(Hearing, None)  # it asks only synthesizers with a queue
    pieces = [chunk.pcm async for chunk in synthesizer.synthesize(clause, heard)]
    await synthesizer.aclose()
    return np.concatenate(pieces)
