"""What token-to-wave knows of a voice's prompt and of a clause. Pure values; scheduler and block manager write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tts_engine.errors import EngineError
from tts_engine.synthesizer import Playhead


@dataclass(slots=True, eq=False)
class Voice:
    """A prompt's place on the device."""

    index: int
    """Of its row in the tables of prompts."""
    prompt_tokens: Sequence[int]
    slot: int
    blocks: list[int]
    shared: int
    """Tokens of the prompt that are computed once: its whole chunks, as far as they do not look beyond it."""
    clauses: int = 0
    """Clauses that count on it."""
    used: float = 0.0
    """Monotonic second at which the last one began."""
    gone: bool = False
    """It has made room for another."""


@dataclass(slots=True, eq=False)
class Rendering:
    """A clause on its way from tokens to sound. ``tokens`` is appended to by the clause's own task."""

    voice: Voice
    playhead: Playhead
    tokens: list[int] = field(default_factory=list)
    sounded: int = 0
    """Tokens of the clause that the vocoder has been fed."""
    closed: bool = False
    error: EngineError | None = None
    """The fault that ended the device's thread while this clause was in it."""
    order: int = 0
    """Clauses are numbered as they come; of two equally urgent ones the older keeps its cache."""
    slot: int = 0
    """0: none."""
    blocks: list[int] = field(default_factory=list)
    fed: int = 0
    """Tokens in the caches, from the start of the prompt."""
