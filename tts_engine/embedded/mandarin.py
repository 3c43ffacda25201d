"""The voices of Kokoro as a ``Synthesizer``, a clause at a time: Mandarin, Spanish, Portuguese, English, with espeak's
phonemes French and Italian, with Open JTalk's readings Japanese.

A core makes about two seconds of sound a second, which serves one talking call. Further clauses wait, and clauses
beyond ``_QUEUE_CLAUSES`` are refused. A cancelled clause is stopped inside the network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path
from typing import Protocol

from tts_engine.api import EngineStatus, VoiceInfo
from tts_engine.config import MandarinConfig
from tts_engine.embedded import espeak_text, romance_text
from tts_engine.embedded.espeak_text import EspeakReader
from tts_engine.embedded.hibari_text import PhonemeReader, SpokenPiece
from tts_engine.embedded.japanese_text import JapaneseReader
from tts_engine.embedded.kokoro import SAMPLE_RATE, KokoroVoice, Stop, model_files, read_model, read_tables
from tts_engine.embedded.mandarin_text import MandarinReader
from tts_engine.embedded.romance_text import RomanceReader
from tts_engine.embedded.voice_ids import KOKORO_LANGUAGES, missing_extras
from tts_engine.embedded.workers import Workers
from tts_engine.errors import InvalidRequest, NotFound, Unavailable
from tts_engine.stretch import ClauseStretch
from tts_engine.synthesizer import LINE_RATES, ClauseRequest, Hearing, PcmChunk, Playhead
from voicecodecs.resample import resample

log = logging.getLogger(__name__)

_CHINESE = ("zh", "cmn")
_WARM_UP = {
    "zh": "您好。", "es": "Hola.", "pt": "Olá.", "en": "Hello.", "fr": "Bonjour.", "it": "Ciao.", "ja": "はい。"
}  # fmt: skip
_NAMES = {
    "zh": "Mandarin and English words", "en": "English", "ja": "Japanese", **romance_text.NAMES, **espeak_text.NAMES
}  # fmt: skip

_QUEUE_CLAUSES = 2
"""Most clauses that may wait when a turn begins. With more, the turn is refused, because it would start seconds late.
Clauses are made one at a time, each in about half its duration."""

_GUARD_S = 3.0
"""About how long the longest clause takes. A call with less sound in hand goes before the first sound of another."""


class ClauseReader(Protocol):
    """Text to phonemes."""

    def read(self, text: str) -> list[SpokenPiece]:
        """Return the phoneme ids of a clause."""
        ...


class MandarinSynthesizer:
    """A ``tts_engine.synthesizer.Synthesizer`` on Kokoro. A clause without a voice gets the first one of its
    language; English is spoken by a Kokoro voice only if its name is given."""

    name = "kokoro"
    sample_rate = SAMPLE_RATE
    line_rates: Collection[int] = LINE_RATES

    def __init__(self, config: MandarinConfig, english: PhonemeReader, cache_folder: Path) -> None:
        """
        Args:
            english: reads the English words in a text.
            cache_folder: where the dictionary's fast form is kept.
        """
        self._config = config
        self._english = english
        self._cache_folder = cache_folder
        self._workers = Workers(self.name, threads=1, queue_size=_QUEUE_CLAUSES, guard_s=_GUARD_S)
        self._readers: dict[str, ClauseReader] = {}
        """Reader of each language that has a voice."""
        self._voice: KokoroVoice | None = None
        self._active = 0

    async def start(self) -> None:
        """Load model, voices and dictionary, and speak a word.

        Raises:
            Unavailable: the extra is not installed, its model is incomplete or damaged, or there is no voice table.
        """
        await asyncio.get_running_loop().run_in_executor(None, self._load)
        self._workers.start()
        assert self._voice is not None
        voice = next(iter(self._voice.tables))
        clause = ClauseRequest(
            text=_WARM_UP[self._language(voice)], voice=voice, language="", speed=1.0, instruct="", first=True
        )
        async for _ in self.synthesize(clause, Playhead()):
            pass

    def _load(self) -> None:
        tables = read_tables(self._config.voices_folder)
        if not self._config.voices_folder:
            log.warning("Mandarin has Japanese voices only, which flatten its tones; name a voices_folder")
        elif extras := missing_extras(self._config.voices_folder):
            log.warning("voices are left out; they need pip install 'talkspurt[%s]'", ",".join(extras))
        for language in dict.fromkeys(map(self._language, tables)):
            if language == "zh":
                self._readers[language] = MandarinReader(self._english, self._cache_folder)
            elif language == "en":
                self._readers[language] = self._english
            elif language == "ja":
                self._readers[language] = JapaneseReader(self._english.ids)
            elif language in espeak_text.LANGUAGES:
                self._readers[language] = EspeakReader(language, self._english.ids)
            else:
                self._readers[language] = RomanceReader(language, self._english.ids)
        self._voice = KokoroVoice(read_model(*model_files()), tables, threads=self._config.threads)

    def _tag(self, voice: str) -> str:
        """Return the language of a voice. Without a folder the package's Japanese voices speak Mandarin."""
        return KOKORO_LANGUAGES[voice[0]] if self._config.voices_folder else "zh-CN"

    def _language(self, voice: str) -> str:
        """Return the primary subtag of the language of a voice."""
        return _primary(self._tag(voice))

    def takes(self, clause: ClauseRequest) -> bool:
        """Return whether a clause is for this engine. Its voice decides, else its language."""
        if clause.voice:
            return self._voice is not None and clause.voice in self._voice.tables
        language = _primary(clause.language)
        return language != "en" and language in self._readers

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        """Speak one clause, in one chunk unless it is very long. Closing the generator stops a running inference.

        Raises:
            InvalidRequest: the voice does not speak these letters or this language.
            NotFound: there is no such voice.
            Exhausted: the clause would begin a turn, and too many clauses wait already.
        """
        if self._voice is None or not self._workers.running:
            raise Unavailable("the Mandarin voice is not running")
        wanted = _primary(clause.language) or "zh"
        voice = clause.voice or next((name for name in self._voice.tables if self._language(name) == wanted), "")
        if voice not in self._voice.tables:
            raise NotFound(f"voice {voice!r} is none of {', '.join(self._voice.tables)}")
        language = self._language(voice)
        # A route's language is en-US by default, so the language counts only if the voice's name says nothing.
        if clause.language and _primary(clause.language) not in (language, "en"):
            raise InvalidRequest(
                f"language is {clause.language!r}, voice {voice!r} speaks {_NAMES[language]}", field="language"
            )
        work = _ClauseWork(self._readers[language], self._voice, clause, voice)
        begun = not clause.first  # a turn that has begun is spoken to its end
        self._active += 1
        try:
            while not work.finished:
                step = await self._workers.run(
                    work.step, playhead, cost_s=0.1 * len(clause.text), begun=begun, stop=work.stop
                )
                begun = True
                if step is not None:
                    yield step
        finally:
            self._active -= 1

    def voices(self) -> Sequence[VoiceInfo]:
        """Return the voices of the configured folder, else the Japanese ones of the package."""
        return [
            VoiceInfo(
                voice_id=voice,
                name=voice[3:].capitalize() + ("" if self._config.voices_folder else " (Japanese)"),
                languages=[self._tag(voice)],
                engine=self.name,
            )
            for voice in (self._voice.tables if self._voice is not None else ())
        ]

    def status(self) -> EngineStatus:
        """Return the engine's state and the number of waiting clauses."""
        return EngineStatus(
            ready=self._workers.running,
            engine=self.name,
            model="kokoro-82m",
            models=["kokoro-82m"],
            active=self._active,
            queued=self._workers.waiting,
        )

    async def aclose(self) -> None:
        """End the thread."""
        await self._workers.aclose()


