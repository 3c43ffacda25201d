"""Decides whether one more clause may begin, and how long its first chunk is. Pure: it takes loads and times.

A device has two resources: memory, in cache blocks of one second of sound, and time. A clause may begin if three tests
hold with it, so that every clause that has begun plays without gaps:

1. *Memory*. The blocks that open clauses hold on average, ``E[L^2] / 2 E[L]`` each for clauses of length ``L``, fit
   into the cache, and the free blocks are enough for a second of sound of each. A speaking clause is never evicted
   (``BlockManager``), so a clause without a block would stand still.
2. *Long run*. The work that is due within ``_TURN_S`` fits into that time. This is an average over about what a turn
   has left to say. Sound in hand leaves time to others, so for some seconds more clauses may be open than the device
   speaks in real time. Their sound in hand then falls, and each new clause is judged with what is left of it.
3. *Demand*. For each horizon ``t``, the work that is due within ``t`` and the longest batch that cannot be interrupted
   take at most ``t``. Work is due when its listener has ``_RESERVE_S`` of sound left, which absorbs a bad moment. The
   scheduler takes the work that is due first, and for that order this test is sufficient (Baruah, Rosier and Howell,
   1990: processor demand).

The same demand test, without the reserve, chooses the length of a first chunk: the shortest whose sound outlasts the
work that is due before the second chunk.

Work costs what batches of the size of a full device take, with the steps of the language model beside them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Work = Literal["first", "chunk", "whole"]
"""Content of a batch: first chunks that are shorter than others, or see ``scheduler.Shape``."""
Resource = Literal["places", "memory", "time", "demand"]
"""The resource that is short: places for clauses, or one of the three tests."""

_ENDS: tuple[Work, Work] = ("first", "whole")
_TURN_S = 7.0
"""Time over which the long run is an average, seconds. A turn that speaks still does so for about this time."""
_RESERVE_S = 0.5
"""Sound that a listener shall have left when more of it comes, seconds, before another clause may begin."""
_CALM_SHARE = 0.7
"""Share of the device's time for clauses that no caller waits for yet. Beyond it first chunks are long."""
_BESIDE = 1.3
"""Factor by which a batch is expected to be slower than on the idle device, until batches have run."""
_BATCH_WEIGHT = 0.1
"""Weight of a new batch in the average of its size."""
_CLAUSE_WEIGHT = 0.02
"""Weight of a new clause in the averages of lengths. Lengths differ more than batches do."""
_FULL_ROWS = 16
"""Size of the batches of a full device, clauses."""
_HORIZONS = (0.5, 1.0, 2.0, 3.0)
"""Horizons of the demand test, as multiples of ``first_chunk_s``."""
_NO_LIMIT_S = 1000.0
"""With a ``first_chunk_s`` of this length, time is not tested."""
_FIRST_SOUND_S = 0.7
"""Sound of the longest first chunk, seconds."""
_MARGIN_S = 0.08
"""Sound that a caller shall have left when the second chunk comes, seconds. The language model draws for it first."""
_LENGTH_S = 5.0
"""Assumed length of a clause in seconds, until one has ended."""
_PACE_S = 5.0
"""Departures are counted over this time, seconds."""
_RETRY_S = (0.1, 10.0)
"""Shortest and longest time after which a refused turn shall ask again, seconds."""


@dataclass(frozen=True, slots=True)
class ClauseLoad:
    """The clauses of an engine and the memory that they leave."""

    in_hand_s: Sequence[float]
    """Seconds of sound in hand of each clause that has made sound and has not finished."""
    silent: int
    """Clauses that were let in and have made no sound yet."""
    free_blocks: int
    """Free cache blocks without those that are kept for the oldest clause."""
    waiting: int = 0
    """Later clauses of speaking turns that wait for a place."""

    @property
    def clauses(self) -> int:
        """Number of open clauses."""
        return len(self.in_hand_s) + self.silent


@dataclass(frozen=True, slots=True)
class AdmissionVerdict:
    """An answer to a clause that asks for a place. ``short`` is the resource that is short. None: it may begin."""

    short: Resource | None = None
    retry_after_s: float = 0.0
    reason: str = ""


