"""Repetition-aware sampling (RAS) of speech tokens, batched on the device and repeatable per request.

A token is drawn from the nucleus (top-p 0.8, at most 25 ids). If it occurs among the last ten, it is excluded and the
token is drawn again from the full distribution. Sampling temperature is 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TOP_P = 0.8
TOP_K = 25
WINDOW = 10
"""Tokens looked back on. The repetition threshold is 0.1 of it, so a single occurrence counts."""
_ALL = 2**31  # beyond every id


def ras_pick(scores: Tensor, ring: Tensor, draws: Tensor) -> Tensor:
    """Pick one token a row.

    Args:
        scores: logits or log-probabilities, ``(rows, ids)``, float32; masked ids are minus infinity.
        ring: the last ten tokens of each row in any order, ``(rows, 10)``, int64; -1 where there is none yet.
        draws: uniform in [0, 1), ``(rows, 2)``, float64: for the nucleus, and for the second draw.

    Returns:
        ``(rows,)``, int64.
    """
    p = scores.softmax(-1)
    # Stable: equal scores keep the order of their ids.
    ordered, ids = p.sort(dim=-1, descending=True, stable=True)
    ordered, ids = ordered[:, :TOP_K], ids[:, :TOP_K]
    kept = ordered.masked_fill(ordered.cumsum(-1) - ordered >= TOP_P, 0.0)
    first = ids.gather(-1, _draw(kept, draws[:, 0]))
    others = scores.scatter(-1, first, float("-inf"))
    # Where all other ids are masked there is nothing to draw from, and the repeated token stands.
    again = (ring == first).any(-1, keepdim=True) & (others.amax(-1, keepdim=True) > float("-inf"))
    return torch.where(again, _draw(others.softmax(-1), draws[:, 1]), first)[:, 0]


def _draw(p: Tensor, u: Tensor) -> Tensor:
    """Index of the first entry whose cumulative share exceeds ``u``, ``(rows, 1)``; in float64."""
    cumulative = p.double().cumsum(-1)
    index = torch.searchsorted(cumulative / cumulative[:, -1:], u[:, None].contiguous(), right=True)
    # A draw that rounding leaves above the last share takes the last entry that has any.
    last = p.shape[-1] - 1 - (p > 0).flip(-1).int().argmax(-1, keepdim=True)
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


class RasState:
    """History and draws of all rows of a batch, on the device.

    Not safe for several threads. A row without a seed is left alone by ``apply``.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._ring = torch.full((rows, WINDOW), -1, dtype=torch.long, device=device)
        self._step = torch.zeros(rows, dtype=torch.long, device=device)
        self._seed = torch.zeros(rows, dtype=torch.long, device=device)
        self._active = torch.zeros(rows, dtype=torch.bool, device=device)
        self._controls = torch.full((rows, 2), _ALL, dtype=torch.long, device=device)
        self._masks = False
        """Whether any request had ``controls``: until then nothing is spent on them."""

    def start(self, row: int, seed: int | None, history: list[int], *, controls: Sequence[int] | None = None) -> None:
        """Begin (or, after a preemption, take up again) a request in a row.

        Args:
            controls: the first control id, and the only one of them that may be drawn; None: all may.
        """
        self._controls[row] = _ALL
        if controls is not None:
            self._masks = True
            self._controls[row, 0], self._controls[row, 1] = controls
        self._active[row] = seed is not None
        self._seed[row] = seed or 0
        self._step[row] = len(history)
        self._ring[row] = -1
        for index in range(max(0, len(history) - WINDOW), len(history)):
            self._ring[row, index % WINDOW] = history[index]

    def move(self, source: int, target: int, *, swap: bool) -> None:
        for state in (self._ring, self._step, self._seed, self._active, self._controls):
            if swap:
                state[[source, target]] = state[[target, source]]
            else:
                state[target] = state[source]

    def apply(self, logits: Tensor) -> Tensor:
        """Draw for each row and leave only the drawn id possible. ``logits``: ``(rows, ids)``; changed in place."""
        n = logits.shape[0]
        ring, step = self._ring[:n], self._step[:n]
        if self._masks:
            ids = torch.arange(logits.shape[1], device=logits.device)
            first, only = self._controls[:n, :1], self._controls[:n, 1:]
            logits.masked_fill_((ids >= first) & (ids != only), float("-inf"))
        token = ras_pick(logits.float(), ring, uniforms(self._seed[:n], step))
        ring.scatter_(-1, (step % WINDOW)[:, None], token[:, None])
        step += 1
        others = torch.ones_like(logits, dtype=torch.bool).scatter_(-1, token[:, None], False)
        return logits.masked_fill_(others & self._active[:n, None], float("-inf"))
