"""What vLLM needs to run CosyVoice's language model: our model class and our sampler.

vLLM finds ``register`` through the entry point ``vllm.general_plugins`` and runs it in each of its processes.
"""

from __future__ import annotations

ARCHITECTURE = "TalkspurtSpeechQwen2ForCausalLM"
SAMPLER = "tts_engine.cosyvoice.vllm_plugin.processor:RasLogitsProcessor"
HISTORY = "ras_history"
"""Key of ``SamplingParams.extra_args``: the ids drawn before the request, which goes on after them; a list."""
CONTROLS = "ras_controls"
"""Key of the same: ``[first, only]``, of the control ids, which begin at ``first``, only this one may be drawn."""


def register() -> None:
    """Make the architecture known; may run more than once in a process."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        # As a string: the class is imported where the model is built, not in a parent that is yet to fork.
        ModelRegistry.register_model(ARCHITECTURE, "tts_engine.cosyvoice.vllm_plugin.model:SpeechQwen2ForCausalLM")
