"""Twilio's section."""

from __future__ import annotations

from pydantic import Field, SecretStr

from gateway.carriers.settings import BufferingCarrierSection
from gateway.config import HttpUrl


class TwilioConfig(BufferingCarrierSection):
    """Twilio's secrets and options."""

    auth_token: SecretStr | None = Field(None, min_length=1)
    """Token that checks `X-Twilio-Signature` on webhooks and media sockets."""
    account_sid: str = ""
    """The account whose calls `POST /v1/calls` places."""
    api_url: HttpUrl = "https://api.twilio.com"
    """Address of the REST API that places calls."""
    shared_key: SecretStr | None = Field(None, min_length=1)
    """Shared key of a Webhooks Rule."""
    after_url: HttpUrl = ""
    """URL for a call after the bot; gets a form with `SessionId`, `SessionStatus`, `HandoffData`. Empty: hang up."""
