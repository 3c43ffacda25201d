"""Repetition-aware sampling for all requests of a vLLM worker: history, seed and controls of each row.

The rule itself is in ``cosyvoice.sampling``. On a GPU it is one kernel (``kernels.sampling``), because about 100 torch
operations would take 1.2 to 2 ms of host time in each step. None of these modules imports vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tts_engine.cosyvoice.models.config import SamplingConfig
from tts_engine.cosyvoice.sampling import ras, uniforms

_ALL = 2**31  # larger than any id


class RasState:
    """Sampling state of all rows of a batch, on the device.

    Not thread-safe. ``apply`` leaves rows without a seed unchanged.
    """

    def __init__(self, rows: int, device: torch.device, config: SamplingConfig, *, fused: bool | None = None) -> None:
        """``fused``: use the kernel. None: on a GPU only."""
        self._config = config
        self._fused = device.type == "cuda" if fused is None else fused
        self._ring = torch.full((rows, self._config.window), -1, dtype=torch.long, device=device)
        self._step = torch.zeros(rows, dtype=torch.long, device=device)
        self._seed = torch.zeros(rows, dtype=torch.long, device=device)
        self._active = torch.zeros(rows, dtype=torch.bool, device=device)
        self._controls = torch.full((rows, 2), _ALL, dtype=torch.long, device=device)
        self._masks = False
        """True once a request had ``controls``. Until then the mask is not computed."""

    def start(self, row: int, seed: int | None, history: list[int], *, controls: Sequence[int] | None = None) -> None:
        """Begin a request in a row, or continue one after a preemption.

        Args:
            controls: the first control id, and the only control id that may be drawn. None: any may be drawn.
        """
        self._controls[row] = _ALL
        if controls is not None:
            self._masks = True
            self._controls[row, 0], self._controls[row, 1] = controls
        self._active[row] = seed is not None
        self._seed[row] = seed or 0
        self._step[row] = len(history)
        self._ring[row] = -1
        for index in range(max(0, len(history) - self._config.window), len(history)):
            self._ring[row, index % self._config.window] = history[index]

    def move(self, source: int, target: int, *, swap: bool) -> None:
        for state in (self._ring, self._step, self._seed, self._active, self._controls):
            if swap:
                state[[source, target]] = state[[target, source]]
            else:
                state[target] = state[source]

    def apply(self, logits: Tensor) -> Tensor:
        """Draw an id for each row and mask all others. ``logits``: ``(rows, ids)``, changed in place."""
        if self._fused:
            from tts_engine.cosyvoice.kernels.sampling import leave_only_drawn  # needs Triton

            leave_only_drawn(logits, self._seed, self._step, self._ring, self._active, self._controls, self._config)
            return logits
        n = logits.shape[0]
        ring, step = self._ring[:n], self._step[:n]
        if self._masks:
            ids = torch.arange(logits.shape[1], device=logits.device)
            first, only = self._controls[:n, :1], self._controls[:n, 1:]
            logits.masked_fill_((ids >= first) & (ids != only), float("-inf"))
        token, _ = ras(logits.float(), ring, uniforms(self._seed[:n], step), self._config)
        ring.scatter_(-1, (step % self._config.window)[:, None], token[:, None])
        step += 1
        others = torch.ones_like(logits, dtype=torch.bool).scatter_(-1, token[:, None], False)
        return logits.masked_fill_(others & self._active[:n, None], float("-inf"))
