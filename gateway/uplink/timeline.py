"""Alignment of both sides of a call on one time axis. Pure.

The bot's side is exact, since the playout knows when each frame is heard and which part was cut. The caller's side
arrives with the network's jitter, late and in bursts. Audio cannot arrive before it is spoken, so the earliest packets
show when the others were spoken: audio that would lie in the future moves the audio before it back, into the gap that
late packets seemed to leave. Audio stays changeable for some seconds, then it is final.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from voicecodecs.pcm import to_int16

CALLER, BOT = 0, 1
"""The sides; columns of the samples."""

KEPT_S = 4.0
"""Time in which audio can still be moved and muted, seconds. Longer than the peer's buffer, and than most networks
delay."""

_CONTIGUOUS_S = 0.01
"""Largest offset at which audio still counts as continuing the audio before it, seconds."""

_LATE_S = 0.1
"""Lateness from which a gap before the audio is assumed, seconds, until later packets show that the network delayed it.
Less is jitter, unless all packets of ``_WATCHED_S`` are late."""
_WATCHED_S = 1.0

Samples = NDArray[np.int16]


class Timeline:
    """Both sides of one call.

    Args:
        rate: sample rate of both sides, Hz.
        started: the monotonic second at which the time axis begins.
        out: receives final audio, shape ``(samples, 2)``, in order and without holes. Every method may raise what it
            raises.
    """

    def __init__(self, *, rate: int, started: float, out: Callable[[Samples], None]) -> None:
        self.rate = rate
        self._started = started
        self._out = out
        self._held = np.zeros((int(2 * KEPT_S * rate), 2), np.int16)
        self._origin = 0  # sample at the first row of ``_held``
        self._ends = [0, 0]
        self._gaps: deque[tuple[int, int]] = deque()
        """Apparent silences of the caller: first sample and sample after the last."""
        self._mute_until = [0, 0]
        self._pauses: deque[tuple[int, int | None]] = deque()
        self._contiguous = round(_CONTIGUOUS_S * rate)
        self._late = round(_LATE_S * rate)
        self._watched = 0
        self._least_late = self._late
        """Lateness of the earliest packet of the last ``_watched`` samples."""

    def _sample(self, at: float) -> int:
        return max(round((at - self._started) * self.rate), 0)

    def caller(self, pcm: NDArray[np.float32], *, at: float) -> None:
        """Add caller audio that was received at monotonic second ``at``."""
        start = max(self._sample(at) - len(pcm), self._origin)
        late = start - self._ends[CALLER]
        self._least_late = min(self._least_late, late)
        self._watched += len(pcm)
        if late >= self._late or not self._ends[CALLER]:
            self._leave_gap(late)
        elif late < -self._contiguous:
            early = self._move_back(-late)
            if early > 1.5 * self._contiguous:  # no gap is left: the caller's clock is faster than this one
                pcm = pcm[early:]
        elif self._watched >= _WATCHED_S * self.rate:
            if self._least_late > self._contiguous:  # the caller's clock is slower than this one
                self._leave_gap(self._least_late)
            self._watched, self._least_late = 0, self._late
        self._place(CALLER, pcm, self._ends[CALLER])

    def _leave_gap(self, samples: int) -> None:
        end = self._ends[CALLER]
        self._gaps.append((end, end + samples))
        self._ends[CALLER] = end + samples

    def bot(self, pcm: NDArray[np.float32], *, at: float) -> None:
        """Add bot audio that is heard from monotonic second ``at`` on, or after the audio added before."""
        end = self._ends[BOT]
        start = self._sample(at)
        self._place(BOT, pcm, start if start - end > self._contiguous else end)

    def unheard(self, seconds: float) -> None:
        """Remove the last ``seconds`` of the bot's side, which were cut before they were heard."""
        end = self._ends[BOT]
        begin = max(end - round(seconds * self.rate), self._origin)
        self._held[begin - self._origin : end - self._origin, BOT] = 0
        self._ends[BOT] = begin

    def mute(self, side: int, *, before_s: float, after_s: float, at: float | None = None) -> None:
        """Silence one side around monotonic second ``at``, or around the end of its audio so far."""
        end = self._ends[side]
        middle = end if at is None else max(self._sample(at), end)
        begin = max(middle - round(before_s * self.rate), self._origin)
        self._held[begin - self._origin : max(end, begin) - self._origin, side] = 0
        self._mute_until[side] = max(self._mute_until[side], middle + round(after_s * self.rate))

    def pause(self, at: float) -> None:
        """Silence both sides from monotonic second ``at`` on."""
        if not self._pauses or self._pauses[-1][1] is not None:
            self._pauses.append((self._sample(at), None))

    def resume(self, at: float) -> None:
        """End the pause at monotonic second ``at``."""
        if self._pauses and self._pauses[-1][1] is None:
            self._pauses[-1] = (self._pauses[-1][0], self._sample(at))

    def release(self, at: float) -> None:
        """Release everything before monotonic second ``at``, with silence where no audio arrived."""
        self._release(self._sample(at))

    def finish(self, at: float | None) -> None:
        """Release the rest, but nothing after monotonic second ``at``."""
        end = max(self._ends)
        self._release(end if at is None else min(end, self._sample(at)))

    def _place(self, side: int, pcm: NDArray[np.float32], start: int) -> None:
        samples = to_int16(pcm)
        samples[: max(self._mute_until[side] - start, 0)] = 0  # a key may still be pressed
        for first in range(0, len(samples), len(self._held) // 2):
            part = samples[first : first + len(self._held) // 2]
            end = start + first + len(part)
            if end - self._origin > len(self._held):
                self._release(end - len(self._held) // 2)
            self._held[end - len(part) - self._origin : end - self._origin, side] = part
            self._ends[side] = end

    def _move_back(self, samples: int) -> int:
        """Move the caller's latest audio back into the gaps before it. Return the samples by which it should move
        further."""
        held, ends = self._held[:, CALLER], self._ends
        while samples > 0 and self._gaps:
            begin, end = self._gaps.pop()
            by = min(samples, end - max(begin, self._origin))
            if by <= 0:  # that gap is final
                break
            if begin < end - by:
                self._gaps.append((begin, end - by))
            first, last = end - self._origin, ends[CALLER] - self._origin
            held[first - by : last - by] = held[first:last].copy()
            held[last - by : last] = 0
            ends[CALLER] -= by
            samples -= by
        return samples

    def _release(self, until: int) -> None:
        held = self._held
        while (count := min(until - self._origin, len(held))) > 0:
            given = held[:count].copy()
            held[: len(held) - count] = held[count:].copy()
            held[len(held) - count :] = 0
            first, self._origin = self._origin, self._origin + count
            self._ends = [max(end, self._origin) for end in self._ends]
            while self._gaps and self._gaps[0][1] <= self._origin:
                self._gaps.popleft()
            for begin, end in self._pauses:
                given[max(begin - first, 0) : None if end is None else max(end - first, 0)] = 0
            while self._pauses and (ended := self._pauses[0][1]) is not None and ended <= self._origin:
                self._pauses.popleft()
            self._out(given)
