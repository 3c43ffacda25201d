"""Plivo Audio Streaming."""

from __future__ import annotations

from gateway.carriers.carrier import Carrier
from gateway.carriers.plivo.call_control import CALL_CONTROL
from gateway.carriers.plivo.dialect import Plivo
from gateway.carriers.plivo.outgoing import PLACING
from gateway.carriers.plivo.proof import PROOF
from gateway.carriers.plivo.settings import PlivoConfig

CARRIER = Carrier(
    name=Plivo.name,
    about="Plivo Audio Streaming.",
    settings=PlivoConfig,
    dialect=lambda settings, query: Plivo(settings.message_ms),
    proof=PROOF,
    call_control=CALL_CONTROL,
    placing=PLACING,
)
