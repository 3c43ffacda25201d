"""A model on trial: selects its calls, and ends the trial after too many failures. Pure: no engine, no clock.

One model at a time may be on trial. A new call is assigned to it or not, for its whole duration. When the trial ends,
its calls continue with the active model at their next turn. Of several processes that serve one address, one leads the
trial and counts for all; the others follow it (``gateway/cluster/trial_sharing.py``).
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from gateway.seams.leg import CallInfo

log = logging.getLogger(__name__)

ACTIVE = "active"
"""The name under which turns of the active model are counted, for comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTerms:
    """The settings of a trial."""

    model: str
    percent: float
    """Share of the new calls, 0 to 100."""
    key: str = "call"
    """The value of a call that decides: calls with equal values have the same model. ``call``: each call for itself;
    ``from``, ``to``, ``route``, or the name of a custom parameter."""
    values: frozenset[str] = frozenset()
    """Values of the key whose calls are always on trial."""
    max_error_ratio: float = 0.05
    """Errors per turn above which the trial ends."""
    max_gap_ratio: float = 0.2
    """Gaps per turn above which the trial ends."""
    min_turns: int = 20
    """Fewest turns for the ratios, so that a single early error does not end a trial."""
    window_turns: int = 200
    """Number of latest turns that the ratios cover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCounts:
    """Counts of a trial over some time."""

    calls: int = 0
    turns: int = 0
    errors: int = 0
    gaps: int = 0

    def __add__(self, other: TrialCounts) -> TrialCounts:
        return TrialCounts(
            calls=self.calls + other.calls,
            turns=self.turns + other.turns,
            errors=self.errors + other.errors,
            gaps=self.gaps + other.gaps,
        )


class TrialMeter(Protocol):
    """The metrics of a trial. ``model``: its name, or ``ACTIVE``."""

    def model_turn(self, model: str) -> None: ...

    def model_failure(self, model: str, kind: str) -> None:
        """Count a failure. ``kind``: ``error`` or ``gap``."""
        ...

    def trial_returned(self, reason: str) -> None:
        """Count a trial that ended after failures. ``reason``: ``errors`` or ``gaps``."""
        ...


class Trial:
    """One model on trial.

    Args:
        trial_id: identifies the trial among those of the same model. Empty: a new one.
    """

    def __init__(self, terms: TrialTerms, trial_id: str = "") -> None:
        self.terms = terms
        self.id = trial_id or uuid4().hex
        self.calls = self.turns = 0
        self.ended = ""
        """The reason of the end: ``stopped``, ``errors`` or ``gaps``. Empty: the trial is running."""
        self._errors: deque[int] = deque()
        self._gaps: deque[int] = deque()
        """Indexes of the turns with an error or a gap, within the window only."""

    def takes(self, call: CallInfo) -> bool:
        """Return True if a new call belongs to the trial's share."""
        terms = self.terms
        match terms.key:
            case "call":
                value = call.call_id
            case "from":
                value = call.from_
            case "to":
                value = call.to
            case "route":
                value = call.route
            case parameter:
                value = call.custom_parameters.get(parameter, "")
        if value in terms.values:
            return True
        # The model's name is hashed too, so that another trial selects other callers.
        digest = hashlib.sha256(f"{terms.model}\0{value}".encode()).digest()
        return int.from_bytes(digest[:8]) / 2**64 < terms.percent / 100

    @property
    def error_ratio(self) -> float:
        """Errors per turn in the window."""
        return self._ratio(self._errors)

    @property
    def gap_ratio(self) -> float:
        """Gaps per turn in the window."""
        return self._ratio(self._gaps)

    def _ratio(self, turns: deque[int]) -> float:
        while turns and turns[0] <= self.turns - self.terms.window_turns:
            turns.popleft()
        return len(turns) / max(self.terms.min_turns, min(self.turns, self.terms.window_turns))

    def count(self, counts: TrialCounts) -> None:
        """Add counts, and end the trial if there are too many errors or gaps."""
        self.calls += counts.calls
        self.turns += counts.turns
        self._errors.extend([self.turns] * counts.errors)
        self._gaps.extend([self.turns] * counts.gaps)
        if (counts.errors or counts.gaps) and not self.ended:
            if self.error_ratio > self.terms.max_error_ratio:
                self.ended = "errors"
            elif self.gap_ratio > self.terms.max_gap_ratio:
                self.ended = "gaps"


class ModelTrials:
    """Begins, counts and ends the trials of a gateway. ``latest`` is the current trial, or the last one.

    Args:
        leads: False: another process begins and ends trials, and counts the calls of this one too.
    """

    def __init__(self, meter: TrialMeter | None = None, *, leads: bool = True) -> None:
        self._meter = meter
        self._leads = leads
        self.latest: Trial | None = None
        self.untold = TrialCounts()
        """Counts of the current trial here that the leading process does not have yet."""

    @property
    def current(self) -> Trial | None:
        return self.latest if self.latest is not None and not self.latest.ended else None

    def begin(self, terms: TrialTerms) -> None:
        """Put a model on trial. A running trial is stopped; its calls continue with the active model."""
        self.stop()
        self.latest = Trial(terms)

    def stop(self) -> None:
        """End the trial, if there is one."""
        if (trial := self.current) is not None:
            trial.ended = "stopped"

    def of_call(self, call: CallInfo) -> Trial | None:
        """Return the trial that a new call belongs to."""
        trial = self.current
        if trial is None or not trial.takes(call):
            return None
        self._count(trial, TrialCounts(calls=1))
        return trial

    def model_of_turn(self, trial: Trial | None) -> str:
        """Return the model for the next turn of a call of that trial, and count the turn. Empty: the active model."""
        on_trial = trial is not None and not trial.ended
        model = trial.terms.model if trial is not None and on_trial else ""
        if trial is not None and on_trial:
            self._count(trial, TrialCounts(turns=1))
        if self._meter is not None:
            self._meter.model_turn(model or ACTIVE)
        return model

    def error(self, model: str) -> None:
        """Count a failed turn of ``model``; the active model continues it."""
        self._failed(model, "error")

    def gap(self, model: str) -> None:
        """Count a gap in a turn that ``model`` spoke."""
        trial = self.latest
        self._failed(model if trial is not None and model == trial.terms.model else ACTIVE, "gap")

    def _failed(self, model: str, kind: str) -> None:
        if self._meter is not None:
            self._meter.model_failure(model, kind)
        trial = self.current
        if trial is not None and model == trial.terms.model:
            self._count(trial, TrialCounts(errors=1) if kind == "error" else TrialCounts(gaps=1))

    def _count(self, trial: Trial, counts: TrialCounts) -> None:
        if not self._leads:
            self.untold += counts
            return
        trial.count(counts)
        if trial.ended:
            log.warning(
                "model trial ended", extra={"model": trial.terms.model, "why": trial.ended, "turns": trial.turns}
            )
            if self._meter is not None:
                self._meter.trial_returned(trial.ended)

    # --- several processes -------------------------------------------------------------------------------------------

    def count_elsewhere(self, trial_id: str, counts: TrialCounts) -> None:
        """Count the report of another process, which follows this one."""
        trial = self.current
        if trial is not None and trial.id == trial_id:
            self._count(trial, counts)

    def follow(self, trial_id: str, terms: TrialTerms, ended: str) -> None:
        """Take the state of the leading process: its current or last trial."""
        if self.latest is None or self.latest.id != trial_id:
            self.stop()
            self.latest, self.untold = Trial(terms, trial_id), TrialCounts()
        self.latest.ended = ended
