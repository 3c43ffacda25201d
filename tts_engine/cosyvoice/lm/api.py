"""The seam of the language model: it takes a prompt of joined ids and gives speech ids as they are drawn.

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
    """The code that takes a clause's ids."""

    def wanted(self) -> int:
        """Return for how many more ids the reader waits. Asked when it has taken all ids so far."""
        ...

    def slack_s(self, now: float) -> float:
        """Return the seconds from ``now`` (monotonic) until the caller hears silence. 0: the first sound is awaited."""
        ...

    @property
    def begins(self) -> bool:
        """Will the reader ask for the clause's first sound as soon as it has the ids that it wants?"""
        ...


class Eager:
    """A reader who waits for every second of speech."""

    def wanted(self) -> int:
        return 25

    def slack_s(self, now: float) -> float:
        return 0.0

    @property
    def begins(self) -> bool:
        return False


EAGER = Eager()


def never() -> bool:
    """Return False, as a value for ``LmBackend.busy``."""
    return False


def room(prompt: NDArray[np.int64], positions: int, *, min_tokens: int) -> int:
    """Return how many ids can be drawn after a prompt by a model with ``positions`` positions.

    Raises:
        InvalidRequest: there is room for fewer than ``min_tokens`` ids, or for none.
    """
    left = positions - len(prompt)
    if left < max(min_tokens, 1):
        raise InvalidRequest(
            f"clause and voice prompt take {len(prompt)} positions of {positions}; "
            f"{max(min_tokens, 1)} are needed for speech"
        )
    return left


class LmBackend(Protocol):
    """Draws the speech ids of many clauses at once."""

    table: JoinedTable
    busy: Callable[[], bool]
    """Do those who take the ids have enough to do without more? A backend may then let clauses with slack wait. It is
    set before the start and may be called in any thread."""

    @property
    def alive(self) -> bool:
        """Does the backend work? False before the start, and after a fault from which it does not recover."""
        ...

    def lacking(self) -> Sequence[int]:
        """Return how many ids each of those clauses lacks that are being drawn for, begin, and whose callers hear
        nothing. 0: the reader has not asked for sound yet. It may be called in any thread. A backend that does not know
        returns nothing."""
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
            min_tokens: no stop is drawn before so many ids.
            max_tokens: the clause is cut after so many ids.
            seed: int64. The same seed draws the same ids, whatever else runs; on a GPU up to the rounding of products,
                which depends on how many rows are computed together, and in which a borderline draw may differ.
            reader: a backend may wait until a group is as large as the reader wants, draw no more before it wants
                them, and let readers with slack wait.
            shared: how many of the first ids all clauses of the voice have in common. A backend may keep their keys and
                values. Whether it had them changes what is drawn by no more than that rounding.

        Raises:
            EngineError: this clause cannot be drawn.
        """
        ...

    async def aclose(self) -> None: ...


class StreamedLm(Protocol):
    """A backend that takes text while it draws. Both backends do."""

    def generate_streamed(
        self,
        text: AsyncIterator[Sequence[int]],
        *,
        prompt_text: Sequence[int],
        prompt_speech: Sequence[int],
        seed: int,
        reader: Reader = EAGER,
    ) -> AsyncGenerator[Sequence[int], None]:
        """Draw the speech ids of a clause whose text ids arrive meanwhile. All else is as in ``LmBackend.generate``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A sequence to begin: joined ids (``JoinedTable.prompt``) and the parameters of its draws."""

    slot: int
    ids: NDArray[np.int64]
    seed: int
    min_tokens: int
    """All control ids are masked before so many ids. Or ``INTERLEAVED``."""
    shared: int = 0
    """How many of the first ids other prompts have too, or will have."""


DRAW, FEED = -1, -2
"""Values of ``Input.draw``: draw an id; or feed one and draw nothing."""
INTERLEAVED = -1
"""Value of ``min_tokens`` for streamed text: every control id is masked except the one that asks for text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What a slot is fed in one decode step instead of the id that it has drawn last."""

    slot: int
    id: int
    """Joined id."""
    draw: int
    """``DRAW``, ``FEED``, or the id that is taken without drawing."""
    min_tokens: int
    """The value from now on; see ``Admission``."""


def joined_table(config: LanguageModelConfig) -> JoinedTable:
    """Return where the parts of a model's joined table are: speech ids, version 2's two control rows, text ids."""
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
