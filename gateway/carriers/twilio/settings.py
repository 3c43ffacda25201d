"""Twilio's section."""

from __future__ import annotations

from pydantic import Field, SecretStr

from gateway.carriers.settings import CarrierSection


class TwilioConfig(CarrierSection):
    """Twilio's secrets and options."""

    auth_token: SecretStr | None = Field(None, min_length=1)
    """Checks `X-Twilio-Signature` on webhooks and media sockets."""
    after_url: str = ""
    """Where a call goes on after its session: gets `SessionId`, `SessionStatus`, `HandoffData`. Empty: hang up."""