def _primary(language: str) -> str:
    primary = language.partition("-")[0].lower()
    return "zh" if primary in _CHINESE else primary


class _ClauseWork:
    """One clause as a row of steps. Each step speaks a piece of the text; nearly every clause has one piece."""

    def __init__(self, reader: ClauseReader, voice: KokoroVoice, clause: ClauseRequest, table: str) -> None:
        self._reader = reader
        self._voice = voice
        self._clause = clause
        self._table = table
        self._pieces: list[SpokenPiece] | None = None
        self._samples = 0
        self._rate = clause.line_rate or SAMPLE_RATE
        self._speed = min(max(clause.speed, 0.5), 2.0)  # outside this range the network slurs
        self._stretch = ClauseStretch.beyond(self._speed, clause.speed, self._rate)
        self.stop = Stop()
        self.finished = False

    def step(self) -> PcmChunk | None:
        """Return the sound of the next piece, or None if there is nothing to speak."""
        if self._pieces is None:
            self._pieces = self._reader.read(self._clause.text)
        spoken = None
        if self._pieces:
            spoken = self._voice.speak(self._pieces.pop(0), self._table, self._speed, self.stop)
        self.finished = spoken is None or not self._pieces
        if spoken is None:
            return None
        pcm, words = spoken
        rate = self._rate
        pcm = resample(pcm, SAMPLE_RATE, rate)
        base = self._samples
        self._samples += len(pcm)
        moved = [
            word._replace(
                first_sample=base + word.first_sample * rate // SAMPLE_RATE,
                end_sample=base + word.end_sample * rate // SAMPLE_RATE,
            )
            for word in words
        ]
        chunk = PcmChunk(pcm=pcm, words=moved)
        return chunk if self._stretch is None else self._stretch.chunk(chunk, last=self.finished)
