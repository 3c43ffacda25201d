"""Turns an utterance's sound into frames of the leg's codec, and keeps them in a queue with the position that the phone
has played.

Resampling and encoding run in a thread; encoding by a table is so cheap that the event loop does it itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tts_engine.api import AudioChunk, TextSpan, UtteranceRequest
from tts_engine.synthesizer import Playhead, WordSpan
from tts_engine.text.clauses import Clause
from voicecodecs.packetizer import Packetizer

Pcm = NDArray[np.float32]

HEAD_S = 0.4
"""Seconds of sound that are encoded first, because a caller waits for them. Encoding a whole long clause takes
milliseconds."""
PIECE_S = 2.0
"""Most seconds of sound in a chunk. A ready clause may be longer, but the receiver has to serve other calls in
between."""


@dataclass(slots=True)
class StageTimes:
    """Milliseconds spent so far on the next chunk."""

    since: float | None = None
    """Time at which the text of an utterance's first chunk had come. The part of the time since then that no other
    stage explains was a wait for this process's event loop (``loop``)."""
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


class SoundOut:
    """The sound of one utterance, on its way to the phone.

    Args:
        rate: sample rate of the voice's sound, Hz.
        engine: name of the voice model, for the chunks.
        changed: called when there is a chunk, or the position has moved.
    """

    def __init__(
        self,
        request: UtteranceRequest,
        playhead: Playhead,
        *,
        rate: int,
        engine: str,
        clock: Callable[[], float],
        codec_pool: ThreadPoolExecutor,
        changed: Callable[[], None],
    ) -> None:
        self.rate = rate
        self.done = False
        """True when nothing more is queued: the utterance is over, or its clause is now made for others only."""
        self.first_sent_at: float | None = None
        """Time at which the first frames were queued."""
        self._line_rate = request.format.sample_rate
        self._playhead = playhead
        self._reported = False
        """True once the phone's position is known. Before that, only the consumer's pull bounds the work ahead."""
        self._packetizer = Packetizer(request.format, rate)
        self._engine = engine
        self._clock = clock
        self._codec_pool = codec_pool
        self._changed = changed
        self._chunks: deque[AudioChunk] = deque()
        self._untaken_s = 0.0

    @property
    def begun(self) -> bool:
        """True when the first frames have been queued."""
        return self.first_sent_at is not None

    @property
    def samples(self) -> int:
        """Number of samples made so far, at the line's rate. Between clauses, this is where the next one begins."""
        return self._packetizer.position

    def take(self) -> AudioChunk | None:
        """Return the next chunk. None: there is none yet."""
        if not self._chunks:
            return None
        chunk = self._chunks.popleft()
        self._untaken_s -= chunk.samples / self._line_rate
        self._changed()
        return chunk

    def clear(self) -> None:
        """Drop the chunks that were not taken."""
        self._chunks.clear()

    def played(self, samples: int, *, at: float) -> None:
        """Take the phone's position. From now on it bounds the work ahead."""
        playhead = self._playhead
        playhead.played_s = samples / self._line_rate
        playhead.played_at = at
        playhead.ahead = False
        self._reported = True
        self._changed()

    def in_hand_s(self) -> float:
        """Return the seconds of sound that are made and not heard yet, as far as that is known."""
        playhead = self._playhead
        if playhead.ahead:
            return playhead.delivered_s
        if self._reported:
            return max(self._untaken_s, playhead.slack_s(self._clock()))
        return self._untaken_s

    def unheard_s(self) -> float:
        """Return the seconds of sound that were made and that no listener has heard."""
        playhead = self._playhead
        return playhead.delivered_s if playhead.played_at is None else playhead.slack_s(self._clock())

    def dry_ms(self) -> float:
        """Return for how many milliseconds the caller has heard silence because text came late. 0 while the position is
        unknown."""
        playhead = self._playhead
        if not self._reported or playhead.played_at is None:
            return 0.0
        heard_to_end_at = playhead.played_at + playhead.delivered_s - playhead.played_s
        return max(0.0, self._clock() - heard_to_end_at) * 1e3

    async def silence(self, ms: float, clause: Clause) -> None:
        """Queue silence before a clause, so that ``ms`` of silence separate it from the clause before."""
        left, most = int(ms * self._line_rate / 1000), int(PIECE_S * self._line_rate)
        while left > 0:
            pause = partial(self._packetizer.pause, min(left, most))
            await self._encode(pause, [], StageTimes(), clause)
            left -= most

    def spans(self, words: Sequence[WordSpan], clause: Clause, base: int) -> list[TextSpan]:
        """Return the words of the clause as spans of the utterance.

        Args:
            words: their samples count from the clause's first audible one.
            base: the sample of the utterance at which the clause begins.
        """
        ratio = self._line_rate / self.rate
        begin = clause.start_char
        return [
            TextSpan(
                begin + start_char,
                begin + end_char,
                base + round(first_sample * ratio),
                base + round(end_sample * ratio),
                exact,
            )
            for start_char, end_char, first_sample, end_sample, exact in words
        ]

    async def send(
        self, pcm: Pcm, spans: Sequence[TextSpan], times: StageTimes, clause: Clause, *, flush: bool
    ) -> None:
        """Encode and queue the frames in pieces. The first piece is short if encoding takes long."""
        short = len(pcm) > 2 * HEAD_S * self.rate and not self._packetizer.quick
        first, end = 0, int((HEAD_S if short else PIECE_S) * self.rate)
        while True:
            last = end >= len(pcm)
            piece = partial(self._frames, pcm[first:end], flush=flush and last)
            await self._encode(piece, spans, times, clause)
            if last:
                break
            spans, times = [], StageTimes()
            first, end = end, end + int(PIECE_S * self.rate)

    def _frames(self, pcm: Pcm, *, flush: bool) -> list[bytes]:
        frames = self._packetizer.push(pcm) if len(pcm) else []
        return frames + self._packetizer.flush() if flush else frames

    async def _encode(
        self, encode: Callable[[], list[bytes]], spans: Sequence[TextSpan], times: StageTimes, clause: Clause
    ) -> None:
        packetizer = self._packetizer
        first_sample = packetizer.samples_out
        begun = self._clock()
        if packetizer.quick:
            frames = encode()
        else:
            frames = await asyncio.get_running_loop().run_in_executor(self._codec_pool, encode)
        now = self._clock()
        times.codec += (now - begun) * 1e3
        if self.done or not (frames or spans):
            return
        samples = packetizer.samples_out - first_sample
        seconds = samples / self._line_rate
        chunk = AudioChunk(
            frames=frames,
            first_sample=first_sample,
            samples=samples,
            spans=spans,
            clause_end_char=clause.end_char,
            stages_ms=times.stages_ms(now),
            engine=self._engine,
        )
        playhead = self._playhead
        if not self._reported and playhead.played_at is not None and playhead.slack_s(now) <= 0:
            # The listener has played all earlier sound, and continues with this one. Without that, it would count as
            # waiting until the length of the gap had been made up.
            playhead.played_s, playhead.played_at = playhead.delivered_s, now
        playhead.delivered_s += seconds
        if playhead.played_at is None and not playhead.ahead:
            playhead.played_at = now  # a guess, until the phone's position is reported
        if frames and self.first_sent_at is None:
            self.first_sent_at = now
        self._untaken_s += seconds
        self._chunks.append(chunk)
        self._changed()
