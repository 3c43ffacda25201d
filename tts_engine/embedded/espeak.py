"""Speech in about a hundred languages by espeak-ng, which sounds robotic and needs no model.

The library is GPL-3; ``pip install talkspurt[espeak]`` installs it with ``espeakng-loader``. It is imported only if a
voice ``espeak:<language>`` is configured, or a Kokoro voice whose phonemes it makes. The library keeps global state, so
one thread does all the work. A clause takes 1-5 ms.
"""

from __future__ import annotations

import asyncio
import ctypes
import re
import threading
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tts_engine.api import EngineStatus, VoiceInfo
from tts_engine.embedded.voice_ids import ESPEAK as PREFIX
from tts_engine.errors import InvalidRequest, NotFound, SynthesisFailed, Unavailable
from tts_engine.stretch import ClauseStretch
from tts_engine.synthesizer import LINE_RATES, ClauseRequest, Hearing, PcmChunk, WordSpan
from tts_engine.text.normalise import align, clean
from tts_engine.text.scripts import is_speakable
from tts_engine.text.verbalise.languages import verbalise
from voicecodecs.pcm import to_float32
from voicecodecs.resample import resample

"""Beginning of the ids of these voices: ``espeak:de``, ``espeak:cmn``."""

# speak_lib.h
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_CHARS_UTF8 = 1
_END_PAUSE = 0x1000
_RATE_PARAMETER = 1
_PITCH_PARAMETER = 3
_WORDS_PER_MINUTE = 165
_SLOWEST = 0.5
"""Slowest speed of the library, 80 words a minute. It ignores lower values."""
_LIBRARY_RATE = 22050
_CHINESE = ("cmn", "yue", "hak")
_EVENT_LIST_TERMINATED, _EVENT_WORD = 0, 1


class _EventId(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8)]


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _EventId),
    ]


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


LOCK = threading.Lock()
"""Held during every call, because the library has one voice, one callback and one set of tables per process."""


@cache
def initialized() -> ctypes.CDLL:
    """Return the library. It is initialized once per process, because a second time breaks its phoneme tables
    (tried)."""
    try:
        import espeakng_loader
    except ImportError as exc:
        raise Unavailable("espeak voices need an extra: pip install 'talkspurt[espeak]' (GPL-3)") from exc
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    library.espeak_Synth.argtypes = [
        ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint, ctypes.c_uint,
        ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    library.espeak_SetSynthCallback.argtypes = [_Callback]
    rate = library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 100, espeakng_loader.get_data_path().encode(), 0)
    if rate != _LIBRARY_RATE:
        raise Unavailable(f"espeak-ng started with {rate} Hz, expected {_LIBRARY_RATE}")
    return library


