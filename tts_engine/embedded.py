"""The embedded voice behind the engine's inner seam: hibari on a few threads, the most urgent step first.

Every clause is made in steps: prosody with the first 0.3 s of sound, then longer and longer blocks. Between two steps
a thread takes whatever is most urgent, so fifty calls that begin in one instant all get their first sound before
anybody gets a second block, and a cancelled call costs at most one step (4-8 ms).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from tts_engine.api import EngineStatus, VoiceInfo
from tts_engine.errors import EngineError, Exhausted, InvalidRequest, NotFound, SynthesisFailed, Unavailable
from tts_engine.hibari_text import Reader
from tts_engine.hibari_voice import HOP, SAMPLE_RATE, HibariVoice
from tts_engine.slack_queue import Job, SlackQueue
from tts_engine.synthesizer import ClauseRequest, PcmChunk, Playhead, WordSpan

log = logging.getLogger(__name__)

T = TypeVar("T")

VOICE = "heart"
"""The one voice whose model is inside the package; the others would be downloaded."""

_WARM_UP = "Hello there, this is a first sentence."


class EmbeddedConfig(BaseModel):
    """Settings of the embedded voice."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    threads: int = Field(default=2, ge=1, le=64)
    """Worker threads, one core each. More than there are cores gains nothing."""

    queue_size: int = Field(default=512, ge=1)
    """Clauses that may wait for a thread. Beyond it new ones are refused: their first sound would be seconds late."""

    guard_ms: float = Field(default=80, ge=0)
    """A speaking call with less sound than this in hand goes before first sounds. More avoids gaps under overload,
    less starts new turns sooner."""

    first_block_ms: float = Field(default=400, ge=100)
    """Sound computed in the first step. Less answers sooner, but needs the next step sooner."""

    gain_db: float = Field(default=5, ge=-20, le=20)
    """The voice peaks at -7 dB; telephone speech wants more. Peaks above -2 dB are rounded off."""

    seed: int | None = None
    """Fixes the noise in the sound, so that a text always gives the same samples. None: not fixed."""


