"""SignalWire's cXML streams."""

from __future__ import annotations

from gateway.carriers.carrier import Carrier
from gateway.carriers.signalwire.call_control import CALL_CONTROL
from gateway.carriers.signalwire.dialect import SignalWire
from gateway.carriers.signalwire.outgoing import PLACING
from gateway.carriers.signalwire.proof import PROOF
from gateway.carriers.signalwire.settings import SignalWireConfig

CARRIER = Carrier(
    name=SignalWire.name,
    about="SignalWire cXML streams.",
    settings=SignalWireConfig,
    dialect=lambda settings, query: SignalWire(settings.l16_byte_order, settings.message_ms),
    proof=PROOF,
    call_control=CALL_CONTROL,
    placing=PLACING,
)
