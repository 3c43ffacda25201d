"""A gateway on a free port of 127.0.0.1, its humming engine behind real gRPC: what the HTTP API is tested against."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from talkspurt.build import Gateway, gateway
from talkspurt.config.settings import Config
from tts_engine.api import UtteranceRequest, VoiceInfo
from tts_engine.config import EngineConfig
from tts_engine.cosyvoice.voices import VoiceRegistry
from tts_engine.errors import InvalidRequest
from tts_engine.metrics import PrometheusObserver
from tts_engine.pipeline.engine import Engine
from tts_engine.service.client import GrpcEngine
from tts_engine.service.server import SpeechServer
from tts_engine.tone import ToneSynthesizer


class Loudness:
    """The smallest extractor there is."""

    engine = "tone"

    def extract(self, wav: bytes, transcript: str) -> Mapping[str, np.ndarray]:
        if not transcript:
            raise InvalidRequest("transcript is empty", field="transcript")
        return {"loudness": np.frombuffer(wav[44:], "<i2").astype(np.float32)[:1]}


class CloningEngine(Engine):
    """Hums, and keeps registered voices in a real registry."""

    def __init__(self, folder: Path, synthesizer: ToneSynthesizer) -> None:
        super().__init__(synthesizer, observer=PrometheusObserver())
        self.asked: list[UtteranceRequest] = []
        self.registry = VoiceRegistry(folder, engine="tone", builtin=synthesizer.voices(), extractor=Loudness())

    def open(self, request: UtteranceRequest) -> Any:
        self.asked.append(request)
        if request.voice:
            self.registry.get(request.voice)
        return super().open(request)

    async def list_voices(self) -> Sequence[VoiceInfo]:
        return self.registry.voices()

    async def add_voice(
        self, *, voice_id: str, name: str, wav: bytes | bytearray, transcript: str, language: str
    ) -> VoiceInfo:
        return await asyncio.to_thread(
            self.registry.add, voice_id=voice_id, name=name, wav=bytes(wav), transcript=transcript, language=language
        )

    async def remove_voice(self, voice_id: str) -> None:
        self.registry.remove(voice_id)


@asynccontextmanager
async def api_gateway(
    folder: Path,
    *,
    clones: bool = True,
    synthesizer: ToneSynthesizer | None = None,
    before: Sequence[str] = (),
    **sections: Any,
) -> AsyncIterator[tuple[Gateway, Engine, str]]:
    """The gateway, its engine and its address. ``before``: engines that are asked before this one."""
    synthesizer = synthesizer or ToneSynthesizer()
    server = SpeechServer(EngineConfig(listen=f"unix:{folder}/engine.sock"))
    engine: Engine = CloningEngine(folder / "voices", synthesizer)
    if not clones:
        engine = Engine(synthesizer, observer=PrometheusObserver())
    await engine.start()
    await server.start()
    await server.serve(engine)
    client = GrpcEngine([*before, server.address], server.config)
    try:
        sections["server"] = {"port": 0, **sections.get("server", {})}
        config = Config.model_validate({"engine": {"kind": "tone"}, **sections})
        async with gateway(config, client) as made:
            yield made, engine, f"http://127.0.0.1:{made.server.port}"
    finally:
        await client.aclose()
        await server.aclose()
        await engine.aclose()
