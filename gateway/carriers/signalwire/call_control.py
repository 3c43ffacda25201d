"""SignalWire's webhooks: cXML, which is TwiML with a codec."""

from __future__ import annotations

from gateway.carriers.call_control import TWILIO_FIELDS, Answer, CallControl, StreamOrder, connect, xml_after
from gateway.carriers.signalwire.settings import SignalWireConfig


def _start(settings: SignalWireConfig, stream: StreamOrder) -> Answer:
    return connect(stream, codec=settings.codec, **({"realtime": "true"} if settings.realtime else {}))


CALL_CONTROL = CallControl(
    start=_start,
    after=xml_after,
    after_address=lambda settings: settings.after_url,
    secret=lambda settings: settings.signing_key,
    own_fields=TWILIO_FIELDS,
)
