"""The engine that ``h200_cosyvoice.py`` measures: full-size CosyVoice with random weights drawn on the device."""

# ruff: noqa: E402  # runs from a checkout without being installed
from __future__ import annotations

import argparse
import asyncio
import atexit
import math
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

PATHS = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "codecs")]
sys.path[:0] = PATHS

import numpy as np
import torch
from torch import Tensor, nn

from tts_engine.api import VoiceInfo
from tts_engine.config import CosyVoiceConfig
from tts_engine.cosyvoice.frontend.features import VoiceFeatures
from tts_engine.cosyvoice.frontend.frontend import LmPrompt
from tts_engine.cosyvoice.frontend.normalise import TextVerbaliser, normalise, plain_verbaliser
from tts_engine.cosyvoice.frontend.normaliser import Normaliser
from tts_engine.cosyvoice.frontend.normaliser_process import NormaliserProcess
from tts_engine.cosyvoice.frontend.tokenizer import CosyTokenizer, make_tiny_tokenizer
from tts_engine.cosyvoice.frontend.words import Wording
from tts_engine.cosyvoice.kernels import compile_cache
from tts_engine.cosyvoice.lm.api import SequencePrefill as LmAdmission
from tts_engine.cosyvoice.lm.api import joined_table
from tts_engine.cosyvoice.lm.eager_steps import EagerLm
from tts_engine.cosyvoice.lm.flat_prompts import views
from tts_engine.cosyvoice.lm.torch_lm import TorchLm
from tts_engine.cosyvoice.lm.vllm_lm import VllmBackend, VllmConfig, export_model
from tts_engine.cosyvoice.models.config import FlowV2Config, FlowV3Config, HiftConfig, LanguageModelConfig, SolverConfig
from tts_engine.cosyvoice.models.flow import Flow, FlowCache, FlowRows
from tts_engine.cosyvoice.models.flow_v2 import FlowV2
from tts_engine.cosyvoice.models.flow_v3 import FlowV3
from tts_engine.cosyvoice.models.hift import Hift
from tts_engine.cosyvoice.models.hift_causal import CausalHift
from tts_engine.cosyvoice.models.llm import KeyValueCache, SpeechLanguageModel
from tts_engine.cosyvoice.synthesizer import CosyVoiceSynthesizer
from tts_engine.cosyvoice.token2wav.admission import Admission
from tts_engine.cosyvoice.token2wav.runner import RunnerConfig
from tts_engine.cosyvoice.token2wav.worker import WaveWorker
from tts_engine.synthesizer import Playhead


@dataclass(frozen=True, slots=True)
class Sound:
    """A chunk in the client's hands."""

    seconds: float
    lm_ms: float
    wave_ms: float
    broken: bool = False


class Line(Protocol):
    """How a client reaches the engine."""

    tiny: bool
    """Small networks: answers are short."""

    def speak(self, tokens: int, playhead: Playhead) -> AsyncGenerator[Sound, None]:
        """One answer; the playhead is the client's and says what it has heard."""
        ...

    def counts(self) -> dict[str, Any]: ...


PROMPT_TOKENS = 128
"""Of the reference recording: 125, and the three that the flow looks ahead."""
TEXT_IDS = 25


def build(make: Callable[[], nn.Module], device: torch.device) -> Any:
    """A network with random weights drawn on the device: variance 1/fan-in, norms and alphas 1, biases 0."""
    kinds = (nn.Linear, nn.Embedding, nn.modules.conv._ConvNd)
    saved = {kind: kind.reset_parameters for kind in kinds}
    for kind in kinds:
        kind.reset_parameters = lambda self: None  # type: ignore[assignment, method-assign]
    try:
        network = make()
    finally:
        for kind, reset in saved.items():
            kind.reset_parameters = reset  # type: ignore[method-assign]
    network = network.to(device).eval()
    for name, p in network.named_parameters():
        if p.ndim > 1:
            p.data.normal_(0, 1 / math.sqrt(p[0].numel()))
        else:
            p.data.fill_(1.0 if name.endswith((".weight", ".alpha")) else 0.0)  # of norms and of snakes
    return network


