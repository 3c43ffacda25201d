"""The state of a voice's prompt and of a clause in token-to-wave. Scheduler and block manager change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tts_engine.errors import EngineError
from tts_engine.synthesizer import Hearing


@dataclass(slots=True, eq=False)
class Voice:
    """A voice's prompt on the device."""

    index: int
    """Index of its row in the tables of prompts."""
    prompt_tokens: Sequence[int]
    slot: int
    blocks: list[int]
    shared: int
    """Number of prompt tokens in shared chunks: whole chunks whose look-ahead is inside the prompt."""
    clauses: int = 0
    """Number of clauses that use the prompt."""
    used: float = 0.0
    """Monotonic time at which the last of these clauses began, seconds."""
    gone: bool = False
    """True after the prompt was evicted."""


@dataclass(slots=True, eq=False)
class Rendering:
    """A clause in token-to-wave. The clause's own task appends to ``tokens`` and sets ``first_hop`` before its first
    chunk."""

    voice: Voice
    playhead: Hearing
    first_hop: int
    """Tokens of its first chunk, one of ``Scheduler.first_hops``."""
    tokens: list[int] = field(default_factory=list)
    sounded: int = 0
    """Number of the clause's tokens that the vocoder has been fed."""
    opened_at: float = 0.0
    """Monotonic time at which the clause was admitted, seconds."""
    closed: bool = False
    error: EngineError | None = None
    """The fault that ended the device's thread during this clause."""
    slot: int = 0
    """The clause's slot. 0: none."""
    blocks: list[int] = field(default_factory=list)
    fed: int = 0
    """Number of tokens in the caches, from the start of the prompt."""
