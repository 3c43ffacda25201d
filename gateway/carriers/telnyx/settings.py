"""Telnyx's section."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from gateway.carriers.settings import BufferingCarrierSection
from gateway.config import NUMBER


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
    """The account's Ed25519 public key in base64. It checks webhooks."""
    stream_token: SecretStr | None = Field(None, min_length=1)
    """The `stream_auth_token` of streams that were not started by our webhook."""
    after_url: str = ""
    """URL where a call goes on after its session; it gets `SessionId`, `SessionStatus` and `HandoffData`. Empty: hang
    up."""
    codec: Literal["PCMU", "PCMA", "G722", "L16"] = "PCMU"
    """Codec that we send (`stream_bidirectional_codec`); our webhook asks for it."""
    sample_rate: Annotated[Literal[8000, 16000, 24000, 48000], NUMBER] = 8000
    """Sample rate of L16, hertz."""
    l16_byte_order: Literal["little", "big"] = "little"
    """Byte order of L16, on which reports differ. With the wrong one the caller hears loud noise."""
    api_key: SecretStr | None = Field(None, min_length=1)
    """Key of the Call Control API, which ends and transfers calls whose stream our TeXML did not start. Without the key
    such calls go on when the bot ends them."""
    api_url: str = Field("https://api.telnyx.com/v2", pattern=r"^https?://")
    """Address of the Call Control API."""

    @property
    def rate(self) -> int:
        """Sample rate of the audio that we send, hertz; only for L16 it can be chosen."""
        return {"G722": 16000, "L16": self.sample_rate}.get(self.codec, 8000)
