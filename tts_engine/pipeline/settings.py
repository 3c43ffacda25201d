"""How utterances are made, whatever the voice: section `engine.speech` of the configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from tts_engine.pipeline.admission_queue import AdmissionConfig
from tts_engine.pipeline.prompts import PromptConfig
from tts_engine.text.clauses import ClauseConfig, Pause


class PauseConfig(BaseModel):
    """Silence between clauses at speaking rate 1, in milliseconds. A faster voice pauses less."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    comma_ms: float = Field(default=160, ge=0, le=5000)
    """After a comma or a dash."""
    semicolon_ms: float = Field(default=260, ge=0, le=5000)
    """After a semicolon or a colon."""
    sentence_ms: float = Field(default=360, ge=0, le=5000)
    """After a full stop, an exclamation mark or the end of a line."""
    question_ms: float = Field(default=400, ge=0, le=5000)
    """After a question mark."""
    paragraph_ms: float = Field(default=650, ge=0, le=5000)
    """After an empty line."""

    def ms(self, pause: Pause, speed: float) -> float:
        """Return the milliseconds of one pause. After a cut without punctuation there is no pause."""
        return 0.0 if pause is Pause.NONE else float(getattr(self, f"{pause.value}_ms")) / speed


class SpeechConfig(BaseModel):
    """How utterances are made, whatever the voice."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    clauses: ClauseConfig = ClauseConfig()
    pauses: PauseConfig = PauseConfig()
    admission: AdmissionConfig = AdmissionConfig()

    ahead_s: float = Field(default=4.0, gt=0, le=60)
    """How many seconds of sound are made before they are heard. More outlasts a longer slow spell; less wastes less
    work when a turn is cut."""

    confirm_ms: float = Field(default=40, ge=0, le=10_000)
    """A clause that ends with a full stop or a comma behind an ordinary word is made at once. It is sent when the next
    token shows that it is complete, or if none comes for so long. With less, first packets do not wait for slow tokens.
    With less than the time between two tokens, "amazon." is sent before "com" comes."""

    settle_ms: float = Field(default=300, ge=50, le=10_000)
    """Text that ends with a full stop behind a number or an abbreviation is spoken if no more text comes for so
    long. With less, the answer comes sooner when a model pauses in mid-turn. With too little, text is cut at "Dr."
    when tokens come slowly."""

    max_chars: int = Field(default=20_000, ge=1)
    """Longest text of one utterance, in characters. Set no less than `limits.turn_chars`: the gateway checks each turn,
    and the engine checks what any client sends."""

    max_utterances: int = Field(default=2048, ge=1)
    """How many utterances may be open at once, including those of queued turns and those that wait for text. More are
    refused with a retry delay. This bounds memory: an utterance takes 50 kB, and up to 0.3 MB with sound that nobody
    takes. The voice model limits how many may speak. The default carries 1000 calls with a queued turn each."""

    cache_bytes: int = Field(default=64 * 2**20, ge=0)
    """Bytes of memory for clauses that were spoken before. The default holds 35 minutes of sound at 8 kHz, or 11 at
    24 kHz. 0 remembers nothing; a clause that several calls ask for while it is made is still made once."""

    prompts: tuple[PromptConfig, ...] = Field(default=(), max_length=1000)
    """Texts that are made when the engine starts, one after the other and after everybody's turns, and then remembered
    for good: half of `cache_bytes` at most. Greetings of routes (`welcome_greeting`) are added by themselves."""

    prompts_before_ready: bool = False
    """Is the engine ready only when its prompts are made? That takes part of `timeouts.start_s`. Else the first callers
    may come before their greeting is made."""

    codec_threads: int = Field(default=1, ge=1, le=32)
    """How many threads resample and encode. One serves about 500 telephone calls."""
