"""RAS as a vLLM logits processor. It draws the token itself and leaves vLLM's sampler only that token.

It is written for the interfaces of vLLM 0.26 (GPU) and 0.32 (CPU runner). The history is kept on the device and updated
by the draw, because with asynchronous scheduling vLLM's output lists lag. Requests have temperature 0, so that vLLM
takes the only token left. vLLM's mask of stop tokens before ``min_tokens`` is applied first and respected.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor.interface import BatchUpdate, LogitsProcessor, MoveDirectionality

from tts_engine.cosyvoice.models.config import SamplingConfig
from tts_engine.cosyvoice.vllm_plugin import CONTROLS, HISTORY, SAMPLING
from tts_engine.cosyvoice.vllm_plugin.ras import RasState

SEED = "ras_seed"
"""Key of ``SamplingParams.extra_args`` that turns RAS on for a request; an int64."""


class RasLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """The logits processor. Each worker has one."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        seed = (sampling_params.extra_args or {}).get(SEED)
        if seed is not None and not (isinstance(seed, int) and -(2**63) <= seed < 2**63):
            raise ValueError(f"extra_args[{SEED!r}] is {seed!r}, expected an int64")

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        settings = getattr(vllm_config.model_config.hf_config, SAMPLING, {})
        self._state = RasState(vllm_config.scheduler_config.max_num_seqs, device, SamplingConfig(**settings))

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row, params, _prompt, output in batch_update.added:
            given = params.extra_args or {}
            history = [*given.get(HISTORY, ()), *output]
            self._state.start(row, given.get(SEED), history, controls=given.get(CONTROLS))
        for source, target, direction in batch_update.moved:
            self._state.move(source, target, swap=direction == MoveDirectionality.SWAP)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return self._state.apply(logits)
