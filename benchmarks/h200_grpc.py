"""``h200_cosyvoice.py --grpc``: the same engine in another process, behind the gRPC that a gateway uses.

Run as a script, this is that process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch
from h200_engine import Sound, clause_text, first_hop, make_engine

from tts_engine.api import SpeechEngine, Utterance, UtteranceRequest
from tts_engine.config import EngineConfig, EngineTimeouts
from tts_engine.errors import Unavailable
from tts_engine.metrics import PrometheusObserver
from tts_engine.pipeline.engine import Engine
from tts_engine.pipeline.settings import SpeechConfig
from tts_engine.service import runner, server
from tts_engine.service.client import GrpcEngine
from tts_engine.synthesizer import Playhead


class Remote:
    """The engine in another process, over gRPC."""

    REPORT_S = 0.1

    def __init__(self, client: GrpcEngine, *, tiny: bool, words: bool) -> None:
        self.client, self.tiny, self.words = client, tiny, words
        self._opened = 0

    async def speak(self, tokens: int, playhead: Playhead) -> AsyncGenerator[Sound, None]:
        self._opened += 1
        utterance = self.client.open(UtteranceRequest(utterance_id=f"u{self._opened}", voice="reference"))
        async with utterance:
            utterance.feed(clause_text(tokens, words=self.words))
            utterance.end_text()
            reporting = asyncio.create_task(self._report(utterance, playhead))
            try:
                async for chunk in utterance:
                    ms = chunk.stages_ms
                    yield Sound(chunk.samples / 8000, ms.get("queue", 0.0), ms.get("engine", 0.0))
            finally:
                reporting.cancel()

    async def _report(self, utterance: Utterance, playhead: Playhead) -> None:
        while True:
            await asyncio.sleep(self.REPORT_S)
            now = time.monotonic()
            if playhead.delivered_s:
                utterance.played(round((playhead.delivered_s - playhead.slack_s(now)) * 8000), at=now)

    def counts(self) -> dict[str, Any]:
        return {}


def engine_config(arguments: argparse.Namespace, address: str) -> EngineConfig:
    # A count that was spoken once must be spoken again, not played.
    speech = SpeechConfig(cache_bytes=0)
    kind = "cosyvoice2" if arguments.version == 2 else "cosyvoice3"
    # Small networks run on the CPU of a machine that may do much else.
    patience = EngineTimeouts(hang_s=300) if arguments.tiny else EngineTimeouts()
    return EngineConfig(kind=kind, listen=address, speech=speech, timeouts=patience)


@asynccontextmanager
async def remote(arguments: argparse.Namespace) -> AsyncIterator[tuple[Remote, dict[str, Any]]]:
    """Start this script as an engine and reach it over a unix socket."""
    address = f"unix:{tempfile.mkdtemp(prefix='talkspurt-')}/engine.sock"
    command = [sys.executable, __file__, address, "--lm", arguments.lm, "--vllm", json.dumps(arguments.vllm)]
    command += ["--blocks", str(arguments.blocks), "--device", str(arguments.device)]
    command += ["--version", str(arguments.version), *["--tiny"] * arguments.tiny, *["--plain"] * arguments.plain]
    command += ["--finalize", arguments.finalize, "--first-hop", str(arguments.first_hop)]
    command += ["--euler-steps", str(arguments.euler_steps)]
    if arguments.text_processes is not None:
        command += ["--text-processes", str(arguments.text_processes)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    client = GrpcEngine(address, engine_config(arguments, address))
    try:
        assert process.stdout is not None
        facts = b""
        while not facts.startswith(b"{"):
            if not (facts := await process.stdout.readline()):
                raise SystemExit(f"the engine ended with code {await process.wait()}")
        while True:
            try:
                if (await client.status()).ready:
                    break
            except Unavailable:
                pass
            await asyncio.sleep(0.05)
        yield Remote(client, tiny=arguments.tiny, words=arguments.text_processes is not None), json.loads(facts)
    finally:
        await client.aclose()
        if process.returncode is None:
            process.terminate()
        await process.wait()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--lm", required=True)
    parser.add_argument("--vllm", type=json.loads, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--device", type=torch.device, required=True)
    parser.add_argument("--version", type=int, required=True)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--finalize", required=True)
    parser.add_argument("--first-hop", type=first_hop, required=True)
    parser.add_argument("--euler-steps", type=int, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--text-processes", type=int)
    arguments = parser.parse_args()
    if arguments.tiny:
        server.AUDIO_S = 300.0

    async def factory(config: EngineConfig) -> SpeechEngine:
        made = await make_engine(arguments)
        print(json.dumps(made.facts), flush=True)
        return Engine(made.synthesizer, config.speech, observer=PrometheusObserver())

    return runner.run(engine_config(arguments, arguments.address), factory)


if __name__ == "__main__":
    sys.exit(main())
