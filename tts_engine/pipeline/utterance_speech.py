"""The speaking side of an utterance: clauses in, chunks of sound out. A clause comes from the cache, from the making of
another utterance, or from the model; a draft is the sound of a clause that may be complete."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

import numpy as np

from tts_engine.api import TextSpan, UtteranceRequest
from tts_engine.errors import EngineError, Exhausted
from tts_engine.loudness import louder
from tts_engine.pipeline.admission_queue import AdmissionQueue, Ticket
from tts_engine.pipeline.clause_cache import ClauseCache, SpokenClause
from tts_engine.pipeline.draft import Draft
from tts_engine.pipeline.growing import GrowingText
from tts_engine.pipeline.observer import CacheOutcome, EngineObserver
from tts_engine.pipeline.settings import SpeechConfig
from tts_engine.pipeline.shared_clause import ClauseInMaking, Piece, audible_pieces
from tts_engine.pipeline.sound_out import HEAD_S, Pcm, SoundOut, StageTimes
from tts_engine.pipeline.utterance_text import CutClause, UtteranceText
from tts_engine.speech_marks import SPEEDS
from tts_engine.synthesizer import HIGHEST_PRIORITY, ClauseRequest, Playhead, Synthesizer
from tts_engine.text.clauses import Clause, Pause
from tts_engine.text.scripts import is_speakable
from tts_engine.text.verbalise.languages import primary

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


class UtteranceSpeech:
    """The speech of one utterance.

    Args:
        changed: set when something has changed, so that producer and consumer look again.
    """

    def __init__(self, engine: SharedByUtterances, request: UtteranceRequest, changed: asyncio.Event) -> None:
        self._engine = engine
        self._request = request
        self._changed = changed
        self._playhead = Playhead(ahead=request.ahead, priority=request.priority)
        self._model = request.model or engine.active
        self._synthesizer = engine.models[self._model]
        line_rate = request.format.sample_rate
        self._line_rate = line_rate if line_rate in self._synthesizer.line_rates else None
        self._rate = self._line_rate or self._synthesizer.sample_rate
        """Sample rate of the voice's sound, Hz."""
        self.out = SoundOut(
            request, self._playhead, rate=self._rate, engine=self._synthesizer.name, clock=engine.clock,
            codec_pool=engine.codec_pool, changed=changed.set,
        )  # fmt: skip
        self._clauses: deque[CutClause] = deque()
        """Bounded by ``max_chars``."""
        self.error: EngineError | None = None
        """The reason why the speech ends early."""
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
        self.dropped: set[asyncio.Task[None]] = set()
        """Tasks that end dropped drafts."""
        self.is_prompt = False
        """True for a prompt, which is made only for the cache."""
        self.kept = True
        """True if all clauses of a prompt are kept."""

    @property
    def streams_text(self) -> bool:
        """True if the model can speak a clause before it is whole."""
        return getattr(self._synthesizer, "streams_text", False)

    # -- the text side's seam

    def take(self, cuts: Sequence[CutClause]) -> None:
        """Take the next clauses. A draft of one of them is kept, any other is dropped."""
        for cut in cuts:
            if self._draft is not None and self._draft.clause == cut.clause:
                self._draft.keep()
                cut = replace(cut, token_ms=0.0)
                self._playhead.tentative = False
                if self._engine.observer is not None:
                    self._engine.observer.draft(kept=True)
            self._clauses.append(cut)
        self.drop_unkept_draft()

    @property
    def is_silent(self) -> bool:
        """True if nothing is being spoken and the caller hears silence now or soon."""
        busy = self._speaking or bool(self._clauses)
        return not busy and self._playhead.slack_s(self._engine.clock()) <= _SOON_S

    def expect(self, clause: Clause | None, *, draft: bool) -> None:
        """Take the clause that ends with the text so far. With ``draft``, begin to draft it if the caller needs it
        soon. A draft of another clause is dropped."""
        if self._draft is not None and self._draft.clause != clause:
            self.drop_unkept_draft()
        if clause is None or not draft:
            return
        if not self.out.begun and len(self._engine.admission):
            return  # the clause has to wait for its turn
        if self._speaking or self._clauses or self._draft is not None or not is_speakable(clause.text):
            return
        if self._playhead.slack_s(self._engine.clock()) < _SOON_S and not self._remembers(clause):
            self._write_draft(clause)

    def fail(self, error: EngineError) -> None:
        """Stop after the chunks that are already there."""
        self.error = error
        self.drop_unkept_draft()
        self._clauses.clear()

    def clear(self) -> None:
        """Drop what has not been spoken."""
        self._clauses.clear()
        self.out.clear()

    async def run(self, text: UtteranceText) -> None:
        """Speak the clauses until the end of the text.

        Raises:
            EngineError: a clause cannot be spoken.
        """
        if text.growing is not None:
            await self._speak_growing(text.growing, self._engine.clock())
        while not self.error:
            if self._clauses:
                self._speaking = True
                await self._speak(self._clauses.popleft())
                self._speaking = False
                if self._draft is not None and self._draft.kept_at is not None:
                    self.drop_draft()
            elif text.ended:
                break
            else:
                await self._wait(lambda: bool(self._clauses) or text.ended)

    def leads_others(self, task: asyncio.Task[None]) -> bool:
        """Return True if others hear the clause that this utterance makes. Its task then continues for them and sends
        no more chunks of its own."""
        making = self._making
        if making is None or making.task is not task or making.leave(self._playhead):
            return False
        self.out.done = True
        return True

    def unneeded(self, task: asyncio.Task[None]) -> Sequence[asyncio.Task[None]]:
        """Cancel this utterance's task, and the task that makes a clause for this utterance alone. Return both."""
        tasks = [task]
        making, self._making = self._making, None
        if making is not None and making.leave(self._playhead) and making.task not in (None, task):
            assert making.task is not None
            tasks.append(making.task)
        for one in tasks:
            one.cancel()
        return tasks

    # -- drafts

    def _write_draft(self, clause: Clause) -> None:
        asked = self._asked(clause)
        self._playhead.tentative = True
        making = self._draft_making = ClauseInMaking(None)
        making.join(self._playhead)
        self._draft_key = self._key(clause)
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
            key, engine = self._key(clause), self._engine
            return key in engine.in_making or key in engine.drafts or engine.cache.get(key) is not None
        except EngineError:  # a missing voice; the error comes again when the clause is really made
            return True

    def drop_draft(self) -> None:
        """Drop the draft, if any."""
        draft, self._draft = self._draft, None
        if draft is None:
            return
        self._playhead.tentative = False
        self._engine.drafts.discard(self._draft_key)
        if draft.kept_at is None and self._engine.observer is not None:
            self._engine.observer.draft(kept=False)
        task = asyncio.create_task(draft.aclose(), name="drop a draft")
        self.dropped.add(task)
        task.add_done_callback(self.dropped.discard)

    def drop_unkept_draft(self) -> None:
        """Drop the draft of a clause that is not known to be complete."""
        if self._draft is not None and self._draft.kept_at is None:
            self.drop_draft()

    # -- one clause

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
        while (excess_s := self.out.in_hand_s() - self._engine.config.ahead_s) > 0 and not self.error:
            self._changed.clear()
            try:
                async with asyncio.timeout(excess_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _speak(self, cut: CutClause) -> None:
        clause, fed_at = cut.clause, cut.fed_at
        if not is_speakable(clause.text):
            return
        await self._wait_for_room()
        times = StageTimes(fed_at, cut.token_ms, cut.text_ms) if not self.out.begun else StageTimes()
        await self._pause_before(clause)
        base = self.out.samples
        key, engine = self._key(clause), self._engine
        if engine.observer is not None:
            spoken, making = engine.cache.get(key), engine.in_making.get(key)
            outcome: CacheOutcome = "hit" if spoken is not None else "miss" if making is None else "shared"
            engine.observer.text_cache(outcome, engine.cache.bytes)

        async def speak() -> None:
            if (spoken := engine.cache.get(key)) is not None:
                self._took_place()
                spans = self.out.spans(spoken.words, clause, base)
                await self._send(spoken.pcm, spans, times, clause, flush=True, fed_at=fed_at)
            elif (making := engine.in_making.get(key)) is not None:
                await self._follow(making, clause, base, times, fed_at)
            else:
                await self._lead(key, clause, base, times, fed_at)

        await self._admitted(key, times, speak)
        if self.is_prompt:
            self.kept = engine.cache.keep(key) and self.kept

    async def _pause_before(self, clause: Clause) -> None:
        silence_ms = clause.pause_ms
        if silence_ms is None:
            speed = self._speed(clause)
            silence_ms = self._engine.config.pauses.ms(clause.pause, speed) if self.out.begun else 0.0
        silence_ms -= self.out.dry_ms()
        if silence_ms > 0:
            await self.out.silence(silence_ms, clause)

    def _speed(self, clause: Clause) -> float:
        return min(max(self._request.speed * clause.style.speed, SPEEDS[0]), SPEEDS[1])

    async def _speak_growing(self, growing: GrowingText, fed_at: float) -> None:
        """Speak the first clause while its text comes. The result goes into the cache, but is not looked up there."""
        start = growing.start_char
        clause = Clause("", start, start, True, Pause.NONE, style=growing.style, pause_ms=growing.pause_ms)
        times = StageTimes(fed_at)
        await self._pause_before(clause)
        pieces: Sequence[Piece] = ()

        async def speak() -> None:
            nonlocal pieces
            pieces = await self._lead(None, clause, 0, times, fed_at, growing=growing)

        await self._admitted(None, times, speak)
        if not self.error:
            self._remember(self._key(replace(clause, text=growing.text)), pieces)

    async def _admitted(self, key: Hashable, times: StageTimes, speak: Callable[[], Awaitable[None]]) -> None:
        """Speak a clause when the model has a place for it.

        Args:
            key: see ``_lead``.
            speak: asks for the clause and speaks it. It is called again after a refusal of the model.

        Raises:
            Exhausted: there was no place for too long.
        """
        engine, admission, request = self._engine, self._engine.admission, self._request
        heard = self.out.begun or request.priority == HIGHEST_PRIORITY
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
                        self.drop_draft()
                    admission.refused(ticket, refusal)
                    await admission.wait(ticket)
        finally:
            self._ticket = None

    def _took_place(self) -> None:
        if self._ticket is not None:
            self._engine.admission.admitted(self._ticket)
            self._ticket = None

    def _language(self, clause: Clause) -> str:
        """Return the language of a clause. One of digits and marks alone is in the language of the text before it, also
        where that is not the language of the request."""
        if clause.style.language:
            return clause.style.language
        language, tag = self._request.language, primary(self._request.language)
        if clause.follows == "Han" and tag not in ("zh", "yue", "cmn", "ja"):
            return "zh"
        # Without a named voice the language may choose the voice, which stays the same within a turn.
        is_english = clause.follows == "Latin" and tag in ("zh", "yue", "cmn") and self._request.voice
        return "en" if is_english else language

    def speaks(self, language: str) -> bool:
        """Return True if the request's voice speaks a language; without a named voice, if any voice does."""
        return any(
            not voice.languages or {language, "mul"} & {primary(tag) for tag in voice.languages}
            for voice in self._synthesizer.voices()
            if self._request.voice in ("", voice.voice_id)
        )

    def _key(self, clause: Clause) -> tuple[str | float, ...]:
        """Return the key under which a clause is remembered."""
        request = self._request
        voice = request.voice
        # isinstance would be slow: with a protocol it takes a tenth of the work for a short clause.
        if revision := getattr(self._synthesizer, "voice_revision", None):
            voice = f"{voice} {revision(voice)}"
        language = self._language(clause)
        speed, pitch = self._speed(clause), clause.style.pitch
        return voice, clause.text, speed, pitch, request.instruct, language, self._model, self._rate

    def _asked(self, clause: Clause) -> ClauseRequest:
        request = self._request
        return ClauseRequest(
            text=clause.text,
            voice=request.voice,
            language=self._language(clause),
            speed=self._speed(clause),
            pitch=clause.style.pitch,
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
        making.task, self._making = asyncio.current_task(), making
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
                    if not self.out.done:
                        if draft is not None and not self.out.begun:
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
        spans = self.out.spans(piece.words, clause, base)
        await self._send(piece.pcm, spans, times, clause, flush=piece.last, fed_at=fed_at)
        return times if not self.out.begun else StageTimes()

    async def _send(
        self, pcm: Pcm, spans: Sequence[TextSpan], times: StageTimes, clause: Clause, *, flush: bool, fed_at: float
    ) -> None:
        begun = self.out.begun
        if clause.style.gain_db and len(pcm):
            pcm = louder(pcm, clause.style.gain_db)
        await self.out.send(pcm, spans, times, clause, flush=flush)
        first_sent_at, observer = self.out.first_sent_at, self._engine.observer
        if not begun and first_sent_at is not None and observer is not None:
            observer.first_chunk(self._synthesizer.name, first_sent_at - fed_at)
