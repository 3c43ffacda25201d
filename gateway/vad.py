"""When the caller begins to speak: decisions over speech probabilities. Pure; the network runs elsewhere.

Silero's network answers once per window (256 samples at 8 kHz, 32 ms). An onset is confirmed after ``min_speech_s`` of
windows that count. While we speak two more questions are asked:

* Is it our own echo? The last 128 ms are correlated with what we sent (``echo_correlation``). Measured on mu-law
  telephone speech: echoes of -10 to -30 dB reach 0.97, another voice stays below 0.7 in 99 of 100 windows.
* Is it a hum ("mhm")? A closed mouth has next to no energy above 800 Hz. A caller who wants the floor opens it within
  a syllable, and one who only agrees does not: two open windows are asked for, or a hum that goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW_SAMPLES = 256
SAMPLE_RATE = 8000
WINDOW_S = WINDOW_SAMPLES / SAMPLE_RATE
ECHO_WINDOW_SAMPLES = 1024

_RELEASE = 0.15  # hysteresis: speech goes on while its probability is above the threshold less this
_FAINT_DB = -48.0  # fainter than this over our own voice is the tail of an echo, or nobody who wants the floor
_OPEN_DB = -11.5  # share of the energy above 800 Hz in a window with an open mouth
_OPEN_WINDOWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window of the caller's audio, measured."""

    end: float
    """Monotonic second of its last sample."""
    probability: float
    level_db: float
    """RMS relative to full scale, dB."""
    bright_db: float
    """Energy above 800 Hz, relative to all of it, dB."""
    talking_over: bool
    """We were speaking when it was said."""


def echo_correlation(heard: NDArray[np.float32], sent: NDArray[np.float32]) -> float:
    """How much of ``heard`` is a delayed and scaled copy of ``sent``: the best normalised correlation, 0 to 1.

    Args:
        heard: shape ``(samples,)``, what came from the caller.
        sent: shape ``(more samples,)``, what we sent up to then, at the same rate.
    """
    sent = np.concatenate((np.zeros_like(heard), sent))  # an echo may have begun within ``heard``
    spare = len(sent) - len(heard)
    size = 1 << (len(sent) + len(heard) - 1).bit_length()
    products = np.fft.irfft(np.fft.rfft(sent, size) * np.conj(np.fft.rfft(heard, size)), size)[: spare + 1]
    energy = np.cumsum(np.concatenate(([0.0], np.square(sent, dtype=np.float64))))
    window = energy[len(heard) :] - energy[: spare + 1]
    loud = window > 0.01 * window.max(initial=0.0)
    if not loud.any():
        return 0.0
    scale = np.sqrt(window[loud] * float(np.square(heard, dtype=np.float64).sum()) + 1e-12)
    return float((np.abs(products[loud]) / scale).max())


class SpeechDetector:
    """One caller's onset and end of speech.

    Args:
        threshold: probability that counts as speech.
        min_speech_s: speech that confirms an onset.
        min_silence_s: silence that ends it.
        max_hum_s: a hum longer than this counts as speech after all.
    """

    def __init__(
        self,
        *,
        threshold: float = 0.5,
        min_speech_s: float = 0.096,
        min_silence_s: float = 0.3,
        max_hum_s: float = 0.6,
    ) -> None:
        self._threshold = threshold
        self._min_speech_s = min_speech_s
        self._min_silence_s = min_silence_s
        self._max_hum_s = max_hum_s
        self._onset: float | None = None
        self._speech_s = 0.0
        self._open_windows = 0
        self._silence_s = 0.0
        self.speaking = False

    def feed(self, window: Window, *, is_echo: Callable[[], bool] = lambda: False) -> tuple[str, float] | None:
        """One window; returns ``("started", onset)``, ``("ended", end)`` or None. ``is_echo`` is asked rarely."""
        known = self.speaking or self._onset is not None
        voiced = window.probability >= self._threshold - (_RELEASE if known else 0.0)
        voiced &= window.level_db > _FAINT_DB or not window.talking_over
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
        self._speech_s += WINDOW_S
        # A breath at the end of a hum is bright too, but hardly speech.
        self._open_windows += window.bright_db > _OPEN_DB and window.probability >= self._threshold
        if self._speech_s + 1e-9 < self._min_speech_s:
            return None
        if window.talking_over:
            if self._open_windows < _OPEN_WINDOWS and self._speech_s < self._max_hum_s:
                return None
            if is_echo():
                self._reset()
                return None
        onset = self._onset
        self._reset()
        self.speaking = True
        return "started", onset

    def _reset(self) -> None:
        self.speaking = False
        self._onset = None
        self._speech_s = self._silence_s = 0.0
        self._open_windows = 0
