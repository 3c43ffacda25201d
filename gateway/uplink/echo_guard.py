"""Detection of the bot's echo in the caller's audio, from the audio that was sent. Pure.

The last 128 ms of the caller's audio are correlated with the last second of the bot's (``echo_correlation``). On mu-law
telephone speech, echoes of -10 to -30 dB reach 0.97; another voice stays below 0.7 in 99 of 100 windows.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from gateway.uplink.vad import SAMPLE_RATE, WINDOW_S
from voicecodecs.pcm import to_float32
from voicecodecs.registry import AudioFormat, decoder
from voicecodecs.resample import Resampler

_COMPARED_SAMPLES = 1024  # caller audio that is compared: 128 ms
_MAX_DELAY_S = 0.6  # longest delay of an echo after its original, including the lead at the carrier
_MIN_PAUSE_S = 0.001  # shorter gaps are rounding errors between the times of a talkspurt's frames
_SEARCHED_FRAMES = 45  # frames searched for an echo's original: the longest delay, the 128 ms, and a margin


class EchoGuard:
    """The audio sent last on one call, and the test whether the caller's audio is its echo.

    The event loop calls ``sent``. The uplink's thread calls ``heard`` and the tests.

    Args:
        outbound: the format of the frames that are sent.
        threshold: normalised correlation, 0 to 1, above which audio counts as an echo.
    """

    def __init__(self, outbound: AudioFormat, threshold: float) -> None:
        self._outbound = outbound
        self._ptime_s = outbound.ptime_ms / 1000
        self._threshold = threshold
        self._sent: deque[bytes | float] = deque(maxlen=_SEARCHED_FRAMES)
        """The frames sent last, encoded, and between them the pauses in seconds as the caller hears them. Frames are
        decoded only if an onset may be their echo. The loop appends; the thread takes a copy. A (frame, time) pair
        would be one more object for each frame of each call."""
        self._sent_until = -1e9
        self._heard = np.zeros(_COMPARED_SAMPLES, np.float32)

    def sent(self, frame: bytes, now: float) -> None:
        """Record a frame that was sent at monotonic second ``now``."""
        until = self._sent_until
        if now > until + _MIN_PAUSE_S:  # else it was sent ahead, and is heard right after the frames before it
            self._sent.append(now - until)
            until = now
        self._sent.append(frame)
        self._sent_until = until + self._ptime_s

    def heard(self, window: NDArray[np.float32]) -> None:
        """Record the caller's next audio, shape ``(samples,)``, 8 kHz."""
        self._heard = np.concatenate((self._heard[len(window) :], window))

    def talking_over(self, window_ended: float) -> bool:
        """Return True if the bot spoke, or its echo could be heard, in the window that ended at that monotonic
        second."""
        return window_ended - WINDOW_S < self._sent_until + _MAX_DELAY_S

    def is_echo(self) -> bool:
        """Return True if the caller's latest audio is an echo of the sent audio. Takes about a millisecond."""
        last = list(self._sent)  # one atomic copy, since the loop keeps appending
        # A new decoder, because the recording's decoder has other state. Pauses between talkspurts are reinserted,
        # because an echo has them too.
        hear, rate = decoder(self._outbound), self._outbound.sample_rate
        pieces: list[NDArray[np.float32]] = []
        for each in last:
            if not isinstance(each, float):
                pieces.append(to_float32(hear.decode(each)))
            elif pieces:
                pieces.append(np.zeros(round(min(each, _MAX_DELAY_S) * rate), np.float32))
        if not pieces:
            return False
        sent = np.concatenate(pieces)
        if rate != SAMPLE_RATE:
            sent = Resampler(rate, SAMPLE_RATE).process(sent)
        return echo_correlation(self._heard, sent) > self._threshold


def echo_correlation(heard: NDArray[np.float32], sent: NDArray[np.float32]) -> float:
    """Return the best normalised correlation, 0 to 1, of ``heard`` with a delayed and scaled copy of ``sent``.

    Args:
        heard: shape ``(samples,)``: caller audio.
        sent: shape ``(more samples,)``: the audio sent up to then, at the same rate.
    """
    pause = np.zeros_like(heard)
    sent = np.concatenate((pause, sent, pause))  # an echo may begin or end within ``heard``
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
