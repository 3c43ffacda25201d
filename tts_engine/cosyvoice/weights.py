"""Reads the configuration and weights of official CosyVoice model directories, strictly.

A wrong directory is refused with one error that lists all its faults. Configuration files are hyperpyyaml with tags
such as ``!new:package.Class``; they are read as plain data, and nothing in them is run. Weights are mapped from disk
(``torch.load(mmap=True, weights_only=True)`` or safetensors) and become the parameters directly, so that memory never
holds them twice.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import yaml
from torch import Tensor, nn

from tts_engine.cosyvoice.models.config import (
    FRAMES_PER_TOKEN,
    SAMPLE_RATE,
    SPEAKER_CHANNELS,
    CheckpointConfig,
    FlowV2Config,
    FlowV3Config,
    HiftConfig,
    LanguageModelConfig,
    SamplingConfig,
    SolverConfig,
    Version,
)
from tts_engine.cosyvoice.models.flow import Flow
from tts_engine.cosyvoice.models.flow_v2 import FlowV2
from tts_engine.cosyvoice.models.flow_v3 import FlowV3
from tts_engine.cosyvoice.models.folding import fold_weight_norm
from tts_engine.cosyvoice.models.hift import Hift
from tts_engine.cosyvoice.models.hift_causal import NOISE_SECONDS, CausalHift
from tts_engine.cosyvoice.models.llm import SpeechLanguageModel

TOKENIZER_FOLDER = "CosyVoice-BlankEN"
_YAML: dict[Version, str] = {2: "cosyvoice2.yaml", 3: "cosyvoice3.yaml"}
_CHATML_TOKENS = 3
"""Number of tokens between the base vocabulary and ``<|endofprompt|>``: ``<|endoftext|>``, ``<|im_start|>``,
``<|im_end|>``."""
Part = Literal["llm", "flow", "hift"]
PARTS: tuple[Part, ...] = ("llm", "flow", "hift")
Number = TypeVar("Number", int, float)


class CheckpointError(ValueError):
    """The model directory is not usable. The message has one line for each fault."""

    def __init__(self, directory: Path, faults: list[str]) -> None:
        super().__init__(
            f"{directory} is not a usable CosyVoice2 or CosyVoice3 model directory:\n  " + "\n  ".join(faults)
        )
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint in memory. Parts that were not requested are None."""

    config: CheckpointConfig
    llm: SpeechLanguageModel | None
    flow: Flow | None
    hift: Hift | CausalHift | None


class _PlainLoader(yaml.SafeLoader):
    """A YAML loader that ignores unknown tags and reads their nodes as plain data."""


def _plain(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.ScalarNode)
    return loader.construct_scalar(node)


_PlainLoader.add_multi_constructor("!", _plain)


class _Settings:
    """The values of a configuration file by dotted path. Missing and wrong values are added to ``faults``."""

    def __init__(self, name: str, data: Mapping[str, Any], faults: list[str]) -> None:
        self.name, self.data, self.faults = name, data, faults

    def get(self, path: str, kind: type, default: Any = None) -> Any:
        """Return the value at a dotted path. An absent value without a default is a fault."""
        value: Any = self.data
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        value = self._resolve(value)
        if value is None and default is not None:
            return default
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or isinstance(value, bool):
            shown = "missing" if value is None else f"{value!r}"
            self.faults.append(f"{self.name}: {path} is {shown}, expected {kind.__name__}")
            return kind()
        return value

    def expect(self, path: str, want: Any) -> None:
        """Add a fault if the value is present and differs from ``want``, the only one that the networks support."""
        if (value := self.get(path, type(want), want)) != want:
            self.faults.append(f"{self.name}: {path} is {value!r}, only {want!r} is supported")

    def between(self, path: str, default: Number, *, least: Number, most: Number) -> Number:
        """Return a number of the default's type; ``default`` if absent. A value outside the bounds is a fault."""
        value: Number = self.get(path, type(default), default)
        if not least <= value <= most:
            self.faults.append(f"{self.name}: {path} is {value!r}, expected {least} to {most}")
        return value

    def _resolve(self, value: Any) -> Any:
        """Resolve ``<name>``, a reference to a top-level value, alone or multiplied, as hyperpyyaml's ``!ref`` does."""
        if not isinstance(value, str) or not re.fullmatch(r"\s*<\w+>(\s*\*\s*<\w+>)*\s*", value):
            return value
        values = [self.data.get(name) for name in re.findall(r"<(\w+)>", value)]
        return math.prod(values) if all(isinstance(v, int | float) for v in values) else None


