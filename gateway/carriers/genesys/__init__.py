"""Genesys AudioHook, as Audio Connector and as monitor."""

from __future__ import annotations

from gateway.carriers.carrier import Carrier
from gateway.carriers.genesys.dialect import Genesys
from gateway.carriers.genesys.proof import PROOF
from gateway.carriers.genesys.settings import GenesysConfig

CARRIER = Carrier(
    name=Genesys.name,
    about="Genesys Cloud AudioHook and Audio Connector.",
    settings=GenesysConfig,
    dialect=lambda settings, query: Genesys(settings.message_ms),
    proof=PROOF,
)
