"""Section `engine.speech` of the configuration: settings of all voices."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from tts_engine.pipeline.admission_queue import AdmissionConfig
from tts_engine.pipeline.prompts import PromptConfig
from tts_engine.text.clauses import ClauseConfig, Pause

_FIXED_MS = {Pause.NONE: 0.0, Pause.SEMICOLON: 260.0, Pause.QUESTION: 400.0, Pause.PARAGRAPH: 650.0}
"""Pauses after marks that are rarer than comma and full stop, milliseconds. A colon pauses like a semicolon, an empty
line is a paragraph."""


class PauseConfig(BaseModel):
    """Silence between clauses at speaking rate 1, in milliseconds. A faster voice pauses less."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    comma_ms: float = Field(default=160, ge=0, le=5000)
    """After a comma or a dash, milliseconds."""
    sentence_ms: float = Field(default=360, ge=0, le=5000)
    """After a full stop, an exclamation mark or the end of a line, milliseconds."""

    def ms(self, pause: Pause, speed: float) -> float:
        """Return the milliseconds of one pause. After a cut without punctuation there is no pause."""
        configured = {Pause.COMMA: self.comma_ms, Pause.SENTENCE: self.sentence_ms}
        return (configured | _FIXED_MS)[pause] / speed


class SpeechConfig(BaseModel):
    """Settings of all voices: clauses, pauses, bounds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    clauses: ClauseConfig = ClauseConfig()
    """Length of clauses."""
    pauses: PauseConfig = PauseConfig()
    """Silence between clauses."""
    admission: AdmissionConfig = AdmissionConfig()
    """The queue of turns for which the voice model has no place."""

    ahead_s: float = Field(default=4.0, gt=0, le=60)
    """Sound made before it is heard, seconds. More outlasts longer slow spells; less wastes less work when a turn is
    cut."""

    confirm_ms: float = Field(default=40, ge=0, le=10_000)
    """Wait for the next token before a finished clause is sent, milliseconds. Less sends first packets sooner where
    tokens are slow. Less than the time between two tokens sends "amazon." before "com" comes."""

    max_chars: int = Field(default=20_000, ge=1)
    """Longest text of one utterance, characters; at least `limits.turn_chars`."""

    max_utterances: int = Field(default=2048, ge=1)
    """Most open utterances, those of queued turns included; one more is refused. Each takes 50 kB, and up to 0.3 MB
    with sound."""

    cache_bytes: int = Field(default=64 * 2**20, ge=0)
    """Memory for clauses that were spoken before, bytes. 64 MiB hold 35 minutes at 8 kHz. 0: none."""

    prompts: tuple[PromptConfig, ...] = Field(default=(), max_length=1000)
    """Texts that the engine makes at its start and keeps, up to half of `cache_bytes`. Greetings of routes are added
    automatically."""

    prompts_before_ready: bool = False
    """Report ready only when the prompts are made. Off: the first callers may come before that."""

    codec_threads: int = Field(default=1, ge=1, le=32)
    """Threads that resample and encode. One serves about 500 telephone calls."""
