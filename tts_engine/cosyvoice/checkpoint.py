"""Writes model directories with random weights in the official layout (``talkspurt engine make-checkpoint``).

Code that reads an official directory can read these. They have the same files, tensor names and ONNX signatures, and
with ``size="full"`` the same shapes. Their output is noise; a marker file, the configuration and the ONNX files say so.

The weights are scaled so that a load test is realistic: the audio is audible and does not clip, and after the minimum
length each step of the language model draws the end of speech with a probability of a few per cent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tts_engine.cosyvoice import standins
from tts_engine.cosyvoice.frontend.frontend import SYSTEM_PROMPT
from tts_engine.cosyvoice.frontend.tokenizer import END_OF_PROMPT, CosyTokenizer, make_tiny_tokenizer
from tts_engine.cosyvoice.models.config import (
    FRAMES_PER_TOKEN,
    MEL_CHANNELS,
    SPEAKER_CHANNELS,
    CheckpointConfig,
    FlowV2Config,
    FlowV3Config,
    HiftConfig,
    LanguageModelConfig,
    Version,
)
from tts_engine.cosyvoice.weights import PARTS, TOKENIZER_FOLDER, make_network

Size = Literal["tiny", "full"]

MARKER = "RANDOM_WEIGHTS.md"
VOICE = "random"
"""Id of the voice in ``spk2info.pt``."""
_OFFICIAL_BASE_VOCABULARY = 151643
_LOGIT_STD = 1.5
_END_BIAS = 2.66 * _LOGIT_STD
"""Bias of CosyVoice2's only eos, so that top-k (25 of 6,561 ids) sometimes includes it. CosyVoice3 has 200 stop ids and
needs no bias."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    prompt_tokens: int
    base_vocabulary: int | None
    """Size of ``vocab.json`` after padding with filler entries. None: no fillers."""
    llm: dict[str, int] = field(default_factory=dict)
    flow_v2: dict[str, int] = field(default_factory=dict)
    flow_v3: dict[str, int] = field(default_factory=dict)
    hift: dict[str, int] = field(default_factory=dict)


_SIZES: dict[Size, _Sizes] = {
    "full": _Sizes(prompt_tokens=128, base_vocabulary=_OFFICIAL_BASE_VOCABULARY),
    "tiny": _Sizes(
        prompt_tokens=53,
        base_vocabulary=None,
        llm={"hidden_size": 64, "intermediate_size": 128, "layers": 2, "heads": 2, "kv_heads": 1},
        flow_v2={
            "dim": 64, "encoder_heads": 2, "encoder_ffn": 128, "encoder_layers": 2,
            "channels": 32, "heads": 2, "head_dim": 16, "blocks": 1, "mid_blocks": 2,
        },
        flow_v3={"look_ahead_channels": 64, "dim": 64, "depth": 2, "heads": 4, "head_dim": 16},
        hift={"base_channels": 32, "f0_channels": 32},
    ),
}  # fmt: skip


def make(
    directory: Path,
    version: Version,
    size: Size = "tiny",
    seed: int = 0,
    *,
    progress: Callable[[str], None] = lambda line: None,
) -> CheckpointConfig:
    """Write a random-weight model directory. ``full`` takes 2.4 GB (version 2) or 3.3 GB (version 3).

    Args:
        directory: an empty directory; created if missing.
        progress: called with a line for each file.

    Raises:
        FileExistsError: the directory is not empty.
    """
    if directory.exists() and any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty, expected an empty or new directory")
    directory.mkdir(parents=True, exist_ok=True)
    sizes = _SIZES[size]
    (directory / MARKER).write_text(_marker_text(version, size, seed), "utf-8")
    config = _write_tokenizer(directory, version, sizes)
    progress(f"{TOKENIZER_FOLDER}/")
    name = f"cosyvoice{version}.yaml"
    (directory / name).write_text(_yaml(config), "utf-8")
    progress(name)
    standins.write_speech_tokenizer(
        directory / f"speech_tokenizer_v{version}.onnx", codebook=config.llm.speech_token_size, seed=seed
    )
    standins.write_speaker_encoder(directory / "campplus.onnx", seed=seed)
    progress("ONNX stand-ins")
    generator = torch.Generator().manual_seed(seed)
    torch.save(_voice(config, sizes, directory / TOKENIZER_FOLDER, generator), directory / "spk2info.pt")
    for part in PARTS:
        state = {k: v.contiguous() for k, v in _random_state(make_network(config, part, noise_seconds=1), generator)}
        if part == "llm":
            state["llm.model.lm_head.weight"] = state["llm.model.model.embed_tokens.weight"]  # tied, as published
        if part == "hift":
            state = _unfold_weight_norm(state)
        torch.save(state, directory / f"{part}.pt")
        progress(f"{part}.pt")
    return config


