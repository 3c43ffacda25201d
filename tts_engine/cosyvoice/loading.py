"""A model directory and a voice registry to a ready-made ``CosyVoiceSynthesizer``.

On a GPU: fused kernels, CUDA graphs, bf16 where the measured error allows it (mel: 0.3 % of its size). On a CPU: the
plain networks in fp32, the same loops without graphs.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tts_engine.api import VoiceInfo
from tts_engine.cosyvoice.frontend.features import FeatureExtractor, VoiceFeatures
from tts_engine.cosyvoice.frontend.frontend import Frontend
from tts_engine.cosyvoice.frontend.spk2info import read_spk2info
from tts_engine.cosyvoice.lm.eager_steps import EagerLm
from tts_engine.cosyvoice.lm.quantised import WeightKind, round_linear_layers
from tts_engine.cosyvoice.lm.torch_lm import LmSteps, TorchLm
from tts_engine.cosyvoice.lm.vllm_lm import VllmBackend, VllmConfig, export_model
from tts_engine.cosyvoice.models.config import FRAMES_PER_TOKEN
from tts_engine.cosyvoice.models.dit import DiT
from tts_engine.cosyvoice.models.llm import SpeechLanguageModel
from tts_engine.cosyvoice.synthesizer import CosyVoiceSynthesizer, StepObserver
from tts_engine.cosyvoice.token2wav.admission import Admission, AdmissionConfig
from tts_engine.cosyvoice.token2wav.runner import RunnerConfig
from tts_engine.cosyvoice.token2wav.worker import WaveWorker
from tts_engine.cosyvoice.vllm_plugin.joined_table import TABLE_FILE
from tts_engine.cosyvoice.voices import VoiceRegistry
from tts_engine.cosyvoice.weights import CheckpointError, load
from tts_engine.errors import InvalidRequest, NotFound, Unavailable

log = logging.getLogger(__name__)


class DirectoryVoices:
    """The voices of ``spk2info.pt`` beside the weights, then those of the registry."""

    def __init__(self, folder: Path, frontend: Frontend, registered: Path | None) -> None:
        """
        Args:
            registered: folder of the voices that users add; None: they cannot.
        """
        path = folder / "spk2info.pt"
        self._engine = f"cosyvoice{frontend.version}"
        self._builtin = read_spk2info(path, frontend.tokenizer) if path.exists() else {}
        self._infos = [
            VoiceInfo(voice_id=voice_id, name=voice_id, languages=(), engine=self._engine) for voice_id in self._builtin
        ]
        self._cached: dict[object, VoiceFeatures] = {}
        self._registry: VoiceRegistry | None = None
        if registered is not None:
            extractor = FeatureExtractor(folder, version=frontend.version)
            self._registry = VoiceRegistry(registered, engine=self._engine, builtin=self._infos, extractor=extractor)

    def features(self, voice_id: str) -> tuple[object, VoiceFeatures]:
        """See ``VoiceSource``; an empty id is the first voice. Raises NotFound."""
        if not voice_id and self._builtin:
            voice_id = next(iter(self._builtin))
        if voice_id in self._builtin:
            return ("builtin", voice_id), self._builtin[voice_id]
        if self._registry is None:
            raise NotFound(f"no voice {voice_id!r}")
        record = self._registry.get(voice_id)
        key = (voice_id, record.revision)
        if key not in self._cached:
            features = VoiceFeatures.from_arrays(self._registry.features(voice_id, self._engine), record.transcript)
            # An older revision of the same voice is of no use any more.
            self._cached = {k: v for k, v in self._cached.items() if k[0] != voice_id}  # type: ignore[index]
            self._cached[key] = features
        return key, self._cached[key]

    def infos(self) -> Sequence[VoiceInfo]:
        """Those of the weights first, then those that were registered for this version."""
        if self._registry is None:
            return self._infos
        return [voice for voice in self._registry.voices() if voice.engine == self._engine]

    def add(self, *, voice_id: str, name: str, wav: bytes, transcript: str, language: str) -> VoiceInfo:
        """See ``VoiceRegistry.add``."""
        if self._registry is None:
            raise InvalidRequest("this engine has no folder for voices", field="audio")
        return self._registry.add(voice_id=voice_id, name=name, wav=wav, transcript=transcript, language=language)

    def remove(self, voice_id: str) -> None:
        """See ``VoiceRegistry.remove``."""
        if self._registry is None:
            raise NotFound(f"no registered voice {voice_id!r}")
        self._registry.remove(voice_id)

    def revision(self, voice_id: str) -> str:
        """See ``VoiceEditor``."""
        if self._registry is None or not voice_id or voice_id in self._builtin:
            return ""
        return self._registry.get(voice_id).revision


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingConfig:
    """What of the device may be used."""

    device: str = "cuda"
    max_clauses: int = 200
    """Clauses at a time; one more is refused. 128 were measured to stay free of gaps on an H200."""
    max_positions: int = 1024
    """Positions of a clause in the language model, prompt and speech: 12 kB each and clause."""
    cache_bytes: int = 64_000_000_000
    """For the flow's caches on a GPU; 90 MB hold one second of one clause."""
    busy_share: float = 0.9
    first_chunk_s: float = 1.0
    """See ``AdmissionConfig``."""
    rl: bool = False
    """Take ``llm.rl.pt``."""
    finalize: Literal["upstream", "causal"] = "upstream"
    first_hop: int = 22
    """See ``RunnerConfig``."""
    euler_steps: int = 10
    """Of the flow; published are 10."""
    language_model: Literal["torch", "vllm"] = "torch"
    lm_weights: WeightKind = "full"
    """Of the torch language model."""
    text_streaming: bool = False
    """Speak a turn's first clause before its text is whole."""
    vllm: VllmConfig = VllmConfig()
    voices_folder: Path | None = None
    """Where registered voices are kept: one folder for all engines that share them. None: none can be registered."""
    export_folder: Path = Path("vllm-models")
    """Where the language model is written in vLLM's own layout, 1 GB, once for each ``llm`` file."""


