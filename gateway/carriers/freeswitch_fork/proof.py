"""How a FreeSWITCH with mod_audio_fork proves that a media socket is its own: basic auth."""

from __future__ import annotations

from gateway.carriers.freeswitch_fork.settings import FreeSwitchForkConfig
from gateway.carriers.proof import Proof, Upgrade, credentials


def _upgrade(settings: FreeSwitchForkConfig, upgrade: Upgrade) -> bool | None:
    return credentials(upgrade.headers.get("authorization"), settings.username, settings.password)


PROOF = Proof(upgrade=_upgrade)
