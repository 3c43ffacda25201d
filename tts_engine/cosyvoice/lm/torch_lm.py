"""The language model in the engine's process: continuous batching in one thread.

Clauses join and leave between steps. Each round prefills all waiting clauses (several prompts at once), launches a
decode step for the clauses that want an id, and only then reads the ids of the previous round. The device therefore
never waits for the host. A clause that has drawn its stop id gets one more step, whose id is dropped.

A step takes about as long for 32 clauses as for one, and slows down other work on the device. While token-to-wave has
enough work, steps are therefore launched only for urgent clauses, filled up with some others. Rows of a step that would
be padding go to paused clauses, up to two seconds of audio ahead of their readers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tts_engine.cosyvoice.device_thread import DeviceThread
from tts_engine.cosyvoice.lm.api import EAGER, Input, Reader, SequencePrefill, joined_table, never, room
from tts_engine.cosyvoice.lm.bistream import Bistream
from tts_engine.cosyvoice.lm.sequence import LmSequence, StreamedLmSequence, wake
from tts_engine.cosyvoice.models.config import LanguageModelConfig
from tts_engine.errors import EngineError, Exhausted, InvalidRequest, SynthesisFailed

log = logging.getLogger(__name__)

_POLL_S = 0.002
"""Interval of checks for urgent clauses, seconds."""


class Drawing(Protocol):
    def ids(self) -> list[int]: ...


class LmSteps(Protocol):
    """Prefill and decode steps: ``cuda_steps.CudaLm`` or ``eager_steps.EagerLm``. Only one thread may use them at a
    time."""

    config: LanguageModelConfig
    slots: int
    max_length: int

    def warm_up(self) -> None: ...

    def computed(self, admission: SequencePrefill) -> int:
        """Return the number of positions of a prompt that the next prefill would compute."""
        ...

    def filled(self, rows: int) -> int:
        """Return the largest number of rows that take no longer than ``rows``."""
        ...

    def prefill(self, admissions: Sequence[SequencePrefill]) -> Drawing: ...

    def decode(self, slots: Sequence[int], inputs: Sequence[Input] = ()) -> Drawing: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchLmConfig:
    """Limits of the loop."""

    max_waiting: int = 256
    """Most clauses that wait for a slot. Further ones are refused."""
    prefill_rows: int = 16
    """Most prompts of one prefill, up to ``flat_prompts.ROWS``. More would delay the clauses that are decoding."""
    decode_rows: int = 128
    """Most clauses of one decode step. If more are due, they take turns."""
    prefill_positions: int = 4096
    """Most positions of a prefill of several prompts. More would run without a CUDA graph."""
    riding_rows: int = 32
    """While token-to-wave is busy, steps are filled with clauses that are not urgent up to this size. More would make
    the step longer."""
    urgent_s: float = 0.4
    """A clause with less unplayed audio than this, in seconds, is urgent."""
    ahead: int = 50
    """Most ids (25 a second of audio) that are drawn ahead of a reader's wish. Only rows that would otherwise be
    padding are used: a step just for them would slow down the chunk that is heard next."""


class TorchLm(DeviceThread):
    """An ``LmBackend`` over steps on this process's device. Call ``start`` before use and ``aclose`` at the end."""

    def __init__(self, steps: LmSteps, config: TorchLmConfig | None = None) -> None:
        super().__init__("lm", "the language model")
        self._steps, self._config = steps, config or TorchLmConfig()
        self.table = joined_table(steps.config)
        self._waiting: deque[LmSequence] = deque()
        self._listening: list[StreamedLmSequence] = []
        """Streamed clauses without enough text to begin."""
        self._beginning: list[LmSequence] = []
        """Clauses that got their slots in this round."""
        self._live: list[LmSequence] = []
        self._free = list(range(steps.slots))[::-1]
        self.busy = never

    @property
    def live(self) -> int:
        """Number of clauses that have a slot."""
        return len(self._live)

    @property
    def free_slots(self) -> int:
        return len(self._free)

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
        """See ``api.LmBackend``. A group has as many ids as the reader wants, because waking it costs more than drawing
        an id.

        Raises:
            InvalidRequest: the prompt leaves no room for ``min_tokens``.
            Exhausted: too many clauses wait.
            SynthesisFailed: the step failed, or its logits were NaN.
            Unavailable: the backend is closed, or a fault ended its loop.
        """
        most = min(max_tokens, room(prompt, self._steps.max_length, min_tokens=min_tokens))
        admission = SequencePrefill(
            slot=-1, ids=prompt, seed=seed, min_tokens=min(min_tokens, max_tokens), shared=shared
        )
        sequence = LmSequence(reader, admission, most)
        self._enter(sequence)
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
        """Draw the speech ids of a clause whose text ids are still arriving, in groups of any size.

        It uses the interleaved layout of the published models (``bistream``): the first ids are drawn after five text
        ids, and stop ids are masked until the text has ended.

        Raises:
            InvalidRequest: CosyVoice3's prompt text has no end-of-prompt id.
            others: those of ``generate``, and those that ``text`` raises.
        """
        try:
            machine = Bistream(self._steps.config, prompt_text=prompt_text, prompt_speech=prompt_speech)
        except ValueError as exc:
            raise InvalidRequest(str(exc)) from exc
        sequence = StreamedLmSequence(reader, machine, self.table, positions=self._steps.max_length, seed=seed)
        self._enter(sequence)
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
        except Exception:  # the reader raises this error
            sequence.done = True
            sequence.waker.set()
            raise
        finally:
            with self._changed:
                sequence.text_ended = True
                self._changed.notify()

    def _enter(self, sequence: LmSequence) -> None:
        sequence.want()
        with self._changed:
            if self._closing:
                raise self._closed()
            if (count := len(self._waiting) + len(self._listening)) >= self._config.max_waiting:
                raise Exhausted(f"{count} clauses wait for the language model", retry_after_s=1.0)
            # The thread replaces the lists, so they are looked up under the lock.
            if isinstance(sequence, StreamedLmSequence):
                self._listening.append(sequence)
            else:
                self._waiting.append(sequence)
        self._notify_soon()

    async def _read(self, sequence: LmSequence) -> AsyncGenerator[Sequence[int], None]:
        """Yield ids as they are drawn. Closing the generator takes the sequence out of the next step."""
        try:
            while True:
                done = sequence.done  # read first, because nothing is appended after done
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
                    self._changed.wait(_POLL_S if any(s.due for s in self._live) else None)
                    begun = self._admit()
                if self._closing:
                    return
            before = len(flying)
            while begun:  # prefill a whole burst first: a decode step between two prefills would delay the later ones
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
            self._live, self._beginning = self._live + started, []
            for _ in range(before if started or due else len(flying)):
                self._take(*flying.popleft())

    def _due(self) -> list[LmSequence]:
        """Return the sequences of the next decode step: those whose readers wait, and some that fill it up."""
        due, rows = [s for s in self._live if s.due], self._config.decode_rows
        if due and self.busy():
            now = time.monotonic()
            slack_s = {s: s.reader.slack_s(now) for s in due}
            urgent = sum(slack < self._config.urgent_s for slack in slack_s.values())
            due.sort(key=lambda s: (slack_s[s], s.launched))
            rows = min(rows, max(urgent, self._config.riding_rows)) if urgent else 0
        elif len(due) > rows:
            due.sort(key=lambda s: s.launched)  # fewest steps first, so that all progress equally
        due = due[:rows]
        if due and (places := self._steps.filled(len(due)) - len(due)):
            ahead, drawn_for = self._config.ahead, set(due)
            riders = [s for s in self._live if s not in drawn_for and s.may_launch(s.wake_at + ahead)]
            due += sorted(riders, key=lambda s: s.launched - s.wake_at)[:places]
        return due

    def _admit(self) -> list[LmSequence]:
        """Drop finished and cancelled sequences, and give slots to waiting ones. Called under the lock."""
        live: list[LmSequence] = []
        for s in self._live:  # one pass, because a reader may cancel at any moment and its slot would be lost
            if s.cancelled or s.done:
                self._free.append(s.slot)
            else:
                live.append(s)
        self._live = live
        for s in (*self._live, *self._listening):
            s.listen()
        self._wake([s for s in self._listening if s.done])  # their first feed is too long
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
        """Prefill new sequences. If memory runs out, they fail; the others continue."""
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
            if s.done or len(s.tokens) == s.wake_at:  # no one waits for ids drawn ahead
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
        except RuntimeError:  # the event loop is closed, so no reader waits
            log.debug("a reader's event loop is closed")
