"""The proof of FreeSWITCH with mod_audio_stream for a media socket: a bearer token."""

from __future__ import annotations

from gateway.carriers.freeswitch.settings import FreeSwitchConfig
from gateway.carriers.proof import Proof, Upgrade, bearer


def _upgrade(settings: FreeSwitchConfig, upgrade: Upgrade) -> bool | None:
    return bearer(upgrade.headers.get("authorization"), settings.token)


PROOF = Proof(upgrade=_upgrade)
