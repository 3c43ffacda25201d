"""A logits processor for tests: leaves, at step i of a request, only ``extra_args["forced"][i]`` possible."""

from typing import Any

import torch
from vllm.v1.sample.logits_processor.interface import BatchUpdate, LogitsProcessor


class ForcedTokens(LogitsProcessor):  # type: ignore[misc]
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, tuple[list[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, _prompt, output in batch_update.added:
            self._rows.pop(row, None)
            if forced := (params.extra_args or {}).get("forced"):
                self._rows[row] = (forced, output)
        assert not batch_update.moved or not self._rows

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, (forced, output) in self._rows.items():
            if len(output) < len(forced):
                kept = logits[row, forced[len(output)]].clone()
                logits[row] = float("-inf")
                logits[row, forced[len(output)]] = kept
        return logits
