"""Trims the silence before and after a clause that arrives in pieces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voicecodecs.pcm import trim_silence


class SilenceTrimmer:
    """Trims one clause. The model's padding is removed; ``keep_ms`` stays on both sides, so that soft onsets are kept
    whole."""

    def __init__(self, sample_rate: int, *, keep_ms: float = 10) -> None:
        """
        Args:
            sample_rate: Hz.
            keep_ms: silence left before the first and after the last audible 5 ms (above -50 dBov).
        """
        self._rate = sample_rate
        self._keep = int(keep_ms * sample_rate / 1000)
        self._quiet = np.zeros(0, np.float32)
        """Silence that may turn out to be a pause inside the clause, or its end."""
        self.trimmed: int | None = None
        """Number of samples dropped before the first returned one. None: all was silence so far."""
        self._seen = 0

    def push(self, pcm: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take the next piece, and return the samples that are certain to be heard.

        Args:
            pcm: shape ``(samples,)``, float32, [-1, 1].
        """
        start, end = trim_silence(pcm, self._rate)
        if start == end:
            self._quiet = np.concatenate((self._quiet, pcm))
            if self.trimmed is None:
                self._seen += len(pcm)
                self._quiet = self._quiet[max(0, len(self._quiet) - self._keep) :]
            return np.zeros(0, np.float32)
        if self.trimmed is None:
            lead = np.concatenate((self._quiet, pcm[:start]))
            kept = min(len(lead), self._keep)
            self.trimmed = self._seen + start - kept
            self._quiet = lead[len(lead) - kept :]
            pcm, end = pcm[start:], end - start
        out = np.concatenate((self._quiet, pcm[:end]))
        self._quiet = pcm[end:].copy()
        return out

    def finish(self) -> NDArray[np.float32]:
        """End the clause, and return the few milliseconds that are kept after its last sound."""
        if self.trimmed is None:
            return np.zeros(0, np.float32)
        tail, self._quiet = self._quiet[: self._keep], np.zeros(0, np.float32)
        return tail
