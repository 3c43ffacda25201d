"""SignalWire's section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from gateway.carriers.settings import BufferingCarrierSection
from gateway.config import HttpUrl


class SignalWireConfig(BufferingCarrierSection):
    """SignalWire's secrets and options."""

    signing_key: SecretStr | None = Field(None, min_length=1)
    """Key that checks `X-SignalWire-Signature` on webhooks."""
    stream_token: SecretStr | None = Field(None, min_length=1)
    """`authBearerToken` of streams that our webhook did not start."""
    after_url: HttpUrl = ""
    """URL for a call after the bot; gets a form with `SessionId`, `SessionStatus`, `HandoffData`. Empty: hang up."""
    project_id: str = ""
    """The project whose calls `POST /v1/calls` places."""
    api_token: SecretStr | None = Field(None, min_length=1)
    """Token of the project."""
    api_url: HttpUrl = ""
    """Address of the space, `https://SPACE.signalwire.com`."""
    codec: Literal["PCMU@8000h", "L16@16000h", "L16@24000h"] = "PCMU@8000h"
    """Codec that our webhook asks for. L16 carries wideband voices; phones have PCMU."""
    realtime: bool = False
    """Ask for a live stream instead of a buffered one."""
    l16_byte_order: Literal["little", "big"] = "little"
    """Byte order of L16, which the vendor does not document. The wrong one is loud noise."""