def load_synthesizer(
    folder: Path,
    config: LoadingConfig | None = None,
    *,
    observer: StepObserver | None = None,
) -> CosyVoiceSynthesizer:
    """Read the weights (seconds to a minute) and build the engine; ``start`` it then.

    Raises:
        Unavailable: the directory cannot be used; the message lists what is missing. Or the device is not there.
    """
    config = config or LoadingConfig()
    device = torch.device(config.device)
    gpu = device.type == "cuda"
    if gpu and not torch.cuda.is_available():
        raise Unavailable(f"device {config.device}: torch {torch.__version__} sees no CUDA device")
    try:
        model = load(folder, device=device, llm_weights="llm.rl" if config.rl else "llm", steps=config.euler_steps)
    except CheckpointError as exc:
        raise Unavailable(str(exc)) from exc
    flow, hift = model.flow, model.hift
    assert model.llm is not None
    assert flow is not None
    assert hift is not None
    frontend = Frontend(folder, version=model.config.version)
    flow.prepare()
    lm: TorchLm | VllmBackend
    if config.language_model == "vllm":
        lm = VllmBackend(_exported(model.llm, folder, config), config.vllm, network=model.llm.config)
    else:
        lm = _torch_lm(model.llm, config, device)
    dtype = torch.bfloat16 if gpu else torch.float32
    estimator: Any = flow.estimator
    block_frames = flow.solver.chunk_tokens * FRAMES_PER_TOKEN
    block_values = 2 * estimator.attention_layers * 2 * block_frames * estimator.key_channels * flow.solver.steps
    block_bytes = block_values * dtype.itemsize
    blocks = config.cache_bytes // block_bytes if gpu else 8 * config.max_clauses
    if gpu:
        # Triton, and with it these modules, is on machines with a GPU only.
        from tts_engine.cosyvoice.kernels.fused_dit import FusedDiT
        from tts_engine.cosyvoice.kernels.fused_hift import fuse
        from tts_engine.cosyvoice.kernels.fused_unet import FusedUNet

        flow.decoder.estimator = (FusedDiT if isinstance(estimator, DiT) else FusedUNet)(estimator, device=device)
        hift = fuse(hift)
    worker = WaveWorker(
        flow,
        hift,
        device=device,
        config=RunnerConfig(
            max_clauses=config.max_clauses,
            blocks=blocks,
            # What the language model can draw, and a voice prompt, of which a tiny model needs less.
            max_chunks=-(-config.max_positions // flow.solver.chunk_tokens) + (23 if gpu else 7),
            dtype=dtype,
            finalize=config.finalize,
            first_hop=config.first_hop,
        ),
    )
    return CosyVoiceSynthesizer(
        name=f"cosyvoice{model.config.version}",
        frontend=frontend,
        lm=lm,
        worker=worker,
        voices=DirectoryVoices(folder, frontend, config.voices_folder),
        start_lm=lm.start,
        streamed_lm=lm if config.text_streaming else None,
        filter_silence=model.config.version == 3,
        gpu=torch.cuda.get_device_name(device) if gpu else "",
        admission=Admission(
            AdmissionConfig(
                max_clauses=config.max_clauses, busy_share=config.busy_share, first_chunk_s=config.first_chunk_s
            )
        ),
        observer=observer,
        block_bytes=block_bytes,
    )


def _torch_lm(network: SpeechLanguageModel, config: LoadingConfig, device: torch.device) -> TorchLm:
    steps: LmSteps
    if device.type == "cuda":
        from tts_engine.cosyvoice.lm.cuda_steps import CudaLm

        steps = CudaLm(
            network,
            slots=config.max_clauses,
            max_length=config.max_positions,
            device=device,
            weights=config.lm_weights,
        )
    else:
        round_linear_layers(network, config.lm_weights)
        steps = EagerLm(network, slots=config.max_clauses, max_length=config.max_positions)
    return TorchLm(steps)


def _exported(network: SpeechLanguageModel, folder: Path, config: LoadingConfig) -> Path:
    """The folder that vLLM loads, written where it is not there yet."""
    stem = "llm.rl" if config.rl else "llm"
    source = next(path for path in (folder / f"{stem}.safetensors", folder / f"{stem}.pt") if path.is_file())
    stamp = source.stat()
    key = hashlib.sha256(f"{source.resolve()} {stamp.st_size} {stamp.st_mtime_ns}".encode()).hexdigest()[:16]
    target = config.export_folder / key
    if not (target / TABLE_FILE).is_file():  # it is written last
        log.info("writing the language model for vLLM", extra={"folder": str(target)})
        export_model(network, target)
    return target
