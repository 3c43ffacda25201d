"""CosyVoice as a ``Synthesizer``: text front end, language model and token-to-wave for one clause after another.

A clause can be cancelled at every stage by closing its generator. The language model then leaves it out of the next
step, token-to-wave frees its cache blocks before the next batch, and queued work is dropped.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from tts_engine.api import EngineStatus
from tts_engine.cosyvoice.frontend.features import VoiceFeatures
from tts_engine.cosyvoice.frontend.frontend import LmPrompt
from tts_engine.cosyvoice.frontend.normaliser import Normaliser
from tts_engine.cosyvoice.frontend.words import SYLLABLE_S, Word, Wording
from tts_engine.cosyvoice.gpu_sampler import GpuSampler
from tts_engine.cosyvoice.lm.api import LmBackend, StreamedLm
from tts_engine.cosyvoice.models.config import FRAME_SAMPLES, FRAMES_PER_TOKEN, SAMPLE_RATE
from tts_engine.cosyvoice.silent_tokens import SilenceFilter
from tts_engine.cosyvoice.token2wav.admission import Admission, Resource, Work
from tts_engine.cosyvoice.token2wav.rendering import Rendering, Voice
from tts_engine.cosyvoice.token2wav.scheduler import Batch, Scheduler, Shape
from tts_engine.cosyvoice.token2wav.worker import WaveWorker
from tts_engine.errors import Exhausted, SynthesisFailed
from tts_engine.stretch import ClauseStretch
from tts_engine.synthesizer import ClauseRequest, EditsVoiceFiles, Hearing, PcmChunk, VoiceFiles, WordSpan

_FREE_BLOCK_SHARE = 0.75
"""Built-in voices are loaded at the start only while more than this share of the cache blocks is free."""
SAMPLES_PER_TOKEN = FRAMES_PER_TOKEN * FRAME_SAMPLES


class ClauseFrontend(Protocol):
    """The part of ``cosyvoice.frontend.Frontend`` that the synthesizer uses."""

    def clause(self, wording: Wording, voice: VoiceFeatures, *, instruct: str = "") -> LmPrompt: ...

    def streamed(self, voice: VoiceFeatures, *, instruct: str = "") -> LmPrompt | None: ...

    def piece(self, text: str, language: str = "") -> tuple[Sequence[int], Sequence[Word]]: ...


class VoiceSource(VoiceFiles, Protocol):
    """The voices of the engine. Methods raise NotFound for an unknown voice."""

    def features(self, voice_id: str) -> tuple[object, VoiceFeatures]:
        """Return a key, unique for the voice and its revision, and the voice's features."""
        ...


class StepObserver(Protocol):
    """Counts token-to-wave batches, in the token-to-wave thread, and clauses without a place, on the event loop."""

    def batch(self, rows: int, *, cache: str, cache_bytes: int, free_blocks: int) -> None:
        """Count a batch of ``rows`` clauses. ``cache_bytes``: bytes of the cache in use after it. ``free_blocks``:
        number of its free blocks."""
        ...

    def recomputed(self, chunks: int) -> None:
        """Count chunks that ran again without sound, because their cache had been taken."""
        ...

    def no_place(self, short: Resource) -> None:
        """Count an answer that there is no place now, by the resource that is short."""
        ...


