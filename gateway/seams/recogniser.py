"""The seam to the speech recogniser. Pure.

A call opens one stream. While the caller speaks, the call pushes 20 ms of audio at a time; ``finish`` ends the
utterance. Every utterance ends in exactly one ``on_final``, even if the recogniser fails. Its text is empty if nothing
was understood.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.errors import GatewayError

SAMPLE_RATE = 16000
"""Sample rate of the pushed audio, hertz: s16le, mono."""
MAX_UTTERANCE_S = 15.0
"""Longest utterance, seconds. A caller who speaks on gets a prompt each time this has passed."""

FRAME_BYTES = SAMPLE_RATE // 50 * 2
"""Bytes of 20 ms of that audio."""


class RecognitionError(GatewayError):
    """A recogniser cannot do what a route or call asks."""


class RecognitionEvents(Protocol):
    """Recognised words of the caller. Called on the event loop, never from within a method of the stream."""

    def on_partial(self, text: str) -> None:
        """The words of the utterance up to now; a later partial result may correct them."""
        ...

    def on_final(self, text: str) -> None:
        """The words of the oldest finished utterance without a result; empty: no word was understood."""
        ...


class RecognitionStream(Protocol):
    """The speech of one call on its way to a recogniser."""

    @property
    def heard_language(self) -> str:
        """BCP 47 tag that the recogniser detected for the latest words. Empty: it has not told."""
        ...

    def want_partials(self, wanted: bool) -> None:
        """Say whether words are wanted while the caller speaks, from now on; at first they are. If not, those of each
        pause and of the end suffice. A recogniser may give more."""
        ...

    def push(self, pcm: bytes) -> None:
        """Take 20 ms of the caller's speech: s16le mono, 16 kHz. The queue is bounded; excess audio is dropped."""
        ...

    def pause(self) -> None:
        """The caller is silent, perhaps only for a breath. A recogniser that can work ahead may do so now."""
        ...

    def finish(self) -> None:
        """The utterance is over; its ``on_final`` follows within ``recogniser.final_timeout_ms``."""
        ...

    async def aclose(self) -> None:
        """Close the stream; no events are called after this."""
        ...


class Recogniser(Protocol):
    """Opens the recognition stream of a call."""

    @property
    def dropped(self) -> int:
        """Frames of 20 ms dropped since the start, because their utterances were too long."""
        ...

    @property
    def ready(self) -> bool:
        """True if speech becomes words now. False while the recogniser starts."""
        ...

    def knows(self, language: str) -> bool:
        """Return True if it may understand the language of a BCP 47 tag."""
        ...

    def open(
        self, events: RecognitionEvents, *, language: str, hints: Sequence[str], partials: bool
    ) -> RecognitionStream:
        """Open a stream, which connects by itself and reconnects after a loss.

        Args:
            language: BCP 47 tag of the spoken language.
            hints: phrases to expect.
            partials: True if ``on_partial`` is wanted.

        Raises:
            RecognitionError: the recogniser does not know the language.
        """
        ...

    async def aclose(self) -> None: ...
