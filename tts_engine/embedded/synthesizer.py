"""The embedded voice as a ``Synthesizer``: hibari on a few threads, the most urgent step first.

A clause is made in steps: prosody with the first 0.4 s of sound, then longer and longer blocks. Between two steps a
thread takes the most urgent step of all clauses. While any call is short of sound, all calls get short blocks. So when
fifty calls begin at once, each gets its first sound before any call gets its second block. A cancelled call costs at
most one step (4-8 ms).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from pathlib import Path

from tts_engine.api import EngineStatus, VoiceInfo
from tts_engine.config import EmbeddedConfig
from tts_engine.cosyvoice.kernels import compile_cache
from tts_engine.embedded.espeak import EspeakSynthesizer
from tts_engine.embedded.hibari import FRAME_MS, SAMPLE_RATE, HibariSpeech, HibariVoice, Noise, NoisePool
from tts_engine.embedded.hibari_text import PhonemeReader, SpokenPiece
from tts_engine.embedded.mandarin import MandarinSynthesizer
from tts_engine.embedded.voice_ids import ENGLISH as VOICE
from tts_engine.embedded.workers import Workers
from tts_engine.errors import InvalidRequest, NotFound, Unavailable
from tts_engine.loudness import louder
from tts_engine.stretch import ClauseStretch
from tts_engine.synthesizer import LINE_RATES, ClauseRequest, Hearing, PcmChunk, Playhead, WordSpan

_MAX_FRAMES = 160
"""Longest step, frames: 2 s of sound. A more urgent call waits for a thread as long as such a step takes (15 ms)."""

_STEP_MS = 20.0
"""Thread time of each waiting call in a burst, milliseconds: its first step (measured on two cores beside gateway and
load: 10 to 15; without them 6) and its share of the work that cannot wait."""

_UNHEARD_MS = 85.0
"""Part of a first block that is not heard, milliseconds: 60 ms of silence that are cut off at its start (measured), and
the two frames by which the block is shorter."""

QUEUE_CLAUSES = 512
"""Clauses that may wait for a thread. One more is refused, since its first sound would be seconds late."""

_GUARD_MS = 60.0
"""A speaking call with less sound in hand than this, milliseconds, goes before the first sounds of new turns."""

FIRST_BLOCK_MS = 400.0
"""Sound computed in the first step, and in every step while a call is short of sound, milliseconds. The first step
grows up to twofold with the number of callers who wait for their first sound."""

_SHORT_S = 0.2
"""Blocks are short while any waiting call has less sound in hand than this."""

_WARM_UP = "Hello there, this is a first sentence."


class EmbeddedSynthesizer:
    """A ``tts_engine.synthesizer.Synthesizer`` on hibari: English, one voice."""

    name = "embedded"
    sample_rate = SAMPLE_RATE
    line_rates: Collection[int] = LINE_RATES

    def __init__(self, config: EmbeddedConfig | None = None, *, cache_folder: Path | None = None) -> None:
        """
        Args:
            cache_folder: folder in which extras keep data over restarts. None: the user's cache folder.
        """
        self._config = config or EmbeddedConfig()
        self._cache_folder = cache_folder or compile_cache.folder("")
        self._workers = Workers(
            self.name,
            threads=self._config.threads,
            queue_size=QUEUE_CLAUSES,
            guard_s=_GUARD_MS / 1000,
        )
        self._reader: PhonemeReader | None = None
        self._voice: HibariVoice | None = None
        self._active = 0
        self._noise = NoisePool()
        self._others: list[MandarinSynthesizer | EspeakSynthesizer] = []
        """Voices of extras. The first one that takes a clause speaks it."""

    async def start(self) -> None:
        """Load network and dictionaries, speak one sentence on every thread.

        Raises:
            Unavailable: voices of an extra are configured, but the extra is not installed.
            NotFound: espeak-ng does not know one of its languages.
        """
        await asyncio.get_running_loop().run_in_executor(None, self._load)
        for other in self._others:
            await other.start()
        self._workers.start()
        clause = ClauseRequest(text=_WARM_UP, voice="", language="", speed=1.0, instruct="", first=True)
        await asyncio.gather(*(self._drain(clause) for _ in range(self._config.threads)))

    async def _drain(self, clause: ClauseRequest) -> None:
        async for _ in self.synthesize(clause, Playhead()):
            pass

    def _load(self) -> None:
        self._reader = PhonemeReader()
        self._voice = HibariVoice(VOICE)
        if self._config.mandarin is not None:
            self._others.append(MandarinSynthesizer(self._config.mandarin, self._reader, self._cache_folder))
        if self._config.espeak:
            self._others.append(EspeakSynthesizer(self._config.espeak, SAMPLE_RATE))

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        """Speak one clause. Closing the generator takes a waiting step back and lets a running one end.

        Raises:
            InvalidRequest: the voice does not speak these letters or this language.
            NotFound: there is no such voice.
            Exhausted: too many clauses wait already.
        """
        if self._reader is None or self._voice is None or not self._workers.running:
            raise Unavailable("the embedded voice is not running")
        for other in self._others:
            if other.takes(clause):
                async with aclosing(other.synthesize(clause, playhead)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
        if clause.voice not in ("", VOICE):
            known = ", ".join(voice.voice_id for voice in self.voices())
            raise NotFound(f"voice {clause.voice!r} is not one of the embedded engine; it has {known}")
        if clause.language and clause.language.split("-")[0].lower() != "en":
            raise InvalidRequest(
                f"language is {clause.language!r}, voice {VOICE!r} speaks English only", field="language"
            )
        work = _ClauseWork(
            self._reader, self._voice, clause, self._config, self._noise.reader(self._config.seed), self._block_frames
        )
        # A rough estimate: reading and prosody grow with the text, and only the order of clauses matters.
        cost_s = 0.004 + 5e-5 * len(clause.text)
        begun = False
        self._active += 1
        try:
            while not work.finished:
                step = await self._workers.run(work.step, playhead, cost_s=cost_s, begun=begun)
                begun = True
                if step is not None:
                    yield step
        finally:
            self._active -= 1

    def _block_frames(self, before: int) -> int:
        """Return the length in frames of the block that follows one of ``before`` frames (0: the first block).

        A first block is long enough to last until all calls that wait now have their first block. A second block before
        then would delay them by the time to make it and to send it.
        """
        if before and not self._workers.short_of_sound(_SHORT_S):
            return min(4 * before, _MAX_FRAMES)
        block_ms = FIRST_BLOCK_MS
        if not before:
            outlast_ms = self._workers.short_of_sound(0) * _STEP_MS / self._config.threads
            block_ms = min(max(block_ms, outlast_ms + _UNHEARD_MS + _GUARD_MS), 2 * block_ms)
        return int(block_ms / FRAME_MS)

    def voices(self) -> Sequence[VoiceInfo]:
        """Return the voice of the package, and the configured voices of extras."""
        heart = VoiceInfo(voice_id=VOICE, name="Heart", languages=["en-US"], engine=self.name)
        return [heart, *(voice for other in self._others for voice in other.voices())]

    def status(self) -> EngineStatus:
        """Return the engine's state and the number of waiting steps."""
        others = [other.status() for other in self._others]
        return EngineStatus(
            ready=self._workers.running,
            engine=self.name,
            model="hibari-heart",
            models=["hibari-heart"],
            active=self._active + sum(other.active for other in others),
            queued=self._workers.waiting + sum(other.queued for other in others),
        )

    async def aclose(self) -> None:
        """End the threads. A running step is finished first."""
        await self._workers.aclose()
        for other in self._others:
            await other.aclose()


