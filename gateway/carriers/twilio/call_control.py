"""Twilio's webhooks, which are answered with TwiML."""

from __future__ import annotations

from gateway.carriers.call_control import TWILIO_FIELDS, CallControl, connect, xml_after
from gateway.carriers.twilio.settings import TwilioConfig

CALL_CONTROL: CallControl[TwilioConfig] = CallControl(
    start=lambda settings, stream: connect(stream),
    after=xml_after,
    after_address=lambda settings: settings.after_url,
    secret=lambda settings: settings.auth_token,
    own_fields=TWILIO_FIELDS,
    names_call="itself",
)
