"""The inner seam: what a voice model has to do. ``tts_engine.pipeline.engine`` does the rest for all of them
(clauses, cache, silence trimming, pauses, resampling, encoding, spans, cancel)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tts_engine.api import EngineStatus, VoiceInfo

LINE_RATES = (8000, 16000)
"""Hz of what telephones hear: narrowband and wideband."""


@dataclass(frozen=True, slots=True)
class WordSpan:
    """A word of a clause: characters of the clause's source text, samples of the clause's audio."""

    start_char: int
    end_char: int
    first_sample: int
    end_sample: int
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseRequest:
    """One clause to be spoken. ``text`` is the caller's own wording; the model's front end normalises it."""

    text: str
    voice: str
    language: str
    speed: float
    instruct: str
    first: bool
    """True for the first clause of an utterance: somebody hears silence until it comes."""
    more: AsyncIterator[str] | None = None
    """Text that follows ``text`` while it is spoken already; for models that have ``streams_text``."""
    line_rate: int | None = None
    """Hz, one of the synthesizer's ``line_rates``: the sound is wanted at it. None: at ``sample_rate``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PcmChunk:
    """Audio of a clause in the order it is heard."""

    pcm: NDArray[np.float32]
    """Shape ``(samples,)``, [-1, 1], at the clause's ``line_rate``, else the synthesizer's ``sample_rate``."""
    words: Sequence[WordSpan] = ()
    queue_ms: float = 0.0
    engine_ms: float = 0.0


class Playhead:
    """How much sound one utterance has in hand: the scheduler's measure of urgency.

    Written by the utterance (delivered, played), read by schedulers in any thread; plain attributes.
    """

    __slots__ = ("ahead", "delivered_s", "played_at", "played_s")

    def __init__(self, *, ahead: bool = False) -> None:
        self.delivered_s = 0.0
        """Seconds of audio handed out so far."""
        self.played_s = 0.0
        """Seconds the caller had heard at monotonic time ``played_at``."""
        self.played_at: float | None = None
        """None: nothing heard yet."""
        self.ahead = ahead
        """True while nobody waits for this utterance."""

    def slack_s(self, now: float) -> float:
        """Seconds until the caller hears silence. 0 for a first chunk somebody waits for; large for ``ahead``."""
        if self.played_at is None:
            return 1e6 if self.ahead else 0.0
        heard = min(self.played_s + (now - self.played_at), self.delivered_s)
        return self.delivered_s - heard


class Synthesizer(Protocol):
    """A voice model. One instance serves all utterances of a process."""

    name: str
    sample_rate: int
    """Hz of its sound."""
    line_rates: Collection[int]
    """Hz of narrower sound that it makes by itself; what other lines need is resampled from ``sample_rate``."""

    def synthesize(self, clause: ClauseRequest, playhead: Playhead) -> AsyncGenerator[PcmChunk, None]:
        """Speak one clause. Closing the generator (``aclose``) cancels before the next step.

        Raises:
            EngineError: this clause cannot be spoken.
        """
        ...

    async def start(self) -> None:
        """Load and warm up; returns when the first request would run at full speed."""
        ...

    def voices(self) -> Sequence[VoiceInfo]: ...

    def status(self) -> EngineStatus: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class VoiceEditor(Protocol):
    """A voice model that takes voices from recordings. Calls may block: on the disk, and ``add_voice`` for seconds."""

    def add_voice(self, *, voice_id: str, name: str, wav: bytes, transcript: str, language: str) -> VoiceInfo:
        """Raises InvalidRequest for a recording or a field that cannot serve, or an id that is taken."""
        ...

    def remove_voice(self, voice_id: str) -> None:
        """Raises NotFound; InvalidRequest for a built-in voice."""
        ...

    def voice_revision(self, voice_id: str) -> str:
        """Another one for every registration of an id, whichever process registered it. Raises NotFound."""
        ...
