"""The fused kernels against the plain networks. Without a GPU Triton's interpreter runs them, element for element."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined

from tts_engine.cosyvoice.kernels import transformer as kernels
from tts_engine.cosyvoice.kernels.fused_dit import FusedDiT
from tts_engine.cosyvoice.kernels.fused_unet import FusedUNet
from tts_engine.cosyvoice.kernels.sampling import sample
from tts_engine.cosyvoice.lm import flat_prompts
from tts_engine.cosyvoice.lm.api import SequencePrefill, joined_table
from tts_engine.cosyvoice.lm.cuda_steps import CudaLm, sizes_for
from tts_engine.cosyvoice.lm.flat_prompts import FlatPrompts
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
from tts_engine.cosyvoice.models.llm import KeyValueCache, SpeechLanguageModel, rotate
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


def language_model(version: int) -> SpeechLanguageModel:
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
    network = SpeechLanguageModel(config)
    perturb(network, 0.1)
    return network.to(DEVICE)


@pytest.mark.parametrize("version", [2, 3])
@torch.inference_mode()
def test_language_model_steps_give_the_logits_and_ids_of_the_plain_network(version: int) -> None:
    plain = language_model(version)
    config = plain.config
    fused = CudaLm(plain, slots=4, max_length=64, device=DEVICE, dtype=torch.float32)
    table = joined_table(config)
    joined = [table.prompt(*(np.array(part, np.int32) for part in prompt)) for prompt in PROMPTS]
    length = torch.tensor([len(ids) for ids in joined], device=DEVICE)
    slots, seeds = torch.tensor([[1, 2], [1234, 1235]], device=DEVICE)
    least = torch.full_like(slots, 3)
    admissions = [
        SequencePrefill(slot=slot, ids=ids, seed=seed, min_tokens=3)
        for slot, seed, ids in zip(slots.tolist(), seeds.tolist(), joined, strict=True)
    ]
    packed = fused._packed(32, admissions, [-1, -1], [-1, -1]).to(DEVICE)
    fused.state.begin(slots, length, seeds, least)
    got = fused.prefill_logits(flat_prompts.views(packed, 32))[:2]

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


class Recorded(CudaLm):
    """Keeps the logits of the last prefill."""

    logits: Tensor

    def prefill_logits(self, prompts: FlatPrompts) -> Tensor:
        self.logits = super().prefill_logits(prompts)
        return self.logits


class Prefilled:
    """Prefills of both networks, in fp32, whose logits and caches have to be the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, slots: int, max_length: int) -> None:
        monkeypatch.setattr(flat_prompts, "LINES", (32, 64, 96))  # so that the interpreter has less to do
        monkeypatch.setattr(flat_prompts, "ROWS", 4)
        self.plain = language_model(3)
        self.fused = Recorded(self.plain, slots=slots, max_length=max_length, device=DEVICE, dtype=torch.float32)
        self.max_length, self._rng = max_length, np.random.default_rng(1)

    def ids(self, count: int) -> NDArray[np.int64]:
        return self._rng.integers(0, 300, count)

    def check(self, prompts: Sequence[NDArray[np.int64]], shared: int, *, computed: Sequence[int]) -> None:
        """Prefill the slots from 0 on. ``computed``: how many positions of each prompt have no known prefix."""
        fused = self.fused
        admissions = [
            SequencePrefill(slot=slot, ids=ids, seed=slot, min_tokens=3, shared=shared)
            for slot, ids in enumerate(prompts)
        ]
        assert [fused.computed(a) for a in admissions] == list(computed)
        fused.cache[:, :, : fused.slots] = float("nan")  # whatever a slot held before
        tokens = fused._launch_prefill(admissions)
        assert (fused.state.last[: len(prompts)] == tokens[: len(prompts)]).all()
        for slot, ids in enumerate(prompts):
            cache = KeyValueCache(self.plain.config, slots=1, max_length=self.max_length, device=DEVICE)
            zero = torch.zeros(1, dtype=torch.long, device=DEVICE)
            hidden = self.plain(fused.table[torch.from_numpy(ids).to(DEVICE)][None], zero, cache)
            want = self.plain.logits(hidden[:, -1])[0]
            torch.testing.assert_close(fused.logits[slot, : len(want)], want, atol=1e-4, rtol=1e-4)
            kept = fused.cache[:, :, slot, :, : len(ids)]
            torch.testing.assert_close(kept, cache.data[:, :, 0, :, : len(ids)], atol=1e-4, rtol=1e-4)
            assert fused.cache[:, :, slot, :, len(ids) :].isnan().all(), "padding is not stored"
        assert fused.cache[:, :, len(prompts) : fused.slots].isnan().all(), "other slots are left"
        assert fused.logits.isfinite().all()


