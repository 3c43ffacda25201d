"""Makes an engine from its configuration: in this process, in a child process, or elsewhere on the network."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp

from talkspurt import voice_model
from talkspurt.log import configure_as_parent
from tts_engine.api import SpeechEngine
from tts_engine.config import EngineConfig, ModelConfig
from tts_engine.cosyvoice.frontend.tokenizer import Version
from tts_engine.cosyvoice.kernels import compile_cache
from tts_engine.cosyvoice.models.config import SAMPLE_RATE
from tts_engine.errors import Unavailable
from tts_engine.metrics import PrometheusObserver
from tts_engine.pipeline.engine import Engine
from tts_engine.service import runner
from tts_engine.service.child import ChildTimes
from tts_engine.service.client import GrpcEngine
from tts_engine.service.models import EngineWithModels
from tts_engine.service.process import EngineProcess
from tts_engine.service.targets import Targets
from tts_engine.supervision import SUPERVISOR, Need
from tts_engine.synthesizer import Synthesizer
from tts_engine.voice_model.parent import RemoteSynthesizer

log = logging.getLogger(__name__)

_DIRECTORY_S = 2.0
"""Longest wait for the answer of a directory of engines, seconds."""
_MODEL_END_S = 8.0
"""Longest time for the end of a model's process, seconds. vLLM takes up to 5 to end its own."""
_MODEL_RESTART_S = 60.0
"""Time from a model's end to its next start, seconds. By then its engine's process has ended, and the supervisor has
restarted both."""
_ADDRESS = re.compile(r"[\w.:\[\]-]{1,255}:\d{1,5}")


def make_synthesizer(config: ModelConfig, whole: EngineConfig, *, name: str = "engine") -> Synthesizer:
    """Make the voice model of a section of the configuration. ``name`` is the section's name, for messages."""
    if config.kind == "tone":
        from tts_engine.tone import ToneSynthesizer

        return ToneSynthesizer()
    if config.kind == "embedded":
        from tts_engine.embedded.synthesizer import EmbeddedSynthesizer

        return EmbeddedSynthesizer(whole.embedded, cache_folder=compile_cache.folder(whole.cache_folder))
    if not config.model_folder:
        raise Unavailable(f"engine {config.kind} needs {name}.model_folder, a model directory")
    apart = config.cosyvoice.own_process
    if apart is None:
        apart = config.device != "cpu"
    if apart:
        return _in_own_process(config, whole, name)
    return voice_model.load(config, whole, name, PrometheusObserver(), memory_share=whole.memory_share)


def _in_own_process(config: ModelConfig, whole: EngineConfig, name: str) -> Synthesizer:
    """Return a CosyVoice model that will be loaded into a process of its own (``talkspurt.voice_model``)."""
    from tts_engine.cosyvoice.voice_list import VoiceList

    times = ChildTimes(
        start_s=whole.timeouts.start_s,
        hang_s=whole.timeouts.hang_s,
        end_s=_MODEL_END_S,
        restart_backoff_s=_MODEL_RESTART_S,
    )
    folder, registered = Path(config.model_folder), voice_model.voices_folder(whole)
    version: Version = 2 if config.kind == "cosyvoice2" else 3
    return RemoteSynthesizer(
        config.kind,
        voice_model.__name__,
        voice_model.settings(config, whole, name),
        times=times,
        sample_rate=SAMPLE_RATE,
        streams_text=config.cosyvoice.text_streaming,
        voices=lambda own: VoiceList(folder, version, [voice.voice_id for voice in own], registered),
        observer=PrometheusObserver(),
    )


def see_one_gpu(config: EngineConfig) -> EngineConfig:
    """Hide all GPUs but the engine's from this process, and return the configuration with that one as ``cuda``.

    Triton launches kernels on the current device, which is the first one in every new thread. Call this before CUDA is
    used.

    Raises:
        Unavailable: two models name different GPUs, or ``CUDA_VISIBLE_DEVICES`` has hidden the GPU already.
    """
    sections = {"engine": config, **{f"engine.more_models.{name}": one for name, one in config.more_models.items()}}
    devices = {
        section: model.device
        for section, model in sections.items()
        if model.kind.startswith("cosyvoice") and model.device.startswith("cuda")
    }
    if not devices:
        return config
    if len({_number(device) for device in devices.values()}) > 1:
        named = ", ".join(f"{section}.device is {device}" for section, device in devices.items())
        raise Unavailable(f"{named}: the models of one engine have to be on one GPU; see engine.devices")
    device = next(iter(devices.values()))
    number, visible = _number(device), os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number)
    elif number < len(names := visible.split(",")):
        os.environ["CUDA_VISIBLE_DEVICES"] = names[number].strip()
    else:
        raise Unavailable(f"device {device}: CUDA_VISIBLE_DEVICES is {visible!r}, which has {len(names)} devices")
    moved = {
        name: model.model_copy(update={"device": "cuda"}) if f"engine.more_models.{name}" in devices else model
        for name, model in config.more_models.items()
    }
    first = {"device": "cuda"} if "engine" in devices else {}
    return config.model_copy(update={**first, "more_models": moved})


