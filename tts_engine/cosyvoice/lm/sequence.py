"""The state of a clause in the language model's loop, with complete or with streamed text.

The loop's thread changes it. A reader on the event loop takes ids from ``tokens``, which only grows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import numpy as np

from tts_engine.cosyvoice.lm.api import DRAW, FEED, INTERLEAVED, Input, Reader, SequencePrefill
from tts_engine.cosyvoice.lm.bistream import Bistream, Item, PositionKind
from tts_engine.cosyvoice.models.config import LanguageModelConfig
from tts_engine.cosyvoice.vllm_plugin.joined_table import JoinedTable
from tts_engine.errors import EngineError, SynthesisFailed


class LmSequence:
    """A clause whose text is complete."""

    def __init__(self, reader: Reader, admission: SequencePrefill | None, max_tokens: int) -> None:
        """``admission``: the prefill of the sequence. None: not known yet."""
        self.reader, self.admission, self.max_tokens = reader, admission, max_tokens
        self.loop = asyncio.get_running_loop()
        self.waker = asyncio.Event()
        self.tokens: list[int] = []
        self.taken = 0
        """Number of ids that the reader has taken."""
        self.wake_at = 0
        """Number of ids at which the reader is woken."""
        self.slot = -1
        self.launched = 0
        """Number of steps launched so far, including the prefill."""
        self.cancelled = self.done = False
        self.error: EngineError | None = None

    @property
    def due(self) -> bool:
        """True if the reader waits for the id of the next step."""
        return self.may_launch(self.wake_at)

    def may_launch(self, limit: int) -> bool:
        """Return True if the next step may be launched with at most ``limit`` ids drawn."""
        return self.launched < min(self.max_tokens, limit)

    def want(self) -> None:
        """Set ``wake_at`` to the number of ids that the reader wants."""
        self.wake_at = self.taken + max(self.reader.wanted(), 1)

    def listen(self) -> None:
        """Take the text that has arrived. Called under the loop's lock."""

    def launch(self) -> Input | None:
        """Count the next step as launched. Return its input, or None for the last drawn id."""
        self.launched += 1
        return None

    def take(self, token: int, config: LanguageModelConfig) -> None:
        """Take the id of a step. A negative id means that the logits were NaN."""
        if 0 <= token < config.speech_token_size:
            self.tokens.append(token)
            self.done = len(self.tokens) >= self.max_tokens
        else:
            if token < 0:
                self.error = _nan_error()
            self.done = True


class StreamedLmSequence(LmSequence):
    """A clause whose text arrives while it is drawn, in the interleaved layout (``bistream``).

    The next input depends on the last drawn id, so no step is launched before the previous one has been read. The first
    feed is prefilled; each later step feeds one id.
    """

    def __init__(
        self,
        reader: Reader,
        machine: Bistream,
        table: JoinedTable,
        *,
        positions: int,
        seed: int,
    ) -> None:
        """``positions``: number of positions in a slot."""
        super().__init__(reader, None, positions)
        self._machine, self._table, self._positions, self._seed = machine, table, positions, seed
        self.incoming: list[int] = []
        """New text ids. Used under the loop's lock."""
        self.text_ended = False
        self._text_ids = 0
        self._feeding: deque[int] = deque()
        """Joined ids of the current feed."""
        self._forced: int | None = None
        self._may_end = self._flying = self._drawing = False
        self._fed = 0

    def may_launch(self, limit: int) -> bool:
        return bool(self._feeding) and not self._flying and len(self.tokens) < limit

    def listen(self) -> None:
        if self.incoming:
            self._machine.push_text(self.incoming)
            self._text_ids += len(self.incoming)
            self.incoming = []
        if self.text_ended:
            self._machine.end_text()
        if not self._feeding and not self._flying:
            self._next_feed()

    def _next_feed(self) -> None:
        feed = self._machine.next()
        if feed is None:
            return
        ids = [joined_id(item, self._table) for item in feed.items]
        self._forced, self._may_end = feed.forced, feed.may_end
        if self.admission is not None:
            self._feeding.extend(ids)
            return
        self.admission = SequencePrefill(
            slot=-1, ids=np.array(ids, np.int64), seed=self._seed, min_tokens=0 if self._may_end else INTERLEAVED
        )
        self._fed = len(ids)
        self._flying = self._drawing = True
        if self._fed >= self._positions:
            self._fail(f"voice prompt and first text take {self._fed} positions, expected fewer than {self._positions}")

    def launch(self) -> Input:
        self.launched += 1
        token = self._feeding.popleft()
        self._flying, self._drawing = True, not self._feeding
        self._fed += 1
        draw = FEED if self._feeding else DRAW if self._forced is None else self._forced
        return Input(slot=self.slot, id=token, draw=draw, min_tokens=0 if self._may_end else INTERLEAVED)

    def take(self, token: int, config: LanguageModelConfig) -> None:
        self._flying = False
        if not self._drawing:
            return
        if token < 0:
            self.error, self.done = _nan_error(), True
            return
        if self._may_end and token >= config.speech_token_size:  # any stop id ends the clause
            self.done = True
            return
        if (speech := self._machine.drawn(token)) is not None:
            self.tokens.append(speech)
        most = config.sampling.lengths(self._text_ids)[1]
        self.done = self._fed >= self._positions - 1 or (self._may_end and len(self.tokens) >= most)
        if not self.done:
            self._next_feed()

    def _fail(self, reason: str) -> None:
        self.error, self.done = SynthesisFailed(reason), True


def joined_id(item: Item, table: JoinedTable) -> int:
    """Return the joined id of an item of the interleaved layout."""
    places = {
        PositionKind.SOS: table.start,
        PositionKind.TASK: table.task,
        PositionKind.TEXT: table.text_offset + item.id,
    }
    return places.get(item.kind, item.id)


def _nan_error() -> SynthesisFailed:
    return SynthesisFailed("the language model returned NaN for this clause")


def wake(sequences: Sequence[LmSequence]) -> None:
    """Wake the readers of sequences that have the same event loop. Called from the language model's thread.

    Raises:
        RuntimeError: the event loop is closed.
    """
    if sequences:
        sequences[0].loop.call_soon_threadsafe(_set_all, [s.waker for s in sequences])


def _set_all(wakers: list[asyncio.Event]) -> None:
    for waker in wakers:
        waker.set()
