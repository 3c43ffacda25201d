# mypy: ignore-errors
"""Triton kernels of the vocoders, channels-last, ``(rows, n, channels)``.

The input of a convolution is already activated and padded, in fp16. The convolution is an implicit GEMM, and the same
launch does everything up to the activation for the next convolution. Fp16 has as many mantissa bits as TF32; sums and
the residual path are fp32.

The padding is zeros on both sides (CosyVoice2) or each row's tail at the start (CosyVoice3). A launch writes the
padding for the next convolution, which then stores the end of its input as the new tail. So no launch reads what it
writes, and a feed may be shorter than the tail.

Shapes are fixed and lengths come from device memory, so that calls can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _activated(x, alpha, slope, SNAKE: tl.constexpr):
    """Activate and clamp to the range of fp16. ``tl.minimum`` and ``tl.maximum`` would turn NaN into a number."""
    if SNAKE:
        # sin^2 has the period pi. A polynomial (relative error 1e-6) avoids the large slow path of tl.sin.
        turn = x * (alpha * 0.3183098861837907)
        turn -= tl.floor(turn + 0.5)
        u = turn * turn
        s = turn * (3.14159026 + u * (-5.16740577 + u * (2.54400022 + u * -0.559435)))
        x += s * s * (1.0 / (alpha + 1e-9))
    else:
        x = tl.where(x < 0, x * slope, x)
    x = tl.where(x > 65504.0, 65504.0, x)
    return tl.where(x < -65504.0, -65504.0, x).to(tl.float16)


@triton.jit
def _activate(
    x, alpha, tail, slots, count, out, n, width, channels, slope,
    PAST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    row = tl.program_id(2).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (column < channels)[None]
    a = tl.zeros([BLOCK], tl.float32)
    if alpha is not None:
        a = tl.load(alpha + column, mask=column < channels, other=0.0)
    index = block * ROWS + tl.arange(0, ROWS)
    mask = (index < n)[:, None] & inside
    real = mask
    if count is not None:
        real &= (index < tl.load(count + row))[:, None]
    v = tl.load(x + (row * n + index)[:, None] * channels + column[None], mask=real, other=0.0)
    around = width
    if tail is None:
        around = width * 2
    line = out + row * (n + around) * channels + column[None]
    tl.store(line + (width + index)[:, None] * channels, _activated(v, a[None], slope, alpha is not None), mask=mask)
    if block == 0:
        past = tl.arange(0, PAST)
        edge = (past < width)[:, None] & inside
        if tail is not None:
            before = (tl.load(slots + row) * width + past)[:, None] * channels + column[None]
            tl.store(line + past[:, None] * channels, tl.load(tail + before, mask=edge, other=0.0), mask=edge)
        else:
            zeros = tl.zeros([PAST, BLOCK], tl.float16)
            tl.store(line + past[:, None] * channels, zeros, mask=edge)
            tl.store(line + (width + n + past)[:, None] * channels, zeros, mask=edge)


class Activation(NamedTuple):
    """The activation before a convolution, and the padding of its result."""

    tail: Tensor | None
    """The convolution's activated inputs before this feed: ``(slots, width, channels)``, fp16. None: zeros on both
    sides."""
    alpha: Tensor | None
    """Snake's alpha, ``(channels,)``, fp32. None: leaky ReLU."""
    slope: float
    padding: int = 0
    """Number of zeros on each side."""

    @property
    def width(self) -> int:
        """Number of positions of padding at the start."""
        return self.padding if self.tail is None else self.tail.shape[1]

    def room(self, rows: int, n: int, channels: int, device: torch.device) -> Tensor:
        """Return an empty tensor for ``n`` inputs per row and their padding."""
        around = 2 * self.padding if self.tail is None else self.width
        return torch.empty(rows, around + n, channels, device=device, dtype=torch.float16)