class CosyVoiceSynthesizer(EditsVoiceFiles):
    """One checkpoint on one device. Call ``start`` before use and ``aclose`` at the end."""

    sample_rate = SAMPLE_RATE
    line_rates: Collection[int] = ()
    _voices: VoiceSource

    def __init__(
        self,
        *,
        name: str,
        frontend: ClauseFrontend,
        normaliser: Normaliser,
        lm: LmBackend,
        worker: WaveWorker,
        voices: VoiceSource,
        start_lm: Callable[[], object] | None = None,
        streamed_lm: StreamedLm | None = None,
        filter_silence: bool = True,
        gpu: str = "",
        admission: Admission,
        observer: StepObserver | None = None,
        block_bytes: int = 0,
        gpu_sampler: GpuSampler | None = None,
    ) -> None:
        """
        Args:
            name: ``cosyvoice2`` or ``cosyvoice3``.
            streamed_lm: draws speech ids while text is still arriving. None: clauses wait for all their text.
            start_lm: coroutine function that starts the language model. None: it is running.
            filter_silence: drop long runs of silent tokens, as upstream does for CosyVoice3.
            admission: decides which clauses are let in.
            observer: counts batches and cache use. block_bytes: bytes of one cache block.
            gpu_sampler: samples the GPU from start to close.
        """
        self.name = name
        self._frontend, self._normaliser = frontend, normaliser
        self._lm, self._worker, self._voices = lm, worker, voices
        self._start_lm, self._filter_silence, self._gpu = start_lm, filter_silence, gpu
        self._admission = admission
        self._observer, self._block_bytes, self._gpu_sampler = observer, block_bytes, gpu_sampler
        self._recomputed = 0
        """``Scheduler.recomputed_chunks`` as the observer knows it."""
        self._scheduler = worker.scheduler
        self._waiting = 0
        worker.on_batch = self._on_batch
        lm.busy = self._scheduler.busy
        self._streamed_lm = streamed_lm
        self.streams_text = streamed_lm is not None
        worker.on_calibrated = self._on_calibrated
        self._ready = False

    async def start(self) -> None:
        """Start all parts, then compute the prompts of the built-in voices."""
        # Three busy threads share the interpreter lock. With the default of 5 ms, each may wait that long for another.
        sys.setswitchinterval(0.0005)
        if self._gpu_sampler is not None:
            self._gpu_sampler.start()
        await self._normaliser.start()
        if self._start_lm is not None:
            await self._start_lm()  # type: ignore[misc]
        await self._worker.start()
        self._scheduler.slower(self._admission.longest_batch_s)
        for info in self._voices.infos()[:8]:
            if self._worker.blocks.free_blocks < _FREE_BLOCK_SHARE * self._worker.config.blocks:
                break
            await self._voice(info.voice_id)
        self._ready = True

    def status(self) -> EngineStatus:
        return EngineStatus(
            ready=self._ready and self._lm.alive and self._worker.alive,
            engine=self.name,
            model=self.name,
            models=(self.name,),
            gpu=self._gpu,
            active=self._scheduler.open_clauses,
            queued=self._scheduler.silent + self._waiting,
        )

    async def aclose(self) -> None:
        self._ready = False
        if self._gpu_sampler is not None:
            self._gpu_sampler.stop()
        await self._lm.aclose()
        await self._worker.aclose()
        await self._normaliser.aclose()

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        """See ``Synthesizer``. The first chunk needs ``CosyVoiceConfig.first_hop`` speech tokens and three of
        look-ahead; each later chunk needs 25. The model has no speed, so the audio is stretched: a second of faster
        speech costs proportionally more computation."""
        stretch = ClauseStretch.beyond(1.0, clause.speed, SAMPLE_RATE)
        async with aclosing(self._chunks(clause, playhead)) as chunks:
            async for chunk, last in chunks:
                # Stretching a long chunk takes milliseconds.
                yield chunk if stretch is None else await asyncio.to_thread(stretch.chunk, chunk, last=last)

    async def _chunks(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[tuple[PcmChunk, bool], None]:
        """Yield the chunks of a clause at the model's own speed, each with True if it is the last."""
        begun = time.monotonic()
        features, voice = await self._voice(clause.voice)
        words = _Words([])
        rendering = await self._open(voice, playhead, goes_on=not clause.first)
        if clause.placed is not None:
            clause.placed()
        ended = False
        try:
            opened = time.monotonic()
            drawing = await self._draw(clause, features, words, _Reader(self._scheduler, rendering))
            text_s = time.monotonic() - opened
            begun += text_s
            silence = SilenceFilter() if self._filter_silence else None
            async with aclosing(drawing) as tokens:
                async for ids in tokens:
                    rendering.tokens += ids if silence is None else filter(silence.keep, ids)
                    while self._scheduler.missing(rendering) <= 0 and not self._waits_for_longer_first_chunk(
                        rendering, playhead, clause.speed
                    ):
                        yield await self._chunk(rendering, words, begun, text_s, final=False), False
                        text_s = 0.0
                        begun = time.monotonic()
            if not rendering.tokens:
                raise SynthesisFailed("the language model drew no speech tokens for this clause")
            words.total = len(rendering.tokens) * SAMPLES_PER_TOKEN
            while len(rendering.tokens) > rendering.sounded:
                final = self._scheduler.is_last(rendering)
                chunk = await self._chunk(rendering, words, begun, text_s, final=final)
                ended = final
                yield chunk, final
                begun, text_s = time.monotonic(), 0.0
        finally:
            self._worker.close(rendering)
            sound_s = rendering.sounded * SAMPLES_PER_TOKEN / SAMPLE_RATE
            self._admission.departed(time.monotonic(), sound_s / clause.speed, cut=not ended)

    def _waits_for_longer_first_chunk(self, rendering: Rendering, playhead: Hearing, speed: float) -> bool:
        """Choose a longer first chunk for a clause whose shortest one is ready, if the load asks for it. Return True if
        the clause must then wait for more tokens."""
        hops = self._scheduler.first_hops(rendering.voice)
        if rendering.sounded or rendering.first_hop == hops[-1]:
            return False
        sounds_s = [self._sound_s(hop) / speed for hop in hops]
        place = self._admission.first_chunk(self._worker.load(), sounds_s, slack_s=playhead.slack_s(time.monotonic()))
        rendering.first_hop = max(rendering.first_hop, hops[place])
        return self._scheduler.missing(rendering) > 0

    def _sound_s(self, first_hop: int) -> float:
        """Return the audible length of a first chunk of ``first_hop`` tokens, in seconds. The vocoder holds back its
        end."""
        frames = first_hop * FRAMES_PER_TOKEN
        begin, end = self._worker.runner.state.vocoder.valid(before=0, frames=frames, final=False)
        return (end - begin) / SAMPLE_RATE

    async def _draw(
        self, clause: ClauseRequest, features: VoiceFeatures, words: _Words, reader: _Reader
    ) -> AsyncGenerator[Sequence[int], None]:
        """Return the clause's speech ids as they are drawn, and add its words to ``words`` as they become known."""
        front, seed, text = self._frontend, random.getrandbits(63), clause.text
        if clause.more is not None:
            layout = front.streamed(features, instruct=clause.instruct)
            if self._streamed_lm is not None and layout is not None:
                return self._streamed_lm.generate_streamed(
                    self._pieces(clause, clause.more, words),
                    prompt_text=layout.prompt_text.tolist(),
                    prompt_speech=layout.prompt_speech.tolist(),
                    seed=seed,
                    reader=reader,
                )
            text += "".join([piece async for piece in clause.more])

        wording = await self._normaliser.wording(text, clause.language)
        words.add(wording.words)
        prompt = front.clause(wording, features, instruct=clause.instruct)
        return self._lm.generate(
            self._lm.table.prompt(prompt.prompt_text, prompt.text, prompt.prompt_speech),
            min_tokens=prompt.min_tokens,
            max_tokens=prompt.max_tokens,
            seed=seed,
            reader=reader,
            shared=1 + prompt.shared,
        )

    async def _pieces(
        self, clause: ClauseRequest, more: AsyncIterator[str], words: _Words
    ) -> AsyncIterator[Sequence[int]]:
        """Yield the text ids of a clause whose text is still arriving."""
        length = 0
        async for piece in more:
            ids, found = self._frontend.piece(piece, clause.language)
            words.add([(start + length, end + length, weight) for start, end, weight in found])
            length += len(piece)
            yield ids

    async def _open(self, voice: Voice, playhead: Hearing, *, goes_on: bool) -> Rendering:
        """Return an open rendering for the clause. If admission refuses, a clause of a speaking turn, or of a turn made
        ahead of time, waits until it is admitted.

        Raises:
            Exhausted: admission refuses a new turn whose audio is awaited.
        """
        waits = False
        try:
            while True:
                load = self._worker.load(waiting=self._waiting - (waits and goes_on))
                verdict = self._admission.judge(load, now=time.monotonic(), goes_on=goes_on, ahead=playhead.ahead)
                if verdict.short is None:
                    return self._worker.open(voice, playhead)
                if self._observer is not None:
                    self._observer.no_place(verdict.short)
                if not (goes_on or playhead.ahead):
                    raise Exhausted(verdict.reason, retry_after_s=verdict.retry_after_s)
                if not waits:
                    waits, self._waiting = True, self._waiting + 1
                await asyncio.sleep(0.02)  # polled: load, slack and ``ahead`` change in other threads and tasks
        finally:
            self._waiting -= waits

    def _on_calibrated(self, length: int, rows: int, seconds: float) -> None:
        self._admission.calibrate(self._work("chunk", length), rows, seconds)

    def _work(self, shape: Shape, length: int) -> Work:
        return "first" if shape == "chunk" and length < self._worker.runner.chunk else shape

    def _on_batch(self, batch: Batch, seconds: float) -> None:
        rows = len(batch.jobs)
        self._admission.observe(self._work(batch.shape, batch.length), rows, seconds)
        if self._observer is not None:
            used = self._worker.config.blocks - self._worker.blocks.free_blocks
            self._observer.batch(
                rows,
                cache="flow",
                cache_bytes=used * self._block_bytes,
                free_blocks=self._worker.blocks.free_blocks,
            )
            recomputed = self._scheduler.recomputed_chunks
            if recomputed > self._recomputed:
                self._observer.recomputed(recomputed - self._recomputed)
                self._recomputed = recomputed

    async def _chunk(
        self, rendering: Rendering, words: _Words, begun: float, text_s: float, *, final: bool
    ) -> PcmChunk:
        asked = time.monotonic()
        pcm = await self._worker.submit(rendering, final=final)
        done = time.monotonic()
        return PcmChunk(
            pcm=pcm,
            words=words.take(len(pcm), last=final),
            text_ms=text_s * 1000,
            queue_ms=(asked - begun) * 1000,
            engine_ms=(done - asked) * 1000,
        )

    async def _voice(self, voice_id: str) -> tuple[VoiceFeatures, Voice]:
        key, features = self._voices.features(voice_id)
        voice = await self._worker.voice(key, features.flow_tokens, features.flow_mel, features.speaker)
        return features, voice


@dataclass(slots=True)
class _Reader:
    """Tells the language model how many ids a clause still needs and how soon (``lm.api.Reader``)."""

    scheduler: Scheduler
    rendering: Rendering

    def wanted(self) -> int:
        return self.scheduler.missing(self.rendering)

    def slack_s(self, now: float) -> float:
        return self.rendering.playhead.slack_s(now)


class _Words:
    """Assigns the words of a clause to the chunks in which they begin. Words get their expected lengths first; once the
    clause's length is known, the remaining words are scaled to it."""

    def __init__(self, words: Sequence[Word]) -> None:
        self._left = list(words)
        self._begin = 0.0
        self._heard = 0
        self.total: int | None = None
        """Number of samples of the clause. None: not known yet."""

    def add(self, words: Sequence[Word]) -> None:
        """Append words."""
        self._left += words

    def take(self, samples: int, *, last: bool) -> Sequence[WordSpan]:
        """Return the words that begin in the next ``samples`` samples."""
        self._heard += samples
        out: list[WordSpan] = []
        weight = sum(w for *_, w in self._left)
        scale = SYLLABLE_S * SAMPLE_RATE
        if self.total is not None and weight:
            scale = max(self.total - self._begin, 0) / weight
        while self._left and (last or self._begin < self._heard):
            start, end, share = self._left.pop(0)
            finish = self._begin + share * scale
            out.append(WordSpan(start, end, round(self._begin), round(finish), exact=False))
            self._begin = finish
        return out
