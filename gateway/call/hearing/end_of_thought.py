"""The silence that ends the caller's utterance. Pure.

One fixed silence is too long after a question and too short for a caller who searches for a word. A turn model
estimates from the melody of the speech whether more will come. It is asked once when the caller falls silent, because
Smart Turn v3.2 judges every utterance complete once more silence follows it. Its answer decides:

    answer                          silence that ends the utterance
    finished                        ``finished_s``: distinguishes the end from a pause between two words
    between the two, or none        ``usual_s``: as without a model
    in the middle of something      ``hesitating_s``: limits the cost of a wrong answer

A silence that the dialogue manager asked for is the least one, whatever the model answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """A route's silences in seconds, and the probabilities that choose between them."""

    usual_s: float
    finished_s: float
    hesitating_s: float
    finished_from: float = 0.5
    """Probability from which a thought counts as finished. More answers fewer callers too early, and more
    of them late."""
    hesitating_below: float = 0.2
    """Probability below which the caller counts as hesitating. Between the two, ``usual_s`` holds."""

    def at_least(self, seconds: float) -> Patience:
        """Return a copy whose usual silence is ``seconds``, and with which no answer of the model gives a shorter
        one."""
        return replace(self, usual_s=seconds, finished_s=seconds)

    def is_finished(self, probability: float | None) -> bool:
        """Return True if the model says that the thought is complete. ``None``: the model has not answered."""
        return probability is not None and probability >= self.finished_from

    def silence_s(self, probability: float | None) -> float:
        """Return the silence that ends the utterance, seconds."""
        if self.is_finished(probability):
            return min(self.finished_s, self.usual_s)
        if probability is not None and probability < self.hesitating_below:
            return max(self.hesitating_s, self.usual_s)
        return self.usual_s
