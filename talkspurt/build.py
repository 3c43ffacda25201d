"""The wiring: the only code that names a concrete engine."""

from __future__ import annotations

from tts_engine.api import SpeechEngine
from tts_engine.config import EngineConfig
from tts_engine.embedded import EmbeddedSynthesizer
from tts_engine.engine import Engine
from tts_engine.errors import Unavailable
from tts_engine.metrics import PrometheusObserver
from tts_engine.process import EngineProcess
from tts_engine.synthesizer import Synthesizer
from tts_engine.tone import ToneSynthesizer


async def make_engine(config: EngineConfig) -> SpeechEngine:
    """The engine that ``config.kind`` names, in this process and warm.

    Raises:
        Unavailable: that kind is not part of this build.
    """
    engine = Engine(_synthesizer(config), config.speech, observer=PrometheusObserver())
    try:
        await engine.start()
    except BaseException:
        await engine.aclose()
        raise
    return engine


def engine_process(config: EngineConfig) -> EngineProcess:
    """The same engine as a child process; ``start()`` it, then reach it at ``target``."""
    return EngineProcess("talkspurt.engine_main", config)


def _synthesizer(config: EngineConfig) -> Synthesizer:
    match config.kind:
        case "embedded":
            return EmbeddedSynthesizer(config.embedded)
        case "tone":
            return ToneSynthesizer()
        case _:
            raise Unavailable(f"engine {config.kind} is not available in this build")