def clause_text(tokens: int, *, words: bool) -> str:
    """A clause that shall have so many speech tokens, with words that take a text front end some work if ``words``."""
    if not words:
        return str(tokens)
    order, day = random.randint(1000, 9999), random.randint(1, 28)
    return f"{tokens} is order {order} of {day} May."


def first_hop(text: str) -> int | str:
    """``CosyVoiceConfig.first_hop`` from the command line."""
    return text if text == "auto" else int(text)


class Prepared:
    """Clauses of a given length: a text begins with the number of speech tokens to make. Its words are not spoken."""

    def __init__(self, vocabulary: int) -> None:
        self._random = partial(np.random.default_rng().integers, vocabulary, size=TEXT_IDS, dtype=np.int32)
        self._transcript = self._random()

    def clause(self, wording: Wording, voice: VoiceFeatures, *, instruct: str = "") -> LmPrompt:
        number = re.match(r"\d+", wording.normalised.source)
        assert number is not None
        count = int(number[0])
        return LmPrompt(
            prompt_text=self._transcript,
            text=self._random(),
            prompt_speech=voice.lm_tokens,
            min_tokens=count,
            max_tokens=count,
            shared=TEXT_IDS,
        )


def make_normaliser(processes: int | None) -> Normaliser:
    """Word clauses in so many processes, or here. None: without rules for numbers. Nobody reads the ids."""
    folder = Path(tempfile.mkdtemp(prefix="talkspurt-tokenizer-"))
    atexit.register(shutil.rmtree, folder)
    make_tiny_tokenizer(folder)
    encode = CosyTokenizer.load(folder, version=3).encode
    verbalise = plain_verbaliser if processes is None else TextVerbaliser()
    return Normaliser(
        lambda text, language: Wording.of(normalise(text, language, verbalise=verbalise), encode),
        processes=[NormaliserProcess(folder, 3) for _ in range(processes or 0)],
    )


class OneVoice:
    def __init__(self, version: int) -> None:
        self._engine = f"cosyvoice{version}"
        rng = np.random.default_rng(0)
        tokens = rng.integers(0, 6561, PROMPT_TOKENS).astype(np.int32)
        self._voice = VoiceFeatures(
            transcript="reference",
            lm_tokens=tokens,
            flow_tokens=tokens,
            flow_mel=rng.normal(size=(2 * PROMPT_TOKENS, 80)).astype(np.float32),
            speaker=rng.normal(size=192).astype(np.float32),
        )

    def features(self, voice_id: str) -> tuple[object, VoiceFeatures]:
        return "reference", self._voice

    def infos(self) -> Sequence[VoiceInfo]:
        return [VoiceInfo(voice_id="reference", name="reference", languages=("en-US",), engine=self._engine)]

    def revision(self, voice_id: str) -> str:
        return ""


@dataclass
class Engine:
    """All parts of an engine in this process. ``steps`` and ``loop`` are the torch language model's."""

    synthesizer: CosyVoiceSynthesizer
    worker: WaveWorker
    backend: TorchLm | VllmBackend
    version: int
    tiny: bool
    steps: Any = None
    facts: dict[str, Any] = field(default_factory=dict)

    def freeing(self) -> bool:
        """Whether something of a cancelled turn is still held."""
        backend = self.backend
        drawn = backend.live > self.worker.scheduler.open_clauses
        if isinstance(backend, TorchLm):
            drawn = any(s.cancelled for s in list(backend._live))
        return drawn or any(r.closed for r in list(self.worker.scheduler.renderings))


@dataclass(frozen=True)
class Sizes:
    llm: LanguageModelConfig
    flow: FlowV2Config | FlowV3Config
    hift: HiftConfig


FULL = {
    2: Sizes(LanguageModelConfig(version=2), FlowV2Config(), HiftConfig(causal=False)),
    3: Sizes(LanguageModelConfig(version=3), FlowV3Config(), HiftConfig(causal=True)),
}
# vLLM's attention on a CPU wants heads of 32 or more.
_LLM = {"vocab_size": 1000, "hidden_size": 128, "intermediate_size": 128, "layers": 2, "heads": 4, "kv_heads": 2}
TINY = {
    2: Sizes(
        LanguageModelConfig(version=2, **_LLM),
        FlowV2Config(
            dim=64, encoder_heads=2, encoder_ffn=128, encoder_layers=2, up_layers=1,
            channels=32, heads=2, head_dim=16, blocks=1, mid_blocks=2,
        ),
        HiftConfig(causal=False, base_channels=32, f0_channels=32),
    ),
    3: Sizes(
        LanguageModelConfig(version=3, **_LLM),
        FlowV3Config(look_ahead_channels=64, dim=64, depth=2, heads=4, head_dim=16),
        HiftConfig(causal=True, base_channels=32, f0_channels=32),
    ),
}  # fmt: skip


