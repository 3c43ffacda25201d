"""The fused encoder of CosyVoice2's flow against the plain one, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined

from tts_engine.cosyvoice.kernels.fused_conformer import FusedConformer
from tts_engine.cosyvoice.models.config import FlowV2Config
from tts_engine.cosyvoice.models.flow import FlowCache, FlowRows
from tts_engine.cosyvoice.models.flow_v2 import FlowV2
from tts_engine.cosyvoice.models.streaming import Span

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def flow() -> FlowV2:
    """Weights large enough that scores differ much by content and by offset."""
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # on a GPU the plain convolutions would be the less exact ones
    network = FlowV2(
        FlowV2Config(
            vocab_size=50, dim=32, encoder_heads=2, encoder_ffn=48, encoder_layers=2, up_layers=2,
            channels=16, heads=1, head_dim=16, blocks=1, mid_blocks=1,
        )
    )  # fmt: skip
    network.eval()
    for parameter in network.encoder.parameters():
        parameter.data += torch.randn_like(parameter) * 0.3
    return network.to(DEVICE)


def _fuse(flow: FlowV2) -> None:
    flow.encoder = FusedConformer(flow.encoder, device=DEVICE, dtype=torch.float32)


def _tokens(rows: int, n: int, seed: int) -> Tensor:
    return torch.randint(0, 50, (rows, n + 3), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


FEEDS: list[tuple[int, list[tuple[int, int, int, list[int]]]]] = [
    (25, [(1, 0, 25, [5])]),
    (25, [(1, 25, 25, [5, 7]), (2, 0, 25, [2])]),
    (25, [(1, 50, 25, [5, 7, 3]), (0, 0, 0, []), (3, 0, 25, [6])]),
    (19, [(1, 75, 19, [5, 7, 3, 8]), (3, 25, 11, [6, 4]), (0, 0, 0, [])]),
    (14, [(2, 25, 14, [2, 9])]),
]
"""Tokens of each feed; slot, start, length and blocks of its rows. A row of length 0 is padding."""
FILLED = {5: 25, 7: 25, 3: 25, 8: 19, 2: 25, 9: 14, 6: 25, 4: 11}
"""Tokens in each block at the end."""


def _fed(flow: FlowV2) -> tuple[list[Tensor], FlowCache]:
    """The hidden frames of all feeds, and the caches after them."""
    cache = FlowCache(flow, slots=4, blocks=12, device=DEVICE)
    for keys in (cache.token_keys, cache.frame_keys):
        keys.data[:, :, 10:] = 7.0  # of others
    out = []
    for seed, (n, rows) in enumerate(FEEDS):
        slots, start, length = torch.tensor([row[:3] for row in rows], device=DEVICE).T.contiguous()
        blocks = torch.tensor([(*row[3], 0, 0, 0, 0)[:4] for row in rows], device=DEVICE)
        fed = FlowRows(slots=slots, blocks=blocks, start=start, length=length)
        valid = length + 3 * (length == 25)  # a shorter one ends, without look-ahead
        mu = flow.condition(_tokens(len(rows), n, seed), valid, cache.condition_span(fed), cache.frame_keys)
        assert mu.isfinite().all()
        out += [mu[row, : 2 * end] for row, end in enumerate(length.tolist())]
    return out, cache


@torch.inference_mode()
def test_chunks_give_the_hidden_frames_of_the_plain_encoder_and_leave_the_same_keys(flow: FlowV2) -> None:
    want, plain = _fed(flow)
    _fuse(flow)
    got, fused = _fed(flow)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    for mine, plains, rate in ((fused.token_keys, plain.token_keys, 1), (fused.frame_keys, plain.frame_keys, 2)):
        for page, tokens in FILLED.items():
            end = tokens * rate
            torch.testing.assert_close(mine.data[:, :, page, :end], plains.data[:, :, page, :end], atol=1e-4, rtol=1e-4)
            assert (mine.data[:, :, page, end:] == 0).all()  # padding is not written
        assert (mine.data[:, :, 1] == 0).all()
        assert (mine.data[:, :, 10:] == 7).all()


@torch.inference_mode()
def test_whole_rows_give_the_hidden_frames_of_the_plain_encoder(flow: FlowV2) -> None:
    """One row is full, one ends within a tile of keys, one is padding."""
    length = torch.tensor([70, 41, 0], device=DEVICE)
    tokens, valid = _tokens(3, 70, 9), length + torch.tensor([3, 0, 0], device=DEVICE)
    want = flow.condition(tokens, valid, Span.whole(length, chunk=None))
    _fuse(flow)
    got = flow.condition(tokens, valid, Span.whole(length, chunk=None))
    for row, n in enumerate(length.tolist()):
        torch.testing.assert_close(got[row, : 2 * n], want[row, : 2 * n], atol=1e-4, rtol=1e-4)
    assert got.isfinite().all()