class Admission:
    """Measures batches and clauses, and judges whether a clause may begin.

    ``observe`` may be called in another thread than the other methods, because it only replaces single values.
    """

    def __init__(self, *, clauses: int, blocks: int, first_chunk_s: float) -> None:
        """
        Args:
            clauses: number of places. blocks: number of cache blocks that clauses can share.
            first_chunk_s: see ``CosyVoiceConfig``.
        """
        self._places, self._blocks, self._first_chunk_s = clauses, blocks, first_chunk_s
        self._batch_s: dict[tuple[Work, int], float] = {}
        """Seconds of a batch by work and size."""
        self._recent: dict[Work, tuple[float, float]] = {}
        """Averages of the seconds and of the clauses of recent batches."""
        self._sizes: set[int] = set()
        """Sizes of the calibrated batches, clauses."""
        self._length_s, self._square_s2 = _LENGTH_S, 2 * _LENGTH_S**2
        """Averages of the lengths of clauses and of their squares."""
        self._ended_share = 1.0
        """Share of clauses that had a last chunk, because they were not cut."""
        self._departures: deque[float] = deque(maxlen=4096)

    # -- measured

    def calibrate(self, work: Work, rows: int, seconds: float) -> None:
        """Note that a batch of ``rows`` clauses takes ``seconds`` on the idle device; the last call counts. Called
        before the first call."""
        self._batch_s[work, rows] = seconds * _BESIDE
        self._sizes.add(rows)

    def observe(self, work: Work, rows: int, seconds: float) -> None:
        """Note that a batch of ``rows`` clauses took ``seconds``."""
        size = min((size for size in self._sizes if size >= rows), default=1 << (rows - 1).bit_length())
        before = self._batch_s.get((work, size), seconds)
        self._batch_s[work, size] = before + _BATCH_WEIGHT * (seconds - before)
        seconds_before, rows_before = self._recent.get(work, (seconds, float(rows)))
        self._recent[work] = (
            seconds_before + _BATCH_WEIGHT * (seconds - seconds_before),
            rows_before + _BATCH_WEIGHT * (rows - rows_before),
        )

    def departed(self, now: float, sound_s: float, *, cut: bool = False) -> None:
        """Note that a clause ended at monotonic second ``now``, after ``sound_s`` seconds of sound. ``cut``: before
        its last chunk was made."""
        self._departures.append(now)
        length_s = max(sound_s, 1.0)
        self._length_s += _CLAUSE_WEIGHT * (length_s - self._length_s)
        self._square_s2 += _CLAUSE_WEIGHT * (length_s**2 - self._square_s2)
        self._ended_share += _CLAUSE_WEIGHT * ((not cut) - self._ended_share)

    # -- costs

    def chunks_s(self, work: Work, clauses: int) -> float:
        """Return the device time in seconds of a chunk for each of so many clauses, together. 0: not known."""
        sizes = {size: seconds for (seen, size), seconds in list(self._batch_s.items()) if seen == work}
        if not sizes:
            return self.chunks_s("chunk", clauses) if work == "first" else 0.0
        size = min((size for size in sizes if size >= clauses), default=max(sizes))
        return sizes[size] * max(clauses / size, 1.0)

    @property
    def longest_batch_s(self) -> float:
        """Seconds of the longest batch of chunks, which cannot be interrupted. 0: not known."""
        return max((s for (work, _), s in list(self._batch_s.items()) if work != "whole"), default=0.0)

    @property
    def sound_s(self) -> float:
        """Device time for a second of a clause's sound, with its share of first and last chunk, seconds."""
        first_s, whole_s = (seconds / rows for seconds, rows in (self._recent.get(w, (0.0, 1.0)) for w in _ENDS))
        return (
            self.chunks_s("chunk", _FULL_ROWS) / _FULL_ROWS + (first_s + self._ended_share * whole_s) / self._length_s
        )

    @property
    def held_blocks(self) -> float:
        """Blocks that an open clause holds on average, at a random moment of its life. A block is a second of sound."""
        return 0.5 + self._square_s2 / (2 * self._length_s)

    def due_s(
        self, load: ClauseLoad, within_s: float, *, first_sound_s: float = _FIRST_SOUND_S, reserve_s: float = 0.0
    ) -> float:
        """Return the device time in seconds of the work that is due within ``within_s``, with the longest batch that
        cannot be interrupted.

        First chunks are due now. After a clause's first chunk its listener has ``first_sound_s`` of sound. The next
        chunk of a clause that speaks is due when its listener has ``reserve_s`` left.
        """
        chunks = sum(max(math.ceil(within_s - max(s - reserve_s, 0.0)), 0) for s in load.in_hand_s)
        chunks += load.silent * max(math.ceil(within_s - first_sound_s), 0)
        return self.chunks_s("first", load.silent) + chunks * self.sound_s + self.longest_batch_s

    # -- verdicts

    def judge(self, load: ClauseLoad, *, now: float, goes_on: bool = False, ahead: bool = False) -> AdmissionVerdict:
        """Judge whether one more clause may begin.

        Args:
            goes_on: True if the clause's turn speaks already. It is not refused while there are a place and a block,
                since the caller would hear a gap.
            ahead: True if no caller waits for the clause's sound yet.
        """
        clauses = load.clauses
        after = ClauseLoad(load.in_hand_s, load.silent + 1, load.free_blocks)
        if clauses + (0 if goes_on else load.waiting) >= self._places:
            return self._no("places", 1, now, f"{clauses} clauses are being spoken, as many as there are places")
        if not clauses:
            return AdmissionVerdict()  # even a device that is too slow for a single call serves one
        if goes_on:
            if load.free_blocks < 1:
                return self._no("memory", 1, now, f"{clauses} clauses hold all cache blocks")
            return AdmissionVerdict()
        too_many = max(clauses + 1 - self._blocks / self.held_blocks, clauses + 1 - load.free_blocks)
        if too_many > 0:
            return self._no("memory", too_many, now, f"{clauses} clauses fill the cache")
        if self._first_chunk_s >= _NO_LIMIT_S:
            return AdmissionVerdict()
        limit_s = _TURN_S * (_CALM_SHARE if ahead else 1.0)
        if (late_s := self.due_s(after, _TURN_S) - limit_s) > 0:
            too_many = late_s / (_TURN_S * self.sound_s)
            return self._no("time", too_many, now, f"{clauses} clauses take what the device makes in real time")
        for horizon in _HORIZONS:
            within_s = horizon * self._first_chunk_s
            if (late_s := self.due_s(after, within_s, reserve_s=_RESERVE_S) - within_s) > 0:
                why = f"{clauses} clauses need {within_s + late_s:.1f} s of work within {within_s:g} s"
                return AdmissionVerdict("demand", min(max(late_s, _RETRY_S[0]), _RETRY_S[1]), why)
        return AdmissionVerdict()

    def first_chunk(self, load: ClauseLoad, sounds_s: Sequence[float], *, slack_s: float) -> int:
        """Return the index of the first chunk to make.

        Args:
            load: the other clauses and this one, which is silent.
            sounds_s: seconds of sound of each prepared first chunk, shortest first.
            slack_s: seconds of sound that the caller has in hand. With much of it, no one waits for this chunk.
        """
        longest = len(sounds_s) - 1
        if slack_s > sounds_s[longest] or load.clauses * self.sound_s > _CALM_SHARE:
            return longest  # fewer chunks are less work
        wait_s, second_s = (self.chunks_s(work, load.silent) for work in ("first", "chunk"))
        for place, sound_s in enumerate(sounds_s):
            within_s = wait_s + slack_s + sound_s
            if self.due_s(load, within_s, first_sound_s=within_s) + second_s + _MARGIN_S <= within_s:
                return place
        return longest

    def _no(self, short: Resource, too_many: float, now: float, reason: str) -> AdmissionVerdict:
        """Refuse, with the time after which ``too_many`` clauses will have ended at the recent pace."""
        pace = sum(at > now - _PACE_S for at in self._departures) / _PACE_S
        retry_s = math.ceil(too_many - 1e-6) / pace if pace else 1.0
        return AdmissionVerdict(short, min(max(retry_s, _RETRY_S[0]), _RETRY_S[1]), reason)
