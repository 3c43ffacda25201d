"""Which GPU an engine's process sees."""

from __future__ import annotations

import os

import pytest

from talkspurt.engines import see_one_gpu
from tts_engine.config import EngineConfig, ModelConfig
from tts_engine.errors import Unavailable

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("device", "visible", "seen"),
    [
        ("cuda", None, "0"),
        ("cuda:1", None, "1"),
        ("cuda:1", "4, 6", "6"),
        ("cuda", "GPU-8a,GPU-9b", "GPU-8a"),
        ("cpu", None, None),
        ("cpu", "3", "3"),
    ],
)
def test_the_process_sees_the_engines_gpu_alone(
    device: str, visible: str | None, seen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, visible or "")
    if visible is None:
        monkeypatch.delenv(VISIBLE)
    config = EngineConfig(
        kind="cosyvoice3", device=device, more_models={"two": ModelConfig(kind="cosyvoice2", device=device)}
    )
    one = see_one_gpu(config)
    assert os.environ.get(VISIBLE) == seen
    expected = "cpu" if device == "cpu" else "cuda"
    assert (one.device, one.more_models["two"].device) == (expected, expected)


def test_a_voice_on_the_cpu_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0,1")
    see_one_gpu(EngineConfig(kind="embedded", device="cuda:1"))
    assert os.environ[VISIBLE] == "0,1"


def test_models_on_two_gpus_are_refused() -> None:
    config = EngineConfig(kind="cosyvoice3", more_models={"two": ModelConfig(kind="cosyvoice2", device="cuda:1")})
    with pytest.raises(Unavailable, match=r"engine\.device is cuda, engine\.more_models\.two\.device is cuda:1"):
        see_one_gpu(config)


def test_a_hidden_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0")
    with pytest.raises(Unavailable, match="device cuda:1: CUDA_VISIBLE_DEVICES is '0'"):
        see_one_gpu(EngineConfig(kind="cosyvoice3", device="cuda:1"))
