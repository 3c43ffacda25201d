"""Genesys' section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from gateway.carriers.settings import CarrierSection
from gateway.config import NUMBER


class GenesysConfig(CarrierSection):
    """Genesys Cloud AudioHook's secrets and options."""

    api_key: SecretStr | None = Field(None, min_length=1)
    """The integration's `X-API-KEY`."""
    client_secret: SecretStr | None = Field(None, min_length=1)
    """The integration's client secret, base64. It checks the HTTP message signature of media sockets."""
    message_ms: Annotated[Literal[100, 200], NUMBER] = 200
    """Audio per message, milliseconds. The peer is said to allow five messages a second; 100 needs a peer that allows
    more."""
