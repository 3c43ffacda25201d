"""Detection of the bot's echo in the caller's audio, from the audio that was sent. Pure.

The last 256 ms of the caller's audio are correlated with the last second of the bot's. Two measures decide:

* The correlation peak of the whitened signals (``echo_peak``). An echo from a room has many overlapping copies, but its
  direct sound still makes one sharp peak. The pitch of another voice makes many peaks of about one height. On human
  speech through rooms of 0.1 to 0.5 s, 97 of 100 windows of an echo have such a peak, and less than one of 100 windows
  of other voices, music and noises.
* The normalised correlation of the last 128 ms (``echo_correlation``), for sounds whose peak is broad.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from gateway.uplink.vad import SAMPLE_RATE, WINDOW_S
from voicecodecs.pcm import to_float32
from voicecodecs.registry import AudioFormat, decoder
from voicecodecs.resample import Resampler

_COMPARED_SAMPLES = 2048  # caller audio that is compared: 256 ms
_COPY_SAMPLES = 1024  # and for the correlation that is not whitened
_MAX_DELAY_S = 0.6  # longest delay of an echo after its original, including the lead at the carrier
_MIN_PAUSE_S = 0.001  # shorter gaps are rounding errors between the times of a talkspurt's frames
_SEARCHED_S = _MAX_DELAY_S + _COMPARED_SAMPLES / SAMPLE_RATE + 0.05  # sent audio that is searched, with a margin
_LEAST_PEAK = 7.5  # of ``echo_peak`` for an echo, if the peak is sharp
_LEAST_SHARPNESS = 1.7
_CLEAR_PEAK = 20.0  # a peak that no other sound makes, for a line with two echoes of about one strength
_PEAK_SAMPLES = 12  # half the width of a peak
_WHITENING = 0.85  # exponent: 0 would leave the spectrum as it is, 1 would weigh noise like speech
_BAND_HZ = (250, 3500)

Sent = bytes | float


class EchoGuard:
    """The audio sent last on one call, and the test whether the caller's audio is its echo.

    The event loop calls ``sent``. The uplink's thread calls the other methods.

    Args:
        outbound: the format of the frames that are sent.
        threshold: normalised correlation, 0 to 1, above which audio counts as an echo.
    """

    def __init__(self, outbound: AudioFormat, threshold: float) -> None:
        self._outbound = outbound
        self._ptime_s = outbound.ptime_ms / 1000
        self._threshold = threshold
        self._sent: deque[Sent] = deque(maxlen=math.ceil(_SEARCHED_S / self._ptime_s))
        """The frames sent last, encoded, and between them the pauses in seconds as the caller hears them. Frames are
        decoded only if an onset may be their echo. The loop appends; the thread takes a copy. A (frame, time) pair
        would be one more object for each frame of each call."""
        self._sent_until = -1e9
        self._follower: deque[Sent] | None = None
        self.found = 0
        """Number of tests that found an echo."""
        self._heard = np.zeros(_COMPARED_SAMPLES, np.float32)

    def sent(self, frame: bytes, now: float) -> None:
        """Record a frame that was sent at monotonic second ``now``."""
        until, follower = self._sent_until, self._follower
        if now > until + _MIN_PAUSE_S:  # else it was sent ahead, and is heard right after the frames before it
            self._sent.append(now - until)
            if follower is not None:
                follower.append(now)
            until = now
        self._sent.append(frame)
        if follower is not None:
            follower.append(frame)
        self._sent_until = until + self._ptime_s

    def follow(self, follower: deque[Sent] | None) -> float:
        """Append everything that is sent from now on to ``follower``: frames, and before a frame that follows a pause
        the monotonic second at which it is heard. None: to nothing. Return the end of the audio sent before."""
        self._follower = follower
        return self._sent_until

    def heard(self, window: NDArray[np.float32]) -> None:
        """Record the caller's next audio, shape ``(samples,)``, 8 kHz."""
        self._heard = np.concatenate((self._heard[len(window) :], window))

    def talking_over(self, window_ended: float) -> bool:
        """Return True if the bot spoke, or its echo could be heard, in the window that ended at that monotonic
        second."""
        return window_ended - WINDOW_S < self._sent_until + _MAX_DELAY_S

    def is_echo(self) -> bool:
        """Return True if the caller's latest audio is an echo of the sent audio. Takes two milliseconds."""
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
        peak, sharpness = echo_peak(self._heard, sent)
        found = (
            (peak > _LEAST_PEAK and sharpness > _LEAST_SHARPNESS)
            or peak > _CLEAR_PEAK
            or echo_correlation(self._heard[-_COPY_SAMPLES:], sent) > self._threshold
        )
        self.found += found
        return found


def echo_peak(heard: NDArray[np.float32], sent: NDArray[np.float32]) -> tuple[float, float]:
    """Return the height of the highest peak of the whitened cross-correlation, relative to its RMS over all delays, and
    its sharpness: the height relative to the next peak.

    This is the generalised cross-correlation of Knapp and Carter (1976) with a partial phase transform. Noise that has
    nothing to do with ``sent`` gives about 5 and 1.1.

    Args:
        heard: shape ``(samples,)``: caller audio.
        sent: shape ``(more samples,)``: the audio sent up to then, at ``SAMPLE_RATE`` too.
    """
    pause = np.zeros_like(heard)
    sent = np.concatenate((pause, sent, pause))  # an echo may begin or end within ``heard``
    spare = len(sent) - len(heard)
    size = 1 << (len(sent) + len(heard) - 1).bit_length()
    cross = np.fft.rfft(sent, size) * np.conj(np.fft.rfft(heard, size))
    low, high = (round(hz * size / SAMPLE_RATE) for hz in _BAND_HZ)
    cross[:low] = cross[high:] = 0.0
    power = np.abs(cross)
    loudest = float(power.max(initial=0.0))
    if loudest == 0.0:
        return 0.0, 1.0
    correlation = np.abs(np.fft.irfft(cross / (power + 1e-6 * loudest) ** _WHITENING, size)[: spare + 1])
    at = int(correlation.argmax())
    highest, rms = float(correlation[at]), float(np.sqrt(np.square(correlation).mean()))
    correlation[max(0, at - _PEAK_SAMPLES) : at + _PEAK_SAMPLES + 1] = 0.0
    return highest / rms, highest / max(float(correlation.max()), 1e-12 * highest)


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
