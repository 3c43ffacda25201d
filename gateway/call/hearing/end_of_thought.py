"""How long has a caller to be silent until the utterance is over? Pure.

A fixed silence is too long after a question, and too short for somebody who looks for a word. A turn model hears in the
melody whether more will come. It is asked once whenever the caller falls silent: with more silence behind it, every
sound seems complete to Smart Turn v3.2 (measured). Its answer decides:

    answer                          the utterance is over after
    finished                        ``finished_s``: enough to tell the end from a pause between two words
    between the two, or none        ``usual_s``: as without a model
    in the middle of something      ``hesitating_s``: this bounds what a wrong answer costs
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """A route's silences in seconds, and the probabilities between which they are chosen."""

    usual_s: float
    finished_s: float
    hesitating_s: float
    finished_from: float
    hesitating_below: float

    def is_finished(self, probability: float | None) -> bool:
        """Whether the model says that the thought is complete. ``None``: it has not answered."""
        return probability is not None and probability >= self.finished_from

    def silence_s(self, probability: float | None) -> float:
        """Return the silence that ends the utterance, seconds."""
        if self.is_finished(probability):
            return min(self.finished_s, self.usual_s)
        if probability is not None and probability < self.hesitating_below:
            return max(self.hesitating_s, self.usual_s)
        return self.usual_s
