"""One utterance, from its text to its sound. One task works ahead until ``ahead_s`` seconds of sound are in hand:
clauses of the text (``UtteranceText``) -> sound of the model, of the cache or of another utterance's making
(``UtteranceSpeech``) -> ``SoundOut``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Protocol, Self

from tts_engine.api import AudioChunk, UtteranceRequest
from tts_engine.errors import EngineError, InvalidRequest, SynthesisFailed
from tts_engine.pipeline.utterance_speech import SharedByUtterances, UtteranceSpeech
from tts_engine.pipeline.utterance_text import PHRASE_WAIT_S, CutClause, UtteranceText
from tts_engine.text.clauses import ClauseSplitter

log = logging.getLogger(__name__)


class OpenUtterances(SharedByUtterances, Protocol):
    """The engine, which counts its open utterances."""

    def closed(self, utterance: EngineUtterance) -> None:
        """Note that an utterance has ended and released everything."""
        ...


SETTLE_MS = 300.0
"""Wait for more text after a full stop that follows an abbreviation, milliseconds. ``PHRASE_WAIT_S`` follows where a
number stands there. Language models pause for less between two tokens."""


class EngineUtterance:
    """See ``tts_engine.api.Utterance``. It passes clauses from the text side to the speaking side, and owns the task
    and the timer between them."""

    def __init__(self, engine: OpenUtterances, request: UtteranceRequest) -> None:
        self._engine = engine
        self._request = request
        self._changed = asyncio.Event()
        self.speech = UtteranceSpeech(engine, request, self._changed)
        self._text = UtteranceText(
            ClauseSplitter(engine.config.clauses),
            max_chars=engine.config.max_chars,
            clock=engine.clock,
            speaks=self.speech.speaks,
        )
        self._settle: asyncio.Handle | None = None
        """The timer that checks the end of the latest text, and then waits for more."""
        self._task: asyncio.Task[None] | None = None

    # -- the caller's side

    def feed(self, text: str) -> None:
        """Append text. Text after an error or ``aclose`` is ignored, and the iterator raises the error."""
        if self.speech.out.done or self.speech.error:
            return
        try:
            cuts = self._text.feed(text)
        except InvalidRequest as error:
            self.fail(error)
            return
        self._accept(cuts)
        self._speak_phrase()
        if self._text.grow(may_begin=self._task is None and self.speech.streams_text):
            self._start()
        self._stop_timer()
        # This runs later, because the end of a whole turn comes with its text and needs neither timer nor draft.
        self._settle = asyncio.get_running_loop().call_soon(self._expect_more)

    def end_text(self) -> None:
        """Make a clause of the text that is left."""
        if not self._text.ended:
            self._stop_timer()
            cuts = self._text.end()
            if not self.speech.error:
                self._accept(cuts)
            self._start()
            self._changed.set()

    def played(self, samples: int, *, at: float) -> None:
        """Take the phone's position. From now on it bounds the work ahead."""
        self.speech.out.played(samples, at=at)

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return self

    async def __anext__(self) -> AudioChunk:
        while (chunk := self.speech.out.take()) is None:
            if self.speech.out.done:
                if self.speech.error is not None:
                    raise self.speech.error
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return chunk

    def fail(self, error: EngineError) -> None:
        """Stop speaking. The iterator raises after the chunks that are already there."""
        self.speech.fail(error)
        self._text.drop()
        self._start()
        self._changed.set()

    async def aclose(self) -> None:
        """Cancel the utterance, and return when no more work is spent on it. A clause that others hear continues for
        them."""
        begun = self._engine.clock()
        self._stop_timer()
        task, self._task = self._task, None
        running = task is not None and not task.done()
        leads_others = task is not None and running and self.speech.leads_others(task)
        if not leads_others:
            self.speech.drop_draft()
        self.speech.clear()
        self._text.ended = True
        working = [*self.speech.dropped]
        if task is not None and running and not leads_others:
            working += self.speech.unneeded(task)
            if self._engine.observer is not None:
                self._engine.observer.unheard(self.speech.out.unheard_s())
        if working:
            self._note_freed(working, begun)
            await asyncio.wait(working)
        self._finish()

    def _note_freed(self, working: Sequence[asyncio.Task[None]], begun: float) -> None:
        """Count how long the work continues, even if the task that waits for its end is cancelled meanwhile."""
        left = set(working)

        def note(task: asyncio.Task[None]) -> None:
            left.discard(task)
            if not left and self._engine.observer is not None:
                self._engine.observer.freed(self._engine.clock() - begun)

        for task in working:
            task.add_done_callback(note)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- between the two sides

    def _accept(self, cuts: Sequence[CutClause]) -> None:
        if cuts:
            self.speech.take(cuts)
            self._start()
            self._changed.set()

    def _expect_more(self) -> None:
        """Wait for more text. Meanwhile, draft the clause that ends with the text so far, since it may be complete."""
        tentative = self._text.tentative()
        wait_ms = self._engine.config.confirm_ms if tentative is not None and tentative.likely else SETTLE_MS
        self._settle = asyncio.get_running_loop().call_later(wait_ms / 1000, self._on_settled)
        clause = tentative.clause if tentative is not None else None
        self.speech.expect(clause, draft=not self._text.ended and not self._text.grows)

    def _on_settled(self) -> None:
        self._accept(self._text.settle())
        self._settle = asyncio.get_running_loop().call_later(PHRASE_WAIT_S, self._on_long_silence)

    def _on_long_silence(self) -> None:
        self._accept(self._text.settle_late())
        self._speak_phrase()

    def _speak_phrase(self) -> None:
        """Cut text without punctuation between two words, if the caller has waited for it and hears silence."""
        if self.speech.is_silent:
            self._accept(self._text.phrase())

    def _stop_timer(self) -> None:
        if self._settle is not None:
            self._settle.cancel()

    def _start(self) -> None:
        if self._task is None and not self.speech.out.done:
            self._task = asyncio.create_task(self._run(), name=f"utterance {self._request.utterance_id}")

    async def _run(self) -> None:
        try:
            await self.speech.run(self._text)
        except EngineError as exc:
            self.speech.error = exc
        except Exception as exc:  # the caller of the engine gets one error, whatever failed
            log.exception("an utterance failed", extra={"utterance": self._request.utterance_id})
            self.speech.error = SynthesisFailed(f"the engine failed: {type(exc).__name__}")
        finally:
            self.speech.drop_draft()
            self._finish()

    def _finish(self) -> None:
        self.speech.out.done = True
        self._changed.set()
        self._engine.closed(self)
