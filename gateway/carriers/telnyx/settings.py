"""Telnyx's section."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from gateway.carriers.settings import BufferingCarrierSection
from gateway.config import NUMBER, HttpUrl


def _ed25519(value: str) -> str:
    try:
        size = len(base64.b64decode(value, validate=True))
    except ValueError:
        size = -1
    if value and size != 32:
        raise ValueError("this is no Ed25519 public key, expected base64 of 32 bytes")
    return value


class TelnyxConfig(BufferingCarrierSection):
    """Telnyx's secrets and options."""

    public_key: Annotated[str, AfterValidator(_ed25519)] = ""
    """The account's Ed25519 public key in base64, which checks webhooks."""
    stream_token: SecretStr | None = Field(None, min_length=1)
    """`stream_auth_token` of streams that our webhook did not start."""
    after_url: HttpUrl = ""
    """URL for a call after the bot; gets a form with `SessionId`, `SessionStatus`, `HandoffData`. Empty: hang up."""
    codec: Literal["PCMU", "PCMA", "G722", "OPUS", "L16"] = "PCMU"
    """Codec that we send, and our webhook asks for both ways. L16 is only for streams that Call Control starts."""
    sample_rate: Annotated[Literal[8000, 16000, 24000, 48000], NUMBER] = 8000
    """Sample rate of L16, hertz."""
    l16_byte_order: Literal["little", "big"] = "little"
    """Byte order of L16; reports differ. The wrong one is loud noise."""
    api_key: SecretStr | None = Field(None, min_length=1)
    """Key of the Call Control API, which ends and transfers calls that our TeXML did not start. Without it they
    continue after the bot."""
    application_id: str = ""
    """The TeXML application whose calls `POST /v1/calls` places."""
    api_url: HttpUrl = "https://api.telnyx.com/v2"
    """Address of the Call Control and TeXML API."""

    @property
    def rate(self) -> int:
        """Sample rate of the audio that we send, hertz; only for L16 it can be chosen."""
        return {"G722": 16000, "OPUS": 16000, "L16": self.sample_rate}.get(self.codec, 8000)

    @property
    def inbound_codec(self) -> str:
        """Codec that our webhook asks for the caller's audio. A phone call has no L16, so then PCMU is asked for."""
        return "PCMU" if self.codec == "L16" else self.codec
