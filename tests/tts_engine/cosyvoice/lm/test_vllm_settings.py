"""The engine arguments that vLLM gets from the configuration. vLLM itself is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from talkspurt.config.settings import load
from tts_engine.config import CosyVoiceConfig
from tts_engine.cosyvoice.lm.vllm_lm import engine_args
from tts_engine.cosyvoice.loading import _vllm_config
from tts_engine.cosyvoice.models.config import LOOK_AHEAD_TOKENS


def args(**settings: Any) -> dict[str, Any]:
    return engine_args(Path("m"), _vllm_config(CosyVoiceConfig(vllm=settings)), cpu=False)


def test_vllms_own_settings_pass_through_beside_ours() -> None:
    plain, asked = args(), args(quantization="fp8", max_num_batched_tokens=16384, enforce_eager=True)
    assert asked == plain | {"quantization": "fp8", "max_num_batched_tokens": 16384, "enforce_eager": True}
    assert (plain["kv_cache_memory_bytes"], plain["max_num_batched_tokens"]) == (4_000_000_000, 8192)
    assert args(kv_cache_memory_bytes=2_000_000_000)["kv_cache_memory_bytes"] == 2_000_000_000


def test_a_quantised_language_model_of_the_configuration_file_reaches_vllm(tmp_path: Path) -> None:
    file = tmp_path / "talkspurt.yaml"
    file.write_text("engine:\n  cosyvoice:\n    language_model: vllm\n    vllm: {quantization: fp8}\n")
    settings = load(file, environment={}).engine.cosyvoice
    assert settings.language_model == "vllm"
    assert engine_args(Path("m"), _vllm_config(settings), cpu=False)["quantization"] == "fp8"


def test_a_share_of_the_memory_replaces_the_size_of_the_cache() -> None:
    shared = args(gpu_memory_utilization=0.3)
    assert shared["gpu_memory_utilization"] == 0.3 and "kv_cache_memory_bytes" not in shared
    assert "kv_cache_memory_bytes" not in engine_args(Path("m"), _vllm_config(CosyVoiceConfig()), cpu=True)


def test_a_reader_is_woken_when_the_shortest_first_chunk_has_all_its_ids() -> None:
    ids = min(CosyVoiceConfig().first_hops) + LOOK_AHEAD_TOKENS
    assert (ids - 1) % _vllm_config(CosyVoiceConfig()).stream_interval == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"logits_processors": "x"}, "logits_processors cannot be set here: the sampler is talkspurt's"),
        ({"max_num_seqs": 8}, "it follows from max_clauses"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2, expected 1.*engine.devices"),
        ({"max_num_batched_tokens": 512}, r"max_num_batched_tokens is 512, expected 1024 \(max_positions\) or more"),
    ],
)
def test_what_would_break_the_engine_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CosyVoiceConfig(vllm=settings)  # type: ignore[arg-type]