class EmbeddedSynthesizer:
    """``tts_engine.synthesizer.Synthesizer`` on hibari: English, one voice."""

    name = "embedded"
    sample_rate = SAMPLE_RATE

    def __init__(self, config: EmbeddedConfig | None = None) -> None:
        self._config = config or EmbeddedConfig()
        self._queue = SlackQueue(
            size=self._config.queue_size, guard_s=self._config.guard_ms / 1000, clock=time.monotonic
        )
        self._threads: list[threading.Thread] = []
        self._reader: Reader | None = None
        self._voice: HibariVoice | None = None
        self._active = 0

    async def start(self) -> None:
        """Load network and dictionaries, speak one sentence on every thread."""
        await asyncio.get_running_loop().run_in_executor(None, self._load)
        self._threads = [
            threading.Thread(target=self._work, name=f"talkspurt-voice-{i}", daemon=True)
            for i in range(self._config.threads)
        ]
        for thread in self._threads:
            thread.start()
        clause = ClauseRequest(text=_WARM_UP, voice="", language="", speed=1.0, instruct="", first=True)
        await asyncio.gather(*(self._drain(clause) for _ in self._threads))

    async def _drain(self, clause: ClauseRequest) -> None:
        async for _ in self.synthesize(clause, Playhead()):
            pass

    def _load(self) -> None:
        self._reader = Reader()
        self._voice = HibariVoice(VOICE)

    async def synthesize(self, clause: ClauseRequest, playhead: Playhead) -> AsyncGenerator[PcmChunk, None]:
        """Speak one clause. Closing the generator takes a waiting step back and lets a running one end.

        Raises:
            InvalidRequest: letters or a language that the voice does not speak.
            NotFound: another voice.
            Exhausted: too many clauses wait already.
        """
        if self._reader is None or self._voice is None or not self._threads:
            raise Unavailable("the embedded voice is not running")
        if clause.voice not in ("", VOICE):
            raise NotFound(f"voice {clause.voice!r} is not one of the embedded engine; it has {VOICE!r}")
        if clause.language and clause.language.split("-")[0].lower() != "en":
            raise InvalidRequest(
                f"language is {clause.language!r}, voice {VOICE!r} speaks English only", field="language"
            )
        steps = self._steps(self._reader, self._voice, clause)
        self._active += 1
        first = True
        try:
            while True:
                # Rough, but only its order matters: prosody grows with the text, a later block with its length.
                cost_s = 0.004 + 5e-5 * len(clause.text)
                chunk = await self._submit(lambda: next(steps, None), playhead, cost_s, force=not first)
                if chunk is None:
                    return
                first = False
                yield chunk
        finally:
            self._active -= 1

    def _steps(self, reader: Reader, voice: HibariVoice, clause: ClauseRequest) -> Iterator[PcmChunk]:
        """The work of one clause; each ``next`` is one step, run in a worker thread."""
        config = self._config
        rng = np.random.default_rng(config.seed)
        speed = min(max(clause.speed, 0.5), 2.0)
        frames = int(config.first_block_ms * SAMPLE_RATE / 1000 / HOP)
        offset = 0
        for piece in reader.read(clause.text):
            if not piece.words:
                continue
            speech = voice.begin(piece, speed, rng)
            words: Sequence[WordSpan] = [
                replace(w, first_sample=w.first_sample + offset, end_sample=w.end_sample + offset) for w in speech.words
            ]
            while not speech.finished:
                pcm = _louder(speech.block(frames), config.gain_db)
                offset += len(pcm)
                frames = min(frames * 2, 400)
                yield PcmChunk(pcm=pcm, words=words)
                words = ()

    async def _submit(
        self, step: Callable[[], PcmChunk | None], playhead: Playhead, cost_s: float, *, force: bool
    ) -> PcmChunk | None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[PcmChunk | None] = loop.create_future()

        def settle(result: PcmChunk | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def run() -> None:
            begun = time.monotonic()
            result, error = None, None
            try:
                result = step()
                if result is not None:
                    result = replace(
                        result,
                        queue_ms=(begun - job.queued_at) * 1e3,
                        engine_ms=(time.monotonic() - begun) * 1e3,
                    )
            except EngineError as exc:
                error = exc
            except Exception as exc:  # a fault of ours or of the network ends this clause, not the thread
                log.exception("the embedded voice failed")
                error = SynthesisFailed(f"the embedded voice failed: {type(exc).__name__}")
            loop.call_soon_threadsafe(settle, result, error)

        def drop() -> None:
            loop.call_soon_threadsafe(settle, None, Unavailable("the embedded voice is closed"))

        job = Job(run, drop, playhead, cost_s)
        if not self._queue.put(job, force=force):
            raise Exhausted(
                f"{len(self._queue)} clauses wait for the voice, as many as queue_size allows",
                retry_after_s=len(self._queue) * 0.01 / self._config.threads,
            )
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if not self._queue.discard(job):
                await asyncio.wait([done])  # in a thread's hands: a few milliseconds, and then nobody works on it
                done.exception()
            raise

    def _work(self) -> None:
        while (job := self._queue.take()) is not None:
            job.run()

    def voices(self) -> Sequence[VoiceInfo]:
        """The one voice that works offline."""
        return [VoiceInfo(voice_id=VOICE, name="Heart", languages=["en-US"], engine=self.name)]

    def status(self) -> EngineStatus:
        """What runs and what waits."""
        return EngineStatus(
            ready=bool(self._threads),
            engine=self.name,
            model="hibari-heart",
            models=["hibari-heart"],
            active=self._active,
            queued=len(self._queue),
        )

    async def aclose(self) -> None:
        """End the threads; a running step is finished first."""
        self._queue.close()
        threads, self._threads = self._threads, []
        for thread in threads:
            await asyncio.get_running_loop().run_in_executor(None, thread.join)


_KNEE = 0.8


def _louder(pcm: NDArray[np.float32], db: float) -> NDArray[np.float32]:
    """Gain with a soft limit: linear up to 0.8, from there bent so that 1 is never reached."""
    out = pcm * np.float32(10 ** (db / 20))
    over = np.abs(out) > _KNEE
    if over.any():
        peak = out[over]
        room = 1 - _KNEE
        out[over] = np.sign(peak) * (_KNEE + room * np.tanh((np.abs(peak) - _KNEE) / room))
    return out
