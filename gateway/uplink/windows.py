"""Windows of a caller's audio for the VAD's network, and their measurements.

This module keeps the network's state of each call; ``gateway.uplink.vad`` decides what counts as speech.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gateway.uplink.echo_guard import EchoGuard
from gateway.uplink.pieces import Pcm, at_rate
from gateway.uplink.suppressor import Suppressor
from gateway.uplink.vad import FAINT_DB, SAMPLE_RATE, WINDOW_S, WINDOW_SAMPLES, SpeechDetector, Window

_CONTEXT = 32  # samples of the previous window that the network needs before a window
_STALE_S = 1.0  # after this long without audio, the caller no longer counts as speaking
_MEMORY = 0.5  # share of the network's state that is kept after a window without speech
_FLOOR = 1e-9
_FOREIGN_DB = 15.0
"""A window of which the suppressor leaves this much less is no speech of the caller. Of another voice in the room it
leaves 24 to 37 dB less, of the caller's sentences 4 to 9 dB less."""
NOTHING_DB = 10 * math.log10(_FLOOR)

Heard = tuple[str, float]
"""A result of the detector, and the monotonic second that it refers to."""


class Windows:
    """The windows of one call.

    Args:
        rate: sample rate of the caller's audio, Hz.
        detector: decides whether the caller speaks.
        echo_guard: detects the bot's echo.
    """

    def __init__(self, rate: int, detector: SpeechDetector, echo_guard: EchoGuard) -> None:
        self._to_8k = at_rate(rate, SAMPLE_RATE)
        self.detector = detector
        self._echo_guard = echo_guard
        self.state = np.zeros((2, 128), np.float32)
        """The network's state."""
        self._context: Pcm = np.zeros(_CONTEXT, np.float32)
        self._pending: Pcm = np.zeros(0, np.float32)
        self.suppressor: Suppressor | None = None
        """Tells the caller from other voices. None: every voice may be the caller's."""
        self._clean: Pcm = np.zeros(0, np.float32)
        """With a suppressor: what it left of the audio in ``_pending``."""
        self._left_db: float | None = None
        """Level of what the suppressor left of the last window, if it took it for another's voice or noise."""
        self._heard_at = -1e9
        self.judged_s = 0.0
        """Seconds of audio that were judged."""

    def hear(self, pcm: Pcm, now: float) -> Heard | None:
        """Queue audio that arrived at monotonic second ``now``. Return the speech that ends because of the gap before
        it."""
        ended = None
        if now - self._heard_at > _STALE_S:
            ended = self.detector.end(now)
            self.state[:] = 0
            self._pending = self._pending[:0]
            self._clean = self._clean[:0]
        self._heard_at = now
        sound = self._to_8k(pcm)
        if self.suppressor is not None:
            sound, clean = self.suppressor.process(sound)
            self._clean = np.concatenate((self._clean, clean))
        self._pending = np.concatenate((self._pending, sound))
        return ended

    def use(self, suppressor: Suppressor | None) -> None:
        """Use a new suppressor from now on, or none."""
        self.suppressor = suppressor
        self._clean = self._pending[:0] if suppressor is None else self._pending

    def end_speech(self) -> Heard | None:
        """End the current speech. Return the result, or None without speech."""
        self.state[:] = 0  # the network would report speech for a while longer
        return self.detector.end(self._heard_at) if self.detector.speaking else None

    def take(self) -> NDArray[np.float32] | None:
        """Return the next complete window with its context, or None."""
        if len(self._pending) < WINDOW_SAMPLES:
            return None
        window = np.concatenate((self._context, self._pending[:WINDOW_SAMPLES]))
        self._context = window[-_CONTEXT:]
        self._pending = self._pending[WINDOW_SAMPLES:]
        self._echo_guard.heard(window[_CONTEXT:])
        clean = self._clean[:WINDOW_SAMPLES]
        self._clean = self._clean[WINDOW_SAMPLES:]
        self._left_db = None
        if len(clean) == WINDOW_SAMPLES:
            left_db, before_db = (_power_db(each) for each in (clean, window[_CONTEXT:]))
            self._left_db = left_db if left_db < before_db - _FOREIGN_DB else None
        return window

    def may_be_speech(self, level_db: float) -> bool:
        """Return False if the window is too faint for the detector to call it speech, or is another's voice, so the
        network need not run. Most audio that callers send while they listen is that faint."""
        if self._left_db is not None:
            return False
        if level_db > FAINT_DB or not self.detector.idle:
            return True
        return not self._echo_guard.talking_over(self._last_sample_at)

    @property
    def _last_sample_at(self) -> float:
        """Monotonic second of the last window's last sample."""
        held_s = 0.0 if self.suppressor is None else self.suppressor.held_s
        return self._heard_at - len(self._pending) / SAMPLE_RATE - held_s

    @property
    def short_sound_from(self) -> float | None:
        """See ``SpeechDetector.short_sound_from``."""
        return self.detector.short_sound_from

    def judge(
        self, probability: float, level_db: float, bright_db: float, front_db: float, state: NDArray[np.float32]
    ) -> Heard | None:
        """Pass the last window to the detector; ``state`` is the network's state after it.

        Silero remembers for seconds: after a sentence and a silence it misses the next 0.2-0.3 s of speech. Halving the
        state after windows without speech reduced p95 from onset to pause from 408 to 145 ms over 112 sentences in a
        row; noise, babble and echoes were judged as before.
        """
        self.judged_s += WINDOW_S
        ended = self._last_sample_at
        if self._left_db is not None:  # a voice that is not the caller's is no background that a caller must exceed
            level_db = self._left_db
        heard = self.detector.feed(
            Window(
                end=ended,
                probability=probability,
                level_db=level_db,
                bright_db=bright_db,
                front_db=front_db,
                talking_over=self._echo_guard.talking_over(ended),
            ),
            is_echo=self._echo_guard.is_echo,
        )
        self.state = state * np.float32(_MEMORY) if self.detector.idle else state
        return heard


def measured_db(windows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return for each row the RMS relative to full scale and the shares of energy above 400 and 1600 Hz, in dB, shape
    ``(rows, 3)``."""
    pcm = windows[:, _CONTEXT:]
    power = np.square(np.abs(np.fft.rfft(pcm * _HANN, axis=1)))
    above = np.stack([power[:, first:].sum(axis=1) for first in _BINS], axis=1)
    shares = 10 * np.log10(above / (power.sum(axis=1, keepdims=True) + _FLOOR) + _FLOOR)
    return np.concatenate([level_db(windows)[:, None], shares], axis=1)


def _power_db(pcm: NDArray[np.float32]) -> float:
    return 10 * math.log10(float(np.mean(np.square(pcm))) + _FLOOR)


def level_db(windows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return for each row the RMS relative to full scale, dB, shape ``(rows,)``."""
    level: NDArray[np.float32] = 10 * np.log10(np.mean(np.square(windows[:, _CONTEXT:]), axis=1) + _FLOOR)
    return level


_HANN = np.hanning(WINDOW_SAMPLES).astype(np.float32)
_BINS = [frequency * WINDOW_SAMPLES // SAMPLE_RATE for frequency in (400, 1600)]
