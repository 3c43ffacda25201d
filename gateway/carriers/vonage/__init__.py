"""Vonage Voice API WebSockets."""

from __future__ import annotations

from gateway.carriers.carrier import Carrier
from gateway.carriers.vonage.call_control import CALL_CONTROL
from gateway.carriers.vonage.dialect import Vonage
from gateway.carriers.vonage.outgoing import PLACING
from gateway.carriers.vonage.proof import PROOF
from gateway.carriers.vonage.settings import VonageConfig

CARRIER = Carrier(
    name=Vonage.name,
    about="Vonage Voice API WebSocket.",
    settings=VonageConfig,
    dialect=lambda settings, query: Vonage(),
    proof=PROOF,
    call_control=CALL_CONTROL,
    placing=PLACING,
)
