"""From an engine configuration to a running engine: in this process, in a child, or elsewhere on the network."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tts_engine import runner
from tts_engine.api import SpeechEngine
from tts_engine.client import GrpcEngine
from tts_engine.config import EngineConfig
from tts_engine.engine import Engine
from tts_engine.errors import Unavailable
from tts_engine.metrics import PrometheusObserver
from tts_engine.process import EngineProcess
from tts_engine.synthesizer import Synthesizer


def make_synthesizer(config: EngineConfig) -> Synthesizer:
    """The voice model that the configuration names."""
    if config.kind == "tone":
        from tts_engine.tone import ToneSynthesizer

        return ToneSynthesizer()
    if config.kind != "embedded":
        if not config.model_folder:
            raise Unavailable(f"engine {config.kind} needs engine.model_folder, a model directory")
        try:
            from tts_engine.cosyvoice_loading import LoadingConfig, load_synthesizer
        except ModuleNotFoundError as exc:
            raise Unavailable(f"engine {config.kind} needs the extra [cosyvoice]: no module {exc.name!r}") from exc

        return load_synthesizer(Path(config.model_folder), LoadingConfig(device=config.device))
    from tts_engine.embedded import EmbeddedSynthesizer

    return EmbeddedSynthesizer(config.embedded)


async def make_engine(config: EngineConfig) -> SpeechEngine:
    """A warm engine in this process."""
    engine = Engine(make_synthesizer(config), config.speech, observer=PrometheusObserver())
    try:
        await engine.start()
    except BaseException:
        await engine.aclose()
        raise
    return engine


@asynccontextmanager
async def local_engine(config: EngineConfig) -> AsyncIterator[SpeechEngine]:
    """A warm engine in this process, closed at the end."""
    engine = await make_engine(config)
    try:
        yield engine
    finally:
        await engine.aclose()


def engine_process(config: EngineConfig) -> EngineProcess:
    """The engine as a child process; ``start()`` it, then reach it at ``target``."""
    return EngineProcess("talkspurt.engines", config)


@asynccontextmanager
async def engine_for_gateway(config: EngineConfig) -> AsyncIterator[GrpcEngine]:
    """The engine as the gateway uses it: over gRPC, in a child of ours unless targets are configured.

    Raises:
        Unavailable: the child did not start.
    """
    process = None
    targets = config.targets
    if not targets:
        process = engine_process(config)
        await process.start()
        targets = (process.target,)
    engine = GrpcEngine(targets, config)
    try:
        yield engine
    finally:
        await engine.aclose()
        if process is not None:
            await process.aclose()


def run_engine(config: EngineConfig) -> int:
    """Serve an engine alone until SIGTERM or SIGINT; returns the exit code."""
    return runner.run(config, make_engine)


def main(arguments: list[str]) -> int:
    """The child process: the file with its configuration, and its parent's process id."""
    file, parent_pid = arguments
    config = EngineConfig.model_validate_json(Path(file).read_bytes())
    return runner.run_child(config, make_engine, parent_pid=int(parent_pid))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
