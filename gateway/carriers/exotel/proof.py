"""How Exotel proves that a request is its own: by the credentials in the addresses that it was told."""

from __future__ import annotations

from gateway.carriers.exotel.settings import ExotelConfig
from gateway.carriers.proof import Hook, Proof, Upgrade, credentials


def _upgrade(settings: ExotelConfig, upgrade: Upgrade) -> bool | None:
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    return credentials(upgrade.headers, key, settings.api_token)


def _webhook(settings: ExotelConfig, hook: Hook) -> bool | None:
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    return credentials({"authorization": "", **hook.headers}, key, settings.api_token)


PROOF = Proof(webhook=_webhook, upgrade=_upgrade)
