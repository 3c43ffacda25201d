"""Makes the configuration's prompts at the start and keeps them in the clause cache.

Prompts are made one after the other, as speech that is made ahead, so every turn goes before them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from tts_engine.api import UtteranceRequest
from tts_engine.errors import EngineError
from voicecodecs.registry import AudioFormat

log = logging.getLogger(__name__)

LEG_RATES = (8000, 16000, 48000)
"""Sample rates that calls ask for, Hz: G.711; G.722; Opus, for which the voice speaks at its own rate. Prompts are made
for each."""


class PromptConfig(BaseModel):
    """A text that is made when the engine starts. It serves turns of the same voice, language, speed and
    instruction."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    text: str = Field(min_length=1)
    """Text. Each of its clauses is kept by itself."""

    voice: str = ""
    """Voice id. Empty: the engine's default."""

    language: str = "en-US"
    """BCP 47 tag."""

    speed: float = Field(default=1.0, ge=0.25, le=4)
    """Speaking rate."""

    instruct: str = ""
    """Style instruction, for models that take one."""


async def warm(prompts: Sequence[PromptConfig], speak: Callable[[UtteranceRequest, str], Awaitable[bool]]) -> None:
    """Make every prompt. A prompt that cannot be spoken is logged, without its text.

    Args:
        speak: makes a text, and returns True if all of it is kept.
    """
    kept = asked = 0
    for number, prompt in enumerate(prompts):
        for rate in LEG_RATES:
            asked += 1
            request = UtteranceRequest(
                utterance_id=f"prompt.{number}.{rate}",
                format=AudioFormat("L16", rate),
                voice=prompt.voice,
                language=prompt.language,
                speed=prompt.speed,
                instruct=prompt.instruct,
                ahead=True,
                priority=0,
            )
            try:
                kept += await speak(request, prompt.text)
            except EngineError as exc:
                log.warning("a prompt cannot be spoken", extra={"prompt": number, "rate": rate, "code": exc.code})
    log.info("prompts are warm", extra={"asked": asked, "kept": kept})
