"""Twilio's section."""

from __future__ import annotations

from pydantic import Field, SecretStr

from gateway.carriers.settings import BufferingCarrierSection


class TwilioConfig(BufferingCarrierSection):
    """Twilio's secrets and options."""

    auth_token: SecretStr | None = Field(None, min_length=1)
    """Token that checks `X-Twilio-Signature` on webhooks and media sockets."""
    after_url: str = ""
    """URL for a call after its session, with `SessionId`, `SessionStatus` and `HandoffData`. Empty: hang up."""