def _places(source: str, text: str, places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the characters of ``source`` that the words at these places of ``text`` stand for."""
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    matches = align(source, text)
    firsts = [match.first_word for match in matches]
    found = []
    for start, _ in places:
        match = matches[max(bisect_right(firsts, bisect_right(ends, start)) - 1, 0)]
        said = [at for at in range(match.start_char, match.end_char) if is_speakable(source[at])]
        found.append((said[0], said[-1] + 1) if said else (match.start_char, match.end_char))
    return found


def _pitch(semitones: float) -> int:
    """Return the library's pitch: 50 is a language's own, and its range of 0 to 99 is about two octaves."""
    return min(max(round(50 + 50 * semitones / 12), 0), 99)


class EspeakSynthesizer:
    """``tts_engine.synthesizer.Synthesizer`` on espeak-ng."""

    name = "espeak"
    line_rates: Collection[int] = LINE_RATES

    def __init__(self, languages: Sequence[str], sample_rate: int = _LIBRARY_RATE) -> None:
        """
        Args:
            languages: espeak-ng's own names (``de``, ``fr``, ``cmn``); the first one is the default.
            sample_rate: Hz of the sound of a clause that has no ``line_rate``.
        """
        if not languages:
            raise ValueError("languages is empty, expected at least one, such as 'de'")
        self.languages = tuple(languages)
        self.sample_rate = sample_rate
        self._library: ctypes.CDLL | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="talkspurt-espeak")
        self._pcm: list[NDArray[np.int16]] = []
        self._starts: list[tuple[int, int, int]] = []
        """For each word: its first character, its number of characters, the millisecond at which it begins."""
        self._callback = _Callback(self._on_audio)
        self._active = 0

    async def start(self) -> None:
        """Load the library and try every configured language.

        Raises:
            Unavailable: the extra is not installed.
            NotFound: espeak-ng does not know a language.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, self._load)

    def _load(self) -> None:
        with LOCK:
            library = initialized()
            for language in self.languages:
                if library.espeak_SetVoiceByName(language.encode()):
                    raise NotFound(f"espeak-ng has no language {language!r}")
        self._library = library

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        """Speak one clause, in one chunk.

        Raises:
            NotFound: the voice is not configured.
            InvalidRequest: the language can pronounce nothing of the text.
        """
        if self._library is None:
            raise Unavailable("espeak is not running")
        language = self._language(clause)
        loop = asyncio.get_running_loop()
        asked_at = time.monotonic()
        self._active += 1
        try:
            begun, chunk = await loop.run_in_executor(self._thread, self._speak, clause, language)
        finally:
            self._active -= 1
        if not len(chunk.pcm):
            raise InvalidRequest(f"text has nothing that espeak-ng can pronounce in {language!r}")
        engine_ms = (time.monotonic() - begun) * 1e3
        yield replace(chunk, queue_ms=(begun - asked_at) * 1e3, engine_ms=engine_ms)

    def takes(self, clause: ClauseRequest) -> bool:
        """Return whether a clause is for this engine and not for the embedded voice. Its voice decides, else its
        language."""
        if clause.voice:
            return clause.voice.startswith(PREFIX)
        language = clause.language.split("-")[0].lower()
        return language != "en" and language in self.languages

    def _language(self, clause: ClauseRequest) -> str:
        if not clause.voice:
            language = clause.language.split("-")[0].lower()
            return language if language in self.languages else self.languages[0]
        language = clause.voice.removeprefix(PREFIX)
        if language not in self.languages:
            known = ", ".join(PREFIX + each for each in self.languages)
            raise NotFound(f"voice {clause.voice!r} is not configured; there is {known}")
        return language

    def _speak(self, clause: ClauseRequest, language: str) -> tuple[float, PcmChunk]:
        """Return the monotonic second of the begin, and the clause. Runs in the one thread."""
        begun = time.monotonic()
        library = self._library
        assert library is not None
        text = verbalise(clean(clause.text, wide_marks=language in _CHINESE), language)
        self._pcm, self._starts = [], []
        encoded = text.encode() + b"\0"
        flags = _CHARS_UTF8 | _END_PAUSE
        speed = max(clause.speed, _SLOWEST)
        with LOCK:
            library.espeak_SetSynthCallback(self._callback)
            library.espeak_SetVoiceByName(language.encode())
            library.espeak_SetParameter(_RATE_PARAMETER, round(_WORDS_PER_MINUTE * speed), 0)
            library.espeak_SetParameter(_PITCH_PARAMETER, _pitch(clause.pitch), 0)
            status = library.espeak_Synth(encoded, len(encoded), 0, 1, 0, flags, None, None)
        if status:
            raise SynthesisFailed(f"espeak-ng failed with status {status}")
        pcm = np.concatenate(self._pcm) if self._pcm else np.zeros(0, np.int16)
        rate = clause.line_rate or self.sample_rate
        sound = resample(to_float32(pcm), _LIBRARY_RATE, rate)
        chunk = PcmChunk(pcm=sound, words=self._words(len(sound), rate, clause.text, text))
        stretch = ClauseStretch.beyond(speed, clause.speed, rate)
        return begun, chunk if stretch is None else stretch.chunk(chunk, last=True)

    def _words(self, samples: int, rate: int, source: str, text: str) -> list[WordSpan]:
        """Return the words of ``source`` with the places at which the library spoke those of ``text``."""
        places = [(start, start + length) for start, length, _ in self._starts]
        if text != source:
            places = _places(source, text, places)
        starts: list[tuple[int, int, int]] = []
        for (start, end), (_, _, ms) in zip(places, self._starts, strict=True):
            if not starts or start >= starts[-1][1]:  # several words may stand for one written form: "12"
                starts.append((start, end, ms * rate // 1000))
        ends = [first for _, _, first in starts[1:]] + [samples]
        return [WordSpan(start, stop, first, end) for (start, stop, first), end in zip(starts, ends, strict=True)]

    def _on_audio(self, wav: ctypes._Pointer[ctypes.c_short], samples: int, events: ctypes._Pointer[_Event]) -> int:
        """Take a piece of sound. The library calls this inside ``espeak_Synth``; the answer 0 tells it to continue."""
        if wav and samples > 0:
            self._pcm.append(np.ctypeslib.as_array(wav, (samples,)).copy())
        at = 0
        while events[at].type != _EVENT_LIST_TERMINATED:
            event = events[at]
            if event.type == _EVENT_WORD:
                self._starts.append((event.text_position - 1, event.length, event.audio_position))
            at += 1
        return 0

    def voices(self) -> Sequence[VoiceInfo]:
        """Return one voice for each configured language."""
        return [
            VoiceInfo(voice_id=PREFIX + each, name=f"eSpeak {each}", languages=[each], engine=self.name)
            for each in self.languages
        ]

    def status(self) -> EngineStatus:
        """Return the engine's state."""
        ready = self._library is not None
        return EngineStatus(ready=ready, engine=self.name, model="espeak-ng", models=["espeak-ng"], active=self._active)

    async def aclose(self) -> None:
        """End the thread."""
        self._library = None
        self._thread.shutdown()
