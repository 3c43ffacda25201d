"""Joins text, a voice model and a leg's codec into utterances: ``tts_engine.api.SpeechEngine`` for any synthesizer.

Each utterance has one task: deltas -> clauses -> sound of the model -> silence trimmed, pauses set by punctuation ->
frames of the leg's codec -> a bounded queue. The task works ahead until ``ahead_s`` seconds of sound are in hand.
Resampling and encoding run in a thread, so that the event loop only passes things on; encoding by a table is so cheap
that the event loop does it itself.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from tts_engine.api import AudioChunk, EngineStatus, TextSpan, UtteranceRequest, VoiceInfo
from tts_engine.errors import EngineError, Exhausted, InvalidRequest, NotFound, SynthesisFailed, Unavailable
from tts_engine.pipeline.admission_queue import AdmissionConfig, AdmissionObserver, AdmissionQueue, Ticket
from tts_engine.pipeline.clause_cache import ClauseCache, SpokenClause
from tts_engine.pipeline.draft import Draft
from tts_engine.pipeline.growing import GrowingText
from tts_engine.pipeline.prompts import PromptConfig, warm
from tts_engine.pipeline.shared_clause import ClauseInMaking, Piece
from tts_engine.pipeline.silence import SilenceTrimmer
from tts_engine.synthesizer import (
    HIGHEST_PRIORITY,
    ClauseRequest,
    PcmChunk,
    Playhead,
    Synthesizer,
    VoiceEditor,
    WordSpan,
)
from tts_engine.text.clauses import Clause, ClauseConfig, ClauseSplitter, Pause
from tts_engine.text.scripts import is_speakable
from voicecodecs.packetizer import Packetizer

log = logging.getLogger(__name__)

Pcm = NDArray[np.float32]

_SOON_S = 0.5
"""A clause that may be complete is made before that is known if the caller has less sound in hand, seconds."""

_HEAD_S = 0.4
"""Seconds of sound that are encoded first, because a caller waits for them. Encoding a whole long clause takes
milliseconds."""


class PauseConfig(BaseModel):
    """Silence between clauses at speaking rate 1, in milliseconds. A faster voice pauses less."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    comma_ms: float = Field(default=160, ge=0, le=5000)
    """After a comma or a dash."""
    semicolon_ms: float = Field(default=260, ge=0, le=5000)
    """After a semicolon or a colon."""
    sentence_ms: float = Field(default=360, ge=0, le=5000)
    """After a full stop, an exclamation mark or the end of a line."""
    question_ms: float = Field(default=400, ge=0, le=5000)
    """After a question mark."""
    paragraph_ms: float = Field(default=650, ge=0, le=5000)
    """After an empty line."""

    def ms(self, pause: Pause, speed: float) -> float:
        """Return the milliseconds of one pause. After a cut without punctuation there is no pause."""
        return 0.0 if pause is Pause.NONE else float(getattr(self, f"{pause.value}_ms")) / speed


