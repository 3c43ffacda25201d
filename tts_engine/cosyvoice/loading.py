"""Builds a ``CosyVoiceSynthesizer`` from a model directory and a voice registry.

On a GPU: fused kernels, CUDA graphs, and bf16 for language model and flow. On a CPU: the plain networks in fp32, in the
same loops without graphs.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any, Protocol

import torch

from tts_engine.config import CosyVoiceConfig
from tts_engine.cosyvoice.frontend.features import VoiceFeatures
from tts_engine.cosyvoice.frontend.frontend import Frontend
from tts_engine.cosyvoice.frontend.normaliser import Normaliser, NormaliserObserver
from tts_engine.cosyvoice.frontend.normaliser_process import NormaliserProcess
from tts_engine.cosyvoice.frontend.spk2info import read_spk2info
from tts_engine.cosyvoice.gpu_sampler import GpuObserver, GpuSampler
from tts_engine.cosyvoice.lm.eager_steps import EagerLm
from tts_engine.cosyvoice.lm.torch_lm import LmSteps, TorchLm
from tts_engine.cosyvoice.lm.vllm_lm import VllmBackend, VllmConfig, export_model
from tts_engine.cosyvoice.models.config import FRAMES_PER_TOKEN
from tts_engine.cosyvoice.models.dit import DiT
from tts_engine.cosyvoice.models.flow import BRANCHES
from tts_engine.cosyvoice.models.flow_v2 import FlowV2
from tts_engine.cosyvoice.models.llm import SpeechLanguageModel
from tts_engine.cosyvoice.synthesizer import CosyVoiceSynthesizer, StepObserver
from tts_engine.cosyvoice.token2wav.admission import Admission
from tts_engine.cosyvoice.token2wav.runner import RunnerConfig
from tts_engine.cosyvoice.token2wav.worker import WaveWorker
from tts_engine.cosyvoice.vllm_plugin.joined_table import TABLE_FILE
from tts_engine.cosyvoice.voice_list import VoiceList
from tts_engine.cosyvoice.weights import CheckpointError, load
from tts_engine.errors import NotFound, Unavailable

log = logging.getLogger(__name__)


class DirectoryVoices(VoiceList):
    """The voices of a model directory and its registry, with their prompt features."""

    def __init__(self, folder: Path, frontend: Frontend, registered: Path | None) -> None:
        """
        Args:
            registered: see ``VoiceList``.
        """
        path = folder / "spk2info.pt"
        self._builtin = read_spk2info(path, frontend.tokenizer) if path.exists() else {}
        super().__init__(folder, frontend.version, list(self._builtin), registered)
        self._cached: dict[object, VoiceFeatures] = {}

    def features(self, voice_id: str) -> tuple[object, VoiceFeatures]:
        """See ``VoiceSource``. An empty id means the first voice."""
        voice_id = voice_id or self.first()
        if voice_id in self._builtin:
            return ("builtin", voice_id), self._builtin[voice_id]
        if self.registry is None:
            raise NotFound(f"no voice {voice_id!r}")
        record = self.registry.get(voice_id)
        key = (voice_id, record.revision)
        if key not in self._cached:
            features = VoiceFeatures.from_arrays(self.registry.features(voice_id, self.engine), record.transcript)
            # Drop older revisions of this voice.
            self._cached = {k: v for k, v in self._cached.items() if k[0] != voice_id}  # type: ignore[index]
            self._cached[key] = features
        return key, self._cached[key]


class Observer(StepObserver, NormaliserObserver, GpuObserver, Protocol):
    """Receives all measurements of a CosyVoice engine."""


def load_synthesizer(
    folder: Path,
    settings: CosyVoiceConfig,
    *,
    device: str,
    voices_folder: Path | None = None,
    export_folder: Path = Path("vllm-models"),
    vllm: VllmConfig | None = None,
    observer: Observer | None = None,
    memory_share: float = 1.0,
) -> CosyVoiceSynthesizer:
    """Read the weights (up to a minute) and build the engine. Call its ``start`` before use.

    Args:
        device: ``cuda``, ``cuda:1`` ... or ``cpu``.
        voices_folder: folder of registered voices; engines may share it. None: voices cannot be registered.
        export_folder: folder for language models in vLLM's layout, 1 GB each, written once for each ``llm`` file.
        vllm: vLLM's start options. None: those of ``settings``.
        memory_share: see ``EngineConfig``.

    Raises:
        Unavailable: the device does not exist, or the directory is not usable; the message lists every fault.
    """
    place = torch.device(device)
    gpu = place.type == "cuda"
    if gpu and not torch.cuda.is_available():
        raise Unavailable(f"device {device}: torch {torch.__version__} finds no CUDA device")
    try:
        model = load(folder, device=place, llm_weights="llm.rl" if settings.rl else "llm", steps=settings.euler_steps)
    except CheckpointError as exc:
        raise Unavailable(str(exc)) from exc
    flow, hift = model.flow, model.hift
    assert model.llm is not None
    assert flow is not None
    assert hift is not None
    frontend = Frontend(folder, version=model.config.version)
    flow.prepare()
    lm: TorchLm | VllmBackend
    if settings.language_model == "vllm":
        lm = VllmBackend(
            _exported(model.llm, folder, export_folder, rl=settings.rl),
            vllm or _vllm_config(settings),
            network=model.llm.config,
        )
    else:
        lm = _torch_lm(model.llm, settings, place)
    dtype = torch.bfloat16 if gpu else torch.float32
    estimator: Any = flow.estimator
    block_frames = flow.solver.chunk_tokens * FRAMES_PER_TOKEN
    block_values = 2 * estimator.attention_layers * 2 * block_frames * estimator.key_channels * flow.solver.steps
    block_bytes = block_values * dtype.itemsize
    # The longest clause that the language model can draw, and a voice prompt (shorter for a tiny model on a CPU).
    max_chunks = -(-settings.max_positions // flow.solver.chunk_tokens) + (23 if gpu else 7)
    cache_bytes = 0
    if gpu:
        free, total = torch.cuda.mem_get_info(place)
        own = torch.cuda.memory_allocated(place)
        cache_bytes = _cache_bytes(settings, free=free, total=total, own=own, share=memory_share)
    blocks = _cache_blocks(settings, cache_bytes, block_bytes=block_bytes, max_chunks=max_chunks, gpu=gpu)
    if gpu:
        # These modules import Triton, which is installed only on machines with a GPU.
        from tts_engine.cosyvoice.kernels.decode_step import under_mps
        from tts_engine.cosyvoice.kernels.fused_conformer import FusedConformer
        from tts_engine.cosyvoice.kernels.fused_dit import FusedDiT
        from tts_engine.cosyvoice.kernels.fused_hift import fuse
        from tts_engine.cosyvoice.kernels.fused_unet import FusedUNet

        flow.decoder.estimator = (FusedDiT if isinstance(estimator, DiT) else FusedUNet)(estimator, device=place)
        if isinstance(flow, FlowV2):
            flow.encoder = FusedConformer(flow.encoder, device=place)
        hift = fuse(hift)
        if settings.language_model == "vllm" and not under_mps():
            log.warning(
                "vLLM and token-to-wave share the GPU by time slices, so first audio is late under load; start CUDA "
                "MPS before the engine (nvidia-cuda-mps-control -d)"
            )
    few = few_clauses(flow.estimator.rows_at_once)
    worker = WaveWorker(
        flow,
        hift,
        device=place,
        settings=settings,
        config=RunnerConfig(
            blocks=blocks,
            max_chunks=max_chunks,
            dtype=dtype,
            chunk_rows=(1, 2, 4, few, 16, 32),
            staged_rows=(1, 4, few, 16),
        ),
    )
    return CosyVoiceSynthesizer(
        name=f"cosyvoice{model.config.version}",
        frontend=frontend,
        normaliser=Normaliser(
            frontend.wording,
            processes=[
                NormaliserProcess(frontend.tokenizer_folder, frontend.version)
                for _ in range(_text_processes(settings) if frontend.verbalises else 0)
            ],
            observer=observer,
        ),
        lm=lm,
        worker=worker,
        voices=DirectoryVoices(folder, frontend, voices_folder),
        start_lm=lm.start,
        streamed_lm=lm if settings.text_streaming else None,
        filter_silence=model.config.version == 3,
        gpu=torch.cuda.get_device_name(place) if gpu else "",
        admission=Admission(
            clauses=settings.max_clauses, blocks=worker.blocks.spare_blocks, first_chunk_s=settings.first_chunk_s
        ),
        observer=observer,
        block_bytes=block_bytes,
        gpu_sampler=_gpu_sampler(place, observer) if gpu and observer is not None else None,
    )


def few_clauses(rows_at_once: int | None) -> int:
    """Return the batch size, in clauses, of the CUDA graphs between 4 and 16: the estimator's ``rows_at_once`` if it
    lies between, else 8."""
    clauses = (rows_at_once or 0) // BRANCHES
    return clauses if 4 < clauses < 16 else 8


_CPU_CHUNKS = 32
"""Chunks for each further clause on a CPU. Tiny models with random weights speak long clauses."""
_PROMPT_CHUNKS = 10
"""Chunks of a 10 s voice prompt."""


_KEPT_SHARE = 0.2
"""Share of a GPU's memory that is left to CUDA graphs, their work space, and other programs."""
_VLLM_BYTES = 8_000_000_000
"""Memory of vLLM's process: weights, its default of 4 GB for keys and values, and CUDA's own."""


