"""Qwen2 with a head over speech tokens, for vLLM. Prompts are ids of the joined table, outputs are speech ids.

In ``config.json``, ``vocab_size`` is the size of the whole table and ``speech_vocab_size`` that of the head. vLLM takes
the whole table for the vocabulary, so do not use penalties or ``allowed_token_ids``: their masks would not match the
logits.
"""

from __future__ import annotations

from typing import Any

from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM


class SpeechQwen2ForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
    """vLLM's Qwen2 with a head that is smaller than the table, and with a bias in version 2."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        size = self.config.speech_vocab_size
        self.lm_head = ParallelLMHead(
            size, self.config.hidden_size, bias=self.config.speech_head_bias, prefix=f"{prefix}.lm_head".lstrip(".")
        )
        self.logits_processor = LogitsProcessor(size)

    def compute_logits(self, hidden_states: Any, *args: Any) -> Any:
        # vLLM ignores a head's own bias unless it is passed here.
        return self.logits_processor(self.lm_head, hidden_states, getattr(self.lm_head, "bias", None))
