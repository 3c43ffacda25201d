"""The proof of FreeSWITCH with mod_audio_fork for a media socket: basic authentication."""

from __future__ import annotations

from gateway.carriers.freeswitch_fork.settings import FreeSwitchForkConfig
from gateway.carriers.proof import Proof, Upgrade, credentials


def _upgrade(settings: FreeSwitchForkConfig, upgrade: Upgrade) -> bool | None:
    return credentials(upgrade.headers.get("authorization"), settings.username, settings.password)


PROOF = Proof(upgrade=_upgrade)
