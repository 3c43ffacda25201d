"""Repetition-aware sampling (RAS) of speech ids, batched on the device; the rule of every sampler here.

Nucleus sampling (top-p and top-k together); if the id drawn is among the last ``window`` ids ``least_repeats`` times or
more, it is struck out and another is drawn from the whole distribution. Randomness comes in as numbers, so that a
sequence can be replayed: one uniform per draw, two draws at most.

Each draw takes the first entry whose cumulative probability exceeds ``u``: entries in descending order for the nucleus,
equal ones in the order of their ids, as upstream's stable sort has them; in index order for the second draw. Where all
other ids are masked, a repeated id stands; upstream fails there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tts_engine.cosyvoice.models.config import LanguageModelConfig, SamplingConfig


def stop_mask(config: LanguageModelConfig, *, upstream: bool = False) -> Tensor:
    """Which ids must not come before the minimum length: shape ``(speech_vocab_size,)``, True where masked.

    All that end a generation. Upstream masks the first control id only, which in CosyVoice3 is not the end (its eos is
    the second): pass ``upstream`` for that.
    """
    mask = torch.zeros(config.speech_vocab_size, dtype=torch.bool)
    last = config.speech_token_size + 1 if upstream else config.speech_vocab_size
    mask[config.speech_token_size : last] = True
    return mask


def ras(logits: Tensor, history: Tensor, uniforms: Tensor, config: SamplingConfig) -> tuple[Tensor, Tensor]:
    """Draw one id per row.

    Args:
        logits: shape ``(rows, ids)``, fp32 logits or log-probabilities; masked ids at -inf.
        history: shape ``(rows, >= window)``, int64: generated ids, of which the last ``window`` columns count, in any
            order; -1 where there is none.
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
    """Return what the ids' probabilities are proportional to, fp64; the likeliest id has 1.

    fp32 exponentials, summed in fp64: the sums are the same in any order, so all samplers agree where ids are equally
    likely.
    """
    best = logits.amax(dim=-1, keepdim=True)
    return (logits - best.where(best > float("-inf"), torch.zeros_like(best))).exp().double()


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """First index whose cumulative weight exceeds ``uniform`` ``(rows, 1)`` times the whole: shape ``(rows, 1)``."""
    cumulative = weights.cumsum(dim=-1)
    index = (cumulative <= uniform * cumulative[:, -1:]).sum(dim=-1, keepdim=True)
    # A draw that rounding leaves above the last share takes the last entry that has any weight.
    last = weights.shape[-1] - 1 - (weights > 0).flip(-1).int().argmax(dim=-1, keepdim=True)
    return torch.minimum(index, last)


def uniforms(seed: Tensor, step: Tensor) -> Tensor:
    """Two numbers in [0, 1) for each row from its seed and step alone, ``(rows, 2)``, float64.

    SplitMix64 (Steele, Lea, Flood 2014) as a counter-based generator: a request draws the same numbers in any row,
    batch and order of steps, and no generator state has to move with it.
    """
    counter = 2 * step[:, None] + torch.arange(1, 3, device=step.device)
    z = _mix(seed)[:, None] + counter * -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as int64; products wrap
    return (_mix(z) >> 11 & (1 << 53) - 1).double() * 2.0**-53


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    z = (z ^ _shift(z, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift right of int64."""
    return z >> bits & (1 << 64 - bits) - 1


def push(history: Tensor, ids: Tensor) -> Tensor:
    """History ``(rows, window)`` with new ids ``(rows,)`` at its end."""
    return torch.cat([history[:, 1:], ids[:, None]], dim=1)
