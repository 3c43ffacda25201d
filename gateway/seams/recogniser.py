"""The seam to whoever turns caller speech into words. Pure.

A call opens one stream. While the caller speaks it is pushed 20 ms of audio at a time; ``finish`` says that the
utterance is over. Every utterance ends in exactly one ``on_final``, empty where nothing was understood, whatever
happens to the recogniser in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.errors import GatewayError

SAMPLE_RATE = 16000
"""Hertz of the audio that is pushed: s16le, mono."""
FRAME_BYTES = SAMPLE_RATE // 50 * 2
"""20 ms of it."""


class RecognitionError(GatewayError):
    """A recogniser cannot do what a route or call wants of it."""


class RecognitionEvents(Protocol):
    """What the caller said. Called on the event loop, never from within a call of ours."""

    def on_partial(self, text: str) -> None:
        """The utterance up to now; a later one may say something else."""
        ...

    def on_final(self, text: str) -> None:
        """The next utterance that was finished, in order; empty: no word was understood."""
        ...


class RecognitionStream(Protocol):
    """One call's speech on its way to a recogniser."""

    def push(self, pcm: bytes) -> None:
        """20 ms of what the caller says: s16le mono, 16 kHz. Bounded; what is beyond the bound is dropped."""
        ...

    def pause(self) -> None:
        """The caller is silent, perhaps only to take a breath: a recogniser that can work ahead may do so now."""
        ...

    def finish(self) -> None:
        """The utterance is over; its ``on_final`` follows within ``recogniser.final_timeout_ms``."""
        ...

    async def aclose(self) -> None:
        """Nothing more is told after this."""
        ...


class Recogniser(Protocol):
    """Opens a call's stream."""

    def open(
        self, events: RecognitionEvents, *, language: str, hints: Sequence[str], partials: bool
    ) -> RecognitionStream:
        """Begin; connects by itself, and again where the connection is lost.

        Args:
            language: BCP 47 tag of what is spoken.
            hints: phrases to expect.
            partials: whether ``on_partial`` is of use.

        Raises:
            RecognitionError: it does not know the language.
        """
        ...

    async def aclose(self) -> None: ...
