"""The engine's half of the configuration file. Every field: unit, default, trade-off."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tts_engine.embedded import EmbeddedConfig
from tts_engine.engine import SpeechConfig


class Section(BaseModel):
    """A section of the file: frozen, unknown keys are errors, docstrings are the reference."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EngineServerConfig(Section):
    """The engine's own listener and its bounds."""

    listen: str = ""
    """`unix:/path/to.sock` or `host:port`. Empty: a private unix socket, for the gateway that started it."""
    metrics_port: int = Field(0, ge=0, le=65535)
    """Prometheus on 127.0.0.1; 0: none. The gateway shows the metrics of the engine it started in any case."""
    max_utterances: int = Field(512, gt=0)
    """Utterances at a time; one more is refused with RESOURCE_EXHAUSTED and a delay."""
    idle_text_s: float = Field(60.0, gt=0)
    """Longest wait for more text of an utterance, seconds; then it is closed with DEADLINE_EXCEEDED."""
    message_bytes: int = Field(16_000_000, gt=0)
    """Largest gRPC message (a reference recording of `AddVoice`)."""
    drain_s: float = Field(10.0, ge=0)
    """How long live utterances may go on after SIGTERM."""


class EngineClientConfig(Section):
    """How the gateway talks to an engine."""

    targets: tuple[str, ...] = ()
    """gRPC targets of engines that run elsewhere, `host:port` or `unix:/path`; empty: start one here. With several,
    an utterance goes to the one with the fewest in flight."""
    audio_s: float = Field(10.0, gt=0)
    """Longest wait for the next sound of an utterance whose text is complete, seconds; then the turn has failed."""
    start_timeout_s: float = Field(120.0, gt=0)
    """Longest start of an engine process, model loading and warm-up included."""
    restart_first_s: float = Field(0.1, gt=0)
    """Pause before a crashed engine is started again; doubles after each failed start."""
    restart_max_s: float = Field(10.0, gt=0)
    """Longest such pause."""


class EngineConfig(Section):
    """Which voice model speaks, where, and under which bounds."""

    kind: Literal["embedded", "tone", "cosyvoice"] = "embedded"
    """`embedded`: the voice in the package, no GPU. `tone`: sines, for load tests of the gateway alone. `cosyvoice`:
    CosyVoice 2 or 3 from a model directory."""
    speech: SpeechConfig = SpeechConfig()
    """Clauses, pauses, cache and bounds, whatever the voice."""
    embedded: EmbeddedConfig = EmbeddedConfig()
    """The embedded voice."""
    nice: int = Field(5, ge=0, le=19)
    """Priority of an engine process started here, below the gateway's. 0 lets it compete with the pacing of calls."""
    server: EngineServerConfig = EngineServerConfig()
    """The engine's listener."""
    client: EngineClientConfig = EngineClientConfig()
    """The gateway's side."""
