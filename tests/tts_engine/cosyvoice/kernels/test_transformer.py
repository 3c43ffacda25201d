"""The fused kernels against the plain networks. Without a GPU Triton's interpreter runs them, element for element."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined

from tts_engine.cosyvoice.kernels import transformer as kernels
from tts_engine.cosyvoice.kernels.fused_dit import FusedDiT
from tts_engine.cosyvoice.kernels.fused_unet import FusedUNet
from tts_engine.cosyvoice.kernels.sampling import sample
from tts_engine.cosyvoice.lm.api import joined_table
from tts_engine.cosyvoice.lm.cuda_steps import CudaLm, sizes_for
from tts_engine.cosyvoice.lm.quantised import quantise
from tts_engine.cosyvoice.lm.torch_lm import TorchLmConfig
from tts_engine.cosyvoice.models.config import (
    FlowV2Config,
    FlowV3Config,
    LanguageModelConfig,
    SamplingConfig,
    SolverConfig,
)
from tts_engine.cosyvoice.models.dit import ConvPosition, rotate_first_head
from tts_engine.cosyvoice.models.flow import Flow, FlowCache, FlowRows
from tts_engine.cosyvoice.models.flow_v2 import FlowV2
from tts_engine.cosyvoice.models.flow_v3 import FlowV3
from tts_engine.cosyvoice.models.llm import KeyValueCache, SpeechLanguageModel
from tts_engine.cosyvoice.models.streaming import PagedKeys, Span
from tts_engine.cosyvoice.sampling import ras, uniforms

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PROMPTS = [([1, 2, 3], [4, 5], [7, 8, 9]), ([], [4, 5, 6], [])]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # on a GPU the plain convolutions would be the less exact ones


def perturb(network: torch.nn.Module, size: float) -> None:
    network.eval()
    for parameter in network.parameters():
        parameter.data += torch.randn_like(parameter) * size


@pytest.mark.parametrize("version", [2, 3])
@torch.inference_mode()
def test_language_model_steps_give_the_logits_and_ids_of_the_plain_network(version: int) -> None:
    config = LanguageModelConfig(
        version=version,  # type: ignore[arg-type]
        vocab_size=100,
        hidden_size=128,
        intermediate_size=96,
        layers=2,
        heads=4,
        kv_heads=2,
        speech_token_size=200,
    )
    plain = SpeechLanguageModel(config)
    perturb(plain, 0.1)
    plain.to(DEVICE)
    fused = CudaLm(plain, slots=4, max_length=64, device=DEVICE, dtype=torch.float32)
    table = joined_table(config)
    joined = [table.prompt(*(np.array(part, np.int32) for part in prompt)) for prompt in PROMPTS]
    length = torch.tensor([len(ids) for ids in joined], device=DEVICE)
    slots, seeds = torch.tensor([[1, 2], [1234, 1235]], device=DEVICE)
    least = torch.full_like(slots, 3)
    padded = torch.zeros(2, int(length.max()), dtype=torch.long, device=DEVICE)
    for row, prompt_ids in zip(padded, joined, strict=True):
        row[: len(prompt_ids)] = torch.tensor(prompt_ids, device=DEVICE)
    fused.state.begin(slots, length, seeds, least)
    got = fused.prefill_logits(padded, slots, length)

    cache = KeyValueCache(config, slots=2, max_length=64, device=DEVICE)
    zero = torch.zeros(1, dtype=torch.long, device=DEVICE)
    want = torch.cat(
        [
            plain.logits(plain(plain.prompt(*prompt)[None], zero, cache, slots=zero + row)[:, -1])
            for row, prompt in enumerate(PROMPTS)
        ]
    )
    ids = config.speech_vocab_size
    ring = torch.full((2, 10), -1, device=DEVICE)
    tokens = torch.zeros(2, dtype=torch.long, device=DEVICE)
    for step in range(13):  # the memory of ten ids begins anew
        torch.testing.assert_close(got[:, :ids], want, atol=1e-4, rtol=1e-4)
        masked = want.clone()
        if step < 3:
            masked[:, config.speech_token_size :] = float("-inf")
        drawn, _ = ras(masked, ring, uniforms(seeds, torch.full_like(seeds, step)), SamplingConfig())
        sample(
            want.contiguous(),
            slots,
            fused.state,
            tokens,
            config.sampling,
            ids=ids,
            first_stop=config.speech_token_size,
            fill=config.fill,
            advance=step > 0,
        )
        assert tokens.tolist() == drawn.tolist()
        ring[:, step % 10] = tokens
        want = plain.logits(plain(plain.embed_speech(tokens)[:, None], length + step, cache)[:, 0])
        got = fused.decode_logits(slots)
        assert fused.state.positions[slots].tolist() == (length + step).tolist()


@pytest.mark.parametrize("slots", [1, 2, 3, 9, 97, 100, 128, 200])
def test_a_gpus_step_has_a_size_for_as_many_clauses_as_there_are_slots(slots: int) -> None:
    sizes = sizes_for(slots)
    assert any(size >= min(slots, TorchLmConfig().decode_rows) for size in sizes)
    assert len(sizes) == 1 or sizes[-2] < slots, "no size is prepared that no step takes"


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("rows", [3, 20, 40])
def test_products_with_weights_of_eight_bits(kind: Literal["int8", "fp8"], rows: int) -> None:
    x, bias = torch.randn(rows, 48, device=DEVICE), torch.randn(70, device=DEVICE)
    weight = quantise(torch.randn(70, 48, device=DEVICE), kind)
    want = x @ weight.wide().t()
    got = kernels.matmul_8bit(x, weight.values, weight.scale, None)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    got = kernels.matmul_8bit(x, weight.values, weight.scale, bias)
    torch.testing.assert_close(got, want + bias, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("frames", [50, 22])
@torch.inference_mode()
def test_chunks_attend_to_their_pages_and_whole_rows_to_themselves(frames: int) -> None:
    """Rows: a first chunk, an end inside a chunk behind a shared prompt, another behind it, and padding."""
    heads, size, page_frames, width = 2, 16, 50, 32
    turn = _angles(300, size)
    start, length = torch.tensor([[0, 100, 250, 0], [frames, frames - 19, frames, 0]], device=DEVICE)
    table = torch.tensor([[1, 0, 0, 0, 0, 0], [3, 7, 2, 0, 0, 0], [3, 7, 5, 9, 4, 6], [0] * 6], device=DEVICE)
    pages = PagedKeys(layers=1, pages=10, page_frames=page_frames, channels=width, device=DEVICE)
    before = pages.data.normal_()[0].clone()
    qkv = torch.randn(4, frames, 3 * width, device=DEVICE)
    span = Span(start=start, length=length, chunk=50, keys=pages, pages=table)
    fed = _turned(qkv, start, turn, size)
    got = kernels.span_attention(qkv.clone(), span, 0, turn, heads).view(4, frames, width)
    after = pages.data[0]
    for row in range(3):
        n, older = int(length[row]), table[row, : start[row] // page_frames]
        kv = [torch.cat([before[part, older].flatten(0, 1), fed[row, :n, part + 1]]) for part in range(2)]
        torch.testing.assert_close(got[row, :n], _attended(heads, fed[row, :n, 0], *kv), atol=1e-5, rtol=1e-5)
        own = table[row, start[row] // page_frames]
        torch.testing.assert_close(after[:, own, :n].transpose(0, 1), fed[row, :n, 1:])
        before[:, own, :n] = after[:, own, :n]
    torch.testing.assert_close(after, before, atol=0, rtol=0)  # nothing else is written
    assert got.isfinite().all()

    length = torch.tensor([150, 64, 0], device=DEVICE)
    qkv = torch.randn(3, 150, 3 * width, device=DEVICE)
    for turned in (turn, None):
        fed = _turned(qkv, 0 * length, turned, size)
        got = kernels.span_attention(qkv.clone(), Span.whole(length, chunk=None), 0, turned, heads).view(3, 150, width)
        for row, n in enumerate((150, 64)):
            torch.testing.assert_close(got[row, :n], _attended(heads, *fed[row, :n].unbind(1)), atol=1e-5, rtol=1e-5)
        assert got.isfinite().all()


def _angles(positions: int, size: int) -> tuple[Tensor, Tensor]:
    phase = torch.arange(positions, device=DEVICE)[:, None] * torch.rand(size // 2, device=DEVICE)
    return phase.cos(), phase.sin()


def _turned(qkv: Tensor, start: Tensor, turn: tuple[Tensor, Tensor] | None, size: int) -> Tensor:
    """``(rows, n, 3, width)``."""
    q, k, v = qkv.chunk(3, -1)
    if turn is not None:
        index = start[:, None] + torch.arange(qkv.shape[1], device=DEVICE)
        q, k = (rotate_first_head(x, (turn[0][index], turn[1][index])) for x in (q, k))
    return torch.stack([q, k, v], 2)


def _attended(heads: int, *qkv: Tensor) -> Tensor:
    parts = (x.unflatten(-1, (heads, -1)).transpose(0, 1) for x in qkv)
    return F.scaled_dot_product_attention(*parts).transpose(0, 1).flatten(1)


def _chunks(flow: Flow) -> list[Tensor]:
    """A row's first chunk; its end inside the next one, beside another's first; and a whole row with padding."""
    cache = FlowCache(flow, slots=4, blocks=8, device=DEVICE)
    generator = torch.Generator().manual_seed(1)
    blocks = torch.tensor([[1, 2], [3, 4]], device=DEVICE)
    speaker = torch.randn(2, 80, generator=generator).to(DEVICE)

    def inputs(rows: int, n: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(0, 50, (rows, n + 3), generator=generator)
        return tokens.to(DEVICE), torch.randn(rows, 2 * n, 80, generator=generator).to(DEVICE)

    out = []
    for start, length in (([0], [25]), ([25, 0], [11, 25])):
        count = len(start)
        rows = FlowRows(
            slots=torch.arange(1, count + 1, device=DEVICE),
            blocks=blocks[:count],
            start=torch.tensor(start, device=DEVICE),
            length=torch.tensor(length, device=DEVICE),
        )
        tokens, cond = inputs(count, 25)
        mel = flow.advance(tokens, rows.length + 3, cond, speaker[:count], rows, cache)
        out += [mel[row, : 2 * length[row]] for row in range(count)]
    tokens, cond = inputs(1, 14)
    end = torch.tensor([11], device=DEVICE)
    return [*out, flow.whole(tokens, end, cond, speaker[:1], end)[0, :22]]


@pytest.mark.slow
def test_the_fused_transformer_gives_the_mel_of_the_plain_one() -> None:
    flow = FlowV3(
        FlowV3Config(
            vocab_size=50, look_ahead_channels=32, dim=256, depth=1, heads=4, head_dim=64, solver=SolverConfig(steps=1)
        )
    )
    # The published width of a group, 64 channels, but four groups: the interpreter takes long for each.
    flow.estimator.input_embed.conv_pos_embed = ConvPosition(256, groups=4)
    perturb(flow, 0.03)
    flow.prepare()
    flow.to(DEVICE)
    want = _chunks(flow)
    flow.decoder.estimator = FusedDiT(flow.estimator, device=DEVICE, dtype=torch.float32)  # type: ignore[arg-type]
    for got, expected in zip(_chunks(flow), want, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_the_fused_u_net_gives_the_mel_of_the_plain_one() -> None:
    flow = FlowV2(
        FlowV2Config(
            vocab_size=50, dim=32, encoder_heads=2, encoder_ffn=32, encoder_layers=1, up_layers=1,
            channels=64, heads=2, head_dim=16, blocks=1, mid_blocks=1, solver=SolverConfig(steps=1),
        )
    )  # fmt: skip
    perturb(flow, 0.03)
    flow.prepare()
    flow.to(DEVICE)
    want = _chunks(flow)
    flow.decoder.estimator = FusedUNet(flow.estimator, device=DEVICE, dtype=torch.float32)  # type: ignore[arg-type]
    for got, expected in zip(_chunks(flow), want, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