def _number(device: str) -> int:
    return int(device.partition(":")[2] or 0)


async def make_engine(config: EngineConfig) -> SpeechEngine:
    """Make a warm engine in this process, with all its models."""
    config = see_one_gpu(config)
    begun = time.monotonic()
    was_warm = compile_cache.keep(config.cache_folder)
    made: dict[str, Synthesizer] = {}
    for name, model in ((config.kind, config), *config.more_models.items()):
        if name in made:
            raise Unavailable(f"engine.more_models.{name} has the name of the first model")
        section = "engine" if model is config else f"engine.more_models.{name}"
        # This runs in a thread, so that health checks and signals are handled meanwhile.
        made[name] = await asyncio.to_thread(make_synthesizer, model, config, name=section)
    engine = Engine(made, config.speech, observer=PrometheusObserver())
    try:
        await engine.start()
    except BaseException:
        await engine.aclose()
        raise
    seconds = round(time.monotonic() - begun, 1)
    log.info("engine is warm", extra={"models": list(made), "seconds": seconds, "compiled_before": was_warm})
    return engine


async def make_served_engine(config: EngineConfig) -> SpeechEngine:
    """Make the engine of a serving process: warm, and able to load further models."""
    return EngineWithModels(await make_engine(config), config, engine_process)


@asynccontextmanager
async def local_engine(config: EngineConfig) -> AsyncIterator[SpeechEngine]:
    """Make a warm engine in this process, and close it at the end."""
    engine = await make_engine(config)
    try:
        yield engine
    finally:
        await engine.aclose()


def engine_process(config: EngineConfig, *, listen: str = "") -> EngineProcess:
    """Return the engine as a child process. After ``start()`` the engine is at ``target``: ``listen``, or else its own
    socket."""
    return EngineProcess("talkspurt.engines", config, listen=listen)


async def in_directory(url: str) -> list[str]:
    """Return the targets of the engines that the directory at ``url`` knows (``talkspurt/cluster.py`` has one).

    Raises:
        OSError: there is no answer, or it is not ``{"engines": [...]}``.
    """
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_DIRECTORY_S)) as http,
            http.get(url, raise_for_status=True) as answer,
        ):
            engines = (await answer.json())["engines"]
            if not isinstance(engines, list) or not all(_ADDRESS.fullmatch(str(each)) for each in engines):
                raise OSError("the directory's engines are no list of host:port")
            return engines
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as exc:
        raise OSError(f"engine.directory_url: {type(exc).__name__}") from exc


def _by_device(config: EngineConfig) -> list[EngineConfig]:
    """Return a configuration for each engine process. Each has the next ``metrics_port``."""
    first = config.metrics_port
    return [
        config.model_copy(update={"device": device, "metrics_port": first and first + number})
        for number, device in enumerate(config.devices or (config.device,))
    ]


@asynccontextmanager
async def engine_for_gateway(config: EngineConfig) -> AsyncIterator[GrpcEngine]:
    """Open the engine for the gateway: over gRPC, at the configured targets, or else in child processes, one for each
    device.

    Raises:
        Unavailable: the child did not start.
    """
    async with AsyncExitStack() as stack:
        targets, url = list(config.targets), config.directory_url
        if not config.elsewhere:
            processes = [engine_process(own) for own in _by_device(config)]
            for process in processes:
                stack.push_async_callback(process.aclose)
            await asyncio.gather(*(process.start() for process in processes))
            targets = [process.target for process in processes]
        source = partial(in_directory, url) if url else None
        engine = GrpcEngine(Targets(targets, source=source), config)
        stack.push_async_callback(engine.aclose)
        await engine.refresh()
        stack.push_async_callback(SUPERVISOR.task("engine link", engine.watch, need=Need.CALLS).aclose)
        yield engine


def run_engine(config: EngineConfig) -> int:
    """Serve only an engine until SIGTERM or SIGINT. Return the exit code."""
    return runner.run(config, make_served_engine)


def main(arguments: list[str]) -> int:
    """Run the child process. Arguments: the file with its configuration, and its parent's process id."""
    configure_as_parent()
    file, parent_pid = arguments
    config = EngineConfig.model_validate_json(Path(file).read_bytes())
    return runner.run_child(config, make_served_engine, parent_pid=int(parent_pid))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