def activate(x: Tensor, activation: Activation, *, slots: Tensor | None = None, count: Tensor | None = None) -> Tensor:
    """Activate ``x`` and pad it for a convolution.

    Args:
        x: ``(rows, n, channels)``, fp32.
        slots: ``(rows,)``, int64: slots of the tails.
        count: ``(rows,)``, int64: number of real inputs of each row; zeros follow. None: all inputs are real.

    Returns:
        ``(rows, width + n, channels)``, or with zeros on both sides ``(rows, 2 * width + n, channels)``, fp16. Values
        are clamped to its range.
    """
    x = x.contiguous()
    rows, n, channels = x.shape
    width = activation.width
    out = activation.room(rows, n, channels, x.device)
    block = min(triton.next_power_of_2(channels), 64)
    _activate[(triton.cdiv(n, 32), triton.cdiv(channels, block), rows)](
        x, activation.alpha, activation.tail, slots, count, out, n, width, channels, activation.slope,
        PAST=triton.next_power_of_2(max(width, 1)), ROWS=32, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


class Tile(NamedTuple):
    """The share of one program in a convolution."""

    positions: int
    outputs: int
    inputs: int
    """Inputs of one step; there are ``taps * c_in / inputs`` steps."""
    warps: int
    stages: int


_PROCESSORS = 132
"""Multiprocessors of an H200."""


def choose_tile(rows: int, n: int, c_in: int, c_out: int) -> Tile:
    """Return a wide tile, which reads less, or a narrower one if there would be too few programs for an H200."""
    outputs = min(c_out & -c_out, 128)  # a power of two that divides c_out
    inputs = min(c_in & -c_in, 64)
    positions = 64
    while outputs > 32 and rows * triton.cdiv(n, positions) * (c_out // outputs) < _PROCESSORS // 2:
        outputs //= 2
    return Tile(positions, outputs, inputs, warps=4, stages=4)


@triton.jit
def _convolve(
    x, weight, bias, residual, out, tail, then, then_tail, alpha, slots, frames, count,
    n, x_row, out_row, taps, dilation, rate, then_width, scale, slope,
    C_IN: tl.constexpr, C_OUT: tl.constexpr, ADD: tl.constexpr,
    POSITIONS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    column = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    position = block * POSITIONS + tl.arange(0, POSITIONS)
    channel = column * OUTPUTS + tl.arange(0, OUTPUTS)
    inner = tl.arange(0, INPUTS)
    x += row * x_row
    # Positions after the end read the last one, so loads need no mask.
    inputs = x + tl.minimum(position, n - 1)[:, None] * C_IN + inner[None]
    weights = weight + inner[:, None] * C_OUT + channel[None]
    PER_TAP: tl.constexpr = C_IN // INPUTS
    acc = tl.zeros([POSITIONS, OUTPUTS], tl.float32)
    for step in range(taps * PER_TAP):
        a = tl.load(inputs + step // PER_TAP * dilation * C_IN + step % PER_TAP * INPUTS)
        w = tl.load(weights + step * INPUTS * C_OUT)
        acc = tl.dot(a, w, acc)
    acc += tl.load(bias + channel)[None]
    mask = (position < n)[:, None]
    place = position[:, None] * C_OUT + channel[None]
    if residual is not None:
        acc += tl.load(residual + row * n * C_OUT + place, mask=mask, other=0.0)
    acc *= scale
    if out is not None:
        target = out + row * out_row + place
        if ADD:
            acc += tl.load(target, mask=mask, other=0.0)
        tl.store(target, acc, mask=mask)
    if then is not None:
        alphas = tl.zeros([OUTPUTS], tl.float32)
        if alpha is not None:
            alphas = tl.load(alpha + channel)
        around = then_width
        if then_tail is None:
            around = then_width * 2
        line = then + row * (n + around) * C_OUT
        if count is not None:
            acc = tl.where((position < tl.load(count + row))[:, None], acc, 0.0)  # the activation of zero is zero
        value = _activated(acc, alphas[None], slope, alpha is not None)
        tl.store(line + then_width * C_OUT + place, value, mask=mask)
        if block == 0:
            edge = (position < then_width)[:, None]
            if then_tail is not None:
                before = then_tail + tl.load(slots + row) * then_width * C_OUT
                tl.store(line + place, tl.load(before + place, mask=edge, other=0.0), mask=edge)
            else:
                zeros = tl.zeros([POSITIONS, OUTPUTS], tl.float16)
                tl.store(line + place, zeros, mask=edge)
                tl.store(line + (then_width + n) * C_OUT + place, zeros, mask=edge)
    if tail is not None:
        if block == 0:
            width = (taps - 1) * dilation
            store = tail + tl.load(slots + row) * width * C_IN
            last = x + tl.load(frames + row) * rate * C_IN
            for first in range(column * OUTPUTS, C_IN, C_OUT):
                input = first + tl.arange(0, OUTPUTS)[None]
                kept = (position < width)[:, None] & (input < C_IN)
                place = position[:, None] * C_IN + input
                tl.store(store + place, tl.load(last + place, mask=kept, other=0.0), mask=kept)


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    dilation: int = 1,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    scale: float = 1.0,
    add: bool = False,
    tail: Tensor | None = None,
    slots: Tensor | None = None,
    frames: Tensor | None = None,
    rate: int = 1,
    count: Tensor | None = None,
    then: Activation | None = None,
    tile: Tile | None = None,
) -> Tensor | None:
    """Write ``scale * (convolution + bias + residual)`` to ``out``, or add it, and activate it for the next
    convolution.

    Args:
        x: ``(rows, (taps - 1) * dilation + n, c_in)``, fp16, padding included; rows need not be adjacent.
        weight: ``(taps, c_in, c_out)``, fp16; channels are multiples of 16. bias: ``(c_out,)``, fp32.
        residual: ``(rows, n, c_out)``, fp32.
        out: like ``residual``, but rows need not be adjacent. None: only the activated result is needed.
        tail: gets the end of ``x``, ``(slots, (taps - 1) * dilation, c_in)``, fp16. None: the end is not stored. Rows
            end at ``frames * rate``.
        slots, frames: ``(rows,)``, int64: for ``tail`` and for the tail of ``then``.
        count: ``(rows,)``, int64: number of real results of each row; ``then`` gets zeros after them. None: all are
            real.
        then: activation of the convolution that reads the result.
        tile: replaces the tile of ``choose_tile``.

    Returns:
        The result as ``activate`` makes it for ``then``. None: there is no ``then``.
    """
    taps, c_in, c_out = weight.shape
    rows, n = x.shape[0], x.shape[1] - (taps - 1) * dilation
    activated = None if then is None else then.room(rows, n, c_out, x.device)
    following = then or Activation(None, None, 0.0)
    tile = tile or choose_tile(rows, n, c_in, c_out)
    assert (
        max(0 if tail is None else tail.shape[1], following.width) <= tile.positions
    )  # the first tile copies the tails
    _convolve[(triton.cdiv(n, tile.positions), c_out // tile.outputs, rows)](
        x, weight, bias, residual, out, tail, activated, following.tail, following.alpha, slots, frames, count,
        n, x.stride(0), 0 if out is None else out.stride(0),
        taps, dilation, rate, following.width, scale, following.slope,
        C_IN=c_in, C_OUT=c_out, ADD=add, POSITIONS=tile.positions, OUTPUTS=tile.outputs, INPUTS=tile.inputs,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return activated
