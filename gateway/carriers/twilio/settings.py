"""Twilio's section."""

from __future__ import annotations

from pydantic import Field, SecretStr

from gateway.carriers.settings import BufferingCarrierSection


class TwilioConfig(BufferingCarrierSection):
    """Twilio's secrets and options."""

    auth_token: SecretStr | None = Field(None, min_length=1)
    """Token that checks `X-Twilio-Signature` on webhooks and media sockets."""
    account_sid: str = ""
    """The account whose calls `POST /v1/calls` places."""
    api_url: str = Field("https://api.twilio.com", pattern=r"^https?://")
    """Address of the REST API that places calls."""
    shared_key: SecretStr | None = Field(None, min_length=1)
    """Shared key of a Webhooks Rule."""
    after_url: str = ""
    """URL for a call after the bot; gets a form with `SessionId`, `SessionStatus`, `HandoffData`. Empty: hang up."""
