"""Repetition-aware sampling (RAS) of speech ids, batched on the device. This is the reference for all samplers of the
engine.

An id is drawn by nucleus sampling (top-p and top-k together). If it is among the last ``window`` ids ``least_repeats``
times or more, it is masked and a second id is drawn from the whole distribution. The caller passes the random numbers,
one per draw, so that a sequence can be replayed.

Each draw takes the first id whose cumulative probability exceeds ``u``. The first draw goes through the ids by
descending probability, equal ones by id, as upstream's stable sort does; the second draw goes through them by id. If
all other ids are masked, the repeated id is kept; upstream fails in that case.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tts_engine.cosyvoice.models.config import LanguageModelConfig, SamplingConfig


def stop_mask(config: LanguageModelConfig, *, upstream: bool = False) -> Tensor:
    """Return the ids that are masked before the minimum length: shape ``(speech_vocab_size,)``, True where masked.

    These are all ids that end a generation. Upstream masks only the first control id, which in CosyVoice3 is not eos
    (eos is the second); ``upstream=True`` does the same.
    """
    mask = torch.zeros(config.speech_vocab_size, dtype=torch.bool)
    last = config.speech_token_size + 1 if upstream else config.speech_vocab_size
    mask[config.speech_token_size : last] = True
    return mask


def ras(logits: Tensor, history: Tensor, uniforms: Tensor, config: SamplingConfig) -> tuple[Tensor, Tensor]:
    """Draw one id per row.

    Args:
        logits: shape ``(rows, ids)``, fp32 logits or log-probabilities; -inf for masked ids.
        history: shape ``(rows, >= window)``, int64: generated ids, -1 for none. The last ``window`` columns count, in
            any order.
        uniforms: shape ``(rows, 2)``, fp64, in [0, 1).

    Returns:
        ids, shape ``(rows,)``; draws used, 1 or 2, shape ``(rows,)``.
    """
    weights, ids = _weights(logits).sort(dim=-1, descending=True, stable=True)
    total = weights.sum(dim=-1, keepdim=True)
    weights, ids = weights[:, : config.top_k], ids[:, : config.top_k]
    before = weights.cumsum(dim=-1) - weights
    kept = weights.where(before < config.top_p * total, torch.zeros_like(weights))
    drawn = ids.gather(1, _invert(kept, uniforms[:, :1]))
    repeats = (history[:, -config.window :] == drawn).sum(dim=1, keepdim=True)
    others = logits.scatter(1, drawn, float("-inf"))
    again = (repeats >= config.least_repeats) & (others.amax(dim=1, keepdim=True) > float("-inf"))
    second = _invert(_weights(others), uniforms[:, 1:])
    return torch.where(again, second, drawn)[:, 0], 1 + again[:, 0].long()


def _weights(logits: Tensor) -> Tensor:
    """Return the unnormalised probabilities, fp64; the most likely id has 1.

    Exponentials are fp32 and sums fp64, so that the order of summation does not matter and all samplers draw the same
    id.
    """
    best = logits.amax(dim=-1, keepdim=True)
    return (logits - best.where(best > float("-inf"), torch.zeros_like(best))).exp().double()


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return the first index whose cumulative weight exceeds ``uniform`` ``(rows, 1)`` times the total: shape ``(rows,
    1)``."""
    cumulative = weights.cumsum(dim=-1)
    index = (cumulative <= uniform * cumulative[:, -1:]).sum(dim=-1, keepdim=True)
    # If rounding puts the draw beyond the total, take the last entry with a weight.
    last = weights.shape[-1] - 1 - (weights > 0).flip(-1).int().argmax(dim=-1, keepdim=True)
    return torch.minimum(index, last)


def uniforms(seed: Tensor, step: Tensor) -> Tensor:
    """Return two numbers in [0, 1) per row, ``(rows, 2)``, float64. They depend only on the row's seed and step.

    This is SplitMix64 (Steele, Lea, Flood 2014) as a counter-based generator. A request gets the same numbers in any
    row, batch and order of steps, and has no generator state.
    """
    counter = 2 * step[:, None] + torch.arange(1, 3, device=step.device)
    z = _mix(seed)[:, None] + counter * -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as int64; products wrap
    return (_mix(z) >> 11 & (1 << 53) - 1).double() * 2.0**-53


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    z = (z ^ _shift(z, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift int64 right, filling with zeros."""
    return z >> bits & (1 << 64 - bits) - 1


def push(history: Tensor, ids: Tensor) -> Tensor:
    """Return the history ``(rows, window)`` with new ids ``(rows,)`` appended and the oldest dropped."""
    return torch.cat([history[:, 1:], ids[:, None]], dim=1)