class SpeechConfig(BaseModel):
    """How utterances are made, whatever the voice."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    clauses: ClauseConfig = ClauseConfig()
    pauses: PauseConfig = PauseConfig()
    admission: AdmissionConfig = AdmissionConfig()

    ahead_s: float = Field(default=4.0, gt=0, le=60)
    """How many seconds of sound are made before they are heard. More outlasts a longer slow spell; less wastes less
    work when a turn is cut."""

    confirm_ms: float = Field(default=40, ge=0, le=10_000)
    """A clause that ends with a full stop or a comma behind an ordinary word is made at once. It is sent when the next
    token shows that it is complete, or if none comes for so long. With less, first packets do not wait for slow tokens.
    With less than the time between two tokens, "amazon." is sent before "com" comes."""

    settle_ms: float = Field(default=300, ge=50, le=10_000)
    """Text that ends with a full stop behind a number or an abbreviation is spoken if no more text comes for so
    long. With less, the answer comes sooner when a model pauses in mid-turn. With too little, text is cut at "Dr."
    when tokens come slowly."""

    max_chars: int = Field(default=20_000, ge=1)
    """Longest text of one utterance, in characters. Set no less than `limits.turn_chars`: the gateway checks each turn,
    and the engine checks what any client sends."""

    max_utterances: int = Field(default=2048, ge=1)
    """How many utterances may be open at once, including those of queued turns and those that wait for text. More are
    refused with a retry delay. This bounds memory: an utterance takes 50 kB, and up to 0.3 MB with sound that nobody
    takes. The voice model limits how many may speak. The default carries 1000 calls with a queued turn each."""

    cache_bytes: int = Field(default=64 * 2**20, ge=0)
    """Bytes of memory for clauses that were spoken before. The default holds 35 minutes of sound at 8 kHz, or 11 at
    24 kHz. 0 remembers nothing; a clause that several calls ask for while it is made is still made once."""

    prompts: tuple[PromptConfig, ...] = Field(default=(), max_length=1000)
    """Texts that are made when the engine starts, one after the other and after everybody's turns, and then remembered
    for good: half of `cache_bytes` at most. Greetings of routes (`welcome_greeting`) are added by themselves."""

    prompts_before_ready: bool = False
    """Is the engine ready only when its prompts are made? That takes part of `timeouts.start_s`. Else the first callers
    may come before their greeting is made."""

    codec_threads: int = Field(default=1, ge=1, le=32)
    """How many threads resample and encode. One serves about 500 telephone calls."""


CacheOutcome = Literal["hit", "shared", "miss"]
"""``hit``: the clause was spoken before. ``shared``: another utterance is having it made. ``miss``: it is made now."""


class EngineObserver(AdmissionObserver, Protocol):
    """What the engine tells to whoever counts. Its methods are called on the event loop and must not block."""

    def first_chunk(self, engine: str, seconds: float) -> None:
        """Take the time from the delta that made the first clause speakable to the first frames of that clause."""
        ...

    def queued(self, seconds: float) -> None:
        """Take how long a step of the model waited."""
        ...

    def realtime_factor(self, engine: str, factor: float) -> None:
        """Take the seconds that the model worked per second of sound, for one clause."""
        ...

    def text_cache(self, outcome: CacheOutcome, cache_bytes: int) -> None:
        """Note that a clause was looked up in the cache, which now holds so many bytes."""
        ...

    def draft(self, *, kept: bool) -> None:
        """Note that a clause was made before it was known to be complete. ``kept``: it was."""
        ...

    def freed(self, seconds: float) -> None:
        """Take the time from cancel until no more work was spent on the utterance."""
        ...


class Engine:
    """Speaks utterances with the active one of the loaded voice models, in this process."""

    def __init__(
        self,
        models: Synthesizer | Mapping[str, Synthesizer],
        config: SpeechConfig | None = None,
        *,
        observer: EngineObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            models: the voice model, or several by name. The first one is active. The engine starts and closes them.
            observer: is told of times and counts. None: nobody is told.
            clock: monotonic seconds, the same clock as ``Utterance.played``.
        """
        self.models = dict(models) if isinstance(models, Mapping) else {models.name: models}
        self.active = next(iter(self.models))
        self.config = config or SpeechConfig()
        self.observer = observer
        self.clock = clock
        self.cache = ClauseCache(self.config.cache_bytes)
        self.admission = AdmissionQueue(self.config.admission, observer)
        self.in_making: dict[Hashable, ClauseInMaking] = {}
        """Clauses that are being made, by the cache's key. Each has a leader among the utterances that were opened."""
        self.drafts: set[Hashable] = set()
        """Keys of clauses that one utterance drafts, so that no second one does."""
        self.codec_pool = ThreadPoolExecutor(self.config.codec_threads, thread_name_prefix="talkspurt-codec")
        self._open: set[_Utterance] = set()
        self._warming: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Load and warm up the models one after the other, because each takes all of its device meanwhile. Then begin
        to make the prompts."""
        for model in self.models.values():
            await model.start()
        self._warm()
        if self._warming is not None and self.config.prompts_before_ready:
            await asyncio.wait({self._warming})

    def _warm(self) -> None:
        """Make the prompts with the active model."""
        if self._warming is not None:
            self._warming.cancel()
        if self.config.prompts:
            self._warming = asyncio.create_task(warm(self.config.prompts, self._make_prompt), name="prompts")

    async def _make_prompt(self, request: UtteranceRequest, text: str) -> bool:
        async with self.open(request) as utterance:
            utterance.is_prompt = True
            utterance.feed(text)
            utterance.end_text()
            async for _ in utterance:
                pass
        return utterance.kept

    def open(self, request: UtteranceRequest) -> _Utterance:
        """Begin an utterance.

        Raises:
            InvalidRequest: the speed is outside 0.25 to 4.
            Exhausted: ``max_utterances`` are open.
            Unavailable: the engine is closed.
        """
        if self._closed:
            raise Unavailable("the engine is closed")
        if not 0.25 <= request.speed <= 4:
            raise InvalidRequest(f"speed is {request.speed}, expected 0.25 to 4", field="speed")
        if len(self._open) >= self.config.max_utterances:
            raise Exhausted(
                f"{len(self._open)} utterances are open, as many as max_utterances allows", retry_after_s=1.0
            )
        utterance = _Utterance(self, request)
        self._open.add(utterance)
        return utterance

    def closed(self, utterance: _Utterance) -> None:
        """Note that an utterance has ended and holds nothing any more."""
        self._open.discard(utterance)

    @property
    def synthesizer(self) -> Synthesizer:
        """The active model."""
        return self.models[self.active]

    async def list_voices(self) -> Sequence[VoiceInfo]:
        """Return the voices of the active model."""
        return self.synthesizer.voices()

    async def add_voice(
        self, *, voice_id: str, name: str, wav: bytes | bytearray, transcript: str, language: str
    ) -> VoiceInfo:
        """Register a voice with the active model, in a thread.

        Raises:
            InvalidRequest: the active model has fixed voices, or the recording or a field cannot be used.
        """
        if not isinstance(self.synthesizer, VoiceEditor):
            raise InvalidRequest(
                f"the {self.synthesizer.name} engine has built-in voices only and cannot clone one from a recording; "
                "the models that can are cosyvoice2 and cosyvoice3 (engine.kind)",
                field="audio",
            )
        return await asyncio.to_thread(
            self.synthesizer.add_voice,
            voice_id=voice_id,
            name=name,
            wav=bytes(wav),
            transcript=transcript,
            language=language,
        )

    async def remove_voice(self, voice_id: str) -> None:
        """Remove a registered voice. Utterances that speak with it finish.

        Raises:
            NotFound: there is no voice of that id.
            InvalidRequest: the voice is built in.
        """
        if not isinstance(self.synthesizer, VoiceEditor):
            raise InvalidRequest(
                f"the voices of the {self.synthesizer.name} engine are built in and cannot be removed", field="voice_id"
            )
        await asyncio.to_thread(self.synthesizer.remove_voice, voice_id)

    async def set_active_model(self, model: str) -> None:
        """Speak new utterances with another model. Utterances that are open keep theirs to the end.

        Raises:
            NotFound: the model is not loaded.
        """
        if model not in self.models:
            raise NotFound(f"model {model!r} is not loaded; there is {', '.join(self.models)}")
        self.active = model
        self._warm()

    async def status(self) -> EngineStatus:
        """Return the status of the active model. ``ready``, ``active`` and ``queued`` are those of all models."""
        each = {name: model.status() for name, model in self.models.items()}
        return replace(
            each[self.active],
            ready=all(one.ready for one in each.values()),
            model=self.active,
            models=tuple(self.models),
            active=sum(one.active for one in each.values()),
            queued=sum(one.queued for one in each.values()) + len(self.admission),
        )

    async def aclose(self) -> None:
        """Cancel all utterances, then close the models."""
        self._closed = True
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait({self._warming})
        for utterance in self._open:
            utterance.fail(Unavailable("the engine is closed"))
        await asyncio.gather(*(utterance.aclose() for utterance in list(self._open)))
        for model in self.models.values():
            await model.aclose()
        self.codec_pool.shutdown()


@dataclass(slots=True)
class _Times:
    """Milliseconds spent so far on the next chunk."""

    since: float | None = None
    """When the text of an utterance's first chunk had come. What the stages do not tell of the time since then, the
    chunk has waited for this process's event loop (``loop``)."""
    token: float = 0.0
    text: float = 0.0
    admission: float = 0.0
    queue: float = 0.0
    engine: float = 0.0
    codec: float = 0.0

    def stages_ms(self, now: float) -> dict[str, float]:
        """Return the stages of a chunk that is ready now."""
        stages = {"text": self.text, "queue": self.queue, "engine": self.engine, "codec": self.codec}
        if self.admission:
            stages["admission"] = self.admission
        if self.since is None:
            return {stage: ms for stage, ms in stages.items() if ms}
        stages["token"] = self.token
        stages["loop"] = max(0.0, (now - self.since) * 1e3 - sum(stages.values()))
        return stages