class _ClauseWork:
    """One clause as a row of steps. Each step runs in some worker thread, one at a time."""

    def __init__(
        self,
        reader: PhonemeReader,
        voice: HibariVoice,
        clause: ClauseRequest,
        config: EmbeddedConfig,
        noise: Noise,
        block_frames: Callable[[int], int],
    ) -> None:
        self._reader = reader
        self._voice = voice
        self._clause = clause
        self._gain_db = config.gain_db
        self._noise = noise
        self._block_frames = block_frames
        self._frames = 0
        self._pieces: list[SpokenPiece] | None = None
        self._speech: HibariSpeech | None = None
        self._samples = 0
        self._rate = clause.line_rate or SAMPLE_RATE
        # The network was trained from 0.5 to 2. Outside this range it slurs, so stretching the sound does the rest.
        self._speed = min(max(clause.speed, 0.5), 2.0)
        self._stretch = ClauseStretch.beyond(self._speed, clause.speed, self._rate)
        self.finished = False

    def step(self) -> PcmChunk | None:
        """Make the next block of sound, with reading and prosody first if they are due. None: there is nothing to
        speak.

        Raises:
            InvalidRequest: the text has letters of a script that the voice cannot speak.
        """
        if self._pieces is None:
            self._pieces = self._reader.read(self._clause.text)
        words: Sequence[WordSpan] = ()
        if self._speech is None:
            if not self._pieces:
                self.finished = True
                return None
            self._speech = self._voice.begin(
                self._pieces.pop(0), self._speed, self._noise, self._rate, pitch=self._clause.pitch
            )
            words = [
                w._replace(first_sample=w.first_sample + self._samples, end_sample=w.end_sample + self._samples)
                for w in self._speech.words
            ]
        self._frames = self._block_frames(self._frames)
        pcm = louder(self._speech.block(self._frames), self._gain_db)
        self._samples += len(pcm)
        if self._speech.finished:
            self._speech = None
            self.finished = not self._pieces
        chunk = PcmChunk(pcm=pcm, words=words)
        return chunk if self._stretch is None else self._stretch.chunk(chunk, last=self.finished)