def _marker_text(version: Version, size: Size, seed: int) -> str:
    return (
        f"# RANDOM WEIGHTS\n\nThis directory has the layout of CosyVoice{version}, size `{size}`, seed {seed}, and "
        "random numbers for weights.\nIts output is noise. Use it for tests and for measuring speed, not for judging "
        "sound quality.\n"
    )


def _write_tokenizer(directory: Path, version: Version, sizes: _Sizes) -> CheckpointConfig:
    """Write the tokenizer folder. Return the configuration, whose embedding size follows from the vocabulary."""
    llm = LanguageModelConfig(version=version, **sizes.llm)  # type: ignore[arg-type]
    qwen = {
        "hidden_size": llm.hidden_size,
        "intermediate_size": llm.intermediate_size,
        "num_hidden_layers": llm.layers,
        "num_attention_heads": llm.heads,
        "num_key_value_heads": llm.kv_heads,
        "rope_theta": llm.rope_theta,
        "rms_norm_eps": llm.rms_norm_eps,
        "max_position_embeddings": llm.max_positions,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "random_weights": True,
    }
    folder = directory / TOKENIZER_FOLDER
    base = make_tiny_tokenizer(folder, config=qwen)
    path = folder / "config.json"
    document = json.loads(path.read_text("utf-8"))
    if sizes.base_vocabulary is not None:
        _fill_vocabulary(folder, sizes.base_vocabulary)
        document["vocab_size"], base = llm.vocab_size, sizes.base_vocabulary
        path.write_text(json.dumps(document, indent=2), "utf-8")
    llm = replace(llm, vocab_size=document["vocab_size"], end_of_prompt_id=base + 3)
    flow = FlowV2Config(**sizes.flow_v2) if version == 2 else FlowV3Config(**sizes.flow_v3)  # type: ignore[arg-type]
    hift = HiftConfig(causal=version == 3, **sizes.hift)  # type: ignore[arg-type]
    return CheckpointConfig(version=version, llm=llm, flow=flow, hift=hift, random_weights=True)


def _fill_vocabulary(folder: Path, size: int) -> None:
    """Pad the vocabulary with entries that no merge produces, so that the added tokens get their official ids."""
    path = folder / "vocab.json"
    vocab = json.loads(path.read_text("utf-8"))
    added = len(vocab)
    vocab |= {f"<filler {i}>": i for i in range(added, size)}
    path.write_text(json.dumps(vocab, ensure_ascii=False), "utf-8")
    path = folder / "tokenizer_config.json"
    document = json.loads(path.read_text("utf-8"))
    tokens = document["added_tokens_decoder"].values()
    document["added_tokens_decoder"] = {str(size + i): token for i, token in enumerate(tokens)}
    path.write_text(json.dumps(document, indent=2), "utf-8")


