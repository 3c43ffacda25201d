"""When the caller begins to speak: decisions over speech probabilities. Pure; the network runs elsewhere.

Silero's network answers once per window (256 samples at 8 kHz, 32 ms). An onset is confirmed after ``min_speech_ms`` of
windows that count. While we speak two guards decide which windows count:

* the echo guard: a window must be louder than the echo of our own voice usually is on this line;
* the hum guard: a window without energy above 800 Hz is a hum ("mhm"); hums are waited out, since a caller who wants
  the floor opens the mouth within a syllable, and one who only agrees does not.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

WINDOW_SAMPLES = 256
SAMPLE_RATE = 8000
WINDOW_S = WINDOW_SAMPLES / SAMPLE_RATE

_RELEASE = 0.15  # hysteresis: speech goes on while its probability is above the threshold less this
_COUPLING_WINDOWS = 96  # three seconds of our own speech
_COUPLING_ENOUGH = 12
_COUPLING_QUANTILE = 0.8
_COUPLING_UNKNOWN_DB = -12.0  # assumed echo, relative to our own level, until the line has shown its own
_ECHO_TAIL_WINDOWS = 12  # an echo comes up to 400 ms late
_FLOOR_DB = -90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window of the caller's audio, measured. Levels in dB of full scale."""

    end: float
    """Monotonic second of its last sample."""
    probability: float
    level_db: float
    bright_db: float
    """Level above 800 Hz."""
    reference_db: float | None
    """Loudest of our own windows in the echo's reach; None: we were silent."""


class EchoLevel:
    """How loud the echo of our voice usually is, relative to it: a high quantile of recent windows."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def observe(self, coupling_db: float) -> None:
        """One window while we spoke: the caller's level less ours."""
        self._recent.append(coupling_db)
        insort(self._sorted, coupling_db)
        if len(self._recent) > _COUPLING_WINDOWS:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def usual_db(self) -> float:
        """The level that echo alone reaches."""
        if len(self._sorted) < _COUPLING_ENOUGH:
            return _COUPLING_UNKNOWN_DB
        return self._sorted[int(_COUPLING_QUANTILE * (len(self._sorted) - 1))]


class SpeechDetector:
    """One caller's onset and end of speech.

    Args:
        threshold: probability that counts as speech.
        min_speech_s: speech that confirms an onset.
        min_silence_s: silence that ends it.
        echo_guard_db: how much louder than the usual echo a window must be while we speak.
        max_hum_s: a hum longer than this counts as speech after all.
    """

    def __init__(
        self,
        *,
        threshold: float = 0.5,
        min_speech_s: float = 0.096,
        min_silence_s: float = 0.3,
        echo_guard_db: float = 6.0,
        max_hum_s: float = 0.6,
    ) -> None:
        self._threshold = threshold
        self._min_speech_s = min_speech_s
        self._min_silence_s = min_silence_s
        self._guard_db = echo_guard_db
        self._max_hum_s = max_hum_s
        self._echo = EchoLevel()
        self._onset: float | None = None
        self._speech_s = 0.0
        self._hum_s = 0.0
        self._silence_s = 0.0
        self.speaking = False

    def feed(self, window: Window) -> tuple[str, float] | None:
        """One window; returns ``("started", onset)``, ``("ended", end)`` or None."""
        threshold = self._threshold - (_RELEASE if self.speaking or self._onset is not None else 0.0)
        voiced = window.probability >= threshold
        if window.reference_db is not None:
            coupling_db = window.level_db - window.reference_db
            voiced &= coupling_db >= self._echo.usual_db() + self._guard_db
            self._echo.observe(coupling_db)
        if self.speaking:
            self._silence_s = 0.0 if voiced else self._silence_s + WINDOW_S
            if self._silence_s >= self._min_silence_s:
                self._reset()
                return "ended", window.end
            return None
        if not voiced:
            self._silence_s += WINDOW_S
            if self._silence_s > WINDOW_S:  # one weak window inside a word is no end of it
                self._reset()
            return None
        if self._onset is None:
            self._onset = window.end - WINDOW_S
        self._silence_s = 0.0
        if window.reference_db is not None and window.bright_db < window.level_db - 12.0:
            self._hum_s += WINDOW_S
            if self._hum_s < self._max_hum_s:
                return None
        self._speech_s += WINDOW_S
        if self._speech_s + 1e-9 < self._min_speech_s:
            return None
        onset = self._onset
        self._reset()
        self.speaking = True
        return "started", onset

    def _reset(self) -> None:
        self.speaking = False
        self._onset = None
        self._speech_s = self._hum_s = self._silence_s = 0.0