def read_config(directory: Path) -> CheckpointConfig:
    """Read the hyper-parameters of a model directory.

    Raises:
        CheckpointError: the configuration is missing or unreadable, or has unsupported values.
    """
    faults: list[str] = []
    config = _read_config(directory, faults)
    if faults or config is None:
        raise CheckpointError(directory, faults)
    return config


def _read_config(directory: Path, faults: list[str]) -> CheckpointConfig | None:
    versions = [version for version, name in _YAML.items() if (directory / name).is_file()]
    if not versions:
        faults.append("missing: cosyvoice2.yaml or cosyvoice3.yaml")
        return None
    version = versions[0]
    name = _YAML[version]
    try:
        data = yaml.load((directory / name).read_text("utf-8"), Loader=_PlainLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        faults.append(f"{name}: not readable as YAML: {exc}")
        return None
    if not isinstance(data, Mapping):
        faults.append(f"{name}: holds {type(data).__name__}, expected a mapping")
        return None
    settings = _Settings(name, data, faults)
    settings.expect("sample_rate", SAMPLE_RATE)
    settings.expect("token_mel_ratio", FRAMES_PER_TOKEN)
    settings.expect("spk_embed_dim", SPEAKER_CHANNELS)
    settings.expect("flow.pre_lookahead_len", 3)
    llm = _read_llm(directory, version, settings)
    flow = _read_flow_v2(settings) if version == 2 else _read_flow_v3(settings)
    hift = _read_hift(version, settings)
    if llm is None:
        return None
    return CheckpointConfig(
        version=version,
        llm=llm,
        flow=flow,
        hift=hift,
        random_weights=data.get("random_weights") is True,
    )


def _read_llm(directory: Path, version: Version, settings: _Settings) -> LanguageModelConfig | None:
    folder = directory / TOKENIZER_FOLDER
    documents: dict[str, Any] = {}
    for name in ("config.json", "vocab.json"):
        try:
            documents[name] = json.loads((folder / name).read_text("utf-8"))
        except FileNotFoundError:
            settings.faults.append(f"missing: {TOKENIZER_FOLDER}/{name}")
        except ValueError as exc:
            settings.faults.append(f"{TOKENIZER_FOLDER}/{name}: not readable as JSON: {exc}")
    if len(documents) < 2:
        return None
    qwen = _Settings(f"{TOKENIZER_FOLDER}/config.json", documents["config.json"], settings.faults)
    blocks = settings.get("llm.mix_ratio", list, [5, 15])
    return LanguageModelConfig(
        version=version,
        vocab_size=qwen.get("vocab_size", int),
        hidden_size=qwen.get("hidden_size", int),
        intermediate_size=qwen.get("intermediate_size", int),
        layers=qwen.get("num_hidden_layers", int),
        heads=qwen.get("num_attention_heads", int),
        kv_heads=qwen.get("num_key_value_heads", int),
        rope_theta=qwen.get("rope_theta", float, 1e6),
        rms_norm_eps=qwen.get("rms_norm_eps", float, 1e-6),
        max_positions=qwen.get("max_position_embeddings", int, 32768),
        speech_token_size=settings.get("llm.speech_token_size", int),
        text_block=blocks[0],
        speech_block=blocks[1],
        end_of_prompt_id=len(documents["vocab.json"]) + _CHATML_TOKENS,
        sampling=_read_sampling(settings),
    )


def _read_sampling(settings: _Settings) -> SamplingConfig:
    section, usual = "llm.sampling", SamplingConfig()
    return SamplingConfig(
        top_p=settings.between(f"{section}.top_p", usual.top_p, least=1e-6, most=1.0),
        top_k=settings.between(f"{section}.top_k", usual.top_k, least=1, most=128),
        window=settings.between(f"{section}.win_size", usual.window, least=1, most=128),
        tau_r=settings.between(f"{section}.tau_r", usual.tau_r, least=1e-6, most=1.0),
    )


def _read_solver(settings: _Settings) -> SolverConfig:
    return SolverConfig(
        cfg_rate=settings.get("flow.decoder.cfm_params.content.inference_cfg_rate", float, 0.7),
        chunk_tokens=settings.get("chunk_size", int, 25),
    )


def _read_flow_v2(settings: _Settings) -> FlowV2Config:
    get = settings.get
    encoder, estimator = "flow.encoder", "flow.decoder.estimator"
    channels = get(f"{estimator}.channels", list)
    return FlowV2Config(
        vocab_size=get("flow.vocab_size", int),
        dim=get(f"{encoder}.output_size", int),
        encoder_heads=get(f"{encoder}.attention_heads", int),
        encoder_ffn=get(f"{encoder}.linear_units", int),
        encoder_layers=get(f"{encoder}.num_blocks", int),
        channels=channels[0] if channels else 0,
        heads=get(f"{estimator}.num_heads", int),
        head_dim=get(f"{estimator}.attention_head_dim", int),
        blocks=get(f"{estimator}.n_blocks", int),
        mid_blocks=get(f"{estimator}.num_mid_blocks", int),
        solver=_read_solver(settings),
    )


def _read_flow_v3(settings: _Settings) -> FlowV3Config:
    get = settings.get
    estimator = "flow.decoder.estimator"
    return FlowV3Config(
        vocab_size=get("flow.vocab_size", int),
        look_ahead_channels=get("flow.pre_lookahead_layer.channels", int),
        dim=get(f"{estimator}.dim", int),
        depth=get(f"{estimator}.depth", int),
        heads=get(f"{estimator}.heads", int),
        head_dim=get(f"{estimator}.dim_head", int),
        ff_mult=get(f"{estimator}.ff_mult", int),
        solver=_read_solver(settings),
    )


def _read_hift(version: Version, settings: _Settings) -> HiftConfig:
    for path, want in (
        ("upsample_rates", [8, 5, 3]),
        ("upsample_kernel_sizes", [16, 11, 7]),
        ("istft_params.n_fft", 16),
        ("istft_params.hop_len", 4),
        ("resblock_kernel_sizes", [3, 7, 11]),
        ("source_resblock_kernel_sizes", [7, 7, 11]),
        ("resblock_dilation_sizes", [[1, 3, 5]] * 3),
        ("source_resblock_dilation_sizes", [[1, 3, 5]] * 3),
        ("nb_harmonics", 8),
    ):
        settings.expect(f"hift.{path}", want)
    return HiftConfig(
        causal=version == 3,
        base_channels=settings.get("hift.base_channels", int),
        f0_channels=settings.get("hift.f0_predictor.cond_channels", int),
        sine_amplitude=settings.get("hift.nsf_alpha", float, 0.1),
        noise_std=settings.get("hift.nsf_sigma", float, 0.003),
        voiced_threshold_hz=settings.get("hift.nsf_voiced_threshold", float, 10.0),
        leaky_slope=settings.get("hift.lrelu_slope", float, 0.1),
        audio_limit=settings.get("hift.audio_limit", float, 0.99),
    )


def make_network(config: CheckpointConfig, part: Part, *, noise_seconds: int = NOISE_SECONDS) -> nn.Module:
    """Return a network with its parameters on the meta device (no values) and its fixed tables filled."""
    with torch.device("meta"):
        if part == "llm":
            return SpeechLanguageModel(config.llm)
        if part == "flow":
            return FlowV2(config.flow) if isinstance(config.flow, FlowV2Config) else FlowV3(config.flow)
        if config.hift.causal:
            return CausalHift(config.hift, noise_seconds=noise_seconds)
        return Hift(config.hift)


def load(
    directory: Path,
    *,
    device: torch.device | str = "cpu",
    llm_dtype: torch.dtype = torch.float32,
    flow_dtype: torch.dtype = torch.float32,
    llm_weights: Literal["llm", "llm.rl"] = "llm",
    parts: tuple[Part, ...] = PARTS,
    noise_seconds: int = NOISE_SECONDS,
    steps: int | None = None,
) -> Model:
    """Load a model directory.

    Args:
        llm_weights: ``llm.rl`` takes the reinforcement-tuned weights that come with CosyVoice3.
        parts: the networks to load. Leave out ``llm`` if the language model runs elsewhere.
        noise_seconds: see ``CausalHift``.
        steps: steps of the Euler solver. None: the published ten.

    The vocoder stays in fp32 (CosyVoice3's f0 network in fp64).

    Raises:
        CheckpointError: files or tensors are missing, unexpected or have the wrong shape; the message lists all of
            them.
    """
    stems: dict[Part, str] = {"llm": llm_weights, "flow": "flow", "hift": "hift"}
    config, files, faults = read_layout(directory, {part: stems[part] for part in parts})
    if config is None or faults and any("expected" in fault for fault in faults):
        raise CheckpointError(directory, faults)  # without the configuration the weights cannot be checked
    if steps is not None:
        solver = replace(config.flow.solver, steps=steps)
        config = replace(config, flow=replace(config.flow, solver=solver))
    dtypes: dict[Part, torch.dtype] = {"llm": llm_dtype, "flow": flow_dtype, "hift": torch.float32}
    networks: dict[str, Any] = {}
    for part, path in files.items():
        if path is None:
            continue
        network, state, differences = read_part(config, part, path, noise_seconds=noise_seconds)
        faults += differences
        if not faults:
            networks[part] = _fill(network, state, device, dtypes[part])
    if faults:
        raise CheckpointError(directory, faults)
    return Model(config, networks.get("llm"), networks.get("flow"), networks.get("hift"))


def read_layout(
    directory: Path, stems: Mapping[Part, str]
) -> tuple[CheckpointConfig | None, dict[Part, Path | None], list[str]]:
    """Read the configuration and find the files of weights and front end. ``stems``: file names of weights without
    suffix.

    Returns:
        The configuration (None: not readable), the file of each part (None: missing), and all faults.
    """
    faults: list[str] = []
    config = _read_config(directory, faults)
    files = {part: _weight_file(directory, stem, faults) for part, stem in stems.items()}
    version = 2 if config is None else config.version
    for name in (f"{TOKENIZER_FOLDER}/merges.txt", "campplus.onnx", f"speech_tokenizer_v{version}.onnx"):
        if not (directory / name).is_file():
            faults.append(f"missing: {name}")
    return config, files, faults


def read_part(
    config: CheckpointConfig, part: Part, path: Path, *, noise_seconds: int = NOISE_SECONDS
) -> tuple[nn.Module, dict[str, Tensor], list[str]]:
    """Map a file of weights and compare its names and shapes with the network's.

    Returns:
        The network without values, the weights by the network's names, and all faults.
    """
    network = make_network(config, part, noise_seconds=noise_seconds)
    try:
        state = official_state(part, read_state(path), version=config.version)
    except Exception as exc:  # torch and safetensors raise many types for a broken file
        return network, {}, [f"{path.name}: {_unreadable(path, exc)}"]
    return network, state, [f"{path.name}: {difference}" for difference in _compare(network, state)]


def _unreadable(path: Path, exc: Exception) -> str:
    with path.open("rb") as file:
        pointer = file.read(40).startswith(b"version https://git-lfs")
    size = path.stat().st_size
    if pointer:
        return f"is a Git LFS pointer of {size} bytes, expected weights; run `git lfs pull`"
    return f"not readable as weights ({size} bytes, perhaps truncated): {str(exc).splitlines()[0]}"


def _weight_file(directory: Path, stem: str, faults: list[str]) -> Path | None:
    for suffix in (".safetensors", ".pt"):
        if (path := directory / f"{stem}{suffix}").is_file():
            return path
    faults.append(f"missing: {stem}.pt (or {stem}.safetensors)")
    return None


def read_state(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a ``.pt`` or ``.safetensors`` file, mapped from disk. Pickled code is refused."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"holds {type(state).__name__}, expected a dict of tensors")
    return state


def official_state(part: Part, state: dict[str, Tensor], *, version: Version) -> dict[str, Tensor]:
    """Map the published names to the networks': drop the unused text head, strip ``generator.``, fold weight norm."""
    if part == "llm":
        return {name: value for name, value in state.items() if name != "llm.model.lm_head.weight"}
    if part == "hift":
        named = {name.replace("generator.", ""): value for name, value in state.items()}
        return fold_weight_norm(named, fp64="f0_predictor." if version == 3 else "")
    return state


def _compare(network: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    want = network.state_dict()
    faults = [f"missing {name} {list(value.shape)}" for name, value in want.items() if name not in state]
    faults += [f"unexpected {name} {list(value.shape)}" for name, value in state.items() if name not in want]
    for name, value in state.items():
        if name in want and value.shape != want[name].shape:
            faults.append(f"{name} has shape {list(value.shape)}, expected {list(want[name].shape)}")
    return faults


def _fill(network: nn.Module, state: Mapping[str, Tensor], device: torch.device | str, dtype: torch.dtype) -> nn.Module:
    """Load weights into a network. They stay fp32 until ``prepare`` has made its tables, so that these are rounded only
    once."""
    kinds = {name: value.dtype for name, value in network.state_dict().items()}
    state = {name: value.to(device, kinds[name]) for name, value in state.items()}
    network.load_state_dict(state, assign=True)
    network.eval().requires_grad_(False).to(device)
    if isinstance(network, Flow):
        network.prepare()
    for parameter in network.parameters():
        if parameter.dtype == torch.float32:  # tables stay fp32, the f0 network of CosyVoice3 fp64
            parameter.data = parameter.data.to(dtype)
    return network
