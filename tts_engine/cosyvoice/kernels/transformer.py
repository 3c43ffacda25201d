# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Triton kernels of the transformers: all work besides the matrix products, fused to eight launches per layer.

All kernels take tensors of fixed shapes and read lengths from device memory, so that calls can be captured in a CUDA
graph. The plain networks in ``tts_engine.cosyvoice.models`` are their reference.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tts_engine.cosyvoice.kernels.product import empty_lines

# -- language model ------------------------------------------------------------------------------------------------


@triton.jit
def _add_rms_norm(x, residual, weight, out, width, eps, HAS_X: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    h = tl.load(residual + row * width + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_X:
        h += tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row * width + column, h.to(residual.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(h * h) / width + eps)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (h * scale * w).to(out.dtype.element_ty), mask=inside)


def add_rms_norm(x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add ``x`` to ``residual`` in place and return the RMS norm of the sum, ``(rows, width)``."""
    rows, width = residual.shape
    out = torch.empty(rows, width, device=residual.device, dtype=weight.dtype)
    block = triton.next_power_of_2(width)
    _add_rms_norm[(rows,)](x, residual, weight, out, width, eps, HAS_X=x is not None, BLOCK=block, num_warps=4)
    return out


@triton.jit
def _silu_mul(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside).to(tl.float32)
    tl.store(out + row * width + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up``, ``(rows, width)``, of ``(rows, 2 * width)``."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, device=gate_up.device, dtype=gate_up.dtype)
    _silu_mul[(rows, triton.cdiv(width, 1024))](gate_up, out, width, BLOCK=1024, num_warps=4)
    return out


@triton.jit
def _decode_attention(
    qkv, cache, slots, positions, cos, sin, out, slots_total, max_length,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    kv = tl.program_id(1)
    HEAD: tl.constexpr = 2 * HALF
    PER: tl.constexpr = HEADS // KV_HEADS
    slot = tl.load(slots + row)
    position = tl.load(positions + slot)
    line = qkv + row.to(tl.int64) * (HEADS + 2 * KV_HEADS) * HEAD
    half = tl.arange(0, HALF)
    whole = tl.arange(0, HEAD)
    head = tl.arange(0, GROUP)
    used = (head < PER)[:, None]
    c = tl.load(cos + position * HALF + half)
    s = tl.load(sin + position * HALF + half)
    dtype = cache.dtype.element_ty

    query = line + (kv * PER + head)[:, None] * HEAD + half[None]
    a = tl.load(query, mask=used, other=0.0).to(tl.float32)
    b = tl.load(query + HALF, mask=used, other=0.0).to(tl.float32)
    scale = 1.4426950408889634 / (HEAD**0.5)
    qa = ((a * c[None] - b * s[None]) * scale).to(dtype)
    qb = ((b * c[None] + a * s[None]) * scale).to(dtype)

    key = line + (HEADS + kv) * HEAD
    a = tl.load(key + half).to(tl.float32)
    b = tl.load(key + HALF + half).to(tl.float32)
    ka = (a * c - b * s).to(dtype)
    kb = (b * c + a * s).to(dtype)
    v = tl.load(line + (HEADS + KV_HEADS + kv) * HEAD + whole)
    keys = cache + (slot * KV_HEADS + kv).to(tl.int64) * max_length * HEAD
    values = keys + slots_total.to(tl.int64) * KV_HEADS * max_length * HEAD
    tl.store(keys + position * HEAD + half, ka)
    tl.store(keys + position * HEAD + HALF + half, kb)
    tl.store(values + position * HEAD + whole, v.to(dtype))

    # The new key is in registers, so this does not wait for the stores above.
    top = tl.sum(qa.to(tl.float32) * ka.to(tl.float32)[None], 1) + tl.sum(
        qb.to(tl.float32) * kb.to(tl.float32)[None], 1
    )
    total = tl.full([GROUP], 1.0, tl.float32)
    acc = tl.zeros([GROUP, HEAD], tl.float32) + v.to(tl.float32)[None]
    for begin in range(0, position, BLOCK):
        index = begin + tl.arange(0, BLOCK)
        seen = index < position
        k_a = tl.load(keys + index[None] * HEAD + half[:, None], mask=seen[None], other=0.0)
        k_b = tl.load(keys + index[None] * HEAD + HALF + half[:, None], mask=seen[None], other=0.0)
        score = tl.dot(qa, k_a, input_precision="ieee") + tl.dot(qb, k_b, input_precision="ieee")
        score = tl.where(seen[None], score, float("-inf"))
        highest = tl.maximum(top, tl.max(score, 1))
        p = tl.exp2(score - highest[:, None])
        fade = tl.exp2(top - highest)
        total = total * fade + tl.sum(p, 1)
        v_block = tl.load(values + index[:, None] * HEAD + whole[None], mask=seen[:, None], other=0.0)
        acc = acc * fade[:, None] + tl.dot(p.to(dtype), v_block, input_precision="ieee")
        top = highest
    acc = acc / total[:, None]
    target = out + row.to(tl.int64) * HEADS * HEAD + (kv * PER + head)[:, None] * HEAD + whole[None]
    tl.store(target, acc.to(out.dtype.element_ty), mask=used)


def decode_attention(
    qkv: Tensor,
    cache: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
) -> Tensor:
    """Rotate, append to the cache and attend, for one new position per row.

    Args:
        qkv: ``(rows, (heads + 2 * kv_heads) * head_dim)``.
        cache: keys and values of a layer, ``(2, slots, kv_heads, max_length, head_dim)``; the new position is written.
        slots: ``(rows,)``, int64. positions: ``(slots,)``, int64: how many positions each slot holds.
        cos, sin: ``(max_length, head_dim / 2)``, fp32.

    Returns:
        ``(rows, heads * head_dim)``.
    """
    _, slots_total, kv_heads, max_length, head_dim = cache.shape
    rows = qkv.shape[0]
    out = torch.empty(rows, heads * head_dim, device=qkv.device, dtype=qkv.dtype)
    _decode_attention[(rows, kv_heads)](
        qkv, cache, slots, positions, cos, sin, out, slots_total, max_length,
        HEADS=heads, KV_HEADS=kv_heads, HALF=head_dim // 2, GROUP=16, BLOCK=256, num_warps=4,
        num_stages=2,
    )  # fmt: skip
    return out


@triton.jit
def _rotate_store(
    qkv, cache, slots, positions, cos, sin, slots_total, max_length,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    HEAD: tl.constexpr = 2 * HALF
    ALL: tl.constexpr = HEADS + 2 * KV_HEADS
    slot = tl.load(slots + line)
    position = tl.load(positions + line)
    half = tl.arange(0, HALF)[None]
    head = tl.arange(0, GROUP)[:, None]
    real = head < tl.where(position >= 0, ALL, 0)
    source = qkv + (line.to(tl.int64) * ALL + head) * HEAD + half
    a = tl.load(source, mask=real, other=0.0).to(tl.float32)
    b = tl.load(source + HALF, mask=real, other=0.0).to(tl.float32)
    turned = real & (head < HEADS + KV_HEADS)
    angle = tl.maximum(position, 0) * HALF + half
    c = tl.where(turned, tl.load(cos + angle), 1.0)
    s = tl.where(turned, tl.load(sin + angle), 0.0)
    a, b = a * c - b * s, b * c + a * s
    query = real & (head < HEADS)
    tl.store(source, a.to(qkv.dtype.element_ty), mask=query)
    tl.store(source + HALF, b.to(qkv.dtype.element_ty), mask=query)
    kind = (head - HEADS) // KV_HEADS
    row = (kind * slots_total + slot) * KV_HEADS + (head - HEADS) % KV_HEADS
    target = cache + (row.to(tl.int64) * max_length + position) * HEAD + half
    kept = real & (head >= HEADS)
    tl.store(target, a.to(cache.dtype.element_ty), mask=kept)
    tl.store(target + HALF, b.to(cache.dtype.element_ty), mask=kept)


def rotate_store(
    qkv: Tensor, cache: Tensor, slots: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, heads: int
) -> None:
    """Rotate the queries of prompts in place, and write rotated keys and values to the slots.

    Args:
        qkv: ``(lines, (heads + 2 * kv_heads) * head_dim)``.
        cache: of a layer, ``(2, slots, kv_heads, max_length, head_dim)``.
        slots, positions: of each line, ``(lines,)``, int64. A line with a negative position is padding and is skipped.
        cos, sin: ``(max_length, head_dim / 2)``, fp32.
    """
    _, slots_total, kv_heads, max_length, head_dim = cache.shape
    _rotate_store[(qkv.shape[0],)](
        qkv, cache, slots, positions, cos, sin, slots_total, max_length,
        HEADS=heads, KV_HEADS=kv_heads, HALF=head_dim // 2, GROUP=triton.next_power_of_2(heads + 2 * kv_heads),
        num_warps=2,
    )  # fmt: skip


@triton.jit
def _prompt_attention(
    qkv, cache, blocks, out, blocks_total, slots_total, max_length,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    block = blocks + tl.program_id(0)
    head = tl.program_id(1)
    ALL: tl.constexpr = HEADS + 2 * KV_HEADS
    slot = tl.load(block)
    first = tl.load(block + blocks_total)
    lines = (tl.load(block + 2 * blocks_total) - first).to(tl.int32)
    past = tl.load(block + 3 * blocks_total).to(tl.int32)
    query = tl.arange(0, ROWS)
    key = tl.arange(0, KEYS)
    channel = tl.arange(0, HEAD)
    real = (query < lines)[:, None]
    within = query[:, None] * ALL * HEAD + channel[None]
    q = tl.load(qkv + (first * ALL + head) * HEAD + within, mask=real, other=0.0)
    keys = cache + (slot * KV_HEADS + head // (HEADS // KV_HEADS)) * max_length * HEAD
    values = keys + slots_total.to(tl.int64) * KV_HEADS * max_length * HEAD
    end = past + tl.minimum(lines, ROWS)
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    full = tl.maximum(past + 1, 0) // KEYS * KEYS  # keys before this are seen by all queries
    for begin in tl.range(0, full, KEYS, num_stages=STAGES):
        place = (begin + key)[:, None] * HEAD + channel[None]
        acc, total, top = attend(q, tl.load(keys + place), tl.load(values + place), None, acc, total, top)
    for begin in tl.range(full, end, KEYS, num_stages=STAGES):
        index = begin + key
        place = index[:, None] * HEAD + channel[None]
        # Values after the prompt's end may be NaN, which a weight of 0 would not hide.
        here = (index < end)[:, None]
        k = tl.load(keys + place, mask=here, other=0.0)
        v = tl.load(values + place, mask=here, other=0.0)
        causal = tl.where(index[None] <= past + query[:, None], 0.0, float("-inf"))
        acc, total, top = attend(q, k, v, None, acc, total, top, causal)
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    target = out + (first * HEADS + head) * HEAD + query[:, None] * HEADS * HEAD + channel[None]
    tl.store(target, acc.to(out.dtype.element_ty), mask=real)


def prompt_attention(qkv: Tensor, cache: Tensor, blocks: Tensor, heads: int) -> Tensor:
    """Compute causal attention of concatenated prompts over the keys and values of their slots.

    The result does not depend on how a prompt is divided into blocks, nor on the other prompts.

    Args:
        qkv: ``(lines, (heads + 2 * kv_heads) * head_dim)``; only queries are read.
        cache: of a layer, ``(2, slots, kv_heads, max_length, head_dim)``, same dtype.
        blocks: ``(4, blocks)``, int64: slot, first line, end line of the prompt (exclusive), position of the first line
            (``lm.flat_prompts``). Each line is in one block, of up to 64 lines.

    Returns:
        ``(lines, heads * head_dim)``; 0 where the position is negative.
    """
    _, slots_total, kv_heads, max_length, head_dim = cache.shape
    out = torch.empty(qkv.shape[0], heads * head_dim, device=qkv.device, dtype=qkv.dtype)
    _prompt_attention[(blocks.shape[1], heads)](
        qkv, cache, blocks, out, blocks.shape[1], slots_total, max_length,
        HEADS=heads, KV_HEADS=kv_heads, HEAD=head_dim, ROWS=64, KEYS=64, STAGES=2, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _copy_positions(
    cache, sources, targets, counts, slots_total, max_length,
    KV_HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    part = tl.program_id(1)
    source = tl.load(sources + row)
    target = tl.load(targets + row)
    if (source >= 0) & (target >= 0):
        plane = part // KV_HEADS * slots_total
        old = cache + ((plane + source) * KV_HEADS + part % KV_HEADS) * max_length * HEAD
        new = cache + ((plane + target) * KV_HEADS + part % KV_HEADS) * max_length * HEAD
        count = tl.load(counts + row).to(tl.int32) * HEAD
        for begin in range(0, count, BLOCK):
            index = begin + tl.arange(0, BLOCK)
            tl.store(new + index, tl.load(old + index, mask=index < count), mask=index < count)


def copy_positions(cache: Tensor, sources: Tensor, targets: Tensor, counts: Tensor) -> None:
    """Copy the first positions of slots to other slots, in all layers.

    Args:
        cache: ``(layers, 2, slots, kv_heads, max_length, head_dim)``.
        sources, targets: slots, ``(rows,)``, int64. If one of them is -1, nothing is copied.
        counts: number of positions, ``(rows,)``, int64.
    """
    layers, _, slots_total, kv_heads, max_length, head_dim = cache.shape
    _copy_positions[(len(sources), layers * 2 * kv_heads)](
        cache, sources, targets, counts, slots_total, max_length,
        KV_HEADS=kv_heads, HEAD=head_dim, BLOCK=2048, num_warps=4,
    )  # fmt: skip


# -- diffusion transformer -----------------------------------------------------------------------------------------


def _line_warps(width: int, most: int) -> int:
    """Return the number of warps for the norm of a line. A short line is faster with one warp, which needs no
    synchronisation."""
    return 1 if width <= 256 else most


@triton.jit
def _gate_add_modulate(
    h, y, modulation, entry, out, n, stride, entries, gate, shift, scale, width, eps,
    HAS_Y: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    number = line // n
    if entry is not None:
        number = tl.load(entry + number % entries)
    table = modulation + number * stride + column
    x = tl.load(h + line * width + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_Y:
        g = tl.load(table + gate, mask=inside, other=0.0).to(tl.float32)
        x += g * tl.load(y + line * width + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(h + line * width + column, x, mask=inside)
    mean = tl.sum(x) / width
    d = tl.where(inside, x - mean, 0.0)
    x = d * tl.rsqrt(tl.sum(d * d) / width + eps)
    a = tl.load(table + scale, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(table + shift, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + line * width + column, (x * (1 + a) + b).to(out.dtype.element_ty), mask=inside)


def gate_add_modulate(
    h: Tensor,
    y: Tensor | None,
    modulation: Tensor,
    *,
    gate: int,
    shift: int,
    scale: int,
    eps: float,
    dtype: torch.dtype,
    entry: Tensor | None = None,
) -> Tensor:
    """Add ``gate * y`` to ``h`` in place (fp32) and return the sum after LayerNorm, scale and shift, ``(rows * n,
    width)``.

    Args:
        h: ``(rows, n, width)``, fp32 (without ``y``: any dtype); y: the same shape, any dtype.
        modulation: ``(entries, table)``; gate, shift, scale: the first column of each in the table.
        entry: table entries of the rows, int64: row ``i`` uses ``entry[i % len(entry)]``. None: row ``i`` uses entry
            ``i``.
    """
    rows, n, width = h.shape
    out = empty_lines(rows * n, width, device=h.device, dtype=dtype)
    # One line per program is faster than several, which would share the table.
    _gate_add_modulate[(rows * n,)](
        h, y, modulation, entry, out, n, modulation.stride(0), 1 if entry is None else len(entry), gate, shift, scale,
        width, eps, HAS_Y=y is not None, BLOCK=triton.next_power_of_2(width), num_warps=_line_warps(width, 8),
    )  # fmt: skip
    return out


def join_branches(x: Tensor, *conditions: Tensor, dtype: torch.dtype) -> Tensor:
    """Concatenate a state and its conditions, for both branches of the guidance.

    Args:
        x: ``(rows, n, channels)``; conditions: the same.

    Returns:
        ``(2 * rows, n, any)``: the conditioned rows, then the unconditioned ones, with zeros after the state.
        ``guided_step`` writes the next states into it.
    """
    rows, n, channels = x.shape
    joined = torch.zeros(2 * rows, n, (1 + len(conditions)) * channels, device=x.device, dtype=dtype)
    torch.cat([part.to(dtype) for part in (x, *conditions)], -1, out=joined[:rows])
    joined[rows:, :, :channels] = x
    return joined


@triton.jit
def _guided_step(
    v, x, joined, widths, step, rows, n, rate, CHANNELS: tl.constexpr, JOINED: tl.constexpr, LINES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1)
    frame = tl.program_id(0) * LINES + tl.arange(0, LINES)
    channel = tl.arange(0, BLOCK)
    here = (frame < n)[:, None] & (channel < CHANNELS)[None]
    line = (row * n + frame)[:, None].to(tl.int64)
    other = line + rows * n
    place = line * CHANNELS + channel[None]
    conditioned = tl.load(v + place, mask=here, other=0.0).to(tl.float32)
    free = tl.load(v + other * CHANNELS + channel[None], mask=here, other=0.0).to(tl.float32)
    width = tl.load(widths + tl.load(step + row))
    moved = tl.load(x + place, mask=here, other=0.0) + width * ((1 + rate) * conditioned - rate * free)
    tl.store(x + place, moved, mask=here)
    moved = moved.to(joined.dtype.element_ty)
    tl.store(joined + line * JOINED + channel[None], moved, mask=here)
    tl.store(joined + other * JOINED + channel[None], moved, mask=here)


def guided_step(v: Tensor, x: Tensor, joined: Tensor, widths: Tensor, step: Tensor, rate: float) -> None:
    """Take one Euler step in place: ``x += widths[step] * ((1 + rate) * v_conditioned - rate * v_unconditioned)``.

    Args:
        v: ``(2 * rows, n, channels)``, conditioned rows first. x: ``(rows, n, channels)``, fp32.
        joined: ``(2 * rows, n, any)``; the first channels of both branches get the new state.
        widths: ``(steps,)``, fp32. step: ``(rows,)``, int64.
    """
    rows, n, channels = x.shape
    _guided_step[(triton.cdiv(n, 8), rows)](
        v, x, joined, widths, step, rows, n, rate,
        CHANNELS=channels, JOINED=joined.shape[2], LINES=8, BLOCK=triton.next_power_of_2(channels), num_warps=4,
    )  # fmt: skip


@triton.jit
def _turn(x, cos, sin, position, HALF: tl.constexpr):
    """Apply interleaved rotary positions to ``(ROWS, 2 * HALF)``."""
    angle = position[:, None] * HALF + tl.arange(0, HALF)[None]
    c, s = tl.load(cos + angle), tl.load(sin + angle)
    a, b = tl.split(tl.reshape(x.to(tl.float32), [x.shape[0], HALF, 2]))
    return tl.interleave(a * c - b * s, b * c + a * s).to(x.dtype)


@triton.jit
def attend(q, k, v, seen, acc, total, top, bias=None):
    """Add keys and values ``(KEYS, HEAD)``, where ``seen``, to the running sums of a base-2 softmax. ``bias`` is added
    to the products of queries and keys."""
    score = tl.dot(q, tl.trans(k), input_precision="ieee")
    if bias is not None:
        score += bias
    if seen is not None:
        score = tl.where(seen[None], score, float("-inf"))
    scale: tl.constexpr = 1.4426950408889634 / (q.shape[1] ** 0.5)
    highest = tl.maximum(top, tl.max(score, 1) * scale)
    p = tl.exp2(score * scale - highest[:, None])
    fade = tl.exp2(top - highest)
    acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
    return acc, total * fade + tl.sum(p, 1), highest


@triton.jit
def _chunk_attention(
    qkv, keys, values, pages, start, length, cos, sin, out, n, pages_per_row,
    HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    row = tl.program_id(1)
    WIDTH: tl.constexpr = HEADS * HEAD
    past = tl.load(start + row)
    frame = tl.arange(0, ROWS)
    channel = tl.arange(0, HEAD)
    real = frame < tl.load(length + row)
    line = row.to(tl.int64) * n + frame
    source = qkv + line[:, None] * 3 * WIDTH + head * HEAD + channel[None]
    q = tl.load(source, mask=real[:, None], other=0.0)
    k = tl.load(source + WIDTH, mask=real[:, None], other=0.0)
    v = tl.load(source + 2 * WIDTH, mask=real[:, None], other=0.0)
    if cos is not None:
        if head == 0:
            position = past + tl.minimum(frame, PAGE - 1)
            q = _turn(q, cos, sin, position, HEAD // 2)
            k = _turn(k, cos, sin, position, HEAD // 2)
    pages += row * pages_per_row
    older = (past // PAGE).to(tl.int32)
    within = frame[:, None] * WIDTH + head * HEAD + channel[None]
    place = tl.load(pages + older) * PAGE * WIDTH + within
    tl.store(keys + place, k, mask=real[:, None])
    tl.store(values + place, v, mask=real[:, None])

    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    acc, total, top = attend(q, k, v, real, acc, total, top)
    key = tl.arange(0, KEYS)
    inside = key < PAGE
    older_within = key[:, None] * WIDTH + head * HEAD + channel[None]
    for number in tl.range(0, older, num_stages=STAGES):
        older_place = tl.load(pages + number) * PAGE * WIDTH + older_within
        older_k = tl.load(keys + older_place, mask=inside[:, None], other=0.0)
        older_v = tl.load(values + older_place, mask=inside[:, None], other=0.0)
        acc, total, top = attend(q, older_k, older_v, inside, acc, total, top)
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    target = out + line[:, None] * WIDTH + head * HEAD + channel[None]
    tl.store(target, acc.to(out.dtype.element_ty), mask=(frame < n)[:, None])


_TILE = 64
"""Frames in a tile of queries; at least a page."""


_FEW_ROWS = 16
"""Up to this many rows, all heads run at once with two programs per multiprocessor."""


def chunk_attention(qkv: Tensor, store: Tensor, span: Any, turn: tuple[Tensor, Tensor] | None, heads: int) -> Tensor:
    """Rotate head 0, write keys and values to their page, and attend over this and all earlier pages. One chunk per
    row.

    Args:
        qkv: ``(rows, n, 3 * width)``; ``n`` up to a page.
        store: keys and values of a layer, ``(2, pages, page_frames, width)``, same dtype.
        span: ``streaming.Span`` with pages.
        turn: cosine and sine by position, ``(positions, head_dim / 2)``, fp32. None: no head is rotated.

    Returns:
        ``(rows * n, width)``; finite beyond each row's length.
    """
    rows, n, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    page_frames = store.shape[2]
    assert n <= page_frames <= _TILE, f"{n} frames for pages of {page_frames} and tiles of {_TILE}"
    out = empty_lines(rows * n, width, device=qkv.device, dtype=qkv.dtype)
    cos, sin = turn or (None, None)
    # Few rows are bound by latency, so many pages are loaded ahead. With many rows, two stages and 128 registers let
    # four programs share a multiprocessor, so that 32 rows of 16 heads run at once on an H200.
    stages, registers = (5, None) if rows <= _FEW_ROWS else (2, 128)
    _chunk_attention[(heads, rows)](
        qkv, store[0], store[1], span.pages, span.start, span.length, cos, sin, out, n, span.pages.shape[1],
        HEADS=heads, HEAD=width // heads, PAGE=page_frames, ROWS=32 if n <= 32 else _TILE, KEYS=_TILE, STAGES=stages,
        num_warps=4, maxnreg=registers,
    )  # fmt: skip
    return out


@triton.jit
def _turn_first_head(qkv, cos, sin, n, WIDTH: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr):
    frame = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)  # queries, keys
    x = qkv + (row * n + frame)[:, None] * 3 * WIDTH + part * WIDTH + tl.arange(0, HEAD)[None]
    inside = (frame < n)[:, None]
    turned = _turn(tl.load(x, mask=inside, other=0.0), cos, sin, tl.minimum(frame, n - 1), HEAD // 2)
    tl.store(x, turned, mask=inside)


@triton.jit
def _whole_attention(
    qkv, length, out, n,
    HEADS: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    WIDTH: tl.constexpr = HEADS * HEAD
    end = tl.load(length + row).to(tl.int32)
    end = tl.where(block * ROWS < end, end, 0)
    frame = block * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, HEAD)
    base = qkv + row * n * 3 * WIDTH + head * HEAD
    q = tl.load(base + frame[:, None] * 3 * WIDTH + channel[None], mask=(frame < end)[:, None], other=0.0)
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    # The last, partial tile of keys comes first; all others are full.
    full = tl.maximum(tl.cdiv(end, KEYS) - 1, 0) * KEYS
    key = full + tl.arange(0, KEYS)
    seen = key < end
    place = base + key[:, None] * 3 * WIDTH + channel[None]
    k = tl.load(place + WIDTH, mask=seen[:, None], other=0.0)
    v = tl.load(place + 2 * WIDTH, mask=seen[:, None], other=0.0)
    acc, total, top = attend(q, k, v, seen, acc, total, top)
    for begin in tl.range(0, full, KEYS, num_stages=STAGES):
        place = base + (begin + tl.arange(0, KEYS))[:, None] * 3 * WIDTH + channel[None]
        acc, total, top = attend(q, tl.load(place + WIDTH), tl.load(place + 2 * WIDTH), None, acc, total, top)
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    target = out + (row * n + frame)[:, None] * WIDTH + head * HEAD + channel[None]
    tl.store(target, acc.to(out.dtype.element_ty), mask=(frame < n)[:, None])


def whole_attention(qkv: Tensor, length: Tensor, turn: tuple[Tensor, Tensor] | None, heads: int) -> Tensor:
    """Rotate head 0, then compute full attention of each row over its first ``length`` frames.

    Args:
        qkv: ``(rows, n, 3 * width)``; changed in place.
        length: ``(rows,)``, int64.
        turn: as in ``chunk_attention``.

    Returns:
        ``(rows * n, width)``; finite beyond ``length``.
    """
    rows, n, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out = empty_lines(rows * n, width, device=qkv.device, dtype=qkv.dtype)
    if turn is not None:
        grid = (triton.cdiv(n, 16), rows, 2)
        _turn_first_head[grid](qkv, *turn, n, WIDTH=width, HEAD=width // heads, ROWS=16, num_warps=1)
    _whole_attention[(triton.cdiv(n, _TILE), heads, rows)](
        qkv, length, out, n,
        HEADS=heads, HEAD=width // heads, ROWS=_TILE, KEYS=64, STAGES=3, num_warps=4,
    )  # fmt: skip
    return out


def span_attention(qkv: Tensor, span: Any, layer: int, turn: tuple[Tensor, Tensor] | None, heads: int) -> Tensor:
    """Compute a layer's attention over the keys of a ``streaming.Span``: a chunk with its pages, or a whole
    sequence."""
    if span.keys is None:
        return whole_attention(qkv, span.length, turn, heads)
    return chunk_attention(qkv, span.keys.data[layer], span, turn, heads)


@triton.jit
def _grouped_conv(
    x, tail, slots, weight, bias, residual, out, n, width, taps,
    GROUP: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    group = tl.program_id(1)
    row = tl.program_id(2)
    frame = block * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, GROUP)
    past = taps - 1
    x += row.to(tl.int64) * n * width
    if tail is not None:
        tail += (tl.load(slots + row) + 1) * past * width  # end of the tail
    within = frame[:, None] * width + group * GROUP + channel[None]
    square = channel[:, None] * GROUP + channel[None]
    weight += group * taps * GROUP * GROUP
    acc = tl.zeros([ROWS, GROUP], tl.float32)
    for tap in range(taps):
        source = frame + (tap - past)
        place = within + (tap - past) * width
        part = tl.load(x + place, mask=((source >= 0) & (source < n))[:, None], other=0.0)
        if tail is not None:
            old = tl.load(tail + place, mask=(source < 0)[:, None], other=0.0)
            part = tl.where((source < 0)[:, None], old.to(part.dtype), part)
        acc += tl.dot(part, tl.load(weight + tap * GROUP * GROUP + square), input_precision="ieee")
    acc += tl.load(bias + group * GROUP + channel).to(tl.float32)[None]
    # mish(x) = x tanh(softplus(x)), with e = exp(x): x (e^2 + 2e) / (e^2 + 2e + 2)
    e = tl.exp(tl.minimum(acc, 20.0))
    acc = acc * (e * e + 2 * e) / (e * e + 2 * e + 2)
    target = (row * n + frame)[:, None].to(tl.int64) * width + group * GROUP + channel[None]
    mask = (frame < n)[:, None]
    if ADD:
        acc += tl.load(residual + target, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + target, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _keep_tail(x, tail, slots, length, n, width, past, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + row)
    index = tl.arange(0, ROWS)
    source = index + tl.load(length + row) - past
    inside = (index < past)[:, None] & (column < width)[None]
    here = (row * n + source)[:, None].to(tl.int64) * width + column[None]
    before = (slot * past + source + past)[:, None].to(tl.int64) * width + column[None]
    now = tl.load(x + here, mask=inside & (source >= 0)[:, None], other=0.0)
    old = tl.load(tail + before, mask=inside & (source < 0)[:, None], other=0.0)
    tl.debug_barrier()  # with a short feed, part of the tail moves within the tail
    value = tl.where((source < 0)[:, None], old, now.to(old.dtype))
    tl.store(tail + (slot * past + index)[:, None].to(tl.int64) * width + column[None], value, mask=inside)


def grouped_conv_mish(
    x: Tensor, tail: Tensor | None, span: Any, weight: Tensor, bias: Tensor, residual: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Compute a causal grouped convolution with its tail, then Mish, and optionally add a residual.

    Args:
        x: ``(rows, n, width)``. tail: ``(slots, taps - 1, width)``, updated with each row's last inputs. None: zeros.
        weight: ``(groups, taps, in, out)``. bias: ``(width,)``.
    """
    rows, n, width = x.shape
    groups, taps, group, _ = weight.shape
    out = torch.empty(rows, n, width, device=x.device, dtype=dtype)
    # The taps are sequential. For a single clause, many programs with small products are faster on a GPU.
    tile, stages = (16, 5) if x.is_cuda and rows * n <= 100 else (64, 3)
    _grouped_conv[(triton.cdiv(n, tile), groups, rows)](
        x, tail, span.slots, weight, bias, residual, out, n, width, taps,
        GROUP=group, ROWS=tile, ADD=residual is not None, num_warps=4, num_stages=stages,
    )  # fmt: skip
    if tail is not None:
        _keep_tail[(rows, triton.cdiv(width, 64))](
            x, tail, span.slots, span.length, n, width, taps - 1,
            ROWS=triton.next_power_of_2(taps - 1), BLOCK=64, num_warps=2,
        )  # fmt: skip
    return out


# -- causal U-Net --------------------------------------------------------------------------------------------------


@triton.jit
def _unfold_three(
    x, y, tail, slots, length, out, n, width, tail_stride,
    HAS_Y: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    older = tl.zeros([BLOCK], tl.float32)
    old = older
    if tail is not None:
        kept = tail + tl.load(slots + row) * tail_stride + column
        older = tl.load(kept, mask=inside, other=0.0).to(tl.float32)
        old = tl.load(kept + width, mask=inside, other=0.0).to(tl.float32)
    block = tl.program_id(2)
    frame = block * ROWS + tl.arange(0, ROWS)
    for tap in tl.static_range(3):
        source = frame + tap - 2
        here = (row * n + source)[:, None] * width + column[None]
        real = ((source >= 0) & (source < n))[:, None] & inside[None]
        value = tl.load(x + here, mask=real, other=0.0).to(tl.float32)
        if HAS_Y:
            value += tl.load(y + here, mask=real, other=0.0).to(tl.float32)
        value = tl.where((source == -2)[:, None], older[None], value)
        value = tl.where((source == -1)[:, None], old[None], value)
        target = out + ((row * n + frame) * 3 + tap)[:, None] * width + column[None]
        tl.store(target, value.to(out.dtype.element_ty), mask=(frame < n)[:, None] & inside[None])
    if tail is not None:
        if block == 0:  # only block 0 reads the old tail
            tl.debug_barrier()
            end = tl.load(length + row)
            for index in tl.static_range(2):
                before = end - 2 + index + tl.zeros_like(column)
                place = (row * n + before) * width + column
                last = tl.load(x + place, mask=inside & (before >= 0), other=0.0).to(tl.float32)
                if HAS_Y:
                    last += tl.load(y + place, mask=inside & (before >= 0), other=0.0).to(tl.float32)
                last = tl.where(before == -2, older, last)
                last = tl.where(before == -1, old, last)
                tl.store(kept + index * width, last.to(tail.dtype.element_ty), mask=inside)


def unfold_three(x: Tensor, y: Tensor | None, tail: Tensor | None, span: Any, dtype: torch.dtype) -> Tensor:
    """Concatenate each frame of ``x + y`` with the two frames before it, oldest first. Update the tail.

    Args:
        x: ``(rows, n, width)``; y: ``(rows * n, width)``. tail: ``(slots, 2, width)``, any stride of slots.
            None: zeros.

    Returns:
        ``(rows * n, 3 * width)``.
    """
    x = x.contiguous()
    rows, n, width = x.shape
    out = empty_lines(rows * n, 3 * width, device=x.device, dtype=dtype)
    _unfold_three[(rows, triton.cdiv(width, 64), triton.cdiv(n, 16))](
        x, y, tail, span.slots, span.length, out, n, width, 0 if tail is None else tail.stride(0),
        HAS_Y=y is not None, ROWS=16, BLOCK=64, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _norm_mish(
    x, weight, bias, shift, residual, out, n, stride, shift_stride, residual_stride, width, eps,
    HAS_SHIFT: tl.constexpr, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    v = tl.load(x + line * stride + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(v) / width
    d = tl.where(inside, v - mean, 0.0)
    v = d * tl.rsqrt(tl.sum(d * d) / width + eps)
    v = v * tl.load(weight + column, mask=inside, other=0.0) + tl.load(bias + column, mask=inside, other=0.0)
    # mish(x) = x tanh(softplus(x)), with e = exp(x): x (e^2 + 2e) / (e^2 + 2e + 2)
    e = tl.exp(tl.minimum(v, 20.0))
    v = v * (e * e + 2 * e) / (e * e + 2 * e + 2)
    if HAS_SHIFT:
        v += tl.load(shift + (line // n) * shift_stride + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        v += tl.load(residual + line * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + line * width + column, v.to(out.dtype.element_ty), mask=inside)


def norm_mish(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dtype: torch.dtype,
    *,
    shift: Tensor | None = None,
    n: int = 1,
    residual: Tensor | None = None,
) -> Tensor:
    """Compute LayerNorm and Mish of ``(lines, width)``, then add a shift and a residual.

    Args:
        x, residual: last axis contiguous. weight, bias: fp32.
        shift: ``(rows, width)``, one row for each ``n`` lines.
    """
    lines, width = x.shape
    out = torch.empty(lines, width, device=x.device, dtype=dtype)
    _norm_mish[(lines,)](
        x, weight, bias, shift, residual, out, n, x.stride(0), 0 if shift is None else shift.stride(0),
        0 if residual is None else residual.stride(0), width, eps,
        HAS_SHIFT=shift is not None, HAS_RESIDUAL=residual is not None,
        BLOCK=triton.next_power_of_2(width), num_warps=_line_warps(width, 4),
    )  # fmt: skip
    return out
