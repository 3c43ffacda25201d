"""The silence that ends the caller's utterance. Pure.

One fixed silence is too long after a question and too short for a caller who searches for a word. Three witnesses
decide together. The turn model estimates from the melody of the speech whether more will come. It is asked once when
the caller falls silent, because Smart Turn v3.2 judges every utterance complete once more silence follows it. The
recogniser's words show whether a number, an address, a spelled word or a sentence is unfinished
(``gateway.call.hearing.expectation``). What the bot expects says how long an answer is.

    words                             model                     silence that ends the utterance
    what was expected, complete       any                       ``finished_s``
    a part of what was expected       any                       ``PARTIAL_S``
    ends within a number or spelling  any                       ``NUMBER_S``
    ends with a word that ends none   any                       ``SENTENCE_S``
    a clause that ends with a comma   finished, or none         ``usual_s``: comma and melody disagree
                                      in the middle             ``hesitating_s``
    nothing of that, or no words      finished                  ``finished_s``: distinguishes the end from a pause
                                                                between two words
                                      between the two, or none  ``usual_s``: as without a model
                                      in the middle             ``hesitating_s``: limits the cost of a wrong answer

A recogniser that has given words of the utterance before gives those of its end some tenths of a second after it.
``finished_s`` is then at least ``WORDS_S`` until they are there. A silence that the dialogue manager asked for is the
least one, whatever the witnesses say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.call.hearing.expectation import AnswerProgress

PARTIAL_S = 2.0
"""Silence after a part of an expected answer, seconds. Longer than pauses between the groups of a number, since here
the end is known by its words."""
NUMBER_S = 1.2
"""Silence within a number or spelled word whose length is unknown, seconds. Groups of a phone number are up to 0.9 s
apart."""
SENTENCE_S = 1.5
"""Silence after a conjunction, preposition, article or filler, seconds. The caller searches for a word."""
WORDS_S = 0.4
"""Silence after which a finished thought does not wait for its last words, seconds."""

LEAST_S = {AnswerProgress.PARTIAL: PARTIAL_S, AnswerProgress.NUMBER: NUMBER_S, AnswerProgress.SENTENCE: SENTENCE_S}


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

    def is_finished(self, probability: float | None, progress: AnswerProgress = AnswerProgress.UNKNOWN) -> bool:
        """Return True if the thought is complete, by its words or by the model. ``None``: the model has not
        answered."""
        if progress is not AnswerProgress.UNKNOWN:
            return progress is AnswerProgress.COMPLETE
        return probability is not None and probability >= self.finished_from

    def silence_s(
        self,
        probability: float | None,
        progress: AnswerProgress = AnswerProgress.UNKNOWN,
        *,
        words_follow: bool = False,
    ) -> float:
        """Return the silence that ends the utterance, seconds. ``words_follow``: the recogniser has not given the last
        words yet."""
        if self.is_finished(probability, progress):
            late = words_follow and progress is AnswerProgress.UNKNOWN
            return min(max(self.finished_s, WORDS_S) if late else self.finished_s, self.usual_s)
        if progress in LEAST_S:
            return max(LEAST_S[progress], self.usual_s)
        if probability is not None and probability < self.hesitating_below:
            return max(self.hesitating_s, self.usual_s)
        return self.usual_s