@dataclass(frozen=True, slots=True)
class _Cut:
    """A clause that was cut off, and what that took."""

    clause: Clause
    fed_at: float
    """When its last character came."""
    token_ms: float
    """How long we then waited for the text that showed the clause to be complete, if nothing was made meanwhile."""
    text_ms: float
    """How long the cut took."""


class _Utterance:
    """An utterance of ``Engine``; see ``tts_engine.api.Utterance``."""

    def __init__(self, engine: Engine, request: UtteranceRequest) -> None:
        self._engine = engine
        self._request = request
        self._splitter = ClauseSplitter(engine.config.clauses)
        self._playhead = Playhead(ahead=request.ahead, priority=request.priority)
        self._reported = False
        """True once the phone's position is known. Before that, only the consumer's pull bounds the work ahead."""
        self._model, self._synthesizer = engine.active, engine.synthesizer
        line_rate = request.format.sample_rate
        self._line_rate = line_rate if line_rate in self._synthesizer.line_rates else None
        self._rate = self._line_rate or self._synthesizer.sample_rate
        """Sample rate of the voice's sound, Hz."""
        self._packetizer = Packetizer(request.format, self._rate)
        self._clauses: deque[_Cut] = deque()
        """Bounded by ``max_chars``."""
        self._fed_chars = 0
        self._fed: deque[tuple[int, float]] = deque()
        """(characters so far, when they came) of the text that is not cut into clauses yet."""
        self._ended = False
        self._settle: asyncio.TimerHandle | None = None
        self._error: EngineError | None = None
        self._chunks: deque[AudioChunk] = deque()
        self._untaken_s = 0.0
        self._done = False
        self._changed = asyncio.Event()
        """Set when something above has changed, so that producer and consumer look again."""
        self._task: asyncio.Task[None] | None = None
        self._making: ClauseInMaking | None = None
        """The clause that this utterance leads or follows now."""
        self._ticket: Ticket | None = None
        """This utterance among those who wait for the model, until the model has made the first of the clause."""
        self._first_sent = False
        self._speaking = False
        """Is a clause being spoken?"""
        self._tentative: Clause | None = None
        """The clause that ends with the text so far, unless that goes on."""
        self._draft: Draft | None = None
        self._draft_making = ClauseInMaking(None)
        """Who listens to the draft: this utterance, and others once it leads."""
        self._draft_key: Hashable = None
        """Its beginning, until the clause has been spoken."""
        self._dropped: set[asyncio.Task[None]] = set()
        """Tasks that end dropped drafts."""
        self.is_prompt = False
        """Is this made to be remembered? Nobody hears it."""
        self.kept = True
        """Are all clauses of a prompt kept?"""
        self._growing: GrowingText | None = None
        """The first clause, if the model streams text and was given the clause's beginning."""

    # -- the caller's side

    def feed(self, text: str) -> None:
        """Append text. Text after an error or ``aclose`` is ignored, and the iterator tells of the error."""
        if self._done or self._error:
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
        loop, config, tentative = asyncio.get_running_loop(), self._engine.config, self._splitter.tentative()
        wait_ms = config.confirm_ms if tentative is not None and tentative.likely else config.settle_ms
        self._settle = loop.call_later(wait_ms / 1000, self._on_settled)
        self._tentative = tentative.clause if tentative is not None else None
        if self._draft is not None and self._draft.kept_at is None and self._draft.clause != self._tentative:
            self._drop_draft()
        if self._tentative is not None:
            loop.call_soon(self._write_draft)  # a whole turn's end comes with its text, and needs no draft

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
        playhead = self._playhead
        playhead.played_s = samples / self._request.format.sample_rate
        playhead.played_at = at
        playhead.ahead = False
        self._reported = True
        self._changed.set()

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return self

    async def __anext__(self) -> AudioChunk:
        while not self._chunks:
            if self._done:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        chunk = self._chunks.popleft()
        self._untaken_s -= chunk.samples / self._request.format.sample_rate
        self._changed.set()
        return chunk

    async def aclose(self) -> None:
        """Cancel the utterance. Return when no more work is spent on it. A clause that others hear goes on for them."""
        begun = self._engine.clock()
        if self._settle is not None:
            self._settle.cancel()
        task, self._task = self._task, None
        running = task is not None and not task.done()
        leads_others = task is not None and running and self._leads_others(task)
        if not leads_others:
            self._drop_draft()
        self._clauses.clear()
        self._chunks.clear()
        self._ended = True
        working = [*self._dropped]
        if task is not None and running and not leads_others:
            working += self._unneeded(task)
        if working:
            await asyncio.wait(working)
            if self._engine.observer is not None:
                self._engine.observer.freed(self._engine.clock() - begun)
        self._finish()

    def _leads_others(self, task: asyncio.Task[None]) -> bool:
        """Whether others hear the clause that this utterance makes. Then its task goes on for them, and sends no more
        chunks of its own."""
        making = self._making
        if making is None or making.task is not task or making.leave(self._playhead):
            return False
        self._done = True
        return True

    def _unneeded(self, task: asyncio.Task[None]) -> Sequence[asyncio.Task[None]]:
        """Cancel this utterance's task, and the one that makes what only this one heard. Return both."""
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
            self._tentative = None
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
        """Begin with the first clause before it is whole, if the model can do that. Later clauses have time to wait for
        their end."""
        if self._growing is not None:
            self._growing.grow(self._splitter.pending)
        elif self._task is None and getattr(self._synthesizer, "streams_text", False):
            growing = GrowingText(self._splitter.pending_start)
            enough = self._engine.config.clauses.first_min_words
            if growing.grow(self._splitter.pending) >= enough and is_speakable(growing.text):
                self._growing = growing
                self._start()

    def _write_draft(self) -> None:
        """Begin to make a clause that may be complete, if the caller needs it soon."""
        clause, growing = self._tentative, self._growing
        busy = self._speaking or self._clauses or self._ended or (growing is not None and not growing.ended)
        if not self._first_sent and len(self._engine.admission):
            return  # the clause has to wait for its turn
        if clause is None or busy or self._draft is not None or not is_speakable(clause.text):
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
                samples=int(_HEAD_S * self._rate),
                clock=self._engine.clock,
            )

    def _remembers(self, clause: Clause) -> bool:
        """Whether the clause has been made, or is being made for any utterance."""
        try:
            key, engine = self._key(clause.text), self._engine
            return key in engine.in_making or key in engine.drafts or engine.cache.get(key) is not None
        except EngineError:  # a voice that is not there; whoever makes the clause in earnest meets the error again
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
        """Return when the text came up to this character, which is never asked for an earlier one again."""
        while self._fed[0][0] < chars:
            self._fed.popleft()
        return self._fed[0][1]

    def _on_settled(self) -> None:
        self._accept(self._splitter.settle(), self._engine.clock())

    def _start(self) -> None:
        if self._task is None and not self._done:
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
        self._done = True
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

    def _excess_s(self) -> float:
        """Return the seconds of sound beyond what may be made ahead. Zero or less: go on."""
        if self.is_prompt:
            return 0.0
        ahead_s = self._engine.config.ahead_s
        playhead = self._playhead
        in_hand_s = self._untaken_s
        if playhead.ahead:
            in_hand_s = playhead.delivered_s
        elif self._reported:
            in_hand_s = max(in_hand_s, playhead.slack_s(self._engine.clock()))
        return in_hand_s - ahead_s

    def _dry_ms(self) -> float:
        """Return for how long the caller has already heard silence because text came late. 0 while the position is
        unknown."""
        playhead = self._playhead
        if not self._reported or playhead.played_at is None:
            return 0.0
        heard_to_end_at = playhead.played_at + playhead.delivered_s - playhead.played_s
        return max(0.0, self._engine.clock() - heard_to_end_at) * 1e3

    async def _wait_for_room(self) -> None:
        while (excess_s := self._excess_s()) > 0 and not self._error:
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
        times = _Times(fed_at, cut.token_ms, cut.text_ms) if not self._first_sent else _Times()
        silence_ms = config.pauses.ms(clause.pause, request.speed) if self._first_sent else 0.0
        silence_ms -= self._dry_ms()
        if silence_ms > 0:
            await self._encode(self._silence(silence_ms), [], _Times(), clause, flush=True)
        base = self._packetizer.samples_out
        key, engine = self._key(clause.text), self._engine
        if engine.observer is not None:
            spoken, making = engine.cache.get(key), engine.in_making.get(key)
            outcome: CacheOutcome = "hit" if spoken is not None else "miss" if making is None else "shared"
            engine.observer.text_cache(outcome, engine.cache.bytes)

        async def speak() -> None:
            if (spoken := engine.cache.get(key)) is not None:
                self._took_place()
                spans = self._spans(spoken.words, clause, base)
                await self._send(spoken.pcm, spans, times, clause, flush=True, fed_at=fed_at)
            elif (making := engine.in_making.get(key)) is not None:
                await self._follow(making, clause, base, times, fed_at)
            else:
                await self._lead(key, clause, base, times, fed_at)

        await self._admitted(key, times, speak)
        if self.is_prompt:
            self.kept = engine.cache.keep(key) and self.kept

    async def _speak_growing(self, growing: GrowingText, fed_at: float) -> None:
        """Speak the first clause while its text comes. The result is remembered, but the cache is not asked for it."""
        clause = Clause("", growing.start_char, growing.start_char, first=True, pause=Pause.NONE)
        times = _Times(fed_at)
        pieces: Sequence[Piece] = ()

        async def speak() -> None:
            nonlocal pieces
            pieces = await self._lead(None, clause, 0, times, fed_at, growing=growing)

        await self._admitted(None, times, speak)
        if not self._error:
            self._remember(self._key(growing.text), pieces)

    async def _admitted(self, key: Hashable, times: _Times, speak: Callable[[], Awaitable[None]]) -> None:
        """Speak a clause when the model has a place for it.

        Args:
            key: see ``_lead``.
            speak: asks for the clause and speaks it. It is called anew if the model has refused.

        Raises:
            Exhausted: there was no place for too long.
        """
        engine, admission, request = self._engine, self._engine.admission, self._request
        ticket = Ticket(self._playhead, key, goes_on=self._first_sent or request.priority == HIGHEST_PRIORITY)
        ticket.at_once = request.at_once and not ticket.goes_on
        begun = engine.clock()
        made = key is not None and (key in engine.in_making or engine.cache.get(key) is not None)
        self._ticket = ticket
        try:
            if len(admission) and not (ticket.goes_on or made):
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
        )

    async def _lead(
        self,
        key: Hashable | None,
        clause: Clause,
        base: int,
        times: _Times,
        fed_at: float,
        *,
        growing: GrowingText | None = None,
    ) -> Sequence[Piece]:
        """Speak a clause as the model makes it, to this utterance and to those that join. Return it.

        Args:
            key: under which others join, and the clause is remembered. None: neither, since its text is not known yet.
        """
        in_making = self._engine.in_making
        draft = self._draft if self._draft is not None and self._draft.clause == clause else None
        if draft is not None:
            making = self._draft_making
        else:
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
            async with aclosing(self._pieces(chunks)) as made:
                async for piece in made:
                    if growing is not None:
                        clause = replace(clause, end_char=clause.start_char + len(growing.text))
                    if not pieces:
                        self._took_place()
                        self._engine.admission.begun(key)
                    pieces.append(piece)
                    if piece.last and key is not None:
                        # Whoever asks from now on finds the clause in the cache.
                        del in_making[key]
                        self._remember(key, pieces)
                    making.add(piece)
                    if not self._done:
                        if draft is not None and not self._first_sent:
                            times.token = draft.waited_ms
                        times = await self._hear(piece, clause, base, times, fed_at)
        except BaseException as exc:
            making.fail(exc)
            raise
        finally:
            if in_making.get(key) is making:
                del in_making[key]
            self._making = None
            self._engine.admission.freed()
        return pieces

    def _remember(self, key: Hashable, pieces: Sequence[Piece]) -> None:
        pcm = np.concatenate([piece.pcm for piece in pieces])
        if len(pcm):
            words = [word for piece in pieces for word in piece.words]
            self._engine.cache.put(key, SpokenClause(pcm, words))

    async def _follow(self, making: ClauseInMaking, clause: Clause, base: int, times: _Times, fed_at: float) -> None:
        """Speak a clause that another utterance is having made. The wait for a piece counts as the engine's work as far
        as the piece took work, else as queueing."""
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

    async def _hear(self, piece: Piece, clause: Clause, base: int, times: _Times, fed_at: float) -> _Times:
        """Send a piece of a clause. Return the times of the next chunk so far."""
        times.text += piece.text_ms
        times.queue += piece.queue_ms
        times.engine += piece.engine_ms
        if not len(piece.pcm) and not piece.last:
            return times
        spans = self._spans(piece.words, clause, base)
        await self._send(piece.pcm, spans, times, clause, flush=piece.last, fed_at=fed_at)
        return times if not self._first_sent else _Times()

    async def _pieces(self, made: AsyncGenerator[PcmChunk, None]) -> AsyncGenerator[Piece, None]:
        """Yield the sound that the model makes of a clause, without the silence at its ends."""
        engine = self._engine
        trimmer = SilenceTrimmer(self._rate)
        words: list[WordSpan] = []
        engine_ms, samples = 0.0, 0
        async with aclosing(made) as chunks:
            async for chunk in chunks:
                engine_ms += chunk.engine_ms
                if engine.observer is not None:
                    engine.observer.queued(chunk.queue_ms / 1e3)
                words += chunk.words
                pcm = trimmer.push(chunk.pcm)
                audible: list[WordSpan] = []
                if len(pcm):
                    audible, words = _moved(words, trimmer.trimmed or 0), []
                    samples += len(pcm)
                yield Piece(pcm, audible, chunk.text_ms, chunk.queue_ms, chunk.engine_ms)
        tail = trimmer.finish()
        samples += len(tail)
        if samples and engine.observer is not None:
            engine.observer.realtime_factor(self._synthesizer.name, engine_ms * self._rate / 1e3 / samples)
        yield Piece(tail, last=True)

    def _silence(self, ms: float) -> Pcm:
        return np.zeros(int(ms * self._rate / 1000), np.float32)

    def _spans(self, words: Sequence[WordSpan], clause: Clause, base: int) -> list[TextSpan]:
        """Return the words of the clause as spans of the utterance.

        Args:
            words: their samples count from the clause's first audible one.
            base: the sample of the utterance at which the clause begins.
        """
        ratio = self._request.format.sample_rate / self._rate
        return [
            TextSpan(
                clause.start_char + word.start_char,
                clause.start_char + word.end_char,
                base + round(word.first_sample * ratio),
                base + round(word.end_sample * ratio),
                word.exact,
            )
            for word in words
        ]

    async def _send(
        self, pcm: Pcm, spans: Sequence[TextSpan], times: _Times, clause: Clause, *, flush: bool, fed_at: float
    ) -> None:
        """Encode and queue the frames. The first frames of a piece that takes long are queued first."""
        head = int(_HEAD_S * self._rate)
        if len(pcm) > 2 * head and not self._packetizer.light:
            await self._encode(pcm[:head], spans, times, clause, flush=False, fed_at=fed_at)
            await self._encode(pcm[head:], [], _Times(), clause, flush=flush)
        else:
            await self._encode(pcm, spans, times, clause, flush=flush, fed_at=fed_at)

    async def _encode(
        self,
        pcm: Pcm,
        spans: Sequence[TextSpan],
        times: _Times,
        clause: Clause,
        *,
        flush: bool,
        fed_at: float | None = None,
    ) -> None:
        packetizer, engine = self._packetizer, self._engine
        first_sample = packetizer.samples_out

        def encode() -> list[bytes]:
            frames = packetizer.push(pcm) if len(pcm) else []
            return frames + packetizer.flush() if flush else frames

        begun = engine.clock()
        if packetizer.light:
            frames = encode()
        else:
            frames = await asyncio.get_running_loop().run_in_executor(engine.codec_pool, encode)
        now = engine.clock()
        times.codec += (now - begun) * 1e3
        if self._done or not (frames or spans):
            return
        samples = packetizer.samples_out - first_sample
        seconds = samples / self._request.format.sample_rate
        chunk = AudioChunk(
            frames=frames,
            first_sample=first_sample,
            samples=samples,
            spans=spans,
            clause_end_char=clause.end_char,
            stages_ms=times.stages_ms(now),
            engine=self._synthesizer.name,
        )
        playhead = self._playhead
        playhead.delivered_s += seconds
        if playhead.played_at is None and not playhead.ahead:
            playhead.played_at = now  # a guess, until the phone's position is reported
        if frames and not self._first_sent and fed_at is not None:
            self._first_sent = True
            if engine.observer is not None:
                engine.observer.first_chunk(self._synthesizer.name, now - fed_at)
        self._untaken_s += seconds
        self._chunks.append(chunk)
        self._changed.set()


def _moved(words: Sequence[WordSpan], lead: int) -> list[WordSpan]:
    """Return words whose samples count behind the first ``lead`` ones, which were trimmed."""
    return [
        replace(w, first_sample=max(0, w.first_sample - lead), end_sample=max(0, w.end_sample - lead)) for w in words
    ]
