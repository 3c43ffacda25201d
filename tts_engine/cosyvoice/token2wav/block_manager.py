"""Keeps account of the slots and blocks of the caches. Pure: it knows only numbers; the runner has the tensors.

A clause holds a slot (tails of convolutions) and blocks (keys and values, one chunk each), and so does a voice's
prompt. The prompt's chunks are computed once and shared: a clause lists the prompt's blocks first, then its own. A
prompt stays until another one needs its place and no clause uses it. A clause's blocks can be taken away at any time,
because the clause can be computed again from the prompt on. Slot 0 and block 0 are scratch and are never given out.
"""

from __future__ import annotations

from collections.abc import Sequence

from tts_engine.cosyvoice.models.config import LOOK_AHEAD_TOKENS
from tts_engine.cosyvoice.token2wav.rendering import Rendering, Voice
from tts_engine.errors import Exhausted, InvalidRequest


class BlockManager:
    """Hands out slots and blocks of one device's caches. Not thread-safe."""

    def __init__(
        self, *, clauses: int, voices: int, blocks: int, chunk_tokens: int, max_chunks: int, room: int
    ) -> None:
        """
        Args:
            clauses: number of slots for clauses. The slots of voices come after them.
            chunk_tokens: speech tokens in one block.
            max_chunks: most chunks of prompt and clause together.
            room: tokens that a prompt leaves a clause of the chunk in which the prompt ends, 1 to ``chunk_tokens``. The
                prompt is cut at its head to fit.

        Raises:
            ValueError: the longest clause would not fit, and so would wait for ever.
        """
        if blocks < max_chunks:
            raise ValueError(f"{blocks} cache blocks, expected at least {max_chunks}, those of the longest clause")
        self._total = blocks
        self.clauses, self.max_tokens = clauses, max_chunks * chunk_tokens
        self.chunk_tokens, self._room = chunk_tokens, room
        self._clause_slots = list(range(1, 1 + clauses))[::-1]
        self._voice_slots = list(range(1 + clauses, 1 + clauses + voices))
        self._blocks = list(range(1, 1 + blocks))[::-1]
        self.voices: dict[object, Voice] = {}
        """The prompts that have been computed, by their key."""

    @property
    def free_blocks(self) -> int:
        return len(self._blocks)

    @property
    def free_slots(self) -> int:
        """Number of free slots for clauses."""
        return len(self._clause_slots)

    # -- prompts

    def place(self, tokens: Sequence[int], *, now: float) -> Voice:
        """Return a place for the part at a prompt's end that is used. The prompt that was unused for longest makes
        room.

        Call ``keep`` when the prompt has been computed, or ``release``.

        The blocks that are left can always hold the longest clause of each prompt: what other clauses hold of them can
        be taken away, but prompts in use cannot. Else the last clause that goes on would wait for ever.

        Raises:
            InvalidRequest: the prompt leaves no room for a clause.
            Exhausted: clauses use every other prompt.
        """
        part, shared = self._cut(tokens)
        needed = shared // self.chunk_tokens
        while (
            not self._voice_slots
            or len(self._blocks) < needed
            or self._left([*(len(voice.blocks) for voice in self.voices.values()), needed]) < 0
        ):
            idle = [(voice.used, key) for key, voice in self.voices.items() if not voice.clauses]
            if not idle:
                raise Exhausted("every place for a voice prompt is in use", retry_after_s=1.0)
            self.release(self.voices.pop(min(idle, key=lambda pair: pair[0])[1]))
        slot = self._voice_slots.pop()
        return Voice(slot - 1 - self.clauses, part, slot, self._take(needed), shared, used=now)

    def _left(self, prompts: Sequence[int]) -> int:
        """Return how many blocks are left beside prompts of so many blocks and the longest clause of any of them."""
        return self._total - sum(prompts) - (self.max_tokens // self.chunk_tokens - min(prompts))

    def _cut(self, tokens: Sequence[int]) -> tuple[Sequence[int], int]:
        """Return the part at a prompt's end that is used, and how many tokens of it are computed once."""
        left = self.chunk_tokens - self._room
        # A prompt that is too short for that leaves the clause a whole chunk.
        cut = (len(tokens) - left) % self.chunk_tokens if len(tokens) >= left else len(tokens)
        tokens = tokens[cut:]
        shared = max(len(tokens) - LOOK_AHEAD_TOKENS, 0) // self.chunk_tokens * self.chunk_tokens
        if shared >= self.max_tokens - self.chunk_tokens:
            raise InvalidRequest(
                f"the voice prompt has {len(tokens)} tokens; the engine keeps {self.max_tokens} of prompt and clause"
            )
        return tokens, shared

    def keep(self, key: object, voice: Voice) -> None:
        """Keep a computed prompt. All requests with this key share it."""
        self.voices[key] = voice

    def release(self, voice: Voice) -> None:
        """Free the places of a prompt."""
        voice.gone = True
        self._blocks += voice.blocks
        self._voice_slots.append(voice.slot)

    # -- clauses

    def open(self, rendering: Rendering, *, now: float) -> None:
        """Note that a clause uses its voice's prompt from now on. It gets its slot and blocks with ``grow``.

        Raises:
            Exhausted: the prompt has made room for another one meanwhile.
        """
        voice = rendering.voice
        if voice.gone:
            raise Exhausted("the voice made room for another; ask again", retry_after_s=0.1)
        voice.clauses += 1
        voice.used = now
        rendering.fed = voice.shared

    def missing(self, rendering: Rendering) -> int:
        """Return how many blocks the clause lacks for the chunk that it is fed next."""
        held = len(rendering.voice.blocks) + len(rendering.blocks)
        return max(rendering.fed // self.chunk_tokens + 1 - held, 0)

    def grow(self, rendering: Rendering, blocks: int) -> None:
        """Give a clause a slot, if it has none, and ``blocks`` more blocks. They must be free."""
        if not rendering.slot:
            rendering.slot = self._clause_slots.pop()
        rendering.blocks += self._take(blocks)

    def evict(self, rendering: Rendering) -> None:
        """Take a clause's own blocks away. It will be fed again from the shared part of its prompt on."""
        self._blocks += rendering.blocks
        rendering.blocks, rendering.fed = [], rendering.voice.shared

    def free(self, rendering: Rendering) -> None:
        """Free everything that a finished clause holds."""
        self.evict(rendering)
        if rendering.slot:
            self._clause_slots.append(rendering.slot)
            rendering.slot = 0

    def _take(self, count: int) -> list[int]:
        return [self._blocks.pop() for _ in range(count)]
