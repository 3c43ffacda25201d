"""From an engine configuration to a running engine: in this process, in a child, or elsewhere on the network."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop

from tts_engine.api import SpeechEngine
from tts_engine.client import GrpcEngine
from tts_engine.config import EngineConfig
from tts_engine.engine import Engine
from tts_engine.process import EngineProcess, die_with_parent
from tts_engine.server import EngineServer
from tts_engine.synthesizer import Synthesizer


def make_synthesizer(config: EngineConfig) -> Synthesizer:
    """The voice model that the configuration names."""
    if config.kind == "tone":
        from tts_engine.tone import ToneSynthesizer

        return ToneSynthesizer()
    from tts_engine.embedded import EmbeddedSynthesizer

    return EmbeddedSynthesizer(config.embedded)


@asynccontextmanager
async def local_engine(config: EngineConfig) -> AsyncIterator[SpeechEngine]:
    """A warm engine in this process."""
    engine = Engine(make_synthesizer(config), config.speech)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.aclose()


@asynccontextmanager
async def engine_for_gateway(config: EngineConfig) -> AsyncIterator[GrpcEngine]:
    """The engine as the gateway uses it: over gRPC, in a child of ours unless targets are configured."""
    if config.client.targets:
        engine = GrpcEngine(config.client.targets, config.client)
        try:
            yield engine
        finally:
            await engine.aclose()
        return
    command = [sys.executable, "-m", "talkspurt.engines", "--child"]
    async with EngineProcess(command, config.model_dump_json().encode(), config.client) as process:
        engine = GrpcEngine([process.target], config.client)
        try:
            yield engine
        finally:
            await engine.aclose()


async def _run(config: EngineConfig, listen: str) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    engine = Engine(make_synthesizer(config), config.speech)
    server = EngineServer(engine, config.server, listen)
    await server.start()  # health answers NOT_SERVING while the model loads
    try:
        await engine.start()
        gc.collect()
        gc.freeze()
        await server.serving()
        await stopping.wait()
        await server.drain()
    finally:
        await engine.aclose()
    return 0


def run_engine(config: EngineConfig, listen: str) -> int:
    """Serve an engine until SIGTERM or SIGINT; returns the exit code."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(config, listen))


def main() -> int:
    """The child process: configuration as JSON on standard input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", action="store_true", required=True)
    parser.add_argument("--listen", required=True)
    args = parser.parse_args()
    config = EngineConfig.model_validate_json(sys.stdin.buffer.read())
    die_with_parent(nice=config.nice)
    return run_engine(config, args.listen)


if __name__ == "__main__":
    sys.exit(main())
