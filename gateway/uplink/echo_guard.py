"""Tells the echo of our own voice from the caller, by what we sent. Pure; it decides nothing else.

The last 128 ms of the caller's audio are correlated with the last second of ours (``echo_correlation``). Measured on
mu-law telephone speech, echoes of -10 to -30 dB reach 0.97, and another voice stays below 0.7 in 99 of 100 windows.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from gateway.uplink.vad import SAMPLE_RATE, WINDOW_S
from voicecodecs.pcm import to_float32
from voicecodecs.registry import AudioFormat, decoder
from voicecodecs.resample import Resampler

_HEARD_SAMPLES = 1024  # of the caller, that are compared: 128 ms
_TAIL_S = 0.6  # an echo comes at most so much later than its original, our lead at the carrier included
_PAUSE_S = 0.001  # shorter ones are none: times of a talkspurt's frames differ by rounding
_FRAMES = 45  # in which an echo's original is sought: the tail, the 128 ms themselves, and some more


class EchoGuard:
    """What we sent last on one call, and whether the caller's audio is its echo.

    The event loop tells what is ``sent``. The uplink's thread tells what is ``heard``, and asks.

    Args:
        outbound: the format of the frames that are sent.
        threshold: what resembles our audio by more than this counts as its echo; normalised correlation, 0 to 1.
    """

    def __init__(self, outbound: AudioFormat, threshold: float) -> None:
        self._outbound = outbound
        self._ptime_s = outbound.ptime_ms / 1000
        self._threshold = threshold
        self._sent: deque[bytes | float] = deque(maxlen=_FRAMES)
        """The frames that we sent last, encoded, and the seconds of the pauses between them at the caller's end. They
        are decoded if an onset may be their echo. The loop appends to it, and sets the next; the thread takes a copy.
        No pair of frame and time: it would be one more object for each frame of each call."""
        self._sent_until = -1e9
        self._heard = np.zeros(_HEARD_SAMPLES, np.float32)

    def sent(self, frame: bytes, now: float) -> None:
        """Keep a frame that we sent at monotonic second ``now``."""
        until = self._sent_until
        if now > until + _PAUSE_S:  # else it is heard behind those before it, as it was sent ahead
            self._sent.append(now - until)
            until = now
        self._sent.append(frame)
        self._sent_until = until + self._ptime_s

    def heard(self, window: NDArray[np.float32]) -> None:
        """Keep the caller's next audio, ``(samples,)`` at 8 kHz."""
        self._heard = np.concatenate((self._heard[len(window) :], window))

    def talking_over(self, window_ended: float) -> bool:
        """Were we speaking, or could an echo of us be heard, in the window that ended at that monotonic second?"""
        return window_ended - WINDOW_S < self._sent_until + _TAIL_S

    def is_echo(self) -> bool:
        """Is what was heard last an echo of what we sent? This takes a millisecond or so."""
        last = list(self._sent)  # in one step, since the loop goes on appending
        # This needs its own decoder, because the recording's decoder has seen other pieces. Pauses between talkspurts
        # are inserted again, because an echo has them too.
        hear, rate = decoder(self._outbound), self._outbound.sample_rate
        pieces: list[NDArray[np.float32]] = []
        for each in last:
            if not isinstance(each, float):
                pieces.append(to_float32(hear.decode(each)))
            elif pieces:
                pieces.append(np.zeros(round(min(each, _TAIL_S) * rate), np.float32))
        if not pieces:
            return False
        sent = np.concatenate(pieces)
        if rate != SAMPLE_RATE:
            sent = Resampler(rate, SAMPLE_RATE).process(sent)
        return echo_correlation(self._heard, sent) > self._threshold


def echo_correlation(heard: NDArray[np.float32], sent: NDArray[np.float32]) -> float:
    """Return how much of ``heard`` is a delayed and scaled copy of ``sent``: the best normalised correlation, 0 to 1.

    Args:
        heard: shape ``(samples,)``: caller audio.
        sent: shape ``(more samples,)``: the audio that we sent up to then, at the same rate.
    """
    pause = np.zeros_like(heard)
    sent = np.concatenate((pause, sent, pause))  # an echo may have begun, or ended, within ``heard``
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
