"""A speech engine for tests of what stands around one: it does what the words say, one step a word.

``hold`` waits for ``release``, ``break`` raises a bug, ``ruin`` breaks the engine for good, ``flood`` never ends,
``garbage`` is a chunk whose first sample is ``most_looked_at()``; any other word is one chunk of two frames that hold
it. Voices: ``stranger`` is unknown, ``full`` is refused.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.tts_engine.garbage import most_looked_at
from tts_engine.api import AudioChunk, EngineStatus, TextSpan, VoiceInfo
from tts_engine.config import EngineConfig
from tts_engine.errors import Exhausted, NotFound
from tts_engine.service.runner import run_child

RETRY_AFTER_S = 2.5


class ScriptedUtterance:
    def __init__(self, request, engine):
        self.request = request
        self.engine = engine
        self.text = ""
        self.ended = False
        self.steps = 0
        self.positions = []
        self.changed = asyncio.Event()
        self.release = asyncio.Event()
        self.holding = asyncio.Event()
        self.closed = asyncio.Event()

    def feed(self, text):
        self.text += text
        self.changed.set()

    def end_text(self):
        self.ended = True
        self.changed.set()

    def played(self, samples, *, at):
        self.positions.append((samples, at))

    async def __aiter__(self):
        done = 0
        while True:
            words, ended = self.text.split(" "), self.ended  # while a word is spoken more may come
            if not ended:
                words.pop()
            for word in words[done:]:
                self.steps += 1
                if word == "break":
                    raise RuntimeError(f"cannot say {self.text}")
                if word == "ruin":
                    self.engine.ready = False
                if word == "hold":
                    self.holding.set()
                    await self.release.wait()
                if word == "garbage":
                    yield AudioChunk(frames=[b""], first_sample=await most_looked_at(), samples=0)
                while word == "flood":
                    self.steps += 1
                    yield AudioChunk(frames=[bytes(8000)] * 8, first_sample=0, samples=64_000)
                yield chunk_of(word, self.steps - 1)
            done = len(words)
            if ended:
                return
            if not self.changed.is_set():
                await self.changed.wait()
            self.changed.clear()

    async def aclose(self):
        self.closed.set()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.aclose()


def chunk_of(word: str, step: int) -> AudioChunk:
    return AudioChunk(
        frames=[word.encode().ljust(160, b"."), word.encode().ljust(160, b"-")],
        first_sample=320 * step,
        samples=320,
        spans=[TextSpan(0, len(word), 320 * step, 320 * step + 320, step % 2 == 0)],
        stages_ms={"text": 0.5, "engine": 4.0},
    )


class ScriptedEngine:
    def __init__(self):
        self.utterances = []
        self.refused = []
        self.voices = {"heart": VoiceInfo(voice_id="heart", name="Heart", languages=["en"], engine="scripted")}
        self.model = "one"
        self.ready = True

    def open(self, request):
        if request.voice == "stranger":
            raise NotFound("no voice 'stranger'; there is heart")
        if request.voice == "full":
            self.refused.append(request)
            raise Exhausted("no place left", retry_after_s=RETRY_AFTER_S)
        self.utterances.append(ScriptedUtterance(request, self))
        return self.utterances[-1]

    async def list_voices(self):
        return list(self.voices.values())

    async def add_voice(self, *, voice_id, name, wav, transcript, language):
        assert wav and transcript
        self.wav = wav
        voice = VoiceInfo(voice_id=voice_id, name=name, languages=[language], engine="scripted", registered=True)
        self.voices[voice_id] = voice
        return voice

    async def remove_voice(self, voice_id):
        if voice_id not in self.voices:
            raise NotFound(f"no voice {voice_id!r}")
        del self.voices[voice_id]

    async def set_active_model(self, model):
        if model not in ("one", "two"):
            raise NotFound(f"no model {model!r}")
        self.model = model

    async def load_model(self, model):
        raise NotFound(f"no folder {model.folder!r}")

    async def unload_model(self, name):
        raise NotFound(f"no model {name!r}")

    async def status(self):
        return EngineStatus(
            ready=self.ready, engine="scripted", model=self.model, models=["one", "two"], queued=3, gpu="none"
        )

    async def aclose(self):
        pass


async def make(config: EngineConfig) -> ScriptedEngine:
    return ScriptedEngine()


if __name__ == "__main__":
    file, parent_pid = sys.argv[1:]
    sys.exit(run_child(EngineConfig.model_validate_json(Path(file).read_text()), make, parent_pid=int(parent_pid)))
