"""jambonz' section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from gateway.carriers.settings import CarrierSection
from gateway.config import NUMBER


class JambonzConfig(CarrierSection):
    """jambonz' secrets and options."""

    username: str = ""
    """User name in `wsAuth` of the `listen` verb."""
    password: SecretStr | None = Field(None, min_length=1)
    """Password of `username`."""
    webhook_secret: SecretStr | None = Field(None, min_length=1)
    """Secret that checks `Jambonz-Signature` on webhooks."""
    sample_rate: Annotated[Literal[8000, 16000, 24000, 48000], NUMBER] = 8000
    """Sample rate that our webhook asks for in both directions, hertz."""
    outbound_sample_rate: Annotated[Literal[0, 8000, 16000, 24000, 48000], NUMBER] = 0
    """`bidirectionalAudio.sampleRate` of verbs that our webhook did not write, hertz; 0: the rate of the caller's
    audio."""
    streaming: bool = True
    """`bidirectionalAudio.streaming` of verbs that our webhook did not write. Off: audio returns in `playAudio`
    messages, without marks."""