def _voice(config: CheckpointConfig, sizes: _Sizes, tokenizer: Path, generator: torch.Generator) -> dict[str, Any]:
    """Return the content of ``spk2info.pt``: one voice."""
    text = "Thank you for the call, this is the number."
    if config.version == 3:
        text = SYSTEM_PROMPT + END_OF_PROMPT + text
    ids = CosyTokenizer.load(tokenizer, version=config.version).encode(text)
    tokens = torch.randint(0, config.flow.vocab_size, (1, sizes.prompt_tokens), generator=generator, dtype=torch.int32)
    mel = torch.randn(1, sizes.prompt_tokens * FRAMES_PER_TOKEN, MEL_CHANNELS, generator=generator) - 5
    embedding = torch.randn(1, SPEAKER_CHANNELS, generator=generator)
    tensors = {
        "prompt_text": torch.tensor([ids], dtype=torch.int32),
        "llm_prompt_speech_token": tokens,
        "flow_prompt_speech_token": tokens,
        "prompt_speech_feat": mel,
    }
    lengths = {f"{name}_len": torch.tensor([value.shape[1]], dtype=torch.int32) for name, value in tensors.items()}
    return {VOICE: {**tensors, **lengths, "llm_embedding": embedding, "flow_embedding": embedding}}


def _random_state(network: nn.Module, generator: torch.Generator) -> list[tuple[str, Tensor]]:
    return [(name, _random_tensor(name, value, generator)) for name, value in network.state_dict().items()]


