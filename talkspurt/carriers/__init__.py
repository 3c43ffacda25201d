"""The carrier's half of each wire format, for the simulated caller. Pure; shares nothing with ``gateway.wire``.

What the gateway sends is read strictly, as the carrier documents it: whatever a carrier would warn about or
refuse becomes a ``Violation``, so that our own peer is not kinder to us than the real one.
"""

from __future__ import annotations

from talkspurt.carriers.carrier import Carrier, Clear, Command, Mark, Media, Violation
from talkspurt.carriers.twilio import TwilioCarrier

CARRIERS: dict[str, type[Carrier]] = {"twilio": TwilioCarrier}
"""Dialect name -> the carrier that speaks it."""

__all__ = ["CARRIERS", "Carrier", "Clear", "Command", "Mark", "Media", "TwilioCarrier", "Violation"]
