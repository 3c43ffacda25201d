"""The interface of a voice model. ``tts_engine.pipeline.engine`` does the rest for all models: clauses, cache, silence
trimming, pauses, resampling, encoding, spans, cancel."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tts_engine.api import EngineStatus, VoiceInfo

LINE_RATES = (8000, 16000)
"""Sample rates of telephone lines in Hz: narrowband and wideband."""


class WordSpan(NamedTuple):
    """The place of a word: its characters in the clause's text, its samples in the clause's audio.

    A tuple, for the same reason as ``TextSpan``.
    """

    start_char: int
    end_char: int
    first_sample: int
    end_sample: int
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseRequest:
    """One clause to be spoken. ``text`` is the original wording; the model's front end normalises it. It may have the
    phonemes of words as marks (``tts_engine.speech_marks``); other marks were applied."""

    text: str
    voice: str
    language: str
    speed: float
    instruct: str
    first: bool
    """True for the first clause of an utterance. The caller hears silence until it comes."""
    more: AsyncIterator[str] | None = None
    """Text that arrives after ``text`` while the clause is already being spoken; for models with ``streams_text``."""
    line_rate: int | None = None
    """Wanted sample rate of the sound, Hz: one of the synthesizer's ``line_rates``. None: ``sample_rate``."""
    pitch: float = 0.0
    """Semitones above the voice's own. A voice that cannot change its pitch ignores it."""
    placed: Callable[[], None] | None = None
    """Called when the model has a place for the clause. None: the model always has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PcmChunk:
    """The next audio of a clause, in the order in which it is heard."""

    pcm: NDArray[np.float32]
    """Shape ``(samples,)``, [-1, 1], at the clause's ``line_rate``, else the synthesizer's ``sample_rate``."""
    words: Sequence[WordSpan] = ()
    text_ms: float = 0.0
    """Time for the clause's wording, in its first chunk."""
    queue_ms: float = 0.0
    """Time until the model had the input of the chunk."""
    engine_ms: float = 0.0
    """Time in which the model made the chunk."""


class Hearing(Protocol):
    """The urgency of a clause: the time until its listeners need more sound. Schedulers read it in any thread."""

    @property
    def ahead(self) -> bool:
        """True while no caller waits for this sound."""
        ...

    @property
    def tentative(self) -> bool:
        """True if this sound may never be heard, because its text may continue."""
        ...

    @property
    def speaks(self) -> bool:
        """True if a listener has been given sound already."""
        ...

    @property
    def head_start_s(self) -> float:
        """Seconds by which a first sound counts as earlier, where first sounds are made in the order of arrival."""
        ...

    @property
    def state(self) -> object:
        """A value that stays equal while only time passes. Compare it to find changes."""
        ...

    def slack_s(self, now: float) -> float:
        """Return the seconds until a listener hears silence. 0: a caller waits for a first chunk. Large: no caller
        waits yet."""
        ...


HIGHEST_PRIORITY = 10
"""Priority of a turn that is being heard. Routes and keys have 0 to 9."""

_HEAD_START_S = 0.05
"""Seconds of waiting that a level of priority is worth, in the order of turns that have a place. By priority alone, the
lowest turns would wait as long as others come."""


class Playhead:
    """The sound that one utterance has in hand: the ``Hearing`` of one listener.

    The utterance writes the plain attributes; schedulers read them in any thread.
    """

    __slots__ = ("ahead", "delivered_s", "played_at", "played_s", "priority", "tentative")

    def __init__(self, *, ahead: bool = False, priority: int = 5) -> None:
        self.delivered_s = 0.0
        """Seconds of audio handed out so far."""
        self.played_s = 0.0
        """Seconds that the caller had heard at monotonic time ``played_at``."""
        self.played_at: float | None = None
        """Monotonic second of ``played_s``. None: nothing has been heard yet."""
        self.ahead = ahead
        """True while the utterance is made ahead, so that no caller waits for it."""
        self.priority = priority
        """See ``tts_engine.api.UtteranceRequest``."""
        self.tentative = False
        """True while a clause is being made that may never be heard, because its text may continue."""

    @property
    def speaks(self) -> bool:
        """See ``Hearing``."""
        return self.delivered_s > 0

    @property
    def head_start_s(self) -> float:
        """See ``Hearing``. A turn that is being heard never comes after a newer one."""
        return _HEAD_START_S * (HIGHEST_PRIORITY if self.speaks else self.priority)

    @property
    def state(self) -> object:
        """See ``Hearing``."""
        return self.delivered_s, self.played_s, self.played_at, self.ahead, self.tentative

    def slack_s(self, now: float) -> float:
        """See ``Hearing``."""
        if self.played_at is None:
            return 1e6 if self.ahead else 0.0
        heard = min(self.played_s + (now - self.played_at), self.delivered_s)
        return self.delivered_s - heard


class Synthesizer(Protocol):
    """A voice model. One instance serves all utterances of a process."""

    name: str
    sample_rate: int
    """Hz of the model's sound."""
    line_rates: Collection[int]
    """Lower rates in Hz at which the model can make sound itself. For all others ``sample_rate`` is resampled."""

    def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        """Speak one clause. Closing the generator (``aclose``) cancels the clause before its next step.

        Raises:
            EngineError: this clause cannot be spoken.
        """
        ...

    async def start(self) -> None:
        """Load and warm up. Return when a request would run at full speed."""
        ...

    def voices(self) -> Sequence[VoiceInfo]: ...

    def status(self) -> EngineStatus: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class VoiceEditor(Protocol):
    """A voice model that can make voices from recordings. Calls may block on the disk; ``add_voice`` takes seconds."""

    def add_voice(self, *, voice_id: str, name: str, wav: bytes, transcript: str, language: str) -> VoiceInfo:
        """Make a voice from a recording.

        Raises:
            InvalidRequest: the recording or a field cannot be used, or the id is taken.
        """
        ...

    def remove_voice(self, voice_id: str) -> None:
        """Remove a registered voice.

        Raises:
            NotFound: there is no such voice.
            InvalidRequest: the voice is built in.
        """
        ...

    def voice_revision(self, voice_id: str) -> str:
        """Return a text that differs for every registration of this id, in any process.

        Raises:
            NotFound: there is no such voice.
        """
        ...


class VoiceFiles(Protocol):
    """The voices of a model on a disk. Errors are those of ``VoiceEditor``."""

    def infos(self) -> Sequence[VoiceInfo]: ...

    def add(self, *, voice_id: str, name: str, wav: bytes, transcript: str, language: str) -> VoiceInfo: ...

    def remove(self, voice_id: str) -> None: ...

    def revision(self, voice_id: str) -> str: ...


class EditsVoiceFiles:
    """Mixin that makes a ``Synthesizer`` a ``VoiceEditor``, for a model whose voices are files."""

    _voices: VoiceFiles

    def voices(self) -> Sequence[VoiceInfo]:
        return self._voices.infos()

    def add_voice(self, *, voice_id: str, name: str, wav: bytes, transcript: str, language: str) -> VoiceInfo:
        """See ``VoiceEditor``."""
        return self._voices.add(voice_id=voice_id, name=name, wav=wav, transcript=transcript, language=language)

    def remove_voice(self, voice_id: str) -> None:
        """See ``VoiceEditor``."""
        self._voices.remove(voice_id)

    def voice_revision(self, voice_id: str) -> str:
        """See ``VoiceEditor``."""
        return self._voices.revision(voice_id)
