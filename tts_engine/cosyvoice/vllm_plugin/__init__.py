"""What vLLM needs to run CosyVoice's language model: our model class and our sampler.

vLLM finds ``register`` through the entry point ``vllm.general_plugins`` and runs it in each of its processes.
"""

from __future__ import annotations

ARCHITECTURE = "TalkspurtSpeechQwen2ForCausalLM"
SAMPLER = "tts_engine.cosyvoice.vllm_plugin.processor:RasLogitsProcessor"
SAMPLING = "ras_sampling"
"""Key of the model's ``config.json``: the fields of ``SamplingConfig``."""
HISTORY = "ras_history"
"""Key of ``SamplingParams.extra_args``: a list of the ids that were drawn before the request, which continues them."""
CONTROLS = "ras_controls"
"""Key of ``SamplingParams.extra_args``: ``[first, only]``. Control ids begin at ``first``; only ``only`` may be
drawn."""


def register() -> None:
    """Register the architecture with vLLM. This may run more than once in a process."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        # It is a string, so that the class is imported where the model is built, not in a parent that forks later.
        ModelRegistry.register_model(ARCHITECTURE, "tts_engine.cosyvoice.vllm_plugin.model:SpeechQwen2ForCausalLM")
