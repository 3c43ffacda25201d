"""Replaces lost packets, so that voice detection, recogniser and recording get no clicks and keep the timing.

Opus has its own concealment, and packets may have a copy of the frame before them. The other codecs get that of ITU-T
G.711 Appendix I: the last pitch period is repeated, fades from 10 ms on, is silent at 60 ms, and is blended into the
next packet over 4 ms. Two parts of the Appendix are left out: its delay of 3.75 ms for the first join, which is not
needed because the repetition begins one period back, where the wave is the same; and its growing number of periods.
"""

from __future__ import annotations

import contextlib
from collections import deque

import numpy as np
from numpy.typing import NDArray

from voicecodecs import opus
from voicecodecs.registry import AudioFormat, decoder

_HISTORY_S = 0.04
_LONGEST_PERIOD_S = 0.015  # 66 Hz
_SHORTEST_PERIOD_S = 0.005  # 200 Hz; for a higher voice several periods are repeated
_COMPARED_S = 0.02
_FADE_FROM_S = 0.01
_FADE_TO_S = 0.06
_JOIN_S = 0.004


class Concealer:
    """Makes the samples that are missing in one stream of audio. Not thread-safe.

    Args:
        sample_rate: Hz.
    """

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._kept = round(_HISTORY_S * sample_rate)
        self._history: deque[NDArray[np.int16]] = deque([np.zeros(self._kept, np.int16)])
        """The last pieces, joined only after a loss, since most streams lose little."""
        self._length = self._kept
        self._period = np.zeros(0, np.float32)
        self._invented = 0

    def heard(self, pcm: NDArray[np.int16]) -> NDArray[np.int16]:
        """Take received audio, and return it; after a loss, its first 4 ms are blended with the concealment."""
        if self._invented:
            length = min(round(_JOIN_S * self._rate), len(pcm))
            rise = (np.arange(length, dtype=np.float32) + 1) / (length + 1)
            joined = pcm[:length] * rise + self._repeat(length) * (1 - rise)
            pcm = np.concatenate((np.round(joined).astype(np.int16), pcm[length:]))
            self._invented = 0
        self._remember(pcm)
        return pcm

    def conceal(self, samples: int) -> NDArray[np.int16]:
        """Return ``samples`` samples that replace a loss: int16, shape ``(samples,)``."""
        if not self._invented:
            self._period = self._last_period()
        pcm = np.round(self._repeat(samples)).astype(np.int16)
        self._invented += samples
        self._remember(pcm)
        return pcm

    def _remember(self, pcm: NDArray[np.int16]) -> None:
        history = self._history
        history.append(pcm)
        self._length += len(pcm)
        while self._length - len(history[0]) >= self._kept:
            self._length -= len(history.popleft())

    def _last_period(self) -> NDArray[np.float32]:
        """Return the last pitch period: the end of the history, by the lag at which the wave repeats itself best."""
        wave = np.concatenate(self._history)[-self._kept :].astype(np.float32)
        compared = round(_COMPARED_S * self._rate)
        shortest, longest = round(_SHORTEST_PERIOD_S * self._rate), round(_LONGEST_PERIOD_S * self._rate)
        # One row for each lag: the 20 ms that end that lag before the end of the history.
        rows = np.lib.stride_tricks.sliding_window_view(wave, compared)[::-1][shortest : longest + 1]
        likeness = rows @ wave[-compared:] / np.sqrt(np.einsum("ij,ij->i", rows, rows) + 1.0)
        return wave[len(wave) - shortest - int(np.argmax(likeness)) :]

    def _repeat(self, samples: int) -> NDArray[np.float32]:
        at = self._invented + np.arange(samples)
        fade = (_FADE_TO_S - at / self._rate) / (_FADE_TO_S - _FADE_FROM_S)
        faded: NDArray[np.float32] = self._period[at % len(self._period)] * np.clip(fade, 0, 1).astype(np.float32)
        return faded


class ConcealingDecoder:
    """Decodes one direction of a leg's audio and conceals its losses. Not thread-safe.

    Args:
        fmt: the format of the payloads.
    """

    def __init__(self, fmt: AudioFormat) -> None:
        self._opus = opus.Decoder(fmt.sample_rate) if fmt.encoding == "OPUS" else None
        self._decoder = self._opus or decoder(fmt)
        self._concealer = Concealer(fmt.sample_rate)
        self._frame = fmt.frame_samples

    def decode(self, payload: bytes, following: bytes = b"") -> NDArray[np.int16]:
        """Decode a payload. An empty payload is a loss, as long as the payload before it.

        Args:
            following: the payload after a loss, if it has arrived. Opus packets may have a copy of the frame before
                them (in-band FEC, RFC 6716 section 2.1.7).

        Raises:
            ValueError: see ``voicecodecs.registry.Decoder``.
        """
        if not payload:
            if self._opus is None:
                return self._concealer.conceal(self._frame)
            with contextlib.suppress(ValueError):  # ``following`` is not an Opus packet
                return self._opus.conceal(self._frame, following)
            return self._opus.conceal(self._frame)
        pcm = self._decoder.decode(payload)
        self._frame = len(pcm)
        return pcm if self._opus else self._concealer.heard(pcm)
