"""The seam of the language model: a prompt of joined ids in, speech ids out as they are drawn.

``vllm_lm.VllmBackend`` and ``torch_lm.TorchLm`` stand behind it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tts_engine.cosyvoice.models.config import LanguageModelConfig
from tts_engine.cosyvoice.vllm_plugin.joined_table import JoinedTable
from tts_engine.errors import InvalidRequest


class Reader(Protocol):
    """Whoever takes a clause's ids."""

    def wanted(self) -> int:
        """Asked when all ids so far have been taken: how many more it waits for."""
        ...

    def slack_s(self, now: float) -> float:
        """Seconds from ``now`` (monotonic) until its caller hears silence; 0 while one waits for the first sound."""
        ...


class Eager:
    """A reader who waits for every second of speech."""

    def wanted(self) -> int:
        return 25

    def slack_s(self, now: float) -> float:
        return 0.0


EAGER = Eager()


def never() -> bool:
    """For ``LmBackend.busy``."""
    return False


def room(prompt: Sequence[int], positions: int, *, min_tokens: int) -> int:
    """Ids that can be drawn after a prompt, of a model with so many positions.

    Raises:
        InvalidRequest: fewer than ``min_tokens``, or none.
    """
    left = positions - len(prompt)
    if left < max(min_tokens, 1):
        raise InvalidRequest(
            f"clause and voice prompt take {len(prompt)} positions of {positions}; "
            f"{max(min_tokens, 1)} are needed for speech"
        )
    return left


class LmBackend(Protocol):
    """Speech ids of many clauses at once."""

    table: JoinedTable
    busy: Callable[[], bool]
    """Whether those who take the ids have enough to do without more; to be set before the start, asked in any thread.
    A backend may then let those with slack wait."""

    @property
    def alive(self) -> bool:
        """False before the start, and after a fault that it does not get over."""
        ...

    def generate(
        self,
        prompt: Sequence[int],
        *,
        min_tokens: int,
        max_tokens: int,
        seed: int,
        reader: Reader = EAGER,
    ) -> AsyncGenerator[int, None]:
        """Draw the speech ids of one clause, without the stop id.

        Closing the generator, or cancelling the task that reads it, takes the clause out of the next step.

        Args:
            prompt: joined ids, ``table.prompt``.
            min_tokens: ids before which no stop is drawn.
            max_tokens: ids after which the clause is cut.
            seed: int64; the same seed draws the same ids whatever else runs.
            reader: a backend may hand over as many ids at once as it wants, draw no more before it wants them, and
                let those with slack wait.

        Raises:
            EngineError: this clause cannot be drawn.
        """
        ...

    async def aclose(self) -> None: ...


class StreamedLm(Protocol):
    """A backend that takes text while it draws. Both do."""

    def generate_streamed(
        self,
        text: AsyncIterator[Sequence[int]],
        *,
        prompt_text: Sequence[int],
        prompt_speech: Sequence[int],
        seed: int,
        reader: Reader = EAGER,
    ) -> AsyncGenerator[int, None]:
        """Speech ids of a clause whose text ids come in meanwhile; otherwise as ``LmBackend.generate``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A sequence to begin: joined ids (``JoinedTable.prompt``) and the parameters of its draws."""

    slot: int
    ids: Sequence[int]
    seed: int
    min_tokens: int
    """Ids before which all control ids are masked; or ``INTERLEAVED``."""


DRAW, FEED = -1, -2
"""For ``Input.draw``: draw an id; or only feed, and draw nothing."""
INTERLEAVED = -1
"""As ``min_tokens``: every control id is masked but the one that asks for text, for text that is streamed in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What a slot is fed in one decode step instead of the id it has drawn last."""

    slot: int
    id: int
    """Joined id."""
    draw: int
    """``DRAW``, ``FEED``, or the id that is taken without drawing."""
    min_tokens: int
    """From now on, see ``Admission``."""


def joined_table(config: LanguageModelConfig) -> JoinedTable:
    """Where the parts of the joined table lie for a model: speech ids, version 2's two control rows, text ids."""
    head = config.speech_vocab_size
    controls = 2 if config.version == 2 else 0
    return JoinedTable(
        speech_tokens=config.speech_token_size,
        head_size=head,
        start=head if controls else config.speech_token_size,
        task=head + 1 if controls else config.speech_token_size + 2,
        text_offset=head + controls,
        size=head + controls + config.vocab_size,
    )
