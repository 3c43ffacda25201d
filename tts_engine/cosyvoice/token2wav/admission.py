"""Decides whether one more clause may begin, from measured batch times. Pure: it takes loads and times, and returns a
verdict.

A new turn can do two kinds of harm: speaking clauses run out of audio, or its own first audio is late. For the first,
the busy share of the device is computed. A speaking clause costs one chunk per second of audio, at the measured cost
per clause of a full batch; over its lifetime it also costs one first chunk and, unless it is cut, one last chunk.
Lifetime and share of cut clauses are averages of recent clauses. For the second, the time of the first chunks that are
already due is computed.

A bottleneck elsewhere (language model, host) does not show in batch times, but it makes chunks late. If one clause in
fifty, and at least three, had a late chunk within a second, the number of clauses is limited to six sevenths of those
that were open while the chunk was awaited. The limit then grows again, and is dropped if no more chunks are late: one
pause of the host says little about the capacity.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

from tts_engine.config import CosyVoiceConfig

Work = Literal["first", "chunk", "whole"]
"""Content of a batch: first chunks that are shorter than others, or a ``scheduler.Shape``."""

_SMOOTHING = 0.2
_LONGEST_RETRY_S = 10.0
_SHORTEST_RETRY_S = 0.1
_PACE_S = 5.0
"""Departures are counted over so many seconds. With fewer, a pause between a few answers would look like the pace."""
_LENGTH_S = 5.0
"""Assumed length of a clause in seconds, until one has ended."""
_LENGTH_SMOOTHING = 0.02
"""Weight of a new clause in the averages of lengths and of cuts."""
_LATE_SHARE = 0.02
_LATE_LEAST = 3
"""Late chunks that a cut needs, however few clauses there are: of four, one is a quarter, and may be bad luck."""
_DEPARTURES = 4096
_AHEAD = 0.75
_SLOWDOWN_SMOOTHING = 0.05
_CUT = 6 / 7
_CUT_PERIOD_S = 1.0
_REGROWTH_PER_S = 0.05
_FORGOTTEN_S = 10.0
"""Time after the last cut at which the limit ends, seconds. If host or language model carried no more, the limit would
have grown beyond that within 4 s, and sound would have been late again."""
LATE_S = 0.1
"""A chunk that comes with less sound in hand than this is late. With half of that, callers hear gaps before the door
closes."""
LATE_SECOND_S = 0.02
"""The same for a second chunk behind a short first one. A burst's come with 45 ms by choice (``FirstChunk``), and tell
nothing of what the device carries behind the burst."""


@dataclass(frozen=True, slots=True)
class ClauseLoad:
    """Numbers of the engine's clauses, by their state."""

    speaking: int
    """Clauses that have made sound and have not finished."""
    silent: int
    """Clauses that were let in and have made no sound yet."""
    waiting: int = 0
    """Later clauses of speaking turns that wait for a place."""


@dataclass(frozen=True, slots=True)
class AdmissionVerdict:
    """``admitted``, or ``retry_after_s`` with the reason."""

    admitted: bool
    retry_after_s: float = 0.0
    reason: str = ""


_YES = AdmissionVerdict(True)


