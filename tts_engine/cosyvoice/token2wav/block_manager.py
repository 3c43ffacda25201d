"""Who holds which slot and which blocks of the caches. Pure: numbers only; whoever owns the caches keeps the tensors.

A clause holds a slot (tails of convolutions) and blocks (keys and values, a chunk each), a voice's prompt the same. The
prompt's chunks are computed once and shared: a clause lists the prompt's blocks first, then its own. A prompt stays
until another one needs its place and no clause counts on it; the blocks of a clause can be taken from it at any time,
for it is computed again from the prompt on. Slot 0 and block 0 are scratch and never handed out.
"""

from __future__ import annotations

from collections.abc import Sequence

from tts_engine.cosyvoice.models.config import LOOK_AHEAD_TOKENS
from tts_engine.cosyvoice.token2wav.rendering import Rendering, Voice
from tts_engine.errors import Exhausted, InvalidRequest


class BlockManager:
    """Hands out slots and blocks of one device's caches. Not thread-safe."""

    def __init__(
        self, *, clauses: int, voices: int, blocks: int, chunk_tokens: int, max_chunks: int, first_hop: int
    ) -> None:
        """
        Args:
            clauses: slots for clauses; those of voices come after them.
            chunk_tokens: speech tokens of one block.
            max_chunks: of prompt and clause together.
            first_hop: tokens of a clause's first chunk, 1 to ``chunk_tokens``: prompts are cut at their head for it.
        """
        self.clauses, self.max_tokens = clauses, max_chunks * chunk_tokens
        self.chunk_tokens, self._first_hop = chunk_tokens, first_hop
        self._clause_slots = list(range(1, 1 + clauses))[::-1]
        self._voice_slots = list(range(1 + clauses, 1 + clauses + voices))
        self._blocks = list(range(1, 1 + blocks))[::-1]
        self.voices: dict[object, Voice] = {}
        """Prompts that are computed, by the key under which they are asked for."""

    @property
    def free_blocks(self) -> int:
        return len(self._blocks)

    @property
    def free_slots(self) -> int:
        """For clauses."""
        return len(self._clause_slots)

    # -- prompts

    def place(self, tokens: Sequence[int], *, now: float) -> Voice:
        """A place for as much of a prompt's end as is used of it. The one not used for longest makes room.

        ``keep`` it once it is computed, or ``release`` it.

        Raises:
            InvalidRequest: it leaves no room for a clause.
            Exhausted: clauses count on every other prompt.
        """
        left = self.chunk_tokens - self._first_hop
        # Without a prompt of that length the first chunk is a whole one.
        cut = (len(tokens) - left) % self.chunk_tokens if len(tokens) >= left else len(tokens)
        tokens = tokens[cut:]
        shared = max(len(tokens) - LOOK_AHEAD_TOKENS, 0) // self.chunk_tokens * self.chunk_tokens
        if shared >= self.max_tokens - self.chunk_tokens:
            raise InvalidRequest(
                f"the voice prompt has {len(tokens)} tokens; the engine keeps {self.max_tokens} of prompt and clause"
            )
        needed = shared // self.chunk_tokens
        while not self._voice_slots or len(self._blocks) < needed:
            idle = [(voice.used, key) for key, voice in self.voices.items() if not voice.clauses]
            if not idle:
                raise Exhausted("every place for a voice prompt is in use", retry_after_s=1.0)
            gone = self.voices.pop(min(idle, key=lambda pair: pair[0])[1])
            gone.gone = True
            self.release(gone)
        slot = self._voice_slots.pop()
        return Voice(slot - 1 - self.clauses, tokens, slot, self._take(needed), shared, used=now)

    def keep(self, key: object, voice: Voice) -> None:
        """The prompt is computed: whoever asks for it by this key shares it."""
        self.voices[key] = voice

    def release(self, voice: Voice) -> None:
        """Free a prompt's place."""
        self._blocks += voice.blocks
        self._voice_slots.append(voice.slot)

    # -- clauses

    def open(self, rendering: Rendering, *, now: float) -> None:
        """A clause counts on its voice's prompt from now on. It gets slot and blocks with ``grow``.

        Raises:
            Exhausted: the prompt has made room for another since it was asked for.
        """
        voice = rendering.voice
        if voice.gone:
            raise Exhausted("the voice made room for another; ask again", retry_after_s=0.1)
        voice.clauses += 1
        voice.used = now
        rendering.fed = voice.shared

    def missing(self, rendering: Rendering) -> int:
        """Blocks that the clause lacks for the chunk that it is fed next."""
        held = len(rendering.voice.blocks) + len(rendering.blocks)
        return max(rendering.fed // self.chunk_tokens + 1 - held, 0)

    def grow(self, rendering: Rendering, blocks: int) -> None:
        """Give a clause its slot, if it has none, and so many blocks more; they must be free."""
        if not rendering.slot:
            rendering.slot = self._clause_slots.pop()
        rendering.blocks += self._take(blocks)

    def evict(self, rendering: Rendering) -> None:
        """Take a clause's own blocks from it: it is fed again from the shared part of its prompt on."""
        self._blocks += rendering.blocks
        rendering.blocks, rendering.fed = [], rendering.voice.shared

    def free(self, rendering: Rendering) -> None:
        """Take everything from a clause that is over."""
        self.evict(rendering)
        if rendering.slot:
            self._clause_slots.append(rendering.slot)
            rendering.slot = 0

    def _take(self, count: int) -> list[int]:
        return [self._blocks.pop() for _ in range(count)]
