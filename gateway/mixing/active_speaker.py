"""The loudest voice of a room. Pure: time is an argument, and the room's mixer feeds it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gateway.mixing.sources import TICK_S, Pcm

LEAST_LEVEL_DB = -45.0
"""Level from which on a leg counts as speaking, dB of full scale."""

_LOUDER_DB = 3.0
"""A later speaker must be louder than the present one by this much."""

_HOLD_S = 0.3
"""Time for which the loudest leg must sound before it is reported, so that a cough is not."""

EVERY_S = 1.0
"""Least time between two reports."""

_FORGET_S = 2.0
"""After this much silence the same leg is reported again."""

_SMOOTHING = 0.8
"""Share of the level of the 20 ms before that remains."""


class ActiveSpeaker:
    """Reports the leg that speaks, when it changes, at most once in ``EVERY_S``.

    Args:
        report: gets the leg's name.
    """

    hears_bots = False

    def __init__(self, report: Callable[[str], None]) -> None:
        self.speaking = ""
        """Name of the leg that was reported last. Empty: silence."""
        self._report = report
        self._power: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        """Mean square of the present 20 ms, 1 is full scale."""
        self._leading, self._leads_s = "", 0.0
        self._reported_at = float("-inf")
        self._spoke_at = 0.0

    def hear(self, name: str, pcm: Pcm) -> None:
        """Take 20 ms of a leg: int16, shape ``(samples,)``."""
        samples = pcm.astype(np.float32) / 32768.0
        self._heard[name] = float(np.dot(samples, samples)) / max(1, len(samples))

    def forget(self, name: str) -> None:
        """Forget a leg that has left or is muted."""
        self._power.pop(name, None)
        self._heard.pop(name, None)
        if self.speaking == name:
            self.speaking = ""

    def tick(self, now: float) -> None:
        """Decide about the 20 ms that were heard."""
        for name in self._power.keys() | self._heard.keys():
            power = self._power.get(name, 0.0) * _SMOOTHING + self._heard.get(name, 0.0) * (1 - _SMOOTHING)
            self._power[name] = power
        heard, self._heard = self._heard, {}
        least = 10 ** (LEAST_LEVEL_DB / 10)
        present = self._power.get(self.speaking, 0.0)
        if present >= least:
            self._spoke_at = now
        elif self.speaking and now - self._spoke_at >= _FORGET_S:
            self.speaking = ""
        loudest = max(self._power, key=lambda name: self._power[name], default="")
        needed = max(least, present * 10 ** (_LOUDER_DB / 10) if present >= least else 0.0)
        if loudest in ("", self.speaking) or self._power[loudest] < needed:
            self._leading = ""
            return
        if loudest != self._leading:
            self._leading, self._leads_s = loudest, 0.0
        if heard.get(loudest, 0.0) >= least:
            self._leads_s += TICK_S
        if self._leads_s >= _HOLD_S and now - self._reported_at >= EVERY_S:
            self.speaking, self._leading = loudest, ""
            self._reported_at = self._spoke_at = now
            self._report(loudest)