class Admission:
    """Measures batches and departures, and judges whether a clause may begin.

    ``observe`` may be called in another thread than the other methods, because it only replaces single values.
    """

    def __init__(self, settings: CosyVoiceConfig) -> None:
        self._settings = settings
        self._warm: dict[Work, dict[int, float]] = {}
        self._slowdown = 1.0
        self._costs: dict[tuple[Work, int], float] = {}
        self._ceiling, self._cut_at = math.inf, -math.inf
        self._late: deque[float] = deque(maxlen=_DEPARTURES)
        self._length_s = _LENGTH_S
        self._ended_share = 1.0
        """Share of recent clauses that had a last chunk."""
        self._departures: deque[float] = deque(maxlen=_DEPARTURES)

    # -- measured

    def calibrate(self, work: Work, rows: int, seconds: float) -> None:
        """Note that a batch of ``rows`` clauses takes ``seconds`` on the idle device; the last word counts. Called
        before the first call."""
        self._warm.setdefault(work, {})[rows] = seconds

    def observe(self, work: Work, rows: int, seconds: float) -> None:
        """Note that a batch of ``rows`` clauses took ``seconds``."""
        if warm := self._warm.get(work):
            if work == "first":  # of several lengths, of which one was calibrated
                return
            size = min((size for size in warm if size >= rows), default=max(warm))
            self._slowdown += _SLOWDOWN_SMOOTHING * (seconds / warm[size] - self._slowdown)
            return
        size = 1 << (rows - 1).bit_length()
        # Last chunks make the larger batches the shorter the clauses are, so a size would stand for some clauses only.
        key = (work, min(size, 2) if work == "whole" else size)
        cost = seconds / rows
        before = self._costs.get(key, cost)
        self._costs[key] = before + _SMOOTHING * (cost - before)

    def late(self, clauses: int, now: float) -> None:
        """Note that a chunk of a speaking clause was late, while up to ``clauses`` were open since it was asked
        for."""
        self._late.append(now)
        while self._late[0] <= now - _CUT_PERIOD_S:
            self._late.popleft()
        if (
            len(self._late) < max(_LATE_SHARE * clauses, min(_LATE_LEAST, clauses))
            or now - self._cut_at < _CUT_PERIOD_S
            or self._settings.busy_share > 1
        ):
            return
        self._ceiling, self._cut_at = max(min(clauses, self._ceiling_at(now)) * _CUT, 1.0), now

    def _ceiling_at(self, now: float) -> float:
        since_s = now - self._cut_at
        return self._ceiling * (1 + _REGROWTH_PER_S * since_s) if since_s < _FORGOTTEN_S else math.inf

    def departed(self, now: float, sound_s: float, *, cut: bool = False) -> None:
        """Note that a clause is gone at monotonic second ``now``, after ``sound_s`` seconds of sound. ``cut``: before
        its last chunk was made."""
        self._departures.append(now)
        self._length_s += _LENGTH_SMOOTHING * (max(sound_s, 1.0) - self._length_s)
        self._ended_share += _LENGTH_SMOOTHING * ((not cut) - self._ended_share)

    def cost_s(self, work: Work) -> float:
        """Return the device time in seconds of one clause's chunk, in the batch size where it is lowest.

        0: no batch has been measured. Calibrated work costs its time on the idle device, times the factor by which
        recent batches were slower, because of long histories and other work on the device.
        """
        if warm := self._warm.get(work):
            return min(seconds / rows for rows, seconds in warm.items()) * self._slowdown
        return min((cost for (seen, _), cost in list(self._costs.items()) if seen == work), default=0.0)

    def pace(self, now: float) -> float:
        """Return how many clauses have recently ended per second. While the engine is full, as many begin."""
        return sum(at > now - _PACE_S for at in self._departures) / _PACE_S

    def share(self, clauses: int) -> float:
        """Return the share of the device that ``clauses`` speaking clauses take, in seconds of work per second.

        The work is one chunk per clause for each second of sound, and, for each mean length of recent clauses, one
        first chunk and, if it is not cut, one last chunk. With ``finalize: upstream`` that costs a whole pass.
        """
        last_s = self._ended_share * self.cost_s("whole")
        return clauses * (self.cost_s("chunk") + (self._first_s() + last_s) / self._length_s)

    def wait_s(self, load: ClauseLoad) -> float:
        """Return the expected wait in seconds for the first chunk of a clause that begins now.

        It waits for first chunks that are due, while speaking clauses take their share of the device.
        """
        return (load.silent + 1) * self._first_s() / max(1.0 - load.speaking * self.cost_s("chunk"), 0.05)

    def _first_s(self) -> float:
        return self.cost_s("first") or self.cost_s("chunk")

    # -- verdicts

    def judge(self, load: ClauseLoad, *, now: float, goes_on: bool = False, ahead: bool = False) -> AdmissionVerdict:
        """Judge whether one more clause may begin.

        Args:
            goes_on: does the clause's turn speak already? It is not refused while there is a place, since the caller
                would hear a gap.
            ahead: True if no one waits for the clause's sound yet.
        """
        settings = self._settings
        clauses = load.speaking + load.silent
        if clauses + (0 if goes_on else load.waiting) >= settings.max_clauses:
            return self._no(1, now, f"{clauses} clauses are being spoken, as many as there are places")
        if goes_on or not clauses:
            return _YES  # even a device that is too slow for a single call serves one
        if clauses + 1 > self._ceiling_at(now):
            return self._no(1, now, f"sound came late at about so many clauses: {clauses}")
        limit = settings.busy_share * (_AHEAD if ahead else 1.0)
        share = self.share(clauses + 1)
        if share > limit:
            too_many = math.ceil((share - limit) / self.share(1))
            return self._no(too_many, now, f"{clauses} clauses take what the device makes in real time")
        if (wait_s := self.wait_s(load)) > settings.first_chunk_s:
            retry_s = min(max(wait_s - settings.first_chunk_s, _SHORTEST_RETRY_S), _LONGEST_RETRY_S)
            return AdmissionVerdict(
                False, retry_s, f"{load.silent} turns wait for their first sound, {wait_s:.1f} s of work"
            )
        return _YES

    def _no(self, too_many: int, now: float, reason: str) -> AdmissionVerdict:
        """Refuse, with the time after which ``too_many`` clauses will have ended at the recent pace."""
        pace = self.pace(now)
        retry_s = too_many / pace if pace else 1.0
        return AdmissionVerdict(False, min(max(retry_s, _SHORTEST_RETRY_S), _LONGEST_RETRY_S), reason)
