"""Telnyx's section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from gateway.carriers.settings import CarrierSection
from gateway.config import NUMBER


class TelnyxConfig(CarrierSection):
    """Telnyx's secrets and options."""

    public_key: str = ""
    """Base64 of the account's Ed25519 public key; checks webhooks."""
    stream_token: SecretStr | None = Field(None, min_length=1)
    """The `stream_auth_token` of streams that were not started by our webhook."""
    after_url: str = ""
    """Where a call goes on after its session: gets `SessionId`, `SessionStatus`, `HandoffData`. Empty: hang up."""
    codec: Literal["PCMU", "PCMA", "G722", "L16"] = "PCMU"
    """What we send: `stream_bidirectional_codec`, also asked for by our webhook."""
    sample_rate: Annotated[Literal[8000, 16000, 24000, 48000], NUMBER] = 8000
    """Rate of L16, hertz."""
    l16_byte_order: Literal["little", "big"] = "little"
    """Byte order of L16, on which reports differ. Wrong: loud noise."""
    api_key: SecretStr | None = Field(None, min_length=1)
    """Ends and transfers calls that Call Control leads (a stream not started by our TeXML); without it they go on."""
    api_url: str = Field("https://api.telnyx.com/v2", pattern=r"^https?://")
    """Where that API is."""
    api_timeout_s: float = Field(10.0, gt=0)
    """Longest wait for one of its answers."""

    @property
    def rate(self) -> int:
        """Hertz of what we send: only L16 has a choice."""
        return {"G722": 16000, "L16": self.sample_rate}.get(self.codec, 8000)
