"""The golden models and their inputs and outputs (see tests/goldens/cosyvoice/README.md)."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tts_engine.cosyvoice.models.config import (
    FlowV2Config,
    FlowV3Config,
    HiftConfig,
    LanguageModelConfig,
)

ROOT = Path(__file__).parents[3] / "goldens" / "cosyvoice"
VERSIONS = (2, 3)


def read_json(version: int, name: str) -> Any:
    return json.loads((ROOT / f"v{version}" / name).read_text())


@functools.cache
def tensors(version: int, name: str) -> dict[str, Tensor]:
    return load_file(ROOT / f"v{version}" / f"{name}.safetensors")


def llm_config(version: int) -> LanguageModelConfig:
    config = read_json(version, "config.json")
    llm = config["llm"]
    return LanguageModelConfig(
        version=2 if version == 2 else 3,
        vocab_size=llm["vocab_size"],
        hidden_size=llm["hidden_size"],
        intermediate_size=llm["intermediate_size"],
        layers=llm["num_hidden_layers"],
        heads=llm["num_attention_heads"],
        kv_heads=llm["num_key_value_heads"],
        speech_token_size=config["speech_token_size"],
        end_of_prompt_id=config["endofprompt_id"],
    )


def flow_config(version: int) -> FlowV2Config | FlowV3Config:
    flow = read_json(version, "config.json")["flow"]
    if version == 2:
        return FlowV2Config(
            vocab_size=flow["vocab_size"],
            dim=flow["enc_dim"],
            encoder_heads=flow["enc_heads"],
            encoder_ffn=flow["enc_ffn"],
            encoder_layers=flow["enc_layers"],
            up_layers=flow["up_layers"],
            channels=flow["est_channels"],
            heads=flow["est_heads"],
            head_dim=flow["est_head_dim"],
            blocks=flow["est_n_blocks"],
            mid_blocks=flow["est_mid"],
        )
    return FlowV3Config(
        vocab_size=flow["vocab_size"],
        look_ahead_channels=flow["pl_ch"],
        dim=flow["dim"],
        depth=flow["depth"],
        heads=flow["heads"],
        head_dim=flow["dim_head"],
        ff_mult=flow["ff_mult"],
    )


def hift_config(version: int) -> HiftConfig:
    hift = read_json(version, "config.json")["hift"]
    return HiftConfig(causal=version == 3, base_channels=hift["base_channels"], f0_channels=hift["f0_channels"])


def load(network: nn.Module, version: int, name: str) -> nn.Module:
    network.load_state_dict(tensors(version, name), strict=True)
    return network.eval().requires_grad_(False)


def deviation(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape, f"{tuple(got.shape)} is not {tuple(want.shape)}"
    return float((got - want).abs().max())


def frames(x: Tensor) -> Tensor:
    """Channels-first goldens to our ``(rows, frames, channels)``."""
    return x.transpose(1, 2)


torch.set_num_threads(1)
