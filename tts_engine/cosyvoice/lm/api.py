"""The interface of the language model: it takes a prompt of joined ids and returns speech ids as they are drawn.

``vllm_lm.VllmBackend`` and ``torch_lm.TorchLm`` implement it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tts_engine.cosyvoice.models.config import LanguageModelConfig
from tts_engine.cosyvoice.vllm_plugin.joined_table import JoinedTable
from tts_engine.errors import InvalidRequest


class Reader(Protocol):
    """The consumer of a clause's ids."""

    def wanted(self) -> int:
        """Return how many more ids the reader waits for. Called after it has taken all ids drawn so far."""
        ...

    def slack_s(self, now: float) -> float:
        """Return the seconds from ``now`` (monotonic) until the caller's audio runs out. 0: the first audio is
        awaited."""
        ...


class Eager:
    """A reader that always waits for the next second of speech (25 ids)."""

    def wanted(self) -> int:
        return 25

    def slack_s(self, now: float) -> float:
        return 0.0


EAGER = Eager()


def never() -> bool:
    """Return False. Default of ``LmBackend.busy``."""
    return False


def room(prompt: NDArray[np.int64], positions: int, *, min_tokens: int) -> int:
    """Return how many ids can be drawn after a prompt if a sequence has ``positions`` positions.

    Raises:
        InvalidRequest: there is no room, or room for fewer than ``min_tokens`` ids.
    """
    left = positions - len(prompt)
    if left < max(min_tokens, 1):
        raise InvalidRequest(
            f"clause and voice prompt take {len(prompt)} of {positions} positions, expected at least "
            f"{max(min_tokens, 1)} left for speech"
        )
    return left


class LmBackend(Protocol):
    """Draws the speech ids of many clauses at once."""

    table: JoinedTable
    busy: Callable[[], bool]
    """Returns True while token-to-wave has enough work. The backend may then delay clauses with slack. Set before the
    start; called in any thread."""

    @property
    def alive(self) -> bool:
        """True while the backend works: False before the start and after a fault from which it does not recover."""
        ...

    def generate(
        self,
        prompt: NDArray[np.int64],
        *,
        min_tokens: int,
        max_tokens: int,
        seed: int,
        reader: Reader = EAGER,
        shared: int = 0,
    ) -> AsyncGenerator[Sequence[int], None]:
        """Draw the speech ids of one clause, without the stop id, and yield them in groups.

        Closing the generator, or cancelling the task that reads it, takes the clause out of the next step.

        Args:
            prompt: joined ids, ``table.prompt``.
            min_tokens: stop ids are masked until this many ids are drawn.
            max_tokens: the clause is cut after this many ids.
            seed: int64. The same seed draws the same ids in any batch. On a GPU, the rounding of products depends on
                the batch size, which may change a borderline draw.
            reader: tells the backend how large groups should be, when to pause, and which clauses can wait.
            shared: number of leading ids that all clauses of the voice share. A backend may cache their keys and
                values, which changes the result by no more than that rounding.

        Raises:
            EngineError: this clause cannot be drawn.
        """
        ...

    async def aclose(self) -> None: ...


class StreamedLm(Protocol):
    """A backend that draws while text is still arriving. Both backends implement it."""

    def generate_streamed(
        self,
        text: AsyncIterator[Sequence[int]],
        *,
        prompt_text: Sequence[int],
        prompt_speech: Sequence[int],
        seed: int,
        reader: Reader = EAGER,
    ) -> AsyncGenerator[Sequence[int], None]:
        """Draw the speech ids of a clause whose text ids are still arriving. Otherwise like ``LmBackend.generate``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencePrefill:
    """A sequence to prefill: joined ids (``JoinedTable.prompt``) and sampling parameters."""

    slot: int
    ids: NDArray[np.int64]
    seed: int
    min_tokens: int
    """Control ids are masked until this many ids are drawn. Or ``INTERLEAVED``."""
    shared: int = 0
    """Number of leading ids that other prompts share."""


DRAW, FEED = -1, -2
"""Values of ``Input.draw``: draw an id after the fed one; or only feed."""
INTERLEAVED = -1
"""Value of ``min_tokens`` for streamed text: every control id is masked except ``fill``, which asks for text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The input of a slot in one decode step, in place of its last drawn id."""

    slot: int
    id: int
    """Joined id."""
    draw: int
    """``DRAW``, ``FEED``, or an id that is taken without drawing."""
    min_tokens: int
    """The new value; see ``SequencePrefill``."""


def joined_table(config: LanguageModelConfig) -> JoinedTable:
    """Return the layout of a model's joined table: speech ids, two control rows (version 2 only), text ids."""
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
