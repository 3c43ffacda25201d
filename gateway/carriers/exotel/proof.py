"""Exotel's proof: the credentials in the addresses configured at Exotel."""

from __future__ import annotations

from gateway.carriers.exotel.settings import ExotelConfig
from gateway.carriers.proof import Proof, credentials
from gateway.carriers.signatures import one_spelling, twilio_message


def _checked(settings: ExotelConfig, given: str | None) -> bool | None:
    return credentials(given, settings.api_key.get_secret_value() if settings.api_key else "", settings.api_token)


PROOF: Proof[ExotelConfig] = Proof(
    webhook=lambda settings, hook: _checked(settings, hook.headers.get("authorization", "")),
    # Exotel signs nothing. The whole request stands for a signature, so that a copy begins no second call.
    covered=lambda hook: twilio_message(one_spelling(hook.url), hook.form),
    upgrade=lambda settings, upgrade: _checked(settings, upgrade.headers.get("authorization")),
)
