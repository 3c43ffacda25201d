"""The seam to whoever turns caller speech into words. Pure.

A call opens one stream. While the caller speaks, the call pushes 20 ms of audio at a time into the stream; ``finish``
says that the utterance is over. Every utterance ends in exactly one ``on_final``, whatever happens to the recogniser
meanwhile. Its text is empty if nothing was understood.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.errors import GatewayError

SAMPLE_RATE = 16000
"""Hertz of the audio that is pushed: s16le, mono."""
FRAME_BYTES = SAMPLE_RATE // 50 * 2
"""Bytes of 20 ms of that audio."""


class RecognitionError(GatewayError):
    """A recogniser cannot do what a route or call asks."""


class RecognitionEvents(Protocol):
    """What the caller said. Called on the event loop, never from within a call of ours."""

    def on_partial(self, text: str) -> None:
        """The words of the utterance up to now; a later partial result may correct them."""
        ...

    def on_final(self, text: str) -> None:
        """The words of the oldest finished utterance that had no result yet; empty: no word was understood."""
        ...


class RecognitionStream(Protocol):
    """One call's speech on its way to a recogniser."""

    def push(self, pcm: bytes) -> None:
        """Take 20 ms of what the caller says: s16le mono, 16 kHz. The queue is bounded; what exceeds it is dropped."""
        ...

    def pause(self) -> None:
        """The caller is silent, perhaps only to take a breath. A recogniser that can work ahead may do so now."""
        ...

    def finish(self) -> None:
        """The utterance is over; its ``on_final`` follows within ``recogniser.final_timeout_ms``."""
        ...

    async def aclose(self) -> None:
        """Close the stream; its events are not called after this."""
        ...


class Recogniser(Protocol):
    """Opens a call's stream."""

    def open(
        self, events: RecognitionEvents, *, language: str, hints: Sequence[str], partials: bool
    ) -> RecognitionStream:
        """Open a stream. The stream connects by itself, and connects again when the connection is lost.

        Args:
            language: BCP 47 tag of what is spoken.
            hints: phrases to expect.
            partials: whether ``on_partial`` is wanted.

        Raises:
            RecognitionError: the recogniser does not know the language.
        """
        ...

    async def aclose(self) -> None: ...
