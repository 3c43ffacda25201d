"""The seam to whoever hears whether a caller has finished a thought. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Look(Protocol):
    """A question to the model that has no answer yet."""

    def cancel(self) -> None:
        """Nobody wants the answer any more: it is not told."""
        ...


class TurnModel(Protocol):
    """Answers from the sound of an utterance, off the event loop."""

    def look(self, sound: Sequence[bytes], tell: Callable[[float], None]) -> Look:
        """Ask how probably the thought is complete.

        Args:
            sound: the utterance up to now, with the silence at its end: frames of 20 ms, s16le mono, 16 kHz.
            tell: gets the probability, 0 to 1, on the event loop. It is never called from within ``look``, and not at
                all if the model is too busy or fails.
        """
        ...
