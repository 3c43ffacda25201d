# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Triton kernels of repetition-aware sampling: the rule of ``tts_engine.cosyvoice.sampling`` in one launch, for the
slots of ``CudaLm`` (``sample``) and for vLLM's logits (``leave_only_drawn``).

vLLM's processes import this module, so it imports only Triton, torch and the networks' configuration.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from tts_engine.cosyvoice.models.config import SamplingConfig


@triton.jit
def _mix(z):
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@triton.jit
def _uniform(seed, counter):
    z = _mix(_mix(seed) + counter * -0x61C8864680B583EB)
    return ((z >> 11) & 0x1FFFFFFFFFFFFF).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _logits(place, inside):
    """Return a row's logits as fp32, and True if it has NaN or infinity; the logits are then all 0."""
    x = tl.load(place, mask=inside, other=float("-inf")).to(tl.float32)
    broken = tl.sum(((x != x) | (x == float("inf"))).to(tl.int32)) > 0
    return tl.where(broken, 0.0, x), broken


@triton.jit
def _drawn(
    x, column, ring, seed, step, least_repeats,
    TOP_P: tl.constexpr, TOP_K: tl.constexpr, PLACES: tl.constexpr, WINDOW: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Return the id drawn for the row ``x``. ``ring``: pointer to its last ids."""
    e = tl.exp(x - tl.max(x))
    enough = tl.sum(e.to(tl.float64)) * TOP_P  # TOP_P is a constexpr, because an argument would be rounded to fp32
    place = tl.arange(0, PLACES)
    kept = tl.zeros([PLACES], tl.float64)
    chosen = tl.zeros([PLACES], tl.int32)
    rest = e
    mass = enough * 0
    for k in range(TOP_K):
        if mass < enough:
            best = tl.argmax(rest, 0)
            value = tl.max(rest).to(tl.float64)
            kept = tl.where(place == k, value, kept)
            chosen = tl.where(place == k, best, chosen)
            mass += value
            rest = tl.where(column == best, -1.0, rest)
    share = tl.cumsum(kept)
    all_kept = tl.sum(kept)
    index = tl.sum((share <= _uniform(seed, 2 * step + 1) * all_kept).to(tl.int32))
    index = tl.minimum(index, tl.sum((kept > 0).to(tl.int32)) - 1)
    token = tl.sum(tl.where(place == index, chosen, 0))
    back = tl.arange(0, BACK)
    last = tl.load(ring + back, mask=back < WINDOW, other=-1)
    if tl.sum((last == token).to(tl.int32)) >= least_repeats:
        x = tl.where(column == token, float("-inf"), x)
        most = tl.max(x)
        if most > float("-inf"):
            others = tl.exp(x - most).to(tl.float64)
            shares = tl.cumsum(others)
            second = tl.sum((shares <= _uniform(seed, 2 * step + 2) * tl.sum(others)).to(tl.int32))
            final = tl.max(tl.where(others > 0, column, 0))
            token = tl.minimum(second, final)
    return token


@triton.jit
def _sample(
    logits, slots, seeds, steps, least, rings, positions, last, draws, tokens, stride, ids, first_stop, fill,
    max_length, least_repeats, ADVANCE: tl.constexpr, TOP_P: tl.constexpr, TOP_K: tl.constexpr,
    PLACES: tl.constexpr, WINDOW: tl.constexpr, BACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    step = tl.load(steps + slot)
    seed = tl.load(seeds + slot)
    column = tl.arange(0, BLOCK)
    x, broken = _logits(logits + row.to(tl.int64) * stride + column, column < ids)
    early = tl.load(least + slot)
    masked = (step < early) | ((early < 0) & (column != fill))
    x = tl.where((column >= first_stop) & masked, float("-inf"), x)
    x = tl.where(column < ids, x, float("-inf"))
    ring = rings + slot * WINDOW
    token = _drawn(x, column, ring, seed, step, least_repeats, TOP_P, TOP_K, PLACES, WINDOW, BACK)
    draw = tl.load(draws + slot)
    drawn = tl.where(draw >= 0, draw, token.to(tl.int64))
    # A broken row gives id -1, and the host fails only that request.
    tl.store(tokens + row, tl.where(broken, -1, drawn))
    if draw != -2:  # lm.api.FEED draws nothing
        tl.store(last + slot, drawn)
        tl.store(ring + step % WINDOW, drawn)
        tl.store(steps + slot, step + 1)
    position = tl.load(positions + slot) + ADVANCE
    tl.store(positions + slot, tl.minimum(position, max_length - 1))


def _constants(sampling: SamplingConfig, ids: int) -> dict[str, Any]:
    return {
        "TOP_P": sampling.top_p,
        "TOP_K": sampling.top_k,
        "PLACES": triton.next_power_of_2(sampling.top_k),
        "WINDOW": sampling.window,
        "BACK": triton.next_power_of_2(sampling.window),
        "BLOCK": triton.next_power_of_2(ids),
        "num_warps": 8,
    }


def sample(
    logits: Tensor, slots: Tensor, state: Any, tokens: Tensor, sampling: SamplingConfig,
    *, ids: int, first_stop: int, fill: int, advance: bool,
) -> None:  # fmt: skip
    """Draw one id per row by the rule of ``sampling.ras`` into ``tokens`` ``(rows,)``; -1: NaN.

    Only the first ``ids`` columns of ``logits`` are used. For ``state.draws`` and ``state.least`` see ``lm.api.Input``.

    ``state`` (``cuda_steps.SlotState``) is updated: step, ring of the last ids, last id, and with ``advance`` the
    position.
    """
    rows, stride = logits.shape
    _sample[(rows,)](
        logits, slots, state.seeds, state.steps, state.least, state.rings, state.positions, state.last, state.draws,
        tokens, stride, ids, first_stop, fill, state.max_length, sampling.least_repeats,
        ADVANCE=int(advance), **_constants(sampling, ids),
    )  # fmt: skip


@triton.jit
def _leave_only_drawn(
    logits, seeds, steps, rings, active, controls, stride, ids, least_repeats, TOP_P: tl.constexpr, TOP_K: tl.constexpr,
    PLACES: tl.constexpr, WINDOW: tl.constexpr, BACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < ids
    place = logits + row * stride + column
    x, _ = _logits(place, inside)
    first, only = tl.load(controls + 2 * row), tl.load(controls + 2 * row + 1)
    allowed = inside & ((column < first) | (column == only))
    x = tl.where(allowed, x, float("-inf"))
    step = tl.load(steps + row)
    ring = rings + row * WINDOW
    token = _drawn(
        x, column, ring, tl.load(seeds + row), step, least_repeats, TOP_P, TOP_K, PLACES, WINDOW, BACK
    )  # fmt: skip
    kept = (column == token) | (tl.load(active + row) == 0)
    tl.store(place, tl.where(kept, x, float("-inf")), mask=inside)
    tl.store(ring + step % WINDOW, token.to(tl.int64))
    tl.store(steps + row, step + 1)


def leave_only_drawn(
    logits: Tensor,
    seeds: Tensor,
    steps: Tensor,
    rings: Tensor,
    active: Tensor,
    controls: Tensor,
    sampling: SamplingConfig,
) -> None:
    """Draw an id for each row by the rule of ``sampling.ras`` and mask all others.

    Args:
        logits: ``(rows, ids)``, changed in place. A row with NaN or infinity draws as if all ids were equally likely.
        seeds, steps: ``(rows or more,)``, int64; steps are incremented.
        rings: ``(rows or more, window)``, int64: the last ids, to which the drawn one is added.
        active: ``(rows or more,)``, bool: the logits of other rows are not changed.
        controls: ``(rows or more, 2)``, int64: the first control id, and the only one that may be drawn.
    """
    rows, ids = logits.shape
    _leave_only_drawn[(rows,)](
        logits, seeds, steps, rings, active, controls, logits.stride(0), ids, sampling.least_repeats,
        **_constants(sampling, ids),
    )  # fmt: skip
