"""A vLLM plugin for CosyVoice's language model: model class and sampler.

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
"""Key of ``SamplingParams.extra_args``: list of the ids drawn before this request, which continues them."""
CONTROLS = "ras_controls"
"""Key of ``SamplingParams.extra_args``: ``[first, only]``. Ids from ``first`` on are control ids, of which only
``only`` may be drawn."""
OWNER = "TALKSPURT_VLLM_OWNER"
"""Environment variable: process id of the engine that started vLLM."""


def register() -> None:
    """Register the architecture with vLLM. A vLLM process that the engine started is also made to end with the engine;
    otherwise it would keep running and hold GPU memory. May be called more than once in a process."""
    if os.environ.get(OWNER) == str(os.getppid()):
        die_with(os.getppid())
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        # Given as a string, so that the class is imported only where the model is built, not in a parent that forks.
        ModelRegistry.register_model(ARCHITECTURE, "tts_engine.cosyvoice.vllm_plugin.model:SpeechQwen2ForCausalLM")
