"""Plivo's section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from gateway.carriers.settings import BufferingCarrierSection
from gateway.config import HttpUrl


class PlivoConfig(BufferingCarrierSection):
    """Plivo's secrets and options."""

    auth_token: SecretStr | None = Field(None, min_length=1)
    """Token that checks `X-Plivo-Signature-V3` on webhooks."""
    after_url: HttpUrl = ""
    """URL for a call after the bot; gets a form with `SessionId`, `SessionStatus`, `HandoffData`. Empty: hang up."""
    auth_id: str = ""
    """The account whose calls `POST /v1/calls` places."""
    api_url: HttpUrl = "https://api.plivo.com"
    """Address of the REST API that places calls."""
    content_type: Literal["audio/x-mulaw;rate=8000", "audio/x-l16;rate=8000", "audio/x-l16;rate=16000"] = (
        "audio/x-mulaw;rate=8000"
    )
    """Codec and sample rate that our webhook asks for."""
