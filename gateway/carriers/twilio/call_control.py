"""Twilio's webhooks, which are answered with TwiML."""

from __future__ import annotations

from gateway.carriers.call_control import CallControl, connect, xml_after
from gateway.carriers.twilio.settings import TwilioConfig

CALL_CONTROL: CallControl[TwilioConfig] = CallControl(
    start=lambda settings, stream: connect(stream),
    after=xml_after,
    after_address=lambda settings: settings.after_url,
    names_call="itself",
)
