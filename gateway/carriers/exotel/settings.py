"""Exotel's section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from gateway.carriers.settings import CarrierSection
from gateway.config import NUMBER


class ExotelConfig(CarrierSection):
    """Exotel's secrets and options."""

    api_key: SecretStr | None = Field(None, min_length=1)
    """User name in the addresses that Exotel calls, `wss://KEY:TOKEN@host/media/...`, `https://KEY:TOKEN@host/webhooks/...`"""
    api_token: SecretStr | None = Field(None, min_length=1)
    """Password in these addresses, checked on webhooks and media sockets."""
    sample_rate: Annotated[Literal[8000, 16000, 24000], NUMBER] = 8000
    """Rate that our stream address asks for, hertz."""
    message_ms: Annotated[Literal[0, 20, 40, 60, 80, 100, 200], NUMBER] = 0
    """Audio per message to Exotel, milliseconds; 0: 200 at 8 kHz, else 100. Less starts sooner; messages below 3200
    bytes make gaps."""
