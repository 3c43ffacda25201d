"""What vLLM needs to run CosyVoice's language model: our model class and our sampler.

vLLM finds ``register`` through the entry point ``vllm.general_plugins`` and runs it in each of its processes.
"""

from __future__ import annotations

import os

from tts_engine.service.child import die_with

ARCHITECTURE = "TalkspurtSpeechQwen2ForCausalLM"
SAMPLER = "tts_engine.cosyvoice.vllm_plugin.processor:RasLogitsProcessor"
SAMPLING = "ras_sampling"
"""Key of the model's ``config.json``: the fields of ``SamplingConfig``."""
HISTORY = "ras_history"
"""Key of ``SamplingParams.extra_args``: a list of the ids that were drawn before the request, which continues them."""
CONTROLS = "ras_controls"
"""Key of ``SamplingParams.extra_args``: ``[first, only]``. Control ids begin at ``first``; only ``only`` may be
drawn."""
OWNER = "TALKSPURT_VLLM_OWNER"
"""Environment variable: the process id of the engine that has started vLLM."""


def register() -> None:
    """Register the architecture with vLLM, and have a process that our engine has started end with the engine: vLLM's
    would live on, with its memory of the GPU. This may run more than once in a process."""
    if os.environ.get(OWNER) == str(os.getppid()):
        die_with(os.getppid())
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        # It is a string, so that the class is imported where the model is built, not in a parent that forks later.
        ModelRegistry.register_model(ARCHITECTURE, "tts_engine.cosyvoice.vllm_plugin.model:SpeechQwen2ForCausalLM")
