"""Repetition-aware sampling (RAS) of speech ids, batched on the device.

Nucleus sampling (top-p and top-k together); if the id drawn is among the last ``window`` ids ``window * tau_r`` times
or more, it is struck out and another is drawn from the whole distribution. Randomness comes in as numbers, so that a
sequence can be replayed: one uniform per draw, two draws at most.

Each draw takes the first entry whose cumulative probability exceeds ``u``: entries in descending order for the nucleus,
in index order for the second draw.
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
        history: shape ``(rows, >= window)``, int64: generated ids, newest last, padded on the left with -1.
        uniforms: shape ``(rows, 2)``, fp64, in [0, 1).

    Returns:
        ids, shape ``(rows,)``; draws used, 1 or 2, shape ``(rows,)``.
    """
    best, ids = logits.softmax(dim=-1).topk(min(config.top_k, logits.shape[-1]), dim=-1)
    before = best.cumsum(dim=-1) - best
    kept = best.where(before < config.top_p, torch.zeros_like(best))
    drawn = ids.gather(1, _invert(kept, uniforms[:, :1]))
    repeats = (history[:, -config.window :] == drawn).sum(dim=1)
    repeated = repeats >= config.window * config.tau_r
    others = logits.scatter(1, drawn, float("-inf")).softmax(dim=-1)
    second = _invert(others, uniforms[:, 1:])
    return torch.where(repeated[:, None], second, drawn)[:, 0], 1 + repeated.long()


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """First index whose share of the cumulative weight exceeds ``uniform`` ``(rows, 1)``: shape ``(rows, 1)``."""
    cumulative = weights.double().cumsum(dim=-1)
    share = cumulative / cumulative[:, -1:]
    return torch.searchsorted(share, uniform.contiguous(), right=True).clamp(max=weights.shape[-1] - 1)


def push(history: Tensor, ids: Tensor) -> Tensor:
    """History ``(rows, window)`` with new ids ``(rows,)`` at its end."""
    return torch.cat([history[:, 1:], ids[:, None]], dim=1)
