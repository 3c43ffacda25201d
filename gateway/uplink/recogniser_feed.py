"""Selection of the audio for the recogniser: the caller's speech, starting shortly before its onset. The VAD misses
soft beginnings and confirms an onset only after a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from gateway.seams.recogniser import SAMPLE_RATE
from gateway.uplink.pieces import Pcm, Pieces

_LEAD_S = 0.25  # audio before an onset that is passed to the recogniser
_CONFIRMED_S = 0.3  # longest time until an onset is confirmed, after the longest hum


class RecogniserFeed:
    """The speech of one caller.

    Args:
        rate: sample rate of the caller's audio, Hz.
        max_hum_s: longest sound that may still be a hum, seconds.
    """

    def __init__(self, rate: int, *, max_hum_s: float) -> None:
        self._rate = rate
        self._kept_s = max_hum_s + _CONFIRMED_S + _LEAD_S
        self._speech: Pieces | None = None  # while the caller speaks
        self._before: deque[tuple[float, Pcm]] = deque()
        """The last audio without speech, with its arrival times."""

    def take(self, pcm: Pcm, now: float) -> Iterator[bytes]:
        """Take audio that arrived at monotonic second ``now``. Yield its speech: 20 ms of s16le each at
        ``gateway.seams.recogniser.SAMPLE_RATE``."""
        if self._speech is not None:
            yield from self._speech.cut(pcm)
            return
        self._before.append((now, pcm))
        while now - self._before[0][0] > self._kept_s:
            self._before.popleft()

    def begin(self, onset: float) -> Iterator[bytes]:
        """Start a confirmed speech that began at monotonic second ``onset``. Yield its audio up to now."""
        self._speech = Pieces(self._rate, SAMPLE_RATE)
        while self._before:
            now, pcm = self._before.popleft()
            if now >= onset - _LEAD_S:
                yield from self._speech.cut(pcm)

    def end(self) -> None:
        """End the speech."""
        self._speech = None
