"""Twilio Media Streams."""

from __future__ import annotations

from gateway.carriers.carrier import Carrier
from gateway.carriers.twilio.call_control import CALL_CONTROL
from gateway.carriers.twilio.dialect import Twilio
from gateway.carriers.twilio.outgoing import PLACING
from gateway.carriers.twilio.proof import PROOF
from gateway.carriers.twilio.settings import TwilioConfig

CARRIER = Carrier(
    name=Twilio.name,
    about="Twilio Media Streams.",
    settings=TwilioConfig,
    dialect=lambda settings, query: Twilio(settings.message_ms),
    proof=PROOF,
    call_control=CALL_CONTROL,
    placing=PLACING,
)
