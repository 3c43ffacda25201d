"""One utterance, from its text to its sound. One task works ahead until ``ahead_s`` seconds of sound are in hand:
clauses of the text -> sound of the model, from the cache, or from another utterance's making -> ``SoundOut``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from tts_engine.api import AudioChunk, TextSpan, UtteranceRequest
from tts_engine.errors import EngineError, Exhausted, InvalidRequest, SynthesisFailed
from tts_engine.pipeline.admission_queue import AdmissionQueue, Ticket
from tts_engine.pipeline.clause_cache import ClauseCache, SpokenClause
from tts_engine.pipeline.draft import Draft
from tts_engine.pipeline.growing import GrowingText
from tts_engine.pipeline.observer import CacheOutcome, EngineObserver
from tts_engine.pipeline.settings import SpeechConfig
from tts_engine.pipeline.shared_clause import ClauseInMaking, Piece, audible_pieces
from tts_engine.pipeline.sound_out import HEAD_S, Pcm, SoundOut, StageTimes
from tts_engine.synthesizer import HIGHEST_PRIORITY, ClauseRequest, Playhead, Synthesizer
from tts_engine.text.clauses import FIRST_MIN_WORDS, Clause, ClauseSplitter, Pause
from tts_engine.text.scripts import is_speakable

log = logging.getLogger(__name__)

_SOON_S = 0.5
"""A clause that may be complete is drafted if the caller has less sound in hand than this, seconds."""


class SharedByUtterances(Protocol):
    """The parts of an engine that its utterances share."""

    config: SpeechConfig
    models: Mapping[str, Synthesizer]
    active: str
    """Name of the model for requests that name none."""
    observer: EngineObserver | None
    clock: Callable[[], float]
    cache: ClauseCache
    admission: AdmissionQueue
    in_making: dict[Hashable, ClauseInMaking]
    """Clauses that are being made, by the cache's key. One of the opened utterances leads each."""
    drafts: set[Hashable]
    """Keys of clauses that one utterance drafts, so that no second one does."""
    codec_pool: ThreadPoolExecutor

    def closed(self, utterance: EngineUtterance) -> None:
        """Note that an utterance has ended and released everything."""
        ...


@dataclass(frozen=True, slots=True)
class _Cut:
    """A clause that was cut off the text, with the times that this took."""

    clause: Clause
    fed_at: float
    """Time at which its last character came."""
    token_ms: float
    """Wait for the text that showed the clause to be complete, milliseconds, if nothing was made meanwhile."""
    text_ms: float
    """Duration of the cut, milliseconds."""


