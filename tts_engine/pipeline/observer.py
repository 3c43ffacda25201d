"""The Protocol through which the engine reports times and counts."""

from __future__ import annotations

from typing import Literal, Protocol

from tts_engine.pipeline.admission_queue import AdmissionObserver

CacheOutcome = Literal["hit", "shared", "miss"]
"""``hit``: the clause was spoken before. ``shared``: it is being made for another utterance. ``miss``: it is made
now."""


class EngineObserver(AdmissionObserver, Protocol):
    """Receives times and counts. Its methods are called on the event loop and must not block."""

    def first_chunk(self, engine: str, seconds: float) -> None:
        """Take the time from the delta that made the first clause speakable to the first frames of that clause."""
        ...

    def queued(self, seconds: float) -> None:
        """Take the time for which a step of the model waited."""
        ...

    def realtime_factor(self, engine: str, factor: float) -> None:
        """Take the seconds that the model worked per second of sound, for one clause."""
        ...

    def text_cache(self, outcome: CacheOutcome, cache_bytes: int) -> None:
        """Note that a clause was looked up in the cache, which now holds so many bytes."""
        ...

    def draft(self, *, kept: bool) -> None:
        """Note that a clause was made before it was known to be complete. ``kept``: it was complete."""
        ...

    def unheard(self, seconds: float) -> None:
        """Note that an utterance was cut while it was being made, with so many seconds of sound that no listener had
        heard."""
        ...

    def freed(self, seconds: float) -> None:
        """Take the time from cancel until no more work was spent on the utterance."""
        ...
