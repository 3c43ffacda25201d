"""Asterisk's proof for a media socket: basic authentication."""

from __future__ import annotations

from gateway.carriers.asterisk.settings import AsteriskConfig
from gateway.carriers.proof import Proof, Upgrade, credentials


def _upgrade(settings: AsteriskConfig, upgrade: Upgrade) -> bool | None:
    return credentials(upgrade.headers.get("authorization"), settings.username, settings.password)


PROOF = Proof(upgrade=_upgrade)
