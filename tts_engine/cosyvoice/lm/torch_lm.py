"""The language model in our own process: continuous batching in one thread.

Clauses join and leave between steps. Each round begins all waiting clauses (several prompts in a prefill), then draws
one id for every clause that wants one, and only then reads the ids of the previous round. So the device never waits for
the host. A clause that has drawn its stop is therefore drawn for once more, and that id is dropped.

A step takes hardly longer for 32 clauses than for one, and slows down all other work on the device. So while
token-to-wave has enough to do, a step draws only for urgent clauses and for some others along with them. The rest waits
and is drawn for together. Places of a step that would be empty, and cost nothing, go to clauses that pause, up to two
seconds of sound ahead of their readers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tts_engine.cosyvoice.device_thread import DeviceThread
from tts_engine.cosyvoice.lm.api import EAGER, Admission, Input, Reader, joined_table, never, room
from tts_engine.cosyvoice.lm.bistream import Bistream
from tts_engine.cosyvoice.lm.sequence import LmSequence, StreamedLmSequence, wake
from tts_engine.cosyvoice.models.config import LanguageModelConfig
from tts_engine.errors import EngineError, Exhausted, InvalidRequest, SynthesisFailed

log = logging.getLogger(__name__)

_LOOK_S = 0.002
"""Time between two checks which clauses have become urgent."""


class Drawing(Protocol):
    def ids(self) -> list[int]: ...


class LmSteps(Protocol):
    """The steps that the loop drives: ``cuda_steps.CudaLm`` or ``eager_steps.EagerLm``. One thread at a time uses
    them."""

    config: LanguageModelConfig
    slots: int
    max_length: int

    def warm_up(self) -> None: ...

    def computed(self, admission: Admission) -> int:
        """Return how many positions of a prompt the next prefill would compute."""
        ...

    def filled(self, rows: int) -> int:
        """Return the most rows of a step that takes no longer than one of ``rows``."""
        ...

    def prefill(self, admissions: Sequence[Admission]) -> Drawing: ...

    def decode(self, slots: Sequence[int], inputs: Sequence[Input] = ()) -> Drawing: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchLmConfig:
    """Bounds of the loop, and how it passes ids on."""

    max_waiting: int = 256
    """Most clauses that wait for a slot. One more is refused."""
    prefill_rows: int = 16
    """Most prompts of one prefill, up to ``flat_prompts.ROWS``. More would delay the clauses that are being drawn."""
    decode_rows: int = 128
    """Most clauses of one step. If more are due, they take turns."""
    prefill_positions: int = 4096
    """Most positions that one prefill of several prompts computes. More would run without a CUDA graph."""
    riding_rows: int = 32
    """Most clauses of a step while only urgent clauses are drawn for. More would make the step longer."""
    urgent_s: float = 0.4
    """A clause with fewer seconds of sound in hand is urgent."""
    ahead: int = 50
    """How many ids are drawn beyond those that a reader waits for, along with others, in places of a step that cost
    nothing. So later steps are fewer; 25 ids are a second of sound. By itself a clause pauses while its chunk is made,
    because drawing would slow down that chunk, which is heard next, in favour of a chunk that is heard a second
    later."""


class TorchLm(DeviceThread):
    """An ``LmBackend`` over steps on this process's device. Call ``start`` before use and ``aclose`` at the end."""

    def __init__(self, steps: LmSteps, config: TorchLmConfig | None = None) -> None:
        super().__init__("lm", "the language model")
        self._steps, self._config = steps, config or TorchLmConfig()
        self.table = joined_table(steps.config)
        self._waiting: deque[LmSequence] = deque()
        self._listening: list[StreamedLmSequence] = []
        """Streamed clauses that do not have enough text to begin."""
        self._beginning: list[LmSequence] = []
        """Clauses that have got their slots in this round."""
        self._live: list[LmSequence] = []
        self._free = list(range(steps.slots))[::-1]
        self.busy = never
        self.rounds = 0
        """Number of decode steps so far."""

    @property
    def live(self) -> int:
        """Number of clauses that are being drawn."""
        return len(self._live)

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def lacking(self) -> Sequence[int]:
        """See ``LmBackend``."""
        now = time.monotonic()
        fresh = [s for s in self._live if s.reader.begins and not (s.cancelled or s.done)]
        return [max(s.wake_at - len(s.tokens), 0) for s in fresh if s.reader.slack_s(now) <= 0]

    async def generate(
        self,
        prompt: NDArray[np.int64],
        *,
        min_tokens: int,
        max_tokens: int,
        seed: int,
        reader: Reader = EAGER,
        shared: int = 0,
    ) -> AsyncGenerator[Sequence[int], None]:
        """Draw ids as ``api.LmBackend`` says. A group has as many as the reader wants, because waking it costs more
        than drawing an id.

        Raises:
            InvalidRequest: prompt and ``max_tokens`` do not fit a slot, and cutting leaves less than ``min_tokens``.
            Exhausted: too many clauses wait.
            SynthesisFailed: the step failed, or returned NaN.
            Unavailable: the backend is closed, or a fault ended its loop.
        """
        most = min(max_tokens, room(prompt, self._steps.max_length, min_tokens=min_tokens))
        admission = Admission(slot=-1, ids=prompt, seed=seed, min_tokens=min(min_tokens, max_tokens), shared=shared)
        sequence = LmSequence(reader, admission, most)
        self._enter(sequence, self._waiting)
        async with aclosing(self._read(sequence)) as groups:
            async for ids in groups:
                yield ids

    async def generate_streamed(
        self,
        text: AsyncIterator[Sequence[int]],
        *,
        prompt_text: Sequence[int],
        prompt_speech: Sequence[int],
        seed: int,
        reader: Reader = EAGER,
    ) -> AsyncGenerator[Sequence[int], None]:
        """Draw the speech ids of a clause whose text ids arrive meanwhile, in groups of any size.

        This is the interleaved layout of the published models (``bistream``): the first ids are drawn after five ids of
        text. Ends are masked until the text has ended.

        Raises:
            InvalidRequest: CosyVoice3's prompt text has no end-of-prompt id.
            others: those of ``generate``, and those that ``text`` raises.
        """
        try:
            machine = Bistream(self._steps.config, prompt_text=prompt_text, prompt_speech=prompt_speech)
        except ValueError as exc:
            raise InvalidRequest(str(exc)) from exc
        sequence = StreamedLmSequence(reader, machine, self.table, positions=self._steps.max_length, seed=seed)
        self._enter(sequence, self._listening)
        feeding = asyncio.create_task(self._feed(sequence, text), name="text into the language model")
        try:
            async with aclosing(self._read(sequence)) as groups:
                async for ids in groups:
                    yield ids
            if feeding.done():
                feeding.result()
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])

    async def _feed(self, sequence: StreamedLmSequence, text: AsyncIterator[Sequence[int]]) -> None:
        try:
            async for ids in text:
                with self._changed:
                    sequence.incoming += ids
                    self._changed.notify()
        except Exception:  # the reader gets the error, since there will be no more text
            sequence.done = True
            sequence.waker.set()
            raise
        finally:
            with self._changed:
                sequence.text_ended = True
                self._changed.notify()

    def _enter(self, sequence: LmSequence, queue: Any) -> None:
        sequence.want()
        with self._changed:
            if self._closing:
                raise self._closed()
            if (count := len(self._waiting) + len(self._listening)) >= self._config.max_waiting:
                raise Exhausted(f"{count} clauses wait for the language model", retry_after_s=1.0)
            queue.append(sequence)
        self._notify_soon()

    async def _read(self, sequence: LmSequence) -> AsyncGenerator[Sequence[int], None]:
        """Yield the ids as they come. Closing the generator takes the sequence out of the next step."""
        try:
            while True:
                done = sequence.done  # read before the length, because nothing is appended after done
                if ids := sequence.tokens[sequence.taken :]:
                    sequence.taken += len(ids)
                    yield ids
                if done:
                    break
                sequence.waker.clear()
                with self._changed:
                    sequence.want()
                self._notify_soon()
                if not sequence.done and len(sequence.tokens) < sequence.wake_at:
                    await sequence.waker.wait()
            if sequence.error is not None:
                raise sequence.error
        finally:
            sequence.cancelled = True
            with self._changed:
                self._changed.notify()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        self._steps.warm_up()

    def _loop(self) -> None:
        flying: deque[tuple[Drawing, list[LmSequence]]] = deque()
        while True:
            with self._changed:
                begun = self._admit()
                while not (self._closing or begun or flying or self._due()):
                    self._changed.wait(_LOOK_S if any(s.due for s in self._live) else None)
                    begun = self._admit()
                if self._closing:
                    return
            before = len(flying)
            while begun:  # all of a burst, because a step between two prefills would only delay the last of them
                self._begin(begun, flying)
                with self._changed:
                    begun = self._admit()
            due = self._due()
            started = self._beginning
            for s in started:
                s.launched = 1
            if due:
                inputs = [given for s in due if (given := s.launch()) is not None]
                flying.append((self._steps.decode([s.slot for s in due], inputs), due))
                self.rounds += 1
            self._live, self._beginning = self._live + started, []
            for _ in range(before if started or due else len(flying)):
                self._take(*flying.popleft())

    def _due(self) -> list[LmSequence]:
        """Return the sequences for which the next step draws: those whose readers wait, and some that fill it up."""
        due, rows = [s for s in self._live if s.due], self._config.decode_rows
        if due and self.busy():
            now = time.monotonic()
            slack_s = {s: s.reader.slack_s(now) for s in due}
            urgent = sum(slack < self._config.urgent_s for slack in slack_s.values())
            due.sort(key=lambda s: (slack_s[s], s.launched))
            rows = min(rows, max(urgent, self._config.riding_rows)) if urgent else 0
        elif len(due) > rows:
            due.sort(key=lambda s: s.launched)  # those with the fewest steps come first, so that none falls behind
        due = due[:rows]
        if due and (places := self._steps.filled(len(due)) - len(due)):
            ahead, drawn_for = self._config.ahead, set(due)
            riders = [s for s in self._live if s not in drawn_for and s.may_launch(s.wake_at + ahead)]
            due += sorted(riders, key=lambda s: s.launched - s.wake_at)[:places]
        return due

    def _admit(self) -> list[LmSequence]:
        """Drop sequences that were given up, and give slots to waiting ones. Called under the lock."""
        live: list[LmSequence] = []
        for s in self._live:  # one look at each: a reader may give up at any moment, and would take the slot with it
            if s.cancelled or s.done:
                self._free.append(s.slot)
            else:
                live.append(s)
        self._live = live
        for s in (*self._live, *self._listening):
            s.listen()
        self._wake([s for s in self._listening if s.done])  # its beginning is too long
        begun: list[LmSequence] = []
        self._listening = [s for s in self._listening if not (s.cancelled or s.done)]
        self._waiting += [s for s in self._listening if s.admission is not None]
        self._listening = [s for s in self._listening if s.admission is None]
        positions = 0
        while self._waiting and self._free and len(begun) < self._config.prefill_rows:
            s = self._waiting[0]
            if s.cancelled or s.done:
                self._waiting.popleft()
                continue
            assert s.admission is not None
            positions += self._steps.computed(s.admission)
            if begun and positions > self._config.prefill_positions:
                break
            self._waiting.popleft()
            s.slot = self._free.pop()
            s.admission = replace(s.admission, slot=s.slot)
            begun.append(s)
        self._beginning += begun
        return begun

    def _begin(self, begun: list[LmSequence], flying: deque[tuple[Drawing, list[LmSequence]]]) -> None:
        """Prefill. If memory is short, these sequences fail, and the others go on."""
        try:
            flying.append((self._steps.prefill([s.admission for s in begun if s.admission is not None]), begun))
        except torch.OutOfMemoryError:
            log.exception("out of device memory")
            for s in begun:
                s.error, s.done = SynthesisFailed("out of device memory"), True
                self._free.append(s.slot)
            self._beginning = [s for s in self._beginning if s not in begun]
            self._wake(begun)

    def _take(self, drawing: Drawing, sequences: list[LmSequence]) -> None:
        woken: list[LmSequence] = []
        for s, token in zip(sequences, drawing.ids(), strict=True):
            if s.done or s.cancelled:
                continue
            s.take(token, self._steps.config)
            if s.done or len(s.tokens) == s.wake_at:  # nobody waits for the ids ahead
                woken.append(s)
        self._wake(woken)

    def _fail(self, error: EngineError) -> None:
        with self._changed:
            left = [*self._live, *self._beginning, *self._waiting, *self._listening]
            self._live, self._beginning, self._waiting, self._listening = [], [], deque(), []
        for s in left:
            s.error, s.done = s.error or error, True
        self._wake(left)

    @staticmethod
    def _wake(sequences: list[LmSequence]) -> None:
        try:
            wake(sequences)
        except RuntimeError:  # the event loop is closed, so nobody waits
            log.debug("a reader's event loop is closed")