@torch.inference_mode()
def make_lm(arguments: argparse.Namespace, sizes: Sizes, facts: dict[str, Any]) -> tuple[TorchLm | VllmBackend, Any]:
    """The language model, not started, and the steps it runs where it is torch's."""
    device = arguments.device
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    llm = build(lambda: SpeechLanguageModel(sizes.llm), device)
    llm.speech_embedding.weight.data.normal_(0, 1)
    if arguments.lm == "vllm":
        folder = Path(tempfile.mkdtemp(prefix="talkspurt-vllm-"))
        export_model(llm, folder)
        show_plugin(folder)
        return VllmBackend(
            folder, VllmConfig(**{"max_model_len": 1024, "enforce_eager": device.type == "cpu", **arguments.vllm})
        ), None
    if device.type == "cpu":
        return TorchLm(eager := EagerLm(llm, slots=200, max_length=1024)), eager
    from tts_engine.cosyvoice.lm.cuda_steps import CudaLm

    steps = CudaLm(llm, slots=200, max_length=1024, device=device)
    facts["lm_logits_relative_error_bf16"] = lm_error(llm, steps, device)
    return TorchLm(steps), steps


def show_plugin(folder: Path) -> None:
    """vLLM finds our model by the metadata of an installed package, in each of its processes; here none is."""
    info = folder / "path" / "talkspurt_vllm-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: talkspurt-vllm\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\ntalkspurt = tts_engine.cosyvoice.vllm_plugin:register\n"
    )
    sys.path.insert(0, str(info.parent))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(info.parent), *PATHS, os.environ.get("PYTHONPATH", "")])


@torch.inference_mode()
def make_worker(arguments: argparse.Namespace, sizes: Sizes, facts: dict[str, Any]) -> WaveWorker:
    device = arguments.device
    fused = device.type == "cuda" and not arguments.plain
    sized = replace(sizes.flow, solver=SolverConfig(steps=arguments.euler_steps))
    flow: Flow = build(lambda: FlowV2(sized) if isinstance(sized, FlowV2Config) else FlowV3(sized), device)
    flow.prepare()
    hift = build(lambda: CausalHift(sizes.hift) if sizes.hift.causal else Hift(sizes.hift), device)
    if sizes.hift.causal:
        hift.f0_predictor.double()
    if fused:
        from tts_engine.cosyvoice.kernels.fused_conformer import FusedConformer
        from tts_engine.cosyvoice.kernels.fused_dit import FusedDiT
        from tts_engine.cosyvoice.kernels.fused_hift import fuse
        from tts_engine.cosyvoice.kernels.fused_unet import FusedUNet

        kind: Any = FusedUNet if isinstance(flow, FlowV2) else FusedDiT
        want = two_chunks(flow, device, torch.float32, tf32=False)
        flow.decoder.estimator = kind(flow.estimator, device=device)
        if isinstance(flow, FlowV2):
            flow.encoder = FusedConformer(flow.encoder, device=device)
        facts["mel_error_bf16"] = error_of(two_chunks(flow, device, torch.bfloat16, tf32=True), want)
        hift = fuse(hift)
        torch.cuda.empty_cache()
    dtype = torch.bfloat16 if fused else torch.float32
    config = RunnerConfig(blocks=arguments.blocks, dtype=dtype)
    return WaveWorker(flow, hift, device=device, settings=settings_of(arguments), config=config)


def settings_of(arguments: argparse.Namespace) -> CosyVoiceConfig:
    """The engine's settings, as far as the benchmark's arguments name them."""
    # The figures of small networks mean nothing: a slow CPU must not refuse for them.
    unguarded: dict[str, Any] = {"first_chunk_s": 1e6} if arguments.tiny else {}
    return CosyVoiceConfig(finalize=arguments.finalize, first_hop=arguments.first_hop, **unguarded)


