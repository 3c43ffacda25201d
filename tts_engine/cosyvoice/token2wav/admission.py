"""Who is let in, by what the device was measured to manage. Pure: loads and times come in, a verdict goes out.

Two things can go wrong when one more turn begins: those who speak run dry, or its own first sound comes late. The first
is watched as a share of the device: a clause that speaks needs one chunk for every second of sound, at the measured
cost of a clause in a full batch, and a first and a last one in its lifetime, as long as those of late. The second is
the wait behind the first chunks that are due already.

Where something else is short (the language model, the host), the measured steps do not show it, but late chunks do:
when one clause of fifty had one within a second, a seventh is taken off the number of clauses at which it happened,
which then grows back.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from tts_engine.config import CosyVoiceConfig
from tts_engine.cosyvoice.token2wav.scheduler import Shape

_SMOOTHING = 0.2
_LONGEST_RETRY_S = 10.0
_SHORTEST_RETRY_S = 0.1
_PACE_S = 5.0
"""Departures are counted over so long: shorter makes a pause of a few answers look like the pace."""
_LENGTH_S = 5.0
"""Of a clause, before any was heard."""
_LENGTH_SMOOTHING = 0.02
_LATE_SHARE = 0.02
_DEPARTURES = 4096
_AHEAD = 0.75
_SLOWDOWN_SMOOTHING = 0.05
_CUT = 6 / 7
_CUT_PERIOD_S = 1.0
_REGROWTH_PER_S = 0.05
LATE_S = 0.05
"""A chunk that comes with less sound in hand than this is late."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is going on in the engine."""

    speaking: int
    """Clauses that have made sound and are not finished."""
    silent: int
    """Clauses that are let in and have made no sound yet."""
    waiting: int = 0
    """Later clauses of turns that speak, which wait for a place."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``admitted``, or ``retry_after_s`` with the reason."""

    admitted: bool
    retry_after_s: float = 0.0
    reason: str = ""


_YES = Verdict(True)


class Admission:
    """Measures batches and departures; judges who may begin.

    ``observe`` may be called in another thread than the rest: it replaces single values.
    """

    def __init__(self, settings: CosyVoiceConfig) -> None:
        self._settings = settings
        self._warm: dict[Shape, dict[int, float]] = {}
        self._slowdown = 1.0
        self._costs: dict[tuple[Shape, int], float] = {}
        self._ceiling, self._cut_at = math.inf, -math.inf
        self._late: deque[float] = deque(maxlen=_DEPARTURES)
        self._length_s = _LENGTH_S
        self._departures: deque[float] = deque(maxlen=_DEPARTURES)

    # -- measured

    def calibrate(self, shape: Shape, rows: int, seconds: float) -> None:
        """A batch of so many clauses takes so long on the idle device: known before the first caller."""
        self._warm.setdefault(shape, {})[rows] = seconds

    def observe(self, shape: Shape, rows: int, seconds: float) -> None:
        """A batch of so many clauses took so long."""
        if warm := self._warm.get(shape):
            size = min((size for size in warm if size >= rows), default=max(warm))
            self._slowdown += _SLOWDOWN_SMOOTHING * (seconds / warm[size] - self._slowdown)
            return
        key = (shape, 1 << (rows - 1).bit_length())
        cost = seconds / rows
        before = self._costs.get(key, cost)
        self._costs[key] = before + _SMOOTHING * (cost - before)

    def late(self, clauses: int, now: float) -> None:
        """A chunk of a clause that speaks came with less than ``LATE_S`` in hand while so many clauses were alive."""
        self._late.append(now)
        while self._late[0] <= now - _CUT_PERIOD_S:
            self._late.popleft()
        if (
            len(self._late) < _LATE_SHARE * clauses
            or now - self._cut_at < _CUT_PERIOD_S
            or self._settings.busy_share > 1
        ):
            return
        self._ceiling, self._cut_at = max(min(clauses, self._ceiling_at(now)) * _CUT, 1.0), now

    def _ceiling_at(self, now: float) -> float:
        return self._ceiling * (1 + _REGROWTH_PER_S * (now - self._cut_at)) if self._cut_at > -math.inf else math.inf

    def departed(self, now: float, sound_s: float) -> None:
        """A clause has ended at monotonic second ``now``, after so many seconds of sound."""
        self._departures.append(now)
        self._length_s += _LENGTH_SMOOTHING * (max(sound_s, 1.0) - self._length_s)

    def cost_s(self, shape: Shape) -> float:
        """Seconds of the device for a chunk of one clause, in the batch that serves it best; 0 before any was seen.

        A calibrated shape costs what it costs on the idle device, times how much slower batches have been of late: with
        a full history, beside others on the same device.
        """
        if warm := self._warm.get(shape):
            return min(seconds / rows for rows, seconds in warm.items()) * self._slowdown
        return min((cost for (seen, _), cost in list(self._costs.items()) if seen == shape), default=0.0)

    def pace(self, now: float) -> float:
        """Clauses that leave in a second, of late; as many begin while the engine is full."""
        return sum(at > now - _PACE_S for at in self._departures) / _PACE_S

    def share(self, clauses: int) -> float:
        """Share of the device that so many clauses take: each makes a chunk for every second of sound, and as often as
        clauses last it begins within a chunk and ends by way of everything (where last chunks are made so)."""
        chunk_s = self.cost_s("chunk")
        return clauses * (chunk_s + (chunk_s + self.cost_s("whole")) / self._length_s)

    def wait_s(self, load: Load) -> float:
        """Expected wait for the first chunk of a clause that begins now: behind those that are due, beside those that
        speak."""
        chunk_s = self.cost_s("chunk")
        return (load.silent + 1) * chunk_s / max(1.0 - load.speaking * chunk_s, 0.05)

    # -- verdicts

    def judge(self, load: Load, *, now: float, goes_on: bool = False, ahead: bool = False) -> Verdict:
        """Whether one more clause may begin.

        Args:
            goes_on: its turn speaks already: never refused while there is a place, for that would be a gap.
            ahead: nobody waits for its sound yet.
        """
        settings = self._settings
        clauses = load.speaking + load.silent
        if clauses + (0 if goes_on else load.waiting) >= settings.max_clauses:
            return self._no(1, now, f"{clauses} clauses are being spoken, as many as there are places")
        if goes_on or not clauses:
            return _YES  # a device that is too slow for a single call still serves one
        if clauses + 1 > self._ceiling_at(now):
            return self._no(1, now, f"sound came late at about so many clauses: {clauses}")
        limit = settings.busy_share * (_AHEAD if ahead else 1.0)
        share = self.share(clauses + 1)
        if share > limit:
            too_many = math.ceil((share - limit) / self.share(1))
            return self._no(too_many, now, f"{clauses} clauses take what the device makes in real time")
        if (wait_s := self.wait_s(load)) > settings.first_chunk_s:
            retry_s = min(max(wait_s - settings.first_chunk_s, _SHORTEST_RETRY_S), _LONGEST_RETRY_S)
            return Verdict(False, retry_s, f"{load.silent} turns wait for their first sound, {wait_s:.1f} s of work")
        return _YES

    def _no(self, too_many: int, now: float, reason: str) -> Verdict:
        """Try again when so many will have left, at the pace of late."""
        pace = self.pace(now)
        retry_s = too_many / pace if pace else 1.0
        return Verdict(False, min(max(retry_s, _SHORTEST_RETRY_S), _LONGEST_RETRY_S), reason)
