"""Detection of touch tones on one side of a call, to remove them from recordings and from the audio for listeners."""

from __future__ import annotations

import numpy as np

from gateway.uplink.pieces import Pcm
from voicecodecs.dtmf import WaryDetector

MARGIN_S = 0.06
"""Silence before and after a touch tone that was found in the audio, seconds."""
_SEARCHED_S = 0.1  # audio searched at a time: a quarter of the cost of 20 ms at a time


class HiddenKeys:
    """Touch tone detector of one side; ``rate`` is its sample rate, Hz."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._detector: WaryDetector | None = None
        self._waiting: list[Pcm] = []
        self._waiting_s = 0.0

    def found(self, pcm: Pcm, *, at_once: bool) -> float:
        """Take the next audio. Return the number of last seconds that may contain a tone, 0 for none."""
        if self._detector is None:  # most calls are neither recorded nor listened to
            self._detector = WaryDetector(self._rate)
        detector = self._detector
        self._waiting.append(pcm)
        self._waiting_s += len(pcm) / self._rate
        if self._waiting_s < _SEARCHED_S and not at_once:
            return 0.0
        searched_s, was_sounding = self._waiting_s, detector.sounding
        digits = detector.process(np.concatenate(self._waiting))
        self._waiting.clear()
        self._waiting_s = 0.0
        return searched_s + MARGIN_S if digits or was_sounding or detector.sounding else 0.0