@torch.inference_mode()
def test_prompts_that_begin_alike_have_the_logits_and_keys_that_they_have_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = Prefilled(monkeypatch, slots=4, max_length=48)
    first, second = both.ids(19), both.ids(19)

    def clause(voice: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        return np.concatenate([voice, both.ids(count)])

    both.check([clause(first, 3), clause(first, 8)], 19, computed=[22, 27])  # the first of them is written
    both.check([clause(first, 1), clause(second, 5), clause(first, 12)], 19, computed=[1, 24, 12])
    both.check([clause(second, 2), clause(first, 29)], 19, computed=[2, 29])
    both.check([clause(first, 0), clause(second, 4)], 19, computed=[19, 4])  # one position is always computed


@torch.inference_mode()
def test_the_ninth_prefix_takes_the_place_of_the_one_not_used_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Prefilled(monkeypatch, slots=2, max_length=32)
    voices = [both.ids(16) for _ in range(9)]
    for voice in voices[:8]:
        both.check([np.append(voice, 7)], 16, computed=[17])
    both.check([np.append(voices[0], 8)], 16, computed=[1])
    both.check([np.append(voices[8], 9)], 16, computed=[17])
    both.check([np.append(voices[0], 9), np.append(voices[8], 5)], 16, computed=[1, 1])
    both.check([np.append(voices[1], 9)], 16, computed=[17])
    longest = both.ids(31)
    both.check([np.append(longest, 1)], 31, computed=[32])
    both.check([np.append(longest, 2), np.append(voices[8], 5)], 31, computed=[1, 17])


@torch.inference_mode()
def test_a_prompts_attention_goes_over_several_blocks_and_what_a_slot_holds_already() -> None:
    """Prompts that end in a block, with it, and behind 70 and 64 positions; and padding."""
    heads, kv_heads, size, lines, slots = 4, 2, 16, 384, [3, 0, 2, 5]
    begin, end = [0, 0, 70, 64], [130, 64, 170, 65]
    admissions = [
        SequencePrefill(slot=slot, ids=np.zeros(n, np.int64), seed=0, min_tokens=0, shared=first)
        for slot, first, n in zip(slots, begin, end, strict=True)
    ]
    buffer = np.empty(flat_prompts.buffer_size(lines), np.int64)
    read = [0 if first else -1 for first in begin]
    flat_prompts.lay_out(buffer, lines, admissions, read=read, written=[-1] * 4, scratch=6)
    prompts = flat_prompts.views(torch.from_numpy(buffer).to(DEVICE), lines)
    turn = _angles(180, size)
    cache = torch.randn(2, 7, kv_heads, 180, size, device=DEVICE)
    for slot, n in zip(slots, end, strict=True):
        cache[:, slot, :, n:] = float("nan")
    before = cache.clone()
    qkv = torch.randn(lines, (heads + 2 * kv_heads) * size, device=DEVICE)
    fed = qkv.clone().view(lines, -1, size).transpose(0, 1)
    kernels.rotate_store(qkv, cache, prompts.lines[1], prompts.lines[2], *turn, heads)
    got = kernels.prompt_attention(qkv, cache, prompts.blocks, heads)
    line = 0
    for slot, first, n in zip(slots, begin, end, strict=True):
        here = fed[:, line : line + n - first]
        cos, sin = (torch.cat([part[first:n]] * 2, -1) for part in turn)
        turned = rotate(here[: heads + kv_heads], cos, sin)
        before[0, slot, :, first:n], before[1, slot, :, first:n] = turned[heads:], here[heads + kv_heads :]
        mask = torch.ones(n, n, device=DEVICE).tril()[first:].bool()
        keys, values = before[:, slot, :, :n]
        want = F.scaled_dot_product_attention(turned[:heads], keys, values, attn_mask=mask, enable_gqa=True)
        torch.testing.assert_close(got[line : line + n - first], want.transpose(0, 1).flatten(1), atol=1e-5, rtol=1e-5)
        line += n - first
    torch.testing.assert_close(cache, before, equal_nan=True)  # nothing else is written
    assert not got[line:].any()


@pytest.mark.parametrize("slots", [1, 2, 3, 9, 97, 100, 128, 200])
def test_a_gpus_step_has_a_size_for_as_many_clauses_as_there_are_slots(slots: int) -> None:
    sizes = sizes_for(slots)
    assert any(size >= min(slots, TorchLmConfig().decode_rows) for size in sizes)
    assert len(sizes) == 1 or sizes[-2] < slots, "no size is prepared that no step takes"


@pytest.mark.parametrize("frames", [50, 22])
@torch.inference_mode()
def test_chunks_attend_to_their_pages_and_whole_rows_to_themselves(frames: int) -> None:
    """Rows: a first chunk, an end inside a chunk after a shared prompt, another after that prompt, and padding."""
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
