"""Allocates the slots and blocks of the caches. Pure: it knows only numbers; the runner has the tensors.

A clause has a slot (convolution tails) and blocks (keys and values, one chunk each). So has a voice's prompt, whose
chunks are computed once and shared: a clause lists the prompt's blocks first, then its own. An unused prompt stays
until another one needs its place. Slot 0 and block 0 are scratch and are never allocated.

A clause that a caller waits for or hears is never evicted, and still no two clauses wait for each other's blocks: the
oldest such clause may take any free block, and all others leave as many as the oldest may still need. So the oldest
ends, its blocks are free, and the next one is the oldest. Sound that is made ahead of time may be evicted, because it
can be computed again from the end of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from tts_engine.cosyvoice.models.config import LOOK_AHEAD_TOKENS
from tts_engine.cosyvoice.token2wav.rendering import Rendering, Voice
from tts_engine.errors import Exhausted, InvalidRequest


class BlockManager:
    """The allocator of one device's slots and blocks. Not thread-safe."""

    def __init__(
        self, *, clauses: int, voices: int, blocks: int, chunk_tokens: int, max_chunks: int, room: int
    ) -> None:
        """
        Args:
            clauses: number of slots for clauses. Voices have the slots after them.
            chunk_tokens: speech tokens in one block.
            max_chunks: most chunks of prompt and clause together.
            room: tokens of the prompt's last chunk that are left for the clause, 1 to ``chunk_tokens``. The prompt's
                beginning is cut to fit.

        Raises:
            ValueError: the longest clause does not fit, so it would wait forever.
        """
        if blocks < max_chunks:
            raise ValueError(f"{blocks} cache blocks, expected at least {max_chunks} for the longest clause")
        self._total = blocks
        self.clauses, self.max_tokens = clauses, max_chunks * chunk_tokens
        self.chunk_tokens, self._room = chunk_tokens, room
        self._clause_slots = list(range(1, 1 + clauses))[::-1]
        self._voice_slots = list(range(1 + clauses, 1 + clauses + voices))
        self._blocks = list(range(1, 1 + blocks))[::-1]
        self.voices: dict[object, Voice] = {}
        """The computed prompts by key."""
        self._placed: set[Voice] = set()
        """The prompts that have a place, also those that are not computed yet."""
        self._open: dict[Rendering, None] = {}
        """Open clauses in the order of opening."""
        self._first: Rendering | None = None
        """The oldest clause that a caller waits for or hears, until it is closed."""

    @property
    def free_blocks(self) -> int:
        return len(self._blocks)

    @property
    def free_slots(self) -> int:
        """Number of free slots for clauses."""
        return len(self._clause_slots)

    # -- prompts

    def place(self, tokens: Sequence[int], *, now: float) -> Voice:
        """Allocate a slot and blocks for a prompt, cut at its beginning. Unused prompts are evicted to make room, least
        recently used first.

        Call ``keep`` after the prompt has been computed, or ``release``.

        Blocks of prompts in use cannot be evicted. The other blocks must always be enough for the longest clause of any
        prompt; otherwise the last clause left could wait forever.

        Raises:
            InvalidRequest: the prompt leaves no room for a clause.
            Exhausted: there is no room, and all other prompts are in use.
        """
        part, shared = self._cut(tokens)
        needed = shared // self.chunk_tokens
        while (
            not self._voice_slots
            or len(self._blocks) < needed
            or self._left([*(len(voice.blocks) for voice in self.voices.values()), needed]) < 0
            or (self._open and len(self._blocks) - needed < self._kept(needed))
        ):
            idle = [(voice.used, key) for key, voice in self.voices.items() if not voice.clauses]
            if not idle:
                raise Exhausted("all places for voice prompts are in use", retry_after_s=1.0)
            self.release(self.voices.pop(min(idle, key=lambda pair: pair[0])[1]))
        slot = self._voice_slots.pop()
        voice = Voice(slot - 1 - self.clauses, part, slot, self._take(needed), shared, used=now)
        self._placed.add(voice)
        return voice

    def _left(self, prompts: Sequence[int]) -> int:
        """Return the number of blocks left after prompts of these sizes (in blocks) and the longest clause."""
        return self._total - sum(prompts) - (self.max_tokens // self.chunk_tokens - min(prompts))

    def _cut(self, tokens: Sequence[int]) -> tuple[Sequence[int], int]:
        """Return the end of the prompt that is used, and how many of its tokens are in shared chunks."""
        left = self.chunk_tokens - self._room
        # A prompt that is shorter than that is not used at all, so the clause gets a whole chunk.
        cut = (len(tokens) - left) % self.chunk_tokens if len(tokens) >= left else len(tokens)
        tokens = tokens[cut:]
        shared = max(len(tokens) - LOOK_AHEAD_TOKENS, 0) // self.chunk_tokens * self.chunk_tokens
        if shared >= self.max_tokens - self.chunk_tokens:
            raise InvalidRequest(
                f"the voice prompt has {len(tokens)} tokens, expected fewer: "
                f"prompt and clause may have {self.max_tokens} together"
            )
        return tokens, shared

    def keep(self, key: object, voice: Voice) -> None:
        """Register a computed prompt, which all requests with this key share."""
        self.voices[key] = voice

    def release(self, voice: Voice) -> None:
        """Free the slot and blocks of a prompt."""
        voice.gone = True
        self._placed.discard(voice)
        self._blocks += voice.blocks
        self._voice_slots.append(voice.slot)

    # -- clauses

    def open(self, rendering: Rendering, *, now: float) -> None:
        """Count the clause as a user of its voice's prompt. It gets its slot and blocks from ``grow``.

        Raises:
            Exhausted: the prompt was evicted meanwhile.
        """
        voice = rendering.voice
        if voice.gone:
            raise Exhausted("the voice's prompt was evicted; ask again", retry_after_s=0.1)
        voice.clauses += 1
        voice.used = now
        rendering.fed = voice.shared
        self._open[rendering] = None

    @property
    def spare_blocks(self) -> int:
        """Number of free blocks without those that are kept for the oldest clause."""
        return max(len(self._blocks) - self._kept(), 0)

    @property
    def safe(self) -> bool:
        """True if the oldest clause can end with the free blocks. Sound made ahead is evicted until that holds."""
        return len(self._blocks) >= self._kept()

    def fits(self, rendering: Rendering, blocks: int, *, leaving: int = 0) -> bool:
        """Return whether the clause may take so many blocks now, and leave so many to others."""
        kept = 0 if rendering is self._oldest() else self._kept() + leaving
        return len(self._blocks) - blocks >= kept

    def _oldest(self) -> Rendering | None:
        if self._first not in self._open:
            # The blocks of the one before are free now, so any clause may be the next.
            self._first = next((rendering for rendering in self._open if not rendering.playhead.ahead), None)
        return self._first or next(iter(self._open), None)

    def _kept(self, *new_prompts: int) -> int:
        """Return the number of blocks that the oldest clause may still need. ``new_prompts``: blocks of prompts that
        are about to be placed."""
        oldest = self._oldest()
        least = min((*(len(voice.blocks) for voice in self._placed), *new_prompts), default=0)
        return self.max_tokens // self.chunk_tokens - least - (len(oldest.blocks) if oldest is not None else 0)

    def missing(self, rendering: Rendering) -> int:
        """Return the number of blocks that the clause lacks for its next chunk."""
        held = len(rendering.voice.blocks) + len(rendering.blocks)
        return max(rendering.fed // self.chunk_tokens + 1 - held, 0)

    def grow(self, rendering: Rendering, blocks: int) -> None:
        """Allocate a slot for the clause, if it has none, and ``blocks`` more blocks. They must be free."""
        if not rendering.slot:
            rendering.slot = self._clause_slots.pop()
        rendering.blocks += self._take(blocks)

    def evict(self, rendering: Rendering) -> None:
        """Free a clause's own blocks. It must be recomputed from the end of the prompt's shared part."""
        self._blocks += rendering.blocks
        rendering.blocks, rendering.fed = [], rendering.voice.shared

    def free(self, rendering: Rendering) -> None:
        """Free the slot and blocks of a finished clause."""
        self._open.pop(rendering, None)
        self.evict(rendering)
        if rendering.slot:
            self._clause_slots.append(rendering.slot)
            rendering.slot = 0

    def _take(self, count: int) -> list[int]:
        return [self._blocks.pop() for _ in range(count)]
