"""What the recogniser hears of a caller: speech, from shortly before its onset on, because the VAD misses soft
beginnings and confirms an onset only after a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from gateway.seams.recogniser import SAMPLE_RATE
from gateway.uplink.pieces import Pcm, Pieces

_LEAD_S = 0.25  # sound before an onset that the recogniser gets
_SURE_S = 0.3  # an onset is confirmed within this time, after the longest hum


class RecogniserFeed:
    """The speech of one caller.

    Args:
        rate: sample rate of the caller's audio, Hz.
        max_hum_s: so long may a sound last before it counts as speech.
    """

    def __init__(self, rate: int, *, max_hum_s: float) -> None:
        self._rate = rate
        self._kept_s = max_hum_s + _SURE_S + _LEAD_S
        self._speech: Pieces | None = None  # while the caller speaks
        self._before: deque[tuple[float, Pcm]] = deque()
        """The last audio in which nobody spoke, with the times at which it came."""

    def take(self, pcm: Pcm, now: float) -> Iterator[bytes]:
        """Take audio that came at monotonic second ``now``. Yield what is speech: 20 ms of s16le each at
        ``gateway.seams.recogniser.SAMPLE_RATE``."""
        if self._speech is not None:
            yield from self._speech.cut(pcm)
            return
        self._before.append((now, pcm))
        while now - self._before[0][0] > self._kept_s:
            self._before.popleft()

    def begin(self, onset: float) -> Iterator[bytes]:
        """Speech is confirmed that began at monotonic second ``onset``. Yield what has come of it."""
        self._speech = Pieces(self._rate, SAMPLE_RATE)
        while self._before:
            now, pcm = self._before.popleft()
            if now >= onset - _LEAD_S:
                yield from self._speech.cut(pcm)

    def end(self) -> None:
        """The speech is over."""
        self._speech = None