def _cache_bytes(settings: CosyVoiceConfig, *, free: int, total: int, own: int, share: float) -> int:
    """Return the bytes for the clauses in token-to-wave: ``cache_gb``, or what is left of a model's share of the card.

    Args:
        free: free bytes of the GPU, with this model's weights in place. total: all its bytes.
        own: bytes of this model's weights and of its language model's cache.
        share: the model's share of the card.
    """
    if settings.cache_gb is not None:
        return round(settings.cache_gb * 1e9)
    vllm = 0
    if settings.language_model == "vllm":
        part = settings.vllm.get("gpu_memory_utilization")
        kv_bytes = settings.vllm.get("kv_cache_memory_bytes")
        vllm = int(float(part) * total) if part else _VLLM_BYTES + max(int(kv_bytes or 0) - _VLLM_BYTES // 2, 0)
    kept = _KEPT_SHARE * total * share
    return int(max(min(total * share - own, free) - kept - vllm, 0))


def _cache_blocks(settings: CosyVoiceConfig, cache_bytes: int, *, block_bytes: int, max_chunks: int, gpu: bool) -> int:
    """Return the number of cache blocks of token-to-wave: as many as fit in ``cache_bytes``, or enough for a few calls
    on a CPU.

    Raises:
        Unavailable: the longest clause does not fit.
    """
    if not gpu:  # at least one clause and one voice prompt
        return max_chunks + _PROMPT_CHUNKS + _CPU_CHUNKS * settings.max_clauses
    blocks = cache_bytes // block_bytes
    if blocks < max_chunks:
        raise Unavailable(
            f"cache_gb is {cache_bytes / 1e9:.3g}, enough for {blocks} s of audio, expected at least "
            f"{max_chunks * block_bytes / 1e9:.2g}, for the {max_chunks} s of the longest clause "
            f"(max_positions is {settings.max_positions})"
        )
    return blocks


def _gpu_sampler(place: torch.device, observer: GpuObserver) -> GpuSampler | None:
    uuid = getattr(torch.cuda.get_device_properties(place), "uuid", None)
    return None if uuid is None else GpuSampler(f"GPU-{uuid}", observer)


def _text_processes(settings: CosyVoiceConfig) -> int:
    if settings.text_processes is not None:
        return settings.text_processes
    return min((os.cpu_count() or 1) // 2, 8)


def _torch_lm(network: SpeechLanguageModel, settings: CosyVoiceConfig, device: torch.device) -> TorchLm:
    steps: LmSteps
    if device.type == "cuda":
        from tts_engine.cosyvoice.lm.cuda_steps import CudaLm

        steps = CudaLm(
            network,
            slots=settings.max_clauses,
            max_length=settings.max_positions,
            device=device,
        )
    else:
        steps = EagerLm(network, slots=settings.max_clauses, max_length=settings.max_positions)
    return TorchLm(steps)


def _vllm_config(settings: CosyVoiceConfig) -> VllmConfig:
    return VllmConfig(
        max_model_len=settings.max_positions,
        max_num_seqs=min(settings.max_clauses, 128),
        extra=dict(settings.vllm),
    )


def _exported(network: SpeechLanguageModel, folder: Path, export_folder: Path, *, rl: bool) -> Path:
    """Return the folder that vLLM loads, and write it if it does not exist."""
    stem = "llm.rl" if rl else "llm"
    source = next(path for path in (folder / f"{stem}.safetensors", folder / f"{stem}.pt") if path.is_file())
    stamp = source.stat()
    origin = f"{source.resolve()} {stamp.st_size} {stamp.st_mtime_ns} {network.config.sampling}"
    key = hashlib.sha256(origin.encode()).hexdigest()[:16]
    target = export_folder / key
    if not (target / TABLE_FILE).is_file():  # written last: the folder is complete
        log.info("writing the language model for vLLM", extra={"folder": str(target)})
        export_model(network, target)
    return target
