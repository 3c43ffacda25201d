"""Qwen2 with a head over speech tokens: prompts are ids of the joined table, outputs are speech ids.

``config.json`` names the whole table as ``vocab_size`` and the head as ``speech_vocab_size``. vLLM takes the whole
table for the vocabulary, so penalties and ``allowed_token_ids`` (which size their masks by it) must not be used.
"""

from __future__ import annotations

from typing import Any

from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM


class SpeechQwen2ForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
    """The body as vLLM has it; the head is smaller than the table and has a bias in version 2."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        size = self.config.speech_vocab_size
        self.lm_head = ParallelLMHead(
            size, self.config.hidden_size, bias=self.config.speech_head_bias, prefix=f"{prefix}.lm_head".lstrip(".")
        )
        self.logits_processor = LogitsProcessor(size)

    def compute_logits(self, hidden_states: Any, *args: Any) -> Any:
        # A head's own bias is ignored unless it is passed.
        return self.logits_processor(self.lm_head, hidden_states, getattr(self.lm_head, "bias", None))
