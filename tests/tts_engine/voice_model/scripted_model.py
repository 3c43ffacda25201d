"""A voice model for a process of its own: what it does with a clause is the clause's text. Run as a child process."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.tts_engine.garbage import most_looked_at
from tts_engine.api import EngineStatus, VoiceInfo
from tts_engine.errors import Exhausted, InvalidRequest, NotFound, Unavailable
from tts_engine.synthesizer import ClauseRequest, Hearing, PcmChunk, WordSpan
from tts_engine.voice_model import child

RATE = 24000
FAILURES = {
    "no voice": NotFound("no voice 'x'"),
    "wrong": InvalidRequest("the speed is wrong", field="speed"),
    "full": Exhausted("no place is free", retry_after_s=2.5),
    "broken": RuntimeError("something unexpected"),
}


class ScriptedModel:
    """A ``Synthesizer``."""

    name = "scripted"
    sample_rate = RATE
    line_rates: Collection[int] = ()

    def __init__(self, observer: Any) -> None:
        self._observer = observer
        self._open = 0

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    def voices(self) -> Sequence[VoiceInfo]:
        return [VoiceInfo(voice_id="own", name="own", languages=(), engine=self.name)]

    def status(self) -> EngineStatus:
        return EngineStatus(ready=True, engine=self.name, model=self.name, gpu="a GPU", active=self._open)

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        self._open += 1
        self._observer.batch(self._open, cache="flow", cache_bytes=7, free_blocks=3)
        try:
            if clause.text in FAILURES:
                raise FAILURES[clause.text]
            if clause.placed is not None:
                clause.placed()
            if clause.more is not None:
                async for piece in clause.more:
                    yield chunk(float(len(piece)))
            elif clause.text == "until it is awaited":
                while playhead.ahead:
                    await asyncio.sleep(0.001)
                yield chunk(1.0)
            elif clause.text == "garbage":
                yield chunk(await most_looked_at())
            elif clause.text == "hearing":
                while True:
                    flags = [playhead.ahead, playhead.tentative, playhead.speaks]
                    yield chunk(*map(float, flags), playhead.head_start_s, playhead.slack_s(time.monotonic()))
            else:
                for number in range(3):
                    yield PcmChunk(pcm=sound(number), words=[WordSpan(number, number + 1, 0, 9)], engine_ms=number)
        finally:
            self._open -= 1


def chunk(*values: float) -> PcmChunk:
    return PcmChunk(pcm=np.array(values, np.float32))


def sound(number: int) -> np.ndarray:
    """A chunk of ten seconds, which is larger than what a socket takes at a time."""
    return np.random.default_rng(number).uniform(-1, 1, 10 * RATE).astype(np.float32)


def load(file: Path, observer: Any) -> ScriptedModel:
    if file.read_text() == "unloadable":
        raise Unavailable("the folder lacks llm.pt")
    return ScriptedModel(observer)


def main(arguments: list[str]) -> int:
    file = Path(arguments[0])
    return child.run(file, lambda observer: load(file, observer), parent_pid=int(arguments[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
