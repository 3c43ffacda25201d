"""Telnyx media streaming, controlled by TeXML or by Call Control."""

from __future__ import annotations

from gateway.carriers.carrier import Carrier
from gateway.carriers.telnyx.call_control import CALL_CONTROL, switch
from gateway.carriers.telnyx.dialect import Telnyx
from gateway.carriers.telnyx.outgoing import PLACING
from gateway.carriers.telnyx.proof import PROOF
from gateway.carriers.telnyx.settings import TelnyxConfig
from voicecodecs.registry import AudioFormat

CARRIER = Carrier(
    name=Telnyx.name,
    about="Telnyx media streaming.",
    settings=TelnyxConfig,
    dialect=lambda settings, query: Telnyx(
        AudioFormat(settings.codec, settings.rate, settings.message_ms), settings.l16_byte_order
    ),
    proof=PROOF,
    call_control=CALL_CONTROL,
    switch=switch,
    placing=PLACING,
)
