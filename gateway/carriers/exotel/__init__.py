"""Exotel's Voicebot applet."""

from __future__ import annotations

from gateway.carriers.carrier import Carrier
from gateway.carriers.exotel.call_control import CALL_CONTROL
from gateway.carriers.exotel.dialect import Exotel
from gateway.carriers.exotel.proof import PROOF
from gateway.carriers.exotel.settings import ExotelConfig

CARRIER = Carrier(
    name=Exotel.name,
    about="Exotel Voicebot applet.",
    settings=ExotelConfig,
    dialect=lambda settings, query: Exotel(settings.message_ms, query),
    proof=PROOF,
    call_control=CALL_CONTROL,
)
