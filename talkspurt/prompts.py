"""Collects the texts that the engine makes before the first call: the configured prompts, and the greetings of all
routes."""

from __future__ import annotations

from gateway.call.turn_taking.speakable import Speakable, lexicon
from talkspurt.config.settings import Config
from tts_engine.config import EngineConfig
from tts_engine.pipeline.prompts import PromptConfig


def with_greetings(config: Config) -> EngineConfig:
    """Return the engine's section with the greetings added before its prompts, in the voice and language of their
    routes."""
    greetings = []
    for route in config.routes.values():
        greeting = Speakable(lexicon(tuple(route.lexicon.items())))
        greeting.feed(route.welcome_greeting)
        greeting.close()
        if greeting.has_words:
            greetings.append(PromptConfig(text=greeting.text, voice=route.voice, language=route.language))
    speech = config.engine.speech
    prompts = tuple(dict.fromkeys((*greetings, *speech.prompts)))
    return config.engine.model_copy(update={"speech": speech.model_copy(update={"prompts": prompts})})