async def make_engine(arguments: argparse.Namespace) -> Engine:
    """A warm engine. ``arguments``: those of ``h200_cosyvoice.py``."""
    device, version = arguments.device, arguments.version
    sizes = (TINY if arguments.tiny else FULL)[version]
    # Not compiled before: a cold start.
    facts: dict[str, Any] = {"version": version, "compiled_before": compile_cache.keep("")}
    begun = time.monotonic()
    backend, steps = make_lm(arguments, sizes, facts)
    # vLLM compiles in a process of its own; CUDA graphs of torch's are captured one after the other.
    starting = asyncio.create_task(backend.start()) if arguments.lm == "vllm" else None
    worker = await asyncio.to_thread(make_worker, arguments, sizes, facts)
    facts["build_s"] = round(time.monotonic() - begun, 1)
    if starting is not None:
        await starting
        facts["vllm_start_s"] = round(time.monotonic() - begun, 1)
    synthesizer = CosyVoiceSynthesizer(
        name=f"cosyvoice{version}",
        frontend=Prepared(sizes.llm.vocab_size),
        normaliser=make_normaliser(arguments.text_processes),
        lm=backend,
        worker=worker,
        voices=OneVoice(version),
        start_lm=backend.start if starting is None else None,
        admission=Admission(
            clauses=settings_of(arguments).max_clauses,
            blocks=worker.blocks.spare_blocks,
            first_chunk_s=settings_of(arguments).first_chunk_s,
        ),
    )
    begun = time.monotonic()
    await synthesizer.start()
    facts |= {"warm_up_s": round(time.monotonic() - begun, 1), "torch": torch.__version__}
    if device.type == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(), "gpu_gib": used_gib()}
    return Engine(synthesizer, worker, backend, version, arguments.tiny, steps, facts)


def used_gib() -> float:
    """Memory in use on the device, all processes together."""
    free, total = torch.cuda.mem_get_info()
    return round((total - free) / 2**30, 1)


def lm_error(llm: SpeechLanguageModel, lm: Any, device: torch.device) -> float:
    """Relative error of bf16 logits after one prefill against fp32."""
    ids = list(range(25))
    speech = list(range(PROMPT_TOKENS))
    joined = joined_table(llm.config).prompt(*(np.array(part, np.int32) for part in (ids, ids, speech)))
    lines = len(joined)
    packed = lm._packed(lines, [LmAdmission(slot=0, ids=joined, seed=0, min_tokens=0)], [-1], [-1]).to(device)
    logits = lm.prefill_logits(views(packed, lines))[:1]
    cache = KeyValueCache(llm.config, slots=1, max_length=256, device=device)
    start = torch.zeros(1, dtype=torch.long, device=device)
    want = llm.logits(llm(llm.prompt(ids, ids, speech)[None], start, cache)[:, -1])
    return float((logits[:, : want.shape[1]] - want).norm() / want.norm())


def two_chunks(flow: Flow, device: torch.device, dtype: torch.dtype, *, tf32: bool) -> Tensor:
    """Mel of two chunks of one clause."""
    torch.backends.cudnn.allow_tf32 = tf32
    generator = torch.Generator(device=device).manual_seed(1)
    tokens = torch.randint(0, 6561, (1, 53), generator=generator, device=device)
    speaker = torch.randn(1, 80, generator=generator, device=device)
    one = torch.ones(1, dtype=torch.long, device=device)
    blocks = torch.tensor([[1, 2]], device=device)
    cache = FlowCache(flow, slots=2, blocks=3, device=device, dtype=dtype)
    cond = torch.zeros(1, 50, 80, device=device)
    chunks = []
    for start in (0, 25):
        rows = FlowRows(slots=one, blocks=blocks, start=start * one, length=25 * one)
        chunks.append(flow.advance(tokens[:, start : start + 28], 28 * one, cond, speaker, rows, cache))
    return torch.cat(chunks, 1)


def error_of(got: Tensor, want: Tensor) -> dict[str, float]:
    """How far the mel of the fused networks in bf16 is from that of the plain ones in fp32 without TF32."""
    return {
        "relative": float((got - want).norm() / want.norm()),
        "max": float((got - want).abs().max()),
        "rms_of_mel": float(want.pow(2).mean().sqrt()),
    }