class EngineUtterance:
    """See ``tts_engine.api.Utterance``."""

    def __init__(self, engine: SharedByUtterances, request: UtteranceRequest) -> None:
        self._engine = engine
        self._request = request
        self._splitter = ClauseSplitter(engine.config.clauses)
        self._playhead = Playhead(ahead=request.ahead, priority=request.priority)
        self._model = request.model or engine.active
        self._synthesizer = engine.models[self._model]
        line_rate = request.format.sample_rate
        self._line_rate = line_rate if line_rate in self._synthesizer.line_rates else None
        self._rate = self._line_rate or self._synthesizer.sample_rate
        """Sample rate of the voice's sound, Hz."""
        self._changed = asyncio.Event()
        """Set when something has changed, so that producer and consumer look again."""
        self._out = SoundOut(
            request, self._playhead, rate=self._rate, engine=self._synthesizer.name, clock=engine.clock,
            codec_pool=engine.codec_pool, changed=self._changed.set,
        )  # fmt: skip
        self._clauses: deque[_Cut] = deque()
        """Bounded by ``max_chars``."""
        self._fed_chars = 0
        self._fed: deque[tuple[int, float]] = deque()
        """(number of characters so far, time at which they came) for the text that is not cut into clauses yet."""
        self._ended = False
        self._settle: asyncio.Handle | None = None
        """The timer that checks the end of the latest text, and then waits for more."""
        self._error: EngineError | None = None
        self._task: asyncio.Task[None] | None = None
        self._making: ClauseInMaking | None = None
        """The clause that this utterance leads or follows now."""
        self._ticket: Ticket | None = None
        """This utterance's place in the admission queue, until the model has made the first sound of the clause."""
        self._speaking = False
        """True while a clause is being spoken."""
        self._draft: Draft | None = None
        self._draft_making: ClauseInMaking | None = None
        """The draft as a shared clause: this utterance hears it, and others can join once it leads."""
        self._draft_key: Hashable = None
        """Key of the draft, until the clause has been spoken."""
        self._dropped: set[asyncio.Task[None]] = set()
        """Tasks that end dropped drafts."""
        self.is_prompt = False
        """True for a prompt, which is made only for the cache."""
        self.kept = True
        """True if all clauses of a prompt are kept."""
        self._growing: GrowingText | None = None
        """The first clause, if the model streams text and was given the clause's beginning."""

    # -- the caller's side

    def feed(self, text: str) -> None:
        """Append text. Text after an error or ``aclose`` is ignored, and the iterator raises the error."""
        if self._out.done or self._error:
            return
        if self._ended:
            self.fail(InvalidRequest("text was fed after the end of the text"))
            return
        self._fed_chars += len(text)
        if self._fed_chars > self._engine.config.max_chars:
            self.fail(
                InvalidRequest(
                    f"text has {self._fed_chars} characters or more, at most {self._engine.config.max_chars} "
                    "are spoken in one utterance (speech.max_chars)"
                )
            )
            return
        begun = self._engine.clock()
        self._fed.append((self._fed_chars, begun))
        self._accept(self._splitter.feed(text), begun)
        self._grow()
        if self._settle is not None:
            self._settle.cancel()
        # This runs later, because the end of a whole turn comes with its text and needs neither timer nor draft.
        self._settle = asyncio.get_running_loop().call_soon(self._expect_more)

    def end_text(self) -> None:
        """Make a clause of the text that is left."""
        if not self._ended:
            self._ended = True
            if self._settle is not None:
                self._settle.cancel()
            if not self._error:
                self._accept(self._splitter.flush(), self._engine.clock())
            self._start()
            self._changed.set()

    def played(self, samples: int, *, at: float) -> None:
        """Take the phone's position. From now on it bounds the work ahead."""
        self._out.played(samples, at=at)

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return self

    async def __anext__(self) -> AudioChunk:
        while (chunk := self._out.take()) is None:
            if self._out.done:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return chunk

    async def aclose(self) -> None:
        """Cancel the utterance, and return when no more work is spent on it. A clause that others hear continues for
        them."""
        begun = self._engine.clock()
        if self._settle is not None:
            self._settle.cancel()
        task, self._task = self._task, None
        running = task is not None and not task.done()
        leads_others = task is not None and running and self._leads_others(task)
        if not leads_others:
            self._drop_draft()
        self._clauses.clear()
        self._out.clear()
        self._ended = True
        working = [*self._dropped]
        if task is not None and running and not leads_others:
            working += self._unneeded(task)
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

    def _leads_others(self, task: asyncio.Task[None]) -> bool:
        """Return True if others hear the clause that this utterance makes. Its task then continues for them and sends
        no more chunks of its own."""
        making = self._making
        if making is None or making.task is not task or making.leave(self._playhead):
            return False
        self._out.done = True
        return True

    def _unneeded(self, task: asyncio.Task[None]) -> Sequence[asyncio.Task[None]]:
        """Cancel this utterance's task, and the task that makes a clause for this utterance alone. Return both."""
        tasks = [task]
        making, self._making = self._making, None
        if making is not None and making.leave(self._playhead) and making.task not in (None, task):
            assert making.task is not None
            tasks.append(making.task)
        for one in tasks:
            one.cancel()
        return tasks

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- the engine's side

    def _accept(self, clauses: Sequence[Clause], begun: float) -> None:
        if clauses and self._growing is not None and not self._growing.ended:
            self._growing.end(clauses[0].text)
            clauses = clauses[1:]
        if clauses:
            text_ms = (self._engine.clock() - begun) * 1e3
            for clause in clauses:
                fed_at = self._fed_at(clause.end_char)
                token_ms = (begun - fed_at) * 1e3
                if self._draft is not None and self._draft.clause == clause:
                    self._draft.keep()
                    token_ms = 0.0
                    self._playhead.tentative = False
                    if self._engine.observer is not None:
                        self._engine.observer.draft(kept=True)
                self._clauses.append(_Cut(clause, fed_at, token_ms, text_ms))
            if self._draft is not None and self._draft.kept_at is None:
                self._drop_draft()
            self._start()
            self._changed.set()

    def _grow(self) -> None:
        """Begin to speak the first clause before it is whole, if the model can do that. Later clauses have time to wait
        for their end."""
        if self._growing is not None:
            self._growing.grow(self._splitter.pending)
        elif self._task is None and getattr(self._synthesizer, "streams_text", False):
            growing = GrowingText(self._splitter.pending_start)
            enough = FIRST_MIN_WORDS
            if growing.grow(self._splitter.pending) >= enough and is_speakable(growing.text):
                self._growing = growing
                self._start()

    def _expect_more(self) -> None:
        """Wait for more text. Meanwhile, draft the clause that ends with the text so far, since it may be complete."""
        config, tentative = self._engine.config, self._splitter.tentative()
        wait_ms = config.confirm_ms if tentative is not None and tentative.likely else config.settle_ms
        self._settle = asyncio.get_running_loop().call_later(wait_ms / 1000, self._on_settled)
        clause = tentative.clause if tentative is not None else None
        if self._draft is not None and self._draft.kept_at is None and self._draft.clause != clause:
            self._drop_draft()
        if clause is not None:
            self._write_draft(clause)

    def _write_draft(self, clause: Clause) -> None:
        """Begin to draft a clause that may be complete, if the caller needs it soon."""
        growing = self._growing
        busy = self._speaking or self._clauses or self._ended or (growing is not None and not growing.ended)
        if not self._out.begun and len(self._engine.admission):
            return  # the clause has to wait for its turn
        if busy or self._draft is not None or not is_speakable(clause.text):
            return
        if self._playhead.slack_s(self._engine.clock()) < _SOON_S and not self._remembers(clause):
            asked = self._asked(clause)
            self._playhead.tentative = True
            making = self._draft_making = ClauseInMaking(None)
            making.join(self._playhead)
            self._draft_key = self._key(clause.text)
            self._engine.drafts.add(self._draft_key)
            self._draft = Draft(
                clause,
                lambda: self._synthesizer.synthesize(asked, making.playhead),
                samples=int(HEAD_S * self._rate),
                clock=self._engine.clock,
            )

    def _remembers(self, clause: Clause) -> bool:
        """Return True if the clause has been made, or is being made for any utterance."""
        try:
            key, engine = self._key(clause.text), self._engine
            return key in engine.in_making or key in engine.drafts or engine.cache.get(key) is not None
        except EngineError:  # a missing voice; the error comes again when the clause is really made
            return True

    def _drop_draft(self) -> None:
        draft, self._draft = self._draft, None
        if draft is None:
            return
        self._playhead.tentative = False
        self._engine.drafts.discard(self._draft_key)
        if draft.kept_at is None and self._engine.observer is not None:
            self._engine.observer.draft(kept=False)
        task = asyncio.create_task(draft.aclose(), name="drop a draft")
        self._dropped.add(task)
        task.add_done_callback(self._dropped.discard)

    def _fed_at(self, chars: int) -> float:
        """Return the time at which the text up to this character had come. Call it with growing ``chars`` only."""
        while self._fed[0][0] < chars:
            self._fed.popleft()
        return self._fed[0][1]

    def _on_settled(self) -> None:
        self._accept(self._splitter.settle(), self._engine.clock())

    def _start(self) -> None:
        if self._task is None and not self._out.done:
            self._task = asyncio.create_task(self._run(), name=f"utterance {self._request.utterance_id}")

    def fail(self, error: EngineError) -> None:
        """Stop speaking. The iterator raises after the chunks that are already there."""
        self._error = error
        if self._draft is not None and self._draft.kept_at is None:
            self._drop_draft()
        self._clauses.clear()
        self._ended = True
        if self._growing is not None:
            self._growing.end(self._growing.text)
        self._start()
        self._changed.set()

    def _finish(self) -> None:
        self._out.done = True
        self._changed.set()
        self._engine.closed(self)

    async def _run(self) -> None:
        try:
            if self._growing is not None:
                await self._speak_growing(self._growing, self._engine.clock())
            while not self._error:
                if self._clauses:
                    self._speaking = True
                    await self._speak(self._clauses.popleft())
                    self._speaking = False
                    if self._draft is not None and self._draft.kept_at is not None:
                        self._drop_draft()
                elif self._ended:
                    break
                else:
                    await self._wait(lambda: bool(self._clauses) or self._ended)
        except EngineError as exc:
            self._error = exc
        except Exception as exc:
            log.exception("an utterance failed", extra={"utterance": self._request.utterance_id})
            self._error = SynthesisFailed(f"the engine failed: {type(exc).__name__}")
        finally:
            self._drop_draft()
            self._finish()

    async def _wait(self, ready: Callable[[], bool], *, timeout_s: float | None = None) -> None:
        while not ready():
            self._changed.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                return

    async def _wait_for_room(self) -> None:
        if self.is_prompt:
            return
        while (excess_s := self._out.in_hand_s() - self._engine.config.ahead_s) > 0 and not self._error:
            self._changed.clear()
            try:
                async with asyncio.timeout(excess_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _speak(self, cut: _Cut) -> None:
        clause, fed_at = cut.clause, cut.fed_at
        if not is_speakable(clause.text):
            return
        await self._wait_for_room()
        config, request = self._engine.config, self._request
        times = StageTimes(fed_at, cut.token_ms, cut.text_ms) if not self._out.begun else StageTimes()
        silence_ms = config.pauses.ms(clause.pause, request.speed) if self._out.begun else 0.0
        silence_ms -= self._out.dry_ms()
        if silence_ms > 0:
            await self._out.silence(silence_ms, clause)
        base = self._out.samples
        key, engine = self._key(clause.text), self._engine
        if engine.observer is not None:
            spoken, making = engine.cache.get(key), engine.in_making.get(key)
            outcome: CacheOutcome = "hit" if spoken is not None else "miss" if making is None else "shared"
            engine.observer.text_cache(outcome, engine.cache.bytes)

        async def speak() -> None:
            if (spoken := engine.cache.get(key)) is not None:
                self._took_place()
                spans = self._out.spans(spoken.words, clause, base)
                await self._send(spoken.pcm, spans, times, clause, flush=True, fed_at=fed_at)
            elif (making := engine.in_making.get(key)) is not None:
                await self._follow(making, clause, base, times, fed_at)
            else:
                await self._lead(key, clause, base, times, fed_at)

        await self._admitted(key, times, speak)
        if self.is_prompt:
            self.kept = engine.cache.keep(key) and self.kept

    async def _speak_growing(self, growing: GrowingText, fed_at: float) -> None:
        """Speak the first clause while its text comes. The result goes into the cache, but is not looked up there."""
        clause = Clause("", growing.start_char, growing.start_char, first=True, pause=Pause.NONE)
        times = StageTimes(fed_at)
        pieces: Sequence[Piece] = ()

        async def speak() -> None:
            nonlocal pieces
            pieces = await self._lead(None, clause, 0, times, fed_at, growing=growing)

        await self._admitted(None, times, speak)
        if not self._error:
            self._remember(self._key(growing.text), pieces)

    async def _admitted(self, key: Hashable, times: StageTimes, speak: Callable[[], Awaitable[None]]) -> None:
        """Speak a clause when the model has a place for it.

        Args:
            key: see ``_lead``.
            speak: asks for the clause and speaks it. It is called again after a refusal of the model.

        Raises:
            Exhausted: there was no place for too long.
        """
        engine, admission, request = self._engine, self._engine.admission, self._request
        heard = self._out.begun or request.priority == HIGHEST_PRIORITY
        ticket = Ticket(self._playhead, key, heard=heard, came=asyncio.get_running_loop().time())
        ticket.at_once = request.at_once and not ticket.heard
        begun = engine.clock()
        made = key is not None and (key in engine.in_making or engine.cache.get(key) is not None)
        self._ticket = ticket
        try:
            if len(admission) and not (ticket.heard or made):
                await admission.wait(ticket)
            while True:
                if ticket.since is not None:
                    times.admission = (engine.clock() - begun) * 1e3
                try:
                    return await speak()
                except Exhausted as refusal:
                    if self._ticket is None:
                        raise  # the clause had a place
                    draft = self._draft
                    if draft is not None and draft.kept_at is not None:
                        if times.since is not None:
                            times.token = (draft.kept_at - times.since) * 1e3
                        self._drop_draft()
                    admission.refused(ticket, refusal)
                    await admission.wait(ticket)
        finally:
            self._ticket = None

    def _took_place(self) -> None:
        if self._ticket is not None:
            self._engine.admission.admitted(self._ticket)
            self._ticket = None

    def _key(self, text: str) -> tuple[str | float, ...]:
        """Return the key under which a clause is remembered."""
        request = self._request
        voice = request.voice
        # isinstance would be slow: with a protocol it takes a tenth of the work for a short clause.
        if revision := getattr(self._synthesizer, "voice_revision", None):
            voice = f"{voice} {revision(voice)}"
        return voice, text, request.speed, request.instruct, request.language, self._model, self._rate

    def _asked(self, clause: Clause) -> ClauseRequest:
        request = self._request
        return ClauseRequest(
            text=clause.text,
            voice=request.voice,
            language=request.language,
            speed=request.speed,
            instruct=request.instruct,
            first=clause.first,
            line_rate=self._line_rate,
            placed=self._engine.admission.ask_soon,
        )

    async def _lead(
        self,
        key: Hashable | None,
        clause: Clause,
        base: int,
        times: StageTimes,
        fed_at: float,
        *,
        growing: GrowingText | None = None,
    ) -> Sequence[Piece]:
        """Speak a clause as the model makes it, to this utterance and to those that join. Return it.

        Args:
            key: the key under which others join and the clause is remembered. None: neither, since the text is not
            known yet.
        """
        in_making = self._engine.in_making
        draft = self._draft if self._draft is not None and self._draft.clause == clause else None
        making = self._draft_making if draft is not None else None
        if making is None:
            making = ClauseInMaking(None)
            making.join(self._playhead)
        making.task, self._making = self._task, making
        if key is not None:
            in_making[key] = making
        pieces: list[Piece] = []
        asked = self._asked(clause)
        if growing is not None:
            asked = replace(asked, more=growing.pieces())
        chunks = draft.chunks() if draft is not None else self._synthesizer.synthesize(asked, making.playhead)
        try:
            async with aclosing(
                audible_pieces(chunks, self._rate, self._synthesizer.name, self._engine.observer)
            ) as made:
                async for piece in made:
                    if growing is not None:
                        clause = replace(clause, end_char=clause.start_char + len(growing.text))
                    if not pieces:
                        self._took_place()
                        self._engine.admission.begun(key)
                    pieces.append(piece)
                    if piece.last and key is not None:
                        # From now on, utterances find the clause in the cache.
                        del in_making[key]
                        self._remember(key, pieces)
                    making.add(piece)
                    if not self._out.done:
                        if draft is not None and not self._out.begun:
                            times.token = draft.waited_ms
                        times = await self._hear(piece, clause, base, times, fed_at)
        except BaseException as exc:
            making.fail(exc)
            raise
        finally:
            making.task = None  # a circle would outlive the utterance (tts_engine.service.garbage)
            if in_making.get(key) is making:
                del in_making[key]
            self._making = None
            self._engine.admission.ask_soon()
        return pieces

    def _remember(self, key: Hashable, pieces: Sequence[Piece]) -> None:
        pcm = np.concatenate([piece.pcm for piece in pieces])
        if len(pcm):
            words = [word for piece in pieces for word in piece.words]
            self._engine.cache.put(key, SpokenClause(pcm, words))

    async def _follow(
        self, making: ClauseInMaking, clause: Clause, base: int, times: StageTimes, fed_at: float
    ) -> None:
        """Speak a clause that is being made for another utterance. The time for which the piece took work counts as the
        engine's work, the rest of the wait as queueing."""
        making.join(self._playhead)
        self._making = making
        try:
            for number in itertools.count():
                begun = self._engine.clock()
                piece = await making.piece(number)
                self._took_place()
                waited_ms = (self._engine.clock() - begun) * 1e3
                engine_ms = min(waited_ms, piece.engine_ms)
                piece = replace(piece, text_ms=0.0, queue_ms=waited_ms - engine_ms, engine_ms=engine_ms)
                times = await self._hear(piece, clause, base, times, fed_at)
                if piece.last:
                    return
        finally:
            if self._making is making:
                self._making = None
                if making.leave(self._playhead) and making.task is not None:
                    making.task.cancel()

    async def _hear(self, piece: Piece, clause: Clause, base: int, times: StageTimes, fed_at: float) -> StageTimes:
        """Send a piece of a clause. Return the stage times of the next chunk so far."""
        times.text += piece.text_ms
        times.queue += piece.queue_ms
        times.engine += piece.engine_ms
        if not len(piece.pcm) and not piece.last:
            return times
        spans = self._out.spans(piece.words, clause, base)
        await self._send(piece.pcm, spans, times, clause, flush=piece.last, fed_at=fed_at)
        return times if not self._out.begun else StageTimes()

    async def _send(
        self, pcm: Pcm, spans: Sequence[TextSpan], times: StageTimes, clause: Clause, *, flush: bool, fed_at: float
    ) -> None:
        begun = self._out.begun
        await self._out.send(pcm, spans, times, clause, flush=flush)
        first_sent_at, observer = self._out.first_sent_at, self._engine.observer
        if not begun and first_sent_at is not None and observer is not None:
            observer.first_chunk(self._synthesizer.name, first_sent_at - fed_at)
