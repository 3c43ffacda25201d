"""Exotel's proof: the credentials in the addresses configured at Exotel."""

from __future__ import annotations

from gateway.carriers.exotel.settings import ExotelConfig
from gateway.carriers.proof import Proof, credentials


def _checked(settings: ExotelConfig, given: str | None) -> bool | None:
    return credentials(given, settings.api_key.get_secret_value() if settings.api_key else "", settings.api_token)


PROOF: Proof[ExotelConfig] = Proof(
    webhook=lambda settings, hook: _checked(settings, hook.headers.get("authorization", "")),
    upgrade=lambda settings, upgrade: _checked(settings, upgrade.headers.get("authorization")),
)
