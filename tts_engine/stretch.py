"""Speaks faster or slower than a voice model can: stretches the sound of a clause, and moves its words along."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import numpy as np

from tts_engine.synthesizer import PcmChunk
from voicecodecs.time_stretch import TimeStretcher


class ClauseStretch:
    """The stretching of one clause. Not thread-safe."""

    def __init__(self, sample_rate: int, speed: float) -> None:
        """
        Args:
            sample_rate: Hz of the clause's sound.
            speed: 2 makes the sound half as long.
        """
        self.speed = speed
        self._stretcher = TimeStretcher(sample_rate, speed)

    @classmethod
    def beyond(cls, own: float, speed: float, sample_rate: int) -> Self | None:
        """Return the stretch that is still needed if a model speaks at speed ``own`` instead of ``speed``. None: no
        stretch."""
        return None if own == speed else cls(sample_rate, speed / own)

    def chunk(self, chunk: PcmChunk, *, last: bool) -> PcmChunk:
        """Return the stretched sound that is final, with the words of the chunk. This takes 0.4 % of the sound's
        duration."""
        pcm = self._stretcher.process(chunk.pcm)
        if last:
            pcm = np.concatenate((pcm, self._stretcher.flush()))
        speed = self.speed
        words = [
            word._replace(first_sample=round(word.first_sample / speed), end_sample=round(word.end_sample / speed))
            for word in chunk.words
        ]
        return replace(chunk, pcm=pcm, words=words)
