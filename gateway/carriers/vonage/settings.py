"""Vonage's section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from gateway.carriers.settings import CarrierSection
from gateway.config import NUMBER, HttpUrl


class VonageConfig(CarrierSection):
    """Vonage's secrets and options."""

    signature_secret: SecretStr | None = Field(None, min_length=1)
    """Secret that checks the JWT of webhooks and media sockets."""
    application_id: str = ""
    """The application whose calls `POST /v1/calls` places."""
    private_key: SecretStr | None = Field(None, min_length=1)
    """The application's private key (PEM), which signs our requests."""
    api_url: HttpUrl = "https://api.nexmo.com"
    """Address of the REST API that places calls."""
    sample_rate: Annotated[Literal[8000, 16000, 24000], NUMBER] = 16000
    """Sample rate that our webhook asks for, hertz."""
