"""The host's duties towards the kernel of the DiT's blocks; ``gpu/test_full_size.py`` runs it on a device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.tts_engine.cosyvoice.kernels.fragments import first_factor
from tests.tts_engine.cosyvoice.kernels.nvrtc import compile_without_toolkit
from tts_engine.cosyvoice.kernels import decode_step, dit_blocks
from tts_engine.cosyvoice.models.config import FlowV3Config
from tts_engine.cosyvoice.models.dit import DiT
from tts_engine.cosyvoice.models.streaming import PagedKeys, Span

CUDA = torch.device("cuda")
SHARED_BYTES = 232448
"""The shared memory of a block on an H200 or a B200."""


def test_packed_weights_give_the_product_that_the_instructions_compute() -> None:
    weight, x = torch.randint(-9, 9, (32, 96)).float(), torch.randint(-9, 9, (96, 8)).float()
    packed = dit_blocks.pack(weight, neighbours=False)
    assert packed.shape == (2, 6, 32, 8)
    for tile in range(2):
        got = sum(first_factor(packed[tile, k]) @ x[16 * k : 16 * k + 16] for k in range(6))
        assert torch.equal(torch.as_tensor(got), (weight @ x)[16 * tile : 16 * tile + 16])


def test_a_thread_has_eight_neighbouring_inputs_of_two_instructions() -> None:
    weight, x = torch.randint(-9, 9, (16, 64)).float(), torch.randint(-9, 9, (64, 8)).float()
    packed = dit_blocks.pack(weight, neighbours=True)
    # As the second factor's registers take a thread's eight inputs: two, then those eight lines on, of each.
    inputs = torch.arange(64).view(2, 4, 2, 2, 2).permute(0, 2, 3, 1, 4).reshape(4, 16)
    got = sum(first_factor(packed[0, k]) @ x[inputs[k]] for k in range(4))
    assert torch.equal(torch.as_tensor(got), weight @ x)


@pytest.mark.parametrize(
    ("what", "can"),
    [
        ({}, True),
        ({"major": 8}, False),
        ({"shared": 101376}, False),  # an RTX PRO 6000
        ({"processors": 114}, False),  # an H100 PCIe: no place for both kernels that wait
        ({"dtype": torch.float32}, False),
        ({"dim": 512}, False),
        ({"mps": True}, False),
    ],
)
def test_it_is_made_for_some_devices_and_sizes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: dict[str, Any], can: bool
) -> None:
    given: dict[str, Any] = {
        "major": 9, "shared": SHARED_BYTES, "processors": 132, "dtype": torch.bfloat16, "dim": 1024, **what
    }  # fmt: skip
    device = SimpleNamespace(
        major=given["major"],
        shared_memory_per_block_optin=given["shared"],
        multi_processor_count=given["processors"],
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    if "mps" in what:
        (tmp_path / "control").touch()  # a daemon of MPS listens here
    monkeypatch.setattr(dit_blocks, "DitBlocks", lambda network, device: "made")
    network = SimpleNamespace(config=FlowV3Config(dim=given["dim"]))
    made = dit_blocks.load(network, device=CUDA, dtype=given["dtype"])
    assert made == ("made" if can else None)


def test_it_has_a_place_beside_a_step_of_the_language_model() -> None:
    """Each waits for its own blocks. If they did not all fit, each could have a part of the device, and wait for
    ever."""
    assert dit_blocks.BLOCKS + decode_step.BLOCKS <= 132  # an H100, an H200


def test_an_engine_starts_without_it_if_it_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = SimpleNamespace(major=9, shared_memory_per_block_optin=SHARED_BYTES, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")

    def broken(network: object, device: object) -> None:
        raise OSError("Could not find any NVRTC library")

    monkeypatch.setattr(dit_blocks, "DitBlocks", broken)
    network = SimpleNamespace(config=FlowV3Config())
    assert dit_blocks.load(network, device=CUDA, dtype=torch.bfloat16) is None
    assert "many launches" in caplog.text and "NVRTC" in caplog.text


@pytest.mark.parametrize("architecture", ["90", "100"])
def test_the_kernels_compile_without_a_toolkit(monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    """The function of torch that compiles them on a GPU's machine does so, for an H200 and a B200."""
    made = compile_without_toolkit(monkeypatch, architecture)
    blocks = dit_blocks.DitBlocks(DiT(FlowV3Config(depth=2)), device=torch.device("cpu"))
    assert [name for _, name in made] == ["dit_blocks"]
    assert all(code.startswith(b"\x7fELF") for code, _ in made)
    # As LAYER_W and LAYER_V in dit_blocks.cu say.
    assert blocks._weights.shape == (2 * 1024 * (3 * 1024 + 1024 + 2 * 2048),)
    assert blocks._biases.shape == (2 * (3 * 1024 + 1024 + 2048 + 1024),)


def test_it_feeds_short_chunks_of_one_clause(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_without_toolkit(monkeypatch, "90")
    blocks = dit_blocks.DitBlocks(DiT(FlowV3Config(depth=1)), device=torch.device("cpu"))

    def fits(rows: int, frames: int, page_frames: int) -> bool:
        start = torch.zeros(rows, dtype=torch.long)
        keys = PagedKeys(layers=1, pages=2, page_frames=page_frames, channels=1024)
        span = Span(start=start, length=start, chunk=page_frames, keys=keys, pages=start[:, None])
        return blocks.fits(span, rows, frames)

    assert fits(2, 22, 50) and fits(2, 24, 50)
    assert not (fits(2, 36, 50) or fits(4, 22, 50) or fits(2, 20, 40))
    assert not blocks.fits(Span.whole(torch.zeros(2, dtype=torch.long), chunk=None), 2, 22)
