# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Triton kernels of the conformer encoder: attention with relative positions, and the input of its pre-lookahead.

The rules of ``kernels.transformer`` apply. ``models.conformer`` is the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tts_engine.cosyvoice.kernels.product import empty_lines
from tts_engine.cosyvoice.kernels.transformer import attend

_TILE = 64
"""Queries in a tile, and keys in a tile for whole rows; at least a page."""


@dataclass(slots=True)
class RelativePositions:
    """The weights of a layer's relative positions. The score of query i and key j is ``((q + u) . k + (q + v) . r[i -
    j]) / sqrt(head_dim)``."""

    r: Tensor
    """``r`` of the offsets from ``-zero`` to ``zero``, ``(2 * zero + 1, width)``, in the dtype of the products."""
    biases: Tensor
    """``u`` and ``v``, ``(2, heads, head_dim)``, fp32."""

    @property
    def zero(self) -> int:
        """The row of ``r`` for offset 0."""
        return len(self.r) // 2


@triton.jit
def _biased(q, biases, WIDTH: tl.constexpr):
    """Return ``q + u`` and ``q + v``. ``biases``: pointers to ``u`` at the head's channels."""
    u, v = tl.load(biases), tl.load(biases + WIDTH)
    wide = q.to(tl.float32)
    return (wide + u[None]).to(q.dtype), (wide + v[None]).to(q.dtype)


@triton.jit
def _by_offset(q, r, first, last, WIDTH: tl.constexpr, KEYS: tl.constexpr):
    """Return ``q_i . r[i - j]`` for a tile of queries ``q`` (ROWS, HEAD) and KEYS keys; KEYS >= ROWS.

    ``r``: pointers to the head's channels in the table's line 0; ``first``: the line of the first query and the last
    key; ``last``: the table's last line.
    """
    # Query i needs the lines from first + i (the last key) to first + i + KEYS - 1 (key 0). They begin in one window of
    # KEYS lines and end in the next. Query i needs i products from the next window, and does not need the first i of
    # this one. So the products of both windows are merged, and each query's products are then rotated into the order of
    # its keys.
    query = tl.arange(0, q.shape[0])[:, None]
    key = tl.arange(0, KEYS)
    near = tl.dot(q, tl.trans(_window(r, first + key, last, WIDTH)), input_precision="ieee")
    far = tl.dot(q, tl.trans(_window(r, first + KEYS + key, last, WIDTH)), input_precision="ieee")
    return tl.gather(tl.where(key[None] >= query, near, far), (query - 1 - key[None]) & (KEYS - 1), 1)


@triton.jit
def _window(r, line, last, WIDTH: tl.constexpr):
    # Only padding has offsets outside the table.
    return tl.load(r[None] + tl.minimum(tl.maximum(line, 0), last)[:, None] * WIDTH)


