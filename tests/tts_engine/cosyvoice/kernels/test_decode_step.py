"""The host's duties towards the kernel of a whole step; ``gpu/test_full_size.py`` runs it on a device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tts_engine.cosyvoice.kernels.fragments import first_factor
from tests.tts_engine.cosyvoice.kernels.nvrtc import compile_without_toolkit
from tts_engine.cosyvoice.kernels import decode_step
from tts_engine.cosyvoice.models.config import LanguageModelConfig
from tts_engine.cosyvoice.models.llm import SpeechLanguageModel

CUDA = torch.device("cuda")


def inputs(x: Tensor) -> Tensor:
    """The second factor ``(16, 8)`` that the instruction sees, where thread ``4 g + t`` loads four neighbours, from
    ``4 t`` on, of row ``g`` of ``x`` ``(8, 16)``."""
    out = torch.empty(16, 8)
    for thread in range(32):
        g, t = divmod(thread, 4)
        out[2 * t : 2 * t + 2, g] = x[g, 4 * t : 4 * t + 2]
        out[2 * t + 8 : 2 * t + 10, g] = x[g, 4 * t + 2 : 4 * t + 4]
    return out


def test_packed_weights_give_the_product_that_the_instruction_computes() -> None:
    weight, x = torch.randint(-9, 9, (32, 48)).float(), torch.randint(-9, 9, (8, 48)).float()
    packed = decode_step.pack(weight)
    assert packed.shape == (2, 3, 32, 8)
    for tile in range(2):
        got = sum(first_factor(packed[tile, k]) @ inputs(x[:, 16 * k : 16 * k + 16]) for k in range(3))
        assert torch.equal(torch.as_tensor(got), (x @ weight.t()).t()[16 * tile : 16 * tile + 16])


def test_sixteen_outputs_hold_both_halves_of_eight_rotated_pairs() -> None:
    order = decode_step.rotated_pairs(3)
    assert sorted(order.tolist()) == list(range(3 * 64))
    for number, tile in enumerate(order.view(-1, 16).tolist()):
        head, first = divmod(number, 4)
        channels = [64 * head + 8 * first + i for i in range(8)]
        assert tile == [*channels, *(c + 32 for c in channels)]


@pytest.mark.parametrize(
    ("what", "can"),
    [
        ({}, True),
        ({"major": 8}, False),
        ({"processors": 55}, False),
        ({"dtype": torch.float32}, False),
        ({"heads": 28}, False),
    ],
)
def test_it_is_made_for_some_devices_and_sizes(
    monkeypatch: pytest.MonkeyPatch, what: dict[str, object], can: bool
) -> None:
    given = {"major": 9, "processors": 132, "dtype": torch.bfloat16, "heads": 14, **what}
    device = SimpleNamespace(major=given["major"], multi_processor_count=given["processors"])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")
    monkeypatch.setattr(decode_step, "DecodeStep", lambda network, device: "made")
    network = SimpleNamespace(config=LanguageModelConfig(version=3, heads=given["heads"]))  # type: ignore[arg-type]
    made = decode_step.load(network, device=CUDA, dtype=given["dtype"])  # type: ignore[arg-type]
    assert made == ("made" if can else None)


def test_under_mps_no_kernel_waits_for_its_own_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=9, multi_processor_count=132)
    )
    monkeypatch.setattr(decode_step, "DecodeStep", lambda network, device: "made")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    network = SimpleNamespace(config=LanguageModelConfig(version=3))
    assert decode_step.load(network, device=CUDA, dtype=torch.bfloat16) is not None
    (tmp_path / "control").touch()  # a daemon of MPS listens here
    assert decode_step.load(network, device=CUDA, dtype=torch.bfloat16) is None


def test_an_engine_starts_without_it_if_it_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=9, multi_processor_count=132)
    )
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")

    def broken(network: object, device: object) -> None:
        raise OSError("Could not find any NVRTC library")

    monkeypatch.setattr(decode_step, "DecodeStep", broken)
    network = SimpleNamespace(config=LanguageModelConfig(version=3))
    assert decode_step.load(network, device=CUDA, dtype=torch.bfloat16) is None
    assert "many launches" in caplog.text and "NVRTC" in caplog.text


@pytest.mark.parametrize("architecture", ["90", "100", "120"])
@pytest.mark.parametrize("rows", decode_step.ROWS)
def test_the_kernel_compiles_without_a_toolkit(monkeypatch: pytest.MonkeyPatch, rows: int, architecture: str) -> None:
    """The function of torch that compiles it on a GPU's machine does so, for an H200, a B200 and an RTX PRO 6000."""
    made = compile_without_toolkit(monkeypatch, architecture)
    model: Any = SimpleNamespace(config=LanguageModelConfig(version=3), ids=6784)
    decode_step.DecodeStep._compile(model, rows)
    [(code, name)] = made
    assert code.startswith(b"\x7fELF") and name == "decode_step"


@torch.inference_mode()
def test_its_weights_hold_the_norms_in_front_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LanguageModelConfig(
        version=2, vocab_size=50, hidden_size=128, intermediate_size=128, layers=2, heads=2, kv_heads=1,
        speech_token_size=100,
    )  # fmt: skip
    network = SpeechLanguageModel(config)
    for parameter in network.parameters():
        parameter.data += 0.3 * torch.rand_like(parameter)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(decode_step.DecodeStep, "_compile", lambda self, rows: None)
    made = decode_step.DecodeStep(network, device=torch.device("cpu"))
    assert made.ids == 112  # 103 and the padding
    head = made._head.view(7, 8, 32, 8)
    x = torch.randn(8, 128)
    got = torch.cat(
        [
            torch.as_tensor(
                sum(first_factor(head[tile, k].float()) @ inputs(x[:, 16 * k : 16 * k + 16]) for k in range(8))
            )
            for tile in range(7)
        ]
    ).t()
    want = (x * network.backbone.norm.weight) @ network.llm_decoder.weight.t()
    torch.testing.assert_close(got[:, :103], want, atol=0.1, rtol=0.02)
    assert not got[:, 103:].any()
    qkv, out, up, down = 4 * 64 * 128, 128 * 128, 2 * 128 * 128, 128 * 128
    assert len(made._weights) == 2 * (qkv + out + up + down)  # LAYER in decode_step.cu
