"""The host's duties towards the kernel of the U-Net's stages; ``gpu/test_full_size.py`` runs it on a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tts_engine.cosyvoice.kernels.nvrtc import compile_without_toolkit
from tts_engine.cosyvoice.kernels import unet_blocks
from tts_engine.cosyvoice.models.config import FlowV2Config
from tts_engine.cosyvoice.models.streaming import ConvTails, PagedKeys, Span
from tts_engine.cosyvoice.models.unet import CausalUNet

CUDA = torch.device("cuda")
SHARED_BYTES = 232448
"""The shared memory of a block on an H200 or a B200."""


def fragments(packed: Tensor) -> Tensor:
    """The matrix ``(32, 8)`` that two instructions see in the registers ``(32 threads, 8)`` of their second factor (PTX
    ISA, m16n8k16 with bf16): a thread ``4 g + t`` has column ``g``, lines ``2 t`` and ``2 t + 8``."""
    out = torch.empty(32, 8)
    for thread in range(32):
        g, t = divmod(thread, 4)
        for register in range(4):
            line = 16 * (register // 2) + 8 * (register % 2) + 2 * t
            out[line : line + 2, g] = packed[thread, 2 * register : 2 * register + 2]
    return out


def test_packed_weights_give_the_product_that_the_instructions_compute() -> None:
    weight, x = torch.randint(-9, 9, (16, 96)).float(), torch.randint(-9, 9, (16, 96)).float()
    packed = unet_blocks.pack(weight)
    assert packed.shape == (2, 3, 32, 8)
    for tile in range(2):
        got = sum(x[:, 32 * k : 32 * k + 32] @ fragments(packed[tile, k]) for k in range(3))
        assert torch.equal(torch.as_tensor(got), (x @ weight.t())[:, 8 * tile : 8 * tile + 8])


def test_a_thread_has_eight_neighbouring_outputs_of_four_tiles() -> None:
    order = unet_blocks.neighbours(64).view(2, 4, 4, 2)  # half of a warp's outputs, tile, thread, output
    for half in range(2):
        for thread in range(4):
            first = 32 * half + 8 * thread
            assert order[half, :, thread].flatten().tolist() == list(range(first, first + 8))


@pytest.mark.parametrize(
    ("what", "can"),
    [
        ({}, True),
        ({"major": 8}, False),
        ({"shared": 101376}, False),  # an RTX PRO 6000
        ({"dtype": torch.float32}, False),
        ({"channels": 128}, False),
    ],
)
def test_it_is_made_for_some_devices_and_sizes(
    monkeypatch: pytest.MonkeyPatch, what: dict[str, Any], can: bool
) -> None:
    given: dict[str, Any] = {
        "major": 9, "shared": SHARED_BYTES, "dtype": torch.bfloat16, "channels": 256, **what
    }  # fmt: skip
    device = SimpleNamespace(major=given["major"], shared_memory_per_block_optin=given["shared"])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setattr(unet_blocks, "UNetBlocks", lambda network, device: "made")
    network = SimpleNamespace(config=FlowV2Config(channels=given["channels"]))
    made = unet_blocks.load(network, device=CUDA, dtype=given["dtype"])
    assert made == ("made" if can else None)


def test_an_engine_starts_without_it_if_it_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = SimpleNamespace(major=9, shared_memory_per_block_optin=SHARED_BYTES)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)

    def broken(network: object, device: object) -> None:
        raise OSError("Could not find any NVRTC library")

    monkeypatch.setattr(unet_blocks, "UNetBlocks", broken)
    network = SimpleNamespace(config=FlowV2Config())
    assert unet_blocks.load(network, device=CUDA, dtype=torch.bfloat16) is None
    assert "many launches" in caplog.text and "NVRTC" in caplog.text


@pytest.mark.parametrize("architecture", ["90", "100"])
def test_the_kernels_compile_without_a_toolkit(monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    """The function of torch that compiles them on a GPU's machine does so, for an H200 and a B200."""
    made = compile_without_toolkit(monkeypatch, architecture)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    network = CausalUNet(FlowV2Config(mid_blocks=1))
    blocks = unet_blocks.UNetBlocks(network, device=torch.device("cpu"))
    assert [name for _, name in made] == ["unet_blocks"] * len(unet_blocks.TILES)
    assert all(code.startswith(b"\x7fELF") for code, _ in made)
    # As BLOCK_W, BLOCK_V, STAGE_W and STAGE_V in unet_blocks.cu say.
    a_block, a_stage = 256 * (3 * 512 + 512 + 1024 + 1024), 256 * (3 * 256 + 256 + 3 * 256)
    assert blocks._weights.shape == (3 * 4 * a_block,)
    assert blocks._conv_weights.shape == (a_stage,)
    assert blocks._values.shape == (3 * 4, 6 * 256 + 1024)
    assert blocks._conv_values.shape == (1, 7 * 256)


@pytest.mark.parametrize(
    ("rows", "frames", "page_frames", "fits"),
    [(14, 50, 50, True), (1, 22, 50, True), (15, 22, 50, False), (2, 51, 100, False), (2, 40, 40, False)],
)
def test_it_feeds_chunks_of_few_rows(
    monkeypatch: pytest.MonkeyPatch, rows: int, frames: int, page_frames: int, fits: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(unet_blocks.UNetBlocks, "_compile", lambda self, tiles: None)
    blocks = unet_blocks.UNetBlocks(CausalUNet(FlowV2Config(mid_blocks=1)), device=torch.device("cpu"))
    start = torch.zeros(rows, dtype=torch.long)
    keys = PagedKeys(layers=1, pages=2, page_frames=page_frames, channels=512)
    tails = ConvTails([(2, 256)], slots=1)
    span = Span(start=start, length=start, chunk=page_frames, keys=keys, tails=tails, pages=start[:, None], slots=start)
    assert blocks.fits(span, rows, frames) == fits
    assert not blocks.fits(Span.whole(start, chunk=None), rows, frames)


def test_the_middle_stages_tails_follow_each_other_in_memory() -> None:
    network: Any = CausalUNet(FlowV2Config(mid_blocks=3))
    tails = ConvTails(network.tail_shapes, slots=5, dtype=torch.bfloat16)
    convolutions = [block.block[0] for resnet, *_ in network.mid_blocks for block in (resnet.block1, resnet.block2)]
    places = [tails.data[conv.tail].data_ptr() for conv in convolutions]
    size = 5 * 2 * 256 * 2  # slots, frames, channels, bytes
    assert places == [places[0] + size * number for number in range(6)]
