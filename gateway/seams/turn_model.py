"""The seam to a turn model, which estimates whether a caller has finished a thought. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


class Look(Protocol):
    """A query to the model that has no answer yet."""

    def cancel(self) -> None:
        """Cancel the query: its answer is not delivered."""
        ...


class TurnModel(Protocol):
    """Judges the audio of an utterance, off the event loop."""

    @property
    def dropped(self) -> Mapping[str, int]:
        """Number of queries that have had no answer in time since the start, by reason: ``busy``, ``late`` (the
        caller spoke again, or the utterance was over), ``failed``."""
        ...

    def look(self, sound: Sequence[bytes], tell: Callable[[float], None]) -> Look:
        """Query the probability that the thought is complete.

        Args:
            sound: the utterance up to now, with the silence at its end: frames of 20 ms, s16le mono, 16 kHz.
            tell: receives the probability, 0 to 1, on the event loop. It is never called from within ``look``, and not
                at all if the model is too busy or fails.
        """
        ...
