"""Conversion of a stream of payloads from one format to another, for a call that changes its codec while it is up."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from voicecodecs import opus
from voicecodecs.pcm import to_float32, to_int16
from voicecodecs.registry import AudioFormat, decoder, encoder
from voicecodecs.resample import Resampler


class Transcoder:
    """Converts payloads of one format to frames of another. Each direction of a call needs its own, fed in order.

    Not thread-safe. Payloads may have any duration; frames have the target's. If both have the same duration, each
    payload gives one frame, the first one too: the delay of a resampler (3.6 ms at most) is filled with silence.

    Args:
        source: format of the payloads. For Opus, its sample rate is not used, because the decoder returns any rate.
        target: format of the frames. For Opus, the same holds for the encoder.
    """

    def __init__(self, source: AudioFormat, target: AudioFormat) -> None:
        self.source = source
        self.target = target
        if source.encoding == "OPUS" and target.sample_rate in opus.SAMPLE_RATES:
            source = replace(source, sample_rate=target.sample_rate)
        elif target.encoding == "OPUS" and source.sample_rate in opus.SAMPLE_RATES:
            target = replace(target, sample_rate=source.sample_rate)
        self._decode = decoder(source).decode
        self._encode = encoder(target).encode
        self._samples = target.frame_samples
        self._resampler = Resampler(source.sample_rate, target.sample_rate)
        self._waiting = np.zeros(math.ceil(self._resampler.delay_s * target.sample_rate), np.int16)

    def convert(self, payload: bytes) -> list[bytes]:
        """Return the frames that are complete with this payload.

        Raises:
            ValueError: the payload is empty, cut within a sample, or not of the source's encoding.
        """
        pcm = self._decode(payload)
        if self._resampler.rate_in != self._resampler.rate_out:
            pcm = to_int16(self._resampler.process(to_float32(pcm)))
        waiting: NDArray[np.int16] = np.concatenate((self._waiting, pcm))
        whole = len(waiting) - len(waiting) % self._samples
        self._waiting = waiting[whole:]
        return [self._encode(waiting[start : start + self._samples]) for start in range(0, whole, self._samples)]