@triton.jit
def _chunk_attention(
    qkv, keys, values, r, biases, pages, start, length, out, n, pages_per_row, zero,
    HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    row = tl.program_id(1)
    WIDTH: tl.constexpr = HEADS * HEAD
    older = (tl.load(start + row) // PAGE).to(tl.int32)
    frame = tl.arange(0, ROWS)
    own = head * HEAD + tl.arange(0, HEAD)
    real = frame < tl.load(length + row)
    line = row.to(tl.int64) * n + frame
    source = qkv + line[:, None] * 3 * WIDTH + own[None]
    q = tl.load(source, mask=real[:, None], other=0.0)
    k = tl.load(source + WIDTH, mask=real[:, None], other=0.0)
    v = tl.load(source + 2 * WIDTH, mask=real[:, None], other=0.0)
    pages += row * pages_per_row
    place = tl.load(pages + older) * PAGE * WIDTH + frame[:, None] * WIDTH + own[None]
    tl.store(keys + place, k, mask=real[:, None])
    tl.store(values + place, v, mask=real[:, None])

    q, q_offset = _biased(q, biases + own, WIDTH)
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    bias = _by_offset(q_offset, r + own, zero - (ROWS - 1), 2 * zero, WIDTH, ROWS)
    acc, total, top = attend(q, k, v, real, acc, total, top, bias)
    key = tl.arange(0, KEYS)
    inside = key < PAGE
    within = key[:, None] * WIDTH + own[None]
    for number in tl.range(0, older, num_stages=STAGES):
        older_place = tl.load(pages + number) * PAGE * WIDTH + within
        older_k = tl.load(keys + older_place, mask=inside[:, None], other=0.0)
        older_v = tl.load(values + older_place, mask=inside[:, None], other=0.0)
        first = zero + (older - number) * PAGE - (KEYS - 1)
        older_bias = _by_offset(q_offset, r + own, first, 2 * zero, WIDTH, KEYS)
        acc, total, top = attend(q, older_k, older_v, inside, acc, total, top, older_bias)
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    tl.store(out + line[:, None] * WIDTH + own[None], acc.to(out.dtype.element_ty), mask=(frame < n)[:, None])


def _attend_to_pages(qkv: Tensor, store: Tensor, span: Any, positions: RelativePositions, heads: int) -> Tensor:
    rows, n, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    page = store.shape[2]
    assert n <= page <= _TILE, f"{n} frames for pages of {page} and tiles of {_TILE}"
    out = empty_lines(rows * n, width, device=qkv.device, dtype=qkv.dtype)
    tile = 32 if n <= 32 else _TILE
    _chunk_attention[(heads, rows)](
        qkv, store[0], store[1], positions.r, positions.biases, span.pages, span.start, span.length, out, n,
        span.pages.shape[1], positions.zero,
        HEADS=heads, HEAD=width // heads, PAGE=page, ROWS=tile, KEYS=max(tile, triton.next_power_of_2(page)), STAGES=3,
        num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _whole_attention(
    qkv, r, biases, length, out, n, zero,
    HEADS: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    begin_row = tl.program_id(0) * ROWS
    head = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    WIDTH: tl.constexpr = HEADS * HEAD
    end = tl.load(length + row).to(tl.int32)
    end = tl.where(begin_row < end, end, 0)
    frame = begin_row + tl.arange(0, ROWS)
    own = head * HEAD + tl.arange(0, HEAD)
    base = qkv + row * n * 3 * WIDTH + own[None]
    q = tl.load(base + frame[:, None] * 3 * WIDTH, mask=(frame < end)[:, None], other=0.0)
    q, q_offset = _biased(q, biases + own, WIDTH)
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    for begin in tl.range(0, end, KEYS, num_stages=STAGES):
        key = begin + tl.arange(0, KEYS)
        seen = key < end
        place = base + key[:, None] * 3 * WIDTH
        k = tl.load(place + WIDTH, mask=seen[:, None], other=0.0)
        v = tl.load(place + 2 * WIDTH, mask=seen[:, None], other=0.0)
        bias = _by_offset(q_offset, r + own, zero + begin_row - begin - (KEYS - 1), 2 * zero, WIDTH, KEYS)
        acc, total, top = attend(q, k, v, seen, acc, total, top, bias)
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    target = out + (row * n + frame)[:, None] * WIDTH + own[None]
    tl.store(target, acc.to(out.dtype.element_ty), mask=(frame < n)[:, None])


def _attend_to_whole_rows(qkv: Tensor, length: Tensor, positions: RelativePositions, heads: int) -> Tensor:
    rows, n, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out = empty_lines(rows * n, width, device=qkv.device, dtype=qkv.dtype)
    _whole_attention[(triton.cdiv(n, _TILE), heads, rows)](
        qkv, positions.r, positions.biases, length, out, n, positions.zero,
        HEADS=heads, HEAD=width // heads, ROWS=_TILE, KEYS=_TILE, STAGES=2, num_warps=4,
    )  # fmt: skip
    return out


def relative_attention(qkv: Tensor, span: Any, layer: int, positions: RelativePositions, heads: int) -> Tensor:
    """Compute a layer's attention over the keys of a ``streaming.Span``: a chunk with its pages, or a whole sequence.

    Args:
        qkv: ``(rows, n, 3 * width)``. With pages, ``n`` is up to a page, and each row's keys and values are written to
            its current page; the dtype is the same.

    Returns:
        ``(rows * n, width)``; finite beyond each row's length.
    """
    if span.keys is None:
        return _attend_to_whole_rows(qkv, span.length, positions, heads)
    return _attend_to_pages(qkv, span.keys.data[layer], span, positions, heads)


@triton.jit
def _norm_look_ahead(x, weight, bias, valid, out, h, n, width, eps, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    frame = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    w = tl.load(weight + column, mask=inside, other=0.0)
    b = tl.load(bias + column, mask=inside, other=0.0)
    end = tl.load(valid + row)
    line = row * n + frame
    for tap in tl.static_range(TAPS):
        v = tl.load(x + (line + row * (TAPS - 1) + tap) * width + column, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(v) / width
        d = tl.where(inside, v - mean, 0.0)
        v = d * tl.rsqrt(tl.sum(d * d) / width + eps) * w + b
        v = tl.where(frame + tap < end, v, 0.0)
        if tap == 0:
            tl.store(h + line * width + column, v, mask=inside)
        tl.store(out + (line * TAPS + tap) * width + column, v.to(out.dtype.element_ty), mask=inside)


def norm_look_ahead(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, valid: Tensor, ahead: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute LayerNorm and concatenate each frame with the ``ahead`` frames after it.

    Args:
        x: ``(rows, n + ahead, width)``. weight, bias: fp32.
        valid: ``(rows,)``, int64: number of real frames; later frames become zeros.

    Returns:
        The concatenated frames, ``(rows * n, (1 + ahead) * width)``; and the normalised frames, ``(rows, n, width)``,
        fp32.
    """
    rows, n, width = x.shape[0], x.shape[1] - ahead, x.shape[2]
    out = empty_lines(rows * n, (1 + ahead) * width, device=x.device, dtype=dtype)
    h = torch.empty(rows, n, width, device=x.device, dtype=torch.float32)
    _norm_look_ahead[(n, rows)](
        x, weight, bias, valid, out, h, n, width, eps,
        TAPS=1 + ahead, BLOCK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out, h