def _random_tensor(name: str, like: Tensor, generator: torch.Generator) -> Tensor:
    """Return values that keep activations near unit scale from layer to layer."""
    if not like.is_meta:
        return like  # a table that the network's constructor fills
    if name.endswith(".alpha") or (like.dim() == 1 and name.endswith(".weight")):
        return torch.ones(like.shape)  # norm gains and snake alphas
    if like.dim() == 1:
        bias = 0.02 * torch.randn(like.shape, generator=generator)
        if name == "llm_decoder.bias":
            bias[-3] = _END_BIAS  # eos of CosyVoice2
        elif name == "conv_post.bias":
            bias[: len(bias) // 2] -= 1.0  # log magnitude of the vocoder's spectrum
        elif name == "f0_predictor.classifier.bias":
            bias += 120.0  # Hz
        return bias
    scale = 1 / math.sqrt(like[0].numel())
    if name.endswith(("embed_tokens.weight", "embedding.weight")):
        scale = 0.5
    elif name == "llm_decoder.weight":
        scale *= _LOGIT_STD
    elif name == "conv_post.weight":
        scale *= 0.1
    return scale * torch.randn(like.shape, generator=generator)


def _unfold_weight_norm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Split the vocoder's convolution weights into gain and direction, as in the published files. ``source_downs`` and
    linear layers keep plain weights."""
    out = {}
    for name, value in state.items():
        module = name.removesuffix(".weight")
        if module == name or value.dim() < 3 or module.startswith("source_downs"):
            out[name] = value
            continue
        out[f"{module}.parametrizations.weight.original0"] = value.flatten(1).norm(dim=1).view(-1, 1, 1)
        out[f"{module}.parametrizations.weight.original1"] = value
    return out


def _yaml(config: CheckpointConfig) -> str:
    flow = _FLOW_V2.format(c=config.flow) if isinstance(config.flow, FlowV2Config) else _FLOW_V3.format(c=config.flow)
    causal = config.hift.causal
    return _COMMON.format(
        c=config,
        llm_class="CosyVoice3LM" if causal else "Qwen2LM",
        flow=flow,
        hift_class="CausalHiFTGenerator" if causal else "HiFTGenerator",
        f0_class="CausalConvRNNF0Predictor" if causal else "ConvRNNF0Predictor",
        look_right="    conv_pre_look_right: 4\n" if causal else "",
    )


_CFM = """\
    decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
        in_channels: 240
        n_spks: 1
        spk_emb_dim: 80
        cfm_params: !new:omegaconf.DictConfig
            content:
                sigma_min: 1e-06
                solver: 'euler'
                t_scheduler: 'cosine'
                inference_cfg_rate: {c.solver.cfg_rate}
"""

_FLOW_V2 = (
    """\
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithXvec
    input_size: {c.dim}
    output_size: 80
    spk_embed_dim: !ref <spk_embed_dim>
    vocab_size: {c.vocab_size}
    input_frame_rate: !ref <token_frame_rate>
    token_mel_ratio: !ref <token_mel_ratio>
    pre_lookahead_len: 3
    encoder: !new:cosyvoice.transformer.upsample_encoder.UpsampleConformerEncoder
        output_size: {c.dim}
        attention_heads: {c.encoder_heads}
        linear_units: {c.encoder_ffn}
        num_blocks: {c.encoder_layers}
        input_size: {c.dim}
        static_chunk_size: !ref <chunk_size>
"""
    + _CFM
    + """\
        estimator: !new:cosyvoice.flow.decoder.CausalConditionalDecoder
            in_channels: 320
            out_channels: 80
            channels: [{c.channels}]
            attention_head_dim: {c.head_dim}
            n_blocks: {c.blocks}
            num_mid_blocks: {c.mid_blocks}
            num_heads: {c.heads}
            static_chunk_size: !ref <chunk_size> * <token_mel_ratio>
            num_decoding_left_chunks: !ref <num_decoding_left_chunks>
"""
)

_FLOW_V3 = (
    """\
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithDiT
    input_size: 80
    output_size: 80
    spk_embed_dim: !ref <spk_embed_dim>
    vocab_size: {c.vocab_size}
    input_frame_rate: !ref <token_frame_rate>
    token_mel_ratio: !ref <token_mel_ratio>
    pre_lookahead_len: 3
    pre_lookahead_layer: !new:cosyvoice.transformer.upsample_encoder.PreLookaheadLayer
        in_channels: 80
        channels: {c.look_ahead_channels}
        pre_lookahead_len: 3
"""
    + _CFM
    + """\
        estimator: !new:cosyvoice.flow.DiT.dit.DiT
            dim: {c.dim}
            depth: {c.depth}
            heads: {c.heads}
            dim_head: {c.head_dim}
            ff_mult: {c.ff_mult}
            static_chunk_size: !ref <chunk_size> * <token_mel_ratio>
            num_decoding_left_chunks: !ref <num_decoding_left_chunks>
"""
)

_COMMON = """\
# RANDOM WEIGHTS: for tests and load tests, see RANDOM_WEIGHTS.md.
random_weights: true

__set_seed1: !apply:random.seed [1986]
sample_rate: 24000
llm_input_size: {c.llm.hidden_size}
llm_output_size: {c.llm.hidden_size}
spk_embed_dim: 192
qwen_pretrain_path: ''
token_frame_rate: 25
token_mel_ratio: 2
chunk_size: 25
num_decoding_left_chunks: -1

llm: !new:cosyvoice.llm.llm.{llm_class}
    llm_input_size: !ref <llm_input_size>
    llm_output_size: !ref <llm_output_size>
    speech_token_size: {c.llm.speech_token_size}
    mix_ratio: [{c.llm.text_block}, {c.llm.speech_block}]
    llm: !new:cosyvoice.llm.llm.Qwen2Encoder
        pretrain_path: !ref <qwen_pretrain_path>
    sampling: !name:cosyvoice.utils.common.ras_sampling
        top_p: {c.llm.sampling.top_p}
        top_k: {c.llm.sampling.top_k}
        win_size: {c.llm.sampling.window}
        tau_r: {c.llm.sampling.tau_r}

{flow}
hift: !new:cosyvoice.hifigan.generator.{hift_class}
    in_channels: 80
    base_channels: {c.hift.base_channels}
    nb_harmonics: {c.hift.harmonics}
    sampling_rate: !ref <sample_rate>
    nsf_alpha: {c.hift.sine_amplitude}
    nsf_sigma: {c.hift.noise_std}
    nsf_voiced_threshold: {c.hift.voiced_threshold_hz}
    upsample_rates: [8, 5, 3]
    upsample_kernel_sizes: [16, 11, 7]
    istft_params:
        n_fft: 16
        hop_len: 4
    resblock_kernel_sizes: [3, 7, 11]
    resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    source_resblock_kernel_sizes: [7, 7, 11]
    source_resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    lrelu_slope: {c.hift.leaky_slope}
    audio_limit: {c.hift.audio_limit}
{look_right}\
    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.{f0_class}
        num_class: 1
        in_channels: 80
        cond_channels: {c.hift.f0_channels}
"""
