"""Changes the speed of speech and keeps its pitch: WSOLA, chunk by chunk, with a stated delay.

The output is made in steps of 12 ms. Each step fades from the continuation of the previous step to another place of the
input, at most 8 ms from the place that the speed gives. Of these places, the one is taken whose wave is most like the
continuation. So whole pitch periods are repeated or left out, and no seam is heard. Verhelst and Roelands, "An
overlap-add technique based on waveform similarity (WSOLA)", ICASSP 1993.

The same samples give the same bits, however they are cut into chunks: a step is made as soon as all its input has
arrived, and reads nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voicecodecs.pcm import require

_STEP_S = 0.012
_SEARCH_S = 0.008
"""Twice this is the longest pitch period that can be matched: 16 ms, 62 Hz."""
_NEARER = 1e-3
"""Penalty on likeness at the edge of the search, so that of several equal periods the nearest is taken, and in silence
the place that is due."""


class TimeStretcher:
    """One stream at ``speed`` times its tempo. Not thread-safe."""

    def __init__(self, sample_rate: int, speed: float) -> None:
        """
        Args:
            sample_rate: Hz.
            speed: 2 makes the sound half as long.

        Raises:
            ValueError: the sample rate or the speed is not positive.
        """
        if sample_rate <= 0 or not speed > 0:
            raise ValueError(f"sample rate and speed must be positive, got {sample_rate} Hz and {speed}")
        self.speed = speed
        self._step = round(_STEP_S * sample_rate)
        self._search = round(_SEARCH_S * sample_rate)
        self._rise = 0.5 - 0.5 * np.cos(np.pi * (np.arange(self._step, dtype=np.float32) + 0.5) / self._step)
        self._received = 0
        self._input = np.zeros(0, np.float32)
        self._restart()

    def process(self, pcm: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take the next chunk, of any length; return all output that later input cannot change.

        Args:
            pcm: shape ``(samples,)``, float32.

        Raises:
            ValueError: not one-dimensional float32.
        """
        require(pcm, np.float32)
        self._received += len(pcm)
        self._input = np.concatenate((self._input, pcm))
        steps = []
        while self._needed() <= self._received:
            steps.append(self._make_step())
        self._drop_input()
        return np.concatenate(steps) if steps else np.zeros(0, np.float32)

    def flush(self) -> NDArray[np.float32]:
        """End the stream: return the tail, computed as if silence followed, and start again.

        The number of all returned samples is ``round(samples given / speed)``.
        """
        missing = round(self._received / self.speed) - self._steps * self._step
        tail = np.zeros(0, np.float32)
        while len(tail) < missing:
            silence = max(0, self._needed() - self._first - len(self._input))
            self._input = np.concatenate((self._input, np.zeros(silence, np.float32)))
            tail = np.concatenate((tail, self._make_step()))
        self._restart()
        return tail[: max(0, missing)]

    def _restart(self) -> None:
        self._input = np.zeros(0, np.float32)
        self._first = 0
        """Position in the stream of the first kept sample."""
        self._received = 0
        self._steps = 0
        self._follows = 0
        """Position of the input that would follow the previous step."""

    def _needed(self) -> int:
        """Return the end of the input that the next step may read."""
        reads = max(self._lowest() + 2 * self._search, self._follows) + self._step
        return max(reads, self._due(self._steps + 1))

    def _due(self, steps: int) -> int:
        """Return the position that the speed gives after so many steps."""
        return round(steps * self._step * self.speed)

    def _lowest(self) -> int:
        """Return the first position of the next step's search."""
        return max(0, self._due(self._steps) - self._search)

    def _make_step(self) -> NDArray[np.float32]:
        first, step = self._first, self._step
        begin = self._follows - first
        expected = self._input[begin : begin + step]
        place, likeness = self._most_like(expected)
        other = self._input[place - first : place - first + step]
        rise = self._rise
        fall = 1 - rise
        # Where the waves differ (noise), their sum would be quieter in the middle of the fade.
        level = np.sqrt(rise * rise + fall * fall + np.float32(2 * max(likeness, 0.0)) * rise * fall)
        made = (fall * expected + rise * other) / level
        self._steps += 1
        self._follows = place + step
        return made.astype(np.float32, copy=False)

    def _most_like(self, expected: NDArray[np.float32]) -> tuple[int, float]:
        """Return the position within the search whose wave is most like this one, and their correlation (-1 to 1)."""
        lowest, search, step = self._lowest(), self._search, self._step
        around = self._input[lowest - self._first :][: 2 * search + step]
        energy = np.concatenate((np.zeros(1), np.cumsum(around.astype(np.float64) ** 2)))
        loudness = np.sqrt((energy[step:] - energy[:-step]).clip(0) * float(expected @ expected)) + 1e-9
        likeness = np.correlate(around, expected) / loudness
        distance = np.abs(np.arange(2 * search + 1) + (lowest - self._due(self._steps))) / search
        best = int(np.argmax(likeness - _NEARER * distance))
        return lowest + best, min(float(likeness[best]), 1.0)

    def _drop_input(self) -> None:
        oldest = min(self._follows, self._lowest()) - self._first
        if oldest > 0:
            self._input = self._input[oldest:]
            self._first += oldest
