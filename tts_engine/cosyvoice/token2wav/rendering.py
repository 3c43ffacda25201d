"""The state of a voice's prompt and of a clause in token-to-wave. Pure values, written by scheduler and block
manager."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tts_engine.errors import EngineError
from tts_engine.synthesizer import Hearing


@dataclass(slots=True, eq=False)
class Voice:
    """A prompt's place on the device."""

    index: int
    """Index of its row in the tables of prompts."""
    prompt_tokens: Sequence[int]
    slot: int
    blocks: list[int]
    shared: int
    """Number of tokens of the prompt that are computed once: its whole chunks that do not look beyond the prompt."""
    clauses: int = 0
    """Number of clauses that use the prompt."""
    used: float = 0.0
    """Monotonic second at which the last of these clauses began."""
    gone: bool = False
    """Has the prompt made room for another one?"""


@dataclass(slots=True, eq=False)
class Rendering:
    """A clause on its way from tokens to sound. The clause's own task appends to ``tokens``, and sets ``first_hop``
    before its first chunk."""

    voice: Voice
    playhead: Hearing
    first_hop: int
    """Number of tokens of its first chunk, one of ``Scheduler.first_hops``."""
    tokens: list[int] = field(default_factory=list)
    sounded: int = 0
    """Number of tokens of the clause that the vocoder has been fed."""
    asked: bool = False
    """Has its first chunk been asked for?"""
    opened_at: float = 0.0
    """Monotonic second at which the clause was let in."""
    closed: bool = False
    error: EngineError | None = None
    """The fault that ended the device's thread while this clause was in it."""
    order: int = 0
    """Clauses are numbered as they come. Of two equally urgent clauses, the older one keeps its cache."""
    slot: int = 0
    """The clause's slot. 0: it has none."""
    blocks: list[int] = field(default_factory=list)
    fed: int = 0
    """Number of tokens in the caches, from the start of the prompt."""
